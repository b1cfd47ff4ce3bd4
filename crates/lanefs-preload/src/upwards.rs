//! The directories above an open one, wherever that is now.

use crate::table::Description;
use crate::volume;
use lanefs::{Ino, Volume};

/// Returns the directory above one; `None` if that was removed.
pub fn above(volume: &Volume, dir: Ino) -> Option<Ino> {
    let mut parent = None;
    let look = volume.node_readdir(dir, 0, &mut |e| {
        if e.name == b".." {
            parent = Some(e.ino);
        }
        parent.is_none()
    });
    look.ok().and(parent)
}

/// Returns how many directories lie above an open one, wherever it was moved; `None` if it was
/// removed. Called within the volume.
pub fn depth_of(volume: &Volume, dir: &Description) -> Option<usize> {
    let root = volume::view(volume).stat("/").ok()?.ino;
    let (mut at, mut depth) = (dir.file.ino(), 0);
    while at != root {
        at = above(volume, at)?;
        depth += 1;
    }
    Some(depth)
}
