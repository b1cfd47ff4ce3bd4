//! Blocks of unopened devices, verified.

use super::super::info::open_devices;
use crate::failure::Failure;
use lanefs_format::checksum;
use lanefs_format::slot::Slot;
use lanefs_format::superblock::{
    FAR_BLOCKS, Superblock, SuperblockError, UnverifiedSuperblock, copy_candidates,
};
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, BlockRef};
use lanefs_store::StoreError;
use lanefs_store::device::{Device, ReadReq};
use std::path::PathBuf;
use std::sync::Arc;

/// A volume's devices in the order of its addresses.
pub struct Reader {
    devices: Vec<Arc<dyn Device>>,
    /// The superblock of device 0, or failing it of another.
    pub superblock: Superblock,
}

/// A device's superblock and the place where it was found.
pub struct Found {
    /// The block.
    pub block: u64,
    /// The superblock, or why there is none.
    pub superblock: Result<Superblock, SuperblockError>,
}

/// Reads a block, unverified.
fn read_from(device: &dyn Device, block: u64) -> Result<Box<Block>, Failure> {
    let mut b = Block::zeroed();
    if block.saturating_add(1).saturating_mul(BLOCK_SIZE as u64) > device.size() {
        return Err(Failure::new(format_args!("{}: has no block {block}", device.name())));
    }
    device.read(&mut [ReadReq { offset: block * BLOCK_SIZE as u64, data: &mut b.0 }])?;
    Ok(b)
}

/// Reads and verifies the superblock in a block.
fn superblock_at(device: &dyn Device, block: u64) -> Result<Found, Failure> {
    let read = UnverifiedSuperblock(read_from(device, block)?);
    Ok(Found { block, superblock: read.verify(block, device.size() / BLOCK_SIZE as u64) })
}

/// Reads the superblock in block 0, or its copy.
fn best_superblock(device: &dyn Device) -> Result<Superblock, Failure> {
    let first = superblock_at(device, 0)?;
    let error = match first.superblock {
        Ok(sb) => return Ok(sb),
        Err(e) => e,
    };
    let blocks = device.size() / BLOCK_SIZE as u64;
    let end = blocks.checked_sub(FAR_BLOCKS);
    for block in copy_candidates(blocks).chain(end) {
        if let Ok(sb) = superblock_at(device, block)?.superblock {
            return Ok(sb);
        }
    }
    Err(StoreError::superblock(device.name(), &error).into())
}

impl Reader {
    /// Opens the images of one volume, in any order.
    pub fn open(images: &[PathBuf]) -> Result<Reader, Failure> {
        let mut members = Vec::new();
        for device in open_devices(images)? {
            members.push((best_superblock(&*device)?, device));
        }
        debug_assert!(!members.is_empty(), "the command line asks for one image at least");
        members.sort_by_key(|(sb, _)| sb.device_index);
        let superblock = members[0].0.clone();
        for (sb, device) in &members {
            if !superblock.is_of_same_volume(sb) {
                return Err(Failure::new(format_args!("{}: belongs to another volume", device.name())));
            }
        }
        if members.len() != superblock.devices.len() {
            return Err(Failure::new(format_args!(
                "{}: the volume has {} devices; name them all",
                members[0].1.name(),
                superblock.devices.len()
            )));
        }
        Ok(Reader { devices: members.into_iter().map(|m| m.1).collect(), superblock })
    }

    /// Reads both places of each device's superblock.
    pub fn superblocks(&self) -> Result<Vec<(String, [Found; 2])>, Failure> {
        let copy = self.superblock.layout.copy_block();
        let both = |d: &Arc<dyn Device>| {
            Ok((d.name().to_string(), [superblock_at(&**d, 0)?, superblock_at(&**d, copy)?]))
        };
        self.devices.iter().map(both).collect()
    }

    /// Reads a block as it is.
    pub fn raw(&self, addr: BlockAddr) -> Result<Box<Block>, Failure> {
        let device = self.devices.get(addr.device()).ok_or_else(|| {
            Failure::new(format_args!("block {addr}: the volume has {} devices", self.devices.len()))
        })?;
        read_from(&**device, addr.block())
    }

    /// Reads a block that a parent refers to; an error if it is not what the parent means.
    pub fn verified(&self, r: BlockRef, what: &str) -> Result<Box<Block>, Failure> {
        let block = self.raw(r.addr)?;
        if !checksum::matches(r, &block.0) {
            return Err(Failure::new(format_args!(
                "block {} ({what}): its bytes do not sum to {:#010x}; run `lanefs fsck`",
                r.addr, r.crc
            )));
        }
        Ok(block)
    }

    /// Reads both slots, each from its copy if need be, or why there is none.
    pub fn slots(&self) -> Result<[Result<Slot, String>; 2], Failure> {
        let one = |i| -> Result<Result<Slot, String>, Failure> {
            let mut error = String::new();
            for addr in self.superblock.slot_places(i) {
                match Slot::decode(&*self.raw(addr)?, addr, self.superblock.volume) {
                    Ok(slot) => return Ok(Ok(slot)),
                    Err(e) => error = e.to_string(),
                }
            }
            Ok(Err(error))
        };
        Ok([one(0)?, one(1)?])
    }

    /// Returns the slot that counts.
    pub fn slot(&self) -> Result<Slot, Failure> {
        let [a, b] = self.slots()?;
        match (a, b) {
            (Ok(a), Ok(b)) => Ok(if a.generation > b.generation { a } else { b }),
            (Ok(s), Err(_)) | (Err(_), Ok(s)) => Ok(s),
            (Err(e), Err(_)) => Err(Failure::new(e)),
        }
    }
}
