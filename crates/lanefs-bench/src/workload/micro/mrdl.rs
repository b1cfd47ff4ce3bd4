//! MRDL: list a private directory, whole, from the start each time.
//!
//! The original never rewinds and times calls at the end of the directory; here an operation is one
//! listing and the rate counts entries. Latencies are those of one listing.

use super::{ENTRIES, Files};
use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MRDL", about: "list a private directory", unit: "entries" };

/// One worker.
pub struct Mrdl {
    dir: Name,
}

impl<T: Target> Workload<T> for Mrdl {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut dir = cx.private(id)?;
        Files::new(&dir, "f").fill(cx, ENTRIES)?;
        dir.cut(dir.len() - 1);
        Ok(Mrdl { dir })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        Ok(target.read_dir(&self.dir, |name, _| {
            std::hint::black_box(name);
        })? as u32)
    }
}
