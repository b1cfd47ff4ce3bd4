//! MWCM: create empty files in one shared directory.

use super::{Files, stock};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MWCM", about: "create files in a shared directory", unit: "ops" };

/// One worker.
pub struct Mwcm {
    files: Files,
    stock: u64,
}

impl<T: Target> Workload<T> for Mwcm {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("shared"))
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        Ok(Mwcm { files: Files::new(&cx.path("shared/"), &format!("f{id}-")), stock: stock(cx) })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        if self.files.len() == self.stock {
            return Ok(0);
        }
        self.files.create(target)?;
        Ok(1)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        self.files.clear(cx)
    }
}
