//! Superblocks of devices: reading one, finding one of a damaged device, and putting a volume's
//! devices in order.

use crate::device::Device;
use crate::error::{Result, StoreError};
use lanefs_format::superblock::{
    FAR_BLOCKS, SUPERBLOCK_MAGIC, Superblock, UnverifiedSuperblock, copy_candidates,
};
use lanefs_format::{BLOCK_SHIFT, BLOCK_SIZE, Block};
use std::sync::Arc;
use zerocopy::IntoBytes;

pub(crate) fn read_block(d: &dyn Device, block: u64) -> Result<Box<Block>> {
    let mut b = Block::zeroed();
    d.read(&mut [crate::device::ReadReq { offset: block << BLOCK_SHIFT, data: &mut b.0 }])?;
    Ok(b)
}

/// Returns a device's superblock, from the copy in its reserved segments if need be: the youngest,
/// if an older volume left one too.
pub(crate) fn read_superblock(d: &dyn Device) -> Result<Superblock> {
    let blocks = d.size() >> BLOCK_SHIFT;
    if blocks == 0 {
        return Err(StoreError::NotAVolume { device: d.name().into(), why: "the device is empty".into() });
    }
    let e = match read_block(d, 0).map(|b| UnverifiedSuperblock(b).verify(0, blocks)) {
        Ok(Ok(sb)) => return Ok(sb),
        Ok(Err(e)) if !e.try_copy() => return Err(StoreError::superblock(d.name(), &e)),
        Ok(Err(e)) => StoreError::superblock(d.name(), &e),
        Err(e) => e, // The copy is there for this too.
    };
    let near = copy_candidates(blocks).filter_map(|at| superblock_at(d, at));
    if let Some(sb) = near.max_by_key(age) {
        return Ok(sb);
    }
    // The last copy alone is no reason to write: what is at the start may be somebody else's by
    // now. A repair is asked for by name.
    match superblock_at(d, blocks.saturating_sub(FAR_BLOCKS)) {
        Some(sb) => {
            let why = format!(
                "the superblock of volume {} is overwritten, but for the copy at the device's end; \
                 `lanefs fsck --repair` restores it, if the volume is still the one that is wanted here",
                sb.volume
            );
            Err(StoreError::NotAVolume { device: d.name().into(), why })
        }
        None => Err(e),
    }
}

/// Orders superblocks of one device by the time they are of: of one volume the larger is the
/// younger.
fn age(sb: &Superblock) -> (i64, u64) {
    (sb.created, sb.device().blocks)
}

fn superblock_at(d: &dyn Device, at: u64) -> Option<Superblock> {
    UnverifiedSuperblock(read_block(d, at).ok()?).verify(at, d.size() >> BLOCK_SHIFT).ok()
}

/// Does as [`read_superblock`], but where the usual places have none takes the copy at the end,
/// wherever the end was when the volume was made. `progress` gets how many blocks of how many were
/// looked at.
pub(crate) fn find_superblock(d: &dyn Device, progress: &dyn Fn(u64, u64)) -> Result<Superblock> {
    let blocks = d.size() >> BLOCK_SHIFT;
    let e = match read_superblock(d) {
        Err(e @ StoreError::NotAVolume { .. }) if blocks > 0 => e,
        other => return other,
    };
    if let Some(sb) = superblock_at(d, blocks.saturating_sub(FAR_BLOCKS)) {
        return Ok(sb);
    }
    // What a newer LaneFS made, or is cut off, has a superblock that says so.
    let first = read_block(d, 0).map(|b| UnverifiedSuperblock(b).verify(0, blocks));
    if matches!(&first, Ok(Err(e)) if !e.try_copy()) {
        return Err(e);
    }
    const AT_ONCE: usize = 256;
    let mut buffer = vec![Block([0; BLOCK_SIZE]); AT_ONCE];
    let mut found: Option<Superblock> = None;
    let mut at = 0;
    while at < blocks {
        let n = (blocks - at).min(AT_ONCE as u64) as usize;
        let data = buffer[..n].as_mut_bytes();
        // One by one where some block cannot be read.
        let whole = d.read(&mut [crate::device::ReadReq { offset: at << BLOCK_SHIFT, data }]).is_ok();
        for (i, b) in buffer[..n].iter().enumerate() {
            if (!whole || b.0.starts_with(&SUPERBLOCK_MAGIC))
                && let Some(sb) = superblock_at(d, at + i as u64)
                && found.as_ref().is_none_or(|f| age(f) < age(&sb))
            {
                found = Some(sb);
            }
        }
        at += n as u64;
        debug_assert!(n > 0 && at <= blocks, "block {at} of {blocks}");
        progress(at, blocks);
    }
    found.ok_or_else(|| {
        let why = "no superblock and no copy of one is left anywhere on it: it holds no LaneFS volume, or not enough of one to be repaired";
        StoreError::NotAVolume { device: d.name().into(), why: why.into() }
    })
}

/// Returns the volume's devices in their order, and its superblock.
pub(crate) fn order_devices(devices: Vec<Arc<dyn Device>>) -> Result<(Vec<Arc<dyn Device>>, Superblock)> {
    order_by(devices, read_superblock)
}

/// Does as [`order_devices`], with another way to find the superblocks.
pub(crate) fn order_by(
    devices: Vec<Arc<dyn Device>>,
    superblock: impl Fn(&dyn Device) -> Result<Superblock>,
) -> Result<(Vec<Arc<dyn Device>>, Superblock)> {
    let mut found = Vec::new();
    for d in devices {
        let sb = superblock(&*d)?;
        found.push((sb, d));
    }
    found.sort_by_key(|f| f.0.device_index);
    for pair in found.windows(2) {
        let ((a, d), (b, other)) = (&pair[0], &pair[1]);
        if a.same_volume(b) && a.device_index == b.device_index {
            let why = match d.name() == other.name() {
                true => "was given twice".into(),
                false => format!("is the same device of the volume as {}: give one of the two", d.name()),
            };
            return Err(StoreError::NotAVolume { device: other.name().into(), why });
        }
    }
    let Some((first, d0)) = found.first() else {
        return Err(StoreError::Invalid("no device was given".into()));
    };
    for (i, (sb, d)) in found.iter().enumerate() {
        let why = if !first.same_volume(sb) {
            Some(format!("belongs to another volume than {}", d0.name()))
        } else if usize::from(sb.device_index) != i {
            Some(format!("is device {} of the volume; device {i} is missing", sb.device_index))
        } else {
            None
        };
        if let Some(why) = why {
            return Err(StoreError::NotAVolume { device: d.name().into(), why });
        }
    }
    if found.len() != first.devices.len() {
        let why = format!("the volume has {} devices, {} were given", first.devices.len(), found.len());
        return Err(StoreError::NotAVolume { device: d0.name().into(), why });
    }
    let sb = first.clone();
    debug_assert_eq!(sb.device_index, 0, "the volume's superblock is that of the first device");
    Ok((found.into_iter().map(|f| f.1).collect(), sb))
}
