//! What a file has of the volume's space.

use super::File;
use crate::core::page_store;
use crate::error::Result;
use lanefs_format::{BLOCK_SIZE, MAX_FILE_SIZE};

impl File {
    /// Returns the bytes, in whole pages, that have no space in a range of the file: neither a
    /// block, nor a promise of one, nor is one preallocated. Writing the range takes as much. 0 of
    /// what is no file. What others do meanwhile may be missed.
    ///
    /// # Errors
    /// EIO: what is in the file cannot be read, or the volume is closed.
    pub fn without_space(&self, offset: u64, len: u64) -> Result<u64> {
        self.persist().check_alive()?;
        let Some(data) = self.inode().data() else { return Ok(0) };
        let end = offset.saturating_add(len).min(MAX_FILE_SIZE);
        if offset >= end {
            return Ok(0);
        }
        let pages = offset / BLOCK_SIZE as u64..end.div_ceil(BLOCK_SIZE as u64);
        let missing = data.without_space(&page_store::data_ctx(self.persist(), self.inode()), pages)?;
        debug_assert!(missing <= len / BLOCK_SIZE as u64 + 2, "{missing} pages of {len} bytes");
        Ok(missing * BLOCK_SIZE as u64)
    }
}
