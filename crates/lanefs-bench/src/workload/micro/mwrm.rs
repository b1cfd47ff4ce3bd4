//! MWRM: rename files from a private directory into one shared directory.

use super::Movers;
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "MWRM", about: "rename from a private into a shared directory", unit: "ops" };

/// One worker.
pub struct Mwrm {
    files: Movers,
}

impl<T: Target> Workload<T> for Mwrm {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("shared"))
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let from = cx.private(id)?.join("f");
        let to = cx.path(&format!("shared/f{id}-"));
        Ok(Mwrm { files: Movers::new(cx, from, to)? })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        self.files.advance(target)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        self.files.back(cx)
    }
}
