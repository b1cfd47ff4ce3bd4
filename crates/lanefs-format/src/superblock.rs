//! The superblock: what a device belongs to and how it is divided. Written when the volume is made,
//! and again only when its label, its size or its devices change (`change`); never on the way of an
//! operation.
//!
//! Each device has three copies: in block 0, in the last block of its reserved segments (see
//! [`Layout`]), and behind the blocks that belong to the volume, at the device's end (older volumes
//! lack that one). All hold the same content but for the block number they are stored in, so that a
//! misdirected copy is noticed.
//!
//! [`UnverifiedSuperblock`] is bytes as a device gave them; only [`UnverifiedSuperblock::verify`]
//! makes a [`Superblock`] of them, and a `Superblock` that exists obeys every rule stated here.

use std::fmt;
use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::types::{BLOCK_SHIFT, BLOCK_SIZE, Block, BlockAddr};

/// The first eight bytes of a LaneFS device.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"LANEFS\0\x01";
/// The version of the format this code reads and writes.
pub const FORMAT_VERSION: u32 = 2;
/// The most devices a volume has.
pub const MAX_DEVICES: usize = 64;
/// The fewest blocks in a segment.
pub const MIN_SEGMENT_BLOCKS: u32 = 16;
/// The most blocks in a segment, and the usual number: 2 MiB.
pub const MAX_SEGMENT_BLOCKS: u32 = 512;
/// The most mlogs a volume may be made with.
pub const MAX_MLOGS: u32 = 128;
/// The longest label, in bytes of UTF-8.
pub const LABEL_MAX: usize = 64;
/// The most segments reserved at the start of a device.
pub const MAX_RESERVED_SEGMENTS: u32 = 16;
/// Compatible features known: an unknown one changes nothing for this code.
pub const FEATURES_COMPATIBLE: u64 = 0;
/// The superblocks and the slots have copies behind the blocks of the volume, and the slots' places
/// on other devices than the first hold stamps. Who does not know it would leave them as they were
/// while the volume changes.
pub const FAR_COPIES: u64 = 1;
/// The blocks of the tree lie twice on the devices. Who does not know it would write them once.
pub const TWO_COPIES: u64 = 2;
/// Space is kept for preallocated pages: inodes and slots count those that have no block. Who does
/// not know it can read none of these inodes.
pub const PREALLOCATION: u64 = 1;
/// Small inodes share blocks, and the entries of the inode table tell the place in the block. Who
/// does not know it can read none of these inodes.
pub const PACKED_INODES: u64 = 2;
/// Blocks at the end of a device that hold these copies: of the superblock, and of each slot.
pub const FAR_BLOCKS: u64 = 3;
/// A device has fewer bytes than this, the copies at its end included.
pub const MAX_DEVICE_BYTES: u64 = 1 << 56;
/// Features known that only writers must know: with an unknown one the volume may still be read.
pub const FEATURES_READ_COMPATIBLE: u64 = FAR_COPIES | TWO_COPIES;
/// Incompatible features known: with an unknown one the volume cannot be opened.
pub const FEATURES_INCOMPATIBLE: u64 = PREALLOCATION | PACKED_INODES;

const _: () = assert!(MAX_DEVICES <= u64::BITS as usize, "a set of devices is a word");
const _: () = assert!(MIN_SEGMENT_BLOCKS.is_power_of_two() && MAX_SEGMENT_BLOCKS.is_power_of_two());
const _: () = assert!(FAR_COPIES & TWO_COPIES == 0, "each feature is a bit of its own");
const _: () = assert!(PREALLOCATION & PACKED_INODES == 0, "each feature is a bit of its own");

/// A volume's or device's identity: 128 bits, written like a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Returns a version 4 UUID of random bytes.
    pub const fn from_random(mut b: [u8; 16]) -> Uuid {
        b[6] = b[6] & 0x0f | 0x40;
        b[8] = b[8] & 0x3f | 0x80;
        debug_assert!(!Uuid(b).is_nil(), "its version alone is not zero");
        Uuid(b)
    }
    /// Returns whether all bits are zero.
    #[inline]
    pub const fn is_nil(self) -> bool {
        u128::from_le_bytes(self.0) == 0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            write!(f, "{}{b:02x}", if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The division of every device of a volume: segments of `segment_blocks`, of which the first
/// `reserved_segments` hold no log. In these, block 0 is the superblock, the slots follow (used on
/// device 0 only), and the last block is the superblock's copy. Blocks after the last whole segment
/// are unused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Blocks in a segment: a power of two from [`MIN_SEGMENT_BLOCKS`] to [`MAX_SEGMENT_BLOCKS`].
    pub segment_blocks: u32,
    /// Segments at the start of each device that hold no log.
    pub reserved_segments: u32,
    /// Blocks in each of the two slots.
    pub slot_blocks: u32,
    /// The first block of each slot, on device 0.
    pub slots: [u64; 2],
}

impl Layout {
    /// Returns the layout of a new volume; `None` if `segment_blocks` is not allowed or
    /// `slot_blocks` is zero or too large.
    pub const fn new(segment_blocks: u32, slot_blocks: u32) -> Option<Layout> {
        if !segment_blocks.is_power_of_two()
            || segment_blocks < MIN_SEGMENT_BLOCKS
            || segment_blocks > MAX_SEGMENT_BLOCKS
            || slot_blocks == 0
            || slot_blocks > MAX_SEGMENT_BLOCKS
        {
            return None;
        }
        let reserved_segments = (2 + 2 * slot_blocks).div_ceil(segment_blocks);
        if reserved_segments > MAX_RESERVED_SEGMENTS {
            return None;
        }
        let slots = [1, 1 + slot_blocks as u64];
        let layout = Layout { segment_blocks, reserved_segments, slot_blocks, slots };
        debug_assert!(
            slots[1] + slot_blocks as u64 <= layout.copy_block(),
            "the slots lie before the superblock's copy"
        );
        Some(layout)
    }

    /// Returns how many blocks at the start of each device hold no log.
    #[inline]
    pub const fn reserved_blocks(&self) -> u64 {
        self.reserved_segments as u64 * self.segment_blocks as u64
    }
    /// Returns the block of the superblock's copy, on every device.
    #[inline]
    pub const fn copy_block(&self) -> u64 {
        debug_assert!(self.reserved_blocks() > 0, "the copy lies in a reserved segment");
        self.reserved_blocks() - 1
    }
    /// Returns the first block of slot `i` (0 or 1).
    #[inline]
    pub const fn slot_addr(&self, i: usize) -> BlockAddr {
        BlockAddr::new(0, self.slots[i])
    }
    /// Returns how many whole segments a device of `blocks` blocks has, the reserved ones included.
    #[inline]
    pub const fn segments(&self, blocks: u64) -> u64 {
        blocks / self.segment_blocks as u64
    }
    /// Returns the segment that `block` lies in.
    #[inline]
    pub const fn segment_of(&self, block: u64) -> u64 {
        block / self.segment_blocks as u64
    }
    /// Returns the first block of a segment.
    #[inline]
    pub const fn first_block(&self, segment: u64) -> u64 {
        segment * self.segment_blocks as u64
    }

    /// Checks the rules that a layout read from a device must obey: slots inside the reserved
    /// segments, apart from each other and from both superblocks.
    fn check(&self) -> Result<(), &'static str> {
        let n = self.segment_blocks;
        if !n.is_power_of_two() || !(MIN_SEGMENT_BLOCKS..=MAX_SEGMENT_BLOCKS).contains(&n) {
            return Err("segment size");
        }
        if !(1..=MAX_RESERVED_SEGMENTS).contains(&self.reserved_segments) {
            return Err("number of reserved segments");
        }
        let [a, b] = self.slots;
        let len = u64::from(self.slot_blocks);
        let last = self.copy_block();
        let inside = |s: u64| s >= 1 && s <= last && len <= last - s;
        if len == 0 || !inside(a) || !inside(b) || a.abs_diff(b) < len {
            return Err("place of the slots");
        }
        Ok(())
    }
}

/// One device of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceEntry {
    /// Its identity; differs from every other's.
    pub uuid: Uuid,
    /// Its size in blocks when the volume was made or last changed its size.
    pub blocks: u64,
}

/// The content of a superblock, verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Features that change nothing for code that does not know them.
    pub features_compatible: u64,
    /// Features that only writers must know.
    pub features_read_compatible: u64,
    /// Features without which the volume cannot be understood.
    pub features_incompatible: u64,
    /// The volume's identity, the same on all its devices.
    pub volume: Uuid,
    /// Which of `devices` this one is.
    pub device_index: u8,
    /// All devices of the volume, in the order of [`BlockAddr::device`].
    pub devices: Vec<DeviceEntry>,
    /// The division of each device.
    pub layout: Layout,
    /// The number of mlogs a mount uses unless its options give another.
    pub mlogs: u32,
    /// A name for people; may be empty.
    pub label: String,
    /// The key of the hash that makes cookies of names.
    pub hash_key: [u64; 2],
    /// When the volume was made: nanoseconds since 1970.
    pub created: i64,
}

/// All but the key of the hash: messages go where that must not.
impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Superblock")
            .field("features_compatible", &self.features_compatible)
            .field("features_read_compatible", &self.features_read_compatible)
            .field("features_incompatible", &self.features_incompatible)
            .field("volume", &self.volume)
            .field("device_index", &self.device_index)
            .field("devices", &self.devices)
            .field("layout", &self.layout)
            .field("mlogs", &self.mlogs)
            .field("label", &self.label)
            .field("created", &self.created)
            .finish_non_exhaustive()
    }
}

/// The reason why bytes are not a superblock that this code can use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the message of each variant names its fields
pub enum SuperblockError {
    /// No LaneFS volume, or its first block is overwritten.
    #[error(
        "not a LaneFS volume (no magic number in the superblock); if it was one, `lanefs fsck --repair` looks for copies"
    )]
    NoMagic,
    /// Damaged.
    #[error(
        "the superblock in block {block} is damaged (its checksum is {found:#010x}, its bytes sum to {sum:#010x}); run `lanefs fsck --repair`"
    )]
    Checksum { block: u64, found: u32, sum: u32 },
    /// A copy that belongs elsewhere.
    #[error("the superblock in block {block} was written for block {meant}; run `lanefs fsck --repair`")]
    Misplaced { block: u64, meant: u64 },
    /// Made by a newer LaneFS, or by an older one with another format.
    #[error(
        "format version {found} is not known to this LaneFS (it knows {FORMAT_VERSION}); use {}", other(.found)
    )]
    Version { found: u32 },
    /// Uses features this code does not know.
    #[error("unknown incompatible features {0:#x}; use a newer LaneFS")]
    Features(u64),
    /// A field contradicts the format.
    #[error("impossible {0} in the superblock; run `lanefs fsck --repair`")]
    Field(&'static str),
    /// The device is smaller than the volume knows it.
    #[error(
        "the device has {found} blocks but the volume was made with {expected}; restore the device's full size"
    )]
    Truncated { found: u64, expected: u64 },
}

/// Names the LaneFS that can read a volume of this version.
fn other(version: &u32) -> &'static str {
    match *version > FORMAT_VERSION {
        true => "a newer one",
        false => "the one that made it, copy the files out and make the volume anew",
    }
}

impl SuperblockError {
    /// Returns whether the other copy may still be good.
    pub fn try_copy(&self) -> bool {
        !matches!(
            self,
            SuperblockError::Version { .. }
                | SuperblockError::Features(_)
                | SuperblockError::Truncated { .. }
        )
    }
}

/// A device's entry as stored.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawDevice {
    uuid: [u8; 16],
    blocks: U64,
    zero: [u8; 8],
}

/// The superblock as stored.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    block_size: U32,
    features_compatible: U64,
    features_read_compatible: U64,
    features_incompatible: U64,
    own_block: U64,
    volume: [u8; 16],
    hash_key: [U64; 2],
    created: I64,
    device_index: U32,
    device_count: U32,
    segment_blocks: U32,
    reserved_segments: U32,
    slot_blocks: U32,
    mlogs: U32,
    slots: [U64; 2],
    label: [u8; LABEL_MAX],
    zero_a: [u8; 1024 - 128 - LABEL_MAX],
    devices: [RawDevice; MAX_DEVICES],
    zero_b: [u8; 4092 - 1024 - 32 * MAX_DEVICES],
    crc: U32,
}

const _: () = {
    assert!(size_of::<RawDevice>() == 32);
    assert!(size_of::<Raw>() == BLOCK_SIZE);
    assert!(offset_of!(Raw, own_block) == 40);
    assert!(offset_of!(Raw, volume) == 48);
    assert!(offset_of!(Raw, hash_key) == 64);
    assert!(offset_of!(Raw, created) == 80);
    assert!(offset_of!(Raw, device_index) == 88);
    assert!(offset_of!(Raw, segment_blocks) == 96);
    assert!(offset_of!(Raw, slots) == 112);
    assert!(offset_of!(Raw, label) == 128);
    assert!(offset_of!(Raw, zero_a) == 192);
    assert!(offset_of!(Raw, devices) == 1024);
    assert!(offset_of!(Raw, crc) == 4092);
};

/// Returns the checksum of a superblock: the CRC32C of all bytes before it.
fn sum(block: &Block) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block.0[..BLOCK_SIZE - 4]) as u32
}

impl Superblock {
    /// Returns whether there are copies at the ends of the devices.
    #[inline]
    pub fn has_far_copies(&self) -> bool {
        self.features_read_compatible & FAR_COPIES != 0
    }

    /// Returns how many blocks at the end of a device do not belong to the volume.
    #[inline]
    pub fn far_blocks(&self) -> u64 {
        if self.has_far_copies() { FAR_BLOCKS } else { 0 }
    }

    /// Returns whether space can be kept for preallocated pages.
    pub fn has_preallocation(&self) -> bool {
        self.features_incompatible & PREALLOCATION != 0
    }

    /// Returns whether small inodes share blocks.
    pub fn has_packed_inodes(&self) -> bool {
        self.features_incompatible & PACKED_INODES != 0
    }

    /// Returns how often the blocks of the tree lie on the devices: once or twice.
    #[inline]
    pub fn metadata_copies(&self) -> u32 {
        if self.features_read_compatible & TWO_COPIES != 0 { 2 } else { 1 }
    }

    /// Returns the blocks that hold this superblock, on its own device.
    pub fn places(&self) -> Vec<u64> {
        let far = self.has_far_copies().then(|| self.device().blocks);
        [0, self.layout.copy_block()].into_iter().chain(far).collect()
    }

    /// Returns the places of slot `i` (0 or 1) and of its copy.
    pub fn slot_places(&self, i: usize) -> Vec<BlockAddr> {
        let far = self.devices.first().filter(|_| self.has_far_copies());
        let far = far.map(|d| BlockAddr::new(0, d.blocks + 1 + i as u64));
        std::iter::once(self.layout.slot_addr(i)).chain(far).collect()
    }

    /// Returns the place of stamp `i` (0 or 1) of a device other than the first.
    pub fn stamp_place(&self, device: usize, i: usize) -> BlockAddr {
        debug_assert!(device < MAX_DEVICES, "device {device} of a volume");
        BlockAddr::new(device as u8, self.layout.slots[i])
    }

    /// Returns the bytes of the copy that is stored in `own_block`, one of [`Superblock::places`].
    ///
    /// # Errors
    /// Whatever would not verify: nothing is encoded that [`UnverifiedSuperblock::verify`] would
    /// refuse.
    pub fn encode(&self, own_block: u64) -> Result<Box<Block>, SuperblockError> {
        self.check()?;
        if !self.places().contains(&own_block) {
            return Err(SuperblockError::Field("place of the superblock"));
        }
        let mut devices = [RawDevice { uuid: [0; 16], blocks: U64::ZERO, zero: [0; 8] }; MAX_DEVICES];
        for (raw, d) in devices.iter_mut().zip(&self.devices) {
            raw.uuid = d.uuid.0;
            raw.blocks = d.blocks.into();
        }
        let mut label = [0; LABEL_MAX];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        let raw = Raw {
            magic: SUPERBLOCK_MAGIC,
            version: FORMAT_VERSION.into(),
            block_size: (BLOCK_SIZE as u32).into(),
            features_compatible: self.features_compatible.into(),
            features_read_compatible: self.features_read_compatible.into(),
            features_incompatible: self.features_incompatible.into(),
            own_block: own_block.into(),
            volume: self.volume.0,
            hash_key: self.hash_key.map(U64::new),
            created: self.created.into(),
            device_index: u32::from(self.device_index).into(),
            device_count: (self.devices.len() as u32).into(),
            segment_blocks: self.layout.segment_blocks.into(),
            reserved_segments: self.layout.reserved_segments.into(),
            slot_blocks: self.layout.slot_blocks.into(),
            mlogs: self.mlogs.into(),
            slots: self.layout.slots.map(U64::new),
            label,
            zero_a: [0; _],
            devices,
            zero_b: [0; _],
            crc: U32::ZERO,
        };
        let mut block = Block::zeroed();
        block.0.copy_from_slice(raw.as_bytes());
        let crc = sum(&block);
        block.0[BLOCK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(
            UnverifiedSuperblock(block.clone()).verify(own_block, u64::MAX).as_ref(),
            Ok(self),
            "what is written is what will be read"
        );
        Ok(block)
    }

    /// Returns the entry of this device.
    #[inline]
    pub fn device(&self) -> &DeviceEntry {
        &self.devices[usize::from(self.device_index)]
    }

    /// Returns whether unknown features allow this code only to read the volume.
    #[inline]
    pub fn read_only(&self) -> bool {
        self.features_read_compatible & !FEATURES_READ_COMPATIBLE != 0
    }

    /// Returns whether `other`, found on another device, is of the same volume. Its label and its
    /// list of devices may be other ones: they are not changed at the same moment.
    pub fn is_of_same_volume(&self, other: &Superblock) -> bool {
        let here = Superblock {
            device_index: self.device_index,
            devices: self.devices.clone(),
            label: self.label.clone(),
            ..other.clone()
        };
        *self == here
    }

    fn check(&self) -> Result<(), SuperblockError> {
        let rule = |ok: bool, what| if ok { Ok(()) } else { Err(SuperblockError::Field(what)) };
        let unknown = self.features_incompatible & !FEATURES_INCOMPATIBLE;
        if unknown != 0 {
            return Err(SuperblockError::Features(unknown));
        }
        self.layout.check().map_err(SuperblockError::Field)?;
        rule(!self.volume.is_nil(), "volume identity")?;
        rule((1..=MAX_DEVICES).contains(&self.devices.len()), "number of devices")?;
        rule(usize::from(self.device_index) < self.devices.len(), "device index")?;
        rule((1..=MAX_MLOGS).contains(&self.mlogs), "number of mlogs")?;
        rule(self.label.len() <= LABEL_MAX && !self.label.chars().any(char::is_control), "label")?;
        for (i, d) in self.devices.iter().enumerate() {
            rule(!d.uuid.is_nil(), "device identity")?;
            rule(self.devices[..i].iter().all(|o| o.uuid != d.uuid), "device identity used twice")?;
            let segments = self.layout.segments(d.blocks);
            rule(
                d.blocks < (MAX_DEVICE_BYTES >> BLOCK_SHIFT) - FAR_BLOCKS
                    && segments > u64::from(self.layout.reserved_segments),
                "device size",
            )?;
        }
        Ok(())
    }
}

/// A block that may be a superblock.
#[derive(Clone, Debug)]
pub struct UnverifiedSuperblock(pub Box<Block>);

impl UnverifiedSuperblock {
    /// Returns the volume whose superblock this says it is, or was before it was damaged.
    pub fn claims(&self) -> Option<Uuid> {
        let raw = Raw::ref_from_bytes(&self.0.0).ok()?;
        (raw.magic == SUPERBLOCK_MAGIC).then_some(Uuid(raw.volume))
    }

    /// Checks everything: magic, checksum, version, features, every field, the block number it was
    /// read from, and that the device (of `device_blocks` blocks) is not smaller than is stated.
    pub fn verify(&self, own_block: u64, device_blocks: u64) -> Result<Superblock, SuperblockError> {
        let raw = Raw::ref_from_bytes(&self.0.0).map_err(|_| SuperblockError::NoMagic)?;
        if raw.magic != SUPERBLOCK_MAGIC {
            return Err(SuperblockError::NoMagic);
        }
        let sum = sum(&self.0);
        if raw.crc.get() != sum {
            return Err(SuperblockError::Checksum { block: own_block, found: raw.crc.get(), sum });
        }
        if raw.version.get() != FORMAT_VERSION {
            return Err(SuperblockError::Version { found: raw.version.get() });
        }
        let unknown = raw.features_incompatible.get() & !FEATURES_INCOMPATIBLE;
        if unknown != 0 {
            return Err(SuperblockError::Features(unknown));
        }
        let rule = |ok: bool, what| if ok { Ok(()) } else { Err(SuperblockError::Field(what)) };
        rule(raw.block_size.get() as usize == BLOCK_SIZE, "block size")?;
        let count = raw.device_count.get() as usize;
        rule((1..=MAX_DEVICES).contains(&count), "number of devices")?;
        let (used, unused) = raw.devices.split_at(count);
        rule(unused.iter().all(|d| d.as_bytes().iter().all(|&b| b == 0)), "unused device entry")?;
        let index = raw.device_index.get() as usize;
        rule(index < count, "device index")?;
        let text = raw.label.split(|&b| b == 0).next().unwrap_or_default();
        rule(raw.label[text.len()..].iter().all(|&b| b == 0), "label")?;
        let label = std::str::from_utf8(text).map_err(|_| SuperblockError::Field("label"))?;
        let sb = Superblock {
            features_compatible: raw.features_compatible.get(),
            features_read_compatible: raw.features_read_compatible.get(),
            features_incompatible: raw.features_incompatible.get(),
            volume: Uuid(raw.volume),
            device_index: index as u8,
            devices: used
                .iter()
                .map(|d| DeviceEntry { uuid: Uuid(d.uuid), blocks: d.blocks.get() })
                .collect(),
            layout: Layout {
                segment_blocks: raw.segment_blocks.get(),
                reserved_segments: raw.reserved_segments.get(),
                slot_blocks: raw.slot_blocks.get(),
                slots: raw.slots.map(U64::get),
            },
            mlogs: raw.mlogs.get(),
            label: label.into(),
            hash_key: raw.hash_key.map(U64::get),
            created: raw.created.get(),
        };
        sb.check()?;
        if raw.own_block.get() != own_block {
            return Err(SuperblockError::Misplaced { block: own_block, meant: raw.own_block.get() });
        }
        rule(sb.places().contains(&own_block), "place of the superblock")?;
        let expected = sb.device().blocks + sb.far_blocks();
        if device_blocks < expected {
            return Err(SuperblockError::Truncated { found: device_blocks, expected });
        }
        Ok(sb)
    }
}

/// Returns the blocks in which the copy may be, for when block 0 cannot be read: the last block of
/// each of the first segments, for every possible segment size.
pub fn copy_candidates(device_blocks: u64) -> impl Iterator<Item = u64> {
    let step = u64::from(MIN_SEGMENT_BLOCKS);
    let end = u64::from(MAX_SEGMENT_BLOCKS * MAX_RESERVED_SEGMENTS).min(device_blocks);
    (step - 1..end).step_by(step as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Superblock {
        let layout = Layout::new(16, 9).unwrap();
        let entry = |i: u8| DeviceEntry { uuid: Uuid::from_random([i; 16]), blocks: 1000 + u64::from(i) };
        Superblock {
            features_compatible: 1 << 63,
            features_read_compatible: 8,
            features_incompatible: 0,
            volume: Uuid::from_random([7; 16]),
            device_index: 1,
            devices: vec![entry(1), entry(2), entry(3)],
            layout,
            mlogs: 4,
            label: "gr\u{fc}n".into(),
            hash_key: [1, u64::MAX],
            created: -1,
        }
    }

    /// Changes one byte and writes the checksum anew, so that the field checks are reached.
    fn damaged(sb: &Superblock, at: usize, to: u8) -> UnverifiedSuperblock {
        let mut b = sb.encode(0).unwrap();
        b.0[at] = to;
        let crc = sum(&b);
        b.0[4092..].copy_from_slice(&crc.to_le_bytes());
        UnverifiedSuperblock(b)
    }

    #[test]
    fn both_copies_are_read_back() {
        let sb = sample();
        assert_eq!(sb.layout.reserved_segments, 2);
        assert_eq!(sb.layout.copy_block(), 31);
        for at in [0, 31] {
            let u = UnverifiedSuperblock(sb.encode(at).unwrap());
            assert_eq!(u.verify(at, 1002).unwrap(), sb);
            let other = 31 - at;
            assert!(matches!(u.verify(other, 1002), Err(SuperblockError::Misplaced { .. })));
            assert!(matches!(u.verify(at, 1001), Err(SuperblockError::Truncated { .. })));
        }
        assert!(sb.encode(1).is_err());
        assert!(copy_candidates(1002).any(|b| b == 31));
        assert!(sb.read_only());
        assert!(sb.is_of_same_volume(&Superblock { device_index: 0, ..sb.clone() }));
        assert!(!sb.is_of_same_volume(&Superblock { mlogs: 5, ..sb.clone() }));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let good = sample().encode(0).unwrap();
        for bit in 0..8 * BLOCK_SIZE {
            let mut b = good.clone();
            b.0[bit / 8] ^= 1 << (bit % 8);
            assert!(UnverifiedSuperblock(b).verify(0, 1002).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn each_field_is_checked() {
        let sb = sample();
        let why = |at, to| damaged(&sb, at, to).verify(0, 1002).unwrap_err();
        assert_eq!(why(0, b'X'), SuperblockError::NoMagic);
        assert_eq!(why(8, 1), SuperblockError::Version { found: 1 });
        assert!(why(8, 1).to_string().ends_with("make the volume anew"));
        assert!(why(8, 3).to_string().ends_with("use a newer one"));
        assert_eq!(why(12, 1), SuperblockError::Field("block size"));
        assert_eq!(why(33, 1), SuperblockError::Features(256));
        assert_eq!(why(40, 9), SuperblockError::Misplaced { block: 0, meant: 9 });
        assert_eq!(why(88, 3), SuperblockError::Field("device index"));
        assert_eq!(why(92, 0), SuperblockError::Field("number of devices"));
        assert_eq!(why(92, 65), SuperblockError::Field("number of devices"));
        assert_eq!(why(92, 2), SuperblockError::Field("unused device entry"));
        assert_eq!(why(92, 4), SuperblockError::Field("device identity"));
        assert_eq!(why(96, 17), SuperblockError::Field("segment size"));
        assert_eq!(why(96, 8), SuperblockError::Field("segment size"));
        assert_eq!(why(100, 0), SuperblockError::Field("number of reserved segments"));
        assert_eq!(why(100, 1), SuperblockError::Field("place of the slots"));
        assert_eq!(why(104, 0), SuperblockError::Field("place of the slots"));
        assert_eq!(why(104, 10), SuperblockError::Field("place of the slots"));
        assert_eq!(why(108, 0), SuperblockError::Field("number of mlogs"));
        assert_eq!(why(112, 0), SuperblockError::Field("place of the slots"));
        assert_eq!(why(119, 255), SuperblockError::Field("place of the slots"));
        assert_eq!(why(128, 0), SuperblockError::Field("label"));
        assert_eq!(why(128, 0xff), SuperblockError::Field("label"));
        assert_eq!(why(128, b'\n'), SuperblockError::Field("label"));
        assert_eq!(why(1024 + 16 + 7, 255), SuperblockError::Field("device size"));
        let mut twice = sb.clone();
        twice.devices[0].uuid = twice.devices[2].uuid;
        assert_eq!(twice.encode(0).unwrap_err(), SuperblockError::Field("device identity used twice"));
    }

    #[test]
    fn layouts_leave_room_for_everything() {
        for shift in 4..=9 {
            for slot in 1..=512 {
                if let Some(l) = Layout::new(1 << shift, slot) {
                    assert_eq!(l.check(), Ok(()));
                } else {
                    assert!(2 + 2 * slot > MAX_RESERVED_SEGMENTS << shift);
                }
            }
        }
        for (seg, slot) in [(0, 1), (8, 1), (24, 1), (1024, 1), (16, 0), (16, u32::MAX)] {
            assert!(Layout::new(seg, slot).is_none());
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), BLOCK_SIZE), resum in any::<bool>(), at in any::<u64>()) {
            let mut b = Block::zeroed();
            b.0.copy_from_slice(&bytes);
            b.0[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
            if resum {
                b.0[8..16].copy_from_slice(&sample().encode(0).unwrap().0[8..16]);
                b.0[32..40].fill(0);
                let crc = sum(&b);
                b.0[4092..].copy_from_slice(&crc.to_le_bytes());
            }
            prop_assert!(UnverifiedSuperblock(b).verify(at, u64::MAX).is_err());
        }
    }
}
