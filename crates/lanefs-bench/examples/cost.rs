//! What one operation costs in process, on one thread, beside the same loop on tmpfs.
//!
//!     cost [--tmpfs DIR] [--image PATH] [--rounds N] [--floor X] [--only NAME]
//!
//! Rounds of both alternate, so that whatever disturbs the machine disturbs both; the figure is the
//! median round's time for one operation. LaneFS runs on a volume in memory unless an image is
//! named. Exits with 1 if an operation is less than X times as fast as on tmpfs (default 3). With
//! `--only create` (or any other name of the table; the first three go together) LaneFS runs alone,
//! for a profiler.

use lanefs::{File, Fs, MountOptions, OpenOptions, Volume};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// As the command and the benchmarks have it: cells and entries are aligned to lines, which the C
/// library's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Operations of one kind in a row: enough that the second target finds little of the first one's
/// in the processor's caches, and so few that most rows are over before the scheduler takes the
/// processor away.
const OPS: usize = 1000;

type Failure = Box<dyn std::error::Error>;

/// The calls compared, with names made before the clock runs.
trait Target {
    type Handle;
    fn open(&self, path: &CString, flags: i32) -> Result<Self::Handle, Failure>;
    fn unlink(&self, path: &CString) -> Result<(), Failure>;
    fn rename(&self, old: &CString, new: &CString) -> Result<(), Failure>;
    fn mkdir(&self, path: &CString) -> Result<(), Failure>;
    fn stat(&self, path: &CString) -> Result<u64, Failure>;
    fn write_at(&self, file: &Self::Handle, data: &[u8], offset: u64) -> Result<(), Failure>;
    fn append(&self, file: &Self::Handle, data: &[u8]) -> Result<(), Failure>;
    fn read_at(&self, file: &Self::Handle, data: &mut [u8], offset: u64) -> Result<(), Failure>;
    fn empty(&self, file: &Self::Handle) -> Result<(), Failure>;
    /// The path as this target knows it.
    fn path(&self, path: &str) -> Result<CString, Failure>;
}

struct Kernel {
    base: String,
}

fn done(r: i64) -> Result<i64, Failure> {
    if r < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(r) }
}

impl Target for Kernel {
    type Handle = OwnedFd;
    fn open(&self, path: &CString, flags: i32) -> Result<OwnedFd, Failure> {
        // SAFETY: the path ends in NUL and lives as long as the call.
        let fd = done(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) }.into())?;
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
    fn unlink(&self, path: &CString) -> Result<(), Failure> {
        // SAFETY: the path ends in NUL and lives as long as the call.
        done(unsafe { libc::unlink(path.as_ptr()) }.into()).map(drop)
    }
    fn rename(&self, old: &CString, new: &CString) -> Result<(), Failure> {
        // SAFETY: both paths end in NUL and live as long as the call.
        done(unsafe { libc::rename(old.as_ptr(), new.as_ptr()) }.into()).map(drop)
    }
    fn mkdir(&self, path: &CString) -> Result<(), Failure> {
        // SAFETY: the path ends in NUL and lives as long as the call.
        done(unsafe { libc::mkdir(path.as_ptr(), 0o755) }.into()).map(drop)
    }
    fn stat(&self, path: &CString) -> Result<u64, Failure> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the path ends in NUL; the kernel fills the structure, which is large enough.
        done(unsafe { libc::stat(path.as_ptr(), stat.as_mut_ptr()) }.into())?;
        // SAFETY: the call succeeded, so the structure is filled.
        Ok(unsafe { stat.assume_init() }.st_ino)
    }
    fn write_at(&self, file: &OwnedFd, data: &[u8], offset: u64) -> Result<(), Failure> {
        // SAFETY: the buffer is valid for its length; the descriptor is open.
        let r = unsafe { libc::pwrite(file.as_raw_fd(), data.as_ptr().cast(), data.len(), offset as i64) };
        done(r as i64).map(drop)
    }
    fn append(&self, file: &OwnedFd, data: &[u8]) -> Result<(), Failure> {
        // SAFETY: the buffer is valid for its length; the descriptor is open.
        done(unsafe { libc::write(file.as_raw_fd(), data.as_ptr().cast(), data.len()) } as i64).map(drop)
    }
    fn read_at(&self, file: &OwnedFd, data: &mut [u8], offset: u64) -> Result<(), Failure> {
        // SAFETY: the buffer is valid and writable for its length; the descriptor is open.
        let r = unsafe { libc::pread(file.as_raw_fd(), data.as_mut_ptr().cast(), data.len(), offset as i64) };
        done(r as i64).map(drop)
    }
    fn empty(&self, file: &OwnedFd) -> Result<(), Failure> {
        // SAFETY: only numbers are passed.
        done(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }.into()).map(drop)
    }
    fn path(&self, path: &str) -> Result<CString, Failure> {
        Ok(CString::new(format!("{}/{path}", self.base))?)
    }
}

struct Library(Fs);

impl Target for Library {
    type Handle = File;
    fn open(&self, path: &CString, flags: i32) -> Result<File, Failure> {
        let mut o = OpenOptions::new();
        o.flags = flags;
        o.mode = 0o644;
        Ok(self.0.open(path.as_bytes(), &o)?)
    }
    fn unlink(&self, path: &CString) -> Result<(), Failure> {
        Ok(self.0.unlink(path.as_bytes())?)
    }
    fn rename(&self, old: &CString, new: &CString) -> Result<(), Failure> {
        Ok(self.0.rename(old.as_bytes(), new.as_bytes())?)
    }
    fn mkdir(&self, path: &CString) -> Result<(), Failure> {
        Ok(self.0.mkdir(path.as_bytes(), 0o755)?)
    }
    fn stat(&self, path: &CString) -> Result<u64, Failure> {
        Ok(self.0.stat(path.as_bytes())?.ino.0)
    }
    fn write_at(&self, file: &File, data: &[u8], offset: u64) -> Result<(), Failure> {
        file.write_at(data, offset)?;
        Ok(())
    }
    fn append(&self, file: &File, data: &[u8]) -> Result<(), Failure> {
        file.append(data)?;
        Ok(())
    }
    fn read_at(&self, file: &File, data: &mut [u8], offset: u64) -> Result<(), Failure> {
        file.read_at(data, offset)?;
        Ok(())
    }
    fn empty(&self, file: &File) -> Result<(), Failure> {
        Ok(file.set_len(0)?)
    }
    fn path(&self, path: &str) -> Result<CString, Failure> {
        Ok(CString::new(path)?)
    }
}

/// Names and files of one target, made before anything is measured.
struct Bench<T: Target> {
    target: T,
    names: Vec<CString>,
    moved: Vec<CString>,
    deep: CString,
    file: T::Handle,
    log: T::Handle,
    only: Option<usize>,
}

const KINDS: usize = 9;
const OPERATIONS: [&str; KINDS] = [
    "create",
    "rename",
    "unlink",
    "stat, 5 deep",
    "open+close",
    "overwrite 4K",
    "append 4K",
    "read 4K",
    "over 1 MiB",
];
/// The last row is shown and not judged: its pages come from beyond the second-level cache, and
/// both sides wait for memory.
const JUDGED: usize = KINDS - 1;

impl<T: Target> Bench<T> {
    fn new(target: T, only: Option<usize>) -> Result<Bench<T>, Failure> {
        let mut dir = String::from("cost");
        target.mkdir(&target.path(&dir)?)?;
        for part in ["b", "c", "d"] {
            dir = format!("{dir}/{part}");
            target.mkdir(&target.path(&dir)?)?;
        }
        let deep = target.path(&format!("{dir}/file"))?;
        let flags = libc::O_CREAT | libc::O_RDWR;
        let file = target.open(&deep, flags)?;
        let log = target.open(&target.path("cost/log")?, flags | libc::O_APPEND)?;
        for page in 0..256 {
            target.write_at(&file, &[7; 4096], page * 4096)?;
        }
        let list = |prefix: &str| -> Result<Vec<CString>, Failure> {
            (0..OPS).map(|n| target.path(&format!("cost/{prefix}{n}"))).collect()
        };
        Ok(Bench { names: list("file")?, moved: list("moved")?, deep, file, log, target, only })
    }

    /// Nanoseconds for one operation, for each of [`OPERATIONS`].
    fn round(&self) -> Result<[f64; KINDS], Failure> {
        let t = &self.target;
        let mut page = [1; 4096];
        let mut results = [0.0; KINDS];
        let mut at = 0;
        let mut time = |work: &mut dyn FnMut(usize) -> Result<(), Failure>| -> Result<(), Failure> {
            let group = |n: usize| n.max(2);
            let start = Instant::now();
            for n in 0..if self.only.is_none_or(|o| group(o) == group(at)) { OPS } else { 0 } {
                work(n)?;
            }
            results[at] = start.elapsed().as_nanos() as f64 / OPS as f64;
            at += 1;
            Ok(())
        };
        let new = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        time(&mut |n| t.open(&self.names[n], new).map(drop))?;
        time(&mut |n| t.rename(&self.names[n], &self.moved[n]))?;
        time(&mut |n| t.unlink(&self.moved[n]))?;
        time(&mut |_| t.stat(&self.deep).map(|ino| assert!(std::hint::black_box(ino) > 0)))?;
        time(&mut |_| t.open(&self.deep, libc::O_RDONLY).map(drop))?;
        time(&mut |_| t.write_at(&self.file, &page, 0))?;
        t.empty(&self.log)?;
        time(&mut |_| t.append(&self.log, &[2; 4096]))?;
        time(&mut |_| t.read_at(&self.file, &mut page, 0))?;
        time(&mut |n| t.write_at(&self.file, &page, (n as u64 * 37 % 256) * 4096))?;
        Ok(results)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Failure> {
    let (mut tmpfs, mut image, mut rounds, mut floor) = (String::from("/dev/shm"), None, 301, 3.0);
    let mut only = None;
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let value = args.next().ok_or("every option takes a value")?;
        match a.as_str() {
            "--tmpfs" => tmpfs = value,
            "--image" => image = Some(value),
            "--rounds" => rounds = value.parse()?,
            "--floor" => floor = value.parse()?,
            "--only" => only = Some(OPERATIONS.iter().position(|o| *o == value).ok_or("no such operation")?),
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    let folder = tempfile::Builder::new().prefix("lanefs-cost-").tempdir_in(&tmpfs)?;
    let kernel = Bench::new(Kernel { base: folder.path().display().to_string() }, None)?;
    let volume = match &image {
        Some(path) => Volume::open(&[path], &MountOptions::default())?,
        None => Volume::in_memory(2 << 30)?,
    };
    let lane = Bench::new(Library(volume.fs()), only)?;
    let mut samples: [[Vec<f64>; KINDS]; 2] = Default::default();
    for _ in 0..rounds + 2 {
        let peer = if only.is_some() { [0.0; KINDS] } else { kernel.round()? };
        for (which, result) in [peer, lane.round()?].into_iter().enumerate() {
            for (all, one) in samples[which].iter_mut().zip(result) {
                all.push(one);
            }
        }
    }
    println!(
        "{:<14} {:>10} {:>10} {:>8}   one thread, median of {rounds} rounds of {OPS}",
        "", "tmpfs ns", "lanefs ns", "times"
    );
    let mut slow = Vec::new();
    let [tmpfs, lane_ns] = &mut samples;
    for (n, (name, (a, b))) in OPERATIONS.iter().zip(tmpfs.iter_mut().zip(lane_ns)).enumerate() {
        // The first two rounds warm both up.
        let (a, b) = (median(&mut a[2..]), median(&mut b[2..]));
        println!("{name:<14} {a:>10.0} {b:>10.0} {:>8.2}", a / b);
        if a / b < floor && n < JUDGED {
            slow.push(*name);
        }
    }
    drop(lane);
    volume.close()?;
    if only.is_some() {
        return Ok(());
    }
    if slow.is_empty() {
        Ok(())
    } else {
        Err(format!("less than {floor} times tmpfs: {}", slow.join(", ")).into())
    }
}
