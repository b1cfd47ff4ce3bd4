//! The figures and marks of segments, made in groups when somebody first writes one.
//!
//! A *group* is the figures of [`GROUP`] segments, one behind the other. What was never used has
//! none, which says what zeros would: free, and nothing in it is marked. So a volume costs the
//! memory of what was used, and a look at all figures the time: an empty TiB has a directory of 24
//! KiB. Nobody writes figures of a segment before it was claimed, but for an open, which writes
//! those that the usage table or the log names; so groups are made by these alone, and never go.
//!
//! Groups come in *runs*: one for the volume as it was opened, and one for each time it grew. They
//! stay when it becomes smaller, and are as new when it grows again ([`Segment::renew`]).

use crate::log::geometry::{Geometry, SegId};
use lanefs_format::usage_node::BITMAP_WORDS;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// Segments of a group: with the usual ones of 2 MiB a GiB, whose figures are 96 KiB.
const GROUP: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Free = 0,
    /// A head writes here.
    Open = 1,
    /// No head writes here any more.
    Full = 2,
    /// Superblocks and slots.
    Reserved = 3,
    /// In the chain of a node head, or chosen as the next of one.
    Chain = 4,
}

impl State {
    pub fn from_u8(v: u8) -> State {
        debug_assert!(v <= State::Chain as u8, "state {v} of a segment");
        match v {
            0 => State::Free,
            1 => State::Open,
            2 => State::Full,
            4 => State::Chain,
            _ => State::Reserved,
        }
    }
}

/// The figures of a segment. On a line of its own: neighbours are written by other lanes. All are
/// Relaxed but the state; the head of `segment` says why.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Meta {
    /// A [`State`]. Written by whoever claims, closes or releases the segment. The Release in
    /// `SegmentTable::close` has the Acquire in `SegmentTable::info` as its partner. The other two
    /// stores are Relaxed: a segment goes through its pool, whose mutex orders them.
    pub state: AtomicU8,
    /// Written by the mlog that claims the segment, before it has blocks, and at open.
    pub heat: AtomicU8,
    /// Invariant 6. Written when a head claims the segment, and at open.
    pub paired: AtomicBool,
    /// The number of live marks. Written by whoever sets or takes one, behind the mark itself.
    pub live: AtomicU32,
    /// The number of marks of the tree. Written, as they are, by checkpoints alone.
    pub tree: AtomicU32,
    /// Checkpoint number current when the segment was last touched (invariant 3). Written by
    /// whoever allocates in it or names its blocks, and only ever raised.
    pub touched: AtomicU64,
    /// Seconds since 1970. Written when the segment is claimed, and at open.
    pub written: AtomicU32,
    /// Freed and not yet discarded: the checkpoint number it was freed at; 0 otherwise. Written by
    /// the checkpoint under way, by whoever has discarded the segment and by whoever claims it: the
    /// pool's mutex orders them.
    pub stale: AtomicU64,
    /// Its bucket and one, or 0 for none. Written under the mutex of the buckets. Relaxed: that
    /// orders it.
    pub filed: AtomicU8,
    /// Whether it is on a list of segments that may have to go to another bucket. Set behind every
    /// change that may be one, and taken before the figures are read, by read-modify-writes: AcqRel
    /// on both sides, each the other's partner (rule 2 of `buckets`).
    pub noted: AtomicBool,
}

/// A line of marks; the marks of a segment share none with those of another. Live ones are written
/// by whoever maps or gives up a block, those of the tree by checkpoints alone. Relaxed: an inode's
/// lock, or the maintenance lock, orders who sets the mark of a block and who takes it.
#[derive(Default)]
#[repr(align(64))]
struct Marks([AtomicU64; BITMAP_WORDS]);

/// The two kinds of marks.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Live,
    Tree,
}

/// The figures and marks of one segment.
#[derive(Default)]
pub(super) struct Segment {
    pub meta: Meta,
    live: Marks,
    tree: Marks,
}

impl Segment {
    /// Makes the figures of a segment that is there again what those of a new one are. Nobody else
    /// has the segment.
    pub fn renew(&self, is_reserved: bool) {
        use std::sync::atomic::Ordering::Relaxed;
        let m = &self.meta;
        debug_assert_eq!((m.live.load(Relaxed), m.tree.load(Relaxed)), (0, 0), "something is in use");
        debug_assert!(!m.noted.load(Relaxed) && m.filed.load(Relaxed) == 0, "it is on a list");
        let state = if is_reserved { State::Reserved } else { State::Free };
        m.state.store(state as u8, Relaxed);
        m.heat.store(0, Relaxed);
        m.paired.store(false, Relaxed);
        m.written.store(0, Relaxed);
        m.touched.store(0, Relaxed);
        m.stale.store(0, Relaxed);
    }

    /// Returns a word of marks: bit b of word w is that of block 64 w + b.
    pub fn word(&self, which: Which, w: usize) -> &AtomicU64 {
        debug_assert!(w < BITMAP_WORDS, "word {w} of the marks of a segment");
        match which {
            Which::Live => &self.live.0[w],
            Which::Tree => &self.tree.0[w],
        }
    }
}

/// The figures of a run of segments, and of those that came after it: see the head of the file.
pub(super) struct Figures {
    /// Each is made once, by whoever is first to write there. The cell orders that: who finds a
    /// group finds it whole.
    groups: Box<[OnceLock<Box<[Segment]>>]>,
    segments: Range<SegId>,
    later: OnceLock<Box<Figures>>,
}

impl Figures {
    /// Makes a run without groups.
    pub fn new(segments: Range<SegId>) -> Figures {
        let groups = segments.len().div_ceil(GROUP);
        debug_assert!(groups <= segments.len(), "{groups} groups of {} segments", segments.len());
        Figures { groups: (0..groups).map(|_| OnceLock::new()).collect(), segments, later: OnceLock::new() }
    }

    /// Returns the group that a segment belongs to, the run it is of, and its place there.
    fn at(&self, seg: SegId) -> (&OnceLock<Box<[Segment]>>, &Figures, usize) {
        counts::count();
        let mut run = self;
        while seg >= run.segments.end {
            let Some(later) = run.later.get() else { break };
            run = later;
        }
        debug_assert!(run.segments.contains(&seg), "segment {seg} is none of the table");
        let i = (seg - run.segments.start) as usize;
        (&run.groups[i / GROUP], run, i % GROUP)
    }

    /// Returns the figures of a segment, if its group has any.
    #[inline]
    pub fn get(&self, seg: SegId) -> Option<&Segment> {
        let (group, _, i) = self.at(seg);
        group.get().map(|g| &g[i])
    }

    /// Returns the figures of a segment, to be written.
    #[inline]
    pub fn of(&self, seg: SegId, geometry: &Geometry) -> &Segment {
        let (group, run, i) = self.at(seg);
        match group.get() {
            Some(group) => &group[i],
            None => &run.make(seg, geometry)[i],
        }
    }

    /// Makes the group of a segment, unless somebody was faster.
    #[cold]
    fn make(&self, seg: SegId, geometry: &Geometry) -> &[Segment] {
        let group = self.group_of(seg);
        let new = |seg| {
            let segment = Segment::default();
            if geometry.is_reserved(seg) {
                // Relaxed: nobody else has it yet.
                segment.meta.state.store(State::Reserved as u8, std::sync::atomic::Ordering::Relaxed);
            }
            segment
        };
        debug_assert!(group.contains(&seg) && group.len() <= GROUP, "{group:?} is not that of {seg}");
        let i = (seg - self.segments.start) as usize / GROUP;
        self.groups[i].get_or_init(|| group.map(new).collect())
    }

    /// Returns the segments of the group that a segment of this run belongs to.
    fn group_of(&self, seg: SegId) -> Range<SegId> {
        let first = seg - (seg - self.segments.start) % GROUP as SegId;
        first..first.saturating_add(GROUP as SegId).min(self.segments.end)
    }

    /// Returns all groups in order, and whether each is there.
    pub fn groups(&self) -> impl Iterator<Item = (Range<SegId>, bool)> + '_ {
        let runs = std::iter::successors(Some(self), |run| run.later.get().map(|later| &**later));
        runs.flat_map(|run| {
            let firsts = run.segments.clone().step_by(GROUP);
            firsts.zip(&run.groups).map(|(first, g)| (run.group_of(first), g.get().is_some()))
        })
    }

    /// Returns the segments that have figures.
    pub fn known(&self) -> impl Iterator<Item = SegId> + '_ {
        self.groups().filter(|g| g.1).flat_map(|g| g.0)
    }

    /// Returns the end of all runs: the number of segments that there were at the most.
    pub fn end(&self) -> SegId {
        let mut run = self;
        while let Some(later) = run.later.get() {
            run = later;
        }
        run.segments.end
    }

    /// Adds a run behind all others. One thread at a time.
    pub fn add(&self, new: Figures) {
        let mut run = self;
        while let Some(later) = run.later.get() {
            run = later;
        }
        debug_assert_eq!(run.segments.end, new.segments.start, "a gap between two runs");
        let added = run.later.set(Box::new(new));
        debug_assert!(added.is_ok(), "one thread grows at a time");
    }
}

/// Counts, in tests, how often somebody asks for figures.
#[cfg(test)]
mod counts {
    use std::cell::Cell;

    thread_local! {
        static ASKED: Cell<u64> = const { Cell::new(0) };
    }

    pub fn count() {
        ASKED.set(ASKED.get() + 1);
    }

    pub fn asked() -> u64 {
        ASKED.get()
    }
}

#[cfg(not(test))]
mod counts {
    #[inline(always)]
    pub fn count() {}
}

/// Returns how often this thread has asked for figures.
#[cfg(test)]
pub(crate) use counts::asked;

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::superblock::Layout;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn figures_are_made_where_somebody_writes() {
        let layout = Layout::new(16, 1).unwrap();
        let n = 3 * GROUP as u32 + 5;
        let g = Geometry::new(&layout, &[u64::from(16 * n)]);
        let f = Figures::new(0..n);
        assert!(f.get(n - 1).is_none() && f.known().next().is_none());
        f.of(n - 1, &g).meta.live.store(7, Relaxed);
        assert_eq!(f.known().collect::<Vec<_>>(), (n - 5..n).collect::<Vec<_>>());
        assert_eq!(f.get(n - 1).map(|s| s.meta.live.load(Relaxed)), Some(7));
        // What holds no log is known for that.
        let state = |seg| f.of(seg, &g).meta.state.load(Relaxed);
        assert_eq!((state(0), state(1)), (State::Reserved as u8, State::Free as u8));
        let there: Vec<bool> = f.groups().map(|g| g.1).collect();
        assert_eq!(there, [true, false, false, true]);
        // A run that came later has groups of its own.
        f.add(Figures::new(n..n + 2));
        assert!(f.get(n + 1).is_none() && f.groups().count() == 5);
        assert_eq!(f.groups().last(), Some((n..n + 2, false)));
    }

    /// Two who write the first figures of a group write to the same ones.
    #[test]
    fn a_group_is_made_once() {
        let g = Geometry::new(&Layout::new(16, 1).unwrap(), &[16 * 600]);
        for _ in 0..50 {
            let f = Figures::new(0..600);
            let begin = std::sync::Barrier::new(3);
            std::thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        begin.wait();
                        f.of(9, &g).meta.live.fetch_add(1, Relaxed);
                    });
                }
            });
            assert_eq!(f.get(9).map(|s| s.meta.live.load(Relaxed)), Some(3));
        }
    }
}
