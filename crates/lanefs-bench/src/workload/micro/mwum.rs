//! MWUM: unlink empty files in one shared directory, each worker its own.

use super::{Files, stock};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MWUM", about: "unlink files in a shared directory", unit: "ops" };

/// One worker.
pub struct Mwum {
    files: Files,
}

impl<T: Target> Workload<T> for Mwum {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("shared"))
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut files = Files::new(&cx.path("shared/"), &format!("f{id}-"));
        files.fill(cx, stock(cx))?;
        Ok(Mwum { files })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        if self.files.len() == 0 {
            return Ok(0);
        }
        self.files.remove(target)?;
        Ok(1)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        self.files.fill(cx, stock(cx))
    }
}
