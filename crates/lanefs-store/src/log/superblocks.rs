//! Superblocks of devices: reading one, finding one of a damaged device, putting a volume's devices
//! in order, and taking away what older volumes have left.
//!
//! 1. What a volume is, its devices and their sizes, the superblock of its first device says. The
//!    others may be those of a change that was cut short before or behind its commit point
//!    (`change`): they have to be of the same volume, and tell of a device only which one it is.
//! 2. Of the copies of one superblock the first one counts, and where that is lost the largest: a
//!    copy never says less than what is in force. So whichever is believed, what the volume refers
//!    to is there.
//! 3. Whoever opens a volume for writing first writes copies anew that say something else, or that
//!    a power loss has torn ([`write_again`]).

use crate::device::{Device, ReadReq, WriteReq};
use crate::error::{Result, StoreError};
use lanefs_format::superblock::{
    FAR_BLOCKS, SUPERBLOCK_MAGIC, Superblock, SuperblockError, UnverifiedSuperblock, copy_candidates,
};
use lanefs_format::{BLOCK_SHIFT, BLOCK_SIZE, Block};
use std::io::Read;
use std::sync::Arc;
use zerocopy::IntoBytes;

pub(crate) fn read_block(d: &dyn Device, block: u64) -> Result<Box<Block>> {
    let mut b = Block::zeroed();
    d.read(&mut [ReadReq { offset: block << BLOCK_SHIFT, data: &mut b.0 }])?;
    Ok(b)
}

/// Returns a device's superblock, from the copy in its reserved segments if need be: the youngest,
/// if an older volume left one too.
pub(crate) fn read_superblock(d: &dyn Device) -> Result<Superblock> {
    let blocks = d.size() >> BLOCK_SHIFT;
    if blocks == 0 {
        return Err(StoreError::NotAVolume { device: d.name().into(), why: "the device is empty".into() });
    }
    let first = read_block(d, 0);
    let is_empty = first.as_ref().is_ok_and(|b| b.0.iter().all(|byte| *byte == 0));
    let e = match first.map(|b| UnverifiedSuperblock(b).verify(0, blocks)) {
        Ok(Ok(sb)) => return Ok(sb),
        Ok(Err(e)) if !e.try_copy() => return Err(StoreError::superblock(d.name(), &e)),
        Ok(Err(_)) if is_empty => {
            let why = "not a LaneFS volume: its beginning is empty; if it was one, `lanefs fsck --repair` \
                       looks for copies, else `lanefs mkfs` makes one";
            StoreError::NotAVolume { device: d.name().into(), why: why.into() }
        }
        Ok(Err(e)) => StoreError::superblock(d.name(), &e),
        Err(e) => e, // The copy is there for this too.
    };
    let near = copy_candidates(blocks).filter_map(|at| superblock_at(d, at));
    if let Some(sb) = near.max_by_key(age) {
        // A copy that a change has left which was to make it smaller, and was cut short, may lie
        // where near ones do.
        let far = superblock_at(d, blocks.saturating_sub(FAR_BLOCKS));
        return Ok(far.filter(|far| far.is_of_same_volume(&sb) && age(far) > age(&sb)).unwrap_or(sb));
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

/// The fewest segments a volume can have.
pub(crate) const MIN_SEGMENTS: u32 = 16;

/// Why a device is refused that has [`lanefs_format::superblock::MAX_DEVICE_BYTES`] and more.
pub(crate) const TOO_LARGE: &str = "a device of a volume has less than 64 PiB; choose a smaller size";

/// Returns random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut b = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut b))
        .map_err(|e| StoreError::Invalid(format!("no randomness from /dev/urandom: {e}")))?;
    Ok(b)
}

/// Returns all copies of a device's superblock, each with its block: the one in block 0 last.
pub(crate) fn encode_copies(d: &dyn Device, sb: &Superblock) -> Result<Vec<(u64, Box<Block>)>> {
    let encode = |at| Ok((at, sb.encode(at).map_err(|e| StoreError::superblock(d.name(), &e))?));
    sb.places().into_iter().rev().map(encode).collect()
}

/// Returns an error if a device holds a volume.
pub(crate) fn refuse_volume(d: &dyn Device) -> Result<()> {
    let old = d.size() > 0
        && (UnverifiedSuperblock(read_block(d, 0)?).verify(0, u64::MAX >> 20).is_ok()
            || read_superblock(d).is_ok());
    if !old {
        return Ok(());
    }
    let why = "holds a LaneFS volume; use --force to overwrite it".into();
    Err(StoreError::NotAVolume { device: d.name().into(), why })
}

/// Returns whether a volume may be found on a device: whether one of its superblocks is, or it
/// cannot be read.
pub(crate) fn may_hold_volume(d: &dyn Device) -> bool {
    let blocks = d.size() >> BLOCK_SHIFT;
    debug_assert!(blocks > 0, "a device of no blocks");
    refuse_volume(d).is_err() || superblock_at(d, blocks.saturating_sub(FAR_BLOCKS)).is_some()
}

/// Overwrites what could make older volumes look alive. In this order, with a flush between, a
/// crash leaves the last one whole or none: copies that volumes before it left where it has none of
/// its own, its superblocks, and only then the slots. `first`: the index that the first of these
/// devices has in the new volume.
pub(crate) fn take_away(devices: &[Arc<dyn Device>], first: usize, new: &Superblock) -> Result<()> {
    let zero = Block::zeroed();
    let wipe = |d: &dyn Device, blocks: &[u64]| -> Result<()> {
        let reqs: Vec<_> =
            blocks.iter().map(|b| WriteReq { offset: b << BLOCK_SHIFT, data: &zero.0 }).collect();
        d.write(&reqs)?;
        d.flush()
    };
    let slots_of = |sb: &Superblock, d: usize| -> Vec<u64> {
        let own = (0..2).flat_map(|i| sb.slot_places(i)).filter(|_| d == 0);
        own.chain((0..2).map(|i| sb.stamp_place(d, i))).map(|a| a.block()).collect()
    };
    let mut slots = Vec::new();
    for (i, d) in (first..).zip(devices) {
        let blocks = d.size() >> BLOCK_SHIFT;
        let new = Superblock { device_index: i as u8, ..new.clone() };
        let last = read_superblock(&**d).ok();
        let mut of_last = new.places();
        let mut here = slots_of(&new, i);
        if let Some(l) = &last {
            of_last.extend(l.places());
            here.extend(slots_of(l, usize::from(l.device_index)));
        }
        here.retain(|s| *s < blocks);
        here.sort_unstable();
        here.dedup();
        debug_assert!(!here.contains(&0), "the superblock of {} is wiped before the slots", d.name());
        slots.push(here);
        let mut older = Vec::new();
        let far = blocks.checked_sub(FAR_BLOCKS);
        for at in copy_candidates(blocks).chain(far).filter(|at| !of_last.contains(at)) {
            // What cannot be read cannot be found by others either.
            if read_block(&**d, at).is_ok_and(|b| b.0.starts_with(&SUPERBLOCK_MAGIC)) {
                older.push(at);
            }
        }
        if !older.is_empty() {
            wipe(&**d, &older)?;
        }
        wipe(&**d, &of_last)?;
    }
    devices.iter().zip(slots).try_for_each(|(d, slots)| wipe(&**d, &slots))
}

/// Orders superblocks of one device: of one volume the larger is believed (2).
fn age(sb: &Superblock) -> (i64, usize, u64) {
    (sb.created, sb.devices.len(), sb.devices.iter().map(|d| d.blocks).sum())
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
        Err(e @ (StoreError::NotAVolume { .. } | StoreError::TooShort { .. })) if blocks > 0 => e,
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
        let whole = d.read(&mut [ReadReq { offset: at << BLOCK_SHIFT, data }]).is_ok();
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
        if a.is_of_same_volume(b) && a.device().uuid == b.device().uuid {
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
    let not = |d: &Arc<dyn Device>, why: String| Err(StoreError::NotAVolume { device: d.name().into(), why });
    if let Some((_, d)) = found.iter().find(|f| !first.is_of_same_volume(&f.0)) {
        return not(d, format!("belongs to another volume than {}", d0.name()));
    }
    if first.device_index != 0 {
        let (why, uuid) = ("device 0 of the volume is missing; give it too", first.devices[0].uuid);
        return not(d0, format!("is device {} of the volume; {why} ({uuid})", first.device_index));
    }
    let (sb, d0) = (first.clone(), d0.clone());
    debug_assert_eq!(sb.device_index, 0, "the volume's superblock is that of the first device");
    // What a device is called is what it is: its place may be that of another by now (1).
    let members: Vec<Option<Arc<dyn Device>>> = sb
        .devices
        .iter()
        .map(|entry| found.iter().find(|(own, _)| own.device().uuid == entry.uuid).map(|f| f.1.clone()))
        .collect();
    if let Some((_, d)) = found.iter().find(|(own, _)| sb.devices.iter().all(|e| e.uuid != own.device().uuid))
    {
        let first = d0.name();
        return not(
            d,
            format!(
                "is no device of the volume of {first}: it was removed or replaced, or was to come to it and that was cut short. \
                 Leave it out; `lanefs device add --force` adds it"
            ),
        );
    }
    let all = sb.devices.len();
    let mut devices = Vec::with_capacity(all);
    for (i, (entry, member)) in sb.devices.iter().zip(members).enumerate() {
        let Some(d) = member else {
            let uuid = entry.uuid;
            return not(
                &d0,
                format!("the volume has {all} devices; device {i} is missing ({uuid}): give its image too"),
            );
        };
        let blocks = d.size() >> BLOCK_SHIFT;
        if blocks < entry.blocks {
            let cut = SuperblockError::Truncated { found: blocks, expected: entry.blocks };
            return Err(StoreError::superblock(d.name(), &cut));
        }
        devices.push(d);
    }
    Ok((devices, sb))
}

/// Writes those copies of a volume's superblocks again that say something else than what is in
/// force (3), or are damaged: those of a change that was cut short. A device of which block 0 does
/// not even say that it is of this volume is left to a repair: it may be somebody else's by now.
/// Returns how many were written.
pub(crate) fn write_again(devices: &[Arc<dyn Device>], first: &Superblock) -> Result<usize> {
    let in_force = devices.first().and_then(|d| superblock_at(&**d, 0));
    if in_force.is_some_and(|sb| sb != *first) {
        // Read wrong once, a copy was believed in its place: the next one to open does it.
        return Ok(0);
    }
    let mut written = 0;
    for (i, d) in devices.iter().enumerate().rev() {
        let sb = Superblock { device_index: i as u8, ..first.clone() };
        let claimed = read_block(&**d, 0).ok().and_then(|b| UnverifiedSuperblock(b).claims());
        let is_ours = claimed == Some(sb.volume);
        let blocks = d.size() >> BLOCK_SHIFT;
        // `None`: it cannot be read, which is damage of another kind.
        let copy_at = |at| Some(UnverifiedSuperblock(read_block(&**d, at).ok()?).verify(at, blocks).ok());
        let is_other = |at: &u64| match copy_at(*at) {
            Some(Some(copy)) => copy != sb,
            // Not what was read wrong once.
            Some(None) => is_ours && copy_at(*at) == Some(None),
            None => false,
        };
        let others: Vec<u64> = sb.places().into_iter().filter(is_other).collect();
        for at in &others {
            let block = sb.encode(*at).map_err(|e| StoreError::superblock(d.name(), &e))?;
            d.write(&[WriteReq { offset: at << BLOCK_SHIFT, data: &block.0 }])?;
        }
        if !others.is_empty() {
            d.flush()?;
            tracing::info!("{}: superblocks {others:?} of a change that was cut short", d.name());
        }
        written += others.len();
    }
    Ok(written)
}
