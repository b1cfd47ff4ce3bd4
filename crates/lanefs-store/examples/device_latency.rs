//! Measures the devices: `cargo run --release -p lanefs-store --example device_latency [IMAGE]`.
//!
//! IMAGE is made (64 MiB, on a file system of your choice) and removed again. Reported are the
//! median and the 99th percentile.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lanefs_format::Block;
use lanefs_store::Result;
use lanefs_store::device::{Device, FileDevice, FileOptions, MemoryDevice, ReadReq, WriteReq};

const SIZE: u64 = 64 << 20;
const BLOCKS: u64 = SIZE / 4096;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let us = |d: Duration| d.as_nanos() as f64 / 1000.0;
    let n = times.len();
    println!("{what:<44} {:9.3} us   p99 {:9.3} us   n {n}", us(times[n / 2]), us(times[n * 99 / 100]));
}

fn measure(what: &str, n: u64, mut f: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let mut times = Vec::with_capacity(n as usize);
    for i in 0..n {
        let start = Instant::now();
        f(i)?;
        times.push(start.elapsed());
    }
    report(what, times);
    Ok(())
}

/// A block number that jumps about.
fn place(i: u64) -> u64 {
    lanefs_sync::random::spread(i) % BLOCKS * 4096
}

fn device(name: &str, d: &dyn Device, n: u64) -> Result<()> {
    let mut blocks = vec![Block([7; 4096]); 16];
    // Allocate everything first, so that no write changes the file system's metadata.
    for at in (0..BLOCKS).step_by(16) {
        let reqs: Vec<_> =
            (0..16).map(|i| WriteReq { offset: (at + i) * 4096, data: &blocks[i as usize].0 }).collect();
        d.write(&reqs)?;
    }
    d.flush()?;
    measure(&format!("{name}: write 4 KiB"), n, |i| {
        d.write(&[WriteReq { offset: place(i), data: &blocks[0].0 }])
    })?;
    measure(&format!("{name}: write 16 x 4 KiB in one trip"), n / 4, |i| {
        let reqs: Vec<_> =
            (0..16).map(|k| WriteReq { offset: place(i * 16 + k), data: &blocks[k as usize].0 }).collect();
        d.write(&reqs)
    })?;
    measure(&format!("{name}: read 4 KiB"), n, |i| {
        d.read(&mut [ReadReq { offset: place(i), data: &mut blocks[0].0 }])
    })?;
    measure(&format!("{name}: write 4 KiB and flush"), n / 4, |i| {
        d.write(&[WriteReq { offset: place(i), data: &blocks[0].0 }])?;
        d.flush()
    })?;
    Ok(())
}

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).map_or_else(|| "device_latency.image".into(), PathBuf::from);
    device("memory", &MemoryDevice::new(SIZE)?, 20_000)?;
    drop(FileDevice::create(&path, SIZE)?);
    let run = || {
        for (name, direct, io_uring) in [
            ("O_DIRECT io_uring", true, true),
            ("O_DIRECT pread/pwrite", true, false),
            ("buffered pread/pwrite", false, false),
        ] {
            let d = FileDevice::open_with(&path, FileOptions { direct, io_uring, ..FileOptions::default() })?;
            if (d.is_direct(), d.uses_io_uring()) != (direct, io_uring) {
                println!("{name}: not to be had here");
                continue;
            }
            device(name, &d, 4_000)?;
        }
        Ok(())
    };
    let done = run();
    // Best effort: the figures are out.
    let _ = std::fs::remove_file(&path);
    done
}
