//! Heat: how soon a block is expected to die. Blocks of a heat lie together, in segments that a
//! head of its own fills.

use crate::api::Life;
use lanefs_format::BlockAddr;

/// The lifetime that a block is expected to have; each has its own head. The numbers are on disk,
/// as hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heat {
    /// Directory buckets: each fold writes those anew that changed.
    Bucket = 0,
    /// Data that users write, of which nothing is known.
    Warm = 1,
    /// Data that the cleaner moved: it has survived for long. Data that users call long-lived.
    Cold = 2,
    /// Node blocks of checkpoints.
    Node = 3,
    /// Data that will soon be overwritten or removed.
    Hot = 4,
}

/// The number of heads beside the node head.
pub(crate) const HEADS: usize = 5;

impl Heat {
    /// Returns where data with this expected life goes.
    pub fn of(life: Life) -> Heat {
        match life {
            Life::Short => Heat::Hot,
            Life::Usual => Heat::Warm,
            Life::Long => Heat::Cold,
        }
    }
}

/// The heads that take what users write, by their numbers.
pub(crate) const DATA_HEADS: [usize; 3] = [Heat::Warm as usize, Heat::Cold as usize, Heat::Hot as usize];

/// Blocks that lie one behind the other: the first, and how many.
pub(crate) type Runs = Vec<(BlockAddr, u32)>;

/// Returns the address of each block of some runs.
pub(crate) fn addresses(runs: &Runs) -> impl Iterator<Item = BlockAddr> {
    runs.iter().flat_map(|&(first, n)| (0..u64::from(n)).map(move |i| first.plus(i)))
}

/// Blocks for each expected life, by the numbers of [`Life`].
pub(crate) type ByLife<T> = [T; Life::ALL.len()];

/// Takes `n` blocks off, what dies soon last. Returns how many of each.
pub(crate) fn take_off(left: &mut ByLife<u32>, mut n: u32) -> ByLife<u32> {
    let mut taken = [0; Life::ALL.len()];
    for life in [Life::Usual, Life::Long, Life::Short] {
        let i = life as usize;
        taken[i] = left[i].min(n);
        left[i] -= taken[i];
        n -= taken[i];
    }
    debug_assert_eq!(n, 0, "more was taken off than there is");
    taken
}
