//! From a claim on an inode to a handle.

use super::File;
use crate::error::Result;
use crate::memfs::Inode;
use crate::opened::Opened;
use crate::ops::create::Spec;
use crate::ops::open::{self, Claim};
use crate::ops::resolve::At;
use crate::{Cred, Ino};
use crossbeam_epoch::Guard;
use std::sync::Arc;

/// Makes a handle of a claim.
#[inline]
fn file(opened: &Opened, claim: Claim<'_>, cred: &Cred, flags: i32) -> File {
    debug_assert_eq!(opened.anchors.len(), opened.persist.journal.lanes.len(), "a lane without an anchor");
    File::new(Arc::clone(&opened.anchors[claim.lane]), claim, flags, cred)
}

/// Makes a handle on an inode. ESTALE if it ended, or left memory.
#[inline]
pub(crate) fn handle(opened: &Opened, inode: &Inode, cred: &Cred, flags: i32) -> Result<File> {
    Ok(file(opened, open::claim(&opened.persist, inode)?, cred, flags))
}

/// Opens an inode by number.
#[inline]
pub(crate) fn open_ino(opened: &Opened, cred: &Cred, ino: Ino, flags: i32, guard: &Guard) -> Result<File> {
    let flags = open::counting(flags);
    Ok(file(opened, open::open(&opened.persist, cred, ino, flags, guard)?, cred, flags))
}

/// Creates or opens a name as open(2) does with O_CREAT. Returns whether it was made, too.
#[inline]
pub(crate) fn create_at(
    opened: &Opened,
    cred: &Cred,
    name: At<'_>,
    spec: &Spec<'_>,
    flags: i32,
    guard: &Guard,
) -> Result<(File, bool)> {
    let flags = open::counting(flags);
    let (claim, made) = open::create(&opened.persist, cred, name, spec, flags, guard)?;
    Ok((file(opened, claim, cred, flags), made))
}
