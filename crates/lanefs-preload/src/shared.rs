//! Mappings that are shared and may be written: of memory that stands beside the file.
//!
//! S1 While a file is mapped so, there is one file in memory (a shadow) as long as it, of which all
//!    its mappings are: they see each other's stores at once.
//! S2 Whatever changes the file is done to the shadow too, in the bytes that it changes and no
//!    others, so that no store of another thread is lost.
//! S3 What was stored gets into the file before the file is read, synced or copied, when its last
//!    mapping goes, and when the volume is closed. A process that is killed before has not written
//!    it.
//! S4 A file that becomes longer has zeros there, and not what was stored behind its end, in the
//!    rest of its last page.

use crate::hook::errno as told;
use crate::raw::sys;
use lanefs::{Cred, File, Ino, Volume};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are compared and copied at once.
const PIECE: usize = 64 << 10;
/// The pages in which what was stored is found.
const PAGE: usize = 4096;

struct Shadow {
    memory: c_int,
    /// A handle of its own: the program may close those it has.
    file: File,
    /// The addresses of the mappings.
    mapped: Vec<Range<usize>>,
}

static SHADOWS: Mutex<BTreeMap<u64, Shadow>> = Mutex::new(BTreeMap::new());
/// How many there are. Relaxed: who maps a file and uses it elsewhere at once orders the two.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn shadows() -> MutexGuard<'static, BTreeMap<u64, Shadow>> {
    SHADOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether any file is mapped so.
#[inline]
fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

impl Shadow {
    /// Makes the shadow of a file.
    fn new(volume: &Volume, ino: Ino) -> Result<Shadow, c_int> {
        let cred = Cred { prechecked: true, ..Cred::current() };
        let file = volume.node_open(&cred, ino, libc::O_RDWR).map_err(|e| e.errno())?;
        // SAFETY: the name ends in a NUL.
        let memory = unsafe { libc::memfd_create(c"lanefs-mmap".as_ptr(), libc::MFD_CLOEXEC) };
        if memory < 0 {
            return Err(told());
        }
        let shadow = Shadow { memory: crate::placeholder::own(memory), file, mapped: Vec::new() };
        let size = shadow.file.stat().map_err(|e| e.errno())?.size;
        shadow.resize(size)?;
        shadow.load(0..size)?;
        Ok(shadow)
    }

    /// Drops what was stored behind the end, in a file that is about to have at least `size` bytes
    /// (S4): the kernel keeps it.
    fn drop_tail(&self, size: u64) -> Result<(), c_int> {
        // SAFETY: lseek takes any number, and nobody uses the position.
        let end = unsafe { sys!(libc::SYS_lseek, self.memory, 0, libc::SEEK_END) };
        let end = u64::try_from(end).map_err(|_| told())?;
        let tail = end..end.next_multiple_of(PAGE as u64).min(size);
        if tail.is_empty() {
            return Ok(());
        }
        self.put(&[0; PAGE][..(tail.end - tail.start) as usize], tail.start)
    }

    fn resize(&self, size: u64) -> Result<(), c_int> {
        self.drop_tail(size)?;
        // SAFETY: ftruncate takes any number.
        if unsafe { sys!(libc::SYS_ftruncate, self.memory, size) } == 0 { Ok(()) } else { Err(told()) }
    }

    /// Puts bytes of the file into the shadow.
    fn load(&self, mut range: Range<u64>) -> Result<(), c_int> {
        let mut buf = vec![0; PIECE];
        while range.start < range.end {
            let want = PIECE.min((range.end - range.start) as usize);
            match self.file.read_at(&mut buf[..want], range.start).map_err(|e| e.errno())? {
                0 => break,
                n => {
                    self.put(&buf[..n], range.start)?;
                    range.start += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Puts bytes into the shadow, which they may make longer.
    fn store(&self, bytes: &[u8], at: u64) -> Result<(), c_int> {
        self.drop_tail(at)?;
        self.put(bytes, at)
    }

    fn put(&self, mut bytes: &[u8], mut at: u64) -> Result<(), c_int> {
        while !bytes.is_empty() {
            // SAFETY: the pointer and the length are those of the bytes.
            let n = unsafe { sys!(libc::SYS_pwrite64, self.memory, bytes.as_ptr(), bytes.len(), at) };
            let n = usize::try_from(n).map_err(|_| told())?.max(1);
            bytes = &bytes[n..];
            at += n as u64;
        }
        Ok(())
    }

    /// Writes pages to the file in which the shadow differs.
    fn write_back(&self) -> Result<(), c_int> {
        let size = self.file.stat().map_err(|e| e.errno())?.size;
        let (mut new, mut old) = (vec![0u8; PIECE], vec![0u8; PIECE]);
        let mut at = 0u64;
        while at < size {
            let want = PIECE.min((size - at) as usize);
            // SAFETY: the pointer and the length are those of the buffer.
            let n = unsafe { sys!(libc::SYS_pread64, self.memory, new.as_mut_ptr(), want, at) };
            let n = usize::try_from(n).map_err(|_| told())?;
            if n == 0 {
                break;
            }
            let had = self.file.read_at(&mut old[..n], at).map_err(|e| e.errno())?;
            for from in (0..n).step_by(PAGE) {
                let page = from..n.min(from + PAGE);
                if page.end > had || new[page.clone()] != old[page.clone()] {
                    let page_at = at + from as u64;
                    self.file.write_all_at(&new[page], page_at).map_err(|e| e.errno())?;
                }
            }
            at += n as u64;
        }
        Ok(())
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        crate::placeholder::disown(self.memory);
        // SAFETY: the descriptor is this one's.
        unsafe { sys!(libc::SYS_close, self.memory) };
    }
}

/// What mmap(2) is asked for, but for the file.
pub struct Wanted {
    /// The address, or NULL.
    pub at: *mut c_void,
    /// Bytes.
    pub len: usize,
    /// PROT_ flags.
    pub protection: c_int,
    /// MAP_ flags.
    pub flags: c_int,
    /// Where in the file.
    pub offset: i64,
}

/// Maps a file so that stores get into it.
pub fn map(volume: &Volume, ino: Ino, w: &Wanted) -> Result<*mut c_void, c_int> {
    let mut all = shadows();
    let shadow = match all.entry(ino.0) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            COUNT.fetch_add(1, Ordering::Relaxed);
            // From here on writes look for it, and wait for the lock.
            match Shadow::new(volume, ino) {
                Ok(new) => place.insert(new),
                Err(e) => {
                    COUNT.fetch_sub(1, Ordering::Relaxed);
                    return Err(e);
                }
            }
        }
    };
    // SAFETY: the caller of mmap asks for this range.
    let memory = unsafe { sys!(libc::SYS_mmap, w.at, w.len, w.protection, w.flags, shadow.memory, w.offset) };
    if memory == -1 {
        let failed = told();
        drop_unmapped(&mut all);
        return Err(failed);
    }
    let from = memory as usize;
    shadow.mapped.push(from..from + w.len.next_multiple_of(PAGE));
    Ok(memory as *mut c_void)
}

/// Drops the shadows of files that are not mapped any more, after what was stored is in the files.
fn drop_unmapped(all: &mut BTreeMap<u64, Shadow>) {
    all.retain(|_, shadow| {
        // What cannot be written stays, and is tried again.
        let stays = !shadow.mapped.is_empty() || shadow.write_back().is_err();
        if !stays {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        stays
    });
}

/// Returns whether a file is mapped so.
pub fn has(ino: Ino) -> bool {
    any() && shadows().contains_key(&ino.0)
}

/// Returns whether an address range has mappings of shadows, for a caller that unmaps it.
pub fn is_mapped(range: &Range<usize>) -> bool {
    any() && shadows().values().any(|s| s.mapped.iter().any(|m| m.start < range.end && range.start < m.end))
}

/// Notes that an address range was unmapped.
pub fn unmapped(range: &Range<usize>) {
    let mut all = shadows();
    for shadow in all.values_mut() {
        let mut rest = Vec::new();
        for m in shadow.mapped.drain(..) {
            rest.push(m.start..m.end.min(range.start.max(m.start)));
            rest.push(m.start.max(range.end.min(m.end))..m.end);
        }
        rest.retain(|m| !m.is_empty());
        shadow.mapped = rest;
    }
    drop_unmapped(&mut all);
}

/// Gets what was stored into the file, before it is read or synced (S3).
#[inline]
pub fn flush(file: &File) -> Result<(), c_int> {
    if !any() {
        return Ok(());
    }
    shadows().get(&file.ino().0).map_or(Ok(()), Shadow::write_back)
}

/// Gets what was stored into all files; returns the first error.
pub fn flush_all() -> Result<(), c_int> {
    if !any() {
        return Ok(());
    }
    shadows().values().map(Shadow::write_back).fold(Ok(()), Result::and)
}

/// Does to the shadow what was written to the file (S2).
#[inline]
pub fn written(file: &File, bytes: &[u8], at: u64) -> Result<(), c_int> {
    if !any() {
        return Ok(());
    }
    shadows().get(&file.ino().0).map_or(Ok(()), |s| s.store(bytes, at))
}

/// Takes a range of the file into the shadow, which was changed otherwise, and the size (S2).
pub fn changed(ino: Ino, range: Range<u64>) -> Result<(), c_int> {
    if !any() {
        return Ok(());
    }
    let all = shadows();
    let Some(shadow) = all.get(&ino.0) else { return Ok(()) };
    let size = shadow.file.stat().map_err(|e| e.errno())?.size;
    shadow.resize(size)?;
    shadow.load(range.start..range.end.min(size))
}
