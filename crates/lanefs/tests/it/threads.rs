//! Many threads on one volume.

use crate::{ls, reopen, volume};
use lanefs::{Cred, Fs, MountOptions, OpenOptions, Volume};
use lanefs_sync::random::Rng;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

#[test]
fn threads_in_one_directory_lose_nothing() {
    let (v, dev) = volume(256);
    let fs = v.as_user(Cred::root());
    fs.mkdir("/shared", 0o755).unwrap();
    std::thread::scope(|s| {
        for t in 0..4 {
            let fs = fs.clone();
            s.spawn(move || {
                for i in 0..2000 {
                    let p = format!("/shared/{t}-{i}");
                    fs.write(&*p, p.as_bytes()).unwrap();
                    if i % 4 == 0 {
                        fs.rename(&*p, &*format!("/shared/r{t}-{i}")).unwrap();
                    }
                    if i % 4 == 1 {
                        fs.unlink(&*p).unwrap();
                    }
                    if i % 100 == 0 {
                        fs.open(&*format!("/shared/r{t}-{i}"), &OpenOptions::new())
                            .unwrap()
                            .sync_all()
                            .unwrap();
                    }
                }
            });
        }
        let v = v.clone();
        s.spawn(move || {
            for _ in 0..20 {
                v.tick().unwrap();
            }
        });
    });
    assert_eq!(ls(&fs, "/shared").len(), 4 * 1500);
    drop(v);
    let fs = reopen(fs, &dev);
    let names = ls(&fs, "/shared");
    assert_eq!(names.len(), 4 * 1500);
    for n in names.iter().step_by(7) {
        let was = n.strip_prefix('r').unwrap_or(n);
        assert_eq!(fs.read(&*format!("/shared/{n}")).unwrap(), format!("/shared/{was}").as_bytes());
    }
}

#[test]
fn renames_of_directories_across_threads_never_make_a_cycle() {
    let (v, dev) = volume(64);
    let fs = v.as_user(Cred::root());
    for i in 0..6 {
        fs.mkdir(&*format!("/d{i}"), 0o755).unwrap();
    }
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let fs = fs.clone();
            s.spawn(move || {
                let mut rng = Rng::new(t + 1);
                for _ in 0..3000 {
                    let x = rng.bits();
                    let (a, b) = ((x >> 33) % 6, (x >> 43) % 6);
                    let places = ["", "/d0", "/d1", "/d2", "/d3", "/d4", "/d5", "/d1/d2", "/d3/d4"];
                    let (p, q) = ((x >> 20) as usize % 9, (x >> 27) as usize % 9);
                    let _ = fs.rename(&*format!("{}/d{a}", places[p]), &*format!("{}/d{b}", places[q]));
                }
            });
        }
    });
    // Every directory can be reached from the root, once: replaced ones are gone.
    let count = |fs: &lanefs::Fs| {
        let mut todo = vec![String::new()];
        let mut n = 0;
        while let Some(d) = todo.pop() {
            assert!(d.len() < 100, "a cycle: {d}");
            for name in ls(fs, if d.is_empty() { "/" } else { &d }) {
                n += 1;
                todo.push(format!("{d}/{name}"));
            }
        }
        n
    };
    let n = count(&fs);
    assert!((1..=6).contains(&n));
    drop(v);
    let fs = reopen(fs, &dev);
    assert_eq!(count(&fs), n);
}

#[test]
fn rmdir_and_create_never_leave_a_file_in_a_removed_directory() {
    let (v, _dev) = volume(64);
    let fs = v.as_user(Cred::root());
    let (made, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    for _ in 0..500 {
        fs.mkdir("/x", 0o755).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                if fs.write("/x/f", b"1").is_ok() {
                    made.fetch_add(1, SeqCst);
                }
            });
            s.spawn(|| {
                if fs.rmdir("/x").is_ok() {
                    lost.fetch_add(1, SeqCst);
                }
            });
        });
        match fs.read("/x/f") {
            Ok(c) => {
                assert_eq!(c, b"1");
                fs.unlink("/x/f").unwrap();
                fs.rmdir("/x").unwrap();
            }
            Err(_) => assert!(fs.stat("/x").is_err()),
        }
    }
    assert_eq!(made.load(SeqCst) + lost.load(SeqCst), 500);
}

#[test]
fn more_threads_than_lanes_work() {
    let (v, dev) = volume(64);
    v.close().unwrap();
    drop(v);
    let options = MountOptions { lanes: 2, ..crate::options() };
    let v = Volume::open_devices(vec![dev], &options).unwrap();
    let fs = v.as_user(Cred::root());
    std::thread::scope(|s| {
        for t in 0..8 {
            let fs = fs.clone();
            s.spawn(move || {
                for i in 0..200 {
                    let f = fs.create(&*format!("/{t}-{i}")).unwrap();
                    f.write_all_at(&[t; 100], 0).unwrap();
                    if i % 50 == 0 {
                        f.sync_all().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(ls(&fs, "/").len(), 1600);
}

#[test]
fn the_background_thread_does_the_work_and_a_drop_closes_cleanly() {
    let (v, dev) = volume(128);
    v.close().unwrap();
    drop(v);
    let options = MountOptions {
        background: true,
        commit_interval: std::time::Duration::from_millis(20),
        dirty_expire: std::time::Duration::from_millis(20),
        ..crate::options()
    };
    let v = Volume::open_devices(vec![dev.clone()], &options).unwrap();
    let fs = v.as_user(Cred::root());
    for i in 0..3000 {
        fs.write(&*format!("/{i}"), [i as u8; 600]).unwrap();
        if i % 2 == 0 {
            fs.unlink(&*format!("/{i}")).unwrap();
        }
    }
    drop(fs);
    drop(v);
    let v = Volume::open_devices(vec![dev], &crate::options()).unwrap();
    assert!(v.open_report().clean);
    let fs = v.as_user(Cred::root());
    assert_eq!(ls(&fs, "/").len(), 1500);
    assert_eq!(fs.read("/77").unwrap(), [77; 600]);
}

/// A stressor's ftruncate of a file that was open and had no name answered ESTALE now and then: the
/// reaper marked whatever had no name as freed, and took the mark back when it found the open
/// handle. In between the number led nowhere.
#[test]
fn an_open_file_without_a_name_is_never_stale() {
    let (fs, _dev) = crate::root(32);
    let file = fs.create("/f").unwrap();
    file.write_all_at(b"content", 0).unwrap();
    fs.unlink("/f").unwrap();
    let volume = fs.volume();
    let rounds = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=2000 {
                volume.tick().unwrap();
                rounds.store(n, Relaxed);
            }
        });
        let mut stale = 0;
        while rounds.load(Relaxed) < 2000 {
            stale += u64::from(volume.node_stat(file.ino()).is_err());
        }
        assert_eq!(stale, 0);
    });
}

#[test]
fn making_and_removing_for_ever_never_fills_the_volume() {
    // Every new inode holds a block back until a checkpoint. Whoever is refused makes room and
    // tries again, while others take the room and the background makes room too.
    for background in [false, true] {
        let (v, dev) = volume(16);
        v.close().unwrap();
        drop(v);
        let v = Volume::open_devices(vec![dev], &MountOptions { background, ..crate::options() }).unwrap();
        std::thread::scope(|s| {
            for t in 0..3 {
                let fs = v.as_user(Cred::root());
                s.spawn(move || {
                    for i in 0..12_000 {
                        let name = format!("/{t}-{}", i % 7);
                        fs.open(&*name, OpenOptions::new().write(true).create_new(true)).unwrap();
                        fs.unlink(&*name).unwrap();
                    }
                });
            }
        });
        v.close().unwrap();
    }
}

/// Has the other thread of [`beside`] end when it is dropped.
struct Ends<'a>(&'a AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, SeqCst);
    }
}

/// Calls `mover` with each round's directory for as long as `round` works in it, on another thread.
fn beside(
    prepare: impl Fn(&Fs, &str),
    mover: impl Fn(&Fs, &str) + Sync,
    round: impl Fn(&Fs, &str) -> Result<(), String>,
) {
    const ROUNDS: u64 = 1500;
    let (v, _dev) = volume(64);
    let fs = v.as_user(Cred::root());
    // Even while nothing goes on, odd within a round.
    let phase = AtomicU64::new(0);
    let moved = AtomicU64::new(0);
    let mut wrong = Vec::new();
    std::thread::scope(|s| {
        let other = fs.clone();
        let (phase, moved, mover) = (&phase, &moved, &mover);
        // Also where this thread panics: the scope waits for the other one.
        let _end = Ends(phase);
        let thread = s.spawn(move || {
            loop {
                match phase.load(SeqCst) {
                    u64::MAX => return,
                    p if p % 2 == 1 => {
                        mover(&other, &format!("/r{p}"));
                        moved.store(p, SeqCst);
                    }
                    p => {
                        moved.store(p, SeqCst);
                        std::thread::yield_now();
                    }
                }
            }
        });
        let wait = |p| {
            phase.store(p, SeqCst);
            while moved.load(SeqCst) != p {
                assert!(!thread.is_finished(), "the other thread has panicked");
                std::thread::yield_now();
            }
        };
        for i in 0..ROUNDS {
            let dir = format!("/r{}", 2 * i + 1);
            fs.mkdir(&*dir, 0o755).unwrap();
            prepare(&fs, &dir);
            wait(2 * i + 1);
            wrong.extend(round(&fs, &dir).err());
            wait(2 * i + 2);
        }
    });
    assert!(wrong.is_empty(), "{} of {ROUNDS} rounds: {}", wrong.len(), wrong[0]);
}

fn errno_of(r: lanefs::Result<()>) -> i32 {
    r.err().map_or(0, |e| e.errno())
}

/// Two files change places for ever. A rename of one over the other that looked at the first before
/// such a change, and at the second behind it, saw two names of one file, did nothing and told of
/// success.
#[test]
fn a_rename_over_another_file_is_done_while_both_change_places() {
    beside(
        |fs, d| ["a", "b"].iter().for_each(|n| drop(fs.create(&*format!("{d}/{n}")).unwrap())),
        |fs, d| {
            let _ = fs.rename2(&*format!("{d}/a"), &*format!("{d}/b"), libc::RENAME_EXCHANGE);
        },
        |fs, d| {
            fs.rename(&*format!("{d}/a"), &*format!("{d}/b")).map_err(|e| e.to_string())?;
            match fs.lstat(&*format!("{d}/a")) {
                Ok(_) => Err("both names are still there".into()),
                Err(_) => Ok(()),
            }
        },
    );
}

/// A file has one of two names at any moment: no call may find both.
#[test]
fn what_exists_is_not_told_of_two_names_of_which_there_is_one() {
    for link in [false, true] {
        beside(
            |fs, d| drop(fs.create(&*format!("{d}/a")).unwrap()),
            |fs, d| {
                let (a, b) = (format!("{d}/a"), format!("{d}/b"));
                let _ = fs.rename(&*a, &*b);
                let _ = fs.rename(&*b, &*a);
            },
            |fs, d| {
                for _ in 0..4 {
                    let (a, b) = (format!("{d}/a"), format!("{d}/b"));
                    let answer = match link {
                        false => fs.rename2(&*a, &*b, libc::RENAME_NOREPLACE),
                        true => fs.link(&*a, &*b),
                    };
                    match errno_of(answer) {
                        libc::ENOENT => {}
                        0 if !link => {}
                        // Both name it now.
                        0 => return Ok(()),
                        e => return Err(format!("link {link}: error {e}")),
                    }
                }
                Ok(())
            },
        );
    }
}

/// A directory is empty whenever it has its name.
#[test]
fn a_directory_that_is_empty_under_its_name_is_not_told_to_have_names() {
    beside(
        |fs, d| fs.mkdir(&*format!("{d}/a"), 0o755).unwrap(),
        |fs, d| {
            let (a, b, x) = (format!("{d}/a"), format!("{d}/b"), format!("{d}/b/x"));
            let _ = fs.rename(&*a, &*b);
            let _ = fs.mkdir(&*x, 0o755);
            let _ = fs.rmdir(&*x);
            let _ = fs.rename(&*b, &*a);
        },
        |fs, d| match errno_of(fs.rmdir(&*format!("{d}/a"))) {
            0 | libc::ENOENT => Ok(()),
            e => Err(format!("error {e}")),
        },
    );
}

/// A name that always names some file can always be linked, also while other files take its place.
#[test]
fn a_name_that_is_always_there_can_be_linked() {
    beside(
        |fs, d| drop(fs.create(&*format!("{d}/a")).unwrap()),
        |fs, d| {
            let (a, b) = (format!("{d}/a"), format!("{d}/b"));
            drop(fs.create(&*b).unwrap());
            fs.rename(&*b, &*a).unwrap();
        },
        |fs, d| match errno_of(fs.link(&*format!("{d}/a"), &*format!("{d}/c"))) {
            0 => Ok(()),
            e => Err(format!("error {e}")),
        },
    );
}

/// A directory on the way of a path that another thread remembers moves there and back.
#[test]
fn no_path_leads_through_a_directory_that_has_moved() {
    const MOVING: u64 = 0;
    let (v, _dev) = volume(16);
    let fs = v.as_user(Cred::root());
    for dir in ["/x", "/y", "/x/d", "/x/d/e"] {
        fs.mkdir(dir, 0o755).unwrap();
    }
    fs.write("/x/d/e/f", "1").unwrap();
    // 2n + 1: it lies in /x, 2n + 2: in /y, for the n-th time.
    let (place, over) = (AtomicU64::new(1), AtomicU64::new(0));
    std::thread::scope(|s| {
        let looks: Vec<_> = (0..2)
            .map(|_| {
                let (fs, place, over) = (fs.clone(), &place, &over);
                s.spawn(move || {
                    loop {
                        // Once more when nothing moves any more.
                        let is_last = over.load(SeqCst) == 1;
                        let before = place.load(SeqCst);
                        let there = ["/x/d/e/f", "/y/d/e/f"].map(|path| fs.stat(path).is_ok());
                        if before != MOVING && place.load(SeqCst) == before {
                            let in_x = before % 2 == 1;
                            assert_eq!(there, [in_x, !in_x], "at {before}");
                        }
                        if is_last {
                            return before;
                        }
                    }
                })
            })
            .collect();
        let moved: lanefs::Result<()> = (0..20_000).try_for_each(|n| {
            let (from, to) = if n % 2 == 0 { ("/x/d", "/y/d") } else { ("/y/d", "/x/d") };
            place.store(MOVING, SeqCst);
            fs.rename(from, to)?;
            place.store(n + 2, SeqCst);
            if n % 16 == 0 {
                std::thread::yield_now();
            }
            Ok(())
        });
        over.store(1, SeqCst);
        moved.unwrap();
        assert!(looks.into_iter().all(|t| t.join().unwrap() == 20_001), "one ended before the last move");
    });
}
