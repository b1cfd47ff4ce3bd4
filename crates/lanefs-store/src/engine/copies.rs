//! Two copies of the tree (`FormatOptions::metadata_copies`): no block of it that is damaged or
//! cannot be read costs anything, as long as its copy is good.
//!
//! 1. Tree blocks are all that has a header of its own but the log: inode blocks, packs, map nodes,
//!    directory buckets, attribute blocks, nodes of both tables, orphan lists, summaries. They go
//!    to heads that take nothing else, into *paired* segments (invariant 6 of `segment`).
//! 2. A paired segment is filled in its first half; the copy of a block lies half a segment behind
//!    it, byte for byte the same, so that its sums are seeded with the address of the first. Both
//!    are written in one submission. So references stay as they are, nothing has to be looked up to
//!    find a copy, and a pair is claimed, counted, cleaned and freed as one segment.
//! 3. Whoever reads a block by its reference and finds it damaged or unreadable tries the copy. In
//!    a segment of data what lies there is something else, which fails the checksum.
//! 4. A reader that needed the copy remembers the block (`Io::suspect`). [`Cleaner::heal`], with
//!    the next checkpoint or in a scrub, writes the bad copy again, in place. That needs certainty
//!    that the block is still in use, since a reader's reference may be old: under the maintenance
//!    lock no segment is freed and no block of the tree gets an address, and if the owner's
//!    reference is the very one (address and sum), what is written is what has to be there. A crash
//!    that tears the write leaves the other copy.
//! 5. Where that write fails or does not last, the block is written anew by the next checkpoint,
//!    elsewhere, as when its segment is cleaned.
//! 6. The log is not doubled. What an fsync acknowledged lies once until the next checkpoint, and
//!    its loss is noticed (docs/SPEC.md, section 16).

use crate::engine::cleaner::Cleaner;
use crate::engine::maintenance::Maintenance;
use crate::error::Result;
use crate::log::heat::Heat;
use crate::tree::block_io::Owner;
use lanefs_format::checksum;
use lanefs_format::header::{self, BlockKind};
use lanefs_format::{Block, BlockAddr, BlockRef, Ino};

const WHAT: &str = "copy of a block";

/// A block of which one copy was bad.
pub(crate) struct Healed {
    /// Whose it is; none for the structures of the volume.
    pub ino: Ino,
    pub what: &'static str,
    /// The place of the bad copy.
    pub at: BlockAddr,
    /// Why it was bad.
    pub why: String,
}

impl Cleaner<'_> {
    /// Repairs what readers remembered (4). Returns what was repaired, or on a volume that is only
    /// read would be.
    pub(crate) fn heal(&self, m: &mut Maintenance) -> Vec<Healed> {
        let mut healed = Vec::new();
        for r in self.log.io.take_suspects() {
            match self.heal_one(m, r) {
                Ok(h) => healed.extend(h),
                Err(e) => tracing::warn!("block {}: one of its copies stays bad: {e}", r.addr),
            }
        }
        for h in &healed {
            let done =
                if self.log.read_only { "the other one is used" } else { "written again from the other one" };
            tracing::warn!("{}, one of two copies: {}; {done}", h.what, h.why);
        }
        healed
    }

    fn heal_one(&self, m: &mut Maintenance, r: BlockRef) -> Result<Option<Healed>> {
        let Some(copy) = self.log.io.copy_of(r.addr) else { return Ok(None) };
        debug_assert!(copy != r.addr && self.log.segments.geometry.copies == 2, "a block is its own copy");
        if self.log.io.is_queued(r) {
            return Ok(None); // Both will be written.
        }
        let read = |at| self.log.io.fetch_at(r, at, WHAT);
        let (good, bad, why) = match (read(r.addr), read(copy)) {
            (Ok(b), Err(e)) => (b, copy, e),
            (Err(e), Ok(b)) => (b, r.addr, e),
            // Repaired meanwhile; or both are bad, or the block is not in use any more: readers
            // report it.
            _ => return Ok(None),
        };
        debug_assert!(checksum::matches(r, &good.0), "a bad copy would be written over a good one");
        self.log.io.excuse(bad);
        let Some((kind, ino)) = self.is_referred(m, r, &good)? else { return Ok(None) };
        if self.log.read_only {
            return Ok(Some(Healed { ino, what: kind.name(), at: bad, why: why.without_advice() }));
        }
        let lasts = self.log.io.rewrite(bad, &good).and_then(|()| self.log.io.fetch_at(r, bad, WHAT));
        if lasts.is_err() {
            self.log.io.excuse(bad);
            if let Some(Some(bucket)) = self.mark_node(m, r.addr, good)?
                && let Some((seg, _)) = self.log.segments.geometry.locate(r.addr)
            {
                self.move_data(seg, vec![bucket], Heat::Bucket, seg.into())?;
            }
        }
        Ok(Some(Healed { ino, what: kind.name(), at: bad, why: why.without_advice() }))
    }

    /// Returns whether memory refers to this very block: then what it is, and whose.
    fn is_referred(&self, m: &Maintenance, r: BlockRef, b: &Block) -> Result<Option<(BlockKind, Ino)>> {
        let Some((kind, h)) = header::verify_sealed(b, r.addr) else { return Ok(None) };
        let (ino, level, index) = (Ino(h.ino.get()), h.level, h.index.get());
        let owner = match kind {
            BlockKind::Inode => Owner::Inode { ino },
            BlockKind::Map => Owner::Map { ino, level, index },
            BlockKind::Xattr => Owner::Xattr { ino, index },
            BlockKind::Bucket => Owner::Bucket { ino, page: index },
            _ => {
                let here = match kind {
                    BlockKind::Table => self.inodes.table.node_ref(level, index, &self.log.io)? == r,
                    BlockKind::Usage => m.usage.node(level, index) == r,
                    BlockKind::Summary => m.usage.summary(index, level) == r,
                    BlockKind::Orphans => m.orphan_blocks.contains(&r),
                    BlockKind::Pack => {
                        let entries = self.inodes.table.chunk_entries(index, &self.log.io)?;
                        entries.iter().any(|e| e.slot != 0 && e.block == r)
                    }
                    _ => false,
                };
                return Ok(here.then_some((kind, Ino::NONE)));
            }
        };
        let Some(inode) = self.inodes.get(ino, &self.log.io)? else { return Ok(None) };
        let mut i = inode.lock();
        let now = i.state.resolve(&self.log.io, |s| s.current(owner))?;
        Ok((now == r && !i.gone).then_some((kind, ino)))
    }
}
