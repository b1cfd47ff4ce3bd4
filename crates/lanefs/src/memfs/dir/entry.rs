//! Directory entries and the leaves that hold them.

use crate::memfs::stamps::NO_TIME;
use lanefs_format::{FileKind, Ino};
use lanefs_sync::partial::{self, COMPLETE, Look};
use lanefs_sync::seqlock::SeqWord;
use std::sync::atomic::{
    AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Leaves in a table: 4 bits of the cookie a level.
pub(crate) const FANOUT: usize = 16;
/// Bits of a cookie below the hash that tell names of one hash apart.
pub(crate) const DISC_BITS: u32 = 3;
/// A leaf with more entries than this splits.
pub(crate) const SPLIT_AT: u16 = 12;
/// Levels after which the hash is used up.
pub(crate) const MAX_LEVELS: u32 = 15;
/// Cookies are below this.
pub(crate) const COOKIES: u64 = 1 << 63;

const _: () = assert!(FANOUT == 1 << 4, "4 bits of the cookie choose a leaf");
const _: () = assert!(4 * MAX_LEVELS <= 63 - DISC_BITS, "all levels go by bits of the hash");
const _: () = assert!(COMPLETE & CHANGED == 0, "flags of one word");

/// Bits of names that are gone which a filter may have, beside two for each that is there.
const STALE: u32 = 12;

const _: () = assert!(2 * (SPLIT_AT as u32) + STALE < u64::BITS, "a filter of a full leaf says something");

/// Returns the bit of a cookie, or of its hash, in the filter of a leaf: by the lowest bits of the
/// hash, since all names of a leaf have the highest in common.
#[inline]
fn filter_bit(cookie: u64) -> u64 {
    1 << (cookie >> DISC_BITS & 63)
}

/// Bytes of a name that an entry holds itself.
const INLINE: usize = 14;

/// The bytes of a name. Short ones lie in the entry, so that a lookup reads one line; others beside
/// it, in a few sizes.
pub(crate) enum Name {
    Short(u8, [u8; INLINE]),
    Mid(Box<Sized<31>>),
    Long(Box<Sized<95>>),
    Longest(Box<Sized<255>>),
}

/// Up to `N` bytes.
pub(crate) struct Sized<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Sized<N> {
    fn new(name: &[u8]) -> Box<Sized<N>> {
        debug_assert!(name.len() <= N && N <= u8::MAX as usize, "{} bytes in {N}", name.len());
        let mut s = Box::new(Sized { len: name.len() as u8, bytes: [0; N] });
        s.bytes[..name.len()].copy_from_slice(name);
        s
    }
    fn get(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Name {
    /// Makes a name of at most 255 bytes.
    fn new(name: &[u8]) -> Name {
        match name.len() {
            0..=INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..name.len()].copy_from_slice(name);
                Name::Short(name.len() as u8, bytes)
            }
            15..=31 => Name::Mid(Sized::new(name)),
            32..=95 => Name::Long(Sized::new(name)),
            _ => Name::Longest(Sized::new(name)),
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Name::Short(len, bytes) => &bytes[..usize::from(*len)],
            Name::Mid(s) => s.get(),
            Name::Long(s) => s.get(),
            Name::Longest(s) => s.get(),
        }
    }

    /// Returns the bytes that a name takes beside the entry.
    fn beside(len: usize) -> usize {
        match len {
            0..=INLINE => 0,
            15..=31 => size_of::<Sized<31>>(),
            32..=95 => size_of::<Sized<95>>(),
            _ => size_of::<Sized<255>>(),
        }
    }
}

/// One name of a directory. Allocated on its own, a line of its own; freed through the epoch
/// collector.
#[repr(align(64))]
pub(crate) struct Entry {
    /// Next of the leaf's chain. Written under the leaf's lock: Relaxed before the entry is
    /// published, with Release when one behind it is taken out or moved. Readers load it with
    /// Acquire, the holder of the lock Relaxed.
    pub next: AtomicPtr<Entry>,
    /// Place in hash order.
    pub cookie: u64,
    /// Kind in the top byte, inode number below; 0 is a tombstone. Written under the leaf's lock;
    /// the one store that lock-free readers of this name see.
    target: AtomicU64,
    /// Lanes (modulo 64) whose oplogs may hold pending groups with this key. Relaxed, as `epoch`
    /// and `born`: see [`Entry::touch`].
    pub lanes: AtomicU64,
    /// Epoch of the last change; the entry is clean once that epoch has been folded.
    pub epoch: AtomicU64,
    /// Epoch in which the name came to be, or 0 if the folded directory may hold it.
    pub born: AtomicU64,
    /// The name's bytes.
    pub name: Name,
}

const _: () = assert!(size_of::<Entry>() == 64);

fn pack(ino: Ino, kind: FileKind) -> u64 {
    ino.0 | (kind as u64) << 56
}

impl Entry {
    pub fn new(
        cookie: u64,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
        born: u64,
        epoch: u64,
        lanes: u64,
    ) -> Box<Entry> {
        debug_assert!((1..=255).contains(&name.len()), "a name of {} bytes", name.len());
        debug_assert!(cookie < COOKIES && born <= epoch, "{cookie:#x}: of {epoch}, born in {born}");
        Box::new(Entry {
            next: AtomicPtr::new(std::ptr::null_mut()),
            cookie,
            target: AtomicU64::new(pack(ino, kind)),
            lanes: AtomicU64::new(lanes),
            epoch: AtomicU64::new(epoch),
            born: AtomicU64::new(born),
            name: Name::new(name),
        })
    }

    /// Returns what the name names; `None` for a tombstone. Acquire: pairs with the Release of
    /// `set_target`, so the inode that was published before the entry is seen.
    pub fn target(&self) -> Option<(Ino, FileKind)> {
        let v = self.target.load(Acquire);
        let ino = Ino(v & ((1 << 56) - 1));
        FileKind::from_u8((v >> 56) as u8).filter(|_| !ino.is_none()).map(|k| (ino, k))
    }

    /// Changes the target (leaf locked).
    pub fn set_target(&self, t: Option<(Ino, FileKind)>) {
        self.target.store(t.map_or(0, |(i, k)| pack(i, k)), Release);
    }

    /// Notes a change in `epoch` by `lane` (leaf locked; lock-free readers read `lanes` and `epoch`
    /// only for closures and eviction, both of which take the lane's or the leaf's lock afterwards:
    /// Relaxed is enough). Returns whether it had changed in that epoch before.
    pub fn touch(&self, epoch: u64, lane: usize) -> bool {
        debug_assert!(lane < lanefs_sync::MAX_LANES);
        debug_assert!(epoch >= self.epoch.load(Relaxed), "an operation of an epoch before the last");
        debug_assert!(epoch >= self.born.load(Relaxed), "a name changes before it is born");
        let again = self.epoch.load(Relaxed) == epoch;
        self.epoch.store(epoch, Relaxed);
        let bit = 1u64 << (lane & 63);
        let old = self.lanes.load(Relaxed);
        if old & bit == 0 {
            self.lanes.store(old | bit, Relaxed);
        }
        again
    }

    /// Returns the memory that an entry takes, in bytes, with its share of the tables of leaves: a
    /// directory that has grown has a leaf for three to nine names.
    pub fn bytes(name_len: usize) -> usize {
        size_of::<Entry>() + size_of::<Leaf>() / 4 + Name::beside(name_len)
    }
}

/// One line: a bucket of a directory, or the pointer to the table that replaced it.
#[repr(C, align(64))]
pub(crate) struct Leaf {
    /// The key lock (DESIGN, epoch lanes, step 2) of every name in the leaf. Odd while locked.
    ///
    /// What is written under it is Relaxed: the lock orders it, and who looks without the lock
    /// validates `split_seq`, or looks again with it.
    pub lock: SeqWord,
    /// Twice the directory's generation when something was taken out of the leaf last; odd while
    /// entries move (split, eviction). Written under `lock`. A negative lookup is valid only if it
    /// did not change. Release where something was taken out, the partner of the Acquire loads in
    /// `Look::begin` and `Dir::key_lanes`.
    pub split_seq: AtomicU32,
    /// `*mut Entry` chain, or `*mut Table | 1` once split, or [`GONE`]. Written under `lock`, with
    /// Release: the partner of the Acquire load in [`Leaf::head`].
    head: AtomicPtr<u8>,
    /// Highest timestamp of an operation on a name here. Written under `lock`.
    pub last_ts: AtomicU64,
    /// Highest epoch of an operation on a name here. Written under `lock`; of a root leaf also by
    /// [`Dir::named_by`](super::Dir::named_by), SeqCst, behind `mask` and before the operation
    /// changes anything: the partner is the SeqCst load in `Dir::lanes_behind`, which comes before
    /// that of `mask`.
    pub epoch: AtomicU64,
    /// Lane masks of entries that were taken out of the chain since their epoch was folded.
    pub purged_lanes: AtomicU64,
    /// Root leaves only: this stripe of the directory's mtime/ctime; stored when the coarse clock
    /// moved. Relaxed: one word, which orders nothing.
    pub mtime: AtomicI64,
    /// Root leaves only: this stripe of the count of subdirectories, relative to the inode's base.
    /// Written under any lock below this stripe, hence atomically. Relaxed: a count.
    pub subdirs: AtomicI32,
    /// Entries in the chain, tombstones included. Written under `lock`.
    pub count: AtomicU16,
    /// [`COMPLETE`]: the chain holds every name of the leaf's range, so a miss is authoritative.
    /// [`CHANGED`].
    ///
    /// The former is set with Release (`partial::set_complete`), the partner of the Acquire load in
    /// `Look::begin` and [`Leaf::is_complete`]. The latter is set and taken off with AcqRel, each
    /// the other's partner: who takes it off finds what was changed before it was set.
    pub flags: AtomicU8,
    /// Operations on several keys that have this leaf in hand; lookups wait until it is 0. Written
    /// under `lock`. Raised SeqCst before the first change: who finds that change, by an Acquire
    /// load, finds this raised in the other leaf. Lowered with Release, the partner of the Acquire
    /// load in [`Leaf::look`], behind the last.
    pub multi_key: AtomicU8,
    /// Of a root leaf: lanes (modulo 64) that may hold pending groups with a key in this stripe.
    /// `epoch` is then the highest of such a group, also once the leaf has split.
    ///
    /// Of every other leaf a filter of its names, a bit for each: a name whose bit is not set is
    /// not in the chain, and to find that out costs no walk over entries that are not in the
    /// processor's cache. (A directory of more than a few hundred names has most of them there.)
    /// Written under `lock`. A bit is set with Release before the entry is published, and taken
    /// back, when the names it stood for are gone, with all of the filter: the partner is the
    /// Acquire load in [`Leaf::may_hold`].
    pub mask: AtomicU64,
}

/// Root leaves only: the directory's attributes changed here since they were captured, and it is on
/// some lane's dirty list.
pub(crate) const CHANGED: u8 = 2;

const _: () = assert!(size_of::<Leaf>() == 64);

/// A table of leaves; replaces a leaf that grew too large, or is a directory's root.
#[repr(C, align(64))]
pub(crate) struct Table {
    pub leaves: [Leaf; FANOUT],
}

/// The target of a leaf's head.
pub(crate) enum Head {
    Chain(*mut Entry),
    Table(*mut Table),
    /// The leaf's table was taken out of the directory: walk down from the root again.
    Gone,
}

/// The head of a leaf whose table was taken out.
const GONE: usize = 2;

impl Leaf {
    pub fn new(flags: u8) -> Leaf {
        Leaf {
            lock: SeqWord::new(),
            split_seq: AtomicU32::new(0),
            head: AtomicPtr::new(std::ptr::null_mut()),
            last_ts: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            purged_lanes: AtomicU64::new(0),
            mtime: AtomicI64::new(NO_TIME),
            subdirs: AtomicI32::new(0),
            count: AtomicU16::new(0),
            flags: AtomicU8::new(flags),
            multi_key: AtomicU8::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// Returns what the head points at. Acquire: pairs with the Release in `set_chain`/`set_table`,
    /// so that is initialised.
    #[inline(always)]
    pub fn head(&self) -> Head {
        let p = self.head.load(Acquire);
        if p.addr() & 3 == 0 {
            Head::Chain(p.cast())
        } else if p.addr() & 1 == 1 {
            Head::Table(p.map_addr(|a| a & !1).cast())
        } else {
            Head::Gone
        }
    }

    /// Takes the leaf, which is empty, out of use (locked, as all of its table and the leaf above).
    pub fn set_gone(&self) {
        debug_assert!(self.lock.is_locked());
        debug_assert!(matches!(self.head(), Head::Chain(p) if p.is_null()), "names would be lost");
        self.head.store(std::ptr::without_provenance_mut(GONE), Release);
    }

    /// Returns whether nothing would be lost with the leaf but the claim that there is no entry, if
    /// it is complete: nothing that is not folded.
    pub fn is_idle(&self, folded: u64) -> bool {
        matches!(self.head(), Head::Chain(p) if p.is_null())
            && self.epoch.load(Relaxed) <= folded
            && self.multi_key.load(Relaxed) == 0
    }

    /// Publishes a new first entry (leaf locked).
    pub fn set_chain(&self, e: *mut Entry) {
        debug_assert!(e.is_aligned(), "its low bits say what the head is");
        self.head.store(e.cast(), Release);
    }

    /// Returns whether the chain may hold a name of this hash. The caller validates what it makes
    /// of a no as it would a walk over the chain, or holds the lock.
    #[inline]
    pub fn may_hold(&self, level: u32, hash: u64) -> bool {
        level == 0 || self.mask.load(Acquire) & filter_bit(hash) != 0
    }

    /// Notes in the filter that a name with this cookie comes (leaf locked).
    pub fn note_name(&self, level: u32, cookie: u64) {
        if level == 0 {
            return;
        }
        let (mask, bit) = (self.mask.load(Relaxed), filter_bit(cookie));
        if mask & bit == 0 {
            // Names that are gone have left theirs: with many of them the filter says nothing.
            let much = 2 * u32::from(self.count.load(Relaxed)) + STALE;
            let mask = if mask.count_ones() < much { mask } else { self.filter() };
            self.mask.store(mask | bit, Release);
        }
    }

    /// Returns the filter of the names that are in the chain (leaf locked).
    fn filter(&self) -> u64 {
        let Head::Chain(mut p) = self.head() else { return 0 };
        let mut mask = 0;
        // SAFETY: as in `check_chain`.
        while let Some(e) = unsafe { p.as_ref() } {
            mask |= filter_bit(e.cookie);
            p = e.next.load(Relaxed);
        }
        mask
    }

    /// Publishes the table that replaces the chain (leaf locked).
    pub fn set_table(&self, t: *mut Table) {
        debug_assert!(self.lock.is_locked());
        debug_assert!(t.is_aligned() && !t.is_null(), "its low bits say what the head is");
        debug_assert!(matches!(self.head(), Head::Chain(_)), "a leaf splits once");
        self.head.store(t.cast::<u8>().map_addr(|a| a | 1), Release);
    }

    /// Begins a look at the chain without the lock; `None` while entries move, or names of the leaf
    /// are in the hands of an operation on several keys.
    #[inline(always)]
    pub fn look(&self) -> Option<Look> {
        // The chain is read behind `multi_key`: Acquire, pairs with the Release that lowers it.
        Look::begin(&self.split_seq, &self.flags).filter(|_| self.multi_key.load(Acquire) == 0)
    }

    /// Returns whether the chain holds every name of the leaf's range (leaf locked, else see
    /// [`Leaf::look`]).
    pub fn is_complete(&self) -> bool {
        self.flags.load(Acquire) & COMPLETE != 0
    }

    pub fn set_complete(&self, on: bool) {
        debug_assert!(self.lock.is_locked());
        partial::set_complete(&self.flags, on);
        debug_assert_eq!(self.is_complete(), on, "changed without the lock");
    }

    /// Checks what holds of a chain whenever its leaf, of a table at `level`, is not being changed:
    /// locked, or not published yet. Does nothing for a leaf that is split or gone.
    pub fn check_chain(&self, level: u32) {
        if !cfg!(debug_assertions) {
            return;
        }
        let Head::Chain(mut p) = self.head() else { return };
        debug_assert!(level < MAX_LEVELS);
        debug_assert_eq!(self.split_seq.load(Relaxed) & 1, 0, "entries move, and nobody moves them");
        let (mut n, mut range) = (0, None);
        // SAFETY: the caller has the leaf to itself, and a chain's entries are freed when they are
        // out of it only.
        while let Some(e) = unsafe { p.as_ref() } {
            n += 1;
            let own = range_of(e.cookie, level);
            debug_assert_eq!(*range.get_or_insert(own), own, "an entry of another leaf");
            debug_assert!(e.born.load(Relaxed) <= e.epoch.load(Relaxed), "changed before it was born");
            let newborn = e.born.load(Relaxed) == e.epoch.load(Relaxed) && e.epoch.load(Relaxed) > 0;
            debug_assert!(!newborn || e.target().is_some(), "a tombstone of a name that nobody knew (4)");
            p = e.next.load(Relaxed);
        }
        debug_assert_eq!(n, self.count.load(Relaxed), "the count is not that of the chain");
        let passed_by = self.filter() & !self.mask.load(Relaxed);
        debug_assert!(level == 0 || passed_by == 0, "a name would not be found");
    }

    /// Checks [`Leaf::check_chain`], and what holds when an operation lets the leaf go.
    pub fn check_invariants(&self, level: u32) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.lock.is_locked(), "a leaf changes under its lock (1)");
        self.check_chain(level);
        let Head::Chain(mut p) = self.head() else { return };
        let epoch = self.epoch.load(Relaxed);
        // SAFETY: as in `check_chain`.
        while let Some(e) = unsafe { p.as_ref() } {
            debug_assert!(e.epoch.load(Relaxed) <= epoch, "a change was not stamped");
            p = e.next.load(Relaxed);
        }
    }
}

impl Table {
    pub fn new(flags: u8) -> Box<Table> {
        debug_assert_eq!(flags & !COMPLETE, 0, "nothing has changed in a new table");
        Box::new(Table { leaves: std::array::from_fn(|_| Leaf::new(flags)) })
    }
}

/// Returns which leaf of a table at `level` covers `cookie`.
pub(crate) fn slot(cookie: u64, level: u32) -> usize {
    debug_assert!(cookie < COOKIES && level < MAX_LEVELS, "{cookie:#x} at level {level}");
    (cookie >> (59 - 4 * level)) as usize & (FANOUT - 1)
}

/// Returns the cookies that a leaf covers, the lowest and the highest: `cookie` is any of them,
/// `level` its table's level.
pub(crate) fn range_of(cookie: u64, level: u32) -> (u64, u64) {
    debug_assert!(cookie < COOKIES && level < MAX_LEVELS, "{cookie:#x} at level {level}");
    let low_bits = 59 - 4 * level;
    let lo = cookie >> low_bits << low_bits;
    let hi = lo | ((1u64 << low_bits) - 1);
    debug_assert!(lo <= cookie && cookie <= hi && hi < COOKIES);
    (lo, hi)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_are_kept() {
        for len in 1..=255 {
            let name: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7) | 1).collect();
            let e = Entry::new(0, &name, Ino(1), FileKind::File, 0, 0, 0);
            assert_eq!(e.name.as_slice(), name);
            assert!(Entry::bytes(len) >= 64 && Entry::bytes(len) >= len);
        }
    }
}
