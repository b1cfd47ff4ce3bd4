//! The options of a mount, as `-o` gives them, in the words of mount(8) and mount.fuse(8).

use crate::wire::request_bytes;
use crate::wire::ring::{entry_bytes, queues};
use rustix::mount::MountFlags;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The way requests come: over io_uring, a queue for each processor, or from /dev/fuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoUring {
    /// Over io_uring where the kernel offers it.
    Auto,
    /// Over io_uring, or the mount fails.
    On,
    /// From /dev/fuse.
    Off,
}

/// What processors do that have nothing to do, while calls of programs come thick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// They poll in a virtual machine of two to four processors, where the kernel lets this process
    /// ask for that.
    Auto,
    /// They poll, or the mount fails.
    Poll,
    /// What the kernel has them do.
    Halt,
}

/// Whether file handles lead to files (open_by_handle_at(2), NFS servers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handles {
    /// Where overlays work beside that: not from Linux 6.16 on. There a file that was found by its
    /// handle alone is never valid to an overlay, which finds what it copied up so.
    Auto,
    /// They do.
    On,
    /// There are none, where the kernel can be told so (Linux 6.9).
    Off,
}

/// The appearance of a volume in the name space, and how the kernel may cache it.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The source as the mount table shows it: the image.
    pub source: String,
    /// The block device that root mounts the volume as: the kernel passes on `sync` and `syncfs`
    /// then, and an unmount waits until the volume is closed. The kernel looks at nothing of it.
    /// Where it is the volume's own it has to be open without keeping the kernel from mounting it
    /// (`FileOptions::exclusive` of the store); one that only stands for the volume does as well.
    pub block_device: Option<String>,
    /// Refuse every change.
    pub read_only: bool,
    /// Whether users other than the one who mounts may enter; `None`: only if root mounts.
    pub allow_other: Option<bool>,
    /// Only root and the one who mounts may enter.
    pub allow_root: bool,
    /// Nobody checks modes: where root mounts and nobody else may enter.
    pub unchecked: bool,
    /// No extended attributes, and so no ACLs and no capabilities of programs: the kernel asks for
    /// none. Those that are stored stay.
    pub noxattr: bool,
    /// Honour set-user-id and set-group-id bits.
    pub suid: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Refuse to run programs.
    pub noexec: bool,
    /// Never record when a file was read.
    pub noatime: bool,
    /// Make every write durable before it returns.
    pub sync: bool,
    /// Make every directory change durable before it returns.
    pub dirsync: bool,
    /// Unmount when the serving process dies (needs fusermount3).
    pub auto_unmount: bool,
    /// The way requests come.
    pub io_uring: IoUring,
    /// Threads that serve; 0 for the default.
    pub threads: usize,
    /// The number of them that read requests at a time, without io_uring; 0 for the default.
    pub readers: usize,
    /// How long the thread that reads for a lone caller looks for the next request before it
    /// sleeps, without io_uring. Zero: it sleeps at once, and several read, whoever calls.
    pub spin: Duration,
    /// What idle processors do while calls come thick.
    pub idle: Idle,
    /// The time for which the kernel may believe names and attributes.
    pub ttl: Duration,
    /// Let the kernel gather writes.
    pub writeback: bool,
    /// Have the kernel open and close files without a request, where each write comes at once and
    /// it can.
    pub stateless: bool,
    /// Whether file handles lead to files.
    pub handles: Handles,
    /// Largest write request, in bytes.
    pub max_write: u32,
    /// Serve beside a process that changes the volume by itself: the kernel believes nothing and
    /// keeps nothing, and the volume stays open when the mount ends.
    pub shared: bool,
}

impl Default for MountConfig {
    fn default() -> Self {
        MountConfig {
            source: "lanefs".into(),
            block_device: None,
            read_only: false,
            allow_other: None,
            allow_root: false,
            unchecked: false,
            noxattr: false,
            suid: false,
            dev: false,
            noexec: false,
            noatime: false,
            sync: false,
            dirsync: false,
            auto_unmount: false,
            io_uring: IoUring::Auto,
            threads: 0,
            readers: 0,
            spin: Duration::from_micros(50),
            idle: Idle::Auto,
            ttl: Duration::from_secs(3600),
            writeback: true,
            stateless: false,
            handles: Handles::Auto,
            max_write: 1 << 20,
            shared: false,
        }
    }
}

/// The number of threads that serve one queue of requests over io_uring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingThreads {
    /// At the beginning.
    pub first: usize,
    /// At most, unless one more is needed so that those who wait for requests are served (T2 of
    /// `rings`).
    pub limit: usize,
}

/// An option that means nothing here, or whose value cannot be read or is out of its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadOption(pub String);

impl std::fmt::Display for BadOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mount option {}: not known, or not a value that it can have; see lanefs(5)", self.0)
    }
}

impl std::error::Error for BadOption {}

/// Options that mount(8) and systemd keep in /etc/fstab for themselves.
const OTHERS: &[&str] = &[
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nosuid",
    "nodev",
    "exec",
    "async",
    "relatime",
    "atime",
    "strictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "default_permissions",
    "norelatime",
    "nostrictatime",
    "silent",
];

impl MountConfig {
    /// Takes in a comma-separated list as given to `-o`. Options about the volume rather than the
    /// mount are returned, as (name, value), for the caller to use or refuse.
    pub fn parse<'a>(&mut self, list: &'a str) -> Result<Vec<(&'a str, Option<&'a str>)>, BadOption> {
        let mut rest = Vec::new();
        for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((n, v)) => (n, Some(v)),
                None => (option, None),
            };
            let bad = || BadOption(option.to_string());
            let number = || value.and_then(|v| v.parse::<u64>().ok()).ok_or_else(bad);
            let within = |range: RangeInclusive<u64>| {
                number().and_then(|n| if range.contains(&n) { Ok(n) } else { Err(bad()) })
            };
            let some = || number().and_then(|n| if n == 0 { Err(bad()) } else { Ok(n) });
            match name {
                "ro" => self.read_only = true,
                "allow_other" => self.allow_other = Some(true),
                "noallow_other" => self.allow_other = Some(false),
                "allow_root" => self.allow_root = true,
                "unchecked" => (self.unchecked, self.allow_other) = (true, Some(false)),
                "noxattr" => self.noxattr = true,
                "suid" => self.suid = true,
                "dev" => self.dev = true,
                "noexec" => self.noexec = true,
                "noatime" => self.noatime = true,
                "sync" => self.sync = true,
                "dirsync" => self.dirsync = true,
                "auto_unmount" => self.auto_unmount = true,
                "writeback" => self.take_profile(Some("gather")).ok_or_else(bad)?,
                "nowriteback" => self.take_profile(Some("through")).ok_or_else(bad)?,
                "profile" => self.take_profile(value).ok_or_else(bad)?,
                "fsname" => self.source = value.ok_or_else(bad)?.to_string(),
                // Written into the mount table, and passed by mount(8) when it mounts anew.
                "subtype" | "user_id" | "group_id" | "max_read" | "blksize" => {}
                "io_uring" => {
                    self.io_uring = match value {
                        Some("auto") => IoUring::Auto,
                        None | Some("on") => IoUring::On,
                        Some("off") => IoUring::Off,
                        Some(_) => return Err(bad()),
                    }
                }
                "threads" => self.threads = some()?.try_into().map_err(|_| bad())?,
                "readers" => self.readers = some()?.try_into().map_err(|_| bad())?,
                "spin" => self.spin = Duration::from_micros(within(0..=1000)?),
                "idle" => {
                    self.idle = match value {
                        Some("auto") => Idle::Auto,
                        Some("poll") => Idle::Poll,
                        Some("halt") => Idle::Halt,
                        _ => return Err(bad()),
                    }
                }
                "handles" => {
                    self.handles = match value {
                        Some("auto") => Handles::Auto,
                        None | Some("on") => Handles::On,
                        Some("off") => Handles::Off,
                        Some(_) => return Err(bad()),
                    }
                }
                "ttl" => self.ttl = Duration::from_secs(number()?),
                "max_write" => self.max_write = within(4096..=1 << 20)? as u32,
                n if OTHERS.contains(&n) || n.starts_with("x-") || n.starts_with("X-") || n == "comment" => {
                    // The later of two that contradict wins, as in mount(8).
                    match n {
                        "rw" => self.read_only = false,
                        "nosuid" => self.suid = false,
                        "nodev" => self.dev = false,
                        "exec" => self.noexec = false,
                        "async" => self.sync = false,
                        "atime" | "relatime" | "strictatime" => self.noatime = false,
                        "user" | "users" => (self.noexec, self.suid, self.dev) = (true, false, false),
                        _ => {}
                    }
                }
                _ => rest.push((name, value)),
            }
        }
        Ok(rest)
    }

    /// Has the kernel cache as the profile of this name says; `None` if there is none.
    fn take_profile(&mut self, name: Option<&str>) -> Option<()> {
        (self.writeback, self.stateless) = match name? {
            "gather" => (true, false),
            "through" => (false, false),
            "stateless" => (false, true),
            _ => return None,
        };
        debug_assert!(!(self.writeback && self.stateless), "who may hold what it gathers would be unknown");
        Some(())
    }

    /// Returns whether file handles lead to files; `None`: where overlays work beside that.
    pub(crate) fn handles(&self) -> Option<bool> {
        match self.handles {
            Handles::Auto => None,
            asked => Some(asked == Handles::On),
        }
    }

    /// Returns the flags of mount(2).
    pub fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        for (on, flag) in [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (self.noexec, MountFlags::NOEXEC),
            (self.noatime, MountFlags::NOATIME),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dirsync, MountFlags::DIRSYNC),
        ] {
            flags.set(flag, on);
        }
        flags
    }

    /// Returns whether the kernel is to open files without a request. Not where it gathers writes:
    /// who may hold some would be unknown. Nor where it is asked of each request who makes it.
    pub(crate) fn stateless(&self) -> bool {
        self.stateless && !self.gathers() && !self.allow_root && !self.shared
    }

    /// Returns whether the kernel gathers writes.
    pub(crate) fn gathers(&self) -> bool {
        self.writeback && !self.shared
    }

    /// Returns for how long the kernel may believe names and attributes. Not at all where it is
    /// asked of each request who makes it, or where others change them.
    pub(crate) fn believes_for(&self) -> Duration {
        if self.allow_root || self.shared { Duration::ZERO } else { self.ttl }
    }

    /// Returns whether users other than the one who mounts may enter, for a mount made by user
    /// `uid`.
    pub(crate) fn others_may_enter(&self, uid: u32) -> bool {
        self.allow_root || self.allow_other.unwrap_or(uid == 0)
    }

    /// Returns whether the kernel is not to check modes: root passes them all, and nobody else
    /// enters. fusermount3 has it check them.
    pub(crate) fn is_unchecked(&self) -> bool {
        let root = rustix::process::geteuid().is_root();
        self.unchecked && root && !self.others_may_enter(0) && !self.auto_unmount
    }

    /// Returns the number of threads for this machine: most of them stand in for those that wait
    /// for the device.
    pub(crate) fn threads(&self) -> usize {
        let threads = match self.threads {
            0 => (2 * cores()).max(4),
            n => n.min(1024),
        };
        debug_assert!(threads > 0, "somebody has to serve");
        threads
    }

    /// Returns the number of threads of one processor's ring: two, and up to four times that while
    /// they wait for the device.
    pub(crate) fn ring_threads(&self) -> RingThreads {
        let limit = match self.threads {
            0 => 8,
            n => n.min(1024).div_ceil(queues()).max(2),
        };
        debug_assert!(limit >= 2, "one waits for the device, and one for a request");
        RingThreads { first: 2, limit }
    }

    /// Returns the memory its buffers may take, in bytes: of the volume's budget, so that the whole
    /// stays within it.
    pub fn buffers(&self) -> u64 {
        let most = request_bytes(self.max_write);
        let read = 2 * most * self.threads();
        let rings = entry_bytes(most) * (queues() * self.ring_threads().limit) as u64;
        let bytes = if self.io_uring == IoUring::Off { read as u64 } else { rings.max(read as u64) };
        debug_assert!(bytes >= 2 * u64::from(self.max_write), "not even one thread could write");
        bytes
    }

    /// Returns how long the thread that reads for a lone caller looks before it sleeps; `None`:
    /// several read, whoever calls. Where there is one processor the caller needs it.
    pub(crate) fn looks(&self) -> Option<Duration> {
        debug_assert!(self.spin < Duration::from_millis(2), "others may need the processor");
        let looks = self.readers == 0 && !self.spin.is_zero() && cores() > 1;
        looks.then_some(self.spin)
    }

    /// Returns how many threads read requests at a time: as many as there are cores the callers
    /// leave, and one more than one, because not every wait is announced (a lock that somebody
    /// holds who waits).
    pub(crate) fn readers(&self) -> usize {
        let readers = match self.readers {
            0 => (cores() / 2).max(2),
            n => n,
        }
        .min(self.threads());
        debug_assert!((1..=self.threads()).contains(&readers));
        readers
    }
}

/// Returns the number of processors that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_options_win_and_the_rest_comes_back() {
        let mut c = MountConfig::default();
        let rest = c
            .parse("defaults,ro,rw,suid,dev,nodev,noatime,x-systemd.automount,cache_size=64M,ttl=5")
            .unwrap();
        assert!(!c.read_only && c.suid && !c.dev && c.noatime);
        assert_eq!(c.ttl, Duration::from_secs(5));
        assert_eq!(rest, [("cache_size", Some("64M"))]);
    }

    #[test]
    fn bad_values_are_refused() {
        for o in [
            "io_uring=maybe",
            "spin=long",
            "spin=1001",
            "idle",
            "idle=sleep",
            "max_write=1",
            "max_write=2000000",
            "ttl=soon",
            "threads=",
            "threads=-1",
            "fsname",
        ] {
            assert_eq!(MountConfig::default().parse(o), Err(BadOption(o.into())), "{o}");
        }
    }

    #[test]
    fn the_way_requests_come_is_said_and_its_memory_known() {
        let mut c = MountConfig::default();
        assert_eq!(c.io_uring, IoUring::Auto);
        for (o, is) in
            [("io_uring", IoUring::On), ("io_uring=off", IoUring::Off), ("io_uring=auto", IoUring::Auto)]
        {
            c.parse(o).unwrap();
            assert_eq!(c.io_uring, is);
        }
        // Every thread a buffer for the largest write at least.
        assert!(c.buffers() >= (queues() * c.ring_threads().limit) as u64 * u64::from(c.max_write));
        c.parse("io_uring=off,threads=3").unwrap();
        assert_eq!(c.buffers(), 6 * ((1 << 20) + 4096));
        c.parse("threads=1").unwrap();
        assert!(c.ring_threads().limit >= c.ring_threads().first);
    }

    #[test]
    fn somebody_looks_for_a_lone_caller_where_there_is_a_processor_for_it() {
        let looks = |options: &str| {
            let mut c = MountConfig::default();
            c.parse(options).unwrap();
            c.looks().map(|long| long.as_micros())
        };
        let on = |long| Some(long).filter(|_| cores() > 1);
        assert_eq!([looks(""), looks("spin=20"), looks("spin=1000")], [on(50), on(20), on(1000)]);
        assert_eq!([looks("spin=0"), looks("readers=2")], [None; 2]);
    }

    #[test]
    fn nobody_else_enters_where_modes_are_not_checked() {
        let unchecked = |options: &str| {
            let mut c = MountConfig::default();
            c.parse(options).unwrap();
            (c.is_unchecked(), c.others_may_enter(0))
        };
        let root = rustix::process::geteuid().is_root();
        assert_eq!(unchecked("unchecked"), (root, false));
        assert_eq!(unchecked("noallow_other"), (false, false));
        for others in ["unchecked,allow_other", "unchecked,allow_root"] {
            assert_eq!(unchecked(others), (false, true), "{others}");
        }
        assert_eq!(unchecked("unchecked,auto_unmount"), (false, false));
    }

    #[test]
    fn suid_and_dev_are_off_and_root_lets_others_in() {
        let c = MountConfig::default();
        assert!(!c.suid && !c.dev);
        assert!(c.others_may_enter(0) && !c.others_may_enter(1000));
    }
}
