//! What a round of the reaper does with each inode (3 and 4 of `persist::reaper`): it is marked,
//! and ended if nobody has it open. Several threads do it, each with a share of the list; each logs
//! the ends of its inodes in its own lane.

use crate::core::page_store;
use crate::memfs::Inode;
use crate::memfs::inode::{ENDED, FREED};
use crate::oplog::buffer::SoleGroup;
use crate::oplog::lane::Orphan;
use crate::ops::Op;
use crate::persist::{Keeper, Persist};
use lanefs_format::Ino;
use lanefs_format::record::Effect;
use lanefs_sync::hash::WordSet;
use lanefs_sync::lock::MutexGuard;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// Inodes that are asked for before they are looked at: by the time of their end most have left the
/// processor's cache.
const AHEAD: usize = 8;
/// Inodes whose ends are logged as one group.
const TOGETHER: usize = 64;
const _: () = assert!(TOGETHER * 16 < lanefs_format::record::GROUP_MAX / 2, "their ends fit in a group");

/// Returns whether what is logged and not committed may take a quarter of what is free: then the
/// ends of more inodes wait for a checkpoint. Many small inodes have little space to give back, and
/// the end of each takes some in the log.
pub(crate) fn fills_the_log(persist: &Persist) -> bool {
    let free = persist.store.free_segment_blocks() * lanefs_format::BLOCK_SIZE as u64;
    let open = persist.journal.open_log_bytes() as u64;
    debug_assert!(open < 1 << 48, "{open} bytes are in memory");
    open > free / 4
}

/// What all threads of a round know.
pub(super) struct EndingRound<'r> {
    pub persist: &'r Persist,
    /// The inodes that are open.
    pub open: WordSet,
    pub keeper: Option<&'r Keeper>,
}

/// What one thread has ended.
#[derive(Default)]
pub(super) struct EndedShare {
    /// The inodes, with the epochs of their DEAD groups, which ascend.
    pub ended: Vec<(u64, Ino)>,
    /// Inodes that go on.
    pub open: Vec<Ino>,
    /// Blocks of those that ended, about.
    pub blocks: u64,
    /// What inodes that ended before they were folded were promised, in parts of a block, by epoch
    /// of the DEAD group and of the group that made them.
    pub unmade: BTreeMap<(u64, u64), u64>,
}

impl EndedShare {
    /// Notes an inode of so many parts of a block that was made in epoch `born` and ended in
    /// `epoch`.
    fn note_unmade(&mut self, epoch: u64, born: u64, parts: u64) {
        debug_assert!(0 < born && born <= epoch, "made in epoch {born}, it ended in {epoch}");
        *self.unmade.entry((epoch, born)).or_default() += parts;
    }
}

impl EndingRound<'_> {
    /// Returns whether somebody has an inode.
    fn is_kept(&self, ino: Ino) -> bool {
        // A callback that panics keeps what it was asked for, and not the thread from its work.
        let asks = |keeps: &&Keeper| catch_unwind(AssertUnwindSafe(|| keeps(ino))).unwrap_or(true);
        self.open.contains(&ino.0) || self.keeper.as_ref().is_some_and(asks)
    }

    /// Marks the inodes of a list that nobody has. Returns them, and those that somebody has.
    pub fn choose(&self, list: &[Orphan]) -> (Vec<Orphan>, Vec<Ino>) {
        let inodes = &self.persist.memfs.inodes;
        let guard = crossbeam_epoch::pin();
        let (mut doomed, mut open) = (Vec::with_capacity(list.len()), Vec::new());
        for (n, o) in list.iter().enumerate() {
            if let Some(next) = list.get(n + AHEAD) {
                inodes.expect(next.ino, &guard);
            }
            // A link may have been added through an open handle, and a number may be on the list
            // twice.
            let found = inodes.get(o.ino, &guard).filter(|c| c.nlink.load(Ordering::SeqCst) == 0);
            let Some(inode) = found else { continue };
            if self.is_kept(o.ino) {
                open.push(o.ino);
            } else if inode.life.fetch_or(FREED, Ordering::SeqCst) & FREED == 0 {
                doomed.push(*o);
            }
        }
        debug_assert!(doomed.len() + open.len() <= list.len(), "an inode comes twice");
        (doomed, open)
    }

    /// Ends those of marked inodes that nobody knows any more; the mark of the others is taken
    /// back.
    pub fn end_all(&self, doomed: &[Orphan]) -> EndedShare {
        let persist = self.persist;
        let guard = crossbeam_epoch::pin();
        let mut share = EndedShare { ended: Vec::with_capacity(doomed.len()), ..EndedShare::default() };
        let mut is_full = false;
        for (turn, some) in doomed.chunks(TOGETHER).enumerate() {
            is_full |= turn % 16 == 15 && fills_the_log(persist);
            let mut ended: SmallVec<[(&Inode, MutexGuard<'_, ()>); TOGETHER]> = SmallVec::new();
            for (at, &Orphan { ino, removal }) in some.iter().enumerate() {
                if let Some(next) = doomed.get(turn * TOGETHER + at + AHEAD) {
                    persist.memfs.inodes.expect(next.ino, &guard);
                }
                let Some(inode) = persist.memfs.inodes.get(ino, &guard) else { continue };
                if is_full {
                    inode.clear(FREED);
                    share.open.push(ino);
                    continue;
                }
                // Who is writing it back may have captured it before: an update behind the fold of
                // its end would bring its number to life again.
                let not_written = inode.sync_lock.try_lock();
                let is_named = inode.nlink.load(Ordering::SeqCst) != 0;
                match not_written.filter(|_| !is_named && !self.is_kept(ino)) {
                    Some(not_written) => {
                        void_groups(persist, inode, removal);
                        ended.push((inode, not_written));
                    }
                    None => {
                        inode.clear(FREED);
                        if inode.nlink.load(Ordering::SeqCst) == 0 {
                            share.open.push(ino);
                        }
                    }
                }
            }
            end(persist, &mut share, &ended);
        }
        debug_assert!(share.ended.len() + share.open.len() <= doomed.len(), "an inode ends, and goes on");
        share
    }
}

/// Ends inodes that nobody knows any more, and whose locks against being written back are held.
fn end(persist: &Persist, share: &mut EndedShare, ended: &[(&Inode, MutexGuard<'_, ()>)]) {
    if ended.is_empty() {
        return;
    }
    let folded = persist.journal.folded();
    let epoch = log_dead(persist, ended);
    debug_assert!(epoch > folded, "the end of an inode was folded before it was logged");
    for (inode, _) in ended {
        debug_assert!(!inode.has(ENDED), "inode {} ends twice", inode.ino);
        inode.set(ENDED);
        if let Some(d) = inode.data() {
            share.blocks += d.blocks();
            d.drop_all(&page_store::data_ctx(persist, inode));
        } else if inode.dir().is_some() {
            share.blocks += 1;
        }
        inode.drop_stamps();
        share.ended.push((epoch, inode.ino));
        if inode.born > folded {
            // What was voided was as good as ended in its own epoch: no fold was to make it.
            let ended = if inode.sole_group() == SoleGroup::VOID { inode.born } else { epoch };
            share.note_unmade(ended, inode.born, persist.store.parts_of_inode(inode.dir().is_some(), 0));
        }
    }
    let mut dead = persist.memfs.dead.lock();
    for (inode, _) in ended {
        let is_first = dead.insert(inode.ino.0);
        debug_assert!(is_first, "4: number {} was given out before its end was folded", inode.ino);
    }
}

/// Voids the groups that made an inode and took its only name, if their epoch still runs. Nobody
/// knows the inode any more, so no other group comes to name it.
fn void_groups(persist: &Persist, inode: &Inode, removal: SoleGroup) {
    debug_assert!(inode.has(FREED), "somebody may be about to log a change of inode {}", inode.ino);
    let (Some((lane, made)), Some((there, removed))) = (inode.sole_group().place(), removal.place()) else {
        return;
    };
    debug_assert_eq!(lane, there, "another lane took the name: its group is one more");
    if persist.journal.lanes.lock(lane).void_both(inode.born, made, removed) {
        inode.set_sole_group(SoleGroup::VOID);
    }
}

/// Logs the end of inodes, as one group; returns its epoch.
fn log_dead(persist: &Persist, ended: &[(&Inode, MutexGuard<'_, ()>)]) -> u64 {
    let mut op = Op::begin(persist);
    for (inode, _) in ended {
        debug_assert!(inode.has(FREED), "3: who finds inode {} would go on with it", inode.ino);
        debug_assert_eq!(inode.nlink.load(Ordering::SeqCst), 0, "inode {} has a name", inode.ino);
        inode.note_lane(op.lane, 0);
    }
    // Whoever asks for durability asks for names: the end of a file that has none is nobody's
    // concern.
    let v = op.version_unasked();
    let mut effects: SmallVec<[Effect<'_>; TOGETHER]> = SmallVec::new();
    for (inode, _) in ended {
        debug_assert!(v.epoch >= inode.born, "inode {} ends before it was made", inode.ino);
        inode.note_lane(op.lane, v.epoch);
        let is_logged = inode.sole_group() != SoleGroup::VOID;
        op.log.undoes.inodes += usize::from(is_logged && inode.born == v.epoch);
        effects.push(Effect::Dead { ino: inode.ino, generation: inode.generation });
    }
    op.append(v, &effects);
    v.epoch
}

/// Takes inodes out of memory whose end is committed.
pub(super) fn drop_ended(persist: &Persist, ended: &[(u64, Ino)]) {
    let guard = crossbeam_epoch::pin();
    for (n, (epoch, ino)) in ended.iter().enumerate() {
        debug_assert!(*epoch <= persist.journal.committed(), "the end of inode {ino} is not committed");
        if let Some(next) = ended.get(n + AHEAD) {
            persist.memfs.inodes.expect(next.1, &guard);
        }
        let found = persist.memfs.inodes.get(*ino, &guard);
        if let Some(inode) = found.filter(|c| c.has(FREED)) {
            persist.memfs.inodes.remove(inode, &guard);
            persist.journal.count_inodes(-1);
        }
    }
}
