//! The workloads: one small file each, behind one interface.
//!
//! A value of a workload type is *one worker's* state. The runner calls, in this order:
//! [`Workload::shared`] once; [`Workload::prepare`] on each pinned worker; then, round after round,
//! [`Workload::refill`] untimed and [`Workload::operate`] timed; [`Workload::finish`] at the end.
//! Whatever is left in the cell's place is removed by the target.
//!
//! Workloads that use something up (unlink, truncate, append) work on a bounded *stock* and answer
//! 0 when theirs is empty. Then the round is over for all workers, everybody refills, and the next
//! round starts for all at the same instant. So no run depends on how much fits on the device, no
//! worker runs alone because another one was early, and all time counted is time in which all
//! workers did the operation in question.

pub mod external;
pub mod micro;
pub mod papers;
pub mod yardsticks;

pub use crate::target::{Block, as_bytes, as_bytes_mut, buffer};

use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::target::{Target, TargetFile, flags};
use std::path::PathBuf;

/// The name of a workload, and the meaning of its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// The name on the command line and in the results.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The unit that `ops_per_s` counts.
    pub unit: &'static str,
}

/// The parameters of a workload.
#[derive(Clone, Debug)]
pub struct Params {
    /// Multiplies the number of files of the papers' workloads (1 is that of the papers).
    pub scale: f64,
    /// Files, or blocks, in a worker's stock, in place of a microbenchmark's own.
    pub stock: Option<u64>,
    /// The dbench loadfile to replay.
    pub loadfile: Option<PathBuf>,
}

impl Default for Params {
    fn default() -> Params {
        Params { scale: 1.0, stock: None, loadfile: None }
    }
}

impl Params {
    /// Returns `n` of the paper at this run's scale, at least `least`.
    pub fn scaled(&self, n: u64, least: u64) -> u64 {
        debug_assert!(self.scale > 0.0 && self.scale.is_finite());
        ((n as f64 * self.scale) as u64).max(least)
    }
}

/// The surroundings of a workload: the target, the number of workers, and the parameters.
pub struct Cx<'a, T> {
    /// The target it runs on.
    pub target: &'a T,
    /// The number of workers.
    pub workers: usize,
    /// The parameters.
    pub params: &'a Params,
}

/// One workload; a value is one worker's state.
pub trait Workload<T: Target>: Sized {
    /// One worker does all of it, on as many processors as there are to be workers: a program that
    /// has threads of its own.
    const ALONE: bool = false;
    /// Sets up what all workers share; called once, before any worker starts.
    fn shared(_cx: &Cx<'_, T>) -> Res<()> {
        Ok(())
    }
    /// Sets up worker `id`; runs on the worker, all workers at once.
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self>;
    /// Does the operation once and returns how many units that were; 0: the stock is empty and
    /// nothing was done.
    fn operate(&mut self, target: &T) -> Op<u32>;
    /// Brings the stock back to what it was. Called before every round but the first.
    fn refill(&mut self, _cx: &Cx<'_, T>) -> Res<()> {
        Ok(())
    }
    /// Ends the worker; the last call.
    fn finish(self, _cx: &Cx<'_, T>) -> Res<()> {
        Ok(())
    }
}

impl<T: Target> Cx<'_, T> {
    /// Returns a path in the cell's place.
    pub fn path(&self, text: &str) -> Name {
        self.target.prefix().join(text)
    }

    /// Returns worker `id`'s private directory, made if it is missing; it ends in a slash.
    pub fn private(&self, id: usize) -> Res<Name> {
        debug_assert!(id < self.workers, "worker {id} of {}", self.workers);
        let mut dir = self.path("");
        dir.num(id as u64);
        self.ensure_dir(&dir)?;
        Ok(dir.join("/"))
    }

    /// Makes a directory unless it exists.
    pub fn ensure_dir(&self, path: &Name) -> Res<()> {
        match self.target.mkdir(path) {
            Err(e) if e.0 == libc::EEXIST => Ok(()),
            other => other.at(format!("mkdir {path}")),
        }
    }

    /// Makes an empty file.
    pub fn touch(&self, path: &Name) -> Res<()> {
        self.target.open(path, flags::CREATE).map(drop).at(format!("creating {path}"))
    }

    /// Makes a data file of `blocks` blocks and leaves it open, cursor at the end.
    pub fn filled(&self, path: &Name, id: usize, blocks: u64) -> Res<T::File> {
        let file = self.target.open(path, flags::CREATE | flags::DATA).at(format!("creating {path}"))?;
        let block = Block::new(id);
        for _ in 0..blocks {
            write_all(&file, &block.0).at(format!("filling {path}"))?;
        }
        Ok(file)
    }
}

/// Writes all of `data` at the cursor; a short write means a full device.
pub fn write_all<F: TargetFile>(file: &F, data: &[u8]) -> Op<()> {
    match file.write(data)? {
        n if n == data.len() => Ok(()),
        _ => Err(crate::Errno(libc::ENOSPC)),
    }
}

/// Turns a count of bytes into one done operation, or an error if it is not what was asked.
#[inline]
pub fn whole(done: usize, asked: usize) -> Op<u32> {
    if done == asked { Ok(1) } else { Err(crate::Errno(libc::EIO)) }
}
