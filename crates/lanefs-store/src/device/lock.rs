//! One writer, or several readers, of an image at a time; and who it is.
//!
//! The lock is `flock` on the open file: it is the kernel's, so it goes with the process however
//! that ends, it also refuses a second opening by the same process, and a daemon keeps it across
//! `fork`. It does not show who holds it. For that the holder also takes a POSIX lock on a byte far
//! past the end, whose holder's pid anyone may ask for. That second lock is only a name tag: it may
//! be lost (the child of a fork does not inherit it, and closing any descriptor of the file drops
//! it), and then the pid is looked up in `/proc/*/fdinfo`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Stat};
use rustix::io::Errno;

use super::io_error;
use crate::error::{Result, StoreError};

/// The byte whose POSIX lock shows the holder's pid.
const TAG_OFFSET: i64 = i64::MAX - 1;

/// The time for which a lock is waited for that no process has: the kernel takes down the ring of a
/// process that was killed when that has long been gone, and only then lets go of its files.
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
                    let pid = tagged.or_else(|| listed_pid(&stat));
                    let patience = match (tagged, pid) {
                        (Some(_), _) => Duration::ZERO,
                        (None, Some(pid)) if pid == std::process::id() as i32 => Duration::ZERO,
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
        StoreError::InUse { device: name.into(), pid: listed_pid(stat).unwrap_or(0) }
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

/// Returns the pid of a process with a descriptor of the same file that holds a lock. Sees this
/// user's processes, or all for root.
fn listed_pid(stat: &Stat) -> Option<i32> {
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()).find(|&pid| holds(pid, stat))
}

fn holds(pid: i32, stat: &Stat) -> bool {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.flatten().any(|e| {
        let same = rustix::fs::stat(e.path()).is_ok_and(|s| {
            if is_block_device(stat) {
                is_block_device(&s) && s.st_rdev == stat.st_rdev
            } else {
                (s.st_dev, s.st_ino) == (stat.st_dev, stat.st_ino)
            }
        });
        same && std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", e.file_name().display()))
            .is_ok_and(|s| s.lines().any(|l| l.starts_with("lock:") && l.contains("FLOCK")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, FileDevice};
    use std::io::{BufRead, BufReader, Write};
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
        println!("\nholding {}", d.name());
        std::io::stdout().flush().unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }

    fn hold(path: &std::path::Path, read_only: bool) -> Child {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "device::lock::tests::holder", "--nocapture"]).env("LANEFS_TEST_HOLD", path);
        if read_only {
            c.env("LANEFS_TEST_HOLD_READ", "1");
        }
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
        let stat = rustix::fs::stat(&path).unwrap();
        assert_eq!(listed_pid(&stat), Some(child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(listed_pid(&stat), None);
    }
}
