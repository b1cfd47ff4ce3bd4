//! Edits of the library.

use super::Edit;
use crate::Fault;

const OPS_RIGHTS: &str = "crates/lanefs/src/ops/rights.rs";
const OPS_REMOVE: &str = "crates/lanefs/src/ops/remove.rs";
const OPS_RENAME: &str = "crates/lanefs/src/ops/rename.rs";
const OPS_OP: &str = "crates/lanefs/src/ops/op.rs";
const OPLOG_BUFFER: &str = "crates/lanefs/src/oplog/buffer.rs";
const MEMFS_INODE: &str = "crates/lanefs/src/memfs/inode.rs";
const PERSIST_REPLACED: &str = "crates/lanefs/src/persist/replaced.rs";
const PERSIST_TOGETHER: &str = "crates/lanefs/src/persist/together.rs";
const PERSIST_WRITEBACK: &str = "crates/lanefs/src/persist/writeback.rs";
const PERSIST_CAPTURE: &str = "crates/lanefs/src/persist/capture.rs";
const PERSIST_FSYNC: &str = "crates/lanefs/src/persist/fsync.rs";
const PERSIST_CLOSURE: &str = "crates/lanefs/src/persist/closure.rs";
const MEMFS_DIR: &str = "crates/lanefs/src/memfs/dir/mod.rs";
const DATA_STABLE: &str = "crates/lanefs/src/memfs/data/stable.rs";

pub const EDITS: &[Edit] = &[
    Edit {
        fault: Fault::RightsAhead,
        file: OPS_RIGHTS,
        from: "epoch > core.journal.committed() && epoch != inode.born",
        to: "epoch > core.journal.committed() && epoch != inode.born && !$PLANTED",
    },
    Edit {
        fault: Fault::RightsNotLogged,
        file: OPS_RIGHTS,
        from: "op.append(v, &[Effect::Rights { ino: inode.ino, generation, mode, uid, gid, acls }]);",
        to: "\
if !$PLANTED {
    op.append(v, &[Effect::Rights { ino: inode.ino, generation, mode, uid, gid, acls }]);
}",
    },
    Edit {
        fault: Fault::AclApart,
        file: OPS_RIGHTS,
        from: "inode.set_owner_mode(r.mode, r.uid, r.gid, r.drop, true);",
        to: "\
let was = if $PLANTED { inode.mode() } else { 0 };
inode.set_owner_mode(r.mode, r.uid, r.gid, r.drop, true);",
    },
    Edit {
        fault: Fault::AclApart,
        file: OPS_RIGHTS,
        from: "let generation = inode.generation;",
        to: "\
let generation = inode.generation;
let (v, acls) = if $PLANTED && acls.is_some() && was != mode {
    // As if a seal had come between the two.
    op.append(v, &[Effect::Rights { ino: inode.ino, generation, mode: was, uid, gid, acls }]);
    (lanefs_format::Version { ts: v.ts + 1, epoch: v.epoch + 1, ..v }, None)
} else {
    (v, acls)
};",
    },
    Edit {
        fault: Fault::CapabilityNotLogged,
        file: "crates/lanefs/src/ops/xattr.rs",
        from: "name.starts_with(ACL_PREFIX) || name == CAPABILITY",
        to: "name.starts_with(ACL_PREFIX) || name == CAPABILITY && !$PLANTED",
    },
    Edit {
        fault: Fault::NumberReused,
        file: OPS_REMOVE,
        from: "\
victim.set_times(None, None, Some(now));
Some(Orphan",
        to: "\
victim.set_times(None, None, Some(now));
if $PLANTED {
    op.give_back(victim.ino);
}
Some(Orphan",
    },
    Edit {
        fault: Fault::TwoMoments,
        file: OPS_REMOVE,
        from: "if moment.is_some_and(|m| m.holds()) {",
        to: "if moment.is_some_and(|m| m.holds()) || $PLANTED {",
    },
    Edit {
        fault: Fault::TwoMoments,
        file: OPS_RENAME,
        from: "if moment.is_some_and(|m| m.holds()) {",
        to: "if moment.is_some_and(|m| m.holds()) || $PLANTED {",
    },
    Edit {
        fault: Fault::StaleWait,
        file: "crates/lanefs/src/memfs/data/frame.rs",
        from: "if !self.seq.lock_while(|| self.is(ino, page)) {",
        to: "if !self.seq.lock_while(|| $PLANTED || self.is(ino, page)) {",
    },
    Edit {
        fault: Fault::SplitRename,
        file: OPS_RENAME,
        from: "op.append(v, &effects);",
        to: "\
if $PLANTED {
    // As if a seal had come between the two.
    let w = lanefs_format::Version { ts: v.ts + 1, epoch: v.epoch + 1, ..v };
    op.append(v, &effects[1..]);
    op.append(w, &effects[..1]);
} else {
    op.append(v, &effects);
}",
    },
    Edit {
        fault: Fault::ClockAlone,
        file: OPS_OP,
        from: "let ts = self.core.clock.now().max(self.log.last_ts + 1).max(floor + 1);",
        to: "\
if $PLANTED {
    return Version { epoch, ts: self.core.clock.now(), lane: self.lane as u16 };
}
let ts = self.core.clock.now().max(self.log.last_ts + 1).max(floor + 1);",
    },
    Edit {
        fault: Fault::PathRemembered,
        file: OPS_RENAME,
        from: "let is_dir = |x: &(Ino, FileKind)| x.1 == FileKind::Dir;",
        to: "let is_dir = |x: &(Ino, FileKind)| x.1 == FileKind::Dir && !$PLANTED;",
    },
    Edit {
        fault: Fault::VoidedAmongOthers,
        file: MEMFS_INODE,
        from: "if self.sole_group().is_known() {",
        to: "if self.sole_group().is_known() && !$PLANTED {",
    },
    Edit {
        fault: Fault::WrittenVoided,
        file: OPLOG_BUFFER,
        from: "if made < unseen {",
        to: "if made < unseen && !$PLANTED {",
    },
    Edit {
        fault: Fault::RenameWithoutContent,
        file: PERSIST_REPLACED,
        from: "let Some(data) = inode.data() else { return Ok(()) };",
        to: "let Some(data) = inode.data().filter(|_| !$PLANTED) else { return Ok(()) };",
    },
    Edit {
        fault: Fault::RenameWithoutContent,
        file: PERSIST_REPLACED,
        from: "let list = flush_together(persist, list);",
        to: "let list = if $PLANTED { list.to_vec() } else { flush_together(persist, list) };",
    },
    Edit {
        fault: Fault::TogetherInPart,
        file: PERSIST_TOGETHER,
        from: "let (update, taken) = file.update(xattrs, captured);",
        to: "\
let (mut update, taken) = file.update(xattrs, captured);
if $PLANTED {
    update.pages.truncate(1);
}",
    },
    Edit {
        fault: Fault::TogetherUnflushed,
        file: PERSIST_TOGETHER,
        from: "let t = Transaction { lane, durable, groups",
        to: "let t = Transaction { lane, durable: durable && !$PLANTED, groups",
    },
    Edit {
        fault: Fault::SyncForgetsWritten,
        file: PERSIST_WRITEBACK,
        from: "\
if durable {
    list.extend(q.unsynced());",
        to: "\
if durable && !$PLANTED {
    list.extend(q.unsynced());",
    },
    Edit {
        fault: Fault::SyncWithoutCommit,
        file: PERSIST_WRITEBACK,
        from: "\
commit::seal_and_commit(persist)?;
content",
        to: "\
if !$PLANTED {
    commit::seal_and_commit(persist)?;
}
content",
    },
    Edit {
        fault: Fault::PagesSkipped,
        file: PERSIST_CAPTURE,
        from: "let n = captured.pages.len();",
        to: "\
let mut captured = captured;
if $PLANTED {
    captured.pages.truncate(1);
}
let n = captured.pages.len();",
    },
    Edit {
        fault: Fault::NamesForgotten,
        file: PERSIST_FSYNC,
        from: "closure::of(persist, inode.ino, inode.dir().is_some(), &guard)",
        to: "\
if $PLANTED && inode.data().is_some_and(|d| !d.has_dirty()) {
    Closure::Groups { bytes: Vec::new(), taken: Vec::new(), replaced: Vec::new() }
} else {
    closure::of(persist, inode.ino, inode.dir().is_some(), &guard)
}",
    },
    Edit {
        fault: Fault::NamesForgotten,
        file: PERSIST_FSYNC,
        from: "if persist.journal.committed() >= target {",
        to: "\
if persist.journal.committed() >= target
    || $PLANTED && inode.data().is_some_and(|d| !d.has_dirty())
{",
    },
    Edit {
        fault: Fault::PendingUnseen,
        file: PERSIST_FSYNC,
        from: "persist.journal.epochs.pending().min(persist.journal.epochs.current())",
        to: "persist.journal.epochs.pending().min(persist.journal.epochs.current() - u64::from($PLANTED))",
    },
    Edit {
        fault: Fault::NoClosure,
        file: PERSIST_CLOSURE,
        from: "self.bytes.extend_from_slice(g.bytes);",
        to: "\
self.bytes.extend_from_slice(g.bytes);
if $PLANTED {
    return true;
}",
    },
    Edit {
        fault: Fault::MoveInFsync,
        file: PERSIST_CLOSURE,
        from: "Effect::Parent { .. } => return false,",
        to: "\
Effect::Parent { .. } if $PLANTED => {}
Effect::Parent { .. } => return false,",
    },
    Edit {
        fault: Fault::NoParent,
        file: PERSIST_CLOSURE,
        from: "\
Effect::Set { dir, ino, old, kind, .. } => {
    self.todo.push((Subject::Inode(dir), true));",
        to: "\
Effect::Set { dir, ino, old, kind, .. } => {
    if !$PLANTED {
        self.todo.push((Subject::Inode(dir), true));
    }",
    },
    Edit {
        fault: Fault::NoParent,
        file: PERSIST_CLOSURE,
        from: "\
Effect::Clr { dir, old, kind, .. } => {
    self.todo.push((Subject::Inode(dir), true));",
        to: "\
Effect::Clr { dir, old, kind, .. } => {
    if !$PLANTED {
        self.todo.push((Subject::Inode(dir), true));
    }",
    },
    Edit {
        fault: Fault::NoChildren,
        file: PERSIST_CLOSURE,
        from: "if !old.is_none() {",
        to: "if !old.is_none() && !$PLANTED {",
    },
    Edit {
        fault: Fault::NoChildren,
        file: PERSIST_CLOSURE,
        from: "if kind == FileKind::Dir {",
        to: "if kind == FileKind::Dir && !$PLANTED {",
    },
    Edit {
        fault: Fault::ImageWritten,
        file: DATA_STABLE,
        from: "page.set(STABLE);
self.pages",
        to: "\
if !$PLANTED {
    page.set(STABLE);
}
self.pages",
    },
    Edit {
        fault: Fault::MarkAfterNames,
        file: MEMFS_DIR,
        from: "return if tombstone || look.is_complete() {",
        to: "\
// The mark as it is behind the chain, with a load in between.
return if tombstone || look.is_complete() || $PLANTED && leaf.is_complete() {",
    },
];
