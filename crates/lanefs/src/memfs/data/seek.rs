//! The places of data and of holes: the store's answer, corrected by the pages that are dirty.

use super::tree::MAX_PAGES;
use super::{DataCtx, FileData, PAGE, page_at};
use crate::error::{Error, Result};
use crossbeam_epoch as epoch;
use std::ops::ControlFlow;

impl FileData {
    /// Answers SEEK_DATA: returns the first offset at or after `offset` that may hold something
    /// else than zeros; ENXIO if there is none.
    pub fn seek_data(&self, ctx: &DataCtx<'_>, offset: u64) -> Result<u64> {
        // A page in writeback is neither marked dirty nor known to the store: with the lock there
        // is none.
        let _writeback = self.lock_writeback();
        self.gather(ctx);
        let size = self.size();
        if offset >= size {
            return Err(Error::Posix(libc::ENXIO));
        }
        let page = page_at(offset);
        let stored = ctx.store.next_data(ctx.ino, page)?;
        debug_assert!(stored.is_none_or(|s| s >= page), "data before where it was asked for");
        let found = [stored, self.next_dirty(page)].into_iter().flatten().min();
        match found.map(|p| offset.max(p.saturating_mul(PAGE as u64))) {
            Some(at) if at < size => Ok(at),
            _ => Err(Error::Posix(libc::ENXIO)),
        }
    }

    /// Answers SEEK_HOLE: returns the first offset at or after `offset` that is in a hole; the end
    /// of the file counts as one. ENXIO behind it.
    pub fn seek_hole(&self, ctx: &DataCtx<'_>, offset: u64) -> Result<u64> {
        let _writeback = self.lock_writeback();
        self.gather(ctx);
        let size = self.size();
        if offset >= size {
            return Err(Error::Posix(libc::ENXIO));
        }
        let mut page = page_at(offset);
        while page.saturating_mul(PAGE as u64) < size {
            if self.next_dirty(page) == Some(page) {
                page += 1;
                continue;
            }
            match ctx.store.next_hole(ctx.ino, page)? {
                Some(hole) if hole <= page => return Ok(offset.max(page * PAGE as u64)),
                Some(hole) => page = hole,
                None => break,
            }
        }
        Ok(size)
    }

    /// Marks the pages that other lanes than the home noted as dirty, so that the walk finds them.
    fn gather(&self, ctx: &DataCtx<'_>) {
        debug_assert!(self.writeback_lock.is_locked(), "pages in writeback have no mark");
        if let Some((stamps, _)) = ctx.stamps {
            stamps.pages(ctx.ino).into_iter().for_each(|page| self.remark(ctx, page));
        }
    }

    fn next_dirty(&self, from: u64) -> Option<u64> {
        let pin = epoch::pin();
        let mut found = None;
        let _ = self.each_page(from..MAX_PAGES, true, &pin, &mut |page, _| {
            found = Some(page);
            ControlFlow::Break(())
        });
        debug_assert!(found.is_none_or(|page| page >= from));
        found
    }
}
