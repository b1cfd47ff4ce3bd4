//! Sequential writing and reading through the mount, beside what bounds it: the medium under the image, written and read
//! past the kernel's cache, and a copy in memory.

use super::mounted;
use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// Bytes of one call.
const UNIT: usize = 1 << 20;

pub fn run(quick: bool) -> std::result::Result<(), String> {
    let units = if quick { 128 } else { 1024 };
    let mut volume = mounted("4G", &[])?;
    let io = |e: std::io::Error| e.to_string();
    let mut rates: Vec<[f64; 5]> = Vec::new();
    for round in 0..3 {
        let raw = volume.dir.join("raw");
        let medium = [write(&raw, units, true).map_err(io)?, read(&raw, units, true).map_err(io)?];
        std::fs::remove_file(&raw).map_err(io)?;
        let file = volume.mnt().join(format!("file{round}"));
        let written = write(&file, units, false).map_err(io)?;
        // The kernel's pages of the file are dropped: the read goes to the server.
        let open = File::open(&file).map_err(io)?;
        // SAFETY: advice about an open descriptor; no memory is involved.
        unsafe { libc::posix_fadvise(open.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        drop(open);
        rates.push([medium[0], medium[1], written, read(&file, units, false).map_err(io)?, copy(units)]);
        std::fs::remove_file(&file).map_err(io)?;
    }
    let median = |i: usize| {
        let mut values: Vec<f64> = rates.iter().map(|r| r[i]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("{:<34} {:>10}   MB/s, median of 3 times {} MiB in units of 1 MiB", "", "", units);
    for (i, name) in [
        "medium, written, with fsync",
        "medium, read",
        "lanefs, written, with fsync",
        "lanefs, read",
        "memcpy",
    ]
    .iter()
    .enumerate()
    {
        println!("{name:<34} {:>10.0}", median(i));
    }
    let bound = |medium: f64| medium.min(median(4));
    println!(
        "written {:.2} times, read {:.2} times what bounds it",
        median(2) / bound(median(0)),
        median(3) / bound(median(1))
    );
    volume.umount().map(drop)
}

/// A buffer that O_DIRECT takes.
fn buffer() -> (Vec<u8>, usize) {
    let bytes = vec![0x5a; UNIT + 4096];
    let skip = bytes.as_ptr().align_offset(4096);
    (bytes, skip)
}

fn flags(direct: bool) -> i32 {
    if direct { libc::O_DIRECT } else { 0 }
}

fn rate(units: u64, start: Instant) -> f64 {
    units as f64 * UNIT as f64 / 1e6 / start.elapsed().as_secs_f64()
}

fn write(path: &Path, units: u64, direct: bool) -> Result<f64> {
    let (bytes, skip) = buffer();
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags(direct)).open(path)?;
    let start = Instant::now();
    for n in 0..units {
        file.write_all_at(&bytes[skip..skip + UNIT], n * UNIT as u64)?;
    }
    file.sync_all()?;
    Ok(rate(units, start))
}

fn read(path: &Path, units: u64, direct: bool) -> Result<f64> {
    let (mut bytes, skip) = buffer();
    let file = OpenOptions::new().read(true).custom_flags(flags(direct)).open(path)?;
    let start = Instant::now();
    for n in 0..units {
        file.read_exact_at(&mut bytes[skip..skip + UNIT], n * UNIT as u64)?;
    }
    Ok(rate(units, start))
}

/// From a buffer far larger than the processor's caches.
fn copy(units: u64) -> f64 {
    let from = vec![1_u8; 256 * UNIT];
    let mut to = vec![2_u8; UNIT];
    let start = Instant::now();
    for n in 0..units as usize {
        let at = n % 256 * UNIT;
        to.copy_from_slice(&from[at..at + UNIT]);
        std::hint::black_box(&mut to);
    }
    rate(units, start)
}
