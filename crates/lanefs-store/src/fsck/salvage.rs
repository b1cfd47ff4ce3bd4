//! What can be kept of a damaged inode.

use super::Place;
use super::mapped::{after, fetch, next_mapped};
use super::walk::{Salvage, Shared, Visit};
use crate::tree::block_io::BlockSource;
use crate::tree::inode_state::InodeState;
use crate::tree::radix::Found;
use lanefs_format::FileKind;
use lanefs_format::dir_bucket::{self, BucketId, entries};
use lanefs_format::table_node::TableEntry;

impl Shared<'_> {
    /// Returns an inode made of what can be read of a damaged one.
    pub(super) fn salvage(&self, old: &InodeState, entry: &TableEntry, kind: FileKind, v: &Visit) -> Salvage {
        let mut state = InodeState::new(old.ino(), *old.attrs(), old.parent());
        state.set_names(old.names());
        state.apply_attrs(old.attrs(), old.version());
        let blob = match (old.xattrs(), &v.xattrs) {
            (Ok(b), _) => b.to_vec(),
            (Err(_), Some(b)) => b.clone(),
            (Err(_), None) => Vec::new(),
        };
        let mut entries_found = Vec::new();
        let copied = (|| -> crate::error::Result<()> {
            state.set_xattrs(blob)?;
            if kind == FileKind::Dir {
                let mut take = |bytes: &[u8]| entries_found.extend(entries(bytes).map(|e| e.to_owned()));
                if let Some((page, body)) = old.tail()
                    && let Some(id) = BucketId::from_page(page)
                    && let Ok(bytes) = dir_bucket::check_body(body, old.block().addr, id)
                {
                    take(bytes);
                }
                for (page, r) in &v.buckets {
                    if let Some(id) = BucketId::from_page(*page)
                        && let Ok(b) = self.w.io.read(*r, "directory bucket")
                        && let Ok(bytes) = dir_bucket::decode(&b, r.addr, old.ino(), id)
                    {
                        take(bytes);
                    }
                }
                return Ok(());
            }
            let mut again = InodeState::load(old.ino(), entry, self.w.io)?;
            let mut page = 0;
            loop {
                match next_mapped(&again, page) {
                    Found::Here(None) => break,
                    Found::Missing(w) => {
                        if fetch(&mut again, self.w.io, &w).is_err() {
                            page = after(&w);
                        }
                    }
                    Found::Here(Some((p, r))) => {
                        page = p + 1;
                        if self.marks.geometry.locate(r.addr).is_some() {
                            state.set_page(p, r, self.w.io)?;
                        }
                    }
                }
            }
            if let Some((page, bytes)) = old.tail() {
                let _ = state.set_tail(page, bytes.to_vec(), self.w.io)?;
            }
            if !old.prealloc().is_empty() {
                state.replay_prealloc(old.prealloc(), self.w.io)?;
            }
            Ok(())
        })();
        if let Err(e) = copied {
            self.report(Place::of_inode(old.ino(), "map"), &e, "the rest of it is given up", true);
        }
        entries_found.sort_unstable_by_key(|e| e.cookie);
        entries_found.dedup_by(|a, b| a.name == b.name);
        debug_assert!(state.block().is_none(), "what is salvaged is written anew");
        Salvage { state, entries: entries_found }
    }
}
