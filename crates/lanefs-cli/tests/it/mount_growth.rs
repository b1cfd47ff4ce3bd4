//! Files that grow through the kernel's cache, after a crash of the server: found as long as their
//! bytes are (SEMANTICS F9).

use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

on_each_transport! {
    a_file_that_grows_is_found_without_holes,
    a_piece_that_is_late_is_not_taken_for_a_hole,
    a_hole_that_was_left_on_purpose_is_found_with_what_lies_behind,
}

const FILES: usize = 3;

/// Appends in pieces of several sizes until the server is gone, and cuts what has become long. No
/// byte is zero.
fn grow(path: &std::path::Path, n: usize, over: &AtomicBool) {
    let Ok(mut f) = OpenOptions::new().create(true).append(true).open(path) else { return };
    let piece: Vec<u8> = (0..700_000usize).map(|i| (i % 255) as u8 + 1).collect();
    let mut turn = n;
    while !over.load(Relaxed) {
        turn += 1;
        let len = [700_000, 5_000, 333_333, 131_072][turn % 4];
        // Not so much that the volume fills; some are cut often.
        let full = f.metadata().map_or(true, |m| m.len() > [24, 3, 8][n] << 20);
        if full && f.set_len(0).is_err() || f.write_all(&piece[..len]).is_err() {
            return;
        }
    }
}

/// Stops a thread of a server of this test's mount; false if it has ended.
fn stop(thread: i32) -> bool {
    let mut status = 0;
    // SAFETY: these calls take no pointer but that to `status`, which waitpid writes; a thread that
    // has ended is refused.
    unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0) == 0
            && libc::waitpid(thread, &raw mut status, libc::__WALL) == thread
    }
}

/// Holds threads of a server up, some at a time and each for a while, as a busy machine does, until
/// it is over. Returns how many.
fn hold_up(server: i32, over: &AtomicBool) -> usize {
    let (mut held, mut turn) = (0, 0);
    while !over.load(Relaxed)
        && let Ok(tasks) = std::fs::read_dir(format!("/proc/{server}/task"))
    {
        turn += 1;
        let threads = tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse::<i32>().ok());
        let stopped: Vec<i32> = threads.filter(|t| t % 3 == turn % 3 && stop(*t)).collect();
        held += stopped.len();
        std::thread::sleep(Duration::from_millis(20));
        for thread in stopped {
            // SAFETY: it takes no pointer.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    held
}

/// The kernel hands a growing file over in several requests at a time, which end in any order, and
/// a sync or a commit comes in between.
fn a_file_that_grows_is_found_without_holes() {
    files_that_grow_are_found_without_holes(6, false);
}

/// So it is when the threads that serve the requests are held up.
fn a_piece_that_is_late_is_not_taken_for_a_hole() {
    files_that_grow_are_found_without_holes(8, true);
}

fn files_that_grow_are_found_without_holes(turns: u64, held_up: bool) {
    let mut m = Mount::new(&[]);
    for turn in 0..turns {
        let over = AtomicBool::new(false);
        let server = Pid::from_raw(m.server_of_mount() as i32).unwrap();
        let (dir, path) = (m.dir.clone(), |n: usize| m.path(&format!("log{n}")));
        std::thread::scope(|s| {
            let (over, path, dir) = (&over, &path, &dir);
            if held_up {
                s.spawn(move || {
                    let held = hold_up(server.as_raw_nonzero().get(), over);
                    assert!(held > 0, "no thread of the server was held up");
                });
            }
            for n in 0..FILES {
                s.spawn(move || grow(&path(n), n, over));
            }
            s.spawn(move || {
                let mut n = 0;
                while !over.load(Relaxed) {
                    n += 1;
                    match n % 4 {
                        // Of all files, and of names alone.
                        3 => drop(File::open(dir).map(rustix::fs::syncfs)),
                        2 => drop(File::create(dir.join("other")).and_then(|f| f.sync_all())),
                        _ => drop(File::open(path(n % FILES)).and_then(|f| f.sync_data())),
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(200 + 70 * turn));
            kill_process(server, Signal::KILL).unwrap();
            over.store(true, Relaxed);
        });
        m.umount();
        m.mount(&[]);
        for n in 0..FILES {
            let bytes = match std::fs::read(m.path(&format!("log{n}"))) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                read => read.unwrap(),
            };
            let zero = bytes.iter().position(|b| *b == 0);
            let zeros = zero.map(|at| bytes[at..].iter().take_while(|b| **b == 0).count());
            assert_eq!(zero, None, "turn {turn}: {zeros:?} zeros in {} bytes of log{n}", bytes.len());
        }
    }
    m.umount();
    m.fsck();
}

fn a_hole_that_was_left_on_purpose_is_found_with_what_lies_behind() {
    let mut m = Mount::new(&[]);
    let expected = |at: usize| [vec![0; at], vec![7; 10_000]].concat();
    for n in 0..3usize {
        let f = File::create(m.path(&format!("f{n}"))).unwrap();
        f.write_all_at(&[7; 10_000], 300_000 + 50_000 * n as u64).unwrap();
        match n {
            0 => f.sync_all().unwrap(),
            1 => f.sync_data().unwrap(),
            _ => {
                // As programs do that replace a file, here one without an fsync.
                drop(f);
                std::fs::write(m.path("over"), "old").unwrap();
                std::fs::rename(m.path("f2"), m.path("over")).unwrap();
                File::open(&m.dir).unwrap().sync_all().unwrap();
            }
        }
    }
    kill_process(Pid::from_raw(m.server_of_mount() as i32).unwrap(), Signal::KILL).unwrap();
    m.umount();
    m.mount(&[]);
    for (n, name) in ["f0", "f1", "over"].into_iter().enumerate() {
        assert!(std::fs::read(m.path(name)).unwrap() == expected(300_000 + 50_000 * n), "{name}");
    }
    // A clean end makes all durable.
    let f = File::create(m.path("last")).unwrap();
    f.write_all_at(&[7; 10_000], 300_000).unwrap();
    drop(f);
    m.remount();
    assert!(std::fs::read(m.path("last")).unwrap() == expected(300_000));
    m.umount();
    m.fsck();
}
