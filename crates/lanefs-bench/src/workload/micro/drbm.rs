//! DRBM: read a private block, 8 MiB apart, of one shared file.

use super::REGION;
use crate::error::{Context, Op, Res};
use crate::target::{BLOCK, Target, TargetFile, flags};
use crate::workload::{Block, Cx, Info, Workload, whole};

/// The workload's name and description.
pub const INFO: Info = Info { name: "DRBM", about: "read a private block of a shared file", unit: "ops" };

/// One worker.
pub struct Drbm<T: Target> {
    file: T::File,
    block: Box<Block>,
    offset: u64,
}

impl<T: Target> Workload<T> for Drbm<T> {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        super::shared_regions(cx)
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let path = cx.path("shared.dat");
        let file = cx.target.open(&path, flags::RW | flags::DATA).at("opening the shared file")?;
        Ok(Drbm { file, block: Block::new(id), offset: REGION * id as u64 })
    }

    #[inline]
    fn operate(&mut self, _: &T) -> Op<u32> {
        whole(self.file.read_at(&mut self.block.0, self.offset)?, BLOCK)
    }
}
