//! A descriptor of /dev/fuse: where requests are read and answers are written.

use super::abi::{DEV_IOC_CLONE, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, OUT_HEADER};
use lanefs::Ino;
use rustix::fs::{OFlags, fcntl_setfl};
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

/// What there is to be read at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Now {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing.
    Nothing,
    /// The connection has ended.
    End,
}

/// The way a request came, which its answer takes back.
pub(crate) enum Origin {
    /// The descriptor that it was read from: the kernel takes the answer nowhere else.
    Device(Arc<Device>),
    /// An entry of a ring: the thread that has it answers.
    Ring,
    /// A virtual machine ([`crate::guest`]): the thread that has the request answers, and nothing
    /// else can be told to that kernel.
    Guest,
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
            let advice = match e.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => NOT_ALLOWED,
                Some(libc::EMFILE) => {
                    "raise the limit of open files (`ulimit -n`, or LimitNOFILE= of systemd)"
                }
                Some(libc::ENFILE) => {
                    "all processes together have too many files open (`sysctl fs.file-max`)"
                }
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
                // ECONNABORTED: it was cut off.
                Err(Errno::NODEV | Errno::CONNABORTED) => Ok(None),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Has reading not wait, or wait again. For the one thread that reads here.
    pub fn set_waiting(&self, waits: bool) -> io::Result<()> {
        let flags = if waits { OFlags::RDWR } else { OFlags::RDWR | OFlags::NONBLOCK };
        Ok(fcntl_setfl(&self.0, flags)?)
    }

    /// Reads the next request if there is one already, as [`Device::receive`] does. The descriptor
    /// does not wait.
    pub fn receive_now(&self, buffer: &mut [u8]) -> io::Result<Now> {
        debug_assert!(buffer.len() >= READ_LEAST, "the kernel refuses to read into less");
        match rustix::io::read(&self.0, &mut *buffer) {
            Ok(n) => Ok(Now::Request(n)),
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Ok(Now::Nothing),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Now::End),
            Err(e) => Err(e.into()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Abort;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    /// Unmounts, also when the test fails: nobody would answer who looks at the mount.
    struct Mounted(tempfile::TempDir);

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = unmount(self.0.path(), UnmountFlags::DETACH);
        }
    }

    /// Which of two errors says that a connection was cut depends on what the kernel was told; the
    /// mount of a program ended with one of them as a failure.
    #[test]
    fn a_connection_that_was_cut_has_ended() {
        const ABORT_ERROR: u32 = 1 << 21;
        for flags in [0, ABORT_ERROR] {
            let dir = Mounted(tempfile::tempdir().unwrap());
            let Ok(device) = Device::open() else {
                return eprintln!("/dev/fuse cannot be opened: not tested");
            };
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.0.as_raw_fd());
            let options = std::ffi::CString::new(options).unwrap();
            if let Err(e) = mount("cut", dir.0.path(), "fuse", MountFlags::NOSUID, Some(&*options)) {
                return eprintln!("this user may not mount ({e}): not tested");
            }
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let row = table.lines().find(|l| l.split(' ').nth(4) == dir.0.path().to_str()).unwrap();
            let number = row.split(' ').nth(2).and_then(|n| n.split_once(':')).unwrap();
            let mut buffer = vec![0; request_bytes(4096)];
            assert!(device.receive(&mut buffer).unwrap().is_some(), "the kernel asks first");
            let mut answer = vec![0; OUT_HEADER + 64];
            let (len, unique) = (answer.len() as u32, buffer[8..16].to_vec());
            answer[..4].copy_from_slice(&len.to_ne_bytes());
            answer[8..16].copy_from_slice(&unique);
            for (word, value) in [(0, 7_u32), (1, 31), (3, flags), (5, 4096)] {
                answer[OUT_HEADER + word * 4..][..4].copy_from_slice(&value.to_ne_bytes());
            }
            assert!(device.send(&answer).unwrap());
            let abort = Abort::open((number.0.parse().unwrap(), number.1.parse().unwrap())).unwrap();
            abort.cut().unwrap();
            assert_eq!(device.receive(&mut buffer).unwrap(), None, "flags {flags:x}");
        }
    }
}
