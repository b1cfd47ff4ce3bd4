//! smallfile (ScaleFS 7.4): create a file, write 1 KiB, fsync, delete; spread over 100 directories
//! shared by all.

use super::create_synced;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info {
    name: "smallfile",
    about: "create, write 1 KiB, fsync, delete, in 100 directories",
    unit: "files",
};

/// Directories.
const DIRS: u64 = 100;

/// One worker.
pub struct Smallfile {
    id: u64,
    path: Name,
    base: usize,
    n: u64,
}

impl<T: Target> Workload<T> for Smallfile {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        for dir in 0..DIRS {
            cx.ensure_dir(&cx.path(&format!("d{dir}")))?;
        }
        Ok(())
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let path = cx.path("d");
        Ok(Smallfile { id: id as u64, base: path.len(), path, n: 0 })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.path.cut(self.base).num(self.n % DIRS).push("/f").num(self.id).push("-").num(self.n);
        self.n += 1;
        create_synced(target, &self.path, &[0x5a; 1024])?;
        target.unlink(&self.path)?;
        Ok(1)
    }
}
