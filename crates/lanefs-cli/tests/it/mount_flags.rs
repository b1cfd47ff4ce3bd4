//! chattr(1) and lsattr(1): what flags forbid, as ext4 forbids it, and that they survive.

use crate::common::*;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

on_each_transport! {
    chattr_sets_what_lsattr_shows,
    flags_forbid_what_they_forbid_on_ext4,
    who_may_set_which_flag_is_as_on_ext4,
    flags_survive_a_remount_and_a_kill_after_fsync,
    what_the_kernel_has_accepted_comes_to_an_immutable_file,
    what_was_written_to_a_map_comes_to_an_immutable_file,
    reading_leaves_the_time_of_access_of_what_has_the_flag,
    version_and_label_are_told_as_ext4_tells_them,
}

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;
const ALL: u32 = IMMUTABLE | APPEND | NODUMP | NOATIME;

fn ioctl(path: &Path, command: u64, word: &mut [u32; 7]) -> Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // SAFETY: the commands used here read or write at most the 28 bytes of a `struct fsxattr`.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), command as _, word.as_mut_ptr()) };
    if r == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn flags(path: &Path) -> u32 {
    let mut word = [0; 7];
    ioctl(path, 0x8008_6601, &mut word).unwrap();
    word[0] & ALL
}

/// Sets the flags of a file system that may have others, which stay.
fn set_flags(path: &Path, flags: u32) -> Result<()> {
    let mut word = [0; 7];
    ioctl(path, 0x8008_6601, &mut word)?;
    ioctl(path, 0x4008_6602, &mut [word[0] & !ALL | flags, 0, 0, 0, 0, 0, 0])
}

fn run(program: &str, args: &[&str]) -> Run {
    run_command(Command::new(program).args(args))
}

fn user(program: &str, args: &[&str]) -> Run {
    run_command(Command::new(program).args(args).uid(1234).gid(1234))
}

/// The letters that lsattr shows of a file or a directory itself, without those of ext4's own.
fn letters(path: &Path) -> String {
    let run = run("lsattr", &["-d", path.to_str().unwrap()]).ok();
    run.out.split(' ').next().unwrap().replace(['-', 'e'], "")
}

/// An ext4 of its own, unmounted with its loop device when the test ends.
pub struct Ext4 {
    pub work: tempfile::TempDir,
}

impl Ext4 {
    pub fn new() -> Ext4 {
        let work = tempfile::tempdir().unwrap();
        let (image, dir) = (work.path().join("ext4"), work.path().join("mnt"));
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        std::fs::create_dir(&dir).unwrap();
        run("mkfs.ext4", &["-q", image.to_str().unwrap()]).ok();
        run("mount", &["-o", "loop", image.to_str().unwrap(), dir.to_str().unwrap()]).ok();
        Ext4 { work }
    }
    pub fn dir(&self) -> PathBuf {
        self.work.path().join("mnt")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        run("umount", &[self.dir().to_str().unwrap()]);
    }
}

fn chattr_sets_what_lsattr_shows() {
    let m = Mount::new(&[]);
    std::fs::write(m.path("f"), "content").unwrap();
    std::fs::create_dir(m.path("d")).unwrap();
    for name in ["f", "d"] {
        let path = m.path(name);
        let chattr = |how: &str| run("chattr", &[how, path.to_str().unwrap()]);
        assert_eq!(letters(&path), "");
        for (how, shown) in [("+d", "d"), ("+A", "dA"), ("+a", "adA"), ("-dA", "a"), ("=i", "i"), ("=", "")] {
            chattr(how).ok();
            assert_eq!(letters(&path), shown, "{how} of {name}");
        }
        for how in ["+c", "+S", "+j", "+C"] {
            let run = chattr(how);
            assert!(run.code != 0 && run.err.contains("not supported"), "{how} of {name}: {run:?}");
        }
        // The other form, with all that a `struct fsxattr` has.
        let (get, set) = (0x801c_581f, 0x401c_5820);
        ioctl(&path, set, &mut [0x8 | 0x80, 0, 0, 0, 0, 0, 0]).unwrap();
        let mut told = [u32::MAX; 7];
        ioctl(&path, get, &mut told).unwrap();
        assert_eq!(told, [0x88, 0, 0, 0, 0, 0, 0]);
        assert_eq!(flags(&path), IMMUTABLE | NODUMP);
        let refused = ioctl(&path, set, &mut [0x20, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        set_flags(&path, 0).unwrap();
    }
}

type Told = Vec<(String, std::result::Result<(), i32>)>;

/// What is done to a file and what became of it. `held`: a handle that was open for writing before.
fn on_a_file(told: &mut Told, held: &File, top: &Path, flags: u32) {
    let path = top.join("f");
    let mut note = |what: &str, r: Result<()>| {
        let r = r.map_err(|e| e.raw_os_error().unwrap_or(0));
        told.push((format!("{what}, flags {flags:#x}"), r));
    };
    let open = |flags: i32, how: &dyn Fn(&mut OpenOptions)| {
        let mut o = OpenOptions::new();
        how(&mut o);
        o.custom_flags(flags).open(&path).map(drop)
    };
    std::fs::write(top.join("other"), "").unwrap();
    note("read", std::fs::read(&path).map(drop));
    note("open for writing", open(0, &|o| _ = o.write(true)));
    note("open for both", open(0, &|o| _ = o.read(true).write(true)));
    note("open for appending", open(0, &|o| _ = o.append(true)));
    note("open for appending, creating", open(0, &|o| _ = o.append(true).create(true)));
    note("open for reading, creating", open(libc::O_CREAT, &|o| _ = o.read(true)));
    note("open for reading, cut", open(libc::O_TRUNC, &|o| _ = o.read(true)));
    note("open for appending, cut", open(libc::O_TRUNC, &|o| _ = o.append(true)));
    let append = || OpenOptions::new().append(true).open(&path)?.write_all(b"more");
    note("append", append());
    note("truncate", truncate(&path, 1));
    note("truncate an open one", held.set_len(2));
    let allocate = |flags| Ok(rustix::fs::fallocate(held, flags, 0, 8192)?);
    note("allocate", allocate(FallocateFlags::empty()));
    note("allocate behind the end", allocate(FallocateFlags::KEEP_SIZE));
    note("punch", allocate(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE));
    note("zero", allocate(FallocateFlags::ZERO_RANGE));
    note("chmod", std::fs::set_permissions(&path, Permissions::from_mode(0o600)));
    note("chmod of an open one", held.set_permissions(Permissions::from_mode(0o640)));
    note("chown", std::os::unix::fs::chown(&path, Some(7), Some(7)));
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = |a: Timespec, m: Timespec| {
        let times = Timestamps { last_access: a, last_modification: m };
        Ok(rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?)
    };
    let (now, same) = (at(0, libc::UTIME_NOW), at(0, libc::UTIME_OMIT));
    note("times", times(at(1, 1), at(2, 2)));
    note("mtime alone", times(same, at(3, 3)));
    note("atime alone", times(at(3, 3), same));
    // Another one than the file has: what a kernel keeps cannot be told from one that stays.
    std::thread::sleep(std::time::Duration::from_millis(20));
    note("mtime to the present", times(same, now));
    note("touch", times(now, now));
    let set = |name: &str| Ok(rustix::fs::setxattr(&path, name, b"value", XattrFlags::empty())?);
    note("setxattr", set("user.a"));
    note("setxattr for root", set("trusted.a"));
    note("removexattr", rustix::fs::removexattr(&path, "user.a").map_err(Error::from));
    note("link", std::fs::hard_link(&path, top.join("link")));
    note("replace", std::fs::rename(top.join("other"), &path));
    note("rename", std::fs::rename(&path, top.join("g")));
    note("exchange", exchange(&path, &top.join("d")));
    note("unlink", std::fs::remove_file(&path));
}

pub fn truncate(path: &Path, size: i64) -> Result<()> {
    let path = std::ffi::CString::new(path.to_str().unwrap())?;
    // SAFETY: the path ends in NUL and lives until the call returns.
    let r = unsafe { libc::truncate(path.as_ptr(), size) };
    if r == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn exchange(a: &Path, b: &Path) -> Result<()> {
    Ok(rustix::fs::renameat_with(CWD, a, CWD, b, rustix::fs::RenameFlags::EXCHANGE)?)
}

fn on_a_directory(told: &mut Told, top: &Path, flags: u32) {
    let dir = top.join("d");
    let mut note = |what: &str, r: Result<()>| {
        let r = r.map_err(|e| e.raw_os_error().unwrap_or(0));
        told.push((format!("{what}, a directory with flags {flags:#x}"), r));
    };
    let inside = |name: &str| dir.join(name);
    note("list", std::fs::read_dir(&dir).map(drop));
    note("write to a file", std::fs::write(inside("old"), "again"));
    note("create", std::fs::write(inside("new"), ""));
    note("mkdir", std::fs::create_dir(inside("newdir")));
    note("symlink", symlink("to", inside("newlink")));
    let node = rustix::fs::FileType::Fifo;
    note("mknod", rustix::fs::mknodat(CWD, inside("pipe"), node, Mode::RUSR, 0).map_err(Error::from));
    note("link", std::fs::hard_link(top.join("plain"), inside("linked")));
    let unnamed = OFlags::TMPFILE | OFlags::RDWR;
    note("a file without a name", rustix::fs::open(&dir, unnamed, Mode::RUSR).map(drop).map_err(Error::from));
    note("rename within", std::fs::rename(inside("old"), inside("older")));
    note("rename out", std::fs::rename(inside("old"), top.join("out")));
    note("exchange", exchange(&inside("old"), &top.join("plain")));
    note("rename over", std::fs::rename(top.join("plain"), inside("old")));
    note("rename in", std::fs::rename(top.join("plain"), inside("came")));
    note("unlink", std::fs::remove_file(inside("old")));
    note("rmdir", std::fs::remove_dir(inside("sub")));
    note("chmod", std::fs::set_permissions(&dir, Permissions::from_mode(0o700)));
    note("setxattr", rustix::fs::setxattr(&dir, "user.a", b"", XattrFlags::empty()).map_err(Error::from));
    note("rename of it", std::fs::rename(&dir, top.join("e")));
    note("rmdir of it", std::fs::remove_dir(&dir));
}

/// Everything under `top`, with each combination of flags: what is done then, and what remains.
fn what_is_told(top: &Path) -> Told {
    let mut told = Told::new();
    for flags in [0, IMMUTABLE, APPEND, IMMUTABLE | APPEND, NODUMP | NOATIME, APPEND | NODUMP] {
        let here = top.join(format!("{flags:x}"));
        std::fs::create_dir(&here).unwrap();
        std::fs::create_dir(here.join("d")).unwrap();
        std::fs::write(here.join("f"), "content").unwrap();
        let held = OpenOptions::new().read(true).write(true).open(here.join("f")).unwrap();
        set_flags(&here.join("f"), flags).unwrap();
        on_a_file(&mut told, &held, &here, flags);
        for name in ["f", "g"] {
            let _ = set_flags(&here.join(name), 0);
        }
        let here = top.join(format!("{flags:x} directory"));
        std::fs::create_dir_all(here.join("d/sub")).unwrap();
        std::fs::write(here.join("d/old"), "content").unwrap();
        std::fs::write(here.join("plain"), "").unwrap();
        set_flags(&here.join("d"), flags).unwrap();
        on_a_directory(&mut told, &here, flags);
        let _ = set_flags(&here.join("d"), 0);
    }
    // What a directory hands on.
    let dir = top.join("hands on");
    std::fs::create_dir(&dir).unwrap();
    set_flags(&dir, NODUMP | NOATIME).unwrap();
    std::fs::write(dir.join("f"), "").unwrap();
    std::fs::create_dir(dir.join("d")).unwrap();
    set_flags(&dir, APPEND).unwrap();
    std::fs::write(dir.join("g"), "").unwrap();
    told.extend(["f", "d", "g"].map(|n| (format!("{n} has {:x}", flags(&dir.join(n))), Ok(()))));
    set_flags(&dir, 0).unwrap();
    // An immutable one gets no other flag while it stays so.
    let changes = [IMMUTABLE | NODUMP, IMMUTABLE, IMMUTABLE | APPEND, NODUMP, 0];
    set_flags(&dir.join("f"), IMMUTABLE).unwrap();
    for change in changes {
        let r = set_flags(&dir.join("f"), change).map_err(|e| e.raw_os_error().unwrap_or(0));
        told.push((format!("{change:#x} after immutable"), r));
    }
    told
}

fn flags_forbid_what_they_forbid_on_ext4() {
    let ext4 = Ext4::new();
    let want = what_is_told(&ext4.dir());
    assert!(want.iter().any(|t| t.1 == Err(libc::EPERM)));
    for profile in ["gather", "through", "stateless"] {
        let m = Mount::new(&["-o", &format!("profile={profile}")]);
        let told = what_is_told(&m.dir);
        for (told, want) in told.iter().zip(&want) {
            // Nobody asks when it is opened: then the write is refused.
            let asks = profile != "stateless" || !told.0.starts_with("open for") || told.0.contains("cut");
            if asks {
                assert_eq!(told, want, "{profile}");
            } else {
                assert_eq!(told.1, Ok(()), "{}", told.0);
            }
        }
        assert_eq!(told.len(), want.len());
        // A write through a handle of before: the kernel's cache alone takes it.
        let path = m.path("last");
        let held = File::create(&path).unwrap();
        set_flags(&path, IMMUTABLE).unwrap();
        let wrote = held.write_at(b"more", 0).map_err(|e| e.raw_os_error());
        assert_eq!(wrote, if profile == "gather" { Ok(4) } else { Err(Some(libc::EPERM)) });
        set_flags(&path, 0).unwrap();
        // Nor one that only grows anything but what is appended.
        set_flags(&path, APPEND).unwrap();
        let wrote = OpenOptions::new().write(true).open(&path).and_then(|f| f.write_at(b"more", 0));
        assert_eq!(wrote.unwrap_err().raw_os_error(), Some(libc::EPERM), "{profile}");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        set_flags(&path, 0).unwrap();
    }
}

fn who_may_set_which_flag_is_as_on_ext4() {
    let ext4 = Ext4::new();
    let m = Mount::new(&["-o", "allow_other"]);
    for top in [m.work.path(), ext4.work.path()] {
        std::fs::set_permissions(top, Permissions::from_mode(0o755)).unwrap();
    }
    let answers = |top: &Path| {
        let (mine, other) = (top.join("mine"), top.join("other"));
        std::fs::write(&mine, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::chown(&mine, Some(1234), Some(1234)).unwrap();
        let mut codes = Vec::new();
        for path in [&mine, &other] {
            for how in ["+d", "+A", "+i", "+a", "-d"] {
                codes.push((how, user("chattr", &[how, path.to_str().unwrap()]).code));
            }
        }
        // Once there, it goes by the superuser alone.
        set_flags(&mine, APPEND).unwrap();
        codes.push(("-a", user("chattr", &["-a", mine.to_str().unwrap()]).code));
        codes.push(("+d of one that only grows", user("chattr", &["+d", mine.to_str().unwrap()]).code));
        let all = (codes, flags(&mine), flags(&other));
        set_flags(&mine, 0).unwrap();
        all
    };
    let told = answers(&m.dir);
    assert_eq!(told, answers(&ext4.dir()));
    assert_eq!((told.1, told.2), (APPEND | NODUMP, 0));
}

fn kill(m: &mut Mount) {
    kill_process(Pid::from_raw(m.server_of_mount() as i32).unwrap(), Signal::KILL).unwrap();
    while std::fs::metadata(&m.dir).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    run("umount", &["-l", m.dir.to_str().unwrap()]).ok();
}

fn flags_survive_a_remount_and_a_kill_after_fsync() {
    // Nothing is made durable but what a test asks for.
    let quiet = ["-o", "commit=3600,dirty_expire=3600"];
    let mut m = Mount::new(&quiet);
    std::fs::create_dir(m.path("d")).unwrap();
    for name in ["f", "g", "d/f"] {
        std::fs::write(m.path(name), name).unwrap();
    }
    set_flags(&m.path("f"), APPEND | NODUMP).unwrap();
    set_flags(&m.path("d"), APPEND | NOATIME).unwrap();
    m.umount();
    m.fsck();
    m.mount(&quiet);
    assert_eq!(["f", "g", "d", "d/f"].map(|n| flags(&m.path(n))), [APPEND | NODUMP, 0, APPEND | NOATIME, 0]);
    // An fsync of the inode makes its flags durable, also of one that nobody may change any more.
    for (name, with) in [("f", IMMUTABLE), ("g", IMMUTABLE | NODUMP), ("d", IMMUTABLE)] {
        set_flags(&m.path(name), with).unwrap();
        File::open(m.path(name)).unwrap().sync_all().unwrap();
    }
    let before = ["f", "g", "d"].map(|n| std::fs::metadata(m.path(n)).unwrap().ctime());
    kill(&mut m);
    m.mount(&quiet);
    assert_eq!(["f", "g", "d"].map(|n| flags(&m.path(n))), [IMMUTABLE, IMMUTABLE | NODUMP, IMMUTABLE]);
    for (name, before) in ["f", "g", "d"].into_iter().zip(before) {
        assert!(std::fs::metadata(m.path(name)).unwrap().ctime() >= before);
    }
    let refused = |r: Result<()>| r.unwrap_err().raw_os_error() == Some(libc::EPERM);
    assert!(refused(std::fs::remove_file(m.path("f"))) && refused(std::fs::remove_file(m.path("d/f"))));
    for name in ["f", "g", "d"] {
        set_flags(&m.path(name), 0).unwrap();
    }
    std::fs::remove_file(m.path("d/f")).unwrap();
    m.umount();
    m.fsck();
    m.mount(&[]);
    assert_eq!(["f", "g", "d"].map(|n| flags(&m.path(n))), [0; 3]);
}

/// What a program wrote before is there afterwards, with its time, and nobody hears of an error.
fn what_the_kernel_has_accepted_comes_to_an_immutable_file() {
    let mut m = Mount::new(&["-o", "profile=gather"]);
    let path = m.path("f");
    let file = File::create(&path).unwrap();
    file.write_at(&[7; 100_000], 0).unwrap();
    set_flags(&path, IMMUTABLE).unwrap();
    file.write_at(&[8; 50_000], 100_000).unwrap();
    file.sync_all().unwrap();
    let (mtime, size) = file.metadata().map(|s| ((s.mtime(), s.mtime_nsec()), s.len())).unwrap();
    drop(file);
    m.remount();
    let there = std::fs::read(&path).unwrap();
    assert_eq!((there.len() as u64, there[99_999], there[100_000]), (size, 7, 8));
    let s = std::fs::metadata(&path).unwrap();
    assert_eq!((s.mtime(), s.mtime_nsec()), mtime);
    set_flags(&path, 0).unwrap();
}

/// What a program wrote to a map before is there where the mount is not told who has a file open;
/// what it writes then is refused.
fn what_was_written_to_a_map_comes_to_an_immutable_file() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let mut m = Mount::new(&["-o", "profile=stateless"]);
    let path = m.path("f");
    std::fs::write(&path, [1; 8192]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let immutable = IMMUTABLE;
    // SAFETY: a shared mapping of a file that this test alone uses, within its size, unmapped
    // below; the ioctl reads one word, which lives until it returns.
    let (first, second) = unsafe {
        let (null, both) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let map = mmap(null, 8192, both, MapFlags::SHARED, &file, 0).unwrap();
        map.cast::<u8>().write(2);
        // Through this descriptor: closing another would have the pages written back.
        let r = libc::ioctl(file.as_raw_fd(), 0x4008_6602, &raw const immutable);
        assert_eq!(r, 0, "{}", Error::last_os_error());
        let first = msync(map, 8192, MsyncFlags::SYNC);
        map.cast::<u8>().add(4096).write(3);
        let second = msync(map, 8192, MsyncFlags::SYNC);
        munmap(map, 8192).unwrap();
        (first, second)
    };
    assert!(first.is_ok() && second.is_err(), "{first:?}, {second:?}");
    assert_eq!(flags(&path), IMMUTABLE);
    drop(file);
    m.remount();
    let there = std::fs::read(&path).unwrap();
    assert_eq!((there[0], there[4096]), (2, 1));
    set_flags(&path, 0).unwrap();
}

fn reading_leaves_the_time_of_access_of_what_has_the_flag() {
    let mut m = Mount::new(&[]);
    for name in ["f", "g"] {
        std::fs::write(m.path(name), "content").unwrap();
        let past = Timespec { tv_sec: 1000, tv_nsec: 0 };
        let times = Timestamps { last_access: past, last_modification: past };
        rustix::fs::utimensat(CWD, m.path(name), &times, AtFlags::empty()).unwrap();
    }
    set_flags(&m.path("f"), NOATIME).unwrap();
    m.remount();
    for name in ["f", "g"] {
        std::fs::read(m.path(name)).unwrap();
    }
    m.remount();
    let [with, without] = ["f", "g"].map(|n| std::fs::metadata(m.path(n)).unwrap().atime());
    assert!(with == 1000 && without > 1000, "{with} and {without}");
}

fn version_and_label_are_told_as_ext4_tells_them() {
    const GET_VERSION: u64 = 0x8008_7601;
    const GET_UUID: u64 = 0x8011_1500;
    const GET_LABEL: u64 = 0x8100_9431;
    let mut m = Mount::new(&[]);
    lanefs_in(m.work.path(), &["label", "mnt", "home"]).ok();
    std::fs::write(m.path("f"), "content").unwrap();
    std::fs::create_dir(m.path("d")).unwrap();
    let mut versions = Vec::new();
    for name in ["f", "d", "."] {
        let path = m.path(name);
        let file = File::open(&path).unwrap();
        // A program gives an int, and nothing behind it is written.
        let mut words = [u32::MAX; 2];
        let mut label = [0xffu8; 256];
        let mut uuid = [0u8; 17];
        // SAFETY: the first command writes at most the eight bytes of `words`, the second the 256
        // of `label`, the third the 17 of `uuid`.
        let told = unsafe {
            let fd = file.as_raw_fd();
            let version = libc::ioctl(fd, GET_VERSION as _, words.as_mut_ptr());
            let named = libc::ioctl(fd, GET_LABEL as _, label.as_mut_ptr());
            (version, named, libc::ioctl(fd, GET_UUID as _, uuid.as_mut_ptr()))
        };
        assert_eq!((told.0, told.1, words[1]), (0, 0, u32::MAX), "{name}: {}", Error::last_os_error());
        assert_eq!(label[..5], *b"home\0");
        assert!(label[5..].iter().all(|b| *b == 0), "{label:?}");
        // Since Linux 6.9 the kernel says that a mount has none, without asking.
        assert!(told.2 != 0 || uuid[0] == 16, "{uuid:?}");
        let shown = run("lsattr", &["-v", "-d", path.to_str().unwrap()]).ok().out;
        assert_eq!(shown.split_whitespace().next(), Some(words[0].to_string().as_str()), "{shown}");
        versions.push((name, words[0]));
    }
    m.umount();
    let volume = lanefs::Volume::open(&[m.image()], &lanefs::MountOptions::default()).unwrap();
    for (name, version) in versions {
        let stat = volume.fs().stat(format!("/{name}")).unwrap();
        assert_eq!(volume.handle_generation(&stat), version, "{name}");
    }
}
