//! Unix sockets that the command listens on: for their owner alone, and gone with the command.

use crate::failure::{About, Failure};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The name of a socket in the file system; it is removed with this.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    /// Its device and inode number: what others put in its place stays.
    identity: (u64, u64),
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let here = std::fs::symlink_metadata(&self.path);
        if here.is_ok_and(|m| (m.dev(), m.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a socket. One that nobody listens to any more is replaced. `option`: what stands before
/// the path on the command line.
pub fn bind(path: &Path, option: &str) -> Result<(UnixListener, SocketName), Failure> {
    remove_stale(path, option)?;
    let listener = listen(path).map_err(std::io::Error::from).about(path.display())?;
    let meta = std::fs::symlink_metadata(path).about(path.display())?;
    Ok((listener, SocketName { path: path.into(), identity: (meta.dev(), meta.ino()) }))
}

/// Makes a socket for its owner alone, and listens.
fn listen(path: &Path) -> rustix::io::Result<UnixListener> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Before it has a name: Linux gives that the mode of the socket, less the umask.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(UnixListener::from(socket))
}

/// Removes a socket that nobody listens to. Refuses what is no socket, or another's.
fn remove_stale(path: &Path, option: &str) -> Result<(), Failure> {
    let refused = |why: &str| Err(Failure::new(format_args!("{option}{}: {why}", path.display())));
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).about(path.display()),
        Ok(meta) if !meta.file_type().is_socket() => {
            return refused("is there, and is no socket; name another path");
        }
        Ok(_) => {}
    }
    match is_in_use(path) {
        Ok(false) => std::fs::remove_file(path).about(path.display()),
        Ok(true) => refused("another process listens there; name another path"),
        Err(e) => Err(std::io::Error::from(e)).about(path.display()),
    }
}

/// Returns whether a process has the socket of this name. It does not hear of it: a connection
/// might be taken for the one that it waits for, so one of another kind is tried, which cannot be.
fn is_in_use(path: &Path) -> rustix::io::Result<bool> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(false),
        Ok(()) | Err(Errno::PROTOTYPE) => Ok(true),
        Err(e) => Err(e),
    }
}
