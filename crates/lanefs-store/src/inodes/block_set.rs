//! A set of blocks, most of which lie beside others of it.
//!
//! It is kept by words of 64 blocks, with the word that changed last at hand: a file that is
//! written in order looks for a word once for 64 of its blocks, and a small one needs no table.

use lanefs_format::BlockAddr;
use lanefs_sync::hash::WordMap;

/// Blocks of a word.
const WORD: u32 = u64::BITS;

/// A set of blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockSet {
    /// The number of a word, and its blocks; none of it is in `others`.
    at_hand: (u64, u64),
    /// No word of it is zero.
    others: WordMap<u64>,
    len: usize,
}

/// Returns the number of a block's word, and its bit there.
fn place(block: BlockAddr) -> (u64, u64) {
    (block.0 / u64::from(WORD), 1 << (block.0 % u64::from(WORD)))
}

impl BlockSet {
    /// Adds a block.
    pub fn insert(&mut self, block: BlockAddr) {
        let (word, bit) = place(block);
        self.fetch(word);
        self.len += usize::from(self.at_hand.1 & bit == 0);
        self.at_hand.1 |= bit;
    }

    /// Takes a block out; returns whether it was there.
    pub fn remove(&mut self, block: BlockAddr) -> bool {
        let (word, bit) = place(block);
        // A file that is written over gives up blocks in a row while it gets others: it is those
        // that are at hand.
        let blocks = match self.at_hand.0 == word {
            true => &mut self.at_hand.1,
            false => match self.others.get_mut(&word) {
                Some(blocks) => blocks,
                None => return false,
            },
        };
        let was = *blocks & bit != 0;
        *blocks &= !bit;
        let is_left = *blocks != 0;
        if !is_left && self.at_hand.0 != word {
            self.others.remove(&word);
        }
        debug_assert!(!was || self.len > 0, "{block} is in an empty set");
        self.len -= usize::from(was);
        was
    }

    /// Brings a word to hand.
    fn fetch(&mut self, word: u64) {
        let (before, blocks) = self.at_hand;
        if before == word {
            return;
        }
        // One that is not there yet is as good as one without blocks.
        let fetched = self.others.remove(&word);
        if blocks != 0 {
            let twice = self.others.insert(before, blocks);
            debug_assert!(twice.is_none(), "word {before} was in two places");
        }
        self.at_hand = (word, fetched.unwrap_or(0));
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes all of them out.
    pub fn take(&mut self) -> impl Iterator<Item = BlockAddr> + use<> {
        let BlockSet { at_hand, others, len } = std::mem::take(self);
        debug_assert!(len == 0 || at_hand.1 != 0 || !others.is_empty(), "{len} blocks are nowhere");
        let words = std::iter::once(at_hand).chain(others);
        words.flat_map(|(word, blocks)| {
            let bits = (0..WORD).filter(move |bit| blocks >> bit & 1 == 1);
            bits.map(move |bit| BlockAddr(word * u64::from(WORD) + u64::from(bit)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_sync::random::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_a_set_holds() {
        for seed in 0..20 {
            let mut rng = Rng::at(seed);
            let (mut set, mut model) = (BlockSet::default(), BTreeSet::new());
            let mut next = 0;
            for _ in 0..4000 {
                // In a row, near by, and anywhere, on two devices.
                next = match rng.below(20) {
                    0 => (rng.below(2) << 56) + rng.below(1 << 30),
                    1..4 => rng.below(1000),
                    _ => next + 1,
                };
                let block = BlockAddr(next);
                match rng.below(3) {
                    0 => assert_eq!(set.remove(block), model.remove(&next)),
                    _ => {
                        set.insert(block);
                        model.insert(next);
                    }
                }
                assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
                if rng.below(1000) == 0 {
                    let mut all: Vec<u64> = set.take().map(|b| b.0).collect();
                    all.sort_unstable();
                    assert!(all.into_iter().eq(std::mem::take(&mut model)) && set.is_empty());
                }
            }
        }
    }

    #[test]
    fn a_file_in_order_takes_a_word_for_64_blocks_and_a_small_one_no_table() {
        let mut set = BlockSet::default();
        (1 << 20..(1 << 20) + 64).for_each(|b| set.insert(BlockAddr(b)));
        assert_eq!((set.len(), set.others.capacity()), (64, 0));
        ((1 << 20) + 64..(1 << 20) + 6400).for_each(|b| set.insert(BlockAddr(b)));
        assert_eq!((set.len(), set.others.len()), (6400, 99));
    }
}
