//! Extended attributes that do not fit into the inode block.

use crate::block_io::BlockSource;
use crate::error::Result;
use lanefs_format::inode::{self, XATTR_PER_BLOCK};
use lanefs_format::{BlockRef, Ino};

/// Reads extended attributes that lie in blocks of their own.
pub fn read_xattrs(
    ino: Ino,
    len: u32,
    refs: &[BlockRef],
    source: &(impl BlockSource + ?Sized),
) -> Result<Vec<u8>> {
    let mut blob = Vec::with_capacity(refs.len() * XATTR_PER_BLOCK);
    for (n, r) in refs.iter().enumerate() {
        let block = source.read(*r, "extended attribute block")?;
        blob.extend_from_slice(inode::decode_xattr_block(&block, r.addr, ino, n as u64)?);
    }
    blob.truncate(len as usize);
    Ok(blob)
}
