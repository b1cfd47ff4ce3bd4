//! DRBH: all read the same block of one shared file.

use crate::error::{Context, Op, Res};
use crate::target::{BLOCK, Target, TargetFile, flags};
use crate::workload::{Block, Cx, Info, Workload, whole};

/// The workload's name and description.
pub const INFO: Info = Info { name: "DRBH", about: "read the same block of a shared file", unit: "ops" };

/// One worker.
pub struct Drbh<T: Target> {
    file: T::File,
    block: Box<Block>,
}

impl<T: Target> Workload<T> for Drbh<T> {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.filled(&cx.path("shared.dat"), 0, 1).map(drop)
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let path = cx.path("shared.dat");
        let file = cx.target.open(&path, flags::RW | flags::DATA).at("opening the shared file")?;
        Ok(Drbh { file, block: Block::new(id) })
    }

    #[inline]
    fn operate(&mut self, _: &T) -> Op<u32> {
        whole(self.file.read_at(&mut self.block.0, 0)?, BLOCK)
    }
}
