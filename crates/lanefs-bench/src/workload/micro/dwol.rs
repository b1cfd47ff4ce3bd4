//! DWOL: overwrite block 0 of a private file.

use crate::error::{Op, Res};
use crate::target::{BLOCK, Target, TargetFile};
use crate::workload::{Block, Cx, Info, Workload, whole};

/// The workload's name and description.
pub const INFO: Info = Info { name: "DWOL", about: "overwrite block 0 of a private file", unit: "ops" };

/// One worker.
pub struct Dwol<T: Target> {
    file: T::File,
    block: Box<Block>,
}

impl<T: Target> Workload<T> for Dwol<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let file = cx.filled(&cx.private(id)?.join("data"), id, 1)?;
        Ok(Dwol { file, block: Block::new(id) })
    }

    #[inline]
    fn operate(&mut self, _: &T) -> Op<u32> {
        whole(self.file.write_at(&self.block.0, 0)?, BLOCK)
    }
}
