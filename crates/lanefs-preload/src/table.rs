//! The volume's descriptors, by number.
//!
//! A descriptor refers to a description, as in the kernel: `dup` makes another descriptor of the
//! same one, with one position, one set of flags and one owner of locks.

use crate::placeholder;
use crate::raw::sys;
use lanefs::fs::Dir;
use lanefs::{File, FileKind};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Descriptors in a part of the table, and parts: a million numbers.
const PART: usize = 1024;
const PARTS: usize = 1024;

/// An open file of the volume.
pub struct Description {
    /// The file; opened without O_APPEND, which is looked at here, as it can be changed.
    pub file: Arc<File>,
    /// The kind of file.
    pub kind: FileKind,
    /// Of a directory: where paths begin.
    pub dir: Option<Dir>,
    /// The flags that F_GETFL answers. Written by F_SETFL. Relaxed: who changes them while others
    /// write has to expect either.
    pub flags: AtomicI32,
    /// Held while the position is used and moved, as the kernel does it.
    pub position: Mutex<()>,
    /// Where the next listing by getdents64 goes on. Written under `position`.
    pub listed: AtomicU64,
    /// The path it was opened by, within the volume: absolute. Of a file only where a mount is
    /// served.
    pub path: Vec<u8>,
    /// A lock was taken on it.
    pub locked: AtomicBool,
    /// The kernel's open file that has taken its place, with the position, and is the library's
    /// own; -1: none. Written under `position`.
    pub successor: AtomicI32,
}

impl Description {
    /// Returns whether writes go to the end.
    pub fn appends(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & libc::O_APPEND != 0
    }

    /// Returns what has taken its place. For a caller that holds `position`.
    pub fn successor(&self) -> Option<c_int> {
        Some(self.successor.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    /// Returns whether it was opened with O_PATH: it can be looked at, not read.
    pub fn path_only(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & libc::O_PATH != 0
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        if let Some(fd) = self.successor() {
            placeholder::disown(fd);
            // SAFETY: the descriptor is this one's.
            unsafe { sys!(libc::SYS_close, fd) };
        }
    }
}

/// A place of the table.
struct Slot {
    /// Whether the number is the volume's. Written under the lock of `description`; read without
    /// it, as a call on a number that is closed meanwhile may go either way. Release and Acquire.
    used: AtomicBool,
    description: RwLock<Option<Arc<Description>>>,
}

static TABLE: [AtomicPtr<[Slot; PART]>; PARTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PARTS];

#[inline]
fn slot(fd: c_int) -> Option<&'static Slot> {
    let fd = usize::try_from(fd).ok()?;
    let part = TABLE.get(fd / PART)?.load(Ordering::Acquire);
    // SAFETY: a part is never freed once it is there.
    unsafe { part.as_ref() }.map(|part| &part[fd % PART])
}

fn slot_or_new(fd: c_int) -> Option<&'static Slot> {
    if let Some(slot) = slot(fd) {
        return Some(slot);
    }
    let place = TABLE.get(usize::try_from(fd).ok()? / PART)?;
    // Made on the heap: the stack of a thread may be small.
    let new: Vec<Slot> =
        (0..PART).map(|_| Slot { used: AtomicBool::new(false), description: RwLock::new(None) }).collect();
    let new: Box<[Slot; PART]> = new.into_boxed_slice().try_into().ok()?;
    let new = Box::into_raw(new);
    // Release: pairs with the Acquire of `slot`.
    if place.compare_exchange(std::ptr::null_mut(), new, Ordering::Release, Ordering::Acquire).is_err() {
        // SAFETY: made above, and not published.
        drop(unsafe { Box::from_raw(new) });
    }
    slot(fd)
}

/// Returns whether a number is the volume's. Of a child as it was when it was forked.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    slot(fd).is_some_and(|s| s.used.load(Ordering::Acquire))
}

/// Returns what a descriptor of the volume refers to; in a child of its owner nothing, as a lock
/// may be held for ever there.
pub fn get(fd: c_int) -> Option<Arc<Description>> {
    let slot = slot(fd).filter(|s| s.used.load(Ordering::Acquire))?;
    slot.description.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Has a number refer to a description, in place of what it was.
///
/// # Errors
/// EMFILE: the number is beyond the table.
pub fn set(fd: c_int, description: Arc<Description>) -> Result<(), c_int> {
    let slot = slot_or_new(fd).ok_or(libc::EMFILE)?;
    let old = {
        let mut place = slot.description.write().unwrap_or_else(PoisonError::into_inner);
        slot.used.store(true, Ordering::Release);
        place.replace(description)
    };
    drop(old);
    Ok(())
}

/// Has a number be the volume's no more; before the kernel's is closed, whose number may come again
/// at once. Returns what it referred to.
pub fn remove(fd: c_int) -> Option<Arc<Description>> {
    let slot = slot(fd).filter(|s| s.used.load(Ordering::Acquire))?;
    let mut place = slot.description.write().unwrap_or_else(PoisonError::into_inner);
    slot.used.store(false, Ordering::Release);
    place.take()
}

/// Does the same in a child of the volume's owner, which touches neither locks nor the volume.
pub fn forget(fd: c_int) {
    if let Some(slot) = slot(fd) {
        slot.used.store(false, Ordering::Release);
    }
}

/// Returns the numbers of the volume in a range.
pub fn in_range(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let last = last.min((PART * PARTS - 1) as u32);
    let parts = first as usize / PART..=last as usize / PART;
    let parts = parts.filter(|p| TABLE.get(*p).is_some_and(|t| !t.load(Ordering::Acquire).is_null()));
    parts
        .flat_map(|p| p * PART..(p + 1) * PART)
        .filter(move |fd| (first as usize..=last as usize).contains(fd))
        .map(|fd| fd as c_int)
        .filter(|fd| is_ours(*fd))
}
