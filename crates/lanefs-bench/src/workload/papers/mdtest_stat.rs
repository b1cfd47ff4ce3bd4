//! mdtest-stat: mdtest's stat phase, over the tree that mdtest-create makes.

use super::mdtest_create::Tree;
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "mdtest-stat", about: "mdtest: stat in a private tree", unit: "files" };

/// One worker.
pub struct MdtestStat {
    tree: Tree,
    n: u64,
}

impl<T: Target> Workload<T> for MdtestStat {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut tree = Tree::new(cx, id)?;
        tree.fill(cx)?;
        Ok(MdtestStat { tree, n: 0 })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        target.stat(self.tree.path(self.n))?;
        self.n = (self.n + 1) % self.tree.files;
        Ok(1)
    }
}
