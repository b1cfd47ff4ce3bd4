//! A descriptor of /dev/fuse: where requests are read and answers are written.

use super::abi::{DEV_IOC_CLONE, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, OUT_HEADER};
use lanefs::Ino;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The least size of a buffer that the kernel reads a request into, in bytes.
const READ_LEAST: usize = 8192;

/// The advice for who may not open the device.
pub(crate) const NOT_ALLOWED: &str = "all users have to be allowed to read and write it, as udev's rule of the package fuse3 says: `chmod 666 /dev/fuse`";

/// A descriptor of /dev/fuse, of one connection.
pub(crate) struct Device(OwnedFd);

/// The way a request came, which its answer takes back.
pub(crate) enum Origin {
    /// The descriptor that it was read from: the kernel takes the answer nowhere else.
    Device(Arc<Device>),
    /// An entry of a ring: the thread that has it answers.
    Ring,
}

/// Returns the size of a buffer for requests whose writes have at most `max_write` bytes: the least
/// that the kernel reads into.
pub(crate) fn request_bytes(max_write: u32) -> usize {
    let bytes = (max_write as usize).max(1 << 17) + 4096;
    debug_assert!(bytes >= READ_LEAST && bytes > max_write as usize);
    bytes
}

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
    /// Opens a fresh descriptor, of no connection yet.
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

    /// Opens another descriptor of the same connection, with a queue of its own for what it has
    /// taken.
    pub fn another(&self) -> io::Result<Device> {
        let other = Device::open()?;
        let mine = self.0.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, which lives until the call returns; both descriptors are
        // open.
        match unsafe { libc::ioctl(other.0.as_raw_fd(), DEV_IOC_CLONE, &raw const mine) } {
            0 => Ok(other),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads the next request into `buffer` and returns its length; `None` when the connection has
    /// ended.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        debug_assert!(buffer.len() >= READ_LEAST, "the kernel refuses to read into less");
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
        debug_assert!(bytes.len() >= OUT_HEADER);
        debug_assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes(), "an answer begins with its length");
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

    /// Has the kernel write back and drop all it has cached of an inode. Not an error if it knows
    /// nothing of it.
    pub fn flush_kernel_pages(&self, ino: Ino) -> io::Result<()> {
        self.invalidate(ino, 0, 0)
    }

    /// Has the kernel write back and drop the pages of a range, of at least one byte.
    pub fn drop_pages(&self, ino: Ino, offset: u64, len: u64) -> io::Result<()> {
        debug_assert!(len > 0, "0 would stand for all that follows");
        // Offsets beyond are refused before they are written to.
        self.invalidate(ino, offset.min(i64::MAX as u64) as i64, len.clamp(1, i64::MAX as u64) as i64)
    }

    /// Has the kernel ask for an inode's attributes and ACLs when it needs them next; its pages
    /// stay.
    pub fn drop_attributes(&self, ino: Ino) -> io::Result<()> {
        self.invalidate(ino, -1, 0)
    }

    /// Has the kernel look a name up again when it needs it next.
    pub fn drop_name(&self, dir: Ino, name: &[u8]) -> io::Result<()> {
        debug_assert!(!name.contains(&0), "a name of a request ended at its NUL");
        let mut body = Vec::with_capacity(16 + name.len() + 1);
        body.extend(dir.0.to_ne_bytes());
        body.extend((name.len() as u32).to_ne_bytes());
        body.extend([0; 4]); // flags
        body.extend(name);
        body.push(0);
        self.notify(NOTIFY_INVAL_ENTRY, &body)
    }

    /// Has the kernel drop what it has cached of an inode: at a negative offset only the
    /// attributes, of length 0 all that follows.
    fn invalidate(&self, ino: Ino, offset: i64, len: i64) -> io::Result<()> {
        debug_assert!(len >= 0, "of a negative length the kernel drops nothing");
        debug_assert!(offset >= 0 || len == 0, "only attributes are dropped at a negative offset");
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.0.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..].copy_from_slice(&len.to_ne_bytes());
        self.notify(NOTIFY_INVAL_INODE, &body)
    }

    /// Sends a notification.
    fn notify(&self, what: i32, body: &[u8]) -> io::Result<()> {
        debug_assert!(what > 0, "a notification's number stands where an answer has its error");
        let mut bytes: SmallVec<[u8; 64]> = SmallVec::new();
        bytes.extend_from_slice(&((OUT_HEADER + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&what.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(body);
        self.send(&bytes).map(drop)
    }
}
