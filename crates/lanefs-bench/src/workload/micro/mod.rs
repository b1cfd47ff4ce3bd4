//! FxMark's nineteen, and what they lack. Names: D data or M metadata; R read or W write; then the
//! operation; then L low, M medium or H high sharing.

pub mod create_unlink;
pub mod drbh;
pub mod drbl;
pub mod drbm;
pub mod dwal;
pub mod dwol;
pub mod dwom;
pub mod dwsl;
pub mod dwtl;
pub mod mrdl;
pub mod mrdm;
pub mod mrph;
pub mod mrpl;
pub mod mrpm;
pub mod mwcl;
pub mod mwcm;
pub mod mwrl;
pub mod mwrm;
pub mod mwul;
pub mod mwum;

use super::Cx;
use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::target::{Target, flags};

/// Distance between the private blocks of a shared file.
pub const REGION: u64 = 8 << 20;
/// Files, or blocks, in a worker's stock.
const STOCK: u64 = 16384;
/// Entries in a directory that is listed.
pub const ENTRIES: u64 = 1024;

/// Makes the shared file of DWOM and DRBM: a region of 8 MiB for each worker, written out in full
/// and synced.
pub(super) fn shared_regions<T: Target>(cx: &Cx<'_, T>) -> Res<()> {
    use crate::target::TargetFile;
    let path = cx.path("shared.dat");
    let file = cx.target.open(&path, flags::CREATE | flags::DATA).at("creating the shared file")?;
    let chunk = super::buffer(1 << 20);
    debug_assert!(REGION.is_multiple_of(1 << 20), "regions are filled by whole chunks");
    for _ in 0..cx.workers as u64 * (REGION >> 20) {
        super::write_all(&file, super::as_bytes(&chunk)).at("filling the shared file")?;
    }
    file.sync().at("syncing the shared file")
}

/// Returns how much a worker has in stock: the same for all targets, so that directories and files
/// are equally large.
pub(super) fn stock<T: Target>(cx: &Cx<'_, T>) -> u64 {
    cx.params.stock.unwrap_or_else(|| cx.params.scaled(STOCK, 64))
}

/// Numbered files in one directory: what creators and removers work on.
pub(super) struct Files {
    name: Name,
    base: usize,
    /// The files `first..next` exist.
    first: u64,
    next: u64,
}

impl Files {
    /// Makes a set of none yet; their paths are `dir`, `tag` and a number.
    pub fn new(dir: &Name, tag: &str) -> Files {
        let name = dir.join(tag);
        Files { base: name.len(), name, first: 0, next: 0 }
    }
    /// Returns how many exist.
    pub fn len(&self) -> u64 {
        debug_assert!(self.first <= self.next, "more were removed than made");
        self.next - self.first
    }
    fn path(&mut self, n: u64) -> &Name {
        self.name.cut(self.base).num(n)
    }
    /// Creates and closes the next file. Names are never used twice.
    #[inline]
    pub fn create<T: Target>(&mut self, target: &T) -> Op<()> {
        let n = self.next;
        let file = target.open(self.path(n), flags::NEW)?;
        self.next += 1;
        drop(file);
        Ok(())
    }
    /// Removes the oldest file.
    #[inline]
    pub fn remove<T: Target>(&mut self, target: &T) -> Op<()> {
        debug_assert!(self.len() > 0, "none is left");
        let n = self.first;
        target.unlink(self.path(n))?;
        self.first += 1;
        Ok(())
    }
    /// Creates until there are `n`.
    pub fn fill<T: Target>(&mut self, cx: &Cx<'_, T>, n: u64) -> Res<()> {
        while self.len() < n {
            self.create(cx.target).at("creating the stock")?;
        }
        Ok(())
    }
    /// Removes all.
    pub fn clear<T: Target>(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        while self.len() > 0 {
            self.remove(cx.target).at("removing what was created")?;
        }
        Ok(())
    }
}

/// Files that move between two directories.
pub(super) struct Movers {
    from: Name,
    to: Name,
    bases: (usize, usize),
    stock: u64,
    /// The files `0..moved` are in `to`, the rest in `from`.
    moved: u64,
}

impl Movers {
    /// Makes the stock in `from`.
    pub fn new<T: Target>(cx: &Cx<'_, T>, from: Name, to: Name) -> Res<Movers> {
        let mut m = Movers { bases: (from.len(), to.len()), stock: stock(cx), from, to, moved: 0 };
        for n in 0..m.stock {
            m.from.cut(m.bases.0).num(n);
            cx.touch(&m.from)?;
        }
        Ok(m)
    }
    /// Moves the next file; 0 when all are moved.
    #[inline]
    pub fn advance<T: Target>(&mut self, target: &T) -> Op<u32> {
        if self.moved == self.stock {
            return Ok(0);
        }
        self.from.cut(self.bases.0).num(self.moved);
        self.to.cut(self.bases.1).num(self.moved);
        target.rename(&self.from, &self.to)?;
        self.moved += 1;
        debug_assert!(self.moved <= self.stock);
        Ok(1)
    }
    /// Moves all back.
    pub fn back<T: Target>(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        while self.moved > 0 {
            let n = self.moved - 1;
            self.from.cut(self.bases.0).num(n);
            self.to.cut(self.bases.1).num(n);
            cx.target.rename(&self.to, &self.from).at("moving back")?;
            self.moved = n;
        }
        Ok(())
    }
}
