//! The cleaner's questions to an inode whose blocks it moves.

use super::{InodeState, XattrPlace, read_xattrs};
use crate::error::Result;
use crate::tree::block_io::{BlockSource, Owner};
use crate::tree::radix::Found;
use lanefs_format::BlockRef;

impl InodeState {
    /// Returns where the block that `owner` names is now, for the cleaner. None if there is no such
    /// block.
    pub fn current(&self, owner: Owner) -> Found<BlockRef> {
        Found::Here(match owner {
            Owner::Data { ino, page } | Owner::Bucket { ino, page } if ino == self.ino => {
                return self.map.get(page);
            }
            Owner::Map { ino, level, index } if ino == self.ino => return self.map.node_ref(level, index),
            Owner::Inode { ino } if ino == self.ino && !self.packed => self.block,
            Owner::Xattr { ino, index } if ino == self.ino => match &self.xattrs {
                XattrPlace::Blocks { refs, .. } => {
                    usize::try_from(index).ok().and_then(|i| refs.get(i).copied()).unwrap_or_default()
                }
                XattrPlace::Inline(_) => BlockRef::NONE,
            },
            _ => BlockRef::NONE,
        })
    }

    /// Makes the next write-out write a node block anew, so that its old place becomes free. Not
    /// for data and buckets: these move by [`InodeState::set_page`]. False if there is no such
    /// block.
    pub fn rewrite(&mut self, owner: Owner, source: &(impl BlockSource + ?Sized)) -> Result<bool> {
        debug_assert!(
            matches!(owner, Owner::Inode { ino } | Owner::Map { ino, .. } | Owner::Xattr { ino, .. } if ino == self.ino),
            "{owner:?} is no node of inode {}",
            self.ino
        );
        match owner {
            Owner::Inode { .. } => {
                self.dirty = true;
                Ok(true)
            }
            Owner::Map { level, index, .. } => {
                let found = self.map.rewrite_node(level, index, source)?;
                self.dirty |= found;
                Ok(found)
            }
            Owner::Xattr { .. } => {
                if let Err((len, refs)) = self.xattrs() {
                    self.new_xattrs = Some(read_xattrs(self.ino, len, refs, source)?);
                    self.dirty = true;
                    self.check_invariants();
                }
                Ok(self.new_xattrs.is_some())
            }
            _ => Ok(false),
        }
    }
}
