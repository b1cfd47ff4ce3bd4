//! Changing the rights of an inode: its mode, owner and ACLs. In an ordered volume that is an
//! operation of the log; why, and what it waits for, is told in `writeback::rights`.

use super::Op;
use crate::memfs::Cell;
use crate::volume::Inner;
use lanefs_format::record::Effect;
use lanefs_sync::{Canary, planted};

/// What changes of the rights of an inode; `None` leaves one alone.
#[derive(Default)]
pub(crate) struct Rights {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// What is left of a privileged mode that the change takes away.
    pub drop: Option<fn(u32) -> u32>,
}

impl Inner {
    /// Changes mode and owner.
    pub(crate) fn set_rights(&self, cell: &Cell, r: &Rights) {
        if !self.is_ordered() {
            return cell.set_owner_mode(r.mode, r.uid, r.gid, r.drop, false);
        }
        if cell.would_change(r.mode, r.uid, r.gid, r.drop) {
            while !self.try_rights(cell, r, None, || ()) {
                self.wait_for_rights(cell);
            }
        }
    }

    /// Changes rights and logs that, in an ordered volume; and calls `publish`, which makes `acls`
    /// those of the inode. False if the caller must wait first, with no lock held: see
    /// [`Inner::wait_for_rights`].
    pub(crate) fn try_rights(
        &self,
        cell: &Cell,
        r: &Rights,
        acls: Option<&[u8]>,
        publish: impl FnOnce(),
    ) -> bool {
        let mut op = Op::begin(self);
        let _l = cell.attr_lock.guard();
        if self.rights_stay(cell) {
            return false;
        }
        cell.named_by(op.lane, 0);
        let v = op.version(cell.rights_ts());
        cell.named_by(op.lane, v.epoch);
        cell.set_owner_mode(r.mode, r.uid, r.gid, r.drop, true);
        publish();
        cell.rights_changed(v.epoch, v.ts);
        let (mode, uid, gid) = (cell.mode(), cell.uid(), cell.gid());
        let generation = cell.generation;
        if !planted(Canary::RightsNotLogged) {
            op.append(v, &[Effect::Rights { ino: cell.ino, generation, mode, uid, gid, acls }]);
        }
        true
    }
}
