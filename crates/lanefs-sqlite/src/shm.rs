//! The shared memory of a database in WAL mode: the index of the log, in memory of this process.
//! Nobody else has the volume open, so it needs no file; after a crash SQLite makes it again from
//! the log, as it does when the first connection opens.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// How many locks there are.
pub const LOCKS: usize = 8;

/// A piece of the index. SQLite reads and writes it without asking.
struct Region {
    place: *mut u8,
    layout: Layout,
}

// SAFETY: only the address is kept here; who reads and writes behind it is SQLite's business, which
// orders it by the locks below and its own barriers.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once; the last connection has let go of it.
        unsafe { dealloc(self.place, self.layout) };
    }
}

/// The shared memory of one database.
#[derive(Default)]
pub struct Shm {
    regions: Vec<Region>,
    /// The connections that have it.
    users: usize,
    /// Of each lock how many share it, or -1.
    locks: [i32; LOCKS],
}

/// The part of a connection in it.
#[derive(Debug, Default)]
pub struct Part {
    joined: bool,
    /// A bit for each lock that it shares, and for each that it has alone.
    shared: u8,
    alone: u8,
}

/// Returns the bits of `count` locks from `first`; `None` if there are none such.
fn bits(first: i32, count: i32) -> Option<u8> {
    let (first, count) = (usize::try_from(first).ok()?, usize::try_from(count).ok()?);
    let fits = count > 0 && first < LOCKS && count <= LOCKS - first;
    fits.then(|| (((1_u32 << count) - 1) << first) as u8)
}

impl Shm {
    /// Returns region `index` of `size` bytes; `Ok(None)` if it is not there and `extend` is false.
    /// An error if there is no memory.
    pub fn region(
        &mut self,
        part: &mut Part,
        index: usize,
        size: usize,
        extend: bool,
    ) -> Result<Option<*mut u8>, ()> {
        if !part.joined {
            (part.joined, self.users) = (true, self.users + 1);
        }
        while self.regions.len() <= index {
            if !extend {
                return Ok(None);
            }
            let layout = Layout::from_size_align(size, 4096).map_err(|_| ())?;
            if size == 0 {
                return Err(());
            }
            // SAFETY: a layout of more than 0 bytes.
            let place = unsafe { alloc_zeroed(layout) };
            if place.is_null() {
                return Err(());
            }
            self.regions.push(Region { place, layout });
        }
        let region = &self.regions[index];
        if region.layout.size() == size { Ok(Some(region.place)) } else { Err(()) }
    }

    /// Takes locks, shared or alone, all or none; returns whether it has them.
    pub fn lock(&mut self, part: &mut Part, first: i32, count: i32, shared: bool) -> bool {
        let Some(wanted) = bits(first, count) else { return false };
        let wanted = wanted & !if shared { part.shared } else { part.alone };
        let each = || (0..LOCKS).filter(|i| wanted & 1 << i != 0);
        let free = |i: usize| if shared { self.locks[i] >= 0 } else { self.locks[i] == 0 };
        if !each().all(free) {
            return false;
        }
        for i in each() {
            self.locks[i] = if shared { self.locks[i] + 1 } else { -1 };
        }
        *if shared { &mut part.shared } else { &mut part.alone } |= wanted;
        debug_assert_eq!(part.shared & part.alone, 0, "a lock is shared or not");
        true
    }

    /// Gives locks back, of whichever kind it has.
    pub fn unlock(&mut self, part: &mut Part, first: i32, count: i32) {
        let Some(given) = bits(first, count) else { return };
        for i in (0..LOCKS).filter(|i| given & 1 << i != 0) {
            if part.alone & 1 << i != 0 {
                self.locks[i] = 0;
            } else if part.shared & 1 << i != 0 {
                self.locks[i] -= 1;
            }
        }
        part.alone &= !given;
        part.shared &= !given;
    }

    /// Lets go of all that a connection has. With the last one the memory goes.
    pub fn leave(&mut self, part: &mut Part) {
        self.unlock(part, 0, LOCKS as i32);
        if std::mem::take(&mut part.joined) {
            debug_assert!(self.users > 0, "who leaves has joined");
            self.users = self.users.saturating_sub(1);
            if self.users == 0 {
                debug_assert_eq!(self.locks, [0; LOCKS], "nobody is left");
                self.regions.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_the_same_for_all_and_begin_empty() {
        let mut shm = Shm::default();
        let (mut a, mut b) = (Part::default(), Part::default());
        assert_eq!(shm.region(&mut a, 0, 32768, false), Ok(None));
        let first = shm.region(&mut a, 1, 32768, true).unwrap().unwrap();
        assert_eq!(shm.region(&mut b, 1, 32768, false), Ok(Some(first)));
        assert_eq!(shm.region(&mut b, 1, 4096, false), Err(()), "of another size");
        // SAFETY: 32768 bytes of this test alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(first, 32768) };
        assert!(bytes.iter().all(|b| *b == 0));
        bytes[0] = 1;
        shm.leave(&mut a);
        assert_eq!(bytes[0], 1, "the other still has it");
        shm.leave(&mut b);
        assert_eq!(shm.region(&mut a, 1, 32768, false), Ok(None));
    }

    #[test]
    fn locks_are_shared_or_not_and_all_or_none() {
        let mut shm = Shm::default();
        let (mut a, mut b) = (Part::default(), Part::default());
        assert!(shm.lock(&mut a, 3, 1, true) && shm.lock(&mut b, 3, 1, true));
        assert!(!shm.lock(&mut b, 0, 8, false), "one of them is shared");
        assert!(shm.lock(&mut b, 0, 3, false), "none of the others was taken");
        assert!(!shm.lock(&mut a, 1, 1, true));
        shm.unlock(&mut b, 0, 3);
        assert!(shm.lock(&mut a, 1, 1, true));
        shm.leave(&mut a);
        shm.unlock(&mut b, 3, 1);
        assert!(shm.lock(&mut b, 0, 8, false));
        assert!(!shm.lock(&mut b, 7, 2, true) && !shm.lock(&mut b, -1, 1, true));
    }
}
