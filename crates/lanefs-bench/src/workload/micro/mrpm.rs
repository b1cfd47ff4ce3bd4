//! MRPM: stat random paths of five components in a shared tree of 8^4 directories with 8 files
//! each.
//!
//! The original draws its five digits from one generator whose low bits follow each other, and so
//! reaches 8 of the 32,768 paths; here all are reached, with equal probability.

use crate::error::{Op, Res};
use crate::name::Name;
use crate::rng::Rng;
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info = Info { name: "MRPM", about: "stat random paths in a shared tree", unit: "ops" };

/// Components of a path.
const DEPTH: usize = 5;

/// One worker.
pub struct Mrpm {
    path: Name,
    base: usize,
    rng: Rng,
}

/// Makes the tree below `path`, `depth` more levels, the last one files.
fn grow<T: Target>(cx: &Cx<'_, T>, path: &mut Name, depth: usize) -> Res<()> {
    let base = path.len();
    for digit in 0..8 {
        path.cut(base).num(digit);
        if depth == 1 {
            cx.touch(path)?;
        } else {
            cx.ensure_dir(path)?;
            path.push("/");
            grow(cx, path, depth - 1)?;
        }
    }
    path.cut(base);
    Ok(())
}

impl<T: Target> Workload<T> for Mrpm {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        grow(cx, &mut cx.path(""), DEPTH)
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let path = cx.path("");
        Ok(Mrpm { base: path.len(), path, rng: Rng::new(id as u64) })
    }

    #[inline]
    fn operate(&mut self, target: &T) -> Op<u32> {
        let mut bits = self.rng.draw();
        let mut text = *b"0/0/0/0/0";
        for component in 0..DEPTH {
            text[component * 2] += (bits & 7) as u8;
            bits >>= 3;
        }
        self.path.cut(self.base).push_bytes(&text);
        target.stat(&self.path)?;
        Ok(1)
    }
}
