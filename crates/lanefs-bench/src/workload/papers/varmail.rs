//! varmail: filebench's mail server. One turn deletes a message; writes one and fsyncs it; reads,
//! appends to and fsyncs another; reads a third: 13 operations. 1,000 files of 16 KiB in one
//! directory (Max table 4).

use super::fileset::FileSet;
use super::read_whole;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::{Target, TargetFile, flags};
use crate::workload::{Block, Cx, Info, Workload, as_bytes, buffer, write_all};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "varmail", about: "filebench varmail, all in one directory", unit: "filebench ops" };

/// Files in all.
const FILES: u64 = 1000;
/// Their mean size.
const MEAN: f64 = 16384.0;
/// Operations of one turn, as filebench counts.
const OPS: u32 = 13;

/// One worker, shared or private directory.
pub struct Mail {
    files: FileSet,
    text: Vec<Block>,
    buf: Vec<Block>,
}

impl Mail {
    /// Worker `id` with `files` files in `dir`.
    pub fn new<T: Target>(cx: &Cx<'_, T>, dir: &Name, id: usize, files: u64) -> Res<Mail> {
        let files = FileSet::new(cx, dir, &format!("m{id}-"), files, None, MEAN, id as u64)?;
        Ok(Mail { files, text: buffer(MEAN as usize), buf: buffer(1 << 20) })
    }

    /// One turn.
    pub fn turn<T: Target>(&mut self, target: &T) -> Op<u32> {
        target.unlink(self.files.remove()?)?;
        let created = target.open(self.files.create()?, flags::NEW)?;
        self.append(&created)?;
        drop(created);
        let open = target.open(self.files.existing()?, flags::APPEND)?;
        read_whole(&open, &mut self.buf)?;
        self.append(&open)?;
        drop(open);
        let open = target.open(self.files.existing()?, flags::READ)?;
        read_whole(&open, &mut self.buf)?;
        Ok(OPS)
    }

    /// filebench's appendfilerand (up to 16 KiB), then fsync.
    fn append<F: TargetFile>(&mut self, file: &F) -> Op<()> {
        let size = self.files.rng.below(MEAN as u64) as usize + 1;
        write_all(file, &as_bytes(&self.text)[..size])?;
        file.sync()
    }
}

/// One worker.
pub struct Varmail(Mail);

impl<T: Target> Workload<T> for Varmail {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("mail"))
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let files = cx.params.scaled(FILES, 100) / cx.workers as u64;
        Ok(Varmail(Mail::new(cx, &cx.path("mail/"), id, files.max(20))?))
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.0.turn(target)
    }
}
