//! DWTL: truncate a private file, 4 KiB shorter each time.

use super::stock;
use crate::error::{Context, Op, Res};
use crate::target::{BLOCK, Target, TargetFile};
use crate::workload::{Cx, Info, Workload, as_bytes, buffer, write_all};

/// The workload's name and description.
pub const INFO: Info = Info { name: "DWTL", about: "truncate a private file by 4 KiB", unit: "ops" };

/// One worker.
pub struct Dwtl<T: Target> {
    file: T::File,
    blocks: u64,
}

impl<T: Target> Workload<T> for Dwtl<T> {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let file = cx.filled(&cx.private(id)?.join("data"), id, 0)?;
        let mut worker = Dwtl { file, blocks: 0 };
        worker.refill(cx)?;
        Ok(worker)
    }

    #[inline]
    fn operate(&mut self, _: &T) -> Op<u32> {
        if self.blocks == 0 {
            return Ok(0);
        }
        self.blocks -= 1;
        self.file.set_len(self.blocks * BLOCK as u64)?;
        Ok(1)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        self.file.set_len(0).at("truncating")?;
        self.file.rewind().at("rewinding")?;
        let chunk = buffer(16 * BLOCK);
        for _ in 0..stock(cx) / 16 {
            write_all(&self.file, as_bytes(&chunk)).at("refilling the file")?;
        }
        self.blocks = stock(cx) / 16 * 16;
        Ok(())
    }
}
