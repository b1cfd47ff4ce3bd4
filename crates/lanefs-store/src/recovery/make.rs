//! Making volumes.
//!
//! It is known before anything is written that the volume can be made: the superblocks are encoded,
//! which checks every field of them, while what was there before is still whole. Then the older
//! volume is taken away, in an order that a crash cannot mix ([`take_away`]), the new one is
//! written, and its superblock last.

use crate::api::{FormatOptions, OpenOptions};
use crate::device::Device;
use crate::engine::maintenance::Maintenance;
use crate::engine::{Engine, Parts};
use crate::error::{Result, StoreError};
use crate::log::segment::{Geometry, SegmentTable};
use crate::log::superblocks::{MIN_SEGMENTS, TOO_LARGE, encode_copies, random, refuse_volume, take_away};
use crate::log::usage_table::UsageTable;
use crate::tree::inode_table::InodeTable;
use lanefs_format::slot::{SLOT_BLOCKS, Slot};
use lanefs_format::superblock::{
    DeviceEntry, FAR_BLOCKS, FAR_COPIES, LABEL_MAX, Layout, MAX_DEVICE_BYTES, MAX_MLOGS, MIN_SEGMENT_BLOCKS,
    PACKED_INODES, PREALLOCATION, Superblock, TWO_COPIES, Uuid,
};
use lanefs_format::{Attrs, BLOCK_SHIFT, FIRST_INO, ROOT_INO};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Returns the blocks of a device of so many bytes that belong to the volume: those at its end hold
/// copies.
fn volume_blocks(size: u64) -> u64 {
    (size >> BLOCK_SHIFT).saturating_sub(FAR_BLOCKS)
}

/// Returns what a volume on devices of these sizes, in blocks, is divided into.
fn geometry(o: &FormatOptions, blocks: &[u64]) -> Result<(Layout, Geometry)> {
    if blocks.is_empty() {
        return Err(StoreError::Invalid("a volume needs a device".into()));
    }
    if blocks.iter().any(|b| *b >= (MAX_DEVICE_BYTES >> BLOCK_SHIFT) - FAR_BLOCKS) {
        return Err(StoreError::Invalid(TOO_LARGE.into()));
    }
    if !(1..=2).contains(&o.metadata_copies) {
        return Err(StoreError::Invalid(format!("{} copies of metadata; 1 or 2", o.metadata_copies)));
    }
    let mut segment_blocks = o.segment_blocks;
    let (layout, g) = loop {
        let layout = Layout::new(segment_blocks, SLOT_BLOCKS)
            .ok_or_else(|| StoreError::Invalid(format!("segments of {segment_blocks} blocks")))?;
        let g = Geometry::new(&layout, blocks).with_copies(o.metadata_copies);
        if g.usable() >= 4 * MIN_SEGMENTS || segment_blocks == MIN_SEGMENT_BLOCKS {
            break (layout, g);
        }
        segment_blocks /= 2;
    };
    if g.usable() < MIN_SEGMENTS {
        let least = (u64::from((MIN_SEGMENTS + g.reserved) * segment_blocks) + FAR_BLOCKS) << BLOCK_SHIFT;
        return Err(StoreError::Invalid(format!("a volume needs at least {} KiB", least >> 10)));
    }
    Ok((layout, g))
}

/// Returns the number of mlogs that the volume is made with, as its superblock will have it.
fn mlogs(o: &FormatOptions) -> Result<u32> {
    match o.mlogs {
        0 => Ok(std::thread::available_parallelism().map_or(1, |n| n.get().min(16) as u32)),
        n @ 1..=MAX_MLOGS => Ok(n),
        n => Err(StoreError::Invalid(format!("{n} mlogs; a volume has 1 to {MAX_MLOGS}"))),
    }
}

impl FormatOptions {
    /// Returns how many mlogs a volume on devices of these sizes in bytes will be used with: what
    /// was asked for, or fewer on small ones. An error if it cannot be made on them.
    pub fn mlogs_on(&self, sizes: &[u64]) -> Result<usize> {
        let blocks: Vec<u64> = sizes.iter().map(|s| volume_blocks(*s)).collect();
        let (_, g) = geometry(self, &blocks)?;
        let wanted = mlogs(self)?;
        let fitting = crate::log::space::fitting_mlogs(wanted as usize, g.usable());
        debug_assert!((1..=wanted as usize).contains(&fitting), "{fitting} mlogs instead of {wanted}");
        Ok(fitting)
    }
}

/// Makes a volume: see [`crate::Store::format`].
pub(crate) fn format(devices: &[Arc<dyn Device>], o: &FormatOptions) -> Result<()> {
    if o.label.len() > LABEL_MAX {
        return Err(StoreError::Invalid(format!("the label is longer than {LABEL_MAX} bytes")));
    }
    let blocks: Vec<u64> = devices.iter().map(|d| volume_blocks(d.size())).collect();
    let (layout, g) = geometry(o, &blocks)?;
    let mlogs = mlogs(o)?;
    if !o.force {
        devices.iter().try_for_each(|d| refuse_volume(&**d))?;
    }
    let now = || lanefs_sync::coarse_realtime_ns();
    let hash_key = match o.hash_key {
        Some(k) => k,
        None => {
            let [a, b, c, d, e, f, g, h, rest @ ..] = random::<16>()?;
            [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest)]
        }
    };
    let volume = match o.uuid {
        Some(u) => Uuid(u),
        None => Uuid::from_random(random()?),
    };
    let mut entries = Vec::new();
    for (i, b) in blocks.iter().enumerate() {
        // A device's identity follows from the volume's, so that volumes made with a given identity
        // are the same.
        let mut id = volume.0;
        id[15] ^= i as u8 + 1;
        id[14] ^= 0xd5;
        entries.push(DeviceEntry { uuid: Uuid::from_random(id), blocks: *b });
    }
    // The same on every device: it is part of what makes them one volume.
    let created = o.time.unwrap_or_else(now);
    let superblock = |i: usize| Superblock {
        features_compatible: 0,
        features_read_compatible: FAR_COPIES | if o.metadata_copies == 2 { TWO_COPIES } else { 0 },
        features_incompatible: PREALLOCATION | if o.packed_inodes { PACKED_INODES } else { 0 },
        volume,
        device_index: i as u8,
        devices: entries.clone(),
        layout,
        mlogs,
        label: o.label.clone(),
        hash_key,
        created,
    };
    let encoded = devices.iter().enumerate().map(|(i, d)| encode_copies(&**d, &superblock(i)));
    let superblocks = encoded.collect::<Result<Vec<_>>>()?;
    // The commit point of making a volume: nothing may be found before all else is written.
    assert!(superblocks.iter().all(|s| s.last().is_some_and(|(at, _)| *at == 0)), "block 0 is not the last");
    debug_assert!(
        superblocks.iter().zip(devices).all(|(s, d)| s.iter().all(|(at, _)| *at < d.size() >> BLOCK_SHIFT)),
        "a copy of the superblock lies behind its device's end"
    );
    // First take away what could make an old volume look alive, then write the new one, its
    // superblock last.
    take_away(devices, 0, &superblock(0))?;
    make_tree(devices, superblock(0), g, o)?;
    for (d, places) in devices.iter().zip(superblocks) {
        for (at, b) in places {
            d.write(&[crate::device::WriteReq { offset: at << BLOCK_SHIFT, data: &b.0 }])?;
        }
        d.flush()?;
    }
    Ok(())
}

/// Writes the first checkpoint: a tree with nothing but the root directory.
fn make_tree(
    devices: &[Arc<dyn Device>],
    superblock: Superblock,
    geometry: Geometry,
    o: &FormatOptions,
) -> Result<()> {
    let segments = SegmentTable::new(geometry);
    segments.fill_pools(|_| false);
    let usage = UsageTable::new(segments.len());
    let slot =
        Slot { volume: superblock.volume, next_seq: 1, next_chunk: FIRST_INO.chunk() + 1, ..Slot::default() };
    let engine = Engine::new(Parts {
        devices: devices.to_vec(),
        superblock,
        segments,
        inodes: InodeTable::new(),
        maintenance: Maintenance::new(slot, 1, usage),
        options: OpenOptions::default(),
    });
    let time = o.time.unwrap_or_else(lanefs_sync::coarse_realtime_ns);
    let attrs = Attrs {
        mode: libc::S_IFDIR | o.mode & 0o7777,
        uid: o.uid,
        gid: o.gid,
        flags: 0,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        generation: 0,
    };
    let root = engine.inodes.get_or_new(ROOT_INO, &attrs, &engine.log.io)?;
    {
        let mut i = root.lock();
        i.folded = true;
        i.state.set_parent(ROOT_INO);
        i.state.set_names(1);
        engine.inodes.cache.list_dirty(&root, &mut i);
    }
    // Relaxed: nobody else has the volume.
    engine.totals.inodes.store(1, Ordering::Relaxed);
    debug_assert_eq!(engine.log.segments.total_live(), 0, "a new volume holds something");
    engine.close()?;
    debug_assert!(engine.maintenance.lock().slot.clean, "a new volume is as if it had been closed");
    Ok(())
}
