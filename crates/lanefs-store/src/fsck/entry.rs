//! Entries of directories: reading them, and the fixes that they may need.

use super::walk::AT_ONCE;
use crate::error::Result;
use crate::log::io::Io;
use crate::tree::block_io::BlockSource;
use crate::tree::inode_state::InodeState;
use crate::tree::inode_table::InodeTable;
use lanefs_format::checksum;
use lanefs_format::dir_bucket::{self, BucketId, EntryRef, entries};
use lanefs_format::{FileKind, Ino};

/// An entry, with its own name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Name {
    pub dir: Ino,
    pub cookie: u64,
    pub name: Box<[u8]>,
    pub ino: Ino,
}

/// A change that has to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fix {
    /// The inode has this many names.
    Names(Ino, u32),
    /// Take the entry away.
    Remove(Name, FileKind),
    /// The entry names a file of this kind.
    Kind(Name, FileKind),
    /// The entry, of this kind, belongs at this cookie and names a file of that kind.
    Move(Name, FileKind, u64, FileKind),
    /// The directory lies in this one.
    Parent(Ino, Ino),
    /// Give it a name in lost+found.
    Reconnect(Ino, FileKind),
    /// It was unlinked, and is to be freed.
    Free(Ino, u32),
}

pub(super) fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}

/// Calls `f` with every entry of a directory whose buckets are sound.
pub(super) fn for_each_entry(
    ino: Ino,
    table: &InodeTable,
    io: &Io,
    f: &mut dyn FnMut(EntryRef<'_>),
) -> Result<()> {
    let e = table.lookup(ino, io)?;
    let mut state = InodeState::load(ino, &e, io)?;
    if let Some((page, body)) = state.tail()
        && let Some(id) = BucketId::from_page(page)
    {
        entries(dir_bucket::check_body(body, e.block.addr, id)?).for_each(&mut *f);
    }
    let mut buckets = Vec::new();
    let complete = state.for_each_page(io, &mut |page, r| {
        buckets.extend(BucketId::from_page(page).map(|id| (id, r)));
        Ok(())
    });
    for some in buckets.chunks(AT_ONCE) {
        let blocks = io.read_ahead(&some.iter().map(|b| b.1).collect::<Vec<_>>());
        for (i, &(id, r)) in some.iter().enumerate() {
            let ahead = blocks.as_ref().map(|b| &b[i]).filter(|b| checksum::matches(r, &b.0));
            let alone = if ahead.is_none() { Some(io.read(r, "directory bucket")?) } else { None };
            let Some(b) = ahead.or(alone.as_deref()) else { continue };
            entries(dir_bucket::decode(b, r.addr, ino, id)?).for_each(&mut *f);
        }
    }
    complete
}
