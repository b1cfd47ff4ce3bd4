//! What an fsync of a new small file does to the device, counted; how threads share flushes; and
//! what the order of names costs where the mode of the file was changed before.
//!
//!     fsync [--threads N] [--flush-us N]
//!
//! The second part runs on a device whose flush takes as long as that of a disk.

use lanefs::{Cred, MountOptions, Order, Volume};
use lanefs_store::device::{Device, MemoryDevice, ReadReq, Recorder, WriteReq};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// A memory device that takes its time to flush, and counts.
#[derive(Debug)]
struct Slow {
    memory: MemoryDevice,
    flush: Duration,
    flushes: AtomicU64,
}

impl Device for Slow {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn name(&self) -> &str {
        "slow memory"
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.memory.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        self.memory.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        // Relaxed: a statistic.
        self.flushes.fetch_add(1, Relaxed);
        std::thread::sleep(self.flush);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_store::Result<()> {
        self.memory.discard(offset, len)
    }
}

fn volume(device: Arc<dyn Device>) -> Result<Volume, Failure> {
    ordered(device, Order::Ordered)
}

fn ordered(device: Arc<dyn Device>, order: Order) -> Result<Volume, Failure> {
    Store::format(std::slice::from_ref(&device), &FormatOptions::for_caller())?;
    // Nothing but the calls below reaches the device.
    let options = MountOptions { background: false, cache_size: 256 << 20, order, ..MountOptions::default() };
    Ok(Volume::open_devices(vec![device], &options)?)
}

fn counted() -> Result<(), Failure> {
    let recorder = Recorder::new();
    let volume = volume(Arc::new(recorder.wrap(MemoryDevice::new(1 << 30)?)))?;
    let fs = volume.as_user(Cred::root());
    fs.mkdir("d", 0o755)?;
    volume.checkpoint()?;
    println!(
        "{:<34} {:>6} {:>8} {:>9} {:>6} {:>8}",
        "fsync of", "trips", "writes", "bytes", "reads", "flushes"
    );
    let count = |what: &str, work: &dyn Fn() -> Result<(), Failure>| -> Result<(), Failure> {
        recorder.take_log();
        work()?;
        let c = recorder.counters();
        // A trip is a wait for the device; the flush is one of them.
        println!(
            "{what:<34} {:>6} {:>8} {:>9} {:>6} {:>8}",
            c.trips - c.flushes - c.reads.min(c.trips),
            c.writes,
            c.bytes_written,
            c.reads,
            c.flushes
        );
        Ok(())
    };
    // The first takes lanes, inode numbers and segments into use.
    count("the very first file", &|| Ok(save(&fs, "d/first", 1000)?))?;
    count("a new file of 1000 bytes", &|| Ok(save(&fs, "d/small", 1000)?))?;
    count("a new empty file", &|| Ok(save(&fs, "d/empty", 0)?))?;
    count("a new file of 64 KiB", &|| Ok(save(&fs, "d/large", 64 << 10)?))?;
    let file = fs.open("d/large", lanefs::OpenOptions::new().write(true))?;
    count("4 KiB overwritten", &|| {
        file.write_all_at(&[3; 4096], 8192)?;
        Ok(file.sync_data()?)
    })?;
    count("nothing (a second fsync)", &|| Ok(file.sync_data()?))?;
    fs.mkdir("d/e", 0o755)?;
    count("a file in a new directory", &|| Ok(save(&fs, "d/e/file", 1000)?))?;
    Ok(())
}

fn save(fs: &lanefs::Fs, path: &str, bytes: usize) -> lanefs::Result<()> {
    let file = fs.create(path)?;
    file.write_all_at(&vec![1; bytes], 0)?;
    file.sync_all()
}

fn shared(threads: u64, flush: Duration) -> Result<(), Failure> {
    println!(
        "\n{:<8} {:>8} {:>9} {:>16} {:>10}",
        "threads", "fsyncs", "flushes", "fsyncs a flush", "fsyncs/s"
    );
    let mut n = 1;
    while n <= threads {
        let device =
            Arc::new(Slow { memory: MemoryDevice::new(1 << 30)?, flush, flushes: AtomicU64::new(0) });
        let volume = volume(device.clone())?;
        let each = 400;
        let before = device.flushes.load(Relaxed);
        let start = Instant::now();
        std::thread::scope(|s| {
            let all: Vec<_> = (0..n)
                .map(|t| {
                    let fs = volume.as_user(Cred::root());
                    s.spawn(move || {
                        fs.mkdir(format!("t{t}"), 0o755)?;
                        (0..each).try_for_each(|i| save(&fs, &format!("t{t}/{i}"), 1000))
                    })
                })
                .collect();
            all.into_iter().try_for_each(|t| t.join().unwrap_or(Err(lanefs::Error::Posix(libc::EIO))))
        })?;
        let (took, flushes) = (start.elapsed(), device.flushes.load(Relaxed) - before);
        let all = n * each;
        println!(
            "{n:<8} {all:>8} {flushes:>9} {:>16.2} {:>10.0}",
            all as f64 / flushes as f64,
            all as f64 / took.as_secs_f64()
        );
        volume.shutdown();
        n *= 2;
    }
    Ok(())
}

/// The median of an fsync of a new file, of one whose mode was changed just before, and of one
/// whose making is durable and whose mode was changed, in microseconds.
fn changed(order: Order) -> Result<[f64; 3], Failure> {
    let volume = ordered(Arc::new(MemoryDevice::new(2 << 30)?), order)?;
    let fs = volume.as_user(Cred::root());
    fs.mkdir("d", 0o755)?;
    let mut medians = [0.0; 3];
    for (what, median) in medians.iter_mut().enumerate() {
        let mut times = Vec::new();
        for n in 0..4000 {
            let path = format!("d/{n}");
            let file = fs.create(&*path)?;
            if what == 2 {
                file.sync_all()?;
            }
            file.write_all_at(&[1; 1000], 0)?;
            if what > 0 {
                fs.chmod(&*path, 0o600)?;
            }
            let start = Instant::now();
            file.sync_all()?;
            times.push(start.elapsed());
            drop(file);
            fs.unlink(&*path)?;
        }
        volume.checkpoint()?;
        times.sort_unstable();
        *median = times[times.len() / 2].as_secs_f64() * 1e6;
    }
    volume.shutdown();
    Ok(medians)
}

fn rights() -> Result<(), Failure> {
    println!("\nmicroseconds, medians of 4000, in turn five times: new, new and chmod, old and chmod");
    for _ in 0..5 {
        for order in [Order::Relaxed, Order::Ordered] {
            let [new, both, old] = changed(order)?;
            println!("{order:<10?} {new:>8.2} {both:>8.2} {old:>8.2}");
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let (mut threads, mut flush) = (16, 1000);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let value = args.next().ok_or("every option takes a value")?;
        match a.as_str() {
            "--threads" => threads = value.parse()?,
            "--flush-us" => flush = value.parse()?,
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    counted()?;
    println!("\na flush takes {flush} us");
    shared(threads, Duration::from_micros(flush))?;
    rights()
}
