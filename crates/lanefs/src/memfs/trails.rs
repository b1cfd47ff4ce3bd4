//! Where in memory paths led: what a lane asks for before it walks a path again.
//!
//! The end of a walk is a chain of lines that each say where the next one is: the directory's
//! inode, the leaf, the entry, the inode that it names. Of a path in a tree that is larger than the
//! processor's cache each is a miss, one after the other. A lane notes these four addresses of a
//! path, its *trail*, and asks for all of them at once when the path comes again; the walk then
//! finds them on their way.
//!
//! 1. A trail is a hint. Nobody reads what is there: the processor is asked to fetch the lines
//!    (`lanefs_sync::prefetch`), which never faults. So a trail that is out of date, of another
//!    path of the same hash, or torn by two threads of the lane costs a line fetched for nothing,
//!    and needs neither an order nor an end.
//! 2. A lane's slots are its own threads' (as in `memfs::paths`). A trail takes one of the two
//!    slots in its line when it was missed there twice in a row; a walk that went elsewhere than
//!    its trail says corrects it.

use super::dir::At;
use super::inode::Inode;
use super::paths::places;
use crossbeam_utils::CachePadded;
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::prefetch::prefetch_at;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The share of the memory budget that a lane's slots take, and the fewest and most lines of them.
const SHARE: u64 = 1024;
const LINES: (usize, usize) = (128, 32768);
/// Bits of an address below a line, and bits of a slot's word that are not an address.
const LINE_BITS: u32 = 6;
const TAG_BITS: u32 = 22;
/// The part of an inode that names of a directory, or the content, are found by, in bytes.
const BODY: usize = std::mem::offset_of!(Inode, body);

/// The trail of one path: directory, leaf, entry, inode, each an address without its lowest bits
/// above 22 other bits; these are of the first word the path's tag, of the second the tag of the
/// path that was missed here last. Relaxed (1).
#[derive(Default)]
struct Slot([AtomicU64; 4]);

/// Two slots.
#[derive(Default)]
#[repr(align(64))]
struct Line([Slot; 2]);

const _: () = assert!(size_of::<Line>() == 64);

/// Returns a word with the line of an address. Of one with more than 48 bits it has the lower ones.
#[inline]
fn word(at: usize, tag: u64) -> u64 {
    debug_assert!(tag < 1 << TAG_BITS, "a tag of more than {TAG_BITS} bits");
    (at as u64 >> LINE_BITS) << TAG_BITS | tag
}

#[inline]
fn tag_of(word: u64) -> u64 {
    word & ((1 << TAG_BITS) - 1)
}

/// Asks for the line of a word's address, `offset` bytes behind it.
#[inline]
fn ask(word: u64, offset: usize) {
    debug_assert!(offset.is_multiple_of(1 << LINE_BITS) || offset == BODY, "offset {offset}");
    let at = ((word >> TAG_BITS) << LINE_BITS) as usize;
    prefetch_at(std::ptr::without_provenance(at.wrapping_add(offset)));
}

/// Returns whether a word has this address.
#[inline]
fn leads(word_of: &AtomicU64, at: usize) -> bool {
    debug_assert_ne!(at, 0, "a path led nowhere");
    word_of.load(Relaxed) >> TAG_BITS == word(at, 0) >> TAG_BITS
}

/// Where a path may be noted.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    hash: u64,
    lane: usize,
    /// The slot of its line that is the path's, 2: none.
    slot: usize,
}

/// A lane's lines, made when it has something to note. The cell orders that.
type Lines = CachePadded<OnceLock<Box<[Line]>>>;

/// What lanes know of where paths led.
pub(crate) struct Trails {
    lanes: Box<[Lines]>,
    /// Lines of a lane: a power of two.
    lines: usize,
    switch: Switch,
}

impl Trails {
    /// Makes one that knows nothing, for so many lanes, of a volume with so much memory.
    pub fn new(lanes: usize, memory: u64) -> Trails {
        Trails {
            lanes: (0..lanes).map(|_| CachePadded::default()).collect(),
            lines: places::<Line>(memory / SHARE, LINES),
            switch: Switch::of(Technique::Trails),
        }
    }

    /// Returns the line of a hash, and its tag, which is never 0.
    #[inline]
    fn line(&self, lane: usize, hash: u64) -> Option<(&Line, u64)> {
        let lines = self.lanes[lane].get()?;
        debug_assert_eq!(lines.len(), self.lines, "lines of another volume");
        Some((&lines[hash as usize & (lines.len() - 1)], (hash >> (64 - TAG_BITS)) | 1))
    }

    /// Asks for the memory that a path with this hash led to, as far as `lane`, the caller's own,
    /// knows. `None`: nothing is noted.
    #[inline]
    pub fn ask(&self, lane: usize, hash: u64) -> Option<Place> {
        if self.switch.off() {
            return None;
        }
        let mut place = Place { hash, lane, slot: 2 };
        let Some((line, tag)) = self.line(lane, hash) else { return Some(place) };
        for (i, Slot(words)) in line.0.iter().enumerate() {
            let dir = words[0].load(Relaxed);
            if tag_of(dir) == tag {
                ask(dir, 0);
                ask(dir, BODY);
                ask(words[1].load(Relaxed), 0);
                ask(words[2].load(Relaxed), 0);
                let inode = words[3].load(Relaxed);
                // What is looked at before a file is read, or told of.
                ask(inode, 0);
                ask(inode, 64);
                ask(inode, 128);
                ask(inode, BODY);
                place.slot = i;
                break;
            }
        }
        Some(place)
    }

    /// Notes where the path of `place` led: through `dir` and what is `at` there, to `inode`.
    #[inline]
    pub fn note(&self, place: Place, dir: &Inode, at: &At, inode: &Inode) {
        let inode = std::ptr::from_ref(inode).addr();
        let Place { hash, lane, slot } = place;
        let Some((Line(slots), tag)) = self.line(lane, hash) else {
            self.begin(lane);
            return;
        };
        let known = slots.get(slot);
        // An entry stays in its leaf, and that in its directory, or are made anew.
        if known.is_some_and(|Slot(w)| leads(&w[2], at.entry) && leads(&w[3], inode)) {
            return;
        }
        let addresses = [std::ptr::from_ref(dir).addr(), at.leaf, at.entry, inode];
        Trails::correct(slots, known, &addresses, tag);
    }

    /// Notes a path that was not known, or led elsewhere.
    #[inline(never)]
    fn correct(slots: &[Slot; 2], known: Option<&Slot>, addresses: &[usize; 4], tag: u64) {
        debug_assert_ne!(tag, 0, "an empty slot would be the path's");
        match known {
            Some(known) => known.store(addresses, tag),
            None => Trails::note_new(slots, addresses, tag),
        }
    }

    /// Notes a path that was not known.
    fn note_new(slots: &[Slot; 2], addresses: &[usize; 4], tag: u64) {
        let [Slot(first), Slot(second)] = slots;
        debug_assert_ne!(tag, 0, "an empty slot would be the path's");
        let missed = first[1].load(Relaxed);
        if tag_of(missed) != tag {
            first[1].store(missed & !((1 << TAG_BITS) - 1) | tag, Relaxed);
            return;
        }
        // The one that is empty, or else by a bit of the tag: one of two paths that come in turn
        // keeps its place.
        let takes_first =
            tag_of(first[0].load(Relaxed)) == 0 || tag_of(second[0].load(Relaxed)) != 0 && tag & 2 == 0;
        slots[usize::from(!takes_first)].store(addresses, tag);
    }

    /// Makes the lane's lines.
    #[cold]
    fn begin(&self, lane: usize) {
        let lines = self.lanes[lane].get_or_init(|| (0..self.lines).map(|_| Line::default()).collect());
        debug_assert_eq!(lines.len(), self.lines);
    }
}

impl Slot {
    /// Writes what has changed.
    #[inline]
    fn store(&self, addresses: &[usize; 4], tag: u64) {
        let Slot(words) = self;
        debug_assert!(addresses.iter().all(|at| *at != 0), "a path led nowhere");
        for (i, (word_of, at)) in words.iter().zip(addresses).enumerate() {
            let old = word_of.load(Relaxed);
            // The tag of what was missed stays.
            let new = word(*at, if i == 0 { tag } else { tag_of(old) });
            if old != new {
                word_of.store(new, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: u64 = 0x7 << (64 - 3);

    fn known(slot: &Slot) -> ([usize; 4], u64) {
        let words = [0, 1, 2, 3].map(|i: usize| slot.0[i].load(Relaxed));
        (words.map(|w| (w >> TAG_BITS << LINE_BITS) as usize), tag_of(words[0]))
    }

    fn trails() -> Trails {
        let t = Trails::new(2, 64 << 20);
        t.begin(0);
        t
    }

    fn note(t: &Trails, hash: u64, addresses: [usize; 4]) {
        let place = t.ask(0, hash).unwrap();
        let (Line(slots), tag) = t.line(0, hash).unwrap();
        Trails::correct(slots, slots.get(place.slot), &addresses, tag);
    }

    const SOME: [usize; 4] = [0x7fff_1234_5640, 0x7f00_0000_0080, 0x40, 0x7fff_ffff_ffc0];

    #[test]
    fn a_path_is_noted_when_it_is_missed_twice_and_corrected_at_once() {
        let t = trails();
        note(&t, TAG | 5, SOME);
        assert_eq!(t.ask(0, TAG | 5).unwrap().slot, 2);
        note(&t, TAG | 5, SOME);
        assert_eq!(t.ask(0, TAG | 5).unwrap().slot, 0);
        let slot = &t.line(0, TAG | 5).unwrap().0.0[0];
        assert_eq!(known(slot).0, SOME);
        note(&t, TAG | 5, [0x80; 4]);
        assert_eq!(known(slot).0, [0x80; 4]);
        assert_eq!(t.ask(1, TAG | 5).unwrap().slot, 2, "another lane knows nothing");
    }

    #[test]
    fn two_paths_of_a_line_are_noted_beside_each_other_and_a_third_takes_one() {
        let t = trails();
        let [a, b, c] = [1u64, 2, 4].map(|n| n << (64 - TAG_BITS + 2) | 9);
        let places = || [a, b, c].map(|hash| t.ask(0, hash).unwrap().slot);
        for hash in [a, a, b, b] {
            note(&t, hash, SOME);
        }
        assert_eq!(places(), [0, 1, 2]);
        note(&t, c, SOME);
        note(&t, a, SOME);
        assert_eq!(places(), [0, 1, 2], "what is missed once takes no place");
        note(&t, c, SOME);
        assert_eq!(places(), [2, 1, 0]);
    }

    #[test]
    fn an_address_of_many_bits_is_cut() {
        let t = trails();
        (0..2).for_each(|_| note(&t, 3, [usize::MAX; 4]));
        assert_eq!(known(&t.line(0, 3).unwrap().0.0[0]).0, [(1 << 48) - 64; 4]);
    }
}
