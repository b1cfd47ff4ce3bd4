//! Several looks that are answered as if they had been made at one moment.
//!
//! A lookup writes nothing and locks nothing, so two of them are of two moments. An answer that
//! rests on both, and changes nothing that would be checked under the locks, may describe a state
//! that never was: the source as it was before a rename of another thread, and the target as it is
//! behind it.
//!
//! A *moment* spans looks at one or two names. It notes the sequences of their leaves' locks before
//! the first look. Every change to a name holds its leaf's lock, and giving the lock back moves its
//! sequence, so if no lock is held and no sequence has moved behind the last look, then all that
//! was seen was so at any time in between.

use super::Dir;
use super::entry::{Head, Leaf};
use super::relax;
use crossbeam_epoch::Guard;

/// The leaves of the names that are looked at, and the sequences of their locks.
pub(crate) struct Moment<'g> {
    leaves: smallvec::SmallVec<[(&'g Leaf, u32); 2]>,
}

impl<'g> Moment<'g> {
    /// Begins a moment for these names: directory and hash.
    pub fn begin(names: impl IntoIterator<Item = (&'g Dir, u64)>, _guard: &'g Guard) -> Moment<'g> {
        let mut turn = 0;
        let mut note = |(dir, hash): (&'g Dir, u64)| {
            loop {
                let (leaf, _) = dir.leaf(hash);
                // The head is read behind the sequence: a leaf that splits later moves it.
                if let Some(seq) = leaf.lock.begin_read()
                    && matches!(leaf.head(), Head::Chain(_))
                {
                    return (leaf, seq);
                }
                relax(&mut turn);
            }
        };
        let leaves: smallvec::SmallVec<_> = names.into_iter().map(&mut note).collect();
        debug_assert!((1..=2).contains(&leaves.len()), "a moment of {} names", leaves.len());
        Moment { leaves }
    }

    /// Returns whether all looks since the beginning are of one moment.
    pub fn holds(&self) -> bool {
        self.leaves.iter().all(|(leaf, seq)| leaf.lock.validate(*seq))
    }
}
