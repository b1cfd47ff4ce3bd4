//! Going through the map of an inode, past what cannot be read.

use crate::log::io::Io;
use crate::tree::block_io::BlockSource;
use crate::tree::inode_state::{InodeState, PageAt};
use crate::tree::radix::{Found, Wanted};
use lanefs_format::BlockRef;
use lanefs_format::map_node::{FANOUT_BITS, KEY_END};

/// Returns the first mapped page at or after `page`, with its block; the tail is no block.
pub(crate) fn next_mapped(s: &InodeState, page: u64) -> Found<Option<(u64, BlockRef)>> {
    let mut page = page;
    loop {
        let at = match s.next_data(page) {
            Found::Missing(w) => return Found::Missing(w),
            Found::Here(None) => return Found::Here(None),
            Found::Here(Some(p)) => p,
        };
        debug_assert!(at >= page, "page {at} from {page} on");
        match s.lookup(at) {
            Found::Missing(w) => return Found::Missing(w),
            Found::Here(PageAt::Block(r)) => return Found::Here(Some((at, r))),
            Found::Here(_) => page = at + 1,
        }
    }
}

/// Reads a node that is missing.
pub(super) fn fetch(s: &mut InodeState, io: &Io, w: &Wanted) -> crate::error::Result<()> {
    let b = io.read(w.r, w.what)?;
    s.install(w, &b)
}

/// Returns the first page that a map node does not cover.
pub(crate) fn after(w: &Wanted) -> u64 {
    let end = (w.index + 1) << (FANOUT_BITS * (u32::from(w.level) + 1));
    debug_assert!(end > 0 && end <= KEY_END, "node {} at level {} ends at page {end}", w.index, w.level);
    end
}
