//! fileserver: filebench's. One turn creates and writes a file, appends to one, reads one, deletes
//! one and stats one: 11 operations. 10,000 files of 128 KiB, directories 20 wide, I/O of 1 MiB
//! (Max table 4).

use super::fileset::FileSet;
use super::{read_whole, write_bytes};
use crate::error::{Op, Res};
use crate::target::{Target, flags};
use crate::workload::{Block, Cx, Info, Workload, as_bytes, buffer, write_all};

/// The workload's name and description.
pub const INFO: Info = Info { name: "fileserver", about: "filebench fileserver", unit: "filebench ops" };

const FILES: u64 = 10_000;
const MEAN: f64 = 131_072.0;
const APPEND: u64 = 16384;
const OPS: u32 = 11;

/// One worker.
pub struct Fileserver {
    files: FileSet,
    text: Vec<Block>,
    buf: Vec<Block>,
}

impl<T: Target> Workload<T> for Fileserver {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let files = cx.params.scaled(FILES, 100) / cx.workers as u64;
        let dir = cx.private(id)?;
        let files = FileSet::new(cx, &dir, "d", files.max(20), Some(20), MEAN, id as u64)?;
        Ok(Fileserver { files, text: buffer(1 << 20), buf: buffer(1 << 20) })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        let size = self.files.rng.gamma(MEAN) as u64;
        let file = target.open(self.files.create()?, flags::NEW)?;
        write_bytes(&file, as_bytes(&self.text), size)?;
        drop(file);
        let size = self.files.rng.below(APPEND) as usize + 1;
        let file = target.open(self.files.existing()?, flags::APPEND)?;
        write_all(&file, &as_bytes(&self.text)[..size])?;
        drop(file);
        let file = target.open(self.files.existing()?, flags::READ)?;
        read_whole(&file, &mut self.buf)?;
        drop(file);
        target.unlink(self.files.remove()?)?;
        target.stat(self.files.existing()?)?;
        Ok(OPS)
    }
}
