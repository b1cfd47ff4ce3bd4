//! MRPL: stat a private path of five components.

use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MRPL", about: "stat a private five-component path", unit: "ops" };

/// One worker.
pub struct Mrpl {
    path: Name,
}

impl<T: Target> Workload<T> for Mrpl {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut path = cx.private(id)?;
        for _ in 0..3 {
            path.push("0");
            cx.ensure_dir(&path)?;
            path.push("/");
        }
        path.push("0");
        cx.touch(&path)?;
        Ok(Mrpl { path })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        target.stat(&self.path)?;
        Ok(1)
    }
}
