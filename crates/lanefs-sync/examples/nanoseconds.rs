//! What the primitives cost on this machine, alone on their lines:
//! `cargo run --release -p lanefs-sync --example nanoseconds`
//!
//! Each figure is the best of several windows, since the machine may be shared.

#[cfg(not(loom))]
fn main() {
    measure::all();
}

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
mod measure {
    use lanefs_sync::{
        Clock, Epochs, LaneIds, Lanes, Rps, SeqWord, StridedCounter, coarse_realtime_ns, copy_racy, fill_racy,
    };
    use std::hint::black_box;
    use std::time::Instant;

    fn time(name: &str, rounds: u32, mut act: impl FnMut()) {
        let best = (0..15)
            .map(|_| {
                let start = Instant::now();
                (0..rounds).for_each(|_| act());
                start.elapsed().as_nanos() as f64 / f64::from(rounds)
            })
            .fold(f64::INFINITY, f64::min);
        println!("{name:<44} {best:>9.1} ns");
    }

    pub fn all() {
        let ids = LaneIds::new(16);
        let lanes = Lanes::with_shared(ids.clone(), |_| (0u64, ()));
        time("lane index", 1_000_000, || _ = black_box(black_box(&lanes).mine()));
        time("lane lock and unlock", 1_000_000, || *lanes.lock(lanes.mine()) += 1);
        let epochs = Epochs::new(0);
        time("seal of 16 idle lanes", 10_000, || _ = epochs.seal(&lanes, lanes.len(), |_, _, _| ()));

        let rps = Rps::new(ids.clone());
        time("semaphore, read", 1_000_000, || drop(black_box(rps.read())));
        time("semaphore, write, no readers", 10_000, || drop(rps.write()));

        let word = SeqWord::new();
        time("sequence word, begin and validate", 1_000_000, || {
            let seq = black_box(&word).begin_read().unwrap_or(0);
            black_box(word.validate(seq));
        });
        time("sequence word, lock and unlock", 1_000_000, || drop(word.guard()));

        let counter = StridedCounter::new(1 << 40, 16, 64);
        time("strided counter, take and give", 1_000_000, || {
            black_box(counter.try_sub(0, 1));
            counter.add(0, 1);
        });
        time("strided counter, take only", 1_000_000, || _ = black_box(counter.try_sub(0, 1)));
        let exact = StridedCounter::new(10, 16, 64);
        time("strided counter near zero, take and give", 1_000_000, || {
            black_box(exact.try_sub(0, 1));
            exact.add(0, 1);
        });

        if let Some(clock) = Clock::tsc() {
            time("clock, processor's counter", 100_000, || _ = black_box(clock.now()));
        }
        let clock = Clock::generic();
        time("clock, system's", 100_000, || _ = black_box(clock.now()));
        time("coarse wall clock", 100_000, || _ = black_box(coarse_realtime_ns()));

        let src = vec![7u8; 4096];
        let mut dst = vec![0u8; 4096];
        for len in [8, 64, 256, 512, 1024, 2048, 4096] {
            // SAFETY: both vectors hold 4096 bytes and nobody else knows them.
            let racy =
                || unsafe { copy_racy(black_box(src.as_ptr()), black_box(dst.as_mut_ptr()), black_box(len)) };
            time(&format!("racy copy of {len} bytes"), 100_000, racy);
            // SAFETY: as above, and they do not overlap.
            let plain = || unsafe {
                std::ptr::copy_nonoverlapping(
                    black_box(src.as_ptr()),
                    black_box(dst.as_mut_ptr()),
                    black_box(len),
                );
            };
            time(&format!("memcpy of {len} bytes"), 100_000, plain);
        }
        // SAFETY: 4096 bytes of our own.
        time("racy fill of 4096 bytes", 100_000, || unsafe {
            fill_racy(black_box(dst.as_mut_ptr()), 1, 4096)
        });
    }
}
