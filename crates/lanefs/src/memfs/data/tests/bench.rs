//! What the hot paths cost: `cargo test --release -p lanefs data_costs -- --ignored --nocapture`.

use super::super::*;
use super::fake::World;
use std::time::Instant;

fn best(what: &str, target: u128, rounds: usize, mut f: impl FnMut() -> usize) {
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        let n = f();
        best = best.min(start.elapsed().as_nanos() as f64 / n as f64);
    }
    println!("{what:<44} {best:>7.1} ns   (target {target})");
}

#[test]
#[ignore = "prints figures; run it in a release build"]
fn data_costs() {
    let world = World::new(16384, 2, 1 << 30);
    let (data, ctx, ra) = (&world.files[0], world.ctx(0, 0), ReadAhead::new());
    let mut buf = [7u8; 4096];
    for pages in [1u64, 64, 1024] {
        for i in 0..pages {
            data.write(&ctx, i * 4096, &buf).unwrap();
        }
        best(&format!("overwrite a cached page, {pages} pages"), 170, 20, || {
            for i in 0..20_000u64 {
                data.write(&ctx, i % pages * 4096, &buf).unwrap();
            }
            20_000
        });
        best(&format!("read a cached page, {pages} pages"), 120, 20, || {
            for i in 0..20_000u64 {
                data.read(&ctx, i % pages * 4096, &mut buf, &ra).unwrap();
            }
            20_000
        });
        best(&format!("read 100 bytes, {pages} pages"), 120, 20, || {
            for i in 0..20_000u64 {
                data.read(&ctx, i % pages * 4096, &mut buf[..100], &ra).unwrap();
            }
            20_000
        });
    }
    data.drop_all(&ctx);
    let log = &world.files[1];
    for (what, len) in [("append 4 KiB, recycled frames", 4096), ("append 100 bytes", 100)] {
        best(what, 600, 20, || {
            log.truncate(&world.ctx(1, 0), 0, None).unwrap();
            let start = Instant::now();
            for _ in 0..2000 {
                log.append(&world.ctx(1, 0), &buf[..len]).unwrap();
            }
            let _ = start;
            2000
        });
    }
    best("capture and finish a page", 1000, 20, || {
        for i in 0..2000u64 {
            log.write(&world.ctx(1, 0), i * 4096, &buf).unwrap();
        }
        world.write_back(1, 2000, true).unwrap_or(0)
    });
}
