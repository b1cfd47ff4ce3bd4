//! Random sequences of calls from a seed, over a tree small enough that they meet.

pub use lanefs_sync::random::Rng;

use crate::op::{CAPABILITY, Name, Op, Step, Tagged, When, Who};

/// The kinds of calls to make.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Several callers; modes, owners and permissions matter.
    pub users: bool,
    /// Odd paths: `..`, trailing slashes, empty, too long.
    pub odd_paths: bool,
    /// fsync and friends.
    pub sync: bool,
    /// Ticks, checkpoints and remounts.
    pub maintenance: bool,
    /// Only calls that change something or make it durable.
    pub changes_only: bool,
    /// FALLOC_FL_ZERO_RANGE, which tmpfs lacks.
    pub zero_range: bool,
    /// Sparse files out to 1 GiB.
    pub sparse: bool,
    /// Attributes that are rights: access ACLs, file capabilities.
    pub rights: bool,
}

impl Profile {
    /// Everything but maintenance.
    pub const POSIX: Profile = Profile {
        users: true,
        odd_paths: true,
        sync: true,
        maintenance: false,
        changes_only: false,
        zero_range: true,
        sparse: true,
        rights: false,
    };
    /// For crash histories: one caller, plain paths, small files.
    pub const CRASH: Profile = Profile {
        users: false,
        odd_paths: false,
        sync: true,
        maintenance: true,
        changes_only: true,
        zero_range: true,
        sparse: false,
        rights: false,
    };
}

/// Makes steps.
#[derive(Clone, Debug)]
pub struct Generator {
    /// The source of chance.
    pub rng: Rng,
    profile: Profile,
    tag: u32,
    handles: u32,
    /// Calls that come next, the last of them first.
    next: Vec<Op>,
}

const DIRS: [&str; 4] = ["", "/d", "/e", "/d/f"];
const LEAVES: [&str; 5] = ["a", "b", "c", "d", "f"];
const XATTRS: [&str; 4] = ["user.a", "user.b", "trusted.t", "user.long-name-of-an-attribute"];
/// Half of them rights.
const WITH_RIGHTS: [&str; 4] = ["user.a", "system.posix_acl_access", "security.capability", "trusted.t"];

impl Generator {
    /// A generator for a seed.
    pub fn new(seed: u64, profile: Profile) -> Generator {
        Generator { rng: Rng::new(seed), profile, tag: 0, handles: 0, next: Vec::new() }
    }

    fn xattr(&mut self) -> Name {
        let names = if self.profile.rights { &WITH_RIGHTS } else { &XATTRS };
        (*self.rng.pick(names)).into()
    }

    fn path(&mut self) -> Name {
        let dir = *self.rng.pick(&DIRS);
        let leaf = *self.rng.pick(&LEAVES);
        if self.profile.odd_paths && self.rng.one_in(24) {
            return match self.rng.below(10) {
                0 => "".into(),
                1 => format!("{dir}/{leaf}/").into(),
                2 => format!("{dir}/.").into(),
                3 => format!("{dir}/..").into(),
                4 => format!("{dir}/{leaf}/../{leaf}").into(),
                5 => format!("{dir}/{}", "n".repeat(256)).into(),
                6 => format!("{dir}/{}", "n".repeat(255)).into(),
                7 => "/".into(),
                8 => format!("{dir}//./{leaf}//").into(),
                _ => format!("{}{dir}/{leaf}", "/.".repeat(2050)).into(),
            };
        }
        format!("{dir}/{leaf}").into()
    }

    fn fd(&mut self) -> u8 {
        self.rng.below(4) as u8
    }

    fn open_fd(&mut self) -> u8 {
        for _ in 0..4 {
            let fd = self.fd();
            if self.handles >> fd & 1 == 1 {
                return fd;
            }
        }
        self.fd()
    }

    fn data(&mut self) -> Tagged {
        self.tag += 1;
        let len = match self.rng.below(6) {
            0 => self.rng.below(40) as u32,
            1 => 4096,
            2 => 3400 + self.rng.below(10) as u32,
            _ => self.rng.below(9000) as u32,
        };
        Tagged { tag: self.tag, len }
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(8) {
            0 => 0,
            1 => 4096 * self.rng.below(4),
            2 if self.profile.sparse => self.rng.below(1 << 30),
            _ => self.rng.below(12_000),
        }
    }

    fn mode(&mut self) -> u32 {
        if !self.profile.users {
            return *self.rng.pick(&[0o644, 0o600, 0o755]);
        }
        *self.rng.pick(&[0o644, 0o600, 0o777, 0o755, 0o700, 0o000, 0o2755, 0o1777, 0o4711, 0o2775, 0o666])
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let who =
            if self.profile.users && !self.rng.one_in(3) { *self.rng.pick(&Who::ALL) } else { Who::Root };
        let op = loop {
            if let Some(op) = self.op() {
                break op;
            }
        };
        // linkat of a handle asks for CAP_DAC_READ_SEARCH; syncfs needs a handle of the root.
        let who = if matches!(op, Op::LinkFd { .. } | Op::Sync) { Who::Root } else { who };
        match &op {
            Op::Open { fd, .. } => self.handles |= 1 << fd,
            Op::Close { fd } => self.handles &= !(1 << fd),
            _ => {}
        }
        Step { who, op }
    }

    /// Has ranges of a file preallocated that lie so far from each other that the space between is
    /// not to be kept: an inode has two ranges, so the third and fourth are written.
    fn far_apart(&mut self, fd: u8) {
        for _ in 0..2 + self.rng.below(3) {
            let mode = if self.rng.one_in(3) { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
            let offset = (self.rng.below(5) << 21) + self.rng.below(12_000);
            let len = 1 + self.rng.below(9_000);
            let op = match self.rng.below(4) {
                0 => Op::Pwrite { fd, offset, data: self.data() },
                _ => Op::Fallocate { fd, mode, offset, len },
            };
            self.next.push(op);
        }
    }

    fn op(&mut self) -> Option<Op> {
        let p = self.profile;
        if let Some(op) = self.next.pop() {
            return Some(op);
        }
        Some(match self.rng.below(100) {
            0..=12 => {
                let acc = *self.rng.pick(&[libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY]);
                let mut flags = acc;
                if !self.rng.one_in(4) {
                    flags |= libc::O_CREAT;
                }
                for (f, n) in
                    [(libc::O_EXCL, 5), (libc::O_TRUNC, 6), (libc::O_APPEND, 6), (libc::O_NOFOLLOW, 12)]
                {
                    if self.rng.one_in(n) {
                        flags |= f;
                    }
                }
                if p.sync && self.rng.one_in(12) {
                    flags |= *self.rng.pick(&[libc::O_SYNC, libc::O_DSYNC]);
                }
                if flags & libc::O_CREAT == 0 {
                    flags &= !libc::O_EXCL;
                    if self.rng.one_in(8) {
                        flags |= libc::O_DIRECTORY;
                    }
                }
                let fd = self.fd();
                if self.rng.one_in(20) {
                    let flags =
                        libc::O_TMPFILE | libc::O_RDWR | if self.rng.one_in(3) { libc::O_EXCL } else { 0 };
                    let path = (*self.rng.pick(&["/", "/d", "/e"])).into();
                    return Some(Op::Open { fd, path, flags, mode: self.mode() });
                }
                Op::Open { fd, path: self.path(), flags, mode: self.mode() }
            }
            13..=20 => Op::Close { fd: self.open_fd() },
            21..=26 => Op::Mkdir { path: self.path(), mode: self.mode() },
            27..=30 => Op::Rmdir { path: self.path() },
            31..=37 => Op::Unlink { path: self.path() },
            38..=42 => Op::Link { old: self.path(), new: self.path() },
            43 => Op::LinkFd { fd: self.open_fd(), new: self.path() },
            44..=45 => {
                let target = match self.rng.below(if p.odd_paths { 4 } else { 3 }) {
                    0 => self.path(),
                    1 => (*self.rng.pick(&LEAVES)).into(),
                    2 => "d".into(),
                    _ => format!("../{}", self.rng.pick(&LEAVES)).into(),
                };
                Op::Symlink { target, path: self.path() }
            }
            46 => Op::Mknod {
                path: self.path(),
                mode: *self.rng.pick(&[libc::S_IFSOCK, libc::S_IFREG]) | self.mode(),
            },
            47..=55 => Op::Rename {
                old: self.path(),
                new: self.path(),
                flags: if self.rng.one_in(4) { *self.rng.pick(&[0, 1, 2, 4, 5]) } else { 0 },
            },
            56..=62 => Op::Pwrite { fd: self.open_fd(), offset: self.offset(), data: self.data() },
            63..=66 => Op::Write { fd: self.open_fd(), data: self.data() },
            67..=69 => Op::Ftruncate { fd: self.open_fd(), size: self.offset() },
            70 => Op::Truncate { path: self.path(), size: self.offset() },
            71..=72 => {
                let mut modes = vec![0, libc::FALLOC_FL_KEEP_SIZE, 3, 3];
                if p.zero_range {
                    modes.extend([0x10, 0x11]);
                }
                let mode = *self.rng.pick(&modes);
                let fd = self.open_fd();
                if self.rng.one_in(4) {
                    self.far_apart(fd);
                }
                let offset = self.rng.below(12_000);
                Op::Fallocate { fd, mode, offset, len: self.rng.below(9_000) }
            }
            73..=74 => Op::Chmod { path: self.path(), mode: self.mode() },
            75 => Op::Chown {
                path: self.path(),
                uid: Some(*self.rng.pick(&[0, 1000, 1001])),
                gid: *self.rng.pick(&[None, Some(1000), Some(2000)]),
                follow: true,
            },
            76 => {
                let mut t = || *self.rng.pick(&[When::Keep, When::Now, When::At(1_000_000_000_123_000_000)]);
                let (atime, mtime) = (t(), t());
                Op::Utimens { path: self.path(), atime, mtime }
            }
            77..=78 => {
                self.tag += 1;
                let mut value = Tagged { tag: self.tag, len: self.rng.below(200) as u32 };
                let name = self.xattr();
                if name.0 == CAPABILITY {
                    value.len = 20;
                }
                let flags = if self.rng.one_in(3) { 1 + self.rng.below(2) as i32 } else { 0 };
                Op::Setxattr { path: self.path(), name, value, flags }
            }
            79 => Op::Removexattr { path: self.path(), name: self.xattr() },
            80..=88 if p.sync => match self.rng.below(8) {
                0..=2 => Op::Fsync { fd: self.open_fd() },
                3 => Op::Fdatasync { fd: self.open_fd() },
                4 => Op::FsyncPath { path: self.path() },
                5..=6 => Op::FsyncDir { path: (*self.rng.pick(&["/", "/d", "/e", "/d/f"])).into() },
                _ => Op::Sync,
            },
            89..=91 if p.maintenance => match self.rng.below(8) {
                0..=3 => Op::Tick,
                4..=6 => Op::Checkpoint,
                _ if self.handles == 0 => Op::Remount,
                _ => Op::Tick,
            },
            _ if p.changes_only => return None,
            92 => Op::Readdir { path: (*self.rng.pick(&["/", "/d", "/e", "/d/f", "/a"])).into() },
            93 => Op::Stat { path: self.path() },
            94 => Op::Lstat { path: self.path() },
            95 => match self.rng.below(4) {
                0 => Op::Fstat { fd: self.open_fd() },
                1 => Op::Readlink { path: self.path() },
                2 => Op::Access { path: self.path(), mask: self.rng.below(8) as i32 },
                _ => Op::Listxattr { path: self.path() },
            },
            96 => Op::Getxattr { path: self.path(), name: self.xattr() },
            97 => {
                let whence = *self.rng.pick(&[
                    libc::SEEK_SET,
                    libc::SEEK_CUR,
                    libc::SEEK_END,
                    libc::SEEK_DATA,
                    libc::SEEK_HOLE,
                ]);
                Op::Lseek { fd: self.open_fd(), offset: self.rng.below(14_000) as i64 - 2000, whence }
            }
            98 => Op::Read { fd: self.open_fd(), len: self.rng.below(10_000) as u32 },
            99 => Op::Pread { fd: self.open_fd(), offset: self.offset(), len: self.rng.below(10_000) as u32 },
            _ => return None,
        })
    }

    /// `n` steps behind a start that makes the directories.
    pub fn history(&mut self, n: usize) -> Vec<Step> {
        let mut steps: Vec<Step> = ["/d", "/e", "/d/f"]
            .iter()
            .map(|d| {
                Op::Mkdir { path: (*d).into(), mode: if self.profile.users { 0o777 } else { 0o755 } }.into()
            })
            .collect();
        if self.profile.users {
            steps.push(Op::Chmod { path: "/".into(), mode: 0o777 }.into());
        }
        steps.extend((0..n).map(|_| self.step()));
        steps
    }
}

/// Leaves steps out for as long as `fails` says that the rest still fails; what is left is minimal.
pub fn shrink(steps: &[Step], mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut now = steps.to_vec();
    let mut chunk = (now.len() / 2).max(1);
    loop {
        let (mut at, mut gained) = (0, false);
        while at < now.len() {
            let mut less = now.clone();
            less.drain(at..(at + chunk).min(now.len()));
            if fails(&less) {
                now = less;
                gained = true;
            } else {
                at += chunk;
            }
        }
        if chunk > 1 {
            chunk /= 2;
        } else if !gained {
            return now;
        }
    }
}
