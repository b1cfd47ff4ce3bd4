//! seq-write: overwrite a private file of 256 MiB, 1 MiB at a time, with an fsync at the end of
//! each pass (counted as part of its last write).

use super::{CHUNK, written};
use crate::error::{Op, Res};
use crate::target::{Target, TargetFile};
use crate::workload::{Block, Cx, Info, Workload, as_bytes, buffer, whole};

/// The workload's name and description.
pub const INFO: Info = Info {
    name: "seq-write",
    about: "overwrite a file sequentially, 1 MiB at a time, fsync per pass",
    unit: "MiB",
};

/// One worker.
pub struct SeqWrite<T: Target> {
    file: T::File,
    data: Vec<Block>,
    chunks: u64,
    at: u64,
}

impl<T: Target> Workload<T> for SeqWrite<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let chunks = cx.params.scaled(256, 2);
        Ok(SeqWrite { file: written(cx, id, chunks)?, data: buffer(CHUNK), chunks, at: 0 })
    }

    fn operate(&mut self, _: &T) -> Op<u32> {
        let done = self.file.write_at(as_bytes(&self.data), self.at * CHUNK as u64)?;
        self.at += 1;
        if self.at == self.chunks {
            self.at = 0;
            self.file.sync()?;
        }
        whole(done, CHUNK)
    }
}
