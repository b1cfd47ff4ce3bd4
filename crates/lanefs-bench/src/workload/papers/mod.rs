//! The macro workloads of the papers, parameters as published: Max (ATC'21) table 4 and figure 1,
//! ScaleFS (SOSP'17) section 7.4, ScaleXFS (FAST'22) table 1, filebench's varmail and fileserver as
//! FxMark ships them.

pub mod dbench;
pub mod dbench_script;
pub mod dbench_sync;
pub mod exim;
pub mod fig1;
pub mod fileserver;
pub mod fileset;
pub mod largefile;
pub mod mailbench;
pub mod mailbench_p;
pub mod mailbench_s;
pub mod mdtest_create;
pub mod mdtest_remove;
pub mod mdtest_stat;
pub mod smallfile;
pub mod varmail;
pub mod varmail_private;

use crate::error::Op;
use crate::target::{Target, TargetFile, flags};
use crate::workload::{Block, as_bytes_mut};

/// Reads a whole file, a megabyte at a time (filebench's `iosize`), and returns its size.
pub(super) fn read_whole<F: TargetFile>(file: &F, buf: &mut [Block]) -> Op<u64> {
    let buf = as_bytes_mut(buf);
    debug_assert!(!buf.is_empty(), "an empty read would look like the end");
    let mut at = 0u64;
    loop {
        match file.read_at(buf, at)? {
            0 => return Ok(at),
            n => at += n as u64,
        }
        if !at.is_multiple_of(buf.len() as u64) {
            return Ok(at);
        }
    }
}

/// Writes `bytes` bytes at the cursor, at most `buf` at a time.
pub(super) fn write_bytes<F: TargetFile>(file: &F, buf: &[u8], bytes: u64) -> Op<()> {
    debug_assert!(!buf.is_empty(), "nothing would ever be written");
    let mut left = bytes as usize;
    while left > 0 {
        let n = left.min(buf.len());
        super::write_all(file, &buf[..n])?;
        left -= n;
    }
    Ok(())
}

/// Creates a file with this content and makes it durable.
pub(super) fn create_synced<T: Target>(target: &T, path: &crate::name::Name, data: &[u8]) -> Op<()> {
    let file = target.open(path, flags::NEW)?;
    super::write_all(&file, data)?;
    file.sync()
}
