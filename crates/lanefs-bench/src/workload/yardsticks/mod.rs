//! Yardsticks that the others are held against: plain writes and flushes, long sequential runs.

pub mod memcpy;
pub mod raw_sync;
pub mod seq_read;
pub mod seq_write;

use crate::error::{Context, Res};
use crate::target::{Target, flags};
use crate::workload::{Cx, as_bytes, buffer, write_all};

/// Bytes read or written at a time.
pub const CHUNK: usize = 1 << 20;

/// A private file of `chunks` megabytes, written out and synced.
pub(super) fn written<T: Target>(cx: &Cx<'_, T>, id: usize, chunks: u64) -> Res<T::File> {
    use crate::target::TargetFile;
    let path = cx.private(id)?.join("data");
    let file = cx.target.open(&path, flags::CREATE | flags::DATA).at("creating the file")?;
    let data = buffer(CHUNK);
    for _ in 0..chunks {
        write_all(&file, as_bytes(&data)).at("filling the file")?;
    }
    file.sync().at("syncing the file")?;
    Ok(file)
}
