//! dbench-sync: dbench with `--sync-dir`, as ScaleFS runs it (SOSP'17, 7.4): each unlink and each
//! rename is followed by an fsync of the directory.

use super::dbench::Dbench;
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "dbench-sync", about: "dbench, directories synced after unlink and rename", unit: "calls" };

/// One worker.
pub struct DbenchSync<T: Target>(Dbench<T>);

impl<T: Target> Workload<T> for DbenchSync<T> {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        Dbench::shared(cx)
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        Ok(DbenchSync(Dbench::new(cx, id, true)?))
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.0.operate(target)
    }
}
