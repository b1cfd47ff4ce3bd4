//! seq-read: read a private file of 256 MiB, 1 MiB at a time, around and around. Cached unless
//! `--direct` or the cache is smaller.

use super::{CHUNK, written};
use crate::error::{Op, Res};
use crate::target::{Target, TargetFile};
use crate::workload::{Block, Cx, Info, Workload, as_bytes_mut, buffer, whole};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "seq-read", about: "read a file sequentially, 1 MiB at a time", unit: "MiB" };

/// One worker.
pub struct SeqRead<T: Target> {
    file: T::File,
    buf: Vec<Block>,
    chunks: u64,
    at: u64,
}

impl<T: Target> Workload<T> for SeqRead<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let chunks = cx.params.scaled(256, 2);
        Ok(SeqRead { file: written(cx, id, chunks)?, buf: buffer(CHUNK), chunks, at: 0 })
    }

    fn operate(&mut self, _: &T) -> Op<u32> {
        self.at = (self.at + 1) % self.chunks;
        whole(self.file.read_at(as_bytes_mut(&mut self.buf), self.at * CHUNK as u64)?, CHUNK)
    }
}
