//! A mount of a sparse image on a small ext4 that others fill: what is written waits or is refused,
//! nothing that was synced is lost, and when there is space again the mount goes on.

use crate::common::*;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No wait of a test is longer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of each small file.
const SMALL: usize = 40_000;

/// Makes the image `host/v.lane` in a directory, on an ext4 in a file, which is mounted at `host`.
pub fn make_host(work: &Path) {
    let (disk, host) = (work.join("disk"), work.join("host"));
    std::fs::create_dir(&host).unwrap();
    File::create(&disk).unwrap().set_len(96 << 20).unwrap();
    run_command(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&disk)).ok();
    run_command(Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&host)).ok();
    lanefs_in(work, &["mkfs", "--size", "256M", "host/v.lane"]).ok();
}

/// Takes all space of a host that is left.
pub fn fill(host: &Path) {
    let mut n = 0;
    for len in [16 << 20, 1 << 20, 64 << 10, 4 << 10] {
        loop {
            n += 1;
            let file = File::create(host.join(format!("filler{n}"))).unwrap();
            let flags = rustix::fs::FallocateFlags::empty();
            if rustix::fs::fallocate(&file, flags, 0, len).is_err() {
                break;
            }
        }
    }
}

pub fn remove_fillers(host: &Path) {
    for entry in std::fs::read_dir(host).unwrap().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"filler") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// A volume on an ext4 in a file, mounted; nothing of it outlives the test.
struct OnSmallHost {
    work: TempDir,
    server: Option<i32>,
    /// The number of the mount's connection, by which that is cut.
    connection: u64,
}

impl OnSmallHost {
    fn new() -> OnSmallHost {
        let work = tempfile::tempdir().expect("tempdir");
        let it = OnSmallHost { work, server: None, connection: 0 };
        std::fs::create_dir(it.path("mnt")).unwrap();
        make_host(it.work.path());
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn host(&self) -> PathBuf {
        self.path("host")
    }

    fn mount(&mut self) {
        let how = format!("{},log=log,commit=1", transport().option());
        let mount = || lanefs_in(self.work.path(), &["mount", "-o", &how, "host/v.lane", "mnt"]);
        let mut run = mount();
        // Threads of a server that was killed may hold the image for a moment longer.
        until("the image is free", || {
            if run.err.contains("in use") {
                run = mount();
            }
            !run.err.contains("in use")
        });
        run.ok();
        let dir = File::open(self.path("mnt")).unwrap();
        self.connection = crate::transports::connection(&self.path("mnt"));
        let mut pid = 0u32;
        // SAFETY: the ioctl writes one u32 through a pointer valid for that.
        let r = unsafe { libc::ioctl(dir.as_raw_fd(), 0x8004_4c01, &raw mut pid) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        self.server = Some(pid as i32);
    }

    fn umount(&mut self) {
        umount_when_free(self.work.path()).ok();
        self.server = None;
    }

    /// Takes all space of the host that is left.
    fn fill(&self) {
        fill(&self.host());
    }

    fn remove_fillers(&self) {
        remove_fillers(&self.host());
    }

    /// Runs a command on the mount, which may not take for ever.
    fn run(&self, command: &str) -> Run {
        let line = ["-s", "KILL", "50", "sh", "-c", command];
        run_command(Command::new("timeout").args(line).current_dir(self.work.path()))
    }

    fn stat(&self) -> String {
        self.run(&format!("{LANEFS} stat mnt")).ok().out
    }

    fn is_waiting(&self) -> bool {
        self.stat().contains("waiting for space on the host")
    }

    fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut f) = File::open(self.path("log")) {
            f.read_to_string(&mut text).unwrap();
        }
        text
    }

    /// A mount that waits for its host, with a file `before` that is synced and 24 of a mebibyte
    /// that are not written yet, which is more than is kept for this.
    fn waiting() -> (OnSmallHost, Writer) {
        let mut m = OnSmallHost::new();
        m.mount();
        m.write_synced("before", &content(77));
        for n in 0..24 {
            std::fs::write(m.path(&format!("mnt/unsynced{n}")), vec![n; 1 << 20]).unwrap();
        }
        m.fill();
        let writer = m.start_writing();
        until("it waits", || m.is_waiting());
        (m, writer)
    }

    /// The kernel's files about the mount's connection.
    fn control(&self) -> PathBuf {
        let all = Path::new("/sys/fs/fuse/connections");
        let control = all.join(self.connection.to_string());
        if !control.exists() {
            let _ = Command::new("mount").args(["-t", "fusectl", "none"]).arg(all).output();
        }
        control
    }

    /// Ends the server at once, and cuts the connection, so that no program waits for it.
    fn kill(&mut self) {
        let Some(pid) = self.server.take() else { return };
        // SAFETY: it only sends a signal, to the server that this test has started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let _ = std::fs::write(self.control().join("abort"), "1");
        let _ = Command::new("umount").arg("-l").arg(self.path("mnt")).output();
        until("the server is gone", || has_ended(pid));
    }

    /// Makes a file and syncs it.
    fn write_synced(&self, name: &str, bytes: &[u8]) {
        let mut f = File::create(self.path("mnt").join(name)).unwrap();
        f.write_all(bytes).unwrap();
        f.sync_all().unwrap();
    }

    /// Starts to write small files, each of which is synced, until one is refused or it is told to
    /// stop.
    fn start_writing(&self) -> Writer {
        let (dir, synced) = (self.path("mnt"), Arc::new(Mutex::new(Vec::new())));
        let (done, stop) = (synced.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let mount = std::fs::metadata(&dir).unwrap().dev();
        let write = move || {
            for n in 0.. {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let name = format!("small{n}");
                let made = OpenOptions::new().create_new(true).write(true).open(dir.join(&name));
                // Where the mount is gone it lies in the directory below.
                if made.as_ref().is_ok_and(|f| f.metadata().is_ok_and(|m| m.dev() != mount)) {
                    return Err(libc::ENOTCONN);
                }
                made.and_then(|mut f| {
                    f.write_all(&content(n))?;
                    f.sync_all()
                })
                .map_err(|e| e.raw_os_error().unwrap_or(0))?;
                done.lock().unwrap().push(n);
            }
            Ok(())
        };
        Writer { synced, stop, thread: std::thread::spawn(write) }
    }

    /// Checks that all that was synced is there.
    fn check(&self, synced: &[usize]) {
        for n in synced {
            let found = std::fs::read(self.path(&format!("mnt/small{n}"))).unwrap();
            assert!(found == content(*n), "small{n} has {} bytes, or others", found.len());
        }
    }
}

impl Drop for OnSmallHost {
    fn drop(&mut self) {
        self.kill();
        let _ = Command::new("umount").arg("-l").arg(self.path("mnt")).output();
        // The loop device goes with the mount.
        let _ = Command::new("umount").arg("-l").arg(self.host()).output();
    }
}

/// A thread that writes, and the numbers of the files that it has synced.
struct Writer {
    synced: Arc<Mutex<Vec<usize>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), i32>>,
}

impl Writer {
    /// Has it stop, and waits for that; returns what it has synced, and the error that ended it
    /// before.
    fn end(self) -> (Vec<usize>, Option<i32>) {
        self.stop.store(true, Ordering::SeqCst);
        until("the writer ends", || self.thread.is_finished());
        let error = self.thread.join().unwrap().err();
        (self.synced.lock().unwrap().clone(), error)
    }
}

fn content(n: usize) -> Vec<u8> {
    (0..SMALL / 8).flat_map(|i| (i as u64 * 77 + n as u64).to_le_bytes()).collect()
}

/// Waits until it is so: what is waited for happens on its own, however loaded the machine is.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "{what}: never");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether a process has ended; nobody may have asked for its end yet.
fn has_ended(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

/// The first refused write made the volume read-only for good.
#[test]
fn a_mount_goes_on_when_there_is_space_on_the_host_again() {
    let mut m = OnSmallHost::new();
    m.mount();
    m.write_synced("before", &content(77));
    m.fill();
    let writer = m.start_writing();
    until("it waits", || m.is_waiting());
    // Who reads goes on, who needs space is told so, and who removes may.
    m.run("cat mnt/before > read").ok();
    assert!(std::fs::read(m.path("read")).unwrap() == content(77));
    let refused = m.run("mkdir mnt/dir");
    assert!(refused.err.contains("No space left on device"), "{refused:?}");
    assert!(m.stat().contains(&format!("{} is full", m.host().display())), "{}", m.stat());
    m.remove_fillers();
    until("it goes on", || !m.is_waiting());
    let (synced, error) = writer.end();
    assert!(error.is_none_or(|e| e == libc::ENOSPC), "{error:?}");
    m.run("mkdir mnt/dir && dd if=/dev/zero of=mnt/dir/after bs=1M count=2 conv=fsync").ok();
    let log = m.log();
    assert!(
        log.contains("waiting for space on the host") && log.contains("space on the host again"),
        "{log}"
    );
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
    m.mount();
    m.check(&synced);
    assert_eq!(std::fs::metadata(m.path("mnt/dir/after")).unwrap().len(), 2 << 20);
    m.umount();
}

/// What was removed in the volume was free there, and nowhere else.
#[test]
fn what_is_removed_in_the_volume_makes_space_on_the_host() {
    let mut m = OnSmallHost::new();
    m.mount();
    m.write_synced("large", &vec![5; 32 << 20]);
    m.fill();
    let writer = m.start_writing();
    until("it waits", || m.is_waiting());
    m.run("rm mnt/large").ok();
    until("it goes on", || !m.is_waiting());
    m.run("dd if=/dev/zero of=mnt/after bs=1M count=2 conv=fsync").ok();
    let (synced, error) = writer.end();
    assert!(error.is_none_or(|e| e == libc::ENOSPC), "{error:?}");
    m.kill();
    m.remove_fillers();
    m.mount();
    m.check(&synced);
    assert_eq!(std::fs::metadata(m.path("mnt/after")).unwrap().len(), 2 << 20);
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
}

#[test]
fn a_server_that_is_killed_while_it_waits_loses_nothing_that_was_synced() {
    let mut m = OnSmallHost::new();
    m.mount();
    m.write_synced("before", &content(77));
    m.fill();
    let writer = m.start_writing();
    until("it waits", || m.is_waiting());
    m.kill();
    let (synced, error) = writer.end();
    let error = error.expect("it is told of one");
    assert!([libc::ENOSPC, libc::ENOTCONN, libc::ECONNABORTED, libc::EIO].contains(&error), "errno {error}");
    m.remove_fillers();
    m.mount();
    m.check(&synced);
    assert!(std::fs::read(m.path("mnt/before")).unwrap() == content(77));
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
}

/// The fsync waited for ever, with the kernel's lock of the file. Whoever removed it waited for
/// that with the directory's, and whoever wanted names for him.
#[test]
fn what_stands_beside_a_waiting_fsync_is_removed_and_listed() {
    let mut m = OnSmallHost::new();
    m.mount();
    m.write_synced("large", &vec![5; 24 << 20]);
    let waits = File::create(m.path("mnt/waits")).unwrap();
    (&waits).write_all(&vec![6; 24 << 20]).unwrap();
    std::fs::write(m.path("mnt/other"), vec![7; 24 << 20]).unwrap();
    m.fill();
    let fsync = std::thread::spawn(move || waits.sync_all());
    until("it waits", || m.is_waiting());
    let (out, cut) = (m.run("ls mnt"), m.run("truncate -s 1M mnt/other && cat mnt/other | wc -c"));
    assert!(out.ok().out.contains("waits") && cut.ok().out.trim() == "1048576");
    m.run("rm mnt/waits && ls mnt").ok();
    let error = {
        until("the fsync ends", || fsync.is_finished());
        fsync.join().unwrap().err().map(|e| e.raw_os_error())
    };
    assert!(error.is_none_or(|e| e == Some(libc::ENOSPC)), "{error:?}");
    m.run("rm mnt/large").ok();
    until("it goes on", || !m.is_waiting());
    m.run("dd if=/dev/zero of=mnt/after bs=1M count=2 conv=fsync && sync mnt/other").ok();
    m.kill();
    m.remove_fillers();
    m.mount();
    assert_eq!(std::fs::metadata(m.path("mnt/after")).unwrap().len(), 2 << 20);
    assert!(std::fs::read(m.path("mnt/other")).unwrap() == vec![7; 1 << 20]);
    assert!(!m.path("mnt/waits").exists() && !m.path("mnt/large").exists());
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
}

/// It waited for ever.
#[test]
fn an_fsync_of_a_mount_is_told_that_the_host_is_full_and_succeeds_later() {
    let mut m = OnSmallHost::new();
    m.mount();
    let mut f = File::create(m.path("mnt/f")).unwrap();
    f.write_all(&vec![6; 24 << 20]).unwrap();
    m.fill();
    let f = Arc::new(f);
    let (one, dir) = (f.clone(), File::open(m.path("mnt")).unwrap());
    let fsync = std::thread::spawn(move || (one.sync_all(), dir.sync_all()));
    until("the fsyncs end", || fsync.is_finished());
    let (file, dir) = fsync.join().unwrap();
    assert_eq!(file.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(dir.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    m.remove_fillers();
    until("it goes on", || !m.is_waiting());
    f.sync_all().unwrap();
    f.sync_all().unwrap();
    m.kill();
    m.mount();
    assert!(std::fs::read(m.path("mnt/f")).unwrap() == vec![6; 24 << 20]);
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
}

/// A volume that cannot be closed says why, and can be given up.
#[test]
fn an_unmount_waits_and_says_so_until_it_is_given_up() {
    let (mut m, writer) = OnSmallHost::waiting();
    let pid = m.server.unwrap();
    let terminate = || {
        if !has_ended(pid) {
            // SAFETY: it only sends a signal, to the server that this test has started.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    };
    terminate();
    until("it is told", || m.log().contains("being closed"));
    assert!(!has_ended(pid), "it has given up by itself");
    until("it is given up", || {
        terminate();
        has_ended(pid)
    });
    let (synced, _) = writer.end();
    m.server = None;
    assert_eq!(mount_line(&m.path("mnt")), None);
    m.remove_fillers();
    m.mount();
    m.check(&synced);
    assert!(std::fs::read(m.path("mnt/before")).unwrap() == content(77));
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
}

/// It was unmounted without a word, as if it had been closed.
#[test]
fn an_umount_fails_when_the_host_cannot_be_read_any_more() {
    let mut m = OnSmallHost::new();
    m.mount();
    std::fs::write(m.path("mnt/f"), content(1)).unwrap();
    let host = File::open(m.host()).unwrap();
    let mut how = 2u32;
    // SAFETY: the ioctl reads at most one u32 through a pointer valid for that: ext4 is shut down
    // as by a crash.
    let r = unsafe { libc::ioctl(host.as_raw_fd(), 0x8004_587d, &raw mut how) };
    assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
    drop(host);
    umount_when_free(m.work.path()).fails(1, &["v.lane", "cannot be read", "log"]);
    m.server = None;
    assert_eq!(mount_line(&m.path("mnt")), None);
}

/// The kernel waited for the answer to its last request as long as the server did for its host: in
/// an unmount that nobody could end, and every sync(2) of the machine beside it.
#[test]
fn an_unmount_lets_the_kernel_go_while_the_server_waits_for_the_host() {
    let (mut m, writer) = OnSmallHost::waiting();
    let (synced, _) = writer.end();
    let connection = m.control();
    assert!(connection.exists());
    let told = m.path("told");
    let mut umount = Command::new(LANEFS);
    umount.args(["umount", "mnt"]).current_dir(m.work.path()).stderr(File::create(&told).unwrap());
    let mut umount = umount.spawn().unwrap();
    until("it is told", || std::fs::read_to_string(&told).unwrap().contains("still being closed"));
    until("the kernel has let go of the mount", || !connection.exists());
    assert!(umount.try_wait().unwrap().is_none(), "it does not wait for what is not written");
    // Whoever wants the volume then waits for it, and says so.
    let told_again = m.path("told again");
    let mut again = Command::new(LANEFS);
    again.args(["ls", "host/v.lane:/"]).current_dir(m.work.path());
    again.stdout(Stdio::null()).stderr(File::create(&told_again).unwrap());
    let mut again = again.spawn().unwrap();
    let told_again = || std::fs::read_to_string(&told_again).unwrap();
    until("it is told again", || told_again().lines().count() == 2);
    assert!(told_again().contains("which closes the volume"), "{}", told_again());
    again.kill().unwrap();
    again.wait().unwrap();
    m.remove_fillers();
    assert!(umount.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&told).unwrap().lines().count(), 1);
    m.server = None;
    m.mount();
    m.check(&synced);
    assert!(std::fs::read(m.path("mnt/before")).unwrap() == content(77));
    let whole = |n: &u8| std::fs::read(m.path(&format!("mnt/unsynced{n}"))).unwrap() == [*n; 1 << 20];
    assert!((0..24).all(|n| whole(&n)), "what was unmounted is not whole");
    m.umount();
    lanefs_in(m.work.path(), &["fsck", "host/v.lane"]).ok();
}

/// It left what it had copied, and with it a host without space, which the mount waited for.
#[test]
fn a_replacement_that_fails_for_want_of_space_leaves_nothing() {
    let mut it = OnSmallHost::new();
    it.mount();
    std::fs::write(it.path("mnt/large"), vec![7; 24 << 20]).unwrap();
    File::open(it.path("mnt/large")).unwrap().sync_all().unwrap();
    // Less is left than is to be copied.
    let filler = File::create(it.host().join("filler")).unwrap();
    let free = rustix::fs::statvfs(it.host()).unwrap();
    let bytes = free.f_bavail * free.f_frsize;
    assert!(bytes > 30 << 20, "{bytes} bytes are free on the host");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&filler, flags, 0, bytes - (12 << 20)).unwrap();
    let args = ["device", "replace", "mnt", "host/v.lane", "host/new.lane", "--size", "256M"];
    for _ in 0..2 {
        let run = lanefs_in(it.work.path(), &args);
        assert!(run.code != 0 && run.err.contains("No space left on device"), "{run:?}");
        assert!(!it.host().join("new.lane").exists(), "{run:?}");
        // The mount has what the host had before.
        std::fs::write(it.path("mnt/more"), vec![8; 1 << 20]).unwrap();
        File::open(it.path("mnt/more")).unwrap().sync_all().unwrap();
    }
    drop(filler);
    std::fs::remove_file(it.host().join("filler")).unwrap();
    lanefs_in(it.work.path(), &args).ok();
    assert_eq!(std::fs::read(it.path("mnt/large")).unwrap(), vec![7; 24 << 20]);
    it.umount();
    lanefs_in(it.work.path(), &["fsck", "host/new.lane"]).ok();
}
