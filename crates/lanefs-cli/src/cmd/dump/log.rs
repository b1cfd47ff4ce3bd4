//! The log behind the last checkpoint, which recovery would roll forward.

use super::reader::Reader;
use crate::failure::Failure;
use lanefs_format::batch::{self, BatchKind, Context, TailUpdate};
use lanefs_format::record::{self, Effect};
use lanefs_format::{Block, BlockAddr};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Shows the chains of all mlogs.
pub fn log(reader: &Reader) -> Result<Value, Failure> {
    let slot = reader.slot()?;
    let key = reader.superblock.hash_key;
    // The volume's secret, as docs/SPEC.md folds it from the hash key.
    let secret = key[0] ^ key[1].rotate_left(29);
    let mut chains = Vec::new();
    for (mlog, position) in slot.positions.iter().enumerate() {
        let (mut addr, mut used, mut seq) = (position.segment, position.used.max(1), position.seq);
        let mut seen = HashSet::new();
        let mut batches = Vec::new();
        let mut segments = Vec::new();
        while !addr.is_none() && seen.insert(addr) {
            segments.push(json!({ "segment": addr.to_string(), "sequence": seq }));
            let context = Context { mount: slot.mount, seq, secret };
            let Some(blocks) = segment(reader, addr) else { break };
            walk(&blocks, addr, used, context, &mut batches);
            match batch::decode_chain(&blocks[0], addr, context) {
                Some(link) if link.successor_seq > seq => {
                    (addr, used, seq) = (link.successor, 1, link.successor_seq)
                }
                _ => break,
            }
        }
        chains.push(json!({ "mlog": mlog, "segments": segments, "batches": batches }));
    }
    Ok(json!({ "clean": slot.clean, "folded_epoch": slot.folded_epoch, "chains": chains }))
}

/// Reads a whole segment; `None` if it is not on the device.
fn segment(reader: &Reader, first: BlockAddr) -> Option<Vec<Block>> {
    let n = u64::from(reader.superblock.layout.segment_blocks);
    (0..n).map(|i| reader.raw(first.plus(i)).ok().map(|b| *b)).collect()
}

/// Decodes the batches of a segment, from block `used` on.
fn walk(blocks: &[Block], first: BlockAddr, used: u32, context: Context, out: &mut Vec<Value>) {
    let mut at = used as usize;
    while at < blocks.len() {
        let addr = first.plus(at as u64);
        let Some((head, range, n)) = batch::decode_batch(&blocks[at..], addr, context) else {
            at += 1;
            continue;
        };
        debug_assert!(n > 0 && at + n <= blocks.len(), "a batch lies in one segment");
        let bytes = &batch::bytes_of(&blocks[at..at + n])[range];
        let mut value = json!({
            "block": addr.to_string(), "blocks": n, "bytes": bytes.len(), "id": head.id, "epoch": head.epoch,
            "kind": match head.kind { BatchKind::Fsync => "fsync", BatchKind::Commit => "commit" },
            "part": format!("{} of {}", head.part + 1, head.parts),
            "share": format!("{} of {}", head.share.saturating_add(1), head.shares),
        });
        // A message in several pieces is only counted: no piece means anything alone.
        if head.parts == 1 {
            content(head.kind, bytes, &mut value);
        }
        out.push(value);
        at += n;
    }
}

/// Adds the content of a batch.
fn content(kind: BatchKind, bytes: &[u8], value: &mut Value) {
    match kind {
        BatchKind::Commit => {
            let Some((acked, bytes)) = batch::decode_share(bytes) else { return };
            value["durable"] = json!(acked);
            value["groups"] = groups(bytes);
        }
        BatchKind::Fsync => {
            let Some(message) = batch::decode_message(bytes) else { return };
            value["groups"] = groups(&message.groups);
            let inode = |i: &batch::InodeRecord| {
                let runs: Vec<_> = i
                    .runs
                    .iter()
                    .map(|r| json!({ "page": r.page, "block": r.addr.to_string(), "pages": r.crcs.len() }))
                    .collect();
                let tail = match &i.tail {
                    TailUpdate::Same => "same".to_string(),
                    TailUpdate::None => "none".to_string(),
                    TailUpdate::Set { page, bytes } => format!("{} bytes of page {page}", bytes.len()),
                };
                json!({
                    "ino": i.ino.0, "version": i.version, "size": i.attrs.size, "mode": format!("{:06o}", i.attrs.mode),
                    "tail": tail, "runs": runs,
                })
            };
            value["inodes"] = message.inodes.iter().map(inode).collect();
        }
    }
}

/// Decodes groups of effects.
fn groups(bytes: &[u8]) -> Value {
    let mut list = Vec::new();
    for group in record::groups(bytes) {
        match group {
            Err(e) => list.push(json!({ "error": e.to_string() })),
            Ok(g) => {
                let v = g.version;
                let effects: Vec<_> =
                    g.effects().map(|e| e.map_or_else(|e| e.to_string(), |e| effect(&e))).collect();
                list.push(json!({ "epoch": v.epoch, "ts": v.ts, "lane": v.lane, "effects": effects }));
            }
        }
    }
    Value::Array(list)
}

/// Formats an effect.
fn effect(e: &Effect<'_>) -> String {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    match *e {
        Effect::Set { dir, name, ino, old, .. } if old.is_none() => {
            format!("SET {dir}/{} -> {ino}", text(name))
        }
        Effect::Set { dir, name, ino, old, .. } => format!("SET {dir}/{} -> {ino}, was {old}", text(name)),
        Effect::Clr { dir, name, old, .. } => format!("CLR {dir}/{}, was {old}", text(name)),
        Effect::New { ino, parent, mode, generation, .. } => {
            format!("NEW {ino} generation {generation} mode {mode:06o} in {parent}")
        }
        Effect::Dead { ino, generation } => format!("DEAD {ino} generation {generation}"),
        Effect::Parent { ino, parent } => format!("PARENT {ino} -> {parent}"),
        Effect::Xattrs { ino, xattrs } => format!("XATTRS {ino} {} bytes", xattrs.len()),
        Effect::Rights { ino, generation, mode, uid, gid, acls } => {
            let acls = acls.map_or(String::new(), |a| format!(" ACLs of {} bytes", a.len()));
            format!("RIGHTS {ino} generation {generation} mode {mode:06o} owner {uid}:{gid}{acls}")
        }
    }
}
