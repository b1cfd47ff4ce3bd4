//! mdtest-remove: mdtest's removal phase, over the tree that mdtest-create makes.

use super::mdtest_create::Tree;
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "mdtest-remove", about: "mdtest: unlink in a private tree", unit: "files" };

/// One worker.
pub struct MdtestRemove {
    tree: Tree,
    removed: u64,
}

impl<T: Target> Workload<T> for MdtestRemove {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let mut tree = Tree::new(cx, id)?;
        tree.fill(cx)?;
        Ok(MdtestRemove { tree, removed: 0 })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        if self.removed == self.tree.files {
            return Ok(0);
        }
        target.unlink(self.tree.path(self.removed))?;
        self.removed += 1;
        Ok(1)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        use crate::error::Context;
        for n in 0..self.removed {
            self.tree.create(cx.target, n).at("creating the tree again")?;
        }
        self.removed = 0;
        Ok(())
    }
}
