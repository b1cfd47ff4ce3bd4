//! Words of the kernel to words of the library and back. Nothing here can fail or decide.

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, Request, TimeOrNow};
use lanefs::{Cred, Error, FileKind, Ino, SetTime, Stat};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NS: i64 = 1_000_000_000;

pub(crate) fn errno(e: Error) -> Errno {
    if let Error::Store(s) = &e {
        tracing::error!("{s}");
    }
    Errno::from_i32(e.errno())
}

/// The caller, whose permissions the kernel has checked.
pub(crate) fn cred(req: &Request) -> Cred {
    Cred { prechecked: true, ..Cred::user(req.uid(), req.gid(), &[]) }
}

/// For calls where the kernel has already applied the rules that depend on the caller.
pub(crate) fn root() -> Cred {
    Cred { prechecked: true, ..Cred::root() }
}

pub(crate) fn ino(n: INodeNo) -> Ino {
    Ino(n.0)
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Char => FileType::CharDevice,
        FileKind::BlockDev => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

pub(crate) fn generation(s: &Stat) -> Generation {
    Generation(s.generation.into())
}

pub(crate) fn attr(s: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(s.ino.0),
        size: s.size,
        blocks: s.blocks,
        atime: time(s.atime),
        mtime: time(s.mtime),
        ctime: time(s.ctime),
        crtime: time(s.btime),
        kind: file_type(s.kind),
        perm: (s.mode & 0o7777) as u16,
        nlink: s.nlink,
        uid: s.uid,
        gid: s.gid,
        rdev: rdev_to_kernel(s.rdev),
        blksize: 4096,
        flags: 0,
    }
}

/// An answer of "no such name" that the kernel may cache.
pub(crate) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn time(ns: i64) -> SystemTime {
    let d = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + d } else { UNIX_EPOCH - d }
}

/// Nanoseconds since 1970 as the kernel sent them. Before 1970 the crate decodes (-s, n) as `epoch - (s, n)`
/// although n counts forward; undone here.
pub(crate) fn nanos(t: SystemTime) -> i64 {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
        Err(e) => {
            let d = e.duration();
            let seconds = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
            seconds.checked_mul(-NS).and_then(|s| s.checked_add(d.subsec_nanos().into())).unwrap_or(i64::MIN)
        }
    }
}

pub(crate) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(nanos(t)),
    }
}

/// A device number as the kernel's wire carries it (32 bits) to `st_rdev`.
pub(crate) fn rdev_from_kernel(r: u32) -> u64 {
    libc::makedev((r & 0xf_ff00) >> 8, (r & 0xff) | ((r >> 12) & 0xf_ff00))
}

/// `st_rdev` to the 32 bits of the kernel's wire.
fn rdev_to_kernel(r: u64) -> u32 {
    let (major, minor) = (libc::major(r), libc::minor(r));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(1, 3), (8, 0), (259, 70_000), (4095, 1_048_575)] {
            let dev = libc::makedev(major, minor);
            assert_eq!(rdev_from_kernel(rdev_to_kernel(dev)), dev, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_1970_are_undone_as_the_crate_makes_them() {
        assert_eq!(nanos(time(1_500_000_000)), 1_500_000_000);
        // -1.2 s is (-2, 800_000_000) on the wire; the crate makes epoch - 2.8 s of it.
        let crate_made = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(nanos(crate_made), -1_200_000_000);
        assert_eq!(time(-1_200_000_000), UNIX_EPOCH - Duration::new(1, 200_000_000));
    }
}
