//! Where paths lead: what each lane remembers of the paths it walked.
//!
//! A walk looks up one component after the other, and each costs some misses of the processor's
//! cache that follow each other: leaf, entry, slot of the inode table, inode, leaf of the next. The
//! components before the last one, the path's *way*, are mostly those of the calls before. A lane
//! remembers which directory such a way leads to, and skips it.
//!
//! 1. A directory has one name. So where a way leads is changed only by removing, moving or
//!    replacing a directory on it (rmdir, rename). Who does that notes it with the directory's
//!    number, before it changes a name and until all are changed ([`Paths::moves`]).
//! 2. Remembered is, with the directory at the end, the sum of the counters of all directories on
//!    the way, the last one included (`lanefs_sync::changes`). It is taken before the way is walked
//!    (for a second time: the first walk tells which these are), and compared whenever the way is
//!    used. If it is the same there was a moment within the call at which the way led there: more
//!    than a walk can say.
//! 3. A way has only names of directories, and of these two to eight, in at most 80 bytes: no
//!    symbolic link, no `.` and no `..`. It begins at the root, or at the directory that the caller
//!    says. That one counts by its number, whatever it is called.
//! 4. Only who may search all directories uses it: so no mode is asked on the way.
//! 5. What is remembered is no reference: the inode is looked for by its number, and may have left
//!    memory. One that was freed had lost its name.
//! 6. A lane's slots are written by its own threads alone, of which there may be several: by a
//!    sequence word. A way takes one of the two slots that its hash gives it, when it was missed
//!    twice in a row there: a path that is used once costs one store.

use crossbeam_utils::CachePadded;
use lanefs_format::Ino;
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::{Change, Changes, CounterOf, SeqWord};
use smallvec::SmallVec;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The fewest directories that are worth to be skipped, and the most.
const FEWEST: usize = 2;
const MOST: usize = 8;
/// Words of the text of a way.
const WORDS: usize = 10;
/// The share of the memory budget that a lane's slots take, and the most and fewest of them.
const SHARE: u64 = 2048;
const SLOTS: (usize, usize) = (128, 16384);

/// The directories on a way, in their order, as far as that matters.
#[derive(PartialEq, Eq)]
pub(crate) struct Dirs(SmallVec<[Ino; MOST + 1]>);

impl Dirs {
    pub fn new() -> Dirs {
        Dirs(SmallVec::new())
    }

    /// Adds the next one. Of a way that is too long for memory only that is noted.
    #[inline]
    pub fn push(&mut self, dir: Ino) {
        if self.0.len() <= MOST {
            self.0.push(dir);
        }
        debug_assert!(!self.0.spilled(), "a walk allocates nothing");
    }
}

/// A way as it is looked for.
pub(crate) struct Way {
    start: u64,
    text: [u64; WORDS],
    /// Bytes of the text.
    len: usize,
    hash: u64,
}

/// Returns the eight bytes of a path from `at` on, the first one lowest; zeros behind its end.
#[inline(always)]
fn word_at(path: &[u8], at: usize) -> u64 {
    debug_assert!(at < path.len(), "byte {at} of {}", path.len());
    if let Some(eight) = path[at..].first_chunk::<8>() {
        return u64::from_le_bytes(*eight);
    }
    match path.last_chunk::<8>() {
        // No copy of a few bytes: a call costs more than they do.
        Some(eight) => u64::from_le_bytes(*eight) >> (8 * (8 - (path.len() - at))),
        None => path[at..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Returns how many `/` a path has, and where the last one is.
#[inline(always)]
fn slashes(path: &[u8]) -> (u32, usize) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const REST: u64 = ONES * 0x7f;
    let (mut count, mut last) = (0, 0);
    for at in (0..path.len()).step_by(8) {
        // A byte that is `/` becomes zero, of which the top bit is set here, and of no other.
        let x = word_at(path, at) ^ (ONES * b'/' as u64);
        let hits = !(((x & REST) + REST) | x | REST);
        if hits != 0 {
            count += hits.count_ones();
            last = at + (63 - hits.leading_zeros() as usize) / 8;
        }
    }
    debug_assert_eq!(count as usize, path.iter().filter(|b| **b == b'/').count());
    debug_assert!(count == 0 || path.iter().rposition(|b| *b == b'/') == Some(last));
    (count, last)
}

impl Way {
    /// Splits a path, which does not begin with `/`, into its way from directory `start` on and its
    /// last component. `None`: its way is none that is remembered.
    #[inline]
    pub fn split(start: Ino, path: &[u8]) -> Option<(Way, &[u8])> {
        let (count, len) = slashes(path);
        if (count as usize) < FEWEST || len > WORDS * 8 || len + 1 == path.len() {
            return None;
        }
        let mut way = Way { start: start.0, text: [0; WORDS], len, hash: start.0 };
        for (i, word) in way.text.iter_mut().enumerate().take(len.div_ceil(8)) {
            *word = word_at(path, i * 8);
            if len - i * 8 < 8 {
                *word &= (1 << (8 * (len - i * 8))) - 1;
            }
            // Whoever finds ways of one hash makes them miss, no more: they are compared.
            let wide = u128::from(way.hash ^ *word) * 0x9e37_79b9_7f4a_7c15_u128;
            way.hash = wide as u64 ^ (wide >> 64) as u64;
        }
        Some((way, &path[len + 1..]))
    }

    /// Returns a hash of the path of which this is the way: of the first and last bytes of its last
    /// component, since it is no more than a hint whether two paths are the same.
    #[inline(always)]
    pub fn hash_of(&self, path: &[u8]) -> u64 {
        debug_assert!(self.len + 1 < path.len(), "a path ends in a name");
        let end = path.last_chunk::<8>().map_or(0, |eight| u64::from_le_bytes(*eight));
        let ends = word_at(path, self.len + 1) ^ end.rotate_left(29);
        let wide = u128::from(self.hash ^ ends) * 0xd6e8_feb8_6659_fd93_u128;
        wide as u64 ^ (wide >> 64) as u64
    }

    #[inline]
    fn words(&self) -> usize {
        debug_assert!(self.len <= WORDS * 8, "a way of {} bytes", self.len);
        self.len.div_ceil(8)
    }
}

/// What is remembered of a way. Two lines of a lane's own.
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    /// Held by who writes the slot.
    seq: SeqWord,
    /// The hash of the way that was missed here last. Relaxed: a hint.
    missed: AtomicU32,
    // All below: written by the holder of `seq`, and validated with it. Relaxed for that.
    start: AtomicU64,
    /// Bytes of the text, and from bit 8 on the number of directories.
    shape: AtomicU64,
    parent: AtomicU64,
    sum: AtomicU64,
    /// The counters of the directories, a byte for each.
    counters: AtomicU64,
    text: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<Slot>() == 128 && MOST == size_of::<u64>());

impl Slot {
    #[inline]
    fn is_of(&self, way: &Way) -> bool {
        let mut text = self.text.iter().zip(&way.text).take(way.words());
        self.start.load(Relaxed) == way.start
            && self.shape.load(Relaxed) % 256 == way.len as u64
            && text.all(|(mine, its)| mine.load(Relaxed) == *its)
    }

    /// Returns whether no way was ever remembered here.
    fn is_empty(&self) -> bool {
        self.parent.load(Relaxed) == 0
    }

    /// Remembers a way, unless somebody else writes the slot.
    fn put(&self, way: &Way, parent: Ino, (counters, of): (u64, usize), sum: u64) {
        debug_assert!(!parent.is_none(), "a way to nowhere");
        if !self.seq.try_lock() {
            return;
        }
        self.start.store(way.start, Relaxed);
        self.shape.store((way.len | of << 8) as u64, Relaxed);
        self.parent.store(parent.0, Relaxed);
        self.sum.store(sum, Relaxed);
        self.counters.store(counters, Relaxed);
        for (mine, its) in self.text.iter().zip(&way.text).take(way.words()) {
            mine.store(*its, Relaxed);
        }
        debug_assert!(self.is_of(way), "another way was remembered");
        self.seq.unlock();
    }
}

/// What a lane knows of a way.
pub(crate) enum Known {
    /// It leads to this directory.
    To(Ino),
    /// Nothing. It is worth to be remembered, or not.
    Nothing { again: bool },
}

/// Returns the counters that a word has, a byte for each.
#[inline]
fn each(counters: u64, of: usize) -> impl Iterator<Item = CounterOf> {
    debug_assert!((FEWEST..=MOST).contains(&of), "a way through {of} directories");
    (0..of.min(MOST)).map(move |i| CounterOf::of_byte((counters >> (8 * i)) as u8))
}

/// A lane's slots, made when it has something to remember. The cell orders that.
type Slots = CachePadded<OnceLock<Box<[Slot]>>>;

/// Returns how many `T` a lane has in so many bytes: a power of two between these two.
pub(super) fn places<T>(bytes: u64, (least, most): (usize, usize)) -> usize {
    let wanted = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<T>();
    let places = wanted.clamp(least, most).next_power_of_two().min(most);
    debug_assert!(places.is_power_of_two() && (least..=most).contains(&places), "{places} places");
    places
}

/// The ways that lanes remember.
pub(crate) struct Paths {
    /// Directories that lose their place.
    moved: Changes,
    lanes: Box<[Slots]>,
    /// Slots of a lane: a power of two.
    slots: usize,
    switch: Switch,
}

impl Paths {
    /// Makes one that knows nothing, for so many lanes, of a volume with so much memory.
    pub fn new(lanes: usize, memory: u64) -> Paths {
        let slots = places::<Slot>(memory / SHARE, SLOTS);
        Paths {
            moved: Changes::new(),
            lanes: (0..lanes).map(|_| CachePadded::default()).collect(),
            slots,
            switch: Switch::of(Technique::Paths),
        }
    }

    /// Notes that a directory is about to lose its name, or to get another: it does until what this
    /// returns is dropped (1).
    pub fn moves(&self, dir: Ino) -> Change<'_> {
        debug_assert!(!dir.is_none(), "no directory");
        self.moved.begin(dir.0)
    }

    /// Returns the two slots that a way may have, the one first that it takes where both are
    /// others'.
    #[inline]
    fn slots(&self, lane: usize, way: &Way) -> Option<[&Slot; 2]> {
        let slots = self.lanes[lane].get()?;
        let first = way.hash as usize & (slots.len() - 1);
        Some([&slots[first], &slots[first ^ 1]])
    }

    /// Returns what a lane, the caller's own, knows of a way.
    #[inline]
    pub fn get(&self, lane: usize, way: &Way) -> Known {
        if self.switch.off() {
            return Known::Nothing { again: false };
        }
        let Some(slots) = self.slots(lane, way) else { return Known::Nothing { again: true } };
        for slot in slots {
            if let Some(seq) = slot.seq.begin_read()
                && slot.is_of(way)
            {
                let (parent, sum) = (slot.parent.load(Relaxed), slot.sum.load(Relaxed));
                let counters = slot.counters.load(Relaxed);
                let of = slot.shape.load(Relaxed) as usize >> 8;
                if slot.seq.validate(seq) && self.moved.sum(each(counters, of)) == Some(sum) {
                    return Known::To(Ino(parent));
                }
                return Known::Nothing { again: true };
            }
        }
        let hash = (way.hash >> 32) as u32;
        if slots[0].missed.load(Relaxed) == hash {
            return Known::Nothing { again: true };
        }
        slots[0].missed.store(hash, Relaxed);
        Known::Nothing { again: false }
    }

    /// Walks a way that leads through `dirs`, to the last of them, once more, by `walk`, which says
    /// whether it does; and remembers it.
    pub fn remember(&self, lane: usize, way: &Way, dirs: &Dirs, walk: impl FnOnce() -> bool) {
        let Dirs(dirs) = dirs;
        let [.., parent] = &dirs[..] else { return };
        if !(FEWEST..=MOST).contains(&dirs.len()) {
            return;
        }
        let counters =
            dirs.iter().rev().fold(0, |word, dir| word << 8 | u64::from(CounterOf::thing(dir.0).byte()));
        // 2: the sum, then the walk.
        let Some(sum) = self.moved.sum(each(counters, dirs.len())) else { return };
        if !walk() {
            return;
        }
        self.lanes[lane].get_or_init(|| (0..self.slots).map(|_| Slot::default()).collect());
        if let Some([first, second]) = self.slots(lane, way) {
            // One that is of this way, or of none yet, else the first.
            let takes_second =
                second.is_of(way) || !first.is_of(way) && second.is_empty() && !first.is_empty();
            let slot = if takes_second { second } else { first };
            slot.put(way, *parent, (counters, dirs.len()), sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(p: &Paths, lane: usize, way: &Way) -> Option<u64> {
        match p.get(lane, way) {
            Known::To(ino) => Some(ino.0),
            Known::Nothing { .. } => None,
        }
    }

    fn way_of(start: u64, text: &str) -> Way {
        Way::split(Ino(start), format!("{text}/f").as_bytes()).unwrap().0
    }

    fn dirs(of: &[Ino]) -> Dirs {
        let mut dirs = Dirs::new();
        of.iter().for_each(|dir| dirs.push(*dir));
        dirs
    }

    fn paths() -> Paths {
        Paths::new(2, 64 << 20)
    }

    #[test]
    fn ways_that_are_too_short_or_too_long_are_none() {
        assert!(Way::split(Ino(1), b"a/f").is_none());
        assert!(Way::split(Ino(1), format!("a/{}/f", "b".repeat(79)).as_bytes()).is_none());
        assert!(Way::split(Ino(1), b"a/b/").is_none());
        let paths = ["a/b/f", "aa/bbbb/f", "aa/bbbbb/f", "aa/bbbbb/file", "aaaaaaaa/bbbbbbbb/ffffffff"];
        for path in paths {
            let (way, last) = Way::split(Ino(1), path.as_bytes()).unwrap();
            let bytes: Vec<u8> = way.text.iter().flat_map(|w| w.to_le_bytes()).collect();
            let (before, name) = path.rsplit_once('/').unwrap();
            assert_eq!((&bytes[..way.len], last), (before.as_bytes(), name.as_bytes()));
            assert!(bytes[way.len..].iter().all(|b| *b == 0), "{path}");
        }
    }

    #[test]
    fn a_way_is_known_until_one_of_its_directories_moves() {
        let p = paths();
        let way = way_of(1, "a/b/c");
        for moved in [5, 6, 7] {
            p.remember(0, &way, &dirs(&[Ino(5), Ino(6), Ino(7)]), || true);
            assert_eq!(known(&p, 0, &way), Some(7));
            drop(p.moves(Ino(8)));
            assert_eq!(known(&p, 0, &way), Some(7));
            let change = p.moves(Ino(moved));
            assert_eq!(known(&p, 0, &way), None, "{moved} moves");
            p.remember(0, &way, &dirs(&[Ino(5), Ino(6), Ino(7)]), || true);
            assert_eq!(known(&p, 0, &way), None, "{moved} moves");
            drop(change);
            assert_eq!(known(&p, 0, &way), None, "{moved} moved");
        }
    }

    #[test]
    fn a_way_is_known_to_its_lane_from_its_start() {
        let p = paths();
        let way = way_of(1, "a/b");
        p.remember(0, &way, &dirs(&[Ino(5), Ino(6)]), || true);
        assert_eq!(known(&p, 1, &way), None);
        assert_eq!(known(&p, 0, &way_of(2, "a/b")), None);
        assert_eq!(known(&p, 0, &way_of(1, "a/b\0")), None);
        assert_eq!(known(&p, 0, &way), Some(6));
    }

    #[test]
    fn a_way_that_changes_while_it_is_walked_is_not_remembered() {
        let p = paths();
        let way = way_of(1, "a/b");
        p.remember(0, &way, &dirs(&[Ino(5), Ino(6)]), || {
            drop(p.moves(Ino(5)));
            true
        });
        assert_eq!(known(&p, 0, &way), None);
        p.remember(0, &way, &dirs(&[Ino(5), Ino(6)]), || false);
        assert_eq!(known(&p, 0, &way), None);
    }

    #[test]
    fn a_way_through_many_directories_is_not_remembered() {
        let p = paths();
        let way = way_of(1, "a/b/c/d/e/f/g/h/i/j");
        let through: Vec<_> = (5..15).map(Ino).collect();
        for n in [1, 9, 10] {
            p.remember(0, &way, &dirs(&through[..n]), || true);
            assert_eq!(known(&p, 0, &way), None, "{n} directories");
        }
        p.remember(0, &way, &dirs(&through[..8]), || true);
        assert_eq!(known(&p, 0, &way), Some(12));
    }

    #[test]
    fn what_is_missed_once_takes_no_place() {
        let p = paths();
        let way = way_of(1, "a/b");
        p.remember(0, &way, &dirs(&[Ino(5), Ino(6)]), || true);
        // Another one with the same slot.
        let other = (0..).map(|n: u32| way_of(1, &format!("a/{n}")));
        let mask = p.slots as u64 - 1;
        let other = { other }.find(|o| o.hash & mask == way.hash & mask).unwrap();
        assert!(matches!(p.get(0, &other), Known::Nothing { again: false }));
        assert_eq!(known(&p, 0, &way), Some(6));
        assert!(matches!(p.get(0, &other), Known::Nothing { again: true }));
    }

    #[test]
    fn two_ways_of_one_hash_are_known_beside_each_other() {
        let p = paths();
        let mask = p.slots as u64 - 1;
        let mut same = (0..).map(|n: u32| way_of(1, &format!("a/{n}"))).filter(|w| w.hash & mask == 3);
        let [one, two, three] = [(); 3].map(|()| same.next().unwrap());
        let remember = |way, last| p.remember(0, way, &dirs(&[Ino(5), Ino(last)]), || true);
        remember(&one, 6);
        remember(&two, 7);
        assert_eq!([&one, &two, &three].map(|w| known(&p, 0, w)), [Some(6), Some(7), None]);
        // What is known stays in its place, and a third one takes the place of the first.
        remember(&two, 8);
        remember(&three, 9);
        assert_eq!([&one, &two, &three].map(|w| known(&p, 0, w)), [None, Some(8), Some(9)]);
    }
}
