//! create-unlink: each operation creates an empty file in a private directory and removes the
//! oldest of those there. The directory keeps its size, so it can go on for as long as one likes.

use super::{Files, STOCK};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "create-unlink", about: "create a file and unlink the oldest", unit: "pairs" };

/// One worker.
pub struct CreateUnlink {
    files: Files,
}

impl<T: Target> Workload<T> for CreateUnlink {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut files = Files::new(&cx.private(id)?, "f");
        files.fill(cx, cx.params.scaled(STOCK, 64))?;
        Ok(CreateUnlink { files })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        self.files.create(target)?;
        self.files.remove(target)?;
        Ok(1)
    }
}
