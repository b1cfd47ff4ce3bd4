//! MWRL: rename a file in a private directory, always to a new name.

use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MWRL", about: "rename in a private directory", unit: "ops" };

/// One worker.
pub struct Mwrl {
    /// The file's name is `names[n & 1]`, ending in the number `n`.
    names: [Name; 2],
    base: usize,
    n: u64,
}

impl<T: Target> Workload<T> for Mwrl {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut name = cx.private(id)?.join("f");
        let base = name.len();
        cx.touch(name.num(0))?;
        Ok(Mwrl { names: [name.clone(), name], base, n: 0 })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        let [even, odd] = &mut self.names;
        let (old, new) = if self.n & 1 == 0 { (even, odd) } else { (odd, even) };
        new.cut(self.base).num(self.n + 1);
        target.rename(old, new)?;
        self.n += 1;
        Ok(1)
    }
}
