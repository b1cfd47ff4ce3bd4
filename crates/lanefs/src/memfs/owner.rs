//! Mode and owner of an inode: the second line (see `memfs::inode`), and in an ordered volume when
//! they changed last (`ops::rights`).

use super::inode::{Inode, PRIVILEGED, STORED, is_privileged};
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
};

impl Inode {
    /// Returns whether [`Inode::set_owner_mode`] would write anything.
    pub fn would_change(
        &self,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        drop: Option<fn(u32) -> u32>,
    ) -> bool {
        let moves = |slot: &AtomicU32, v: Option<u32>| v.is_some_and(|v| slot.load(Relaxed) != v);
        moves(&self.mode, mode)
            || moves(&self.uid, uid)
            || moves(&self.gid, gid)
            || drop.is_some_and(|left| self.has(PRIVILEGED) && left(self.mode()) != self.mode())
    }

    /// Changes mode and owner; `drop` returns what is left of a privileged mode that the change
    /// takes away. What stays as it is is not written, nor looked at if nobody asks: permission
    /// checks read the line, and chmod commutes with chown. `locked`: the caller holds `attr_lock`.
    pub fn set_owner_mode(
        &self,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        drop: Option<fn(u32) -> u32>,
        locked: bool,
    ) {
        debug_assert!(!locked || self.attr_lock.is_locked(), "the caller said that it holds attr_lock");
        let all = [(&self.mode, mode), (&self.uid, uid), (&self.gid, gid)];
        let moves = |slot: &AtomicU32, v: Option<u32>| v.filter(|v| slot.load(Relaxed) != *v);
        let drop = drop.filter(|_| self.has(PRIVILEGED));
        let n =
            all.iter().filter(|(slot, v)| moves(slot, *v).is_some()).count() + usize::from(drop.is_some());
        if n == 0 {
            return;
        }
        if mode.is_some_and(is_privileged) {
            self.set(PRIVILEGED);
        }
        // What is one word changes by itself; of several a capture sees all or none.
        let _l = (n > 1 && !locked).then(|| self.attr_lock.guard());
        for (slot, v) in all {
            if let Some(v) = moves(slot, v) {
                slot.store(v, Relaxed);
            }
        }
        if let Some(left) = drop {
            let _ = self.mode.fetch_update(Relaxed, Relaxed, |m| Some(left(m)).filter(|l| *l != m));
            // The next writeback, whatever it is for, writes the mode: nobody finds what was
            // written with the privilege that it lost. Always written: a capture sets the mark
            // before it reads the mode, so it has the new one, or the mark is off at the end.
            self.clear(STORED);
        }
        debug_assert!(!mode.is_some_and(is_privileged) || self.has(PRIVILEGED), "the mark comes first");
    }

    /// Returns the timestamp of the last change of rights, for a caller that holds `attr_lock`.
    pub fn rights_ts(&self) -> u64 {
        debug_assert!(self.attr_lock.is_locked());
        self.rights_ts.load(Relaxed)
    }

    /// Notes a change of rights, for a caller that holds `attr_lock`.
    pub fn rights_changed(&self, epoch: u64, ts: u64) {
        debug_assert!(self.attr_lock.is_locked());
        debug_assert!(ts > self.rights_ts.load(Relaxed), "rights change in the order of their timestamps");
        debug_assert!(epoch >= self.rights_epoch.load(Relaxed), "epochs do not go back");
        self.rights_ts.store(ts, Relaxed);
        // Release: who captures content that was written after the change sees it
        // (ops::rights).
        self.rights_epoch.store(epoch, Release);
    }
}
