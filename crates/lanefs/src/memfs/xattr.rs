//! Extended attributes of one inode: one blob, as the store keeps it, replaced as a whole and read
//! without a lock.
//!
//! Encoding: for each attribute, in name order, `name_len: u8, value_len: u32, name, value`,
//! little-endian.
//!
//! 1. A published blob never changes. Readers find it under an epoch guard and write nothing; who
//!    replaces it hands the old one to the collector.
//! 2. It is replaced under `lock` only. Who captures it for the store takes the lock too: so a
//!    change is either in what was captured or finds its mark cleared (O15).

use crossbeam_epoch::{Atomic, Guard, Owned};
use lanefs_format::XATTR_BLOB_MAX;
use lanefs_sync::lock::{Mutex, MutexGuard};
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// The longest attribute name, prefix included, in bytes.
pub(crate) const XATTR_NAME_MAX: usize = 255;
/// The largest value, in bytes.
pub(crate) const XATTR_VALUE_MAX: usize = 65536;
/// Bytes of an attribute beside its name and value.
const HEAD: usize = 5;

/// All extended attributes of an inode.
#[derive(Default)]
pub(crate) struct Xattrs {
    blob: Box<[u8]>,
}

/// Splits off the first attribute: name, value and the rest; `None` at the end, and where the blob
/// is malformed.
fn first(b: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&n, rest) = b.split_first()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(n.into())?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((name, value, rest))
}

impl Xattrs {
    /// Decodes the bytes that the store kept; `None` if they are malformed.
    pub fn decode(b: &[u8]) -> Option<Xattrs> {
        let (mut rest, mut last): (&[u8], &[u8]) = (b, b"");
        while !rest.is_empty() {
            let (name, value, behind) = first(rest)?;
            // In name order, each once: so none is empty either.
            if name <= last || value.len() > XATTR_VALUE_MAX {
                return None;
            }
            (rest, last) = (behind, name);
        }
        Some(Xattrs { blob: b.into() })
    }

    /// Returns the bytes that the store keeps.
    pub fn encoded(&self) -> &[u8] {
        &self.blob
    }

    /// Returns the bytes that a name and its value take in a list.
    pub const fn bytes(name: &[u8], value: &[u8]) -> usize {
        HEAD + name.len() + value.len()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &*self.blob;
        std::iter::from_fn(move || {
            debug_assert!(rest.is_empty() || first(rest).is_some(), "a published blob is well-formed");
            let (name, value, behind) = first(rest)?;
            rest = behind;
            Some((name, value))
        })
    }

    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|a| a.0 == name).map(|a| a.1)
    }

    /// Returns these with a value set, or without the name if there is none. ENOSPC when the
    /// inode's attributes would exceed [`XATTR_BLOB_MAX`].
    pub fn with(&self, name: &[u8], value: Option<&[u8]>) -> Result<Xattrs, i32> {
        debug_assert!((1..=XATTR_NAME_MAX).contains(&name.len()), "a name of {} bytes", name.len());
        let mut out = Vec::with_capacity(self.blob.len() + HEAD + name.len() + value.map_or(0, <[u8]>::len));
        let mut put = |n: &[u8], v: &[u8]| {
            out.push(n.len() as u8);
            out.extend_from_slice(&(v.len() as u32).to_le_bytes());
            out.extend_from_slice(n);
            out.extend_from_slice(v);
        };
        let mut new = value;
        for (n, v) in self.iter() {
            if n >= name
                && let Some(value) = new.take()
            {
                put(name, value);
            }
            if n != name {
                put(n, v);
            }
        }
        if let Some(value) = new {
            put(name, value);
        }
        if value.is_some() && out.len() > XATTR_BLOB_MAX {
            return Err(libc::ENOSPC);
        }
        debug_assert!(Xattrs::decode(&out).is_some(), "not as the store keeps it");
        let new = Xattrs { blob: out.into() };
        debug_assert_eq!(new.get(name), value);
        Ok(new)
    }

    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().map(|a| a.0)
    }
}

/// The place where an inode keeps them; empty until they are asked for or set. See the head of this
/// file.
pub(crate) struct XattrSlot {
    /// Written by `publish` alone, with `lock` held. Its AcqRel swap is the partner of the Acquire
    /// load in `get`, and of the next swap, which frees what this one put there.
    now: Atomic<Xattrs>,
    lock: Mutex<()>,
}

impl XattrSlot {
    pub const fn new() -> XattrSlot {
        XattrSlot { now: Atomic::null(), lock: Mutex::new(()) }
    }

    /// Returns the published attributes.
    pub fn get<'g>(&self, guard: &'g Guard) -> Option<&'g Xattrs> {
        // SAFETY: what was published is freed through the collector only (1), and the guard is
        // pinned. Acquire pairs with the Release of `publish`.
        unsafe { self.now.load(Acquire, guard).as_ref() }
    }

    /// Takes the right to replace it.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// Replaces it.
    pub fn publish(&self, lock: &MutexGuard<'_, ()>, new: Xattrs, guard: &Guard) {
        debug_assert!(std::ptr::eq(MutexGuard::mutex(lock), &self.lock), "the lock of another inode (2)");
        let old = self.now.swap(Owned::new(new), AcqRel, guard);
        if !old.is_null() {
            // SAFETY: unreachable since the swap, which happens once for each published value.
            unsafe { guard.defer_destroy(old) };
        }
    }
}

impl Drop for XattrSlot {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: nobody reads it any more, and what is published is owned by the slot
        // alone.
        unsafe { drop(std::mem::replace(&mut self.now, Atomic::null()).try_into_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_found_and_no_cut_is_taken_for_whole() {
        let x = Xattrs::default().with(b"user.b", Some(&[7; 300])).unwrap();
        let x = x.with(b"user.a", Some(b"1")).unwrap().with(b"user.c", Some(b"")).unwrap();
        let names: Vec<_> = x.names().collect();
        assert_eq!(names, [b"user.a", b"user.b", b"user.c"]);
        let y = Xattrs::decode(x.encoded()).unwrap();
        assert_eq!(y.get(b"user.b"), Some(&[7u8; 300][..]));
        assert_eq!(y.get(b"user.c"), Some(&b""[..]));
        assert_eq!(y.get(b"user.d"), None);
        let z = y.with(b"user.b", None).unwrap().with(b"user.a", Some(b"22")).unwrap();
        assert_eq!(z.names().count(), 2);
        assert_eq!(z.get(b"user.a"), Some(&b"22"[..]));
        let b = x.encoded();
        for cut in 1..b.len() {
            // A cut is refused, unless it falls between two attributes.
            assert!(Xattrs::decode(&b[..cut]).is_none_or(|x| x.names().count() < 3));
        }
        // A name twice, or out of order, is no encoding.
        assert!(Xattrs::decode(&[b, b].concat()).is_none());
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let x = Xattrs::default().with(b"user.a", Some(&vec![1; 60_000])).unwrap();
        let x = x.with(b"user.b", Some(&vec![1; 60_000])).unwrap();
        assert_eq!(x.with(b"user.a", Some(&vec![2; XATTR_VALUE_MAX + 10_000])).err(), Some(libc::ENOSPC));
        assert_eq!(x.get(b"user.a").map(<[u8]>::len), Some(60_000));
    }

    #[test]
    fn readers_find_one_value_or_the_other_while_it_is_replaced() {
        let slot = XattrSlot::new();
        std::thread::scope(|s| {
            s.spawn(|| {
                for n in 0..2000u32 {
                    let guard = crossbeam_epoch::pin();
                    let l = slot.lock();
                    let empty = Xattrs::default();
                    let old = slot.get(&guard).unwrap_or(&empty);
                    let new = old.with(b"user.n", Some(&[n as u8; 100])).unwrap();
                    slot.publish(&l, new, &guard);
                }
            });
            s.spawn(|| {
                for _ in 0..2000 {
                    let guard = crossbeam_epoch::pin();
                    if let Some(v) = slot.get(&guard).and_then(|x| x.get(b"user.n")) {
                        assert!(v.len() == 100 && v.iter().all(|b| *b == v[0]));
                    }
                }
            });
        });
    }
}
