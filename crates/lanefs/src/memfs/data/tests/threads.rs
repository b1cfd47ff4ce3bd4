//! Several threads on one file.

use super::super::*;
use super::fake::{INO, NO_CUT, World};
use lanefs_format::Block;
use lanefs_sync::random::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const RUN: Duration = Duration::from_millis(400);

#[test]
fn a_block_is_never_torn() {
    // Few pages, so that copies meet; now and then they are evicted and loaded.
    const PAGES: u64 = 2;
    let world = World::new(64, 1, 1 << 20);
    let data = &world.files[0];
    data.write(&world.ctx(0, 0), 0, &[0; 4096 * PAGES as usize]).unwrap();
    let end = Instant::now() + RUN;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ctx = world.ctx(0, 1);
            let mut i = 0;
            while Instant::now() < end {
                i += 1;
                data.write(&ctx, i % PAGES * 4096, &[(i >> 1) as u8; 4096]).unwrap();
                if i % 50_000 == 0 {
                    world.write_back(0, 20, true);
                    data.evict_clean(&ctx);
                }
            }
        });
        for t in 4..6usize {
            let world = &world;
            scope.spawn(move || {
                let (ctx, ra) = (world.ctx(0, t), ReadAhead::new());
                let mut buf = [0; 4096];
                let mut i = 0;
                while Instant::now() < end {
                    i += 1;
                    assert_eq!(data.read(&ctx, i % PAGES * 4096, &mut buf, &ra).unwrap(), 4096);
                    assert!(buf.iter().all(|&b| b == buf[0]), "torn");
                }
            });
        }
    });
    world.check();
}

#[test]
fn a_reader_past_the_cache_never_sees_what_was_overwritten_before() {
    // Each round writes the next number to every page and then says so; between, pages are written
    // back and let go, so that some are read from the store while others, or the same a moment
    // later, are in memory.
    const PAGES: u64 = 16;
    let world = World::new(256, 1, 1 << 20);
    let data = &world.files[0];
    data.write(&world.ctx(0, 0), 0, &[0; 4096 * PAGES as usize]).unwrap();
    let (said, running) = (AtomicU64::new(0), AtomicBool::new(true));
    let read = std::thread::scope(|scope| {
        let readers: Vec<_> = (2..4usize)
            .map(|t| {
                let (world, said, running) = (&world, &said, &running);
                scope.spawn(move || {
                    let (ctx, ra) = (world.ctx(0, t), ReadAhead::new());
                    let mut blocks = vec![Block([0; 4096]); PAGES as usize];
                    let mut read = 0;
                    while running.load(Ordering::SeqCst) {
                        let least = said.load(Ordering::SeqCst);
                        assert_eq!(
                            data.read_uncached(&ctx, 0, blocks.as_mut_bytes(), &ra).unwrap(),
                            4096 * 16
                        );
                        for b in &blocks {
                            let at = |i: usize| u64::from_le_bytes(b.0[i..i + 8].try_into().unwrap());
                            assert!(at(0) >= least, "{} after {least} was written", at(0));
                            assert_eq!(at(0), at(4088), "torn");
                        }
                        read += 1;
                    }
                    read
                })
            })
            .collect();
        let ctx = world.ctx(0, 1);
        for round in 1..3000u64 {
            let mut page = [0; 4096];
            page.as_chunks_mut::<8>().0.fill(round.to_le_bytes());
            for p in 0..PAGES {
                data.write(&ctx, p * 4096, &page).unwrap();
                if (round + p) % 7 == 0 {
                    world.write_back(0, 20, true);
                    data.evict_clean(&ctx);
                }
            }
            said.store(round, Ordering::SeqCst);
        }
        running.store(false, Ordering::SeqCst);
        readers.into_iter().map(|r| r.join().unwrap()).sum::<u64>()
    });
    assert!(read > 0);
    world.check();
}

#[test]
fn overlapping_writes_are_ordered() {
    // Every write covers the same 8 pages with its own byte: at rest all 8 must agree.
    let world = World::new(256, 1, 1 << 20);
    let data = &world.files[0];
    data.write(&world.ctx(0, 0), 0, &[0; 4096 * 10]).unwrap();
    for round in 0..300u64 {
        std::thread::scope(|scope| {
            for t in 0..3usize {
                let world = &world;
                scope.spawn(move || {
                    let fill = (round * 3 + t as u64) as u8;
                    data.write(&world.ctx(0, t), 100, &[fill; 4096 * 8]).unwrap();
                });
            }
        });
        let mut buf = [0; 4096 * 8];
        data.read(&world.ctx(0, 0), 100, &mut buf, &ReadAhead::new()).unwrap();
        assert!(buf.iter().all(|&b| b == buf[0]), "two writes are mixed");
        if round % 10 == 0 {
            world.write_back(0, 100, true);
            data.evict_clean(&world.ctx(0, 0));
        }
    }
}

#[test]
fn appends_are_whole_and_in_a_row() {
    let world = World::new(128, 1, 1 << 20);
    let data = &world.files[0];
    let running = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for t in 1..4usize {
            let (world, running) = (&world, &running);
            scope.spawn(move || {
                for i in 0..400u64 {
                    let mut record = vec![t as u8; 700];
                    record[..8].copy_from_slice(&i.to_le_bytes());
                    let (at, done) = data.append(&world.ctx(0, t), &record, false).unwrap();
                    assert_eq!((at % 700, done.bytes), (0, 700));
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            let (ctx, ra) = (world.ctx(0, 9), ReadAhead::new());
            while running.load(Ordering::SeqCst) > 0 {
                let size = data.size();
                assert_eq!(size % 700, 0, "the size shows part of an append");
                if size > 0 {
                    let mut buf = [0; 2100];
                    let at = size - 700;
                    let n = data.read(&ctx, at, &mut buf, &ra).unwrap();
                    assert!(n.is_multiple_of(700) && n >= 700);
                    for record in buf[..n].chunks(700) {
                        assert!(record[8] != 0 && record[8..].iter().all(|&b| b == record[8]));
                    }
                }
                world.write_back(0, 10, true);
            }
        });
    });
    assert_eq!(data.size(), 3 * 400 * 700);
    let mut next = [0u64; 4];
    let mut record = [0; 700];
    for i in 0..1200 {
        data.read(&world.ctx(0, 0), i * 700, &mut record, &ReadAhead::new()).unwrap();
        let who = record[8] as usize;
        assert_eq!(u64::from_le_bytes(record[..8].try_into().unwrap()), next[who]);
        next[who] += 1;
    }
    world.check();
}

/// Ends the other threads of a test when its own ends.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A writer found a frame as the page behind the one that it held, and waited for it; by the time
/// that it was free it was a lower page, whose holder waited for the writer.
#[test]
fn nobody_waits_for_a_frame_that_is_another_page_by_now() {
    let world = World::new(96, 1, 1 << 20);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    let done = AtomicBool::new(false);
    for _ in 0..8 {
        data.write(&ctx, 0, &[1; 12 * 4096]).unwrap();
        while world.write_back(0, 1000, true) != Some(0) {}
        let pin = crossbeam_epoch::pin();
        assert!(data.lock_page(INO, 9, &pin).map(|nine| super::super::tree::detach(&nine)).is_some());
        let eleven = data.lock_page(INO, 11, &pin).unwrap();
        let frame = eleven.desc();
        std::thread::scope(|scope| {
            done.store(false, Ordering::SeqCst);
            scope.spawn(|| {
                data.write(&world.ctx(0, 1), 10 * 4096 + 100, &[2; 4096]).unwrap();
                done.store(true, Ordering::SeqCst);
            });
            let ten = data.find(10, &pin).unwrap();
            while ten.begin_read().is_some() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(5));
            super::super::tree::detach(&eleven);
            drop(eleven);
            // Mostly before the writer, which has to wake first.
            let Some(nine) = frame.try_lock() else { return };
            if data.attach(&ctx, 9, &nine, false, None).is_err() {
                return;
            }
            let end = Instant::now() + Duration::from_secs(20);
            while !done.load(Ordering::SeqCst) {
                if Instant::now() > end {
                    drop(nine); // or the test would not end either
                    panic!("a writer waits for page 9, and holds page 10");
                }
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn truncate_races_with_everything() {
    race_with_truncate(RUN * 2);
}

/// For a long time: the first pages of a file are where most meets.
#[test]
#[ignore = "takes ten minutes"]
fn truncate_races_with_everything_for_long() {
    (0..12_000).for_each(|_| race_with_truncate(RUN / 10));
}

fn race_with_truncate(time: Duration) {
    let world = World::new(96, 1, 1 << 20);
    let data = &world.files[0];
    let stop = AtomicBool::new(false);
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        for t in 0..2usize {
            let (world, stop) = (&world, &stop);
            scope.spawn(move || {
                let ctx = world.ctx(0, t);
                let mut i = t as u64;
                while !stop.load(Ordering::Relaxed) {
                    i += 1;
                    data.write(&ctx, i * 1237 % 200_000, &[0xEE; 5000]).unwrap();
                    data.append(&ctx, &[0xEE; 300], false).unwrap();
                }
            });
        }
        scope.spawn(|| {
            // Also where it fails.
            let _stops = Stops(&stop);
            let ctx = world.ctx(0, 7);
            let mut i = 0;
            while Instant::now() < end {
                i += 1;
                data.truncate(&ctx, i * 977 % 150_000, None).unwrap();
                if i % 3 == 0 {
                    data.punch_hole(&ctx, i * 3301 % 100_000, 10_000, None).unwrap();
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                world.write_back(0, 16, true);
                world.pool.evict(8, 8);
            }
        });
        scope.spawn(|| {
            let (ctx, ra) = (world.ctx(0, 9), ReadAhead::new());
            let mut buf = vec![0; 10_000];
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                i += 1;
                let n = data.read(&ctx, i * 7919 % 200_000, &mut buf, &ra).unwrap();
                assert!(buf[..n].iter().all(|&b| b == 0 || b == 0xEE));
            }
        });
    });
    world.check();
    // D5 at rest: what lies behind the end never shows, in memory or after a reload.
    let ctx = world.ctx(0, 0);
    data.truncate(&ctx, 50_001, None).unwrap();
    for reload in [false, true] {
        if reload {
            while world.write_back(0, 1000, true) != Some(0) {}
            data.evict_clean(&ctx);
        }
        data.truncate(&ctx, 90_000, None).unwrap();
        let mut buf = vec![1; 39_999];
        assert_eq!(data.read(&ctx, 50_001, &mut buf, &ReadAhead::new()).unwrap(), 39_999);
        assert!(buf.iter().all(|&b| b == 0), "stale bytes behind the old end");
    }
}

#[test]
fn no_write_is_lost() {
    // Pages are shared, bytes are not: each thread owns one word of every page and knows what it
    // must hold, while pages are evicted, written back and loaded under its feet.
    const PAGES: u64 = 150;
    let world = World::new(64, 1, 1 << 20);
    let data = &world.files[0];
    let end = Instant::now() + RUN * 3;
    std::thread::scope(|scope| {
        for t in 0..3usize {
            let world = &world;
            scope.spawn(move || {
                let (ctx, ra) = (world.ctx(0, t), ReadAhead::new());
                let mut wanted = vec![0u64; PAGES as usize];
                let mut rng = Rng::new(t as u64);
                while Instant::now() < end {
                    let i = rng.bits();
                    let page = (i >> 33) % PAGES;
                    let at = page * 4096 + t as u64 * 1000;
                    if i >> 60 < 8 {
                        wanted[page as usize] = i;
                        data.write(&ctx, at, &i.to_le_bytes()).unwrap();
                    } else {
                        let mut word = [0; 8];
                        data.read(&ctx, at, &mut word, &ra).unwrap();
                        assert_eq!(u64::from_le_bytes(word), wanted[page as usize], "page {page}");
                    }
                    if i >> 52 & 127 == 0 {
                        // An fsync: what was written before it is in the store after it.
                        world.write_back(0, usize::MAX, true);
                        let stored = world.store.pages.lock();
                        if let Some(block) = stored.get(&(ctx.ino.0, page)) {
                            let word = block.0[t * 1000..t * 1000 + 8].try_into().unwrap();
                            assert_eq!(
                                u64::from_le_bytes(word),
                                wanted[page as usize],
                                "page {page} in the store"
                            );
                        } else {
                            assert_eq!(wanted[page as usize], 0);
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            let ctx = world.ctx(0, 9);
            while Instant::now() < end {
                data.evict_clean(&ctx);
                world.pool.evict(9, 5);
                // Takes nothing of anybody, but goes through all the motions.
                data.punch_hole(&ctx, (PAGES + 5) * 4096, 1 << 20, None).unwrap();
                data.allocate(&ctx, 0, PAGES * 4096, false, &NO_CUT, &|| {}).unwrap();
            }
        });
    });
    world.check();
}

#[test]
fn trees_grow_and_shrink_under_fire() {
    let world = World::new(64, 2, 1 << 20);
    let end = Instant::now() + RUN * 2;
    let offsets = [0u64, 4096, 64 * 4096, 5000 * 4096, 300_000 * 4096];
    std::thread::scope(|scope| {
        for t in 0..4usize {
            let (world, offsets) = (&world, &offsets);
            scope.spawn(move || {
                let (file, ra) = (&world.files[t % 2], ReadAhead::new());
                let ctx = world.ctx(t % 2, t);
                let mut rng = Rng::new(t as u64);
                let mut buf = [0; 300];
                while Instant::now() < end {
                    let i = rng.bits();
                    let at = offsets[(i >> 40) as usize % if t < 2 { 2 } else { 5 }] + (i >> 50 & 255);
                    match i >> 61 {
                        0..=3 => {
                            file.write(&ctx, at, &[0xEE; 300]).unwrap();
                        }
                        4 => file.truncate(&ctx, at, None).unwrap(),
                        5 => {
                            world.write_back(t % 2, 2, true);
                            file.evict_clean(&ctx);
                        }
                        6 => {
                            world.pool.evict(t, 3);
                        }
                        _ => {
                            let n = file.read(&ctx, at, &mut buf, &ra).unwrap();
                            assert!(buf[..n].iter().all(|&b| b == 0 || b == 0xEE));
                        }
                    }
                }
            });
        }
    });
    world.check();
    for (i, file) in world.files.iter().enumerate() {
        file.truncate(&world.ctx(i, 0), 0, None).unwrap();
        assert!(!file.has_dirty());
    }
    world.check();
    assert!(world.store.pages.lock().is_empty());
}
