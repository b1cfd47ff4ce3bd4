//! Flags of an inode as the kernel's `ioctl`s carry them: one word, or a `struct fsxattr`, of which
//! LaneFS has the flags alone.

use super::Wire;
use crate::wire::Errno;
use lanefs::inode_flags::{ALL, APPEND, IMMUTABLE, NOATIME, NODUMP};

pub(super) const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
pub(super) const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
pub(super) const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
pub(super) const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// Bytes of a `struct fsxattr`: flags, extent size, extents, project, extent size of copies, and
/// eight more.
const FSXATTR: usize = 28;
/// Each flag in the word, and in a `struct fsxattr`.
const PAIRS: [(u32, u32); 4] = [(IMMUTABLE, 0x8), (APPEND, 0x10), (NOATIME, 0x40), (NODUMP, 0x80)];
/// The flag of a file with extended attributes: reported by some file systems, never set.
const HAS_ATTRIBUTES: u32 = 1 << 31;

const _: () = assert!(PAIRS[0].0 | PAIRS[1].0 | PAIRS[2].0 | PAIRS[3].0 == ALL, "every flag has its pair");
const _: () = assert!(FS_IOC_FSGETXATTR >> 16 & 0x3fff == FSXATTR as u32);
const _: () = assert!(FS_IOC_FSSETXATTR >> 16 & 0x3fff == FSXATTR as u32);

/// Encodes the answer to a command that asks for the flags.
pub(super) fn encode(command: u32, flags: u32) -> Wire<Vec<u8>> {
    debug_assert!(matches!(command, FS_IOC_GETFLAGS | FS_IOC_FSGETXATTR));
    if command == FS_IOC_GETFLAGS {
        return Ok(flags.to_ne_bytes().to_vec());
    }
    let found = PAIRS.iter().filter(|(flag, _)| flags & flag != 0);
    let mut answer = vec![0; FSXATTR];
    answer[..4].copy_from_slice(&found.fold(0, |all, (_, x)| all | x).to_ne_bytes());
    Ok(answer)
}

/// Decodes the flags that a command sets. EOPNOTSUPP: it asks for something else than flags that
/// there are.
pub(super) fn decode(command: u32, given: &[u8]) -> Wire<u32> {
    debug_assert!(matches!(command, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR));
    let word = |at: usize| given.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let flags = word(0).ok_or(Errno(libc::EINVAL))?;
    if command == FS_IOC_SETFLAGS {
        return Ok(flags);
    }
    let project = word(12).filter(|_| given.len() >= FSXATTR).ok_or(Errno(libc::EINVAL))?;
    let all = PAIRS.iter().fold(HAS_ATTRIBUTES, |all, (_, x)| all | x);
    if flags & !all != 0 || project != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let found = PAIRS.iter().filter(|(_, x)| flags & x != 0).fold(0, |all, (flag, _)| all | flag);
    debug_assert_eq!(found & !ALL, 0);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_both_forms() {
        for flags in (0..=ALL).filter(|f| f & !ALL == 0) {
            for (get, set) in [(FS_IOC_GETFLAGS, FS_IOC_SETFLAGS), (FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR)] {
                assert_eq!(decode(set, &encode(get, flags).unwrap()), Ok(flags), "{flags:#x}");
            }
        }
    }

    #[test]
    fn what_is_short_or_not_offered_is_refused() {
        let refused = |given: &[u8]| decode(FS_IOC_FSSETXATTR, given).unwrap_err().0;
        assert_eq!(refused(&[0; 27]), libc::EINVAL);
        assert_eq!(decode(FS_IOC_SETFLAGS, &[0; 3]).unwrap_err().0, libc::EINVAL);
        let (mut sync, mut project) = ([0; FSXATTR], [0; FSXATTR]);
        (sync[0], project[12]) = (0x20, 1);
        assert_eq!([refused(&sync), refused(&project)], [libc::EOPNOTSUPP; 2]);
    }
}
