//! An open file.

use crate::error::{Error, Result};
use crate::stat::Stat;
use lanefs_store::Ino;

/// An open file or directory: what a descriptor is to the kernel. Send and Sync; positional calls run in parallel.
pub struct File {
    pub(crate) _p: (),
}

const NO: Error = Error::Posix(libc::ENOSYS);

impl File {
    /// Its inode number.
    pub fn ino(&self) -> Ino {
        Ino::NONE
    }
    /// Its attributes.
    pub fn stat(&self) -> Result<Stat> {
        Err(NO)
    }
    /// Reads at `offset` without moving the cursor; less than asked only at the end of the file.
    pub fn read_at(&self, _buf: &mut [u8], _offset: u64) -> Result<usize> {
        Err(NO)
    }
    /// Writes at `offset` without moving the cursor (at the end with O_APPEND).
    pub fn write_at(&self, _buf: &[u8], _offset: u64) -> Result<usize> {
        Err(NO)
    }
    /// Writes at `offset`, never appends, and leaves mtime, ctime, setuid and setgid alone: for a front end whose
    /// kernel caches writes, keeps these itself and hands them over by [`crate::SetAttr`].
    pub fn write_back_at(&self, _buf: &[u8], _offset: u64) -> Result<usize> {
        Err(NO)
    }
    /// Writes all of `buf` at `offset`.
    pub fn write_all_at(&self, _buf: &[u8], _offset: u64) -> Result<()> {
        Err(NO)
    }
    /// Fills `buf` from `offset`; EIO-like error at an early end.
    pub fn read_exact_at(&self, _buf: &mut [u8], _offset: u64) -> Result<()> {
        Err(NO)
    }
    /// Reads at the cursor and moves it.
    pub fn read(&self, _buf: &mut [u8]) -> Result<usize> {
        Err(NO)
    }
    /// Writes at the cursor (at the end with O_APPEND) and moves it.
    pub fn write(&self, _buf: &[u8]) -> Result<usize> {
        Err(NO)
    }
    /// Appends, and returns the offset written at.
    pub fn append(&self, _buf: &[u8]) -> Result<u64> {
        Err(NO)
    }
    /// `lseek(2)`: whence is `libc::SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA` or `SEEK_HOLE`.
    pub fn seek(&self, _offset: i64, _whence: i32) -> Result<u64> {
        Err(NO)
    }
    /// Sets the size in bytes.
    pub fn set_len(&self, _size: u64) -> Result<()> {
        Err(NO)
    }
    /// `fallocate(2)` with the kernel's mode bits.
    pub fn allocate(&self, _mode: i32, _offset: u64, _len: u64) -> Result<()> {
        Err(NO)
    }
    /// fsync: content, attributes and name are durable when it returns.
    pub fn sync_all(&self) -> Result<()> {
        Err(NO)
    }
    /// fdatasync: content and what is needed to read it are durable when it returns.
    pub fn sync_data(&self) -> Result<()> {
        Err(NO)
    }
    /// `copy_file_range(2)` from this file to `to`; returns bytes copied.
    pub fn copy_range_to(&self, _offset: u64, _to: &File, _to_offset: u64, _len: u64) -> Result<u64> {
        Err(NO)
    }
}
