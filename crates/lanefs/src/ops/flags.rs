//! Flags of an inode: what chattr(1) sets. What they forbid is asked where it is done, by
//! `ops::perm`.

use super::{perm, posix};
use crate::core::Core;
use crate::error::Result;
use crate::memfs::Cell;
use crate::{Cred, FileKind};
use lanefs_format::inode_flags::{ALL, APPEND, IMMUTABLE};
use lanefs_sync::clock::coarse_realtime_ns;

pub(crate) fn inode_flags(core: &Core, cell: &Cell) -> Result<u32> {
    core.check_alive()?;
    match cell.kind {
        FileKind::File | FileKind::Dir => Ok(cell.inode_flags()),
        _ => posix(libc::ENOTTY),
    }
}

/// As chmod, it changes the cell first and marks it then; a capture takes the mark off before
/// it reads the flags.
pub(crate) fn set_inode_flags(core: &Core, cred: &Cred, cell: &Cell, flags: u32) -> Result<()> {
    let was = inode_flags(core, cell)?;
    core.writable()?;
    perm::check_owner(cell, cred)?;
    if flags & !ALL != 0 {
        return posix(libc::EOPNOTSUPP);
    }
    if was == flags {
        return Ok(());
    }
    cell.change_inode_flags(|was| {
        let strong = (was ^ flags) & (IMMUTABLE | APPEND) != 0;
        let stays = was & flags & IMMUTABLE != 0 && was != flags;
        if stays || strong && !cred.is_root() && !cred.prechecked {
            return posix(libc::EPERM);
        }
        Ok(flags)
    })?;
    core.journal.changed(cell, false, coarse_realtime_ns(), 0);
    Ok(())
}
