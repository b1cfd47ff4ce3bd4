//! filebench's filesets: numbered files, some of which exist.
//!
//! In filebench the threads share one fileset and pick files under a lock. Here each worker owns a
//! part of the numbers, in the same directories, so that the workload's own lock is not what is
//! measured.

use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::rng::Rng;
use crate::target::{Target, flags};
use crate::workload::{Cx, buffer};

/// The share of files that exist at the start, in per cent.
const PREALLOC: u64 = 80;

/// One worker's part of a fileset.
pub struct FileSet {
    name: Name,
    base: usize,
    /// Files per directory; `None`: all in one.
    width: Option<u64>,
    present: Vec<u32>,
    absent: Vec<u32>,
    /// Randomness for everything the worker picks.
    pub rng: Rng,
}

impl FileSet {
    /// Makes a part of `files` files below `dir` (which ends in a slash), gamma distributed sizes
    /// around `mean` bytes, of which 80 % are made now. `tag` keeps the names of workers apart.
    pub fn new<T: Target>(
        cx: &Cx<'_, T>,
        dir: &Name,
        tag: &str,
        files: u64,
        width: Option<u64>,
        mean: f64,
        seed: u64,
    ) -> Res<FileSet> {
        let name = dir.join(tag);
        let mut set = FileSet {
            base: name.len(),
            name,
            width,
            present: Vec::new(),
            absent: (0..files as u32).rev().collect(),
            rng: Rng::new(seed),
        };
        if let Some(width) = width {
            // Directories `width` wide on both levels, as filebench's `dirwidth` makes them.
            for leaf in 0..files.div_ceil(width) {
                cx.ensure_dir(set.name.cut(set.base).num(leaf / width))?;
                cx.ensure_dir(set.name.push("/").num(leaf))?;
            }
        }
        debug_assert!(width != Some(0) && u32::try_from(files).is_ok());
        let data = buffer(1 << 20);
        for _ in 0..(files * PREALLOC / 100).max(1) {
            let Some(n) = set.absent.pop() else { break };
            let size = set.rng.gamma(mean) as u64;
            let file = cx.target.open(set.path(n), flags::CREATE).at("making the fileset")?;
            super::write_bytes(&file, crate::workload::as_bytes(&data), size).at("filling the fileset")?;
            set.present.push(n);
        }
        debug_assert_eq!((set.present.len() + set.absent.len()) as u64, files, "each exists or does not");
        Ok(set)
    }

    fn path(&mut self, n: u32) -> &Name {
        self.name.cut(self.base);
        if let Some(width) = self.width {
            let leaf = u64::from(n) / width;
            self.name.num(leaf / width).push("/").num(leaf).push("/");
        }
        self.name.num(u64::from(n))
    }

    /// Returns a file that exists, any.
    pub fn existing(&mut self) -> Op<&Name> {
        if self.present.is_empty() {
            return Err(crate::Errno(libc::ENOENT));
        }
        let at = self.rng.below(self.present.len() as u64) as usize;
        Ok(self.path(self.present[at]))
    }

    /// Returns a file that exists and from now on does not: for the caller to remove.
    pub fn remove(&mut self) -> Op<&Name> {
        if self.present.is_empty() {
            return Err(crate::Errno(libc::ENOENT));
        }
        let at = self.rng.below(self.present.len() as u64) as usize;
        let n = self.present.swap_remove(at);
        self.absent.push(n);
        Ok(self.path(n))
    }

    /// Returns a file that does not exist and from now on does: for the caller to create.
    pub fn create(&mut self) -> Op<&Name> {
        if self.absent.is_empty() {
            return Err(crate::Errno(libc::EEXIST));
        }
        let at = self.rng.below(self.absent.len() as u64) as usize;
        let n = self.absent.swap_remove(at);
        self.present.push(n);
        Ok(self.path(n))
    }
}
