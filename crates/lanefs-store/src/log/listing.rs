//! Slack on its way from the marks to who writes there: how it is listed, and what an mlog has of
//! it. The rules are in `slack`.

use crate::log::buckets::WHOLE;
use crate::log::segment::{SegId, SegInfo, SegmentTable, State, Which};
use crate::log::slack::{Listed, MOST};
use lanefs_format::BlockAddr;
use lanefs_format::usage_node::BITMAP_WORDS;
use std::sync::atomic::Ordering::Relaxed;

impl SegmentTable {
    /// Lists dead blocks of full segments that may be given out again now that `checkpoint` is
    /// durable (`slack`, 1), those of the emptiest segments first, until they are `blocks`. Only
    /// segments are listed that are `fit`. The list before was let go of.
    pub fn list_slack(
        &self,
        checkpoint: u64,
        blocks: u64,
        fit: impl Fn(SegId, &SegInfo) -> bool,
    ) -> Vec<Listed> {
        let (mut list, mut found) = (Vec::new(), 0);
        let mut filed = self.review();
        for bucket in 1..WHOLE {
            for seg in filed.oldest(bucket, MOST - list.len()) {
                let info = self.info(seg);
                let is_fit = info.state == State::Full && info.touched < checkpoint && info.live > 0;
                if !is_fit || self.is_paired(seg) || self.is_withdrawn(seg) || !fit(seg, &info) {
                    continue;
                }
                let listed = Listed::new(seg, self.unmarked(seg));
                if listed.left() > 0 {
                    found += u64::from(listed.left());
                    list.push(listed);
                }
                if found >= blocks {
                    return list;
                }
            }
        }
        debug_assert!(list.len() <= MOST, "{} segments are listed", list.len());
        list
    }

    /// Returns the number of free segments below which no slack is given out: of the fixed number
    /// half will do (`slack`, 7).
    pub fn least_for_slack(&self) -> u32 {
        let fixed = self.counts.reserved_segments.load(Relaxed);
        let least = self.reserved_segments().saturating_sub(fixed / 2);
        debug_assert!(least >= self.reserved_for_unfolded(), "the next fold would find too few");
        least
    }

    /// Returns indices of the live blocks of a segment.
    pub fn live_blocks(&self, seg: SegId) -> Vec<u32> {
        (0..self.geometry.segment_blocks)
            .filter(|i| self.word(Which::Live, seg, *i as usize / 64).load(Relaxed) >> (i % 64) & 1 == 1)
            .collect()
    }

    /// Notes that another segment is written to that has summaries already: the next checkpoint
    /// writes these anew.
    fn count_summaries(&self) {
        let claimed = self.counts.claimed.fetch_add(1, Relaxed);
        debug_assert!(claimed < u32::MAX / 2, "{claimed} segments have new summaries");
    }

    /// Returns which blocks of a segment have neither mark.
    pub fn unmarked(&self, seg: SegId) -> [u64; BITMAP_WORDS] {
        let mut dead = [0; BITMAP_WORDS];
        let size = self.geometry.segment_blocks;
        for (w, dead) in dead.iter_mut().enumerate().take(size.div_ceil(64) as usize) {
            let tree = self.word(Which::Tree, seg, w).load(Relaxed);
            let beyond = match size.saturating_sub(w as u32 * 64) {
                64.. => 0,
                some => u64::MAX << some,
            };
            *dead = !(self.word(Which::Live, seg, w).load(Relaxed) | tree | beyond);
        }
        dead
    }
}

/// What an mlog has taken from the list and not used up; the last is the next.
#[derive(Default)]
pub(crate) struct Taken(Vec<Listed>);

impl Taken {
    /// Returns the number of blocks at hand.
    pub fn blocks(&self) -> u32 {
        self.0.iter().map(Listed::left).sum()
    }

    /// Takes segments from the list of slack until `n` blocks are at hand, or there are no more, or
    /// no space for their summaries but with `urgent`. Returns how many of `n` there are.
    pub fn reach(&mut self, t: &SegmentTable, n: u32, urgent: bool) -> u32 {
        let mut have: u32 = self.blocks();
        while have < n
            && t.slack.blocks() > 0
            && (urgent || t.free_count() >= t.least_for_slack())
            && let Some(more) = t.slack.take()
        {
            debug_assert_eq!(t.info(more.seg).state, State::Full, "segment {} is listed", more.seg);
            t.count_summaries();
            have += more.left();
            self.0.insert(0, more);
        }
        have.min(n)
    }

    /// Gives out `n` blocks of slack that are at hand, as runs.
    pub fn give(&mut self, t: &SegmentTable, n: u32, checkpoint: u64, out: &mut Vec<(BlockAddr, u32)>) {
        let mut left = n;
        while left > 0
            && let Some(last) = self.0.last_mut()
        {
            let seg = last.seg;
            if let Some((i, run)) = last.take_run(left) {
                // Under the mutex: see `slack`, 4.
                t.touch(seg, checkpoint);
                out.push((t.geometry.addr(seg, i), run));
                left -= run;
            }
            if last.left() == 0 {
                self.0.pop();
                t.note(seg);
            }
        }
        debug_assert_eq!(left, 0, "so much slack was at hand");
    }

    /// Lets go of it.
    pub fn let_go(self, t: &SegmentTable) {
        self.0.iter().for_each(|l| t.note(l.seg));
    }
}
