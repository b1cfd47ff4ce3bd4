//! One writer, or several readers, of an image at a time; and who it is.
//!
//! The lock is `flock` on the open file: it is the kernel's, so it goes with the process however
//! that ends, it also refuses a second opening by the same process, and a daemon keeps it across
//! `fork`. It does not show who holds it. For that the holder also takes a POSIX lock on a byte far
//! past the end, whose holder's pid anyone may ask for. That second lock is only a name tag: it may
//! be lost (the child of a fork does not inherit it, and closing any descriptor of the file drops
//! it), and then the pid is looked up in `/proc/*/fdinfo`. Nothing else is asked about what other
//! processes have open: of a file on a mount that hangs, a stat would hang too.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Stat};
use rustix::io::Errno;

use super::io_error;
use crate::error::{Result, StoreError};

/// The byte whose POSIX lock shows the holder's pid.
const TAG_OFFSET: i64 = i64::MAX - 1;

/// The time for which a lock is waited for that no process has, or one that is ending: a killed one
/// closes its files when the last of its threads is gone, and the kernel takes down its ring some
/// time later, and only then lets go of them.
const LET_GO: Duration = Duration::from_secs(10);

/// The time for which a lock is waited for that a process has without a tag: a child that another
/// thread of its parent has just started has all descriptors until it runs its program.
const EXEC: Duration = Duration::from_millis(500);

/// An image's lock. It lasts until the file it was taken on is closed, by this process and all its
/// children.
#[derive(Debug)]
pub struct ImageLock {
    shared: bool,
}

impl ImageLock {
    /// Locks the image `name` open as `fd`: shared with other readers, or alone.
    ///
    /// # Errors
    /// [`StoreError::InUse`] with the holder's pid, or 0 if the holder hides from us.
    pub fn take(fd: BorrowedFd<'_>, name: &str, read_only: bool) -> Result<ImageLock> {
        let stat =
            rustix::fs::fstat(fd).map_err(|e| io_error(name, "lock", 0, e.raw_os_error(), &e.to_string()))?;
        let how = if read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        // The system's device manager locks block devices for a moment when they change.
        let since = Instant::now();
        let mut patience = if is_block_device(&stat) { 20 } else { 0 };
        loop {
            match rustix::fs::flock(fd, how) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(Errno::WOULDBLOCK) => {
                    let tagged = tagged_pid(fd);
                    let pid = tagged.or_else(|| listed_pid(&Listed::of(fd, &stat)));
                    let patience = match (tagged, pid) {
                        (_, Some(pid)) if pid == std::process::id() as i32 => Duration::ZERO,
                        (_, Some(pid)) if is_ending(pid) => LET_GO,
                        (Some(_), _) => Duration::ZERO,
                        (None, Some(_)) => EXEC,
                        (None, None) => LET_GO,
                    };
                    if since.elapsed() >= patience {
                        return Err(StoreError::InUse { device: name.into(), pid: pid.unwrap_or(0) });
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => return Err(io_error(name, "lock", 0, e.raw_os_error(), &e.to_string())),
            }
        }
        tag(fd, read_only);
        Ok(ImageLock { shared: read_only })
    }

    /// Returns the error for a block device that is in use, as the kernel answered.
    pub(super) fn in_use(name: &str, stat: &Stat) -> StoreError {
        StoreError::InUse { device: name.into(), pid: listed_pid(&Listed::by(stat)).unwrap_or(0) }
    }

    /// Returns whether other readers may have the image open too.
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

fn is_block_device(stat: &Stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFBLK
}

fn tag_lock(kind: i32) -> libc::flock64 {
    libc::flock64 {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: TAG_OFFSET,
        l_len: 1,
        l_pid: 0,
    }
}

/// Puts the name tag on. Failure costs only a lookup later.
fn tag(fd: BorrowedFd<'_>, read_only: bool) {
    let lock = tag_lock(if read_only { libc::F_RDLCK } else { libc::F_WRLCK });
    // SAFETY: F_SETLK reads one flock64 through the pointer, which is valid for that.
    let r = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    if r != 0 {
        tracing::debug!("no pid on the image's lock: {}", std::io::Error::last_os_error());
    }
}

/// Returns the pid on the name tag. Own tags do not show.
fn tagged_pid(fd: BorrowedFd<'_>) -> Option<i32> {
    let mut lock = tag_lock(libc::F_WRLCK);
    // SAFETY: F_GETLK reads and writes one flock64 through the pointer, which is valid for that.
    let r = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    (r == 0 && i32::from(lock.l_type) != libc::F_UNLCK && lock.l_pid > 0).then_some(lock.l_pid)
}

/// A file as the kernel's lists of locks name it: the device of its file system, and its inode. A
/// block device is named by its node in /dev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listed {
    device: (u32, u32),
    ino: u64,
}

impl Listed {
    /// Returns the name of a file that is open. Some file systems (btrfs, overlayfs) show another
    /// device in `stat` than the lists have, which is the mount's.
    fn of(fd: BorrowedFd<'_>, stat: &Stat) -> Listed {
        let by_stat = Listed::by(stat);
        Listed { device: device_of_mount(fd).unwrap_or(by_stat.device), ..by_stat }
    }

    /// Returns the name of a file by what `stat` shows of it.
    fn by(stat: &Stat) -> Listed {
        Listed { device: (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)), ino: stat.st_ino }
    }

    /// Returns whether a line of `/proc/PID/fdinfo/FD` says that this file is locked through it:
    /// `lock:  1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`.
    fn is_locked_by(&self, line: &str) -> bool {
        debug_assert!(!line.contains('\n'), "one line");
        let mut words = line.split_whitespace();
        if words.next() != Some("lock:") || words.nth(1) != Some("FLOCK") {
            return false;
        }
        let Some(mut file) = words.nth(3).map(|f| f.split(':')) else { return false };
        let mut hex = || u32::from_str_radix(file.next()?, 16).ok();
        let device = hex().zip(hex());
        device == Some(self.device) && file.next().and_then(|i| i.parse().ok()) == Some(self.ino)
    }
}

/// Returns the device of the mount that an open file belongs to.
fn device_of_mount(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let mount = info.lines().find_map(|l| l.strip_prefix("mnt_id:"))?.trim();
    debug_assert!(mount.bytes().all(|b| b.is_ascii_digit()), "a number");
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    let line = table.lines().find(|l| l.split(' ').next() == Some(mount))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the pid of a process with a descriptor through which the file is locked. Sees this
/// user's processes, or all for root.
fn listed_pid(file: &Listed) -> Option<i32> {
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()).find(|&pid| holds(pid, file))
}

fn holds(pid: i32, file: &Listed) -> bool {
    debug_assert!(pid > 0, "a directory in /proc");
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    fds.flatten().any(|e| {
        std::fs::read_to_string(e.path()).is_ok_and(|info| info.lines().any(|line| file.is_locked_by(line)))
    })
}

/// Returns whether a process is ending, or has ended: it was killed, or its first thread is at its
/// end or behind it. Others of its threads may be in calls that no signal ends.
fn is_ending(pid: i32) -> bool {
    let Some(process) = rustix::process::Pid::from_raw(pid) else { return false };
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    match (read("stat"), read("status")) {
        (Ok(stat), Ok(status)) => tells_of_an_end(&stat, &status),
        // It may hide from us.
        _ => rustix::process::test_kill_process(process) == Err(Errno::SRCH),
    }
}

/// Returns whether `/proc/PID/stat` and `/proc/PID/status` are those of a process that is ending.
fn tells_of_an_end(stat: &str, status: &str) -> bool {
    const PF_EXITING: u32 = 4;
    // The name, in parentheses, may have spaces and parentheses.
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let dead = matches!(fields.next(), Some("Z" | "X"));
    let flags = fields.nth(5).and_then(|f| f.parse::<u32>().ok()).unwrap_or(0);
    let killed = status.lines().any(|line| {
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let set = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        set.is_some_and(|set| set >> (libc::SIGKILL - 1) & 1 == 1)
    });
    dead || flags & PF_EXITING != 0 || killed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, FileDevice};
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsFd;
    use std::process::{Child, Command, Stdio};

    fn image() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        drop(FileDevice::create(&path, 1 << 20).unwrap());
        (dir, path)
    }

    /// The holder process of the tests below: this test program, asked to run only this "test".
    #[test]
    fn holder() {
        let Some(path) = std::env::var_os("LANEFS_TEST_HOLD") else { return };
        let d = FileDevice::open(&path, std::env::var_os("LANEFS_TEST_HOLD_READ").is_some()).unwrap();
        let ends = std::env::var_os("LANEFS_TEST_HOLD_ENDING").is_some();
        if ends {
            end_first_thread();
        }
        println!("\nholding {}", d.name());
        std::io::stdout().flush().unwrap();
        if ends {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
            std::process::exit(0);
        }
        std::thread::sleep(Duration::from_secs(600));
    }

    /// Ends the first thread of this process, and no other, as a killed process is while one of its
    /// threads is in a call that no signal ends.
    fn end_first_thread() {
        extern "C" fn end(_: i32) {
            // SAFETY: ends the thread that the signal came to, in a system call.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let pid = std::process::id() as i32;
        // SAFETY: the handler makes one system call; the thread has nothing that others wait for
        // but the end of the tests of this program, which are this one.
        unsafe {
            libc::signal(libc::SIGUSR1, end as extern "C" fn(i32) as libc::sighandler_t);
            assert_eq!(libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGUSR1), 0);
        }
        while !std::fs::read_to_string("/proc/self/stat").unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
    }

    fn holder_program(path: &std::path::Path) -> Command {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "device::lock::tests::holder", "--nocapture"]).env("LANEFS_TEST_HOLD", path);
        c
    }

    fn hold(path: &std::path::Path, read_only: bool) -> Child {
        let mut c = holder_program(path);
        if read_only {
            c.env("LANEFS_TEST_HOLD_READ", "1");
        }
        spawn(c)
    }

    fn spawn(mut c: Command) -> Child {
        let mut child = c.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        assert!(out.lines().any(|l| l.unwrap().contains("holding")));
        child
    }

    fn holder_of(path: &std::path::Path, read_only: bool) -> i32 {
        match FileDevice::open(path, read_only) {
            Err(StoreError::InUse { pid, device }) => {
                assert_eq!(device, path.display().to_string());
                pid
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_process_is_named_and_a_killed_one_leaves_nothing() {
        let (_dir, path) = image();
        let mut child = hold(&path, false);
        let pid = child.id() as i32;
        assert_eq!(holder_of(&path, false), pid);
        assert_eq!(holder_of(&path, true), pid);
        child.kill().unwrap();
        child.wait().unwrap();
        drop(FileDevice::open(&path, false).unwrap());
    }

    /// After kill -9 the kernel takes a ring down by itself, some time after the process is gone,
    /// and only then lets go of its files. A mapping stands for that here: it keeps the locked
    /// file, and no process has a descriptor of it.
    #[test]
    fn a_lock_that_nobody_has_any_more_is_waited_for() {
        let (_dir, path) = image();
        let file = std::fs::File::open(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: the kernel chooses where; nothing reads what is mapped.
        let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, flags, &file, 0) }.unwrap();
        drop(file);
        let map = map as usize;
        let waits = std::thread::spawn(move || FileDevice::open(&path, false).map(drop));
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: the mapping made above, used by nobody.
        unsafe { rustix::mm::munmap(map as *mut _, 4096) }.unwrap();
        waits.join().unwrap().unwrap();
    }

    /// A server that is killed while one of its threads waits for its own mount has the lock until
    /// that is over: who mounted again was told that the image is in use.
    #[test]
    fn a_process_that_is_ending_is_waited_for() {
        let (_dir, path) = image();
        let mut c = holder_program(&path);
        c.env("LANEFS_TEST_HOLD_ENDING", "1").stdin(Stdio::piped());
        let mut child = spawn(c);
        assert!(is_ending(child.id() as i32));
        let waits = std::thread::spawn(move || FileDevice::open(&path, false).map(drop));
        std::thread::sleep(Duration::from_millis(300));
        drop(child.stdin.take());
        waits.join().unwrap().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_end_is_told_from_a_life() {
        let stat = |state: char, flags: u32| format!("7 (a) Z (b)) {state} 1 7 7 0 -1 {flags} 0 0");
        let status = |pending: &str, shared: &str| {
            format!("Name:\ta\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t0000000000000100\n")
        };
        let (none, kill, term) = ("0000000000000000", "0000000000000100", "0000000000004000");
        assert!(!tells_of_an_end(&stat('S', 0x40_0040), &status(none, term)));
        assert!(!tells_of_an_end(&stat('D', 0x40_0040), &status(none, none)));
        assert!(!tells_of_an_end("", ""));
        for (stat, status) in [
            (stat('Z', 0x40_0040), status(none, none)),
            (stat('R', 0x40_0044), status(none, none)),
            (stat('T', 0x40_0040), status(kill, none)),
            (stat('D', 0x40_0040), status(none, kill)),
        ] {
            assert!(tells_of_an_end(&stat, &status), "{stat}: {status}");
        }
    }

    #[test]
    fn a_lock_is_read_from_a_line_of_the_kernel() {
        let file = Listed { device: (254, 0), ino: 9_977_976 };
        let line = "lock:\t1: FLOCK  ADVISORY  WRITE 6313 fe:00:9977976 0 EOF";
        assert!(file.is_locked_by(line));
        assert!(!Listed { ino: 9, ..file }.is_locked_by(line));
        assert!(!Listed { device: (254, 1), ..file }.is_locked_by(line));
        for other in ["", "lock:", &line.replace("FLOCK", "POSIX"), &line.replace("fe:00:", "")] {
            assert!(!file.is_locked_by(other), "{other}");
        }
    }

    /// A program that opens what it has just closed was refused if another of its threads had just
    /// started a child.
    #[test]
    fn a_child_that_is_about_to_run_its_program_is_waited_for() {
        let (_dir, path) = image();
        let file = std::fs::File::open(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut child = Command::new("sleep").arg("0.1").stdin(file).spawn().unwrap();
        drop(FileDevice::open(&path, false).unwrap());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn readers_share_and_keep_a_writer_out() {
        let (_dir, path) = image();
        let mut child = hold(&path, true);
        let reader = FileDevice::open(&path, true).unwrap();
        assert!(reader.lock().is_shared());
        drop(reader);
        assert_eq!(holder_of(&path, false), child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn this_process_is_refused_too() {
        let (_dir, path) = image();
        let d = FileDevice::open(&path, false).unwrap();
        for _ in 0..2 {
            assert_eq!(holder_of(&path, false), std::process::id() as i32);
        }
        drop(d);
        drop(FileDevice::open(&path, false).unwrap());
    }

    #[test]
    fn the_list_of_processes_alone_finds_the_holder() {
        let (_dir, path) = image();
        let mut child = hold(&path, false);
        let file = std::fs::File::open(&path).unwrap();
        let listed = Listed::of(file.as_fd(), &rustix::fs::fstat(&file).unwrap());
        assert_eq!(listed_pid(&listed), Some(child.id() as i32));
        assert!(!is_ending(child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(listed_pid(&listed), None);
        assert!(is_ending(child.id() as i32));
    }
}
