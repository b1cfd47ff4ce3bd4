//! Running the command, and mounts that do not outlive their test.

pub use crate::transport::transport;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use tempfile::TempDir;

pub const LANEFS: &str = env!("CARGO_BIN_EXE_lanefs");

/// What a run of the command left behind.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Unmounts `mnt`. A file of the mount that a test had open is open in a child that another test
/// has forked, too, until that runs its program: the mount is in use for a moment.
pub fn umount_when_free(work: &Path) -> Run {
    let begun = std::time::Instant::now();
    loop {
        let run = lanefs_in(work, &["umount", "mnt"]);
        if !run.err.contains("in use") || begun.elapsed() > std::time::Duration::from_secs(20) {
            return run;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

impl Run {
    #[track_caller]
    pub fn ok(self) -> Run {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
    /// Failed with this code and one line on stderr that contains all of `words`.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Run {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.trim_end().lines().count(), 1, "one line: {self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not said: {self:?}");
        }
        self
    }
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

pub fn run_command(command: &mut Command) -> Run {
    // A program that was just copied is busy while a child that another test has forked still has
    // the copy open.
    let Output { status, stdout, stderr } = loop {
        match command.stdin(Stdio::null()).output() {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => std::thread::yield_now(),
            done => break done.expect("run"),
        }
    };
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    Run { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// Held for writing as long as a mount namespace lives that a test has made: the namespace has a
/// copy of every mount of the tests beside it, which keeps their volumes open.
pub static MOUNT_NAMESPACES: RwLock<()> = RwLock::new(());

/// Waits until no mount of this process is unmounted, and lets none be until the guard goes.
pub fn before_a_mount_namespace() -> RwLockWriteGuard<'static, ()> {
    MOUNT_NAMESPACES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `lanefs` with these arguments in `dir`.
pub fn lanefs_in(dir: &Path, args: &[&str]) -> Run {
    let unmounts = args.first() == Some(&"umount");
    let _none = unmounts.then(|| MOUNT_NAMESPACES.read().unwrap_or_else(PoisonError::into_inner));
    run_command(Command::new(LANEFS).args(args).current_dir(dir))
}

/// A directory with a new volume in it.
pub fn volume(size: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("tempdir");
    lanefs_in(dir.path(), &["mkfs", "--size", size, "v.lane"]).ok();
    let image = dir.path().join("v.lane");
    (dir, image)
}

/// A mounted volume that is unmounted when the test ends, however it ends.
pub struct Mount {
    pub work: TempDir,
    pub dir: PathBuf,
    mounted: bool,
}

impl Mount {
    /// A new volume, mounted with these options.
    pub fn new(options: &[&str]) -> Mount {
        let (work, _) = volume("256M");
        let dir = work.path().join("mnt");
        std::fs::create_dir(&dir).expect("mkdir");
        let mut mount = Mount { work, dir, mounted: false };
        mount.mount(options);
        mount
    }
    pub fn image(&self) -> PathBuf {
        self.work.path().join("v.lane")
    }
    pub fn mount(&mut self, options: &[&str]) {
        self.mounted = true;
        let how = transport().option();
        let args = [&["mount", "-o", how.as_str()], options, &["v.lane", "mnt"]].concat();
        lanefs_in(self.work.path(), &args).ok();
        assert_eq!(self.has_rings(), transport().has_rings());
    }
    /// Whether it is served over io_uring.
    pub fn has_rings(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.server_of_mount())).expect("threads");
        let names = tasks.map(|t| std::fs::read_to_string(t.expect("thread").path().join("comm")));
        names.flatten().any(|name| name.starts_with("lanefs-ring"))
    }
    /// Takes over a mount that was made here otherwise, so that it ends with the test.
    pub fn is_mounted(&mut self) {
        self.mounted = true;
    }
    pub fn is_unmounted(&mut self) {
        assert_eq!(mount_line(&self.dir), None);
        self.mounted = false;
    }
    pub fn umount(&mut self) {
        umount_when_free(self.work.path()).ok();
        self.mounted = false;
    }
    /// Unmounts after the volume was stopped as by a crash: the mount is gone, and the image not
    /// closed.
    pub fn umount_of_a_stopped_one(&mut self) {
        let image = self.image();
        umount_when_free(self.work.path())
            .fails(1, &[image.to_str().expect("a name"), "not closed", "lanefs fsck", "log"]);
        assert_eq!(mount_line(&self.dir), None);
        self.mounted = false;
    }
    pub fn remount(&mut self) {
        self.umount();
        self.mount(&[]);
    }
    /// The process that serves the mount.
    pub fn server(&self) -> i32 {
        let run = lanefs_in(self.work.path(), &["ls", "v.lane:/"]);
        let pid =
            run.err.split("process ").nth(1).and_then(|t| t.split(|c: char| !c.is_ascii_digit()).next());
        pid.and_then(|p| p.parse().ok()).unwrap_or_else(|| panic!("no pid: {run:?}"))
    }
    /// The same as the mount says it.
    pub fn server_of_mount(&self) -> u32 {
        let mut pid = 0u32;
        let dir = std::fs::File::open(&self.dir).expect("open");
        // SAFETY: the ioctl writes one u32 through a pointer valid for that.
        let r = unsafe { libc::ioctl(dir.as_raw_fd(), 0x8004_4c01, &raw mut pid) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        pid
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
    pub fn fsck(&self) {
        lanefs_in(self.work.path(), &["fsck", "v.lane"]).ok();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted && lanefs_in(self.work.path(), &["umount", "mnt"]).code != 0 {
            // A test that failed half-way may still use it.
            let _ = lanefs_in(self.work.path(), &["umount", "--lazy", "mnt"]);
        }
    }
}

/// The line of the mount table for a directory: (type, source, options).
pub fn mount_line(dir: &Path) -> Option<(String, String, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let dir = dir.canonicalize().ok()?;
    let line = table.lines().rev().find(|l| l.split(' ').nth(4).is_some_and(|d| Path::new(d) == dir))?;
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    Some((back.next()?.into(), back.next()?.into(), front.split(' ').nth(5)?.into()))
}

/// Memory that O_DIRECT takes.
#[repr(C, align(4096))]
pub struct Aligned<const N: usize>(pub [u8; N]);
