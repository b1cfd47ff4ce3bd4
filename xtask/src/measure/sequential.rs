//! Sequential writing and reading through the mount, beside what bounds it: the medium under the
//! image, written and read past the kernel's cache, and a copy in memory.

use super::mount_fsync::write_before;
use crate::programs::volume::{self, Volume};
use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// Bytes of one call.
const UNIT: usize = 1 << 20;

/// An image whose blocks the file system under it has still to find, one that was written before,
/// and that without the kernel's writeback cache, which holds everything back until the fsync.
const WAYS: [(&str, bool, &[&str]); 3] = [
    ("sparse image", false, &[]),
    ("written image", true, &[]),
    ("written image, nowriteback", true, &["-o", "nowriteback"]),
];

pub fn run(quick: bool) -> std::result::Result<(), String> {
    let (units, rounds) = if quick { (128, 3) } else { (1024, 5) };
    println!("MB/s, medians of {rounds} times {units} MiB in units of 1 MiB");
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "medium", "lanefs", "times", "medium", "lanefs", "times", "memcpy"
    );
    println!("{:<28} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}", "", "written", "written", "", "read", "read", "");
    let lanefs = volume::build()?;
    for (way, written, options) in WAYS {
        let mut volume = Volume::make(&lanefs, "4G", options)?;
        if written {
            write_before(&volume, 4096)?;
        }
        volume.mount()?;
        let [raw_written, raw_read, our_written, our_read, copied] =
            measure(&volume, units, rounds).map_err(|e| format!("{way}: {e}"))?;
        println!(
            "{way:<28} {raw_written:>9.0} {our_written:>9.0} {:>9.2} {raw_read:>9.0} {our_read:>9.0} {:>9.2} {copied:>9.0}",
            our_written / raw_written.min(copied),
            our_read / raw_read.min(copied),
        );
        volume.umount()?;
    }
    Ok(())
}

/// Medians: the medium written and read, LaneFS written and read, memory copied.
fn measure(volume: &Volume, units: u64, rounds: usize) -> Result<[f64; 5]> {
    let mut rates: Vec<[f64; 5]> = Vec::new();
    for round in 0..rounds {
        let raw = volume.outside().join("raw");
        let medium = [write(&raw, units, true)?, read(&raw, units, true)?];
        std::fs::remove_file(&raw)?;
        let file = volume.mnt().join(format!("file{round}"));
        let written = write(&file, units, false)?;
        // The kernel's pages of the file are dropped: the read goes to the server.
        let open = File::open(&file)?;
        // SAFETY: advice about an open descriptor; no memory is involved.
        unsafe { libc::posix_fadvise(open.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        drop(open);
        rates.push([medium[0], medium[1], written, read(&file, units, false)?, copy(units)]);
        std::fs::remove_file(&file)?;
    }
    Ok(std::array::from_fn(|i| {
        let mut values: Vec<f64> = rates.iter().map(|r| r[i]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }))
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
