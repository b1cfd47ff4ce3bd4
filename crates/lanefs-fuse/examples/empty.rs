//! What a metadata round trip through FUSE costs when the file system does nothing: the yardstick
//! for LaneFS's mount.
//!
//!     empty               mounts a file system that answers everything trivially, times a loop of system calls in it
//!     empty DIR           times the same loop in DIR, say a mounted LaneFS, in turn with the empty one, and compares
//!     empty --threads N   with N reader threads instead of one per core
//!     empty --serve DIR   only mounts, until it is unmounted
//!
//! Only calls that always reach the file system are timed; what the kernel answers from its caches
//! costs the same everywhere.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyXattr, Request, SessionACL, TimeOrNow,
};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const TTL: Duration = Duration::from_secs(3600);

/// One directory; every new name gets a new inode number, nothing is remembered.
struct Empty {
    next: AtomicU64,
}

fn attr(ino: u64, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Empty {
    fn fresh(&self, kind: FileType) -> FileAttr {
        // Relaxed: only uniqueness matters.
        attr(self.next.fetch_add(2, Relaxed) + (kind == FileType::Directory) as u64, kind)
    }
    fn known(ino: INodeNo) -> FileAttr {
        let dir = ino.0 == 1 || ino.0 % 2 == 1;
        attr(ino.0, if dir { FileType::Directory } else { FileType::RegularFile })
    }
}

impl Filesystem for Empty {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in [InitFlags::FUSE_WRITEBACK_CACHE, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }
    fn lookup(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.entry(&TTL, &attr(0, FileType::RegularFile), Generation(0));
    }
    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &Self::known(ino));
    }
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &Self::known(ino));
    }
    fn mkdir(&self, _r: &Request, _p: INodeNo, _n: &OsStr, _m: u32, _u: u32, reply: ReplyEntry) {
        reply.entry(&TTL, &self.fresh(FileType::Directory), Generation(0));
    }
    fn unlink(&self, _r: &Request, _p: INodeNo, _n: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }
    fn rmdir(&self, _r: &Request, _p: INodeNo, _n: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }
    fn rename(
        &self,
        _r: &Request,
        _p: INodeNo,
        _n: &OsStr,
        _np: INodeNo,
        _nn: &OsStr,
        _f: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
    fn open(&self, _r: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_KEEP_CACHE);
    }
    fn create(&self, _r: &Request, _p: INodeNo, _n: &OsStr, _m: u32, _u: u32, _f: i32, reply: ReplyCreate) {
        let attr = self.fresh(FileType::RegularFile);
        reply.created(&TTL, &attr, Generation(0), FileHandle(1), FopenFlags::FOPEN_KEEP_CACHE);
    }
    fn flush(&self, _r: &Request, _i: INodeNo, _f: FileHandle, _l: fuser::LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
    fn statfs(&self, _r: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
    fn getxattr(&self, _r: &Request, _i: INodeNo, _n: &OsStr, _s: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}

fn c(path: &Path) -> std::ffi::CString {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Calls of one round, and rounds. Short rounds in turn meet the same noise.
const ROUND: usize = 500;
const ROUNDS: usize = 41;

/// Runs `op` in the directories in turn, round by round; prints the median round's time of one call
/// in each, and the median of the quotients of rounds that followed each other.
fn time(name: &str, dirs: &[PathBuf], mut op: impl FnMut(&Path, usize)) {
    let mut us: Vec<Vec<f64>> = vec![Vec::new(); dirs.len()];
    for round in 0..ROUNDS {
        for (dir, us) in dirs.iter().zip(&mut us) {
            let start = Instant::now();
            for i in 0..ROUND {
                op(dir, round * ROUND + i);
            }
            us.push(start.elapsed().as_secs_f64() * 1e6 / ROUND as f64);
        }
    }
    print!("{name:<14}");
    us.iter().for_each(|us| print!(" {:>10.2}", median(us.clone())));
    if let [empty, other] = &us[..] {
        print!(" {:>10.2}", median(empty.iter().zip(other).map(|(e, o)| o / e).collect()));
    }
    println!();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(dirs: &[&Path]) -> std::io::Result<()> {
    let dirs: Vec<PathBuf> =
        dirs.iter().map(|d| d.join(format!("roundtrips.{}", std::process::id()))).collect();
    for dir in &dirs {
        std::fs::create_dir(dir)?;
    }
    let name = |dir: &Path, prefix: &str, i: usize| dir.join(format!("{prefix}{i}"));
    let titles = ["empty us", "other us", "times"];
    print!("{:<14}", "");
    titles.iter().take(if dirs.len() == 2 { 3 } else { 1 }).for_each(|t| print!(" {t:>10}"));
    println!();
    time("create", &dirs, |d, i| drop(std::fs::File::create_new(name(d, "f", i)).expect("create")));
    time("open + close", &dirs, |d, i| drop(std::fs::File::open(name(d, "f", i)).expect("open")));
    time("getattr", &dirs, |d, i| {
        let path = c(&name(d, "f", i));
        let mut stat = std::mem::MaybeUninit::<libc::statx>::uninit();
        let how = libc::AT_STATX_FORCE_SYNC;
        // SAFETY: the path ends in NUL, and the kernel writes one statx into room for one.
        let r = unsafe {
            libc::statx(libc::AT_FDCWD, path.as_ptr(), how, libc::STATX_BASIC_STATS, stat.as_mut_ptr())
        };
        assert_eq!(r, 0, "statx");
    });
    time("chmod", &dirs, |d, i| {
        let mode = std::fs::Permissions::from_mode(if i % 2 == 0 { 0o600 } else { 0o640 });
        std::fs::set_permissions(name(d, "f", i), mode).expect("chmod");
    });
    time("getxattr", &dirs, |d, i| {
        let path = c(&name(d, "f", i));
        // SAFETY: both strings end in NUL, and a size of zero means the null buffer is not written.
        unsafe { libc::getxattr(path.as_ptr(), c"user.none".as_ptr(), std::ptr::null_mut(), 0) };
    });
    time("lookup, miss", &dirs, |d, i| {
        assert!(std::fs::symlink_metadata(name(d, "missing", i)).is_err());
    });
    time("rename", &dirs, |d, i| std::fs::rename(name(d, "f", i), name(d, "g", i)).expect("rename"));
    time("unlink", &dirs, |d, i| std::fs::remove_file(name(d, "g", i)).expect("unlink"));
    time("mkdir", &dirs, |d, i| std::fs::create_dir(name(d, "d", i)).expect("mkdir"));
    time("rmdir", &dirs, |d, i| std::fs::remove_dir(name(d, "d", i)).expect("rmdir"));
    dirs.iter().try_for_each(std::fs::remove_dir)
}

/// A second thread creates in a directory of its own while this one does: what two clients get
/// together.
fn measure_two(dir: &Path, n: usize) -> std::io::Result<()> {
    let start = Instant::now();
    std::thread::scope(|s| {
        for t in 0..2 {
            s.spawn(move || {
                let base = dir.join(format!("two.{}.{t}", std::process::id()));
                std::fs::create_dir(&base).expect("mkdir");
                for i in 0..n {
                    drop(std::fs::File::create_new(base.join(format!("f{i}"))).expect("create"));
                }
                for i in 0..n {
                    std::fs::remove_file(base.join(format!("f{i}"))).expect("unlink");
                }
                std::fs::remove_dir(&base).expect("rmdir");
            });
        }
    });
    println!("2 threads, create and unlink: {:.0} calls/s", (4 * n) as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

fn main() -> std::io::Result<()> {
    let mut threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (mut dir, mut serve) = (None, false);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        match a.as_str() {
            "--threads" => threads = args.next().and_then(|v| v.parse().ok()).unwrap_or(threads),
            "--serve" => serve = true,
            d => dir = Some(PathBuf::from(d)),
        }
    }
    let mountpoint = match (&dir, serve) {
        (Some(dir), true) => dir.clone(),
        _ => {
            let own = std::env::temp_dir().join(format!("empty.{}", std::process::id()));
            std::fs::create_dir(&own)?;
            own
        }
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("empty".into()), MountOption::DefaultPermissions];
    config.acl = SessionACL::Owner;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let fs = Empty { next: AtomicU64::new(2) };
    let session = fuser::spawn_mount(fs, &mountpoint, &config)?;
    if serve {
        return session.join();
    }
    println!(
        "empty: a FUSE file system that does nothing, {threads} reader threads; medians of {ROUNDS} rounds"
    );
    let mut dirs = vec![mountpoint.as_path()];
    dirs.extend(dir.as_deref());
    let result = measure(&dirs).and_then(|()| dirs.iter().try_for_each(|d| measure_two(d, ROUND * 20)));
    session.umount_and_join()?;
    std::fs::remove_dir(&mountpoint)?;
    result
}
