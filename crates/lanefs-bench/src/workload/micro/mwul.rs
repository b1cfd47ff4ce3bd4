//! MWUL: unlink empty files in a private directory.

use super::{Files, stock};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MWUL", about: "unlink files in a private directory", unit: "ops" };

/// One worker.
pub struct Mwul {
    files: Files,
}

impl<T: Target> Workload<T> for Mwul {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut files = Files::new(&cx.private(id)?, "f");
        files.fill(cx, stock(cx))?;
        Ok(Mwul { files })
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
