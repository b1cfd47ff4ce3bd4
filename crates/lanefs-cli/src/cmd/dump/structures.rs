//! The tree below a slot, structure by structure.

use super::none;
use super::reader::{Found, Reader};
use crate::cmd::ls::{date, kind_name};
use crate::failure::Failure;
use lanefs::Ino;
use lanefs_format::dir_bucket::{self, BucketId};
use lanefs_format::header::{self, BlockKind};
use lanefs_format::inode::{self, InodeBlock, MapImage, XattrPlace};
use lanefs_format::map_node::{self, FANOUT};
use lanefs_format::pack;
use lanefs_format::slot::{Root, Slot};
use lanefs_format::superblock::Superblock;
use lanefs_format::table_node::{self, TableEntry};
use lanefs_format::usage_node;
use lanefs_format::{Block, BlockAddr, BlockRef, INOS_PER_CHUNK};
use lanefs_format::{orphans as orphan_list, summary};
use serde_json::{Value, json};

/// Formats a reference.
fn reference(r: BlockRef) -> Value {
    if r.is_none() { Value::Null } else { json!(format!("{} crc {:#010x}", r.addr, r.crc)) }
}

/// Formats the root of a tree.
fn root(r: &Root) -> Value {
    json!({ "block": reference(r.r), "level": r.level })
}

/// Shows each device's superblock and its copy.
pub fn superblocks(reader: &Reader) -> Result<Value, Failure> {
    let show = |f: &Found| match &f.superblock {
        Ok(sb) => superblock(sb, f.block),
        Err(e) => json!({ "block": f.block, "error": e.to_string() }),
    };
    let devices = reader.superblocks()?;
    Ok(devices
        .iter()
        .map(|(name, [first, copy])| json!({ "device": name, "superblock": show(first), "copy": show(copy) }))
        .collect())
}

fn superblock(sb: &Superblock, block: u64) -> Value {
    let devices: Vec<_> =
        sb.devices.iter().map(|d| json!({ "uuid": d.uuid.to_string(), "blocks": d.blocks })).collect();
    json!({
        "block": block,
        "volume": sb.volume.to_string(),
        "label": sb.label,
        "created": date(sb.created),
        "device_index": sb.device_index,
        "devices": devices,
        "mlogs": sb.mlogs,
        "layout": {
            "segment_blocks": sb.layout.segment_blocks,
            "reserved_segments": sb.layout.reserved_segments,
            "slot_blocks": sb.layout.slot_blocks,
            "slots": sb.layout.slots,
        },
        "features_compatible": format!("{:#x}", sb.features_compatible),
        "features_read_compatible": format!("{:#x}", sb.features_read_compatible),
        "features_incompatible": format!("{:#x}", sb.features_incompatible),
    })
}

/// Shows both checkpoint slots.
pub fn slots(reader: &Reader) -> Result<Value, Failure> {
    let show = |slot: &Result<Slot, String>| match slot {
        Err(e) => json!({ "error": e }),
        Ok(s) => {
            let positions: Vec<_> = s
                .positions
                .iter()
                .map(|p| json!({ "segment": p.segment.to_string(), "used": p.used, "sequence": p.seq }))
                .collect();
            json!({
                "generation": s.generation, "mount": s.mount, "clean": s.clean, "folded_epoch": s.folded_epoch,
                "last_ts": s.last_ts, "next_chunk": s.next_chunk, "next_sequence": s.next_seq, "inodes": s.inodes,
                "live_blocks": s.live_blocks, "unwritten": s.unwritten, "table": root(&s.table), "usage": root(&s.usage),
                "orphans": reference(s.orphans), "positions": positions,
            })
        }
    };
    Ok(reader.slots()?.iter().map(show).collect())
}

/// Calls `f` for each leaf of the inode table, from chunk `from` on, until it returns false.
fn walk_table(
    reader: &Reader,
    r: BlockRef,
    only: Option<u64>,
    f: &mut dyn FnMut(u64, &TableEntry),
) -> Result<(), Failure> {
    if r.is_none() {
        return Ok(());
    }
    let block = reader.verified(r, BlockKind::Table.name())?;
    let h = header::read_header(&block);
    let (level, index) = (h.level, h.index.get());
    if level == 0 {
        let entries = table_node::decode(&block, r.addr, index)?;
        for (i, e) in entries.iter().enumerate() {
            f(index * INOS_PER_CHUNK + i as u64, e);
        }
        return Ok(());
    }
    let slots = map_node::decode(&block, r.addr, BlockKind::Table, level, Ino::NONE, index)?;
    for (child, slot) in children(&slots, level, index) {
        // A child at level - 1 covers 256^(level - 1) chunks.
        let span = span(level - 1);
        if only.is_none_or(|c| c / span == child) {
            walk_table(reader, slot, only, f)?;
        }
    }
    Ok(())
}

/// Returns how many leaves are below a node of a level.
fn span(level: u8) -> u64 {
    (FANOUT as u64).checked_pow(u32::from(level)).unwrap_or(u64::MAX)
}

/// Returns a node's children: (index, reference).
fn children(slots: &map_node::Slots, _level: u8, index: u64) -> Vec<(u64, BlockRef)> {
    let all = (0..FANOUT).map(|i| (index.wrapping_mul(FANOUT as u64) + i as u64, slots.get(i)));
    all.filter(|(_, r)| !r.is_none()).collect()
}

/// Shows the inode numbers in use.
pub fn table(reader: &Reader) -> Result<Value, Failure> {
    let mut list = Vec::new();
    walk_table(reader, reader.slot()?.table.r, None, &mut |ino, e| {
        if !e.block.is_none() {
            list.push(json!({
                "ino": ino, "generation": e.generation, "epoch": e.epoch, "block": reference(e.block),
                "slot": slot_of(e),
            }));
        }
    })?;
    Ok(Value::Array(list))
}

/// Shows which slot of a pack an inode has; null if it has a block of its own.
fn slot_of(e: &TableEntry) -> Value {
    if e.slot == 0 { Value::Null } else { json!(e.slot - 1) }
}

/// Finds an inode in the table.
fn find(reader: &Reader, ino: Ino) -> Result<(TableEntry, InodeBlock), Failure> {
    let mut found = None;
    walk_table(reader, reader.slot()?.table.r, Some(ino.chunk()), &mut |n, e| {
        if n == ino.0 && !e.block.is_none() {
            found = Some(*e);
        }
    })?;
    let e = found.ok_or_else(|| {
        none(format_args!(
            "inode {ino}: not in the last checkpoint's table; see `lanefs dump table` and `dump log`"
        ))
    })?;
    let kind = if e.slot == 0 { BlockKind::Inode } else { BlockKind::Pack };
    let block = reader.verified(e.block, kind.name())?;
    let inode = match e.slot {
        0 => inode::decode(&block, e.block.addr, ino)?,
        slot => pack::decode_inode(&block, e.block.addr, ino, slot)?,
    };
    Ok((e, inode))
}

/// Shows an inode.
pub fn inode(reader: &Reader, ino: Ino) -> Result<Value, Failure> {
    let (e, i) = find(reader, ino)?;
    Ok(inode_value(ino, &e, &i))
}

fn inode_value(ino: Ino, e: &TableEntry, i: &InodeBlock) -> Value {
    let a = &i.attrs;
    let xattrs = match &i.xattrs {
        XattrPlace::Inline(bytes) => json!({ "place": "inline", "bytes": bytes.len() }),
        XattrPlace::Blocks { len, refs } => {
            json!({ "place": "blocks", "bytes": len, "blocks": refs.iter().map(|r| reference(*r)).collect::<Vec<_>>() })
        }
    };
    let map = match &i.map {
        MapImage::Inline(pages) => json!({ "place": "inline", "pages": pages.len() }),
        MapImage::Tree { root, height, pages } => {
            json!({ "place": "tree", "root": reference(*root), "height": height, "pages": pages })
        }
    };
    let kind = a.kind().map_or("unknown", kind_name);
    json!({
        "ino": ino.0, "block": reference(e.block), "slot": slot_of(e), "version": i.version, "kind": kind, "mode": format!("{:06o}", a.mode),
        "nlink": i.nlink, "uid": a.uid, "gid": a.gid, "flags": a.flags, "rdev": a.rdev, "size": a.size,
        "generation": a.generation, "parent": i.parent.0, "atime": date(a.atime), "mtime": date(a.mtime),
        "ctime": date(a.ctime), "btime": date(a.btime),
        "dir": { "depth": i.dir.depth, "entries": i.dir.entries, "subdirs": i.dir.subdirs },
        "xattrs": xattrs, "map": map,
        "tail": i.tail.as_ref().map(|(page, bytes)| json!({ "page": page, "bytes": bytes.len() })),
    })
}

/// Returns every page of an inode's map, in order.
fn pages(reader: &Reader, ino: Ino, map: &MapImage) -> Result<Vec<(u64, BlockRef)>, Failure> {
    fn walk(reader: &Reader, ino: Ino, r: BlockRef, out: &mut Vec<(u64, BlockRef)>) -> Result<(), Failure> {
        let block = reader.verified(r, BlockKind::Map.name())?;
        let h = header::read_header(&block);
        let (level, index) = (h.level, h.index.get());
        let slots = map_node::decode(&block, r.addr, BlockKind::Map, level, ino, index)?;
        for (child, r) in children(&slots, level, index) {
            if level == 0 {
                out.push((child, r));
            } else {
                walk(reader, ino, r, out)?;
            }
        }
        Ok(())
    }
    match map {
        MapImage::Inline(pages) => Ok(pages.clone()),
        MapImage::Tree { root, .. } if root.is_none() => Ok(Vec::new()),
        MapImage::Tree { root, .. } => {
            let mut out = Vec::new();
            walk(reader, ino, *root, &mut out)?;
            Ok(out)
        }
    }
}

/// Shows the pages of an inode.
pub fn map(reader: &Reader, ino: Ino) -> Result<Value, Failure> {
    let (_, i) = find(reader, ino)?;
    // Runs of pages in consecutive blocks, as extents are read by people.
    let mut runs: Vec<(u64, BlockAddr, u64)> = Vec::new();
    let all = pages(reader, ino, &i.map)?;
    for &(page, r) in &all {
        match runs.last_mut() {
            Some((first, addr, n)) if *first + *n == page && addr.plus(*n) == r.addr => *n += 1,
            _ => runs.push((page, r.addr, 1)),
        }
    }
    debug_assert_eq!(runs.iter().map(|r| r.2).sum::<u64>(), all.len() as u64, "every page is in one run");
    let runs: Vec<_> = runs
        .iter()
        .map(|(page, addr, n)| json!({ "page": page, "block": addr.to_string(), "pages": n }))
        .collect();
    Ok(json!({ "ino": ino.0, "size": i.attrs.size, "runs": runs, "tail": i.tail.as_ref().map(|t| t.0) }))
}

/// Shows a directory's folded entries.
pub fn dir(reader: &Reader, ino: Ino) -> Result<Value, Failure> {
    let (at, i) = find(reader, ino)?;
    let mut list = Vec::new();
    let mut take = |id: BucketId, bytes: &[u8]| {
        let entries: Vec<_> = dir_bucket::entries(bytes)
            .map(|e| {
                json!({
                    "cookie": format!("{:#018x}", e.cookie), "ino": e.ino.0, "kind": kind_name(e.kind),
                    "name": String::from_utf8_lossy(e.name),
                })
            })
            .collect();
        list.push(json!({ "depth": id.depth, "prefix": format!("{:#x}", id.prefix), "entries": entries }));
    };
    if let Some((page, body)) = &i.tail
        && let Some(id) = BucketId::from_page(*page)
    {
        take(id, dir_bucket::check_body(body, at.block.addr, id)?);
    }
    for (page, r) in pages(reader, ino, &i.map)? {
        let id = BucketId::from_page(page)
            .ok_or_else(|| none(format_args!("inode {ino}: page {page} is no bucket")))?;
        let block = reader.verified(r, BlockKind::Bucket.name())?;
        take(id, dir_bucket::decode(&block, r.addr, ino, id)?);
    }
    Ok(json!({ "ino": ino.0, "entries": i.dir.entries, "subdirs": i.dir.subdirs, "buckets": list }))
}

/// Shows the segments in use.
pub fn usage(reader: &Reader) -> Result<Value, Failure> {
    fn walk(reader: &Reader, r: BlockRef, out: &mut Vec<Value>) -> Result<(), Failure> {
        let block = reader.verified(r, BlockKind::Usage.name())?;
        let h = header::read_header(&block);
        let (level, index) = (h.level, h.index.get());
        if level > 0 {
            let slots = map_node::decode(&block, r.addr, BlockKind::Usage, level, Ino::NONE, index)?;
            let mut next = 0;
            while let Some(n) = slots.next_used(next) {
                walk(reader, slots.get(n), out)?;
                next = n + 1;
            }
            return Ok(());
        }
        let segments =
            usage_node::decode_leaf(&block, r.addr, index, reader.superblock.layout.segment_blocks)?;
        for (i, s) in segments.iter().enumerate() {
            if s.live() > 0 || s.summaries.iter().any(|r| !r.is_none()) {
                out.push(json!({
                    "segment": index * usage_node::SEGMENTS_PER_LEAF as u64 + i as u64, "live": s.live(),
                    "written": date(i64::from(s.written) * 1_000_000_000), "heat": s.heat,
                    "summary": reference(s.summaries[0]),
                }));
            }
        }
        Ok(())
    }
    let root = reader.slot()?.usage.r;
    let mut list = Vec::new();
    if !root.is_none() {
        walk(reader, root, &mut list)?;
    }
    Ok(Value::Array(list))
}

/// Shows the inodes without names that were in use.
pub fn orphans(reader: &Reader) -> Result<Value, Failure> {
    let mut list = Vec::new();
    let (mut at, mut index) = (reader.slot()?.orphans, 0);
    while !at.is_none() {
        let block = reader.verified(at, BlockKind::Orphans.name())?;
        let (inos, next) = orphan_list::decode_orphans(&block, at.addr, index)?;
        list.extend(inos.iter().map(|i| json!(i.0)));
        (at, index) = (next, index + 1);
    }
    Ok(Value::Array(list))
}

/// Shows any block: its header, and what can be decoded without its parent.
pub fn block(reader: &Reader, addr: BlockAddr) -> Result<Value, Failure> {
    let block = reader.raw(addr)?;
    let Some((kind, h)) = header::verify_sealed(&block, addr) else {
        return Ok(
            json!({ "block": addr.to_string(), "kind": guess(reader, addr, &block), "bytes": hex(&block) }),
        );
    };
    let (ino, level, index) = (Ino(h.ino.get()), h.level, h.index.get());
    let r = lanefs_format::checksum::reference(addr, &block);
    let at = |slot| TableEntry { block: r, slot, ..TableEntry::default() };
    let content = match kind {
        BlockKind::Inode => inode_value(ino, &at(0), &inode::decode(&block, addr, ino)?),
        BlockKind::Pack => {
            let pack = pack::decode(&block, addr, index)?;
            let inodes =
                pack.inodes().map(|(ino, slot)| Ok(inode_value(ino, &at(slot), &pack.inode(ino, slot)?)));
            inodes.collect::<Result<Value, Failure>>()?
        }
        BlockKind::Map | BlockKind::Table if level > 0 || kind == BlockKind::Map => {
            let slots = map_node::decode(&block, addr, kind, level, ino, index)?;
            let all = children(&slots, level, index);
            all.iter().map(|(i, r)| json!({ "index": i, "block": reference(*r) })).collect()
        }
        BlockKind::Summary => {
            let owners = summary::decode_summary(&block, addr, index, usize::from(level))?;
            owners.iter().map(|o| json!({ "ino": o.ino.0, "page": o.page })).collect()
        }
        BlockKind::Bucket => match BucketId::from_page(index) {
            Some(id) => dir_bucket::entries(dir_bucket::decode(&block, addr, ino, id)?)
                .map(|e| json!({ "ino": e.ino.0, "name": String::from_utf8_lossy(e.name) }))
                .collect(),
            None => Value::Null,
        },
        _ => Value::Null,
    };
    Ok(json!({
        "block": addr.to_string(), "kind": kind.name(), "level": level, "ino": ino.0, "index": index,
        "epoch": h.epoch.get(), "sequence": h.sequence.get(), "mount": h.mount.get(), "content": content,
    }))
}

/// Guesses what a block without a valid header is.
fn guess(reader: &Reader, addr: BlockAddr, block: &Block) -> &'static str {
    let layout = &reader.superblock.layout;
    let own = Superblock { device_index: addr.device() as u8, ..reader.superblock.clone() };
    match () {
        () if own.places().contains(&addr.block()) => "superblock",
        () if (0..2).any(|i| own.slot_places(i).contains(&addr)) => "checkpoint slot",
        () if layout.slots.contains(&addr.block()) => "stamp of a device",
        () if block.0.iter().all(|b| *b == 0) => "zeros",
        () => "data, or a node block that is damaged",
    }
}

/// Formats a block in lines of 32 bytes; equal lines are shown once.
fn hex(block: &Block) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut last: &[u8] = &[];
    for (i, line) in block.0.chunks(32).enumerate() {
        if line == last {
            if lines.last().is_some_and(|l| l != "*") {
                lines.push("*".into());
            }
            continue;
        }
        last = line;
        let bytes: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
        lines.push(format!("{:03x}  {}", i * 32, bytes.join(" ")));
    }
    debug_assert!((1..=block.0.len() / 32).contains(&lines.len()));
    lines
}
