//! Flags of an inode, as chattr(1) sets them. What they forbid is checked where it is done, by
//! `ops::perm`.

use super::{perm, posix};
use crate::core::Core;
use crate::error::Result;
use crate::memfs::Inode;
use crate::{Cred, FileKind};
use lanefs_format::inode_flags::{ALL, APPEND, IMMUTABLE};
use lanefs_sync::clock::coarse_realtime_ns;

/// Returns the flags of an inode. ENOTTY: its kind has none.
pub(crate) fn inode_flags(core: &Core, inode: &Inode) -> Result<u32> {
    core.check_alive()?;
    match inode.kind {
        FileKind::File | FileKind::Dir => Ok(inode.inode_flags()),
        _ => posix(libc::ENOTTY),
    }
}

/// Sets the flags of an inode. As chmod, it changes the inode first and marks it then; a capture
/// takes the mark off before it reads the flags.
pub(crate) fn set_inode_flags(core: &Core, cred: &Cred, inode: &Inode, flags: u32) -> Result<()> {
    let was = inode_flags(core, inode)?;
    core.writable()?;
    perm::check_owner(inode, cred)?;
    if flags & !ALL != 0 {
        return posix(libc::EOPNOTSUPP);
    }
    debug_assert!(was & !ALL == 0, "flags {was:#x} of inode {}", inode.ino);
    if was == flags {
        return Ok(());
    }
    inode.change_inode_flags(|was| {
        let strong = (was ^ flags) & (IMMUTABLE | APPEND) != 0;
        let stays = was & flags & IMMUTABLE != 0 && was != flags;
        if stays || strong && !cred.is_root() && !cred.prechecked {
            return posix(libc::EPERM);
        }
        Ok(flags)
    })?;
    core.journal.changed(inode, false, coarse_realtime_ns(), 0);
    Ok(())
}
