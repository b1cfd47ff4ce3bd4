//! memcpy: copies 256 MiB of memory, 1 MiB at a time: what reads of cached data are held against.
//! It touches no file.

use super::CHUNK;
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Block, Cx, Info, Workload, as_bytes, as_bytes_mut, buffer};

/// The workload's name and description.
pub const INFO: Info = Info { name: "memcpy", about: "copy memory, 1 MiB at a time", unit: "MiB" };

/// One worker.
pub struct Memcpy {
    from: Vec<Block>,
    to: Vec<Block>,
    chunks: usize,
    at: usize,
}

impl<T: Target> Workload<T> for Memcpy {
    fn prepare(cx: &Cx<'_, T>, _: usize) -> Res<Self> {
        let chunks = cx.params.scaled(256, 2) as usize;
        Ok(Memcpy { from: buffer(chunks * CHUNK), to: buffer(CHUNK), chunks, at: 0 })
    }

    fn operate(&mut self, _: &T) -> Op<u32> {
        self.at = (self.at + 1) % self.chunks;
        let from = &as_bytes(&self.from)[self.at * CHUNK..][..CHUNK];
        as_bytes_mut(&mut self.to).copy_from_slice(from);
        // The copy must be made although nobody reads it.
        std::hint::black_box(&mut self.to);
        Ok(1)
    }
}
