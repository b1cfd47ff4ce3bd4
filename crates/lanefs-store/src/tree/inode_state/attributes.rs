//! The extended attributes of an inode: in its block, or in blocks of their own.

use super::InodeState;
use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use crate::tree::map::MapShape;
use lanefs_format::inode::{self, MAP_ENTRY, XATTR_INLINE, XATTR_PER_BLOCK, XattrPlace};
use lanefs_format::{BlockRef, Ino, XATTR_BLOB_MAX};

impl InodeState {
    /// Replaces all extended attributes.
    pub fn set_xattrs(&mut self, blob: Vec<u8>) -> Result<()> {
        if blob.len() > XATTR_BLOB_MAX {
            return Err(StoreError::NoSpace);
        }
        self.new_xattrs = Some(blob);
        self.dirty = true;
        self.check_invariants();
        Ok(())
    }

    /// Returns the bytes that it has beside its fixed part where all of it is in one block; `None`
    /// if it has other blocks, or is a directory.
    pub fn inline_bytes(&self) -> Option<usize> {
        let MapShape::Inline(entries) = self.map.shape() else { return None };
        let XattrPlace::Inline(xattrs) = &self.xattrs else { return None };
        let new = self.new_xattrs.as_ref().map_or(0, Vec::len);
        let tail = self.tail.as_ref().map_or(0, |t| t.1.len());
        debug_assert!(xattrs.len() <= XATTR_INLINE, "the attributes of inode {} are too long", self.ino);
        let bytes = entries.len() * MAP_ENTRY + xattrs.len().max(new) + tail;
        Some(bytes).filter(|_| new <= XATTR_INLINE && !self.is_dir())
    }

    /// Returns whether the extended attributes were replaced since they were written last.
    pub fn has_new_xattrs(&self) -> bool {
        self.new_xattrs.is_some()
    }

    /// Returns the extended attributes, if no I/O is needed for them; else where they are: their
    /// length and blocks, for `read_xattrs`.
    pub fn xattrs(&self) -> std::result::Result<&[u8], (u32, &[BlockRef])> {
        match (&self.new_xattrs, &self.xattrs) {
            (Some(b), _) | (None, XattrPlace::Inline(b)) => Ok(b),
            (None, XattrPlace::Blocks { len, refs }) => Err((*len, refs)),
        }
    }

    /// Returns the extended attributes, reading them if need be.
    pub fn xattr_bytes(&self, source: &(impl BlockSource + ?Sized)) -> Result<Vec<u8>> {
        match self.xattrs() {
            Ok(b) => Ok(b.to_vec()),
            Err((len, refs)) => read_xattrs(self.ino(), len, refs, source),
        }
    }

    pub(super) fn write_xattrs(&mut self, sink: &mut dyn BlockSink) -> Result<()> {
        let Some(blob) = &self.new_xattrs else { return Ok(()) };
        let place = if blob.len() <= XATTR_INLINE {
            XattrPlace::Inline(blob.clone())
        } else {
            let mut refs: Vec<BlockRef> = Vec::new();
            for (n, bytes) in blob.chunks(XATTR_PER_BLOCK).enumerate() {
                let index = n as u64;
                let block = inode::encode_xattr_block(self.ino, index, bytes);
                match sink.write(Owner::Xattr { ino: self.ino, index }, block) {
                    Ok(r) => refs.push(r),
                    Err(e) => {
                        // Nobody knows of them: the next attempt writes all.
                        refs.iter().for_each(|r| sink.free(r.addr));
                        return Err(e);
                    }
                }
            }
            XattrPlace::Blocks { len: blob.len() as u32, refs }
        };
        if let XattrPlace::Blocks { refs, .. } = std::mem::replace(&mut self.xattrs, place) {
            refs.iter().for_each(|r| sink.free(r.addr));
        }
        self.new_xattrs = None;
        Ok(())
    }
}

/// Reads extended attributes that lie in blocks of their own.
pub fn read_xattrs(
    ino: Ino,
    len: u32,
    refs: &[BlockRef],
    source: &(impl BlockSource + ?Sized),
) -> Result<Vec<u8>> {
    debug_assert_eq!(refs.len(), (len as usize).div_ceil(XATTR_PER_BLOCK), "{len} bytes of attributes");
    let mut blob = Vec::with_capacity(refs.len() * XATTR_PER_BLOCK);
    for (n, r) in refs.iter().enumerate() {
        let block = source.read(*r, "extended attribute block")?;
        blob.extend_from_slice(inode::decode_xattr_block(&block, r.addr, ino, n as u64)?);
    }
    debug_assert!(blob.len() >= len as usize, "{} bytes of attributes instead of {len}", blob.len());
    blob.truncate(len as usize);
    Ok(blob)
}
