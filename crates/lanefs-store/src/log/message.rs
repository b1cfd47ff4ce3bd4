//! A message that has its places in a log.

use crate::log::mlog::BatchPlace;
use lanefs_format::batch::BatchHead;

/// A message whose batches have their places: ready to be encoded and written.
pub(crate) struct Placed {
    pub mlog: usize,
    pub head: BatchHead,
    pub bytes: Vec<u8>,
    pub places: Vec<BatchPlace>,
    /// Devices that hold what the message refers to.
    pub devices: u64,
}

impl Placed {
    pub fn last_seq(&self) -> u64 {
        self.places.last().map_or(0, |p| p.seq)
    }
    pub fn last_place(&self) -> u64 {
        self.places.last().map_or(0, |p| p.place)
    }
    pub fn link_seqs(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.iter().filter(|p| p.link.is_some()).map(|p| p.seq)
    }
}
