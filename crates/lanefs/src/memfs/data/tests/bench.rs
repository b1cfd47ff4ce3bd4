//! What the hot paths cost: `cargo test --release -p lanefs data_costs -- --ignored --nocapture`.

use super::super::*;
use super::fake::World;
use std::time::{Duration, Instant};

/// Prints the best of some rounds; `f` returns how long so many calls took.
fn best(what: &str, target: u128, rounds: usize, mut f: impl FnMut() -> (Duration, usize)) {
    let per_call = |(took, calls): (Duration, usize)| took.as_nanos() as f64 / calls.max(1) as f64;
    let best = (0..rounds).map(|_| per_call(f())).fold(f64::MAX, f64::min);
    println!("{what:<44} {best:>7.1} ns   (target {target})");
}

fn timed(calls: usize, mut f: impl FnMut(u64)) -> (Duration, usize) {
    let start = Instant::now();
    for i in 0..calls as u64 {
        f(i);
    }
    (start.elapsed(), calls)
}

#[test]
#[ignore = "prints figures; run it in a release build"]
fn data_costs() {
    let world = World::new(16384, 2, 1 << 30);
    let (data, ctx, ra) = (&world.files[0], world.ctx(0, 0), ReadAhead::new());
    let mut buf = [7u8; 4096];
    let plain = vec![1u8; 4096 * 1024];
    for pages in [1u64, 64, 1024] {
        for i in 0..pages {
            data.write(&ctx, i * 4096, &buf).unwrap();
        }
        best(&format!("for comparison: a plain copy, {pages} pages"), 0, 20, || {
            timed(20_000, |i| {
                let at = (i % pages * 4096) as usize;
                std::hint::black_box(&mut buf).copy_from_slice(&plain[at..at + 4096]);
            })
        });
        best(&format!("overwrite a cached page, {pages} pages"), 170, 20, || {
            timed(20_000, |i| {
                data.write(&ctx, i % pages * 4096, &buf).unwrap();
            })
        });
        best(&format!("read a cached page, {pages} pages"), 120, 20, || {
            timed(20_000, |i| {
                data.read(&ctx, i % pages * 4096, &mut buf, &ra).unwrap();
            })
        });
        best(&format!("read 100 bytes, {pages} pages"), 120, 20, || {
            timed(20_000, |i| {
                data.read(&ctx, i % pages * 4096, &mut buf[..100], &ra).unwrap();
            })
        });
    }
    data.drop_all(&ctx);
    let (log, ctx) = (&world.files[1], world.ctx(1, 0));
    for (what, len, count) in [
        ("append 4 KiB, recycled frames, 64 pages", 4096, 64),
        ("append 4 KiB, recycled frames, 2000 pages", 4096, 2000),
        ("append 100 bytes", 100, 2000),
    ] {
        best(what, 600, 40, || {
            log.truncate(&ctx, 0, None).unwrap();
            timed(count, |_| {
                log.append(&ctx, &buf[..len], false).unwrap();
            })
        });
    }
    best("truncate, per page", 200, 20, || {
        log.write(&ctx, 0, &plain).unwrap();
        let (took, _) = timed(1, |_| log.truncate(&ctx, 0, None).unwrap());
        (took, 1024)
    });
    for count in [16usize, 1024] {
        let mut times = [Duration::MAX; 2];
        for _ in 0..50 {
            log.write(&ctx, 0, &plain).unwrap();
            let wb = log.lock_writeback();
            let start = Instant::now();
            let captured = log.capture(&ctx, &wb, count, 0..1024, log.size());
            times[0] = times[0].min(start.elapsed());
            let taken = captured.give_up();
            let start = Instant::now();
            log.finish(&ctx, &wb, taken, false);
            times[1] = times[1].min(start.elapsed());
        }
        best(&format!("capture {count} pages, per page"), 600, 1, || (times[0], count));
        best(&format!("finish {count} pages, per page"), 100, 1, || (times[1], count));
    }
    // Disjoint pages of one file: what commutes must not wait.
    let ctx = world.ctx(0, 0);
    data.write(&ctx, 0, &plain).unwrap();
    for threads in [1u64, 2] {
        for write in [true, false] {
            let what = if write { "overwrites" } else { "reads" };
            best(&format!("{threads} threads, one file, {what}, per call and thread"), 170, 20, || {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for t in 0..threads {
                        let world = &world;
                        scope.spawn(move || {
                            let (ctx, ra, mut buf) =
                                (world.ctx(0, t as usize), ReadAhead::new(), [1u8; 4096]);
                            for i in 0..100_000u64 {
                                let at = (t * 100 + i % 16) * 4096;
                                if write {
                                    data.write(&ctx, at, &buf).unwrap();
                                } else {
                                    data.read(&ctx, at, &mut buf, &ra).unwrap();
                                }
                            }
                        });
                    }
                });
                (start.elapsed(), 100_000)
            });
        }
    }
}
