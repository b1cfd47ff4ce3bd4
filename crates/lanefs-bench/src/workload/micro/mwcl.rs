//! MWCL: create empty files in a private directory.

use super::{Files, stock};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MWCL", about: "create files in a private directory", unit: "ops" };

/// One worker.
pub struct Mwcl {
    files: Files,
    stock: u64,
}

impl<T: Target> Workload<T> for Mwcl {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        Ok(Mwcl { files: Files::new(&cx.private(id)?, "f"), stock: stock(cx) })
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
