//! A file system exerciser after Apple's fsx: random operations on one file, and on a copy of it in
//! memory that says what every read must give.
//! `xtask fsx [--ops N] [--seed S] [--direct] [--mmap] FILE`; the same seed does the same again.
//!
//! Operations: write, read, truncate, append, allocate (extending and with the size kept), punch,
//! zero a range, copy a range, fsync, close and open; with `--mmap` also reads and writes through
//! mappings; with `--direct` reads and writes go through O_DIRECT in units of 512 bytes.

use super::{Place, child};
use lanefs_sync::random::Rng;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The file is never longer.
const LONGEST: usize = 512 << 10;
/// No operation touches more.
const WIDEST: u64 = 64 << 10;
/// The alignment that O_DIRECT asks for.
const SECTOR: u64 = 512;

pub fn buffered(place: &Place) -> Result<String, String> {
    in_a_process(place, &[])
}
pub fn direct(place: &Place) -> Result<String, String> {
    in_a_process(place, &["--direct"])
}
pub fn mapped(place: &Place) -> Result<String, String> {
    in_a_process(place, &["--mmap"])
}

/// In a process of its own, so that it can be ended when it hangs.
fn in_a_process(place: &Place, flags: &[&str]) -> Result<String, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let ops = place.amount(100_000, 15_000).to_string();
    let mut c = Command::new(this);
    c.args(["fsx", "--ops", &ops, "--seed", "1"]).args(flags).arg(place.dir.join("fsx"));
    let limit = Duration::from_secs(place.amount(1200, 200));
    child::succeed(&mut c, &place.outside, limit).map(|text| text.trim().to_string())
}

/// The command.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let (mut ops, mut seed, mut direct, mut mmap) = (100_000, 1, false, false);
    let mut path = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || rest.next().and_then(|n| n.parse().ok()).ok_or(format!("{argument}: a number"));
        match *argument {
            "--ops" => ops = number()?,
            "--seed" => seed = number()?,
            "--direct" => direct = true,
            "--mmap" => mmap = true,
            file => path = Some(PathBuf::from(file)),
        }
    }
    let path = path.ok_or("usage: fsx [--ops N] [--seed S] [--direct] [--mmap] FILE")?;
    let mut fsx = Fsx::new(&path, seed, direct, mmap).map_err(|e| format!("{}: {e}", path.display()))?;
    for n in 0..ops {
        fsx.step(n)
            .map_err(|e| format!("operation {n} of seed {seed}: {e}\nlast operations:\n{}", fsx.history()))?;
    }
    fsx.reopen().and_then(|()| fsx.check_all()).map_err(|e| format!("at the end: {e}\n{}", fsx.history()))?;
    let how = if direct {
        ", O_DIRECT"
    } else if mmap {
        ", mmap"
    } else {
        ""
    };
    println!("{ops} operations{how}, seed {seed}");
    std::fs::remove_file(&path).map_err(|e| e.to_string())
}

struct Fsx {
    path: PathBuf,
    file: File,
    /// The content that the file must have.
    good: Vec<u8>,
    random: Rng,
    direct: bool,
    mmap: bool,
    /// Room for O_DIRECT, aligned.
    buffer: Buffer,
    done: VecDeque<String>,
}

/// Bytes at an address that O_DIRECT takes.
struct Buffer(Vec<u8>, usize);

impl Buffer {
    fn new(size: usize) -> Buffer {
        let bytes = vec![0; size + 4096];
        let skip = bytes.as_ptr().align_offset(4096);
        Buffer(bytes, skip)
    }
    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + len]
    }
}

fn open(path: &Path, direct: bool) -> std::io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path)
}

impl Fsx {
    fn new(path: &Path, seed: u64, direct: bool, mmap: bool) -> std::io::Result<Fsx> {
        let _ = std::fs::remove_file(path);
        Ok(Fsx {
            path: path.to_path_buf(),
            file: open(path, direct)?,
            good: Vec::new(),
            random: Rng::at(seed),
            direct,
            mmap,
            buffer: Buffer::new(WIDEST as usize + SECTOR as usize),
            done: VecDeque::new(),
        })
    }

    fn history(&self) -> String {
        self.done.iter().map(|d| format!("  {d}\n")).collect()
    }

    fn note(&mut self, n: u64, what: String) {
        if self.done.len() == 30 {
            self.done.pop_front();
        }
        self.done.push_back(format!("{n}: {what} (size {})", self.good.len()));
    }

    /// A random range below `limit`, in whole sectors if the file is open for direct I/O.
    fn range(&mut self, limit: u64) -> (u64, u64) {
        let mut offset = self.random.below(limit);
        let mut len = 1 + self.random.below(WIDEST.min(limit - offset));
        if self.random.one_in(4) {
            len = (1 + len % 100).min(limit - offset);
        }
        if self.direct {
            offset -= offset % SECTOR;
            len = len.next_multiple_of(SECTOR).min(limit - offset);
        }
        (offset, len)
    }

    fn step(&mut self, n: u64) -> Result<(), String> {
        let size = self.good.len() as u64;
        let longest = LONGEST as u64;
        let io = |e: std::io::Error| e.to_string();
        let kind = self.random.below(100);
        match kind {
            0..=24 => {
                let (offset, len) = self.range(longest);
                self.note(n, format!("write {offset} +{len}"));
                self.write(offset, len)?;
            }
            25..=47 if size > 0 => {
                let (offset, len) = self.range(size);
                self.note(n, format!("read {offset} +{len}"));
                self.check(offset, len)?;
            }
            48..=53 => {
                let to = self.random.below(longest);
                self.note(n, format!("truncate {to}"));
                self.file.set_len(to).map_err(io)?;
                self.good.resize(to as usize, 0);
            }
            54..=58 if !self.direct => {
                let len = 1 + self.random.below(5000).min(longest - size);
                if size + len <= longest {
                    self.note(n, format!("append +{len}"));
                    self.write(size, len)?;
                }
            }
            59..=63 => {
                let (offset, len) = self.range(longest);
                let keep = self.random.one_in(2);
                self.note(n, format!("allocate {offset} +{len} keep {keep}"));
                if self.allocate(if keep { libc::FALLOC_FL_KEEP_SIZE } else { 0 }, offset, len)? && !keep {
                    let end = (offset + len) as usize;
                    self.good.resize(self.good.len().max(end), 0);
                }
            }
            64..=69 if size > 0 => {
                let (offset, len) = self.range(longest);
                self.note(n, format!("punch {offset} +{len}"));
                if self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)? {
                    self.zero(offset, len);
                }
            }
            70..=74 => {
                let (offset, len) = self.range(longest);
                let keep = self.random.one_in(2);
                self.note(n, format!("zero {offset} +{len} keep {keep}"));
                let keep_flag = if keep { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                if self.allocate(libc::FALLOC_FL_ZERO_RANGE | keep_flag, offset, len)? {
                    if !keep {
                        let end = (offset + len) as usize;
                        self.good.resize(self.good.len().max(end), 0);
                    }
                    self.zero(offset, len);
                }
            }
            75..=78 if size > 1 => self.copy(n)?,
            79..=86 if self.mmap && size > 0 => {
                let (offset, len) = self.range(size);
                let write = self.random.one_in(2);
                self.note(n, format!("mapped {} {offset} +{len}", if write { "write" } else { "read" }));
                self.mapped(offset, len, write)?;
            }
            87..=88 => {
                self.note(n, "fsync".into());
                self.file.sync_all().map_err(io)?;
            }
            89..=90 => {
                self.note(n, "close and open".into());
                self.reopen()?;
            }
            91 if self.random.one_in(4) => {
                self.note(n, "drop caches of the file, read all".into());
                self.file.sync_all().map_err(io)?;
                // SAFETY: advice about an open descriptor; no memory is involved.
                unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
                self.check_all()?;
            }
            _ => {}
        }
        let len = self.file.metadata().map_err(io)?.len();
        if len == self.good.len() as u64 {
            Ok(())
        } else {
            Err(format!("the size is {len}, not {}", self.good.len()))
        }
    }

    fn reopen(&mut self) -> Result<(), String> {
        self.file = open(&self.path, self.direct).map_err(|e| e.to_string())?;
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let size = self.good.len();
        let (from, to) = ((offset as usize).min(size), ((offset + len) as usize).min(size));
        self.good[from..to].fill(0);
    }

    fn write(&mut self, offset: u64, len: u64) -> Result<(), String> {
        let (from, to) = (offset as usize, (offset + len) as usize);
        if self.good.len() < to {
            self.good.resize(to, 0);
        }
        self.random.fill(&mut self.good[from..to]);
        let bytes = self.buffer.get(to - from);
        bytes.copy_from_slice(&self.good[from..to]);
        self.file.write_all_at(bytes, offset).map_err(|e| e.to_string())
    }

    /// Reads a range and compares. At the end of the file direct reads may ask for more than there
    /// is.
    fn check(&mut self, offset: u64, len: u64) -> Result<(), String> {
        let ask = if self.direct { len.next_multiple_of(SECTOR) } else { len };
        let size = self.good.len() as u64;
        let bytes = self.buffer.get(ask as usize);
        let mut got = 0;
        while got < bytes.len() {
            match self.file.read_at(&mut bytes[got..], offset + got as u64).map_err(|e| e.to_string())? {
                0 => break,
                n => got += n,
            }
        }
        let expected = (offset + ask).min(size) - offset.min(size);
        if got as u64 != expected {
            return Err(format!("read {offset} +{ask} gave {got} bytes, not {expected}"));
        }
        compare(offset, &bytes[..got], &self.good[offset as usize..])
    }

    fn check_all(&mut self) -> Result<(), String> {
        let size = self.good.len() as u64;
        (0..size).step_by(WIDEST as usize).try_for_each(|at| self.check(at, WIDEST.min(size - at)))
    }

    /// False if the file system cannot do this.
    fn allocate(&self, mode: i32, offset: u64, len: u64) -> Result<bool, String> {
        // SAFETY: only numbers are passed; the descriptor is open.
        let r = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as i64, len as i64) };
        let error = std::io::Error::last_os_error();
        match (r, error.raw_os_error()) {
            (0, _) => Ok(true),
            (_, Some(libc::EOPNOTSUPP)) => Ok(false),
            _ => Err(error.to_string()),
        }
    }

    /// Copies within the file, between ranges that do not meet.
    fn copy(&mut self, n: u64) -> Result<(), String> {
        let size = self.good.len() as u64;
        let (from, len) = self.range(size);
        let mut len = len.min(size - from);
        if self.direct {
            len -= len % SECTOR;
        }
        if len == 0 {
            return Ok(());
        }
        let to = self.random.below(LONGEST as u64 - len);
        let to = if self.direct { to - to % SECTOR } else { to };
        if from < to + len && to < from + len {
            return Ok(());
        }
        self.note(n, format!("copy {from} +{len} to {to}"));
        let (mut at, mut target) = (from as i64, to as i64);
        let mut left = len as usize;
        while left > 0 {
            let fd = self.file.as_raw_fd();
            // SAFETY: both offsets are live variables of ours; the descriptor is open.
            let n = unsafe { libc::copy_file_range(fd, &mut at, fd, &mut target, left, 0) };
            match n {
                0 => return Err(format!("copy_file_range stopped with {left} bytes left")),
                n if n > 0 => left -= n as usize,
                _ => return Err(format!("copy_file_range: {}", std::io::Error::last_os_error())),
            }
        }
        let bytes = self.good[from as usize..(from + len) as usize].to_vec();
        let end = (to + len) as usize;
        if self.good.len() < end {
            self.good.resize(end, 0);
        }
        self.good[to as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    /// Reads or writes a range through a mapping made for it.
    fn mapped(&mut self, offset: u64, len: u64, write: bool) -> Result<(), String> {
        let start = offset - offset % 4096;
        let skip = (offset - start) as usize;
        let size = skip + len as usize;
        let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.file.as_raw_fd());
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), size, prot, libc::MAP_SHARED, fd, start as i64) };
        if map == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the mapping is `size` bytes long and lies within the file's size, which nobody
        // changes meanwhile: this process is the only user of the file and has one thread. It is
        // unmapped only after the slice's last use.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), size) };
        let range = offset as usize..(offset + len) as usize;
        let mut result = Ok(());
        if write {
            self.random.fill(&mut self.good[range.clone()]);
            bytes[skip..].copy_from_slice(&self.good[range]);
            if self.random.one_in(4) {
                // SAFETY: the range of the mapping made above.
                let r = unsafe { libc::msync(map, size, libc::MS_SYNC) };
                if r != 0 {
                    result = Err(format!("msync: {}", std::io::Error::last_os_error()));
                }
            }
        } else {
            result = compare(offset, &bytes[skip..], &self.good[offset as usize..]);
        }
        // SAFETY: the mapping made above; `bytes` is not used any more.
        unsafe { libc::munmap(map, size) };
        result
    }
}

/// The first difference, if there is one, with where it ends.
fn compare(offset: u64, got: &[u8], good: &[u8]) -> Result<(), String> {
    let Some(first) = got.iter().zip(good).position(|(a, b)| a != b) else { return Ok(()) };
    let bad = got.iter().zip(good).skip(first).take_while(|(a, b)| a != b).count();
    let zeros = got[first..first + bad].iter().all(|b| *b == 0);
    Err(format!(
        "wrong from {} for some {bad} bytes: {:02x?}{}, not {:02x?}",
        offset + first as u64,
        &got[first..(first + 8).min(got.len())],
        if zeros { " (zeros)" } else { "" },
        &good[first..(first + 8).min(good.len())],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range that ended behind its limit made the file longer than it may be, and mapped what it
    /// does not have.
    #[test]
    fn ranges_end_at_their_limit() {
        let dir = std::env::temp_dir().join(format!("lanefs-fsx-{}", std::process::id()));
        for direct in [false, true] {
            let mut fsx = Fsx::new(&dir, 5, false, false).unwrap();
            fsx.direct = direct;
            for limit in (1..200).chain([4097, LONGEST as u64]).cycle().take(20_000) {
                let (offset, len) = fsx.range(limit);
                assert!(offset < limit && offset + len <= limit, "{offset} +{len} of {limit}");
            }
        }
        std::fs::remove_file(dir).unwrap();
    }
}
