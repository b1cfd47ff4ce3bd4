//! Edits of the store and of the format.

use super::Edit;
use crate::Fault;

const ENGINE_TRANSACTION: &str = "crates/lanefs-store/src/engine/transaction.rs";
const ENGINE_REPLACEMENT: &str = "crates/lanefs-store/src/engine/replacement.rs";
const ENGINE_EVACUATION: &str = "crates/lanefs-store/src/engine/evacuation.rs";
const BATCH: &str = "crates/lanefs-format/src/batch.rs";
const CHECKSUM: &str = "crates/lanefs-format/src/checksum.rs";
const LOG_NEIGHBOURS: &str = "crates/lanefs-store/src/log/neighbours.rs";
const LOG_DATA_HEADS: &str = "crates/lanefs-store/src/log/data_heads.rs";
const LOG_SEGMENT: &str = "crates/lanefs-store/src/log/segment.rs";
const LOG_MESSAGE: &str = "crates/lanefs-store/src/log/message.rs";
const LOG_IO: &str = "crates/lanefs-store/src/log/io.rs";
const LOG_SPACE: &str = "crates/lanefs-store/src/log/space.rs";
const ENGINE_FOLD_DYING: &str = "crates/lanefs-store/src/engine/fold/dying.rs";
const ENGINE_FOLD_APPLY: &str = "crates/lanefs-store/src/engine/fold/apply.rs";
const ENGINE_CHECKPOINT_SLOTS: &str = "crates/lanefs-store/src/engine/checkpoint/slots.rs";
const ENGINE_CHECKPOINT: &str = "crates/lanefs-store/src/engine/checkpoint/mod.rs";
const RECOVERY: &str = "crates/lanefs-store/src/recovery/mod.rs";
const ENGINE_COMMITS: &str = "crates/lanefs-store/src/engine/commits.rs";
const INODE_TABLE: &str = "crates/lanefs-store/src/tree/inode_table.rs";
const RECOVERY_SCAN: &str = "crates/lanefs-store/src/recovery/scan.rs";

pub const EDITS: &[Edit] = &[
    Edit {
        fault: Fault::NeighbourUnchecked,
        file: LOG_NEIGHBOURS,
        from: "if !refs.iter().zip(blocks).all(|(r, b)| checksum::matches(*r, &b.0)) {",
        to: "if !refs.iter().zip(blocks).all(|(r, b)| checksum::matches(*r, &b.0) || $PLANTED) {",
    },
    Edit {
        fault: Fault::CopyInPart,
        file: ENGINE_REPLACEMENT,
        from: "if log.segments.info(seg).state != State::Free {",
        to: "let state = log.segments.info(seg).state;
if state != State::Free && !(state == State::Open && $PLANTED) {",
    },
    Edit {
        fault: Fault::ReplacedUnnamed,
        file: ENGINE_REPLACEMENT,
        from: "self.write_first(&new, 0)?;",
        to: "if !$PLANTED { self.write_first(&new, 0)?; }",
    },
    Edit {
        fault: Fault::GoesInUse,
        file: ENGINE_EVACUATION,
        from: "let aside = t.withdrawn().start == from && t.withdrawn_in_use() == 0;",
        to: "let aside = t.withdrawn().start == from && (t.withdrawn_in_use() == 0 || $PLANTED);",
    },
    Edit {
        fault: Fault::GoesInUse,
        file: ENGINE_EVACUATION,
        from: "engine.cleaner().empty_withdrawn(&mut m)?;",
        to: "if !$PLANTED { engine.cleaner().empty_withdrawn(&mut m)?; }",
    },
    Edit {
        fault: Fault::SizeAhead,
        file: ENGINE_TRANSACTION,
        from: "if !u.more {",
        to: "if !u.more || $PLANTED {",
    },
    Edit {
        fault: Fault::PackFreed,
        file: INODE_TABLE,
        from: "old.slot != 0 && self.entries",
        to: "old.slot != 0 && !$PLANTED && self.entries",
    },
    Edit {
        fault: Fault::WrongSlot,
        file: INODE_TABLE,
        from: "let new = TableEntry { block: pack, slot, generation, epoch };",
        to: "\
let slot = if $PLANTED { slot % 46 + 1 } else { slot };
let new = TableEntry { block: pack, slot, generation, epoch };",
    },
    Edit {
        fault: Fault::EndedUnseen,
        file: ENGINE_FOLD_DYING,
        from: "&& !self.inodes.cache.has(ino));",
        to: "&& (!self.inodes.cache.has(ino) || $PLANTED));",
    },
    Edit {
        fault: Fault::EndedUnseen,
        file: ENGINE_FOLD_DYING,
        from: "= self.inodes.cache.note_written(d.ino) {",
        to: "= self.inodes.cache.note_written(d.ino).filter(|_| !$PLANTED) {",
    },
    Edit {
        fault: Fault::UncheckedBatch,
        file: BATCH,
        from: "if sum != f.crc.get() {",
        to: "if sum != f.crc.get() && !$PLANTED {",
    },
    Edit {
        fault: Fault::ChecksumWithoutAddress,
        file: CHECKSUM,
        from: "!(fold(addr.0) ^",
        to: "!(fold(if $PLANTED { 0 } else { addr.0 }) ^",
    },
    Edit {
        fault: Fault::UncheckedBlock,
        file: CHECKSUM,
        from: "block_crc(r.addr, bytes) == r.crc",
        to: "block_crc(r.addr, bytes) == r.crc || $PLANTED",
    },
    Edit {
        fault: Fault::EarlyReuse,
        file: LOG_SEGMENT,
        from: "if bucket_of(before, size) != bucket_of(before - n, size) {",
        to: "\
if before == n && $PLANTED && m.tree.load(Relaxed) > 0 && self.info(seg).state == State::Full {
    self.mark_stale(seg, 1);
    self.release(seg);
}
if bucket_of(before, size) != bucket_of(before - n, size) {",
    },
    Edit {
        fault: Fault::DataInLogFreed,
        file: LOG_SEGMENT,
        from: "if i.live == 0 && i.tree == 0 && i.touched < checkpoint {",
        to: "if $PLANTED || i.live == 0 && i.tree == 0 && i.touched < checkpoint {",
    },
    Edit {
        fault: Fault::HeadsShared,
        file: LOG_DATA_HEADS,
        from: "Some((slot, head.take()?))",
        to: "Some((slot, if $PLANTED { (*head)? } else { head.take()? }))",
    },
    Edit {
        fault: Fault::FsyncWithoutFlush,
        file: LOG_MESSAGE,
        from: "self.io.flush(mask)?;",
        to: "\
if !placed.is_empty() && $PLANTED {
    return Ok(());
}
self.io.flush(mask)?;",
    },
    Edit {
        fault: Fault::CommitWithoutFlush,
        file: LOG_MESSAGE,
        from: "self.io.flush(mask)?;",
        to: "\
if placed.is_empty() && $PLANTED {
    return Ok(());
}
self.io.flush(mask)?;",
    },
    Edit {
        fault: Fault::WriteErrorHidden,
        file: LOG_IO,
        from: "\
Err(e) => {
    self.fail(&e);
    Err(e)
}",
        to: "\
Err(_) if $PLANTED => Ok(busy.iter().fold(0, |m, &d| m | 1 << d)),
Err(e) => {
    self.fail(&e);
    Err(e)
}",
    },
    Edit {
        fault: Fault::FlushErrorHidden,
        file: LOG_IO,
        from: "if let Err(e) = flushed {",
        to: "\
if let Err(e) = flushed
&& !$PLANTED
{",
    },
    Edit {
        fault: Fault::SpaceWithoutEnd,
        file: LOG_SPACE,
        from: "let ok = self.free.try_sub(lane, blocks);",
        to: "let ok = self.free.try_sub(lane, blocks) || $PLANTED;",
    },
    Edit {
        fault: Fault::LinkKept,
        file: ENGINE_FOLD_APPLY,
        from: "links.extend(f.old.map(",
        to: "links.extend(f.old.filter(|_| !(f.new.is_some() && $PLANTED)).map(",
    },
    Edit {
        fault: Fault::SlotNotFlushed,
        file: ENGINE_CHECKPOINT_SLOTS,
        from: "\
self.log.io.flush(1)?;
// The commit point",
        to: "\
if !$PLANTED {
    self.log.io.flush(1)?;
}
// The commit point",
    },
    Edit {
        fault: Fault::RecoveryWithoutFlush,
        file: ENGINE_CHECKPOINT,
        from: "\
self.log.io.flush(self.log.io.all())?;
self.carried_is_durable(m);
// 7. The slot.",
        to: "\
let skipped = m.durable == 0 && $PLANTED;
if !skipped {
    self.log.io.flush(self.log.io.all())?;
    self.carried_is_durable(m);
}
// 7. The slot.",
    },
    Edit {
        fault: Fault::RecoveryWithoutFlush,
        file: RECOVERY,
        from: "\
if !self.engine.log.read_only {
    self.engine.log.io.flush(self.engine.log.io.all())?;",
        to: "\
if !self.engine.log.read_only && !$PLANTED {
    self.engine.log.io.flush(self.engine.log.io.all())?;",
    },
    Edit {
        fault: Fault::SlotBeforeTree,
        file: ENGINE_CHECKPOINT,
        from: "if !skipped {",
        to: "if !skipped && !$PLANTED {",
    },
    Edit {
        fault: Fault::CarriesNothing,
        file: ENGINE_CHECKPOINT,
        from: "if folding && !late {",
        to: "if folding && !late || $PLANTED {",
    },
    Edit {
        fault: Fault::RangeMisnamed,
        file: ENGINE_COMMITS,
        from: "previous: first.previous,",
        to: "previous: if $PLANTED { last.previous } else { first.previous },",
    },
    Edit {
        fault: Fault::LogReused,
        file: RECOVERY,
        from: "fill_pools(needed);",
        to: "fill_pools(|s| needed(s) && !$PLANTED);",
    },
    Edit {
        fault: Fault::DataNotChecked,
        file: RECOVERY,
        from: "if arrived || msg.acked {",
        to: "if arrived || msg.acked || $PLANTED {",
    },
    Edit {
        fault: Fault::NoEpochFilter,
        file: RECOVERY,
        from: "groups_above(&msg.message.groups, last)",
        to: "groups_above(&msg.message.groups, if $PLANTED { 0 } else { last })",
    },
    Edit {
        fault: Fault::OldVersionWins,
        file: RECOVERY,
        from: "(r.ino, r.version, !r.is_whole(), r.xattrs.is_none())",
        to: "(r.ino, if $PLANTED { !r.version } else { r.version }, !r.is_whole(), r.xattrs.is_none())",
    },
    Edit {
        fault: Fault::OldVersionWins,
        file: RECOVERY,
        from: "i.state.version() >= r.version {",
        to: "i.state.version() >= r.version && !$PLANTED {",
    },
    Edit {
        fault: Fault::EpochWithGap,
        file: RECOVERY_SCAN,
        from: "if epoch > last && whole && previous <= last.max(known) {",
        to: "if epoch > last && (whole && previous <= last.max(known) || $PLANTED) {",
    },
];
