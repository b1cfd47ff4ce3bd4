//! largefile (ScaleFS 7.4): each worker creates a file of 100 MB in one shared directory and fsyncs
//! it. The rate counts megabytes; latencies are those of a whole file.

use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::target::{Target, TargetFile, flags};
use crate::workload::{Block, Cx, Info, Workload, as_bytes, buffer, write_all};

/// The workload's name and description.
pub const INFO: Info = Info { name: "largefile", about: "create and fsync a 100 MB file", unit: "MB" };

/// One worker.
pub struct Largefile {
    path: Name,
    data: Vec<Block>,
    megabytes: u32,
    written: bool,
}

impl<T: Target> Workload<T> for Largefile {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("large"))
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let megabytes = cx.params.scaled(100, 1) as u32;
        let path = cx.path(&format!("large/f{id}"));
        Ok(Largefile { path, data: buffer(1 << 20), megabytes, written: false })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        if self.written {
            return Ok(0);
        }
        let file = target.open(&self.path, flags::NEW | flags::DATA)?;
        for _ in 0..self.megabytes {
            write_all(&file, as_bytes(&self.data))?;
        }
        file.sync()?;
        self.written = true;
        Ok(self.megabytes)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        if self.written {
            cx.target.unlink(&self.path).at("unlink")?;
            self.written = false;
        }
        Ok(())
    }
}
