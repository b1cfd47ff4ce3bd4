//! DRBL: read block 0 of a private file.

use crate::error::{Op, Res};
use crate::target::{BLOCK, Target, TargetFile};
use crate::workload::{Block, Cx, Info, Workload, whole};

/// The workload's name and description.
pub const INFO: Info = Info { name: "DRBL", about: "read block 0 of a private file", unit: "ops" };

/// One worker.
pub struct Drbl<T: Target> {
    file: T::File,
    block: Box<Block>,
}

impl<T: Target> Workload<T> for Drbl<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let file = cx.filled(&cx.private(id)?.join("data"), id, 1)?;
        Ok(Drbl { file, block: Block::new(id) })
    }

    #[inline]
    fn operate(&mut self, _: &T) -> Op<u32> {
        whole(self.file.read_at(&mut self.block.0, 0)?, BLOCK)
    }
}
