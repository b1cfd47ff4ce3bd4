//! Files that a fold makes and of which only their making is known: written out one after the
//! other, so that they are never in memory all at once.
//!
//! A fold puts such files off ([`Maintenance::deferred`]), and the capture of the same checkpoint
//! makes each inode, writes it and lets it go.
//!
//! 1. Put off is what has names and neither content nor attributes nor later changes of its rights:
//!    its inode follows from its NEW alone, which is in the log in front of the slot to come. So it
//!    may be read again before that slot is durable: a crash that takes the slot falls back to the
//!    same inode, and every later batch carries what came since.
//! 2. Until its turn it is an inode that is not folded. An update that comes meanwhile waits in an
//!    inode as it would before the fold, and the inode is written as any other that has one.
//! 3. An inode leaves the list when it is among those that are to be written, or in a pack that
//!    will be (`checkpoint/packs.rs`), so a checkpoint that fails loses none. The next fold, whose
//!    groups may be about them, first makes those that are left.

use super::Fold;
use super::apply::make;
use crate::engine::maintenance::{DeferredInode, Maintenance};
use crate::engine::plan::{NewInode, Plan};
use crate::engine::sink::Sink;
use crate::error::Result;
use crate::inodes::cache::CachedInode;
use lanefs_format::BlockRef;
use std::sync::Arc;

impl Fold<'_> {
    /// Returns whether all that is known of a new inode, but for its names, is that it was made
    /// (1).
    pub(crate) fn is_bare(&self, plan: &Plan<'_>, b: &NewInode<'_>) -> bool {
        b.mode & libc::S_IFMT == libc::S_IFREG
            && b.target.is_empty()
            && b.xattrs.is_empty()
            && plan.rights.binary_search_by_key(&b.ino, |r| r.ino).is_err()
            && plan.dead.binary_search_by_key(&b.ino, |d| d.0).is_err()
            && !self.inodes.cache.has(b.ino)
    }

    /// Makes the next of the files that were put off; `None` if it had been made before.
    pub(crate) fn make_next_deferred(
        &self,
        m: &mut Maintenance,
        sink: &mut Sink<'_>,
    ) -> Result<Option<Arc<CachedInode>>> {
        let Some(b) = m.deferred.next() else { return Ok(None) };
        let made = self.fold_new(&b.new_inode(), sink)?;
        match &made {
            Some(inode) => {
                inode.lock().state.set_names(b.names);
                m.changed.push(inode.clone());
            }
            None => self.fold_links(m, b.ino, b.names.into())?,
        }
        let popped = m.deferred.pop();
        debug_assert!(popped.is_some_and(|p| p.ino == b.ino), "another file than {} leaves the list", b.ino);
        Ok(made)
    }

    /// Takes note that a file that was put off was written to a pack while it was not in memory. If
    /// it is by now, since an update of it came, it is to be written once more. The caller counts
    /// the inode.
    pub(crate) fn wrote_bare(&self, changed: &mut Vec<Arc<CachedInode>>, b: &DeferredInode, pack: BlockRef) {
        let Some(inode) = self.inodes.cache.note_written(b.ino) else { return };
        let mut guard = inode.lock();
        let i = &mut *guard;
        if make(i, &b.new_inode()) {
            i.state.set_names(b.names);
            i.state.older_is_packed(pack);
            drop(guard);
            changed.push(inode);
        }
    }

    /// Makes what an earlier fold put off and its checkpoint did not come to (3).
    pub(crate) fn fold_deferred(&self, m: &mut Maintenance, sink: &mut Sink<'_>) -> Result<()> {
        while m.deferred.next().is_some() {
            self.make_next_deferred(m, sink)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;
    use crate::api::{FoldInput, FormatOptions, OpenOptions};
    use crate::device::{Device, MemoryDevice};
    use crate::engine::plan::plan;
    use crate::engine::sink::Sink;

    use lanefs_format::record::{Effect, encode_group};
    use lanefs_format::{FileKind, Ino, ROOT_INO, Version};
    use std::sync::Arc;

    const FILES: u64 = 300;
    const FIRST: u64 = 1024;

    fn store() -> Arc<Store> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        Store::open(vec![device], &OpenOptions::default()).unwrap().0
    }

    fn group(epoch: u64, effects: &[Effect<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_group(&mut out, Version { epoch, ts: epoch, lane: 0 }, effects);
        out
    }

    fn set(n: u64, copy: u64, name: &[u8]) -> Effect<'_> {
        let (dir, ino, old, kind) = (ROOT_INO, Ino(FIRST + n), Ino::NONE, FileKind::File);
        Effect::Set { dir, cookie: (n * 2 + copy) << 40, name, ino, old, kind }
    }

    /// Files, each with one name.
    fn made(epoch: u64) -> Vec<u8> {
        let one = |n: u64| {
            let (ino, parent, generation, mode) = (Ino(FIRST + n), ROOT_INO, 1, libc::S_IFREG | 0o640);
            let (uid, gid, rdev, time, target, logged) = (7, 8, 0, 5, &b""[..], true);
            let new = Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged };
            group(epoch, &[new, set(n, 0, format!("file{n}").as_bytes())])
        };
        (0..FILES).flat_map(one).collect()
    }

    /// A checkpoint held the inodes of all files that were made since the last one: more than a
    /// kilobyte for each.
    #[test]
    fn files_that_a_fold_makes_are_not_in_memory_all_at_once() {
        let s = store();
        let empty = s.engine.inodes.cache.memory();
        {
            let mut m = s.engine.maintenance.lock();
            let mut dirty = Default::default();
            let mut sink = Sink::new(&s.engine.log, &s.engine.totals, &mut dirty);
            s.engine.fold().fold(&mut m, plan([&made(5)[..]], 1).unwrap(), &mut sink).unwrap();
            assert_eq!((m.deferred.len() as u64, m.changed.len()), (FILES, 1));
            s.engine.checkpoints().capture().capture_deferred(&mut m, 5, &mut sink).unwrap();
            assert_eq!((m.deferred.len(), m.changed.len(), m.captured.len()), (0, 1, 0));
            s.engine.log.io.write_queue().unwrap();
            m.usage.dirty.append(&mut dirty);
        }
        assert!(s.engine.inodes.cache.memory() - empty < 4096, "the root alone");
        for n in 0..FILES {
            let i = s.load_inode(Ino(FIRST + n)).unwrap().unwrap();
            assert_eq!((i.nlink, i.attrs.mode, i.attrs.uid, i.attrs.gid), (1, libc::S_IFREG | 0o640, 7, 8));
        }
    }

    /// Files that a checkpoint did not come to, since it failed, are made before the next fold
    /// looks for them.
    #[test]
    fn what_was_put_off_is_there_for_the_next_fold() {
        let s = store();
        {
            let mut m = s.engine.maintenance.lock();
            let mut dirty = Default::default();
            let mut sink = Sink::new(&s.engine.log, &s.engine.totals, &mut dirty);
            s.engine.fold().fold(&mut m, plan([&made(5)[..]], 1).unwrap(), &mut sink).unwrap();
            m.usage.dirty.append(&mut dirty);
        }
        let mut next = Vec::new();
        for n in 0..FILES {
            let name = format!("file{n}");
            let (dir, cookie, old, kind) = (ROOT_INO, (n * 2) << 40, Ino(FIRST + n), FileKind::File);
            let (ino, generation) = (old, 1);
            match n % 3 {
                0 => next.extend(group(6, &[set(n, 1, format!("link{n}").as_bytes())])),
                1 => next.extend(group(
                    6,
                    &[
                        Effect::Clr { dir, cookie, name: name.as_bytes(), old, kind },
                        Effect::Dead { ino, generation },
                    ],
                )),
                _ => {}
            }
        }
        let done = s.checkpoint(|| Ok(FoldInput { epoch: 6, groups: vec![next.into()] })).unwrap();
        assert_eq!((done.freed.len() as u64, done.orphans), (FILES / 3, 0));
        for n in 0..FILES {
            let names = s.load_inode(Ino(FIRST + n)).unwrap().map(|i| i.nlink);
            assert_eq!(names, [Some(2), None, Some(1)][n as usize % 3], "{n}");
        }
    }
}
