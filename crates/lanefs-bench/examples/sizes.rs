//! What a volume costs by its size: the same few things done to sparse images of 10 GiB, 100 GiB
//! and 1 TiB that hold nothing.
//!
//!     sizes [--dir DIR] [--gib N[,N..]]
//!     sizes --image PATH        the steps alone, to a volume that was just made
//!
//! A process each, of one thread, without background threads: their rounds are called. What is
//! shown are counts (page faults, bytes allocated, reads and bytes of the device), which do not
//! depend on how busy the machine is, and processor time for an impression. Exits with 1 if a count
//! of the largest volume is more than that of the smallest one and an allowance: what is empty may
//! cost a few words for each GiB, and no more.

use lanefs::{MountOptions, Volume};
use lanefs_bench::cost::{CountingAllocator, allocated};
use lanefs_store::device::{Device, FileDevice, ReadReq, WriteReq};
use lanefs_store::{FormatOptions, OpenOptions, Store};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

type Failure = Box<dyn std::error::Error>;

/// An image with its traffic counted. Relaxed: statistics of one thread.
#[derive(Debug)]
struct Counted {
    file: FileDevice,
    reads: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
}

impl Device for Counted {
    fn size(&self) -> u64 {
        self.file.size()
    }
    fn name(&self) -> &str {
        self.file.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.reads.fetch_add(reqs.len() as u64, Relaxed);
        self.read.fetch_add(reqs.iter().map(|r| r.data.len() as u64).sum(), Relaxed);
        self.file.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        self.written.fetch_add(reqs.iter().map(|r| r.data.len() as u64).sum(), Relaxed);
        self.file.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        self.file.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_store::Result<()> {
        self.file.discard(offset, len)
    }
    fn discards(&self) -> bool {
        self.file.discards()
    }
    fn release(&self) {
        self.file.release();
    }
}

/// What is counted, in this order, and by how much a count may be larger in a larger volume.
const COUNTS: [(&str, u64); 7] = [
    // These two depend on what the allocator has at hand, and the kernel tells the second roughly.
    ("page faults", 128),
    // What finds the figures of segments has 24 bytes for each GiB.
    ("KiB allocated", 64),
    ("KiB resident more", 2048),
    ("reads", 0),
    ("KiB read", 0),
    ("KiB written", 16),
    ("us of processor time", u64::MAX),
];

/// Returns all counts since the process began.
fn counts(device: &Counted) -> [u64; COUNTS.len()] {
    let (faults, us) = usage();
    let of = |n: &AtomicU64| n.load(Relaxed);
    let allocated = allocated().map_or(0, |a| a.1);
    [
        faults,
        allocated >> 10,
        resident(),
        of(&device.reads),
        of(&device.read) >> 10,
        of(&device.written) >> 10,
        us,
    ]
}

/// Returns the minor faults of this process, and its processor time in microseconds.
fn usage() -> (u64, u64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the structure, which is large enough; zeros are valid in any case.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    (usage.ru_minflt as u64, us(usage.ru_utime) + us(usage.ru_stime))
}

/// Returns the memory of this process in KiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|p| p.parse::<u64>().ok()).unwrap_or(0) * 4
}

/// Does a step and prints what it cost.
fn step<T>(
    name: &'static str,
    device: &Counted,
    does: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let before = counts(device);
    let result = does()?;
    for (now, before) in counts(device).iter().zip(before) {
        // Memory may be less.
        print!("{}\t", now.saturating_sub(before));
    }
    println!("{name}");
    Ok(result)
}

fn open_image(path: &Path) -> Result<Arc<Counted>, Failure> {
    let zero = || AtomicU64::new(0);
    Ok(Arc::new(Counted {
        file: FileDevice::open(path, false)?,
        reads: zero(),
        read: zero(),
        written: zero(),
    }))
}

/// Does the steps to a volume that was just made.
fn measure(image: &Path) -> Result<(), Failure> {
    let device = open_image(image)?;
    let d = &*device;
    let options = MountOptions { background: false, cache_size: 64 << 20, ..MountOptions::default() };
    let volume = step("open", d, || Ok(Volume::open_devices(vec![device.clone()], &options)?))?;
    step("ten rounds, idle", d, || Ok((0..10).try_for_each(|_| volume.tick())?))?;
    step("report", d, || Ok(volume.report()?))?;
    step("write 4 KiB, sync", d, || {
        volume.fs().write("file", [7; 4096])?;
        Ok(volume.sync()?)
    })?;
    step("checkpoint", d, || Ok(volume.checkpoint()?))?;
    step("close", d, || Ok(volume.close()?))?;
    drop((volume, device));
    let device = open_image(image)?;
    let d = &*device;
    let options = OpenOptions { cache_bytes: 4 << 20, ..OpenOptions::default() };
    let (store, _) = step("open the store again", d, || Ok(Store::open(vec![device.clone()], &options)?))?;
    let all = store.pressure().segments;
    step("look for a victim", d, || Ok(store.clean(all)?))?;
    step("close the store", d, || Ok(store.close()?))
}

/// Makes a volume of so many GiB, has another process do the steps to it, whose memory was not used
/// before, and returns the counts of each.
fn measured(gib: u64, dir: &Path) -> Result<Vec<(Vec<u64>, String)>, Failure> {
    let image = dir.join(format!("sizes-{gib}.lane"));
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(&image, gib << 30)?);
    Store::format(std::slice::from_ref(&device), &FormatOptions { mlogs: 2, ..FormatOptions::for_caller() })?;
    drop(device);
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.arg("--image").arg(&image).stderr(Stdio::inherit()).output();
    std::fs::remove_file(image)?;
    let output = output?;
    if !output.status.success() {
        return Err(format!("a volume of {gib} GiB: {}", output.status).into());
    }
    let mut steps = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut fields: Vec<&str> = line.split('\t').collect();
        let name = fields.pop().unwrap_or_default().to_owned();
        steps.push((fields.iter().map(|f| f.parse()).collect::<Result<_, _>>()?, name));
    }
    Ok(steps)
}

fn main() -> Result<(), Failure> {
    let (mut dir, mut sizes) = (None, vec![10, 100, 1024]);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let value = args.next().ok_or(format!("{a} takes a value"))?;
        match a.as_str() {
            "--dir" => dir = Some(PathBuf::from(value)),
            "--gib" => sizes = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--image" => return measure(Path::new(&value)),
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    let own = tempfile::tempdir()?;
    let dir = dir.unwrap_or_else(|| own.path().to_owned());
    let mut all = Vec::new();
    print!("| GiB | step |");
    COUNTS.iter().for_each(|c| print!(" {} |", c.0));
    println!("\n|{}", " --- |".repeat(COUNTS.len() + 2));
    for gib in sizes {
        let steps = measured(gib, &dir)?;
        for (counts, name) in &steps {
            print!("| {gib} | {name} |");
            counts.iter().for_each(|n| print!(" {n} |"));
            println!();
        }
        all.push((gib, steps));
    }
    let (Some((small, of_small)), Some((large, of_large))) = (all.first(), all.last()) else { return Ok(()) };
    let mut grew = Vec::new();
    for ((s, step), (l, _)) in of_small.iter().zip(of_large) {
        for ((s, l), (what, allowance)) in s.iter().zip(l).zip(COUNTS) {
            if *l > s.saturating_add(allowance) {
                grew.push(format!(
                    "{step}: {s} {what} in a volume of {small} GiB, {l} in one of {large} GiB"
                ));
            }
        }
    }
    if grew.is_empty() { Ok(()) } else { Err(grew.join("; ").into()) }
}
