//! Reading what lies beside small pieces that are asked for: the files of a directory were written
//! together and are read together, in another order, each by a call of its own. One request to a
//! device for each takes as long as for sixty of them.
//!
//! 1. Segments are divided into zones of 64 blocks; small ones are one zone. When a few pieces of a
//!    zone had to be read one by one, all of it is read with the next one, and kept while it is
//!    used and there is space.
//! 2. What is kept was not verified. It is handed out for a reference whose sum it has, as a block
//!    that came from the device just now would be; what was written there since has another sum,
//!    and the device is asked.
//! 3. Nothing may write over what was referred to before the next checkpoint is durable, so a zone
//!    is kept until then at the most. The rest, dead blocks and free ones, nobody asks for before
//!    it is written, and then it has another sum.
//! 4. Zones of which little is used when they go have more pieces be asked for before the next
//!    one is read; those that are used well, fewer. So who reads here and there over much of a
//!    volume soon has nothing brought along.
//! 5. Nothing is locked over a read.

use lanefs_format::checksum;
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, BlockRef};
use lanefs_sync::CachePadded;
use lanefs_sync::lock::Mutex;
use std::ops::RangeInclusive;
use zerocopy::IntoBytes;

/// Blocks of a zone at the most, 256 KiB.
const ZONE: u64 = 64;
/// Zones that are kept at the most.
const KEPT_MOST: usize = 64;
/// Parts of what is kept, each with zones of its own, so that who reads in different places shares
/// no line.
const SHARDS: usize = 8;
/// Zones of which it is known how many pieces were asked for, of each part.
const WATCHED: usize = 8;
/// Pieces of a zone that are read one by one.
const PATIENCE: RangeInclusive<u8> = 2..=32;
/// Blocks of a piece at the most: what is larger is worth a request.
pub(crate) const PIECE_MOST: usize = 4;

const _: () = assert!((PIECE_MOST as u64) < ZONE, "a zone brings something along");

/// A zone that was read. Its number is that of its first block, divided by its size.
struct Zone {
    number: u64,
    blocks: Box<[Block]>,
    /// How many blocks of it were handed out.
    used: u32,
    /// The number of roots that were written when it was read (3).
    roots: u64,
    /// When it was used last, in pieces.
    turn: u64,
}

/// The zones that are kept, and those that are watched, of one part. Written, under its lock, by
/// who asks a device for something small there; who finds it taken asks the device.
struct Zones {
    kept: Vec<Zone>,
    most: usize,
    /// The number of a zone, and how many pieces of it had to be read, at the place that the number
    /// says.
    watched: [(u64, u8); WATCHED],
    patience: u8,
    turn: u64,
}

/// What is here of blocks that nobody asked for yet.
pub(super) struct Neighbours {
    /// None where nothing is kept in memory.
    shards: Box<[CachePadded<Mutex<Zones>>]>,
}

impl Zones {
    fn new(most: usize) -> Zones {
        let patience = *PATIENCE.start();
        Zones { kept: Vec::new(), most, watched: [(0, 0); WATCHED], patience, turn: 0 }
    }

    /// Hands blocks out that are here, from one of a zone on, and have the right sums; returns
    /// whether these were all.
    fn take(
        &mut self,
        (number, from): (u64, usize),
        refs: &[BlockRef],
        roots: u64,
        to: &mut impl FnMut(usize, &Block),
    ) -> bool {
        self.turn += 1;
        let Some(at) = self.kept.iter().position(|z| z.number == number) else { return false };
        let zone = &mut self.kept[at];
        if zone.roots != roots {
            self.drop_zone(at);
            return false;
        }
        let Some(blocks) = zone.blocks.get(from..from + refs.len()) else { return false };
        if !refs.iter().zip(blocks).all(|(r, b)| checksum::matches(*r, &b.0)) {
            return false;
        }
        blocks.iter().enumerate().for_each(|(n, b)| to(n, b));
        zone.used += refs.len() as u32;
        zone.turn = self.turn;
        true
    }

    /// Notes that a piece of a zone has to be read; returns whether the zone is to be.
    fn is_to_read(&mut self, number: u64) -> bool {
        // Numbers of one part are as far apart as there are parts.
        let watched = &mut self.watched[(number as usize / SHARDS) % WATCHED];
        if watched.0 != number {
            *watched = (number, 0);
        }
        watched.1 = watched.1.saturating_add(1);
        let is_enough = watched.1 > self.patience && self.kept.iter().all(|z| z.number != number);
        if is_enough {
            watched.1 = 0;
        }
        is_enough
    }

    /// Keeps a zone that was read, of which so many blocks were handed out.
    fn put(&mut self, number: u64, blocks: Box<[Block]>, roots: u64, used: usize) {
        debug_assert!(used <= blocks.len() && blocks.len() as u64 <= ZONE, "{used} of {}", blocks.len());
        if self.kept.iter().any(|z| z.number == number) {
            return; // Another one read it meanwhile.
        }
        if self.kept.len() >= self.most
            && let Some(oldest) = (0..self.kept.len()).min_by_key(|n| self.kept[*n].turn)
        {
            self.drop_zone(oldest);
        }
        self.kept.push(Zone { number, blocks, used: used as u32, roots, turn: self.turn });
        debug_assert!(self.kept.len() <= self.most, "{} zones of {}", self.kept.len(), self.most);
    }

    /// Drops a zone, and learns from what was used of it (4).
    fn drop_zone(&mut self, at: usize) {
        let was = self.kept.swap_remove(at);
        // Worth reading was one of which half was used.
        let is_worth = was.used as usize * 2 >= was.blocks.len();
        let patience = if is_worth { self.patience / 2 } else { self.patience * 2 };
        self.patience = patience.clamp(*PATIENCE.start(), *PATIENCE.end());
        debug_assert!(PATIENCE.contains(&self.patience));
    }
}

impl Neighbours {
    /// Keeps some for who may use so many bytes for blocks of the tree: half of that beside.
    pub fn new(bytes: usize) -> Neighbours {
        let most = (bytes / 2 / (ZONE as usize * BLOCK_SIZE)).min(KEPT_MOST);
        let shards = if bytes > 0 { most.clamp(1, SHARDS) } else { 0 };
        let made = |_| CachePadded::new(Mutex::new(Zones::new((most / shards).max(1))));
        Neighbours { shards: (0..shards).map(made).collect() }
    }

    /// Hands out the verified blocks of a small piece, with the place of each in `refs`: from what
    /// is here, or by a read that brings others along. Returns false if the device is to be asked
    /// for the piece alone. `segment`: the blocks of one. `roots`: how many were written so far.
    /// `read` fills blocks from an address on, and returns whether it could.
    pub fn read(
        &self,
        refs: &[BlockRef],
        (segment, roots): (u64, u64),
        read: impl FnOnce(BlockAddr, &mut [u8]) -> bool,
        mut to: impl FnMut(usize, &Block),
    ) -> bool {
        debug_assert!(refs.len() <= PIECE_MOST, "{} blocks are worth a request", refs.len());
        let Some(first) = refs.first().filter(|_| !self.shards.is_empty()) else { return false };
        let size = segment.min(ZONE);
        let (number, from) = (first.addr.0 / size, (first.addr.0 % size) as usize);
        let is_run = refs.iter().enumerate().all(|(n, r)| r.addr == first.addr.plus(n as u64));
        if !segment.is_power_of_two() || !is_run || from + refs.len() > size as usize {
            return false;
        }
        let zones = &self.shards[number as usize % self.shards.len()];
        {
            // Whoever else reads at this moment is not waited for.
            let Some(mut z) = zones.try_lock() else { return false };
            if z.take((number, from), refs, roots, &mut to) {
                return true;
            }
            if !z.is_to_read(number) {
                return false;
            }
        }
        let mut blocks = vec![Block([0; BLOCK_SIZE]); size as usize].into_boxed_slice();
        if !read(BlockAddr(number * size), blocks.as_mut_bytes()) {
            return false; // Of what was asked for, perhaps: the caller sees.
        }
        let mine = &blocks[from..from + refs.len()];
        let is_right = refs.iter().zip(mine).all(|(r, b)| checksum::matches(*r, &b.0));
        if is_right {
            mine.iter().enumerate().for_each(|(n, b)| to(n, b));
        }
        zones.lock().put(number, blocks, roots, refs.len());
        is_right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a zone's pieces until it is kept; returns how many had to be read one by one.
    fn patience(z: &mut Zones, number: u64, used: usize) -> usize {
        let alone = (0..100).take_while(|_| !z.is_to_read(number)).count();
        let blocks = vec![Block([0; BLOCK_SIZE]); ZONE as usize].into_boxed_slice();
        z.turn += 1;
        z.put(number, blocks, 0, used);
        assert!(!z.is_to_read(number), "it is kept");
        alone
    }

    #[test]
    fn zones_are_read_behind_a_few_pieces_and_the_oldest_goes_first() {
        let z = &mut Zones::new(2);
        assert_eq!([5, 6, 7].map(|n| patience(z, n, ZONE as usize)), [2, 2, 2]);
        assert_eq!(z.kept.iter().map(|z| z.number).collect::<Vec<_>>(), [6, 7]);
        // One at the same place of those that are watched makes the other forgotten.
        let other = 100 + (SHARDS * WATCHED) as u64;
        assert!(!z.is_to_read(100) && !z.is_to_read(100) && !z.is_to_read(other));
        assert!(!z.is_to_read(100) && !z.is_to_read(100) && z.is_to_read(100));
    }

    #[test]
    fn who_uses_little_of_them_has_fewer_brought_along() {
        let z = &mut Zones::new(1);
        let alone: Vec<usize> = (0..7).map(|n| patience(z, n, 1)).collect();
        assert_eq!(alone, [2, 2, 4, 8, 16, 32, 32]);
        let alone: Vec<usize> = (10..17).map(|n| patience(z, n, ZONE as usize / 2)).collect();
        assert_eq!(alone, [32, 32, 16, 8, 4, 2, 2]);
    }

    #[test]
    fn what_is_kept_is_handed_out_for_its_sum_until_a_root_is_written() {
        let z = &mut Zones::new(1);
        let addr = BlockAddr(3 * ZONE + 5);
        let block = Block([7; BLOCK_SIZE]);
        let right = BlockRef { addr, crc: checksum::block_crc(addr, &block.0) };
        let wrong = BlockRef { crc: !right.crc, ..right };
        z.put(3, vec![block; ZONE as usize].into_boxed_slice(), 1, 0);
        let mut got = Vec::new();
        assert!(!z.take((3, 5), &[wrong], 1, &mut |_, b| got.push(b.0[0])));
        assert!(z.take((3, 5), &[right], 1, &mut |n, b| got.push(b.0[0] + n as u8)));
        assert!(!z.take((3, 5), &[right], 2, &mut |_, b| got.push(b.0[0])));
        assert_eq!((got, z.kept.len()), (vec![7], 0));
    }
}
