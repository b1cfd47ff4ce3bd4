//! A sparse file of 100 GiB under a memory budget.
//!
//!     memory [--budget MIB] [--image PATH]
//!     memory --dir DIR --pid PID        the same through a mount; the memory of process PID is shown
//!
//! Pages are written all over the file, synced, read back and compared; what lies between must be
//! zeros, and the holes must be found as holes.

// The allocator of the `lanefs` command, which gives memory back to the system as soon: that is
// measured too.
#[path = "../../lanefs-cli/src/allocator.rs"]
mod allocator;
#[path = "common/process.rs"]
mod process;

use lanefs::{File, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{FormatOptions, Store};
use process::{Failure, Memory};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

const SIZE: u64 = 100 << 30;
/// Pages written.
const ISLANDS: u64 = 50_000;

/// The file, here or there.
enum Sparse {
    Library(File),
    Mount(std::fs::File),
}

impl Sparse {
    fn set_len(&self, len: u64) -> Result<(), Failure> {
        match self {
            Sparse::Library(f) => f.set_len(len)?,
            Sparse::Mount(f) => f.set_len(len)?,
        }
        Ok(())
    }
    fn write(&self, data: &[u8], at: u64) -> Result<(), Failure> {
        match self {
            Sparse::Library(f) => f.write_all_at(data, at)?,
            Sparse::Mount(f) => f.write_all_at(data, at)?,
        }
        Ok(())
    }
    fn read(&self, data: &mut [u8], at: u64) -> Result<(), Failure> {
        match self {
            Sparse::Library(f) => f.read_exact_at(data, at)?,
            Sparse::Mount(f) => f.read_exact_at(data, at)?,
        }
        Ok(())
    }
    fn sync(&self) -> Result<(), Failure> {
        match self {
            Sparse::Library(f) => f.sync_all()?,
            Sparse::Mount(f) => f.sync_all()?,
        }
        Ok(())
    }
    fn lseek(&self, at: u64, whence: i32) -> Result<u64, Failure> {
        match self {
            Sparse::Library(f) => Ok(f.lseek(at as i64, whence)?),
            Sparse::Mount(f) => {
                let from = match whence {
                    libc::SEEK_DATA => rustix::fs::SeekFrom::Data(at),
                    _ => rustix::fs::SeekFrom::Hole(at),
                };
                Ok(rustix::fs::seek(f, from)?)
            }
        }
    }
}

/// Where the n-th page lies: spread, ascending, never two side by side.
fn place(n: u64) -> u64 {
    let step = SIZE / ISLANDS / 4096 * 4096;
    n * step + (n * 7919 % 100) * 4096
}

fn run(file: &Sparse, memory: &Memory, volume: Option<&Volume>) -> Result<(), Failure> {
    let start = Instant::now();
    file.set_len(SIZE)?;
    memory.show("100 GiB, empty", start, 0);
    let start = Instant::now();
    for n in 0..ISLANDS {
        file.write(&[n as u8 | 1; 4096], place(n.wrapping_mul(7919) % ISLANDS))?;
    }
    memory.show("pages written", start, ISLANDS);
    let start = Instant::now();
    file.sync()?;
    memory.show("synced", start, 0);
    if let Some(volume) = volume {
        let start = Instant::now();
        volume.checkpoint()?;
        memory.show("checkpoint", start, 0);
    }
    let start = Instant::now();
    let mut two = [0; 8192];
    for n in 0..ISLANDS {
        let at = place(n.wrapping_mul(7919) % ISLANDS);
        file.read(&mut two[..(SIZE - at).min(8192) as usize], at)?;
        if two[..4096] != [n as u8 | 1; 4096] || two[4096..] != [0; 4096] {
            return Err(format!("at {at}: not what was written").into());
        }
    }
    memory.show("read and compared", start, ISLANDS);
    let start = Instant::now();
    let (mut at, mut found) = (0, 0);
    while let Ok(data) = file.lseek(at, libc::SEEK_DATA) {
        if data != place(found) {
            return Err(format!("data found at {data}, expected at {}", place(found)).into());
        }
        at = file.lseek(data, libc::SEEK_HOLE)?;
        found += 1;
    }
    memory.show("holes found", start, found);
    if found != ISLANDS { Err(format!("{found} islands found, not {ISLANDS}").into()) } else { Ok(()) }
}

fn main() -> Result<(), Failure> {
    allocator::give_back_soon();
    let (mut budget, mut image, mut dir, mut pid) = (128, None, None, None);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let value = args.next().ok_or("every option takes a value")?;
        match a.as_str() {
            "--budget" => budget = value.parse()?,
            "--image" => image = Some(value),
            "--dir" => dir = Some(value),
            "--pid" => pid = Some(value.parse()?),
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    if let Some(dir) = dir {
        let path = std::path::Path::new(&dir).join("sparse");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
        run(&Sparse::Mount(file), &Memory::of(pid), None)?;
        return Ok(std::fs::remove_file(path)?);
    }
    let memory = Memory::of(None);
    let folder = tempfile::tempdir()?;
    let image = image.map_or_else(|| folder.path().join("memory.lane"), Into::into);
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(&image, 4 << 30)?);
    Store::format(std::slice::from_ref(&device), &FormatOptions::for_caller())?;
    drop(device);
    let at_rest: Option<fn()> = Some(allocator::give_back_now);
    let options = MountOptions { cache_size: budget << 20, at_rest, ..MountOptions::default() };
    let volume = Volume::open(&[&image], &options)?;
    println!("budget {budget} MiB, image {}", image.display());
    let mut new = OpenOptions::new();
    new.read(true).write(true).create_new(true);
    run(&Sparse::Library(volume.fs().open("sparse", &new)?), &memory, Some(&volume))?;
    volume.fs().unlink("sparse")?;
    let start = Instant::now();
    volume.close()?;
    memory.show("removed and closed", start, 0);
    Ok(())
}
