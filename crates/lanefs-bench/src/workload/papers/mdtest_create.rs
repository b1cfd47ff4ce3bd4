//! mdtest-create: mdtest's file creation phase: 1,000 files in each of ten directories of one's
//! own.

use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::target::{Target, flags};
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "mdtest-create", about: "mdtest: create in a private tree", unit: "files" };

/// Directories of a worker's tree.
const DIRS: u64 = 10;

/// One worker's tree of files, used by the three phases.
pub struct Tree {
    path: Name,
    base: usize,
    /// Files in all when the tree is full.
    pub files: u64,
}

impl Tree {
    /// The empty tree of worker `id`.
    pub fn new<T: Target>(cx: &Cx<'_, T>, id: usize) -> Res<Tree> {
        let path = cx.private(id)?.join("mdtest_tree.");
        for dir in 0..DIRS {
            cx.ensure_dir(path.clone().num(dir))?;
        }
        Ok(Tree { base: path.len(), path, files: cx.params.scaled(1000, 10) * DIRS })
    }
    /// The path of file `n`.
    pub fn path(&mut self, n: u64) -> &Name {
        let dir = n * DIRS / self.files;
        self.path.cut(self.base).num(dir).push("/file.mdtest.").num(n)
    }
    /// Creates file `n`.
    pub fn create<T: Target>(&mut self, target: &T, n: u64) -> Op<()> {
        target.open(self.path(n), flags::NEW).map(drop)
    }
    /// Creates all.
    pub fn fill<T: Target>(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        (0..self.files).try_for_each(|n| self.create(cx.target, n)).at("creating the tree")
    }
}

/// One worker.
pub struct MdtestCreate {
    tree: Tree,
    made: u64,
}

impl<T: Target> Workload<T> for MdtestCreate {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        Ok(MdtestCreate { tree: Tree::new(cx, id)?, made: 0 })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        if self.made == self.tree.files {
            return Ok(0);
        }
        self.tree.create(target, self.made)?;
        self.made += 1;
        Ok(1)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        for n in 0..self.made {
            cx.target.unlink(self.tree.path(n)).at("unlink")?;
        }
        self.made = 0;
        Ok(())
    }
}
