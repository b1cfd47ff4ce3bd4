//! Who makes a request: what the kernel does not say of it, and /proc does.
//!
//! A thread that waits for an answer does not change, so what is read of it holds for its call.

use lanefs::device::FileDevice;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// The bit of CAP_FSETID: who has it keeps setuid and setgid in what it writes.
const CAP_FSETID: u32 = 4;
/// The bit of CAP_SYS_ADMIN.
const CAP_SYS_ADMIN: u32 = 21;

/// Who waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    /// Whether it is root, or may be.
    pub is_root: bool,
    /// Its thread; 0: it has none here.
    tid: u32,
}

impl Caller {
    pub fn new(is_root: bool, tid: u32) -> Caller {
        debug_assert!(i32::try_from(tid).is_ok(), "no thread has the number {tid}");
        Caller { is_root, tid }
    }

    /// Returns whether it is in a call that reads a file, and writes none. False where that cannot
    /// be looked up: the server is another ordinary user, or the kernel reads for it.
    pub fn reads(&self) -> bool {
        if self.tid == 0 {
            return false;
        }
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.tid)).ok();
        let number = call.as_deref().and_then(|c| c.split(' ').next()?.parse().ok());
        number.is_some_and(|n: libc::c_long| READING.contains(&n))
    }
}

/// The calls that read a file, and write none.
const READING: [libc::c_long; 5] =
    [libc::SYS_read, libc::SYS_readv, libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2];

/// What /proc tells of a thread that waits for an answer.
pub(super) struct Status(String);

impl Status {
    /// Reads it; `None` for a thread whose number means nothing here.
    pub fn of(pid: u32) -> Option<Status> {
        match pid {
            0 => None,
            pid => std::fs::read_to_string(format!("/proc/{pid}/status")).ok().map(Status),
        }
    }

    /// Returns the words of a line.
    fn words(&self, line: &str) -> Option<impl Iterator<Item = &str>> {
        debug_assert!(line.ends_with(':'), "{line} begins no line");
        Some(self.0.lines().find_map(|l| l.strip_prefix(line))?.split_whitespace())
    }

    /// Returns the user or the group as which it uses files: the real, the effective and the saved
    /// one stand before it.
    pub fn of_files(&self, line: &str) -> Option<u32> {
        self.words(line)?.nth(3)?.parse().ok()
    }

    /// Returns whether it is in a group.
    pub fn in_group(&self, gid: u32) -> Option<bool> {
        let more = self.words("Groups:")?.any(|g| g.parse() == Ok(gid));
        Some(more || self.of_files("Gid:")? == gid)
    }

    /// Returns whether it has CAP_FSETID, in whichever user namespace.
    pub fn keeps_set_ids(&self) -> Option<bool> {
        self.has(CAP_FSETID)
    }

    /// Returns whether it has CAP_SYS_ADMIN, in whichever user namespace.
    pub fn administers(&self) -> Option<bool> {
        self.has(CAP_SYS_ADMIN)
    }

    fn has(&self, capability: u32) -> Option<bool> {
        debug_assert!(capability < u64::BITS, "there is no such capability");
        let caps = u64::from_str_radix(self.words("CapEff:")?.next()?, 16).ok()?;
        Some(caps & 1 << capability != 0)
    }
}

/// Returns whether a thread is in the user namespace of this process, where its capabilities count.
/// `None`: that is hidden from us.
pub(super) fn shares_user_namespace(pid: u32) -> Option<bool> {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    Some(of("self")? == of(&pid.to_string())?)
}

/// Returns whether a thread has `file` open for writing. What it has open is told apart without a
/// request to any file system, which may be ours.
pub(super) fn writes_to(tid: u32, file: &FileDevice) -> bool {
    debug_assert!(i32::try_from(tid).is_ok(), "no thread has the number {tid}");
    let Ok(open) = std::fs::read_dir(format!("/proc/{tid}/fd")) else { return false };
    open.flatten().any(|fd| {
        let info = format!("/proc/{tid}/fdinfo/{}", fd.file_name().display());
        let info = std::fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|l| l.strip_prefix("flags:"));
        let flags = flags.and_then(|f| i32::from_str_radix(f.trim(), 8).ok());
        let writes = flags.is_some_and(|f| {
            f & libc::O_PATH == 0 && matches!(f & libc::O_ACCMODE, libc::O_RDWR | libc::O_WRONLY)
        });
        writes
            && statx(CWD, fd.path(), AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)
                .is_ok_and(|its| file.is_described_by(&its))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_device_open_for_writing_is_told_from_who_only_names_or_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let [mine, other] = ["mine", "other"].map(|name| {
            let path = dir.path().join(name);
            drop(FileDevice::create(&path, 1 << 20).unwrap());
            path
        });
        let (device, me) = (FileDevice::open(&mine, true).unwrap(), std::process::id());
        let _reads = std::fs::File::open(&mine).unwrap();
        let _writes_elsewhere = std::fs::File::options().write(true).open(&other).unwrap();
        assert!(!writes_to(me, &device));
        let linked = dir.path().join("linked");
        std::fs::hard_link(&mine, &linked).unwrap();
        let writes = std::fs::File::options().write(true).open(&linked).unwrap();
        assert!(writes_to(me, &device));
        drop(writes);
        assert!(!writes_to(me, &device) && !writes_to(0, &device));
    }
}
