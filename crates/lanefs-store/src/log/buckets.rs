//! Full segments, in buckets by how many of their blocks live: what the cleaner takes next and what
//! a checkpoint frees is found without a look at all segments.
//!
//! Definitions. A *bucket* holds segments whose live blocks are about as many: the first those with
//! none, the last those of which every block lives, between them [`SHARES`] equal parts. A segment
//! is *noted* when its bucket may have changed: its number is on one of several lists, and a flag
//! of its own says so. To *review* is to take the lists and to put what is on them into its bucket.
//!
//! 1. Whoever takes live marks notes the segment when the last of a bucket goes, about one of 16
//!    times in segments of 512 blocks, and whoever closes a segment notes it. The flag lies on the
//!    line of the count that was changed just before; the lists are many, so that two who note
//!    segments seldom meet.
//! 2. The flag is set behind the change of the count, and taken in a review before the count is
//!    read. Both are read-modify-writes, AcqRel: if the one who notes finds it set, the review that
//!    takes it is later and sees the count; else the segment is on a list again.
//! 3. A bucket is a hint. Blocks may be marked behind the close of their segment, and what was
//!    taken between two reviews is not known: whoever takes a segment out looks at its figures, and
//!    puts it where it belongs if that is elsewhere.
//! 4. Within a bucket segments lie in the order in which they were claimed, the oldest first: of
//!    those that have as much to give it is the one likely to keep it.

use crate::log::geometry::SegId;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Mutex, MutexGuard};
use std::collections::BTreeSet;

/// Parts between the first and the last bucket.
const SHARES: u32 = 32;
/// The number of buckets.
pub(crate) const BUCKETS: usize = SHARES as usize + 2;
/// The bucket of segments of which every block lives.
pub(crate) const WHOLE: usize = BUCKETS - 1;
/// Lists of what was noted.
const LISTS: usize = 64;

/// Returns the bucket of a segment with so many live blocks of `size`.
pub(crate) fn bucket_of(live: u32, size: u32) -> usize {
    debug_assert!(live <= size && size.is_power_of_two(), "{live} of {size} blocks live");
    match live {
        0 => 0,
        _ if live >= size => WHOLE,
        // A power of two: whoever takes a mark asks twice.
        _ => 1 + (((live - 1) * SHARES) >> size.trailing_zeros()) as usize,
    }
}

/// The buckets of a table of segments: see the head of the file.
pub(crate) struct Buckets {
    noted: Box<[CachePadded<Mutex<Vec<SegId>>>]>,
    filed: CachePadded<Mutex<Filed>>,
}

/// Segments by bucket, in the order in which they were claimed.
pub(crate) struct Filed {
    buckets: [BTreeSet<(u32, SegId)>; BUCKETS],
    /// Segments that were freed since somebody last asked.
    freed: Vec<SegId>,
    /// The number of segments that were looked at since the volume was opened.
    pub looked_at: u64,
}

impl Buckets {
    pub fn new() -> Buckets {
        let noted = (0..LISTS).map(|_| CachePadded::new(Mutex::new(Vec::new()))).collect();
        let buckets = std::array::from_fn(|_| BTreeSet::new());
        let filed = Filed { buckets, freed: Vec::new(), looked_at: 0 };
        Buckets { noted, filed: CachePadded::new(Mutex::new(filed)) }
    }

    /// Notes a segment, whose flag the caller has just set.
    pub fn note(&self, seg: SegId) {
        self.noted[seg as usize % LISTS].lock().push(seg);
    }

    /// Takes all that was noted.
    pub fn take_noted(&self) -> Vec<SegId> {
        debug_assert!(self.filed.is_locked(), "who takes the lists files what is on them");
        self.noted.iter().flat_map(|list| std::mem::take(&mut *list.lock())).collect()
    }

    /// Returns the buckets. The lists are locked inside, nothing else.
    pub fn filed(&self) -> MutexGuard<'_, Filed> {
        self.filed.lock()
    }
}

impl Filed {
    /// Puts a segment that was claimed at this time into a bucket.
    pub fn put(&mut self, bucket: usize, claimed: u32, seg: SegId) {
        let is_new = self.buckets[bucket].insert((claimed, seg));
        debug_assert!(is_new, "segment {seg} is in bucket {bucket} already");
    }

    /// Takes a segment out of its bucket.
    pub fn take(&mut self, bucket: usize, claimed: u32, seg: SegId) {
        let was_there = self.buckets[bucket].remove(&(claimed, seg));
        debug_assert!(was_there, "segment {seg} is not in bucket {bucket}");
    }

    /// Returns the number of segments in a bucket.
    pub fn len(&self, bucket: usize) -> usize {
        self.buckets[bucket].len()
    }

    /// Returns at most `most` segments of a bucket, the oldest first.
    pub fn oldest(&mut self, bucket: usize, most: usize) -> Vec<SegId> {
        let oldest: Vec<SegId> = self.buckets[bucket].iter().take(most).map(|s| s.1).collect();
        debug_assert!(oldest.len() <= most && oldest.len() <= self.len(bucket), "more than there are");
        self.looked_at += oldest.len() as u64;
        oldest
    }

    /// Notes that a segment was freed.
    pub fn note_freed(&mut self, seg: SegId) {
        self.freed.push(seg);
    }

    /// Forgets that segments from `end` on were freed: they are gone.
    pub fn forget_freed(&mut self, end: SegId) {
        self.freed.retain(|seg| *seg < end);
        debug_assert!(self.buckets.iter().flatten().all(|s| s.1 < end), "a segment that is gone is full");
    }

    /// Takes the segments that were freed since the last call.
    pub fn take_freed(&mut self) -> Vec<SegId> {
        std::mem::take(&mut self.freed)
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, WHOLE, bucket_of};

    #[test]
    fn buckets_grow_with_what_lives() {
        for size in [16, 64, 512] {
            assert_eq!((bucket_of(0, size), bucket_of(size, size)), (0, WHOLE));
            assert_eq!((bucket_of(1, size), bucket_of(size - 1, size) <= BUCKETS - 2), (1, true));
            assert!((1..size).all(|n| bucket_of(n, size) <= bucket_of(n + 1, size)), "{size}");
        }
        // An equal part each.
        for bucket in 1..=32 {
            let n = (1..512).filter(|&n| bucket_of(n, 512) == bucket).count();
            assert!((15..=16).contains(&n), "{n} counts belong to bucket {bucket}");
        }
    }
}
