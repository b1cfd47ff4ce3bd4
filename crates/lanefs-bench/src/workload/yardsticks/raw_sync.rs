//! raw-sync: overwrite 4 KiB of a preallocated file in place, fdatasync. Run with `--direct` on a
//! directory this is what the device itself can do: a write and a flush, no block to allocate, no
//! metadata to write. DWSL and varmail are held against it.

use super::written;
use crate::error::{Op, Res};
use crate::target::{BLOCK, Target, TargetFile};
use crate::workload::{Block, Cx, Info, Workload, whole};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "raw-sync", about: "overwrite 4 KiB in place and fdatasync, sequentially", unit: "ops" };

/// Blocks of the file, taken in turn.
const BLOCKS: u64 = 4096;

/// One worker.
pub struct RawSync<T: Target> {
    file: T::File,
    block: Box<Block>,
    at: u64,
}

impl<T: Target> Workload<T> for RawSync<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let file = written(cx, id, (BLOCKS * BLOCK as u64) >> 20)?;
        Ok(RawSync { file, block: Block::new(id), at: 0 })
    }

    fn operate(&mut self, _: &T) -> Op<u32> {
        self.at = (self.at + 1) % BLOCKS;
        whole(self.file.write_at(&self.block.0, self.at * BLOCK as u64)?, BLOCK)?;
        self.file.sync_data()?;
        Ok(1)
    }
}
