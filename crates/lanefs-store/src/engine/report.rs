//! Gathering the figures of a report: see [`crate::report`].

use crate::engine::Engine;
use crate::log::mlog::MlogFigures;
use crate::report::{
    CheckpointsReport, CleanerReport, DevicesReport, MlogReport, SegmentsReport, SpaceReport, StoreReport,
    WrittenReport,
};
use lanefs_format::BLOCK_SHIFT;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Returns the bytes of so many blocks.
fn bytes(blocks: u64) -> u64 {
    debug_assert!(blocks >> (64 - BLOCK_SHIFT) == 0, "{blocks} blocks are more than there can be");
    blocks << BLOCK_SHIFT
}

impl Engine {
    /// Returns the figures: see [`crate::Store::report`].
    pub fn report(&self) -> StoreReport {
        let log = &self.log;
        let census = log.segments.census();
        let pressure = self.pressure_of(census.pending);
        let mlogs: Vec<_> = log.mlogs.iter().map(|m| (m.device(), m.figures(&log.segments))).collect();
        let all = |m: &MlogFigures| m.written.data + m.written.log;
        debug_assert!(mlogs.iter().all(|m| all(&m.1) >= m.1.appended), "a part of all: {mlogs:?}");
        let (asked, issued) = log.io.flushes();
        let free = log.space.free_exact().saturating_add_unsigned(log.space.later());
        StoreReport {
            space: SpaceReport {
                total_bytes: bytes(log.space.total()),
                free_bytes: bytes(free.max(0).unsigned_abs()),
                reserved_bytes: bytes(log.space.reserved().max(0) as u64),
                live_bytes: bytes(census.live_blocks),
                inodes: self.totals.inodes(),
            },
            segments: SegmentsReport {
                segment_bytes: log.segment_bytes().0,
                total: pressure.segments,
                free: census.free,
                reserved: u64::from(log.segments.reserved_segments()),
                low_water: pressure.clean_below,
                checkpoint_below: pressure.checkpoint_below,
                pending: census.pending,
                open: census.open,
                chain: census.chain,
                by_utilisation: census.full.to_vec(),
            },
            written: self.written(mlogs.iter().map(|m| (m.1.written.data, m.1.written.log))),
            mlogs: mlogs
                .into_iter()
                .map(|(device, m)| MlogReport {
                    device: device as u64,
                    data_bytes: bytes(m.written.data),
                    log_bytes: bytes(m.written.log),
                    to_recover_bytes: bytes(m.appended),
                    chain_segments: m.chain as u64,
                    takes_all: m.takes_all,
                    open_heads: m.heads as u64,
                    head_capacity_bytes: bytes(m.capacity),
                })
                .collect(),
            cleaner: self.cleaned(),
            checkpoints: self.checkpointed(),
            devices: DevicesReport {
                count: log.io.devices().len() as u64,
                transactions: log.sections.all_begun(),
                flushes_asked: asked,
                flushes_issued: issued,
                waiting_for_host: log.io.host.waiting() as u64,
                trouble: log.io.trouble(),
                change: self.changes.report(),
            },
            inode_memory_bytes: self.inodes.memory() as u64,
            inode_memory_dirty_bytes: self.inodes.cache.dirty_memory() as u64,
        }
    }

    /// Returns what was written, given the blocks of data and of the log of each mlog.
    fn written(&self, mlogs: impl Iterator<Item = (u64, u64)>) -> WrittenReport {
        let (data, logged) = mlogs.fold((0, 0), |sum, m| (sum.0 + m.0, sum.1 + m.1));
        let done = &self.log.io.maintained;
        // Relaxed: figures, of which each stands for itself.
        let of = |n: &AtomicU64| bytes(n.load(Relaxed));
        let (tree, moved, roots) = (of(&done.tree), of(&done.moved), of(&done.roots));
        let (data, logged) = (bytes(data), bytes(logged));
        let total = data + logged + tree + moved + roots;
        debug_assert!(total >= data, "{total} bytes in all, {data} of data");
        WrittenReport {
            data_bytes: data,
            log_bytes: logged,
            tree_bytes: tree,
            moved_bytes: moved,
            root_bytes: roots,
            total_bytes: total,
            write_amplification: (data > 0).then(|| total as f64 / data as f64),
        }
    }

    fn cleaned(&self) -> CleanerReport {
        let done = &self.log.io.maintained;
        // Relaxed, as above.
        CleanerReport {
            segments: done.emptied.load(Relaxed),
            blocks_moved: done.data_moved.load(Relaxed),
            nodes_marked: done.nodes_marked.load(Relaxed),
        }
    }

    fn checkpointed(&self) -> CheckpointsReport {
        let c = &self.totals.checkpoints;
        // Relaxed, as above.
        CheckpointsReport {
            folding: c.folding.load(Relaxed),
            in_place: c.in_place.load(Relaxed),
            failed: c.failed.load(Relaxed),
            total_ns: c.nanos.load(Relaxed),
            longest_ns: c.longest.load(Relaxed),
            last_ns: c.last.load(Relaxed),
        }
    }
}
