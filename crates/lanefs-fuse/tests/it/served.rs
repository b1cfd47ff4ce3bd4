//! A mount beside the process that uses its volume: either sees what the other does, at once.

use lanefs::{OpenOptions, Volume};
use lanefs_fuse::{ServedMount, serve_mount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Served {
    volume: Volume,
    mount: Option<ServedMount>,
    dir: tempfile::TempDir,
}

impl Served {
    /// Mounts, unless this user may not.
    fn new() -> Option<Served> {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::in_memory(64 << 20).unwrap();
        match serve_mount(&volume, dir.path()) {
            Ok(mount) => Some(Served { volume, mount: Some(mount), dir }),
            Err(e) if !rustix::process::geteuid().is_root() => {
                eprintln!("not mounted, so not tested: {e}");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|l| l.split(' ').nth(4) == dir.to_str())
}

fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn what_the_process_does_is_seen_through_the_mount() {
    let Some(s) = Served::new() else { return };
    let inside = s.volume.fs();
    let root = s.dir.path();
    // A name that was looked for in vain, then made.
    assert!(fs::metadata(s.path("f")).is_err() && names(root).is_empty());
    inside.write("f", "one").unwrap();
    assert_eq!(fs::read_to_string(s.path("f")).unwrap(), "one");
    assert_eq!(names(root), ["f"]);
    // Content and size of a file that is open there, and of one that is opened again.
    let mut open = File::options().read(true).write(true).open(s.path("f")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    for i in 0..50 {
        let content = format!("{i} ").repeat(1 + i * 400);
        inside.write("f", &content).unwrap();
        assert_eq!(fs::metadata(s.path("f")).unwrap().len(), content.len() as u64);
        assert_eq!(open.seek(SeekFrom::End(0)).unwrap(), content.len() as u64);
        open.rewind().unwrap();
        text.clear();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, content);
        assert_eq!(fs::read_to_string(s.path("f")).unwrap(), content);
    }
    // Modes, links, directories, renames, removals.
    for mode in [0o600, 0o640, 0o755] {
        inside.chmod("f", mode).unwrap();
        assert_eq!(fs::metadata(s.path("f")).unwrap().permissions().mode() & 0o7777, mode);
    }
    for target in ["f", "elsewhere", "f"] {
        let _ = inside.unlink("link");
        inside.symlink(target, "link").unwrap();
        assert_eq!(fs::read_link(s.path("link")).unwrap(), Path::new(target));
    }
    inside.mkdir_all("d/e", 0o755).unwrap();
    inside.write("d/e/g", "deep").unwrap();
    assert_eq!(fs::read_to_string(s.path("d/e/g")).unwrap(), "deep");
    for i in 0..20 {
        inside.rename("d/e/g", "d/h").unwrap();
        assert!(fs::metadata(s.path("d/e/g")).is_err() && names(&s.path("d/e")).is_empty());
        assert_eq!(names(&s.path("d")), ["e", "h"], "round {i}");
        inside.rename("d/h", "d/e/g").unwrap();
        assert_eq!(names(&s.path("d/e")), ["g"]);
    }
    inside.rename("d/e", "moved").unwrap();
    assert_eq!(fs::read_to_string(s.path("moved/g")).unwrap(), "deep");
    inside.remove_dir_all("moved").unwrap();
    assert!(fs::metadata(s.path("moved/g")).is_err());
    assert_eq!(names(root), ["d", "f", "link"]);
    // A file that is replaced is another one.
    let before = fs::metadata(s.path("f")).unwrap().ino();
    inside.write("new", "newer").unwrap();
    inside.rename("new", "f").unwrap();
    assert_ne!(fs::metadata(s.path("f")).unwrap().ino(), before);
    assert_eq!(fs::read_to_string(s.path("f")).unwrap(), "newer");
}

#[test]
fn what_is_done_through_the_mount_is_seen_in_the_process() {
    let Some(s) = Served::new() else { return };
    let inside = s.volume.fs();
    fs::create_dir(s.path("d")).unwrap();
    fs::write(s.path("d/f"), "from outside").unwrap();
    assert_eq!(inside.read("d/f").unwrap(), b"from outside");
    // Both append to one file, by turns: nothing is written over.
    let log = inside.open("log", OpenOptions::new().append(true).create(true)).unwrap();
    let mut outside = File::options().append(true).open(s.path("log")).unwrap();
    let mut expected = String::new();
    for i in 0..100 {
        let (a, b) = (format!("in {i};"), format!("out {i};"));
        log.append(a.as_bytes()).unwrap();
        outside.write_all(b.as_bytes()).unwrap();
        expected += &(a + &b);
    }
    assert_eq!(inside.read_to_string("log").unwrap(), expected);
    assert_eq!(fs::read_to_string(s.path("log")).unwrap(), expected);
    fs::rename(s.path("d/f"), s.path("d/g")).unwrap();
    assert!(inside.stat("d/f").is_err() && inside.stat("d/g").is_ok());
    // A copy by a program, and a map that cannot be kept in step.
    let copied = Command::new("cp").arg("-r").arg(s.path("d")).arg(s.path("copy")).status();
    assert!(copied.unwrap().success());
    assert_eq!(inside.read("copy/g").unwrap(), b"from outside");
    let file = File::options().read(true).write(true).open(s.path("log")).unwrap();
    let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: the kernel chooses where; it is refused, and used by nobody if it is not.
    let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, flags, &file, 0) };
    assert_eq!(map.unwrap_err(), rustix::io::Errno::NODEV);
}

/// The process that is killed: this program, asked to run only this "test".
#[test]
fn holder() {
    let Some(dir) = std::env::var_os("LANEFS_TEST_MOUNT") else { return };
    let volume = Volume::in_memory(64 << 20).unwrap();
    let _mount = serve_mount(&volume, Path::new(&dir)).unwrap();
    // A program that waits for all its children must not wait for the mount.
    let children = rustix::process::waitpid(None, rustix::process::WaitOptions::NOHANG);
    println!("\nserving, {}", children.map_or_else(|e| e.to_string(), |_| "with children".into()));
    std::thread::sleep(Duration::from_secs(600));
}

/// Has another process serve a mount, and kills it.
fn hold_and_kill(dir: &Path, how: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "served::holder", "--nocapture"]).env("LANEFS_TEST_MOUNT", dir);
    how(&mut command);
    let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find(|l| l.starts_with("serving"));
    let was_mounted = is_mounted(dir);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let none = format!("serving, {}", rustix::io::Errno::CHILD);
    assert!(said == Some(none) && was_mounted, "{said:?}");
}

/// Without fusermount3 the mount stays and is dead; who serves one there again finds that.
#[test]
fn a_dead_mount_is_removed_before_another_is_made() {
    if !rustix::process::geteuid().is_root() || Served::new().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        hold_and_kill(dir.path(), |c| {
            c.env("PATH", "/nowhere");
        });
        let dead = fs::read_dir(dir.path()).unwrap_err();
        assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    }
    let volume = Volume::in_memory(64 << 20).unwrap();
    let mount = serve_mount(&volume, dir.path()).unwrap();
    fs::write(dir.path().join("f"), "alive").unwrap();
    mount.unmount().unwrap();
    assert!(!is_mounted(dir.path()) && fs::read_dir(dir.path()).unwrap().next().is_none());
    assert_eq!(lanefs_fuse::remove_dead_mounts(dir.path()).unwrap(), 0);
}

#[test]
fn a_killed_process_leaves_no_mount() {
    let helper = Command::new("fusermount3").arg("-V").output();
    if Served::new().is_none() || helper.is_err() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    hold_and_kill(dir.path(), |_| {});
    let since = Instant::now();
    while is_mounted(dir.path()) {
        assert!(since.elapsed() < Duration::from_secs(120), "fusermount3 sees the end, and unmounts");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A value that was published is what a reader outside finds, or a later one.
#[test]
fn nothing_stale_is_read_while_the_process_writes() {
    let Some(s) = Served::new() else { return };
    let inside = s.volume.fs().create("n").unwrap();
    inside.write_all_at(&0_u64.to_le_bytes(), 0).unwrap();
    let (published, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=20_000_u64 {
                inside.write_all_at(&n.to_le_bytes(), 0).unwrap();
                published.store(n, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
        let outside = File::open(s.path("n")).unwrap();
        let mut rounds = 0;
        while !done.load(Ordering::SeqCst) || rounds == 0 {
            let mut bytes = [0; 8];
            let least = published.load(Ordering::SeqCst);
            outside.read_exact_at(&mut bytes, 0).unwrap();
            assert!(u64::from_le_bytes(bytes) >= least);
            rounds += 1;
        }
    });
}

#[test]
fn unmounting_leaves_the_volume_open_whoever_uses_the_mount() {
    let Some(mut s) = Served::new() else { return };
    assert!(is_mounted(s.dir.path()));
    fs::write(s.path("f"), "kept").unwrap();
    let used = File::open(s.path("f")).unwrap();
    s.mount.take().unwrap().unmount().unwrap();
    assert!(!is_mounted(s.dir.path()));
    assert!(used.read_at(&mut [0], 0).is_err());
    assert_eq!(s.volume.fs().read("f").unwrap(), b"kept");
    // It can be mounted again.
    s.mount = Some(serve_mount(&s.volume, s.dir.path()).unwrap());
    assert_eq!(fs::read_to_string(s.path("f")).unwrap(), "kept");
    s.mount = None;
    assert!(!is_mounted(s.dir.path()));
    s.volume.close().unwrap();
}
