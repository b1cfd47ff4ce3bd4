//! A cache of blocks of the tree that were read or written.

use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, BlockRef};
use lanefs_sync::lock::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

const SHARDS: usize = 16;

/// A block that the queue of writes and the cache hold in common. Boxed: a count beside the block,
/// which is aligned, would take a block of its own.
pub(super) type Shared = Arc<Box<Block>>;

/// A bounded cache of verified blocks, found by address and sum: what is stale never matches.
pub(super) struct NodeCache {
    shards: Box<[Mutex<Shard>]>,
    per_shard: usize,
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, (u32, Shared)>,
    order: std::collections::VecDeque<u64>,
}

impl NodeCache {
    pub fn new(bytes: usize) -> NodeCache {
        NodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: bytes / BLOCK_SIZE / SHARDS,
        }
    }
    /// Returns how many blocks it holds at the most.
    pub fn len(&self) -> usize {
        self.per_shard * SHARDS
    }
    fn shard(&self, addr: BlockAddr) -> &Mutex<Shard> {
        &self.shards[(addr.0 ^ addr.0 >> 7) as usize % SHARDS]
    }
    pub fn get(&self, r: BlockRef) -> Option<Shared> {
        let s = self.shard(r.addr).lock();
        s.blocks.get(&r.addr.0).filter(|b| b.0 == r.crc).map(|b| b.1.clone())
    }
    /// Drops what is no longer referred to: it would only take space.
    pub fn forget(&self, addr: BlockAddr) {
        self.shard(addr).lock().blocks.remove(&addr.0);
    }
    pub fn put(&self, r: BlockRef, b: Shared) {
        debug_assert!(!r.is_none(), "a hole has no block");
        if self.per_shard == 0 {
            return;
        }
        let mut s = self.shard(r.addr).lock();
        if s.blocks.insert(r.addr.0, (r.crc, b)).is_none() {
            s.order.push_back(r.addr.0);
            if s.order.len() > self.per_shard
                && let Some(old) = s.order.pop_front()
            {
                s.blocks.remove(&old);
            }
        }
        s.check_invariants(self.per_shard);
    }
}

impl Shard {
    /// Checks, in debug builds, that the cache is bounded, and that whatever is in it will be
    /// dropped some day.
    fn check_invariants(&self, most: usize) {
        debug_assert!(self.order.len() <= most, "{} blocks of {most}", self.order.len());
        debug_assert!(self.blocks.len() <= self.order.len(), "a block that no turn comes to");
    }
}
