//! What the way requests come could break: who falls back to what, and that nobody hangs when the
//! mount ends under load.

use crate::common::*;
use crate::transport::{Switch, can_mount};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

on_each_transport! {
    many_seek_in_what_is_not_written_back_and_none_waits_for_the_other,
    more_wait_for_the_device_than_threads_serve,
    whoever_uses_a_mount_that_ends_gets_an_error_and_nobody_hangs,
}

#[test]
fn with_the_kernels_switch_off_auto_does_without_and_on_says_what_to_do() {
    if !can_mount() {
        return;
    }
    let Some(_switch) = Switch::set(false) else { return };
    let mut m = Mount::new(&[]);
    m.umount();
    let mount = |how: &str| lanefs_in(m.work.path(), &["mount", "-o", how, "v.lane", "mnt"]);
    mount("io_uring=on").fails(1, &["echo Y > /sys/module/fuse/parameters/enable_uring", "io_uring=auto"]);
    assert_eq!(mount_line(&m.dir), None);
    mount("io_uring=auto").ok();
    assert!(!m.has_rings());
    std::fs::write(m.path("f"), "x").unwrap();
    m.umount();
}

#[test]
fn idle_processors_poll_while_calls_come_thick() {
    if !can_mount() {
        return;
    }
    let mut m = Mount::new(&[]);
    let mut anew = |how: &str| {
        m.umount();
        let run = lanefs_in(m.work.path(), &["mount", "-o", how, "v.lane", "mnt"]);
        if run.code == 0 { Ok(run.out) } else { Err(run.err) }
    };
    let said = "idle processors poll";
    assert!(!anew("idle=halt").unwrap().contains(said));
    match anew("idle=poll") {
        Ok(out) => assert!(out.contains(said), "{out}"),
        // A machine may have no driver that could do so.
        Err(err) => return assert!(err.contains("idle=auto"), "{err}"),
    }
    let begun = Instant::now();
    let mut latency = [1; 4];
    for n in 0.. {
        std::fs::write(m.path(&n.to_string()), "").unwrap();
        File::open("/dev/cpu_dma_latency").unwrap().read_exact_at(&mut latency, 0).unwrap();
        if latency == [0; 4] {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody asks for that");
    }
    m.umount();
}

/// Linux loses a part of what is written by a ring where the server takes a part of it.
#[test]
fn an_image_on_a_fuse_mount_is_written_without_rings() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    let on_mount = lanefs_store::device::FileDevice::create(m.path("inner.lane"), 32 << 20).unwrap();
    assert!(!on_mount.uses_io_uring());
    drop(on_mount);
    lanefs_in(&m.dir, &["mkfs", "--force", "inner.lane"]).ok();
    lanefs_in(&m.dir, &["mkdir", "inner.lane:/d"]).ok();
    lanefs_in(&m.dir, &["fsck", "inner.lane"]).ok();
}

/// Has a command run where making a ring is forbidden, as in many containers.
fn forbid_rings(command: &mut Command) {
    let filter = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the number of the call
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let set = move || {
        let all = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: both calls are allowed after a fork; the kernel copies the program, which lives
        // until the call returns.
        let r = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const all)
        };
        if r == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: `set` makes two system calls and allocates nothing.
    unsafe { command.pre_exec(set) };
}

#[test]
fn where_rings_are_forbidden_auto_does_without_and_on_says_why() {
    if !can_mount() {
        return;
    }
    let mut m = Mount::new(&[]);
    m.umount();
    let mount = |how: &str| {
        let mut command = Command::new(LANEFS);
        command.args(["mount", "-o", how, "v.lane", "mnt"]).current_dir(m.work.path());
        forbid_rings(&mut command);
        run_command(&mut command)
    };
    mount("io_uring=on").fails(1, &["may not use io_uring", "io_uring_disabled", "io_uring=auto"]);
    assert_eq!(mount_line(&m.dir), None);
    mount("io_uring=auto").ok();
    assert!(!m.has_rings());
    std::fs::write(m.path("f"), "x").unwrap();
    m.umount();
    m.fsck();
}

/// Runs `client` as so many threads; if they are not done in time, the mount is ended, so that they
/// end, and the test fails.
fn in_time(m: &Mount, clients: usize, client: impl Fn(usize) + Sync) {
    let server = m.server();
    let (done, finished) = channel();
    std::thread::scope(|s| {
        for n in 0..clients {
            let (done, client) = (done.clone(), &client);
            s.spawn(move || {
                client(n);
                let _ = done.send(());
            });
        }
        drop(done);
        let end = Instant::now() + Duration::from_secs(60);
        let mut left = clients;
        while left > 0 {
            match finished.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(()) => left -= 1,
                // A client that panicked says so itself when the scope ends.
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    // First the connection is cut: a server that waits for its own mount cannot be
                    // killed.
                    let _ = rustix::mount::unmount(&m.dir, rustix::mount::UnmountFlags::FORCE);
                    // SAFETY: the process that serves this test's own mount.
                    unsafe { libc::kill(server, libc::SIGKILL) };
                    panic!("{left} clients hang");
                }
            }
        }
    });
}

/// Keeps this thread on the first processor: all it asks of a mount comes to one queue.
fn stay_on_one_processor() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn many_seek_in_what_is_not_written_back_and_none_waits_for_the_other() {
    let m = Mount::new(&[]);
    in_time(&m, 24, |n| {
        stay_on_one_processor();
        let file = File::create_new(m.path(&format!("f{n}"))).unwrap();
        for round in 0..20 {
            let at = (round + 1) << 16;
            file.write_all_at(&[1; 4096], at).unwrap();
            let found = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at - 4096)).unwrap();
            assert_eq!(found, at);
        }
    });
}

fn more_wait_for_the_device_than_threads_serve() {
    let mut m = Mount::new(&[]);
    in_time(&m, 24, |n| {
        stay_on_one_processor();
        let file = File::create_new(m.path(&format!("f{n}"))).unwrap();
        for round in 0..5 {
            file.write_all_at(&[n as u8; 5000], round * 5000).unwrap();
            file.sync_all().unwrap();
        }
    });
    m.umount();
    m.fsck();
}

/// Works in the mount until it answers no more. By a descriptor of its root: its path leads
/// elsewhere when it is gone.
fn work(root: &File, n: usize, done: &AtomicUsize) {
    use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
    for round in 0.. {
        let name = format!("f{n}.{}", round % 10);
        let step = || -> std::io::Result<()> {
            let file = File::from(openat(root, &name, OFlags::CREATE | OFlags::RDWR, Mode::from(0o600))?);
            file.write_all_at(&[n as u8; 20_000], round % 7 * 4096)?;
            if round % 3 == 0 {
                file.sync_data()?;
            }
            file.read_exact_at(&mut [0; 100], round % 7 * 4096)?;
            drop(file);
            statat(root, &name, AtFlags::empty())?;
            Ok(())
        };
        if step().is_err() {
            return;
        }
        done.fetch_add(1, SeqCst);
    }
}

fn whoever_uses_a_mount_that_ends_gets_an_error_and_nobody_hangs() {
    let mut m = Mount::new(&[]);
    for how in ["terminate", "kill", "abort"] {
        let server = m.server();
        let connection = connection(&m.dir);
        let done = AtomicUsize::new(0);
        let root = File::open(&m.dir).unwrap();
        in_time(&m, 5, |n| {
            if n < 4 {
                return work(&root, n, &done);
            }
            while done.load(SeqCst) < 50 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // SAFETY: the process that serves this test's own mount.
            let signal = |s| assert_eq!(unsafe { libc::kill(server, s) }, 0);
            match how {
                "terminate" => signal(libc::SIGTERM),
                "kill" => signal(libc::SIGKILL),
                _ => {
                    let knob = format!("/sys/fs/fuse/connections/{connection}/abort");
                    if let Err(e) = std::fs::write(&knob, "1") {
                        println!("{knob}: {e}; killed instead");
                        signal(libc::SIGKILL);
                    }
                }
            }
        });
        drop(root);
        let start = Instant::now();
        while is_there(server) {
            assert!(start.elapsed() < Duration::from_secs(60), "{how}: the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        if mount_line(&m.dir).is_some() {
            // Another test's child may have our descriptors until it runs its program.
            lanefs_in(m.work.path(), &["umount", "--lazy", "mnt"]).ok();
        }
        m.fsck();
        m.mount(&[]);
    }
}

/// Whether a process has not ended. One that nobody has waited for has one thread left, and that is
/// dead.
pub fn is_there(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let dead = stat.rsplit(") ").next().is_some_and(|s| s.starts_with('Z'));
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !dead || threads > 1
}

/// The number of a mount's connection.
pub fn connection(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    // As the kernel itself writes the two numbers in one.
    let device = std::fs::metadata(dir).unwrap().dev();
    u64::from(libc::major(device)) << 20 | u64::from(libc::minor(device))
}

#[test]
fn the_option_is_read() {
    let dir = tempfile::tempdir().unwrap();
    lanefs_in(dir.path(), &["mount", "-o", "io_uring=maybe", "v.lane", "."]).fails(1, &["io_uring=maybe"]);
}
