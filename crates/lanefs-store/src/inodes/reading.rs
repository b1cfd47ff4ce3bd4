//! The read path: inodes, pages, buckets. Nothing here holds a lock over a read of the device.

use crate::api::*;
use crate::error::{FILE_DATA, Result, StoreError};
use crate::inodes::Inodes;
use crate::inodes::cache::CachedInode;
use crate::log::io::Io;
use crate::log::neighbours::PIECE_MOST;
use crate::tree::block_io::BlockSource;
use crate::tree::directory;
use crate::tree::inode_state::{InodeState, PageAt};
use crate::tree::radix::{Found, Wanted};
use lanefs_format::checksum;
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, BlockRef, Ino};
use smallvec::SmallVec;

impl Inodes {
    /// Runs `ask` on an inode's state, reading what it misses with the lock released.
    pub(crate) fn ask<T>(
        &self,
        inode: &CachedInode,
        io: &Io,
        mut ask: impl FnMut(&InodeState) -> Found<T>,
    ) -> Result<T> {
        loop {
            let wanted = match ask(&inode.lock().state) {
                Found::Here(t) => return Ok(t),
                Found::Missing(w) => w,
            };
            let r = io.read(wanted.r, wanted.what);
            let mut inner = inode.lock();
            match r {
                Ok(b) => {
                    inner.state.install(&wanted, &b)?;
                    self.cache.update_weight(inode.ino, &mut inner);
                }
                // It may have been replaced and its block reused meanwhile; only if it is still
                // asked for it is bad.
                Err(e) => match ask(&inner.state) {
                    Found::Missing(again) if again == wanted => return Err(e),
                    _ => {}
                },
            }
        }
    }

    /// Returns an inode's durable and submitted state; `None` if the store does not know it.
    pub fn image(&self, ino: Ino, io: &Io) -> Result<Option<InodeImage>> {
        let Some(inode) = self.get(ino, io)? else { return Ok(None) };
        loop {
            let (len, refs) = {
                let i = inode.lock();
                if i.gone {
                    return Ok(None);
                }
                match i.state.xattrs() {
                    Ok(x) => return Ok(Some(image_of(&i.state, x.to_vec()))),
                    Err((len, refs)) => (len, refs.to_vec()),
                }
            };
            let blob = crate::tree::inode_state::read_xattrs(ino, len, &refs, io);
            let i = inode.lock();
            match i.state.xattrs() {
                Err((_, now)) if now == refs => return Ok(Some(image_of(&i.state, blob?))),
                _ => {} // They changed meanwhile.
            }
        }
    }

    /// Fills each block of `pages`, from page `first` on; every block is verified. A hole is zeros,
    /// and marked as one.
    pub fn read_pages(
        &self,
        ino: Ino,
        first: u64,
        pages: &mut [PageRead<'_>],
        io: &Io,
        wait_for_writes: impl Fn(),
    ) -> Result<()> {
        let Some(inode) = self.get(ino, io)? else {
            // Nothing was submitted of it yet.
            for p in pages {
                p.block.0.fill(0);
                p.hole = true;
            }
            return Ok(());
        };
        let mut todo: Vec<usize> = (0..pages.len()).collect();
        let mut patience = 0;
        let mut failed: Option<(Vec<(usize, BlockRef)>, StoreError)> = None;
        loop {
            let mut refs: Vec<(usize, BlockRef)> = Vec::with_capacity(todo.len());
            let mut at = 0;
            while at < todo.len() {
                // As many as the map knows, under one lock; then the node that is missing, without
                // it.
                let n = self.ask(&inode, io, |s| {
                    let (from, refs) = (at, &mut refs);
                    while at < todo.len() {
                        let n = todo[at];
                        match s.lookup(first + n as u64) {
                            Found::Missing(w) if at == from => return Found::Missing(w),
                            Found::Missing(_) => break,
                            Found::Here(PageAt::Block(r)) => refs.push((n, r)),
                            Found::Here(PageAt::Inline(b)) => {
                                pages[n].block.0[..b.len()].copy_from_slice(b);
                                pages[n].block.0[b.len()..].fill(0);
                                pages[n].hole = false;
                            }
                            Found::Here(PageAt::Hole) => {
                                pages[n].block.0.fill(0);
                                pages[n].hole = !s.prealloc().contains(first + n as u64);
                            }
                        }
                        at += 1;
                    }
                    Found::Here(at)
                })?;
                debug_assert_eq!(n, at);
            }
            debug_assert!(todo.is_sorted() && refs.len() <= todo.len(), "each page is read once");
            let bad = match (failed.take(), read_verified(pages, &refs, io)) {
                (_, Ok(bad)) => bad,
                // Still mapped, and still not to be read.
                (Some((before, _)), Err(e)) if before == refs => return Err(e),
                // Moved meanwhile, perhaps, and its device is shorter now or gone.
                (_, Err(e)) => {
                    failed = Some((refs, e));
                    continue;
                }
            };
            if bad.is_empty() {
                return Ok(());
            }
            // A block that does not verify may be on its way to the device, or moved and reused
            // since the map was asked. Wait for writes under way once, and believe only what is
            // still mapped and still wrong.
            patience += 1;
            if patience > 2 {
                let (n, r) = bad[0];
                let why =
                    format!("the data of page {} of inode {ino} has a wrong checksum", first + n as u64);
                return Err(StoreError::Corrupt { addr: r.addr, what: FILE_DATA, why });
            }
            if patience == 2 {
                wait_for_writes();
            }
            todo = bad.into_iter().map(|(n, _)| n).collect();
        }
    }

    /// Returns the first page at or after `page` that holds data.
    pub fn next_data(&self, ino: Ino, page: u64, io: &Io) -> Result<Option<u64>> {
        // An inode of which nothing was submitted yet holds no data.
        let Some(inode) = self.get(ino, io)? else { return Ok(None) };
        let found = self.ask(&inode, io, |s| s.next_data(page))?;
        debug_assert!(found.is_none_or(|at| at >= page), "page {found:?} was asked for from {page} on");
        Ok(found)
    }

    /// Returns the first page at or after `page` that holds none.
    pub fn next_hole(&self, ino: Ino, page: u64, io: &Io) -> Result<Option<u64>> {
        let Some(inode) = self.get(ino, io)? else { return Ok(Some(page)) };
        let found = self.ask(&inode, io, |s| s.next_hole(page).map(Some))?;
        debug_assert!(found.is_some_and(|at| at >= page), "page {found:?} was asked for from {page} on");
        Ok(found)
    }

    /// Reads a map node with the inode's lock released. It may have been replaced and its block
    /// reused meanwhile: only if it `is_asked` for still it is bad.
    pub fn read_node(
        &self,
        inode: &CachedInode,
        w: &Wanted,
        io: &Io,
        is_asked: impl Fn(&InodeState) -> Option<Wanted>,
    ) -> Result<()> {
        let read = io.read(w.r, w.what);
        let mut inner = inode.lock();
        match read {
            Ok(b) => inner.state.install(w, &b),
            Err(e) if is_asked(&inner.state).as_ref() == Some(w) => Err(e),
            Err(_) => Ok(()),
        }
    }

    /// Returns the folded bucket of directory `ino` that covers `cookie`.
    pub fn bucket(&self, ino: Ino, cookie: u64, io: &Io) -> Result<BucketImage> {
        let inode = self
            .get(ino, io)?
            .ok_or_else(|| StoreError::Invalid(format!("directory {ino} does not exist")))?;
        let mut tries = 0;
        loop {
            match directory::load_bucket(&*inode, io, cookie) {
                // The bucket may have been rewritten and its block reused since the map was asked.
                Err(StoreError::Corrupt { .. }) if tries < 2 => tries += 1,
                other => {
                    if let Ok(b) = &other {
                        debug_assert!((b.low..=b.high).contains(&cookie), "not the bucket of {cookie:#x}");
                    }
                    return other;
                }
            }
        }
    }
}

fn image_of(s: &InodeState, xattrs: Vec<u8>) -> InodeImage {
    let end = s.attrs().size.div_ceil(BLOCK_SIZE as u64);
    InodeImage {
        attrs: *s.attrs(),
        nlink: s.nlink_shown(),
        parent: s.parent(),
        blocks: s.blocks(),
        unwritten: s.unwritten(),
        behind: s.prealloc().pages_in(&(end..u64::MAX)),
        xattrs,
    }
}

/// Reads the blocks of `refs` into their pages and returns those that do not verify.
fn read_verified(
    pages: &mut [PageRead<'_>],
    refs: &[(usize, BlockRef)],
    io: &Io,
) -> Result<Vec<(usize, BlockRef)>> {
    debug_assert!(refs.is_sorted_by(|a, b| a.0 < b.0), "pages come in their order, each once");
    debug_assert!(refs.iter().all(|r| !r.1.is_none()), "a hole is not read");
    let mut next = 0;
    let mut reqs: Vec<(BlockAddr, &mut Block)> = Vec::with_capacity(refs.len());
    for (n, p) in pages.iter_mut().enumerate() {
        if next < refs.len() && refs[next].0 == n {
            p.hole = false;
            reqs.push((refs[next].1.addr, &mut *p.block));
            next += 1;
        }
    }
    debug_assert_eq!(reqs.len(), refs.len(), "a reference to a page that nobody asked for");
    if reqs.is_empty() {
        return Ok(Vec::new());
    }
    if reqs.len() <= PIECE_MOST {
        let asked: SmallVec<[BlockRef; PIECE_MOST]> = refs.iter().map(|r| r.1).collect();
        if io.read_near(&asked, |n, b| reqs[n].1.0.copy_from_slice(&b.0)) {
            return Ok(Vec::new());
        }
    }
    io.read_blocks(&mut reqs, "read of file data")?;
    drop(reqs);
    Ok(refs.iter().filter(|(n, r)| !checksum::matches(*r, &pages[*n].block.0)).copied().collect())
}
