//! A descriptor of /dev/fuse: where requests are read and answers are written.

use super::abi::{DEV_IOC_CLONE, NOTIFY_INVAL_INODE, OUT_HEADER};
use lanefs::Ino;
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// What to do for who may not open the device.
pub(crate) const NOT_ALLOWED: &str = "all users have to be allowed to read and write it, as udev's rule of the package fuse3 says: `chmod 666 /dev/fuse`";

pub(crate) struct Device(OwnedFd);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Device {
        Device(fd)
    }
}

impl Device {
    /// A fresh descriptor, of no connection yet.
    pub fn open() -> io::Result<Device> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|e| {
            let advice = match e.kind() {
                io::ErrorKind::PermissionDenied => NOT_ALLOWED,
                _ => "load the module with `modprobe fuse`",
            };
            io::Error::new(e.kind(), format!("/dev/fuse: {e}; {advice}"))
        })?;
        Ok(Device(file.into()))
    }

    /// Another descriptor of the same connection, with a queue of its own for what it has taken.
    pub fn another(&self) -> io::Result<Device> {
        let other = Device::open()?;
        let mine = self.0.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, which lives until the call returns; both descriptors are open.
        match unsafe { libc::ioctl(other.0.as_raw_fd(), DEV_IOC_CLONE, &raw const mine) } {
            0 => Ok(other),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The next request's bytes in `buffer`; `None` when the connection has ended.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            return match rustix::io::read(&self.0, &mut *buffer) {
                Ok(n) => Ok(Some(n)),
                // ENOENT: the request was withdrawn before it could be read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::NODEV) => Ok(None),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Hands an answer over; false if nobody waits for it any more.
    pub fn send(&self, bytes: &[u8]) -> io::Result<bool> {
        loop {
            return match rustix::io::write(&self.0, bytes) {
                Ok(_) => Ok(true),
                Err(Errno::INTR) => continue,
                // The caller was killed, or the connection ended.
                Err(Errno::NOENT | Errno::NODEV) => Ok(false),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Has the kernel write back and drop all it has cached of an inode. Not an error if it knows nothing of it.
    pub fn call_in(&self, ino: Ino) -> io::Result<()> {
        let mut bytes = [0; OUT_HEADER + 24];
        bytes[..4].copy_from_slice(&((OUT_HEADER + 24) as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&NOTIFY_INVAL_INODE.to_ne_bytes());
        bytes[16..24].copy_from_slice(&ino.0.to_ne_bytes());
        self.send(&bytes).map(drop)
    }
}
