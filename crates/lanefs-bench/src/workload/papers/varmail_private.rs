//! varmail-private: varmail with a directory of its own for each worker (ScaleXFS's varmail-ptd).

use super::varmail::Mail;
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "varmail-private", about: "varmail, a directory per worker", unit: "filebench ops" };

/// One worker.
pub struct VarmailPrivate(Mail);

impl<T: Target> Workload<T> for VarmailPrivate {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let files = cx.params.scaled(1000, 100) / cx.workers as u64;
        Ok(VarmailPrivate(Mail::new(cx, &cx.private(id)?, id, files.max(20))?))
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.0.turn(target)
    }
}
