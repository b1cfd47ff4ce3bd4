//! The description that a mounted volume gives of itself, to whoever may open a directory of the
//! mount: an `ioctl` of 256 bytes, which it writes.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 to 15 | identity |
//! | 16 to 79 | label, padded with zeros |
//! | 80 to 167 | eleven integers, little-endian, in the order of [`About`]'s numbers |

use lanefs::{StatFs, VolumeInfo};

/// Bytes of the answer.
pub const ABOUT_SIZE: usize = 256;
/// `ioctl` on a directory of the mount: writes what the volume is and how full.
pub const IOC_ABOUT: u32 = 2 << 30 | (ABOUT_SIZE as u32) << 16 | 0x4c03;

/// The offset of the numbers.
const NUMBERS: usize = 80;

const _: () = assert!(NUMBERS + 12 * 8 <= ABOUT_SIZE);
const _: () =
    assert!(IOC_ABOUT >> 16 & 0x3fff == ABOUT_SIZE as u32, "the command's number has 14 bits for it");

/// A mounted volume, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Its identity.
    pub uuid: [u8; 16],
    /// Its name for people.
    pub label: String,
    /// Blocks of all devices.
    pub total_blocks: u64,
    /// Blocks of a segment.
    pub segment_blocks: u64,
    /// Segments of all devices.
    pub segments: u64,
    /// mlogs in use.
    pub mlogs: u64,
    /// Devices.
    pub devices: u64,
    /// The number of times it has been opened for writing.
    pub mount_generation: u64,
    /// The last epoch folded or committed when it was opened.
    pub last_epoch: u64,
    /// Blocks users can fill.
    pub usable: u64,
    /// Blocks free for users.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Whether it was opened without the right to write.
    pub read_only: bool,
    /// The number of copies of everything but file data.
    pub metadata_copies: u64,
}

/// Encodes the answer of the mount.
pub(crate) fn encode(info: &VolumeInfo, space: &StatFs) -> Vec<u8> {
    let mut out = info.uuid.to_vec();
    out.extend(info.label.as_bytes().iter().take(64));
    out.resize(NUMBERS, 0);
    debug_assert_eq!(out.len(), NUMBERS);
    let inodes = space.files.saturating_sub(space.files_free);
    for w in [
        info.total_blocks,
        u64::from(info.segment_blocks),
        info.segments,
        info.mlogs as u64,
        info.devices as u64,
        info.mount_generation,
        info.last_epoch,
        space.blocks,
        space.free,
        inodes,
        u64::from(info.read_only),
        u64::from(info.metadata_copies),
    ] {
        out.extend(w.to_le_bytes());
    }
    debug_assert_eq!(out.len(), NUMBERS + 12 * 8, "the numbers that a reader expects");
    out.resize(ABOUT_SIZE, 0);
    debug_assert_eq!(decode(&out).map(|a| (a.uuid, a.free, a.inodes)), Some((info.uuid, space.free, inodes)));
    out
}

/// Decodes the mount's answer; `None` if it is none.
pub fn decode(bytes: &[u8]) -> Option<About> {
    let (uuid, rest) = bytes.split_first_chunk()?;
    let (label, numbers) = rest.split_at_checked(NUMBERS - 16)?;
    let label = label.split(|b| *b == 0).next().unwrap_or_default();
    let mut numbers = numbers.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?)));
    let mut next = || numbers.next();
    Some(About {
        uuid: *uuid,
        label: String::from_utf8_lossy(label).into_owned(),
        total_blocks: next()?,
        segment_blocks: next()?,
        segments: next()?,
        mlogs: next()?,
        devices: next()?,
        mount_generation: next()?,
        last_epoch: next()?,
        usable: next()?,
        free: next()?,
        inodes: next()?,
        read_only: next()? != 0,
        // Older mounts do not state it.
        metadata_copies: next().unwrap_or_default().max(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_survives_the_trip() {
        let info = VolumeInfo {
            uuid: [7; 16],
            label: "home \u{e4}".into(),
            hash_key: [1, 2],
            total_blocks: 1,
            segment_blocks: 2,
            segments: 3,
            metadata_copies: 2,
            mlogs: 4,
            devices: 5,
            mount_generation: 6,
            last_epoch: 7,
            last_ts: 0,
            next_chunk: 0,
            read_only: true,
        };
        let space =
            StatFs { blocks: 8, free: 9, available: 8, files: 19, files_free: 9, name_max: 255, fsid: 0 };
        let bytes = encode(&info, &space);
        assert_eq!(bytes.len(), ABOUT_SIZE);
        let about = decode(&bytes).unwrap();
        assert_eq!((about.label.as_str(), about.uuid), ("home \u{e4}", [7; 16]));
        assert_eq!((about.total_blocks, about.last_epoch, about.usable), (1, 7, 8));
        assert_eq!((about.free, about.inodes, about.read_only, about.metadata_copies), (9, 10, true, 2));
        for n in 0..bytes.len() {
            let _ = decode(&bytes[..n]);
        }
    }
}
