//! The kernel's switch that cuts a connection: the file `abort` of its file system fusectl.
//!
//! A connection has a directory there, named by the number of the mount's device, and its files
//! belong to who mounted. fusectl is mounted at /sys/fs/fuse/connections on most systems. Where it
//! is not (containers, machines without systemd) root has the kernel make a mount of it that has no
//! place in the name space: it goes with the descriptor that was opened by it.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Where fusectl is mounted.
const PLACE: &str = "/sys/fs/fuse/connections";

/// `FUSE_CTL_SUPER_MAGIC`: `f_type` of fusectl.
const FUSECTL: u64 = 0x6573_5543;

/// A switch that cuts one connection, and no other: it leads nowhere when that one has ended, also
/// when another has got its number.
pub(crate) struct Abort(OwnedFd);

impl Abort {
    /// Opens the switch of the connection whose mount has the device `(major, minor)`.
    ///
    /// # Errors
    /// EACCES of somebody else's connection, EPERM or ENOENT where fusectl cannot be reached.
    pub(crate) fn open(device: (u32, u32)) -> io::Result<Abort> {
        debug_assert!(device.0 < 1 << 12 && device.1 < 1 << 20, "the kernel's own numbers of devices");
        // As the kernel itself writes the two numbers in one.
        let number = u64::from(device.0) << 20 | u64::from(device.1);
        let abort = format!("{number}/abort");
        match Abort::below(rustix::fs::CWD, &format!("{PLACE}/{abort}")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Abort::below(fusectl()?, &abort),
            there => there,
        }
    }

    /// Opens the switch at a path.
    fn below(dir: impl AsFd, path: &str) -> io::Result<Abort> {
        debug_assert!(path.ends_with("/abort"), "it is written to");
        let file = openat(dir, path, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        // What else may lie at that path is not to be written to.
        if rustix::fs::fstatfs(&file)?.f_type as u64 != FUSECTL {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        Ok(Abort(file))
    }

    /// Cuts the connection: every call in progress and every later one on the mount fails. Nothing
    /// happens if it has ended.
    pub(crate) fn cut(&self) -> io::Result<()> {
        let written = rustix::io::write(&self.0, b"1")?;
        debug_assert_eq!(written, 1);
        Ok(())
    }
}

impl From<OwnedFd> for Abort {
    fn from(file: OwnedFd) -> Abort {
        Abort(file)
    }
}

impl AsFd for Abort {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes a mount of fusectl that has no place in the name space.
fn fusectl() -> io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}
