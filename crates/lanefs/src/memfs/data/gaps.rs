//! Pieces of a growing file that are handed over in another order than they were written in.
//!
//! A kernel with a write-back cache hands a file that grows over in several requests at a time, and
//! the threads that serve them finish in any order. In between the file here has a size, and pages
//! at its end, whose predecessors are still on their way: were that size made durable, a crash
//! would show zeros in place of bytes that a program had appended (SEMANTICS F9). From here a piece
//! that is missing looks like a hole that was left on purpose, and only time tells them apart.
//!
//! G1. A *gap* is a range inside the file that lay between its end and a handed-over write behind
//!     it. It is noted under the size lock, before the size is raised: who sees the size finds the
//!     gap. A write into it makes it smaller, behind the bytes' being in place.
//! G2. The store gets no size beyond the start of the first gap, nor a page behind that
//!     ([`FileData::size_to_store`]). A gap starts at what was the end, so that limit is never
//!     lower than a size that the store got before.
//! G3. A gap is taken for a hole [`PATIENCE`] after it came. Where somebody waits for the file's
//!     being durable, the front end says when what was on its way is there, and the gaps that came
//!     before that one asked are holes then; what comes later was not promised to it. (Time alone
//!     does not tell: on a busy machine a request takes as long as it likes. Where no front end
//!     says so, it has to: [`SYNC_PATIENCE`].) A gap is a hole at once when a caller sets the size
//!     or gives the end of a range, where no block is left for the last page (D7), and when more
//!     waits than an eighth of the volume's frames hold, for nobody may wait for frames that wait
//!     for a piece which waits for frames.
//! G4. A capture that kept to a gap leaves the file dirty, so that it is captured again.
//!
//! The list is a leaf lock: taken under the size lock or none, and nothing is waited for under it.
//! Files whose writes come in their order have no list, and pay one load where they are captured.

use super::FileData;
use lanefs_sync::lock::Mutex;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The time after which a gap is a hole.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The time after which it is one for who waits for the file's being durable, where no front end
/// says when all has been handed over.
pub(crate) const SYNC_PATIENCE: Duration = Duration::from_millis(10);
/// What waits in one file counts as so many bytes at most, which is more than any volume may have
/// wait: the sum of all files does not overflow.
const COUNTED: u64 = 1 << 40;
/// More gaps of one file than requests can be under way are holes.
const MOST: usize = 1024;

/// A range of bytes that no write has given content, and that may be on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    bytes: Range<u64>,
    since: Instant,
}

/// The gaps of one file, ascending, which is also the order in which they came.
#[derive(Debug)]
struct List {
    gaps: SmallVec<[Gap; 4]>,
    /// The end of the file as handed-over writes have made it.
    end: u64,
    /// The bytes from the first gap to that end. They are counted in `sum`.
    waits: u64,
    /// The bytes that wait in all files of the volume.
    sum: Arc<AtomicU64>,
}

/// The gaps of one file; nothing until the first of them.
#[derive(Debug)]
pub(super) struct Gaps {
    list: OnceLock<Box<Mutex<List>>>,
}

impl List {
    /// Forgets gaps that came before an instant.
    fn forget_before(&mut self, instant: Instant) {
        let old = self.gaps.iter().take_while(|gap| gap.since < instant).count();
        self.gaps.drain(..old);
        self.count();
    }

    fn forget_all(&mut self) {
        self.gaps.clear();
        self.count();
    }

    /// Makes `waits`, and with it the sum, what it is now.
    fn count(&mut self) {
        let waits = self.gaps.first().map_or(0, |first| self.end - first.bytes.start).min(COUNTED);
        // Relaxed: it only bounds memory. Added first, so that it is never too low.
        self.sum.fetch_add(waits, Ordering::Relaxed);
        let sum = self.sum.fetch_sub(self.waits, Ordering::Relaxed);
        debug_assert!(sum >= self.waits, "{sum} bytes wait, {} of them here", self.waits);
        self.waits = waits;
        self.check_invariants();
    }

    fn check_invariants(&self) {
        debug_assert!(self.gaps.iter().all(|gap| !gap.bytes.is_empty() && gap.bytes.end <= self.end));
        debug_assert!(
            self.gaps.is_sorted_by(|a, b| a.bytes.end < b.bytes.start && a.since <= b.since),
            "gaps in another order than they came in: {:?}",
            self.gaps
        );
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.forget_all();
    }
}

impl Gaps {
    pub const fn new() -> Gaps {
        Gaps { list: OnceLock::new() }
    }

    /// Takes note of a handed-over write that begins behind the end: the bytes between may be on
    /// their way. With the size lock held, before the size is raised (G1).
    pub fn open(&self, between: Range<u64>, sum: &Arc<AtomicU64>) {
        debug_assert!(!between.is_empty(), "the write begins at the end");
        let mut list = self.list.get_or_init(|| Box::new(Mutex::new(List::new(sum)))).lock();
        list.end = if list.gaps.is_empty() { between.end } else { list.end.max(between.end) };
        list.gaps.push(Gap { bytes: between, since: Instant::now() });
        list.count();
    }

    /// Takes note of bytes that a handed-over write has put in place. Returns whether the store may
    /// get a larger size now than before. `most`: so many bytes may wait in all files.
    pub fn fill(&self, bytes: Range<u64>, most: u64) -> bool {
        let Some(list) = self.list.get() else { return false };
        let mut list = list.lock();
        list.end = list.end.max(bytes.end);
        let Some(before) = list.gaps.first().map(|gap| gap.bytes.start) else { return false };
        let from = list.gaps.partition_point(|gap| gap.bytes.end <= bytes.start);
        let to = list.gaps.partition_point(|gap| gap.bytes.start < bytes.end);
        if from < to {
            let (first, last) = (&list.gaps[from], &list.gaps[to - 1]);
            let head = Gap { bytes: first.bytes.start..bytes.start, since: first.since };
            let tail = Gap { bytes: bytes.end..last.bytes.end, since: last.since };
            let left = [head, tail].into_iter().filter(|gap| !gap.bytes.is_empty());
            let left: SmallVec<[Gap; 2]> = left.collect();
            list.gaps.drain(from..to);
            list.gaps.insert_many(from, left);
        }
        list.count();
        // Relaxed: see `count`.
        if list.gaps.len() > MOST || list.sum.load(Ordering::Relaxed) > most {
            list.forget_all();
        }
        list.gaps.first().is_none_or(|gap| gap.bytes.start > before)
    }

    /// Takes all gaps for holes.
    pub fn forget_all(&self) {
        if let Some(list) = self.list.get() {
            list.lock().forget_all();
        }
    }

    /// Returns where the first gap starts that is not a hole by now.
    fn first(&self) -> Option<u64> {
        let mut list = self.list.get()?.lock();
        if let Some(instant) = Instant::now().checked_sub(PATIENCE) {
            list.forget_before(instant);
        }
        list.gaps.first().map(|gap| gap.bytes.start)
    }

    /// Returns the gaps that came before an instant.
    fn before(&self, instant: Instant) -> Vec<Range<u64>> {
        let Some(list) = self.list.get() else { return Vec::new() };
        let list = list.lock();
        list.check_invariants();
        list.gaps.iter().take_while(|gap| gap.since < instant).map(|gap| gap.bytes.clone()).collect()
    }

    /// Takes the gaps that came before an instant for holes.
    fn forget_before(&self, instant: Instant) {
        if let Some(list) = self.list.get() {
            list.lock().forget_before(instant);
        }
    }
}

impl List {
    fn new(sum: &Arc<AtomicU64>) -> List {
        List { gaps: SmallVec::new(), end: 0, waits: 0, sum: Arc::clone(sum) }
    }
}

impl FileData {
    /// Returns the size that the store may get now: at most where the first gap starts (G2).
    pub fn size_to_store(&self) -> u64 {
        // The size first: who sees it finds its gaps (G1).
        let size = self.size();
        self.gaps.first().map_or(size, |start| size.min(start))
    }

    /// Takes all gaps for holes.
    pub fn forget_gaps(&self) {
        self.gaps.forget_all();
    }

    /// Returns whether there may be a gap. Asked behind the taking of the inode's marks and before
    /// the size to store (G4): a gap that comes later has the file marked behind that.
    pub fn has_gap(&self) -> bool {
        self.gaps.list.get().is_some_and(|list| !list.lock().gaps.is_empty())
    }

    /// Returns the ranges of which a caller that asked at `asked` for the file's being durable has
    /// to wait for pieces that may be on their way (G3).
    pub fn missing_pieces(&self, asked: Instant) -> Vec<Range<u64>> {
        self.gaps.before(asked)
    }

    /// Takes the gaps that came before `asked` for holes: all that was on its way is there.
    pub fn all_handed_over(&self, asked: Instant) {
        self.gaps.forget_before(asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_BYTES: u64 = 1 << 30;

    fn ranges(gaps: &Gaps) -> Vec<Range<u64>> {
        gaps.list.get().map_or(Vec::new(), |l| l.lock().gaps.iter().map(|g| g.bytes.clone()).collect())
    }

    #[test]
    fn a_write_takes_its_bytes_out_of_the_gaps() {
        let (gaps, sum) = (Gaps::new(), Arc::new(AtomicU64::new(0)));
        assert!(!gaps.fill(0..10, MOST_BYTES), "there is no gap");
        gaps.open(10..20, &sum);
        assert!(!gaps.fill(20..30, MOST_BYTES));
        gaps.open(30..50, &sum);
        gaps.open(60..70, &sum);
        assert!(!gaps.fill(70..80, MOST_BYTES));
        assert_eq!((gaps.first(), sum.load(Ordering::Relaxed)), (Some(10), 70));
        assert!(!gaps.fill(35..40, MOST_BYTES));
        assert_eq!(ranges(&gaps), [10..20, 30..35, 40..50, 60..70]);
        assert!(!gaps.fill(15..65, MOST_BYTES));
        assert_eq!(ranges(&gaps), [10..15, 65..70]);
        assert!(gaps.fill(0..15, MOST_BYTES));
        assert_eq!((gaps.first(), sum.load(Ordering::Relaxed)), (Some(65), 15));
        assert!(gaps.fill(60..80, MOST_BYTES));
        assert_eq!((gaps.first(), sum.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn what_waits_is_bounded_over_all_files_and_counted_off_with_a_file() {
        let sum = Arc::new(AtomicU64::new(0));
        let (a, b) = (Gaps::new(), Gaps::new());
        a.open(0..100, &sum);
        b.open(0..100, &sum);
        assert!(!a.fill(100..160, 300) && sum.load(Ordering::Relaxed) == 260);
        assert!(b.fill(100..150, 300), "the one that is too much gives up");
        assert_eq!((b.first(), sum.load(Ordering::Relaxed)), (None, 160));
        // Behind the largest hole, in several files.
        let far: Vec<Gaps> = std::iter::repeat_with(Gaps::new).take(3).collect();
        for gaps in &far {
            gaps.open(0..lanefs_format::MAX_FILE_SIZE - 1, &sum);
        }
        for gaps in &far {
            let end = lanefs_format::MAX_FILE_SIZE;
            assert!(gaps.fill(end - 1..end, MOST_BYTES) && gaps.first().is_none());
        }
        assert_eq!(sum.load(Ordering::Relaxed), 160);
        drop(a);
        assert_eq!(sum.load(Ordering::Relaxed), 0);
        for n in 0..=MOST as u64 {
            b.open(200 + 2 * n..201 + 2 * n, &sum);
            b.fill(201 + 2 * n..202 + 2 * n, MOST_BYTES);
        }
        assert_eq!((b.first(), sum.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn what_was_missing_before_a_question_is_a_hole_behind_it_and_nothing_else() {
        let (gaps, sum) = (Gaps::new(), Arc::new(AtomicU64::new(0)));
        let before = Instant::now();
        assert!(gaps.before(before).is_empty());
        gaps.open(0..1, &sum);
        assert!(gaps.before(before).is_empty(), "it came behind the question");
        let asked = Instant::now() + Duration::from_nanos(1);
        while Instant::now() < asked {}
        gaps.open(2..3, &sum);
        assert!(gaps.before(asked).iter().eq([&(0..1)]) && gaps.first() == Some(0));
        gaps.forget_before(asked);
        assert!(gaps.before(asked).is_empty() && gaps.first() == Some(2));
        gaps.forget_all();
        assert_eq!((gaps.first(), sum.load(Ordering::Relaxed)), (None, 0));
    }
}
