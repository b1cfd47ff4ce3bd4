//! max-fig1 (Max, figure 1): create a file in a directory of one's own, write 4 KiB, fsync, delete.

use super::create_synced;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Block, Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "max-fig1", about: "create, write 4 KiB, fsync, unlink, private directory", unit: "files" };

/// One worker.
pub struct Fig1 {
    path: Name,
    base: usize,
    n: u64,
    block: Box<Block>,
}

impl<T: Target> Workload<T> for Fig1 {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let path = cx.private(id)?.join("f");
        Ok(Fig1 { base: path.len(), path, n: 0, block: Block::new(id) })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.path.cut(self.base).num(self.n);
        self.n += 1;
        create_synced(target, &self.path, &self.block.0)?;
        target.unlink(&self.path)?;
        Ok(1)
    }
}
