//! Changes of one inode by several lanes, striped by lane: times, marks, and which pages became
//! dirty.
//!
//! Two writes to one file, or a chmod beside a link, commute, and yet each stores the time and
//! marks the inode. The lane that made or loaded an inode (its *home*, `Inode::home`) does so in
//! the inode. Every other lane does it here, in a slot of its group of lanes, and whoever wants to
//! know the inode's times or marks looks at the inode and at the slots of all groups in use. So a
//! file that one lane works on costs nothing, and of two lanes that change one file none writes
//! what the other reads.
//!
//! A *group* is the lanes that are equal modulo [`GROUPS`]; it is made when a lane of it first
//! needs a slot. Within it an inode's number determines which two slots may be its own: one for
//! changes of the content, one for all others, because utimens, which takes the mtime of the former
//! back, commutes with the latter.
//!
//! 1. A slot belongs to the inode in `ino`, 0 if to none. Its times change only under the sequence
//!    on their line, its marks and pages under the lock on theirs, its owner under both. Where it
//!    belongs to another inode, or has no space for one more page, the caller writes to the inode
//!    as the home lane does: nothing waits for a slot.
//! 2. Times lie on a line of their own, which `stat` reads; marks and pages on the next. A capture
//!    ([`Stamps::take`]) takes the marks and pages and reads the times, so `stat` shares nothing
//!    with it. A slot without marks is given back when the inode's turn on the dirty lists comes
//!    ([`Stamps::release`]): its times go into the inode before.
//! 3. The inode is on the dirty list of a lane of the group while the slot has [`LISTED`]. The mark
//!    is set under that lane's lock, with the append, so who finds it and then collects the lists
//!    (which takes all those locks) finds the inode.
//! 4. A change is made before its slot is looked at, with a fence between; a capture takes the
//!    marks before it looks at what changed, with a fence between. So either the capture has the
//!    change, or there is a mark afterwards.
//! 5. Times only grow in a slot, from [`NO_TIME`], which is before all others: 0 would hide times
//!    before 1970. An explicit time ([`Stamps::forget_times`]) takes those of the content's slots
//!    away and is stored in the inode afterwards; what goes back into the inode does so under the
//!    times' sequence, hence before or not at all. An fdatasync takes marks and pages off the
//!    content's slots and looks at no times and no other slot: it shares nothing with an explicit
//!    time, a chmod or a chown.
//! 6. A page that is named here is dirty (`memfs::data`) and may have no mark in the file's tree.
//!    Whoever walks the tree's marks puts them in first; locks: a page, then a slot.

use super::marks::{DATASYNC, DIRTY, Line, QUEUED, XATTR_DIRTY};
use crossbeam_utils::CachePadded;
use lanefs_format::Ino;
use lanefs_sync::SeqWord;
use lanefs_sync::primitive::fence;
use lanefs_sync::random::spread;
use smallvec::SmallVec;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicI64, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

/// Groups of lanes.
const GROUPS: usize = 16;
/// Inodes of which a group can hold slots.
const SETS: usize = 128;
/// Pages a slot can name.
const PAGES: usize = 6;

const _: () = assert!(GROUPS <= u32::BITS as usize, "a bit of `used` for each");
const _: () = assert!(SETS == 1 << 7, "`set_of` takes seven bits");

/// The time of a slot that has none: earlier than any that is.
pub(crate) const NO_TIME: i64 = i64::MIN;

/// Marks that may be in a slot.
pub(crate) const STRIPED: u32 = DIRTY | DATASYNC | XATTR_DIRTY | QUEUED;
/// The slot's inode is on a dirty list.
const LISTED: u32 = QUEUED;

const _: () = assert!(STRIPED & LISTED != 0 && STRIPED & DIRTY != 0);

/// One inode's share of one group: two lines.
///
/// `ino` is stored with Release: when the slot is claimed, and when it is given back, behind its
/// times, which are in the inode by then; the partner is the Acquire load in [`Slot::seen`]. A
/// capture loads it SeqCst, between the fences of 4. All else is Relaxed: `seq` or `lock` orders
/// it, and who reads without them validates.
#[repr(C, align(128))]
struct Slot {
    /// Locked while what is on its line changes.
    seq: SeqWord,
    ino: AtomicU64,
    mtime: AtomicI64,
    ctime: AtomicI64,
    marks_line: Line,
    /// The slot's lock.
    lock: SeqWord,
    marks: AtomicU32,
    /// Page numbers and 1; 0: none.
    pages: [AtomicU64; PAGES],
}

const _: () = assert!(size_of::<Slot>() == 128 && std::mem::offset_of!(Slot, lock) == 64);

struct Group {
    /// For each set a slot for changes other than of the content, and one for those.
    slots: Box<[[Slot; 2]]>,
}

/// The slots of a volume.
pub(crate) struct Stamps {
    /// Groups there are. Written once for each, by the first lane of the group, SeqCst: the partner
    /// of the SeqCst load in [`Stamps::pairs`]. Whoever misses the bit comes before the first note
    /// of the group (4). The test before it is Relaxed.
    used: CachePadded<AtomicU32>,
    groups: [OnceLock<Group>; GROUPS],
}

/// Pages of one inode that became dirty, without their tree's knowing.
pub(crate) type Pages = SmallVec<[u64; 8]>;

/// The outcome of a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    /// The slots are others': the inode must be written.
    No,
    /// It is there, and the inode on a dirty list.
    Yes,
    /// It is there; the caller, who holds a lane of the group, puts the inode on that lane's dirty
    /// list.
    List,
}

/// The index of a set's slot for changes of the content.
const CONTENT: usize = 1;

/// Returns the set that an inode's slots are in.
#[inline]
fn set_of(ino: Ino) -> usize {
    (spread(ino.0) >> 57) as usize % SETS
}

impl Slot {
    fn new() -> Slot {
        Slot {
            seq: SeqWord::new(),
            ino: AtomicU64::new(0),
            mtime: AtomicI64::new(NO_TIME),
            ctime: AtomicI64::new(NO_TIME),
            marks_line: Line,
            lock: SeqWord::new(),
            marks: AtomicU32::new(0),
            pages: [const { AtomicU64::new(0) }; PAGES],
        }
    }

    /// Returns what `read` sees while the slot is `ino`'s and `word` unlocked. `read` loads
    /// relaxed: it is validated.
    fn seen<T>(&self, ino: Ino, word: &SeqWord, read: impl Fn() -> T) -> Option<T> {
        loop {
            if self.ino.load(Acquire) != ino.0 {
                return None;
            }
            if let Some(seq) = word.begin_read() {
                let (owner, seen) = (self.ino.load(Relaxed), read());
                if word.validate(seq) {
                    return (owner == ino.0).then_some(seen);
                }
            }
            lanefs_sync::schedule::spin_loop();
        }
    }

    /// Returns mtime and ctime of `ino`, or [`NO_TIME`].
    fn times(&self, ino: Ino) -> Option<(i64, i64)> {
        self.seen(ino, &self.seq, || (self.mtime.load(Relaxed), self.ctime.load(Relaxed)))
    }

    fn marks(&self, ino: Ino) -> Option<u32> {
        self.seen(ino, &self.lock, || self.marks.load(Relaxed))
    }

    /// Checks invariant 1, and what holds of the marks and the pages; the slot is locked.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.lock.is_locked(), "others may change it meanwhile");
        let (ino, marks) = (self.ino.load(Relaxed), self.marks.load(Relaxed));
        debug_assert_eq!(marks & !STRIPED, 0, "marks {marks:#x} that no slot has");
        let pages = self.pages().count();
        debug_assert!(pages == 0 || marks & DIRTY != 0, "{pages} pages, and the inode is not dirty");
        debug_assert!(ino != 0 || marks == 0, "marks {marks:#x} of no inode");
        let (mtime, ctime) = (self.mtime.load(Relaxed), self.ctime.load(Relaxed));
        debug_assert!(ino != 0 || mtime == NO_TIME && ctime == NO_TIME, "times of no inode");
    }

    fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().map(|p| p.load(Relaxed)).filter(|p| *p != 0).map(|p| p - 1)
    }

    /// Raises the times of the locked slot.
    fn raise(&self, mtime: i64, ctime: i64) {
        debug_assert!(self.lock.is_locked());
        let now = || (self.mtime.load(Relaxed), self.ctime.load(Relaxed));
        if now() != (now().0.max(mtime), now().1.max(ctime)) {
            let _s = self.seq.guard();
            let (m, c) = now();
            self.mtime.store(m.max(mtime), Relaxed);
            self.ctime.store(c.max(ctime), Relaxed);
        }
    }

    /// Makes the locked slot `ino`'s, if it may be.
    fn claim(&self, ino: Ino) -> bool {
        debug_assert!(!ino.is_none());
        self.check_invariants();
        match self.ino.load(Relaxed) {
            0 => {
                let _s = self.seq.guard();
                self.ino.store(ino.0, Release);
                true
            }
            owner => owner == ino.0,
        }
    }

    /// Gives the locked slot back, after `f` was called with its times.
    fn give_back(&self, f: &mut dyn FnMut(i64, i64)) {
        debug_assert_ne!(self.ino.load(Relaxed), 0, "it is nobody's");
        debug_assert_eq!(self.marks.load(Relaxed), 0, "marks would be lost (2)");
        debug_assert!(self.pages().next().is_none(), "a dirty page would be lost (6)");
        let _s = self.seq.guard();
        f(self.mtime.load(Relaxed), self.ctime.load(Relaxed));
        self.mtime.store(NO_TIME, Relaxed);
        self.ctime.store(NO_TIME, Relaxed);
        // Release: who finds the slot gone finds its times in the inode.
        self.ino.store(0, Release);
        self.check_invariants();
    }

    /// Returns whether the locked slot is `ino`'s.
    fn is(&self, ino: Ino) -> bool {
        debug_assert!(self.lock.is_locked() || self.seq.is_locked(), "its owner may change");
        self.ino.load(Relaxed) == ino.0
    }
}

impl Group {
    fn new() -> Group {
        Group { slots: (0..SETS).map(|_| [Slot::new(), Slot::new()]).collect() }
    }

    fn slot(&self, ino: Ino, content: bool) -> &Slot {
        &self.slots[set_of(ino)][if content { CONTENT } else { 1 - CONTENT }]
    }
}

impl Stamps {
    pub fn new() -> Stamps {
        Stamps { used: CachePadded::default(), groups: [const { OnceLock::new() }; GROUPS] }
    }

    fn group(&self, lane: usize) -> &Group {
        let n = lane % GROUPS;
        let g = self.groups[n].get_or_init(Group::new);
        if self.used.load(Relaxed) & 1 << n == 0 {
            self.used.fetch_or(1 << n, SeqCst);
        }
        debug_assert_ne!(self.used.load(Relaxed) & 1 << n, 0, "a group that no capture would look at");
        g
    }

    /// Returns the pairs of slots that may be `ino`'s. One load where no lane ever changed
    /// another's inode: `stat` and reads come by here.
    #[inline]
    fn pairs(&self, ino: Ino) -> impl Iterator<Item = &[Slot; 2]> {
        // SeqCst: before the first note of a group is its bit (4).
        let mut left = self.used.load(SeqCst);
        std::iter::from_fn(move || {
            while left != 0 {
                let n = left.trailing_zeros() as usize;
                left &= left - 1;
                debug_assert!(self.groups[n].get().is_some(), "the bit is set behind the group");
                if let Some(g) = self.groups[n].get() {
                    return Some(&g.slots[set_of(ino)]);
                }
            }
            None
        })
    }

    /// Returns all slots that may be `ino`'s.
    #[inline]
    fn slots(&self, ino: Ino) -> impl Iterator<Item = &Slot> {
        self.pairs(ino).flatten()
    }

    /// Returns the slots of `ino` for changes of the content.
    #[inline]
    fn content_slots(&self, ino: Ino) -> impl Iterator<Item = &Slot> {
        self.pairs(ino).map(|p| &p[CONTENT])
    }

    /// Returns whether a lane's slot has all this already. Writes nothing.
    pub fn knows(&self, lane: usize, ino: Ino, mtime: Option<i64>, ctime: i64, marks: u32) -> bool {
        fence(SeqCst); // 4
        let Some(g) = self.groups[lane % GROUPS].get() else { return false };
        let (slot, marks) = (g.slot(ino, mtime.is_some()), marks | DIRTY | LISTED);
        slot.times(ino).is_some_and(|(m, c)| c >= ctime && mtime.is_none_or(|t| m >= t))
            && slot.marks(ino).is_some_and(|m| m & marks == marks)
    }

    /// Notes a change at `ctime`; of the content if it has an mtime. The caller has the lane
    /// locked.
    pub fn note(&self, lane: usize, ino: Ino, mtime: Option<i64>, ctime: i64, marks: u32) -> Noted {
        debug_assert_eq!(marks & !STRIPED, 0, "marks {marks:#x} that no slot has");
        debug_assert!(ctime != NO_TIME && mtime != Some(NO_TIME), "a change has a time");
        let slot = self.group(lane).slot(ino, mtime.is_some());
        fence(SeqCst); // 4
        let _l = slot.lock.guard();
        if !slot.claim(ino) {
            return Noted::No;
        }
        slot.raise(mtime.unwrap_or(NO_TIME), ctime);
        debug_assert!(mtime.is_some() || slot.mtime.load(Relaxed) == NO_TIME, "an mtime of attributes");
        let before = slot.marks.load(Relaxed);
        slot.marks.store(before | marks | DIRTY | LISTED, Relaxed);
        slot.check_invariants();
        if before & LISTED == 0 { Noted::List } else { Noted::Yes }
    }

    /// Notes that a page, which the caller has locked, became dirty. Returns false if there is no
    /// space.
    pub fn note_page(&self, lane: usize, ino: Ino, page: u64) -> bool {
        debug_assert!(page < u64::MAX, "page numbers are stored plus 1");
        let slot = self.group(lane).slot(ino, true);
        fence(SeqCst); // 4
        let _l = slot.lock.guard();
        if !slot.claim(ino) {
            return false;
        }
        if !slot.pages().any(|p| p == page) {
            let Some(free) = slot.pages.iter().find(|p| p.load(Relaxed) == 0) else { return false };
            free.store(page + 1, Relaxed);
        }
        slot.marks.store(slot.marks.load(Relaxed) | DIRTY, Relaxed);
        slot.check_invariants();
        true
    }

    /// Returns mtime and ctime of `ino`, of all slots, or [`NO_TIME`].
    pub fn times(&self, ino: Ino) -> (i64, i64) {
        let all = self.slots(ino).filter_map(|s| s.times(ino));
        all.fold((NO_TIME, NO_TIME), |a, b| (a.0.max(b.0), a.1.max(b.1)))
    }

    /// Returns the marks of `ino`, of all slots.
    pub fn marks(&self, ino: Ino) -> u32 {
        self.slots(ino).filter_map(|s| s.marks(ino)).fold(0, |a, b| a | b)
    }

    /// Returns the marks of `ino`, of the slots for changes of the content.
    pub fn content_marks(&self, ino: Ino) -> u32 {
        self.content_slots(ino).filter_map(|s| s.marks(ino)).fold(0, |a, b| a | b)
    }

    /// Returns the pages of `ino` that became dirty.
    pub fn pages(&self, ino: Ino) -> Pages {
        let of = |s: &Slot| s.seen(ino, &s.lock, || s.pages().collect::<Pages>());
        self.content_slots(ino).filter_map(of).flatten().collect()
    }

    /// Returns whether a page of `ino` became dirty.
    pub fn has_pages(&self, ino: Ino) -> bool {
        self.content_slots(ino).any(|s| s.seen(ino, &s.lock, || s.pages().next().is_some()) == Some(true))
    }

    /// Takes the marks and pages of `ino` off, but for [`LISTED`]; its times stay.
    pub fn take(&self, ino: Ino) -> (u32, Pages) {
        let (mut marks, mut pages) = (0, Pages::new());
        fence(SeqCst); // 4
        for slot in self.slots(ino) {
            if slot.ino.load(SeqCst) != ino.0 || slot.marks(ino).is_some_and(|m| m & !LISTED == 0) {
                continue;
            }
            let _l = slot.lock.guard();
            if slot.is(ino) {
                let m = slot.marks.load(Relaxed);
                marks |= m;
                slot.marks.store(m & LISTED, Relaxed);
                pages.extend(slot.pages());
                slot.pages.iter().filter(|p| p.load(Relaxed) != 0).for_each(|p| p.store(0, Relaxed));
                slot.check_invariants();
            }
        }
        fence(SeqCst); // 4
        (marks, pages)
    }

    /// Does as [`Stamps::take`], as far as fdatasync asks: pages, and the mark of the size. The
    /// marks of attributes stay.
    pub fn take_content(&self, ino: Ino) -> (u32, Pages) {
        let (mut marks, mut pages) = (0, Pages::new());
        fence(SeqCst); // 4
        for slot in self.content_slots(ino) {
            let wanted = || slot.marks.load(Relaxed) & DATASYNC != 0 || slot.pages().next().is_some();
            if slot.ino.load(SeqCst) != ino.0 || slot.seen(ino, &slot.lock, wanted) == Some(false) {
                continue;
            }
            let _l = slot.lock.guard();
            if slot.is(ino) {
                let m = slot.marks.load(Relaxed);
                marks |= m & DATASYNC;
                slot.marks.store(m & !DATASYNC, Relaxed);
                pages.extend(slot.pages());
                slot.pages.iter().filter(|p| p.load(Relaxed) != 0).for_each(|p| p.store(0, Relaxed));
                slot.check_invariants();
            }
        }
        fence(SeqCst); // 4
        (marks, pages)
    }

    /// Takes [`LISTED`] off, for an inode whose turn on the dirty lists has come, and gives slots
    /// without other marks back, after `f` was called with their times.
    pub fn release(&self, ino: Ino, f: &mut dyn FnMut(i64, i64)) {
        for slot in self.slots(ino).filter(|s| s.ino.load(Acquire) == ino.0) {
            let _l = slot.lock.guard();
            if slot.is(ino) {
                let marks = slot.marks.load(Relaxed) & !LISTED;
                slot.marks.store(marks, Relaxed);
                if marks == 0 {
                    slot.give_back(f);
                }
            }
        }
    }

    /// Gives the slots of `ino` back, whatever is in them: it is gone.
    pub fn drop_all(&self, ino: Ino) {
        // Nobody knows it, so nobody is about to claim a slot for it: mostly it has none, and the
        // fences of a capture (4) order nothing here.
        if self.slots(ino).all(|s| s.ino.load(Acquire) != ino.0) {
            return;
        }
        self.take(ino);
        self.release(ino, &mut |_, _| {});
    }

    /// Forgets the mtimes that the slots have of `ino`, and with `ctime` the ctimes: the caller is
    /// about to store other times.
    pub fn forget_times(&self, ino: Ino, mtime: bool, ctime: bool) {
        // What is not of the content has no mtime.
        let all = self.pairs(ino).flat_map(|p| &p[if ctime { 0 } else { CONTENT }..]);
        for slot in all {
            let noted = |(m, c): (i64, i64)| mtime && m != NO_TIME || ctime && c != NO_TIME;
            if !slot.times(ino).is_some_and(noted) {
                continue;
            }
            let _s = slot.seq.guard();
            if slot.is(ino) {
                if mtime {
                    slot.mtime.store(NO_TIME, Relaxed);
                }
                if ctime {
                    slot.ctime.store(NO_TIME, Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_all_lanes_make_one_answer_and_are_given_back_without_marks() {
        let s = Stamps::new();
        let ino = Ino(77);
        assert_eq!((s.times(ino), s.marks(ino)), ((NO_TIME, NO_TIME), 0));
        assert_eq!(s.note(1, ino, Some(5), 5, DATASYNC), Noted::List);
        assert_eq!(s.note(2, ino, None, 9, 0), Noted::List);
        // Lane 17 shares the group of lane 1.
        assert_eq!(s.note(17, ino, Some(7), 7, 0), Noted::Yes);
        assert!(s.knows(17, ino, Some(7), 7, DATASYNC) && !s.knows(17, ino, Some(8), 8, 0));
        assert_eq!((s.times(ino), s.marks(ino)), ((7, 9), DIRTY | DATASYNC | LISTED));
        // An explicit time takes the mtimes back, not the ctimes.
        s.forget_times(ino, true, false);
        assert_eq!(s.times(ino), (NO_TIME, 9));
        // A capture takes the marks; the times stay until the slot is given back, and the slot
        // while it has marks.
        assert_eq!(s.take(ino).0, DIRTY | DATASYNC | LISTED);
        assert_eq!((s.times(ino), s.marks(ino)), ((NO_TIME, 9), LISTED));
        assert_eq!(s.note(2, ino, None, 10, 0), Noted::Yes);
        let mut given = Vec::new();
        s.release(ino, &mut |m, c| given.push((m, c)));
        assert_eq!(
            (given.as_slice(), s.times(ino), s.marks(ino)),
            (&[(NO_TIME, 7)][..], (NO_TIME, 10), DIRTY)
        );
        assert_eq!(s.note(2, ino, None, 10, 0), Noted::List);
        s.drop_all(ino);
        assert_eq!((s.times(ino), s.marks(ino)), ((NO_TIME, NO_TIME), 0));
    }

    #[test]
    fn a_slot_of_another_inode_is_left_alone_and_pages_overflow_to_the_tree() {
        let s = Stamps::new();
        let g = s.group(0);
        let twin = (2..).map(Ino).find(|i| std::ptr::eq(g.slot(*i, true), g.slot(Ino(1), true))).unwrap();
        for page in 0..PAGES as u64 {
            assert!(s.note_page(0, Ino(1), page) && s.note_page(0, Ino(1), page));
        }
        assert!(!s.note_page(0, Ino(1), 99));
        assert!(!s.note_page(0, twin, 0));
        assert_eq!(s.note(0, twin, Some(1), 1, 0), Noted::No);
        assert!(s.has_pages(Ino(1)) && !s.has_pages(twin));
        assert_eq!(s.pages(Ino(1)).as_slice(), (0..PAGES as u64).collect::<Vec<_>>());
        let (marks, pages) = s.take(Ino(1));
        assert_eq!((marks, pages.len()), (DIRTY, PAGES));
        s.release(Ino(1), &mut |_, _| {});
        assert_eq!(s.note(0, twin, Some(1), 1, 0), Noted::List);
    }

    /// 4: a change is captured, or there is a mark afterwards.
    #[test]
    fn no_change_is_lost_between_a_note_and_a_capture() {
        let s = Stamps::new();
        let (value, ino) = (AtomicU64::new(0), Ino(5));
        let turns: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let captured = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=turns {
                    value.store(n, Relaxed);
                    if !s.knows(3, ino, Some(1), 1, 0) {
                        s.note(3, ino, Some(1), 1, 0);
                    }
                }
            });
            scope.spawn(|| {
                for n in 0..turns {
                    s.take(ino);
                    captured.store(value.load(Relaxed), Relaxed);
                    if n % 3 == 0 {
                        s.release(ino, &mut |_, _| {});
                    }
                }
            });
        });
        assert!(s.marks(ino) & DIRTY != 0 || captured.load(Relaxed) == turns);
    }
}
