//! fsync(2) and fdatasync(2): one trip, one flush, shared with whoever flushes at the same time.

use super::closure::{self, Closure};
use crate::error::Result;
use crate::memfs::Cell;
use crate::memfs::cell::{DATASYNC, DIRTY, QUEUED, UNSYNCED, XATTR_DIRTY};
use crate::memfs::dir::Dir;
use crate::volume::Inner;
use crate::writeback::capture::For;
use lanefs_sync::{Canary, planted};

impl Inner {
    /// Makes durable the content and attributes of `cell` and all names the caller could have seen (O9). `data_only`: fdatasync, which may
    /// leave times behind.
    pub(crate) fn fsync(&self, cell: &Cell, data_only: bool) -> Result<()> {
        self.check_alive()?;
        if self.options.read_only {
            return Ok(());
        }
        let forgets = planted(Canary::NamesForgotten) && cell.data().is_some_and(|d| !d.has_dirty());
        let closure = if forgets {
            Closure::Groups { bytes: Vec::new(), taken: Vec::new(), replaced: Vec::new() }
        } else {
            let guard = crossbeam_epoch::pin();
            closure::of(self, cell.ino, cell.dir().is_some(), &guard)
        };
        let (groups, taken) = match closure {
            Closure::Groups { bytes, taken, replaced } => {
                // Its own content goes in the batch of the groups.
                for ino in replaced.into_iter().filter(|i| *i != cell.ino) {
                    self.settle(ino)?;
                }
                (bytes, taken)
            }
            Closure::Commit => {
                self.seal_and_commit()?;
                (Vec::new(), Vec::new())
            }
        };
        let wanted = if data_only { DATASYNC | UNSYNCED } else { DIRTY | XATTR_DIRTY | UNSYNCED | DATASYNC };
        if groups.is_empty() && cell.is_synced(wanted, data_only) {
            return Ok(self.store.healthy()?);
        }
        let l = cell.sync_lock.lock();
        let dirty_data = cell.has_dirty();
        let changed = !data_only && cell.dir().is_some_and(Dir::has_changed);
        if groups.is_empty() && !dirty_data && !cell.wants(wanted, data_only) && !changed {
            return Ok(self.store.healthy()?);
        }
        let what_for = if data_only { For::DataSync } else { For::Sync };
        if !data_only {
            // What is left dirty of the attributes stays on its list.
            cell.clear_if_set(QUEUED);
        }
        let r = self.write_back_cell(cell, l, what_for, &groups, usize::MAX);
        if cell.has_dirty() {
            self.dirty_cell(cell, 0);
        }
        r?;
        // After the flush only: what was in flight was not durable for anybody else (closure of DESIGN, last sentence).
        closure::mark_durable(self, &taken);
        Ok(())
    }
}
