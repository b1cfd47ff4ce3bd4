//! Attaching to the name space: by mount(2) when we may, else by the setuid helper fusermount3.

use crate::MountConfig;
use crate::wire::Device;
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a mount is taken down again.
pub(crate) enum Attached {
    /// By umount(2).
    Direct(PathBuf),
    /// By fusermount3. With `auto_unmount` it waits at the other end of the socket for the end of this process.
    ByHelper(PathBuf, #[allow(dead_code)] Option<UnixStream>),
}

/// Mounts. The kernel's first request is waiting at the device then.
pub(crate) fn attach(mountpoint: &Path, config: &MountConfig) -> io::Result<(Device, Attached)> {
    let mountpoint = mountpoint.canonicalize()?;
    let mode = mountpoint.metadata()?.mode();
    if mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    // The kernel itself keeps others out without `allow_other`; only `allow_root` is left to the server.
    let me = rustix::process::geteuid();
    let others = config.others_may_enter(me.as_raw());
    if me.is_root() && !config.auto_unmount {
        let device = mount_directly(&mountpoint, mode, others, config)?;
        return Ok((device, Attached::Direct(mountpoint)));
    }
    let (device, socket) = mount_by_helper(&mountpoint, others, config)?;
    Ok((device, Attached::ByHelper(mountpoint, socket)))
}

fn mount_directly(mountpoint: &Path, mode: u32, others: bool, config: &MountConfig) -> io::Result<Device> {
    let device = Device::open()?;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_fd().as_raw_fd(),
        mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if others {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    rustix::mount::mount(config.source.as_str(), mountpoint, "fuse.lanefs", config.flags(), data.as_c_str())?;
    Ok(device)
}

/// Has fusermount3, which is setuid root, mount; it sends the device through a socket.
fn mount_by_helper(
    mountpoint: &Path,
    others: bool,
    config: &MountConfig,
) -> io::Result<(Device, Option<UnixStream>)> {
    let (mine, theirs) = UnixStream::pair()?;
    // Inherited, with a number the child is told. Not by a hook after the fork: that would make it a real fork, and no ring
    // of a device may live through one.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_options(others, config))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            io::Error::new(
                e.kind(),
                format!("fusermount3, which mounts for ordinary users: {e}; install fuse3"),
            )
        })?;
    drop(theirs);
    let Some(device) = receive_descriptor(&mine)? else {
        let mut said = String::new();
        if let Some(mut err) = child.stderr.take() {
            let _ = err.read_to_string(&mut said);
        }
        let _ = child.wait();
        return Err(io::Error::other(with_advice(said.trim().replace('\n', "; "))));
    };
    if config.auto_unmount {
        return Ok((device.into(), Some(mine)));
    }
    drop(mine);
    child.wait()?;
    Ok((device.into(), None))
}

/// What fusermount3 said, and what to do if it may not open the device: it opens that as the user who called it.
fn with_advice(said: String) -> String {
    match said.contains("/dev/fuse") && said.contains("Permission denied") {
        true => format!("{said}; {}", crate::wire::NOT_ALLOWED),
        false => said,
    }
}

/// The descriptor that comes through a socket; `None` if it is closed first.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    let rights = control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(rights)
}

fn helper_options(others: bool, config: &MountConfig) -> String {
    // fusermount3 splits at commas and takes a backslash for an escape.
    let source = config.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={source},subtype=lanefs,default_permissions");
    options += if config.suid { ",suid" } else { ",nosuid" };
    options += if config.dev { ",dev" } else { ",nodev" };
    for (on, option) in [
        (others, ",allow_other"),
        (config.read_only, ",ro"),
        (config.noexec, ",noexec"),
        (config.noatime, ",noatime"),
        (config.sync, ",sync"),
        (config.dirsync, ",dirsync"),
        (config.auto_unmount, ",auto_unmount"),
    ] {
        if on {
            options += option;
        }
    }
    options
}

impl Attached {
    pub(crate) fn mountpoint(&self) -> &Path {
        match self {
            Attached::Direct(m) | Attached::ByHelper(m, _) => m,
        }
    }

    /// Lets the kernel read ahead by whole requests, and gather as many writes as for any other file system
    /// (FUSE starts with a hundredth, for servers that may not be trusted). Best effort: only root may.
    pub(crate) fn tune(&self, config: &MountConfig) {
        let Some(minor) = connection_of(self.mountpoint()) else { return };
        let bdi = PathBuf::from(format!("/sys/class/bdi/0:{minor}"));
        let read_ahead = (config.max_write / 1024).to_string();
        for (knob, value) in
            [("read_ahead_kb", read_ahead.as_str()), ("max_ratio", "100"), ("strict_limit", "0")]
        {
            let _ = std::fs::write(bdi.join(knob), value);
        }
    }

    /// Unmounts if nobody uses the mount; EBUSY otherwise.
    pub(crate) fn detach_if_idle(&self) -> io::Result<()> {
        match self {
            Attached::Direct(m) => Ok(rustix::mount::unmount(m, UnmountFlags::NOFOLLOW)?),
            Attached::ByHelper(m, _) => unmount_by_helper(m, &["-u", "-q"]),
        }
    }

    /// Takes the mount out of the name space now; those who use it keep it until they are done.
    pub(crate) fn detach(&self) -> io::Result<()> {
        match self {
            Attached::Direct(m) => {
                Ok(rustix::mount::unmount(m, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
            }
            Attached::ByHelper(m, _) => unmount_by_helper(m, &["-u", "-q", "-z"]),
        }
    }

    /// Cuts the connection: every call in progress and every later one on the mount fails.
    pub(crate) fn abort(&self) {
        if let Attached::Direct(m) = self {
            // EBUSY is the expected answer: the force is in the cut, not in the unmount.
            let _ = rustix::mount::unmount(m, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
        }
        if let Some(minor) = connection_of(self.mountpoint()) {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
    }
}

fn unmount_by_helper(mountpoint: &Path, how: &[&str]) -> io::Result<()> {
    let done = Command::new("fusermount3").args(how).arg("--").arg(mountpoint).status()?;
    if done.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBUSY)) }
}

/// The number of the FUSE connection mounted at `mountpoint`: its device's minor number.
fn connection_of(mountpoint: &Path) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = mountpoint.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    let line = table.lines().rev().find(|l| l.split(' ').nth(4) == Some(wanted.as_str()))?;
    line.split(' ').nth(2)?.split_once(':')?.1.parse().ok()
}
