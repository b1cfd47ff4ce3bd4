//! How long a large volume takes to become smaller, alone and beside somebody who syncs.
//!
//!     shrink [--image PATH] [--size GIB] [--small N]
//!
//! Fills an image of so many GiB (default 24) to five sixths with files of a GiB and so many small
//! ones (default 100,000), removes two fifths of the large ones, the first, and shrinks it to five
//! eighths: what was written last lies behind the new end, and is moved. Then the same once more,
//! beside a thread that writes and syncs 64 KiB, 50 times a second at most. In the end every byte
//! is compared.

use lanefs::{Cred, Fs, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{FormatOptions, Store};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

/// Bytes of a write.
const PIECE: usize = 1 << 20;
/// Pieces of a large file.
const PIECES: u64 = 1024;

fn main() -> Result<(), Failure> {
    let (mut image, mut size, mut small) = ("shrink.lane".to_string(), 24, 100_000);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or(format!("{a} takes a value"));
        match a.as_str() {
            "--image" => image = value()?,
            "--size" => size = value()?.parse()?,
            "--small" => small = value()?.parse()?,
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    if size < 6 {
        return Err("--size is 6 and more: there are files of a GiB".into());
    }
    if Path::new(&image).exists() {
        return Err("the image is there already, and would be removed in the end: name another".into());
    }
    let done = measure(&image, size, small);
    let _ = std::fs::remove_file(&image);
    done
}

/// Fills, shrinks, and does so again beside somebody who syncs.
fn measure(image: &str, size: u64, small: u64) -> Result<(), Failure> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(image, size << 30)?);
    Store::format(std::slice::from_ref(&device), &FormatOptions::for_caller())?;
    let volume = Volume::open_devices(vec![device], &MountOptions::default())?;
    let fs = volume.as_user(Cred::root());
    let begun = Instant::now();
    let files = size * 5 / 6;
    (0..files).try_for_each(|n| fill(&fs, n))?;
    fs.mkdir("small", 0o755)?;
    (0..small).try_for_each(|n| fs.write(format!("small/{n}"), &piece(n)[..4000]))?;
    volume.sync()?;
    println!("{files} GiB and {small} small files written in {:.1?}", begun.elapsed());
    let gone = files * 2 / 5;
    let smaller = (size << 30) / 8 * 5;
    (0..gone).try_for_each(|n| fs.unlink(name(n)))?;
    println!("alone: {}", shrink(&volume, smaller)?);
    volume.grow(Some(size << 30))?;
    (0..gone).try_for_each(|n| fill(&fs, files + n))?;
    (gone..2 * gone).try_for_each(|n| fs.unlink(name(n)))?;
    volume.sync()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let syncs = s.spawn(|| sync_until(&fs, &stop));
        std::thread::sleep(Duration::from_secs(3));
        let told = shrink(&volume, smaller);
        stop.store(true, Ordering::Relaxed);
        let took = syncs.join().map_err(|_| "who syncs has panicked")??;
        println!("beside fsyncs: {}; of {} fsyncs {}", told?, took.len(), spread(took));
        Ok::<(), Failure>(())
    })?;
    for n in 2 * gone..files + gone {
        let file = fs.open(name(n), OpenOptions::new().read(true))?;
        let mut is = vec![0; PIECE];
        for at in 0..PIECES {
            file.read_exact_at(&mut is, at * PIECE as u64)?;
            if is != piece(n * PIECES + at) {
                return Err(format!("{}: other bytes at {at} MiB", name(n)).into());
            }
        }
    }
    for n in 0..small {
        if fs.read(format!("small/{n}"))? != piece(n)[..4000] {
            return Err(format!("small/{n}: other bytes").into());
        }
    }
    println!("all that was left has its bytes");
    Ok(volume.close()?)
}

/// Returns the name of a large file.
fn name(n: u64) -> String {
    format!("large{n}")
}

/// Returns the content of a piece.
fn piece(n: u64) -> Vec<u8> {
    (0..PIECE as u64 / 8).flat_map(|at| (n.wrapping_mul(0x9e37_79b9) ^ at).to_le_bytes()).collect()
}

/// Writes a large file, durably.
fn fill(fs: &Fs, n: u64) -> Result<(), Failure> {
    let file = fs.open(name(n), OpenOptions::new().write(true).create(true))?;
    (0..PIECES).try_for_each(|at| file.write_all_at(&piece(n * PIECES + at), at * PIECE as u64))?;
    Ok(file.sync_all()?)
}

/// Shrinks, and tells what that took and wrote.
fn shrink(volume: &Volume, bytes: u64) -> Result<String, Failure> {
    let cpu = || {
        let t = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let (begun, before, written) = (Instant::now(), cpu(), written(volume)?);
    let done = volume.shrink(bytes)?;
    Ok(format!(
        "{} to {} GiB in {:.1?}, {:.1?} of processor time, {} MiB written",
        done.before >> 30,
        done.after >> 30,
        begun.elapsed(),
        cpu() - before,
        (self::written(volume)? - written) >> 20
    ))
}

/// Returns how many bytes the volume has written since it was opened.
fn written(volume: &Volume) -> Result<u64, Failure> {
    Ok(volume.report()?.store.written.total_bytes)
}

/// Writes and syncs until it is told to stop; returns how long each took.
fn sync_until(fs: &Fs, stop: &AtomicBool) -> lanefs::Result<Vec<Duration>> {
    let file = fs.open("synced", OpenOptions::new().write(true).create(true))?;
    let (content, mut took) = (piece(0), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        file.write_all_at(&content[..65536], 0)?;
        file.sync_all()?;
        took.push(begun.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(took)
}

/// Returns the middle, a high and the longest of some times.
fn spread(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).or(took.last());
    match (at(0.5), at(0.99), took.last()) {
        (Some(p50), Some(p99), Some(most)) => format!("p50 {p50:.1?}, p99 {p99:.1?}, the longest {most:.1?}"),
        _ => "none ended".into(),
    }
}
