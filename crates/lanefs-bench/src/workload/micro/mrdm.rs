//! MRDM: all list one shared directory, whole, from the start each time; the rate counts entries
//! (see MRDL).

use super::{ENTRIES, Files};
use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MRDM", about: "list a shared directory", unit: "entries" };

/// One worker.
pub struct Mrdm {
    dir: Name,
}

impl<T: Target> Workload<T> for Mrdm {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("shared"))?;
        Files::new(&cx.path("shared/"), "f").fill(cx, ENTRIES)
    }

    fn prepare(cx: &Cx<'_, T>, _: usize) -> Res<Self> {
        Ok(Mrdm { dir: cx.path("shared") })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        Ok(target.read_dir(&self.dir, |name, _| {
            std::hint::black_box(name);
        })? as u32)
    }
}
