//! How long the recovery of a long log takes that no checkpoint has folded.
//!
//!     recovery [--mib N] [--size BYTES] [--image PATH] [--cold]
//!
//! Files of SIZE bytes (default 16384) are written and fsynced until the log has grown by N MiB
//! (default 1024); then the volume stops as in a crash and is opened again. `--cold` drops the
//! kernel's cache of the image before.

use lanefs::{Cred, MountOptions, Volume};
use lanefs_store::device::{Device, FileDevice, ReadReq, WriteReq};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// The image, with what is written to it counted and flushes left out: what is measured is the
/// opening, and no power is cut.
#[derive(Debug)]
struct Counted {
    file: FileDevice,
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
        self.file.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        // Relaxed: a statistic.
        self.written.fetch_add(reqs.iter().map(|r| r.data.len() as u64).sum(), Relaxed);
        self.file.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_store::Result<()> {
        self.file.discard(offset, len)
    }
}

fn main() -> Result<(), Failure> {
    let (mut mib, mut size, mut image, mut cold) = (1024, 16384, None, false);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or(format!("{a} takes a value"));
        match a.as_str() {
            "--mib" => mib = value()?.parse::<u64>()?,
            "--size" => size = value()?.parse::<usize>()?,
            "--image" => image = Some(value()?),
            "--cold" => cold = true,
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    let folder = tempfile::tempdir()?;
    let image = image.map_or_else(|| folder.path().join("recovery.lane"), Into::into);
    let device =
        Arc::new(Counted { file: FileDevice::create(&image, (mib << 20) * 3)?, written: AtomicU64::new(0) });
    let shared: Arc<dyn Device> = device.clone();
    Store::format(std::slice::from_ref(&shared), &FormatOptions::for_caller())?;
    // No background work: no checkpoint.
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = Volume::open_devices(vec![shared], &options)?;
    let fs = volume.as_user(Cred::root());
    let before = device.written.load(Relaxed);
    let data = vec![5; size];
    let mut files = 0;
    while device.written.load(Relaxed) - before < mib << 20 {
        if files % 1000 == 0 {
            fs.mkdir(format!("{}", files / 1000), 0o755)?;
        }
        let file = fs.create(format!("{}/{files}", files / 1000))?;
        file.write_all_at(&data, 0)?;
        file.sync_all()?;
        files += 1;
    }
    volume.shutdown();
    let written = (device.written.load(Relaxed) - before) >> 20;
    drop((fs, volume, device));
    if cold {
        std::process::Command::new("sync").status()?;
        std::fs::write("/proc/sys/vm/drop_caches", "1")?;
    }
    let start = Instant::now();
    let volume = Volume::open(&[&image], &options)?;
    let took = start.elapsed();
    let r = volume.open_report();
    println!(
        "{written} MiB of log, {files} files of {size} bytes: opened in {:.2} s; {} blocks looked at, {} batches ({} dropped), {} operations, \
         {} inode updates",
        took.as_secs_f64(),
        r.blocks_scanned,
        r.batches,
        r.batches_dropped,
        r.groups,
        r.inode_updates
    );
    let fs = volume.as_user(Cred::root());
    for n in 0..files {
        if fs.stat(format!("{}/{n}", n / 1000))?.size != size as u64
            || n % 97 == 0 && fs.read(format!("{}/{n}", n / 1000))? != data
        {
            return Err(format!("file {n}: not what was acknowledged").into());
        }
    }
    println!("all {files} files are there");
    volume.shutdown();
    Ok(())
}
