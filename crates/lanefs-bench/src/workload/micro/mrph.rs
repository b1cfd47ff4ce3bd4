//! MRPH: all stat the same path of five components.

use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MRPH", about: "stat the same five-component path", unit: "ops" };

/// One worker.
pub struct Mrph {
    path: Name,
}

impl<T: Target> Workload<T> for Mrph {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        let mut path = cx.path("");
        for _ in 0..4 {
            path.push("0");
            cx.ensure_dir(&path)?;
            path.push("/");
        }
        cx.touch(path.push("0"))
    }

    fn prepare(cx: &Cx<'_, T>, _: usize) -> Res<Self> {
        Ok(Mrph { path: cx.path("0/0/0/0/0") })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        target.stat(&self.path)?;
        Ok(1)
    }
}
