//! DWAL: append 4 KiB to a private file in a private directory.

use super::stock;
use crate::error::{Context, Op, Res};
use crate::target::{BLOCK, Target, TargetFile, flags};
use crate::workload::{Block, Cx, Info, Workload, whole};

/// The workload's name and description.
pub const INFO: Info = Info { name: "DWAL", about: "append 4 KiB to a private file", unit: "ops" };

/// One worker.
pub struct Dwal<T: Target> {
    file: T::File,
    block: Box<Block>,
    /// Blocks in the file; it is cut back to nothing, untimed, when there are `stock`.
    appended: u64,
    stock: u64,
}

impl<T: Target> Workload<T> for Dwal<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let path = cx.private(id)?.join("append");
        let file = cx.target.open(&path, flags::CREATE | flags::DATA).at("creating the file")?;
        let mut worker = Dwal { file, block: Block::new(id), appended: 0, stock: stock(cx) };
        // Once as long as it will become: memory that the system has never given out before is not
        // what is measured.
        while worker.operate(cx.target).at("appending")? > 0 {}
        worker.refill(cx)?;
        Ok(worker)
    }

    #[inline]
    fn operate(&mut self, _: &T) -> Op<u32> {
        if self.appended == self.stock {
            return Ok(0);
        }
        debug_assert!(self.appended < self.stock);
        self.appended += 1;
        whole(self.file.write(&self.block.0)?, BLOCK)
    }

    fn refill(&mut self, _: &Cx<'_, T>) -> Res<()> {
        self.file.set_len(0).at("truncating")?;
        self.file.rewind().at("rewinding")?;
        self.appended = 0;
        Ok(())
    }
}
