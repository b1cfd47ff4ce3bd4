//! The closure of an fsync: which pending groups must become durable together with an inode
//! (DESIGN, "Closure").
//!
//! Definitions. A group is *pending* until its epoch is committed or an earlier fsync made it
//! durable. Two groups are *related* if they write one key or name one inode.
//!
//! Invariants.
//! 1. Seeds: the pending groups that name the inode; for a directory also those with a key in it.
//! 2. With a group come all related ones, whatever their versions (O4), the group that made each
//!    entry's parent directory (O5), and, where a directory is removed or replaced, every group
//!    with a key in it (O6).
//! 3. A lane is looked at only under its lock, which its operation holds from before its first key
//!    lock until after its append: an operation in flight is waited for, never missed. Its bit in
//!    the lane masks is set before it changes anything.
//! 4. The search ends with a pass over everything found that adds nothing.
//! 5. A directory that moved between directories never travels in an fsync: the caller seals and
//!    commits instead (O7), as it does when the closure grows beyond the caps or a lane has too
//!    much that was never indexed.

use crate::oplog::buffer::{Place, Subject, subjects};
use crate::persist::Persist;
use crossbeam_epoch::Guard;
use lanefs_format::record::Effect;
use lanefs_format::{FileKind, Ino};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// Groups in a closure beyond which an epoch commit is cheaper.
const MAX_GROUPS: usize = 2048;
/// Bytes likewise.
const MAX_BYTES: usize = 128 * 1024;
/// Groups a lane may have unindexed.
const MAX_UNINDEXED: usize = 100_000;

/// The names that an fsync writes beside the inode.
pub(crate) enum Closure {
    /// These groups, encoded; and where they came from, to be marked durable after the flush.
    Groups {
        bytes: Vec<u8>,
        taken: Vec<(usize, u64, Place)>,
        /// Files renamed over others, whose content has to be durable first (persist::replaced).
        replaced: Vec<Ino>,
    },
    /// Seal and commit the epoch.
    Commit,
}

/// The groups that were found so far, and what is still to be looked up.
#[derive(Default)]
struct Found {
    /// The groups, encoded.
    bytes: Vec<u8>,
    /// Lane, epoch and place of each, in the order in which they were found.
    taken: Vec<(usize, u64, Place)>,
    /// The same, to be asked.
    have: HashSet<(usize, u64, Place)>,
    /// Files renamed over others by these groups.
    replaced: Vec<Ino>,
    /// To be looked up yet.
    todo: Vec<Wanted>,
}

/// A subject, and whether only the group that made the inode is wanted.
type Wanted = (Subject, bool);

/// Computes the closure of `ino`.
pub(crate) fn of(persist: &Persist, ino: Ino, is_dir: bool, guard: &Guard) -> Closure {
    let mut found = Found { todo: vec![(Subject::Inode(ino), false)], ..Default::default() };
    let mut wanted: HashSet<Wanted> = HashSet::new();
    // In the order they came up, so that the same calls make the same bytes.
    let mut order: Vec<Wanted> = Vec::new();
    if is_dir {
        found.todo.push((Subject::KeysOf(ino), false));
    }
    loop {
        let mut grew = false;
        while let Some(w) = found.todo.pop() {
            if !wanted.insert(w) {
                continue;
            }
            order.push(w);
            match visit(persist, w, &mut found, guard) {
                Some(added) => grew |= added,
                None => return Closure::Commit,
            }
        }
        if !grew {
            debug_assert!(!is_dir || order.len() >= 2, "1: a directory's names are seeds, too");
            debug_assert!(found.todo.is_empty(), "4: the search is not over");
            let Found { bytes, taken, replaced, .. } = found;
            debug_assert!(taken.len() <= MAX_GROUPS && bytes.len() <= MAX_BYTES, "5: beyond the caps");
            debug_assert!(replaced.len() <= 2 * taken.len(), "two files change places at most");
            return Closure::Groups { bytes, taken, replaced };
        }
        // Another pass over everything: what was appended meanwhile is found now (invariant 4).
        wanted.clear();
        found.todo.extend(order.drain(..).rev());
    }
}

/// Looks one subject up in every lane that may have it; returns whether that added a group. `None`:
/// commit instead.
fn visit(persist: &Persist, (subject, only_new): Wanted, found: &mut Found, guard: &Guard) -> Option<bool> {
    let mask = lanes_of(persist, subject, guard);
    let mut added = false;
    for lane in 0..persist.journal.lanes.len() {
        if mask >> (lane & 63) & 1 == 0 {
            continue;
        }
        let mut log = persist.journal.lanes.lock(lane);
        let committed = persist.journal.committed();
        log.committed(committed);
        let mut too_much = false;
        log.each_pending(&mut |buf| {
            if too_much || buf.unindexed() > MAX_UNINDEXED {
                too_much = true;
                return;
            }
            buf.extend_index();
            debug_assert_eq!(buf.unindexed(), 0, "a group about it would not be found");
            let epoch = buf.epoch;
            debug_assert!(epoch > committed, "the groups of epoch {epoch} are durable");
            let places: SmallVec<[Place; 8]> = buf.about(subject).into();
            for place in places {
                let id = (lane, epoch, place);
                debug_assert!(buf.at(place).is_some(), "the index names a place without a group");
                let Some(g) = buf.at(place) else { continue };
                if found.have.contains(&id) {
                    continue;
                }
                let Subject::Inode(ino) = subject else {
                    too_much |= !found.take(&g);
                    found.have.insert(id);
                    found.taken.push(id);
                    added = true;
                    continue;
                };
                if only_new
                    && !g.effects().flatten().any(|e| matches!(e, Effect::New { ino: i, .. } if i == ino))
                {
                    continue;
                }
                too_much |= !found.take(&g);
                found.have.insert(id);
                found.taken.push(id);
                added = true;
            }
        });
        found.check_invariants();
        if too_much || found.taken.len() > MAX_GROUPS || found.bytes.len() > MAX_BYTES {
            return None;
        }
    }
    Some(added)
}

impl Found {
    /// Checks that each group is there once, and that its bytes are.
    fn check_invariants(&self) {
        debug_assert_eq!(self.taken.len(), self.have.len(), "a group was taken twice");
        debug_assert_eq!(self.taken.is_empty(), self.bytes.is_empty(), "bytes of no group");
        debug_assert!(self.taken.last().is_none_or(|t| self.have.contains(t)), "it would be taken again");
    }

    /// Adds a group and what it pulls; returns false if it must not travel in an fsync.
    fn take(&mut self, g: &lanefs_format::record::Group<'_>) -> bool {
        self.bytes.extend_from_slice(g.bytes);
        subjects(g, &mut |s| {
            if !matches!(s, Subject::KeysOf(_)) {
                self.todo.push((s, false));
            }
        });
        for e in g.effects().flatten() {
            match e {
                Effect::Parent { .. } => return false,
                Effect::Set { dir, ino, old, kind, .. } => {
                    self.todo.push((Subject::Inode(dir), true));
                    if kind == FileKind::File && !old.is_none() {
                        self.replaced.push(ino);
                    }
                    // Its kind is not in the effect; a file has no keys.
                    if !old.is_none() {
                        self.todo.push((Subject::KeysOf(old), false));
                    }
                }
                Effect::Clr { dir, old, kind, .. } => {
                    self.todo.push((Subject::Inode(dir), true));
                    if kind == FileKind::Dir {
                        self.todo.push((Subject::KeysOf(old), false));
                    }
                }
                Effect::New { .. } | Effect::Dead { .. } | Effect::Xattrs { .. } | Effect::Rights { .. } => {}
            }
        }
        true
    }
}

/// Returns the lanes (modulo 64) that may hold pending groups about a subject: none if no operation
/// of an epoch that is not committed concerns it. What is not in memory may be in any lane.
fn lanes_of(persist: &Persist, s: Subject, guard: &Guard) -> u64 {
    let committed = persist.journal.committed();
    match s {
        // The epoch first: who raised it had set its bit before.
        Subject::Inode(i) => persist.memfs.inodes.get(i, guard).map_or(!0, |c| {
            if c.epoch.load(Ordering::SeqCst) <= committed { 0 } else { c.lanes.load(Ordering::SeqCst) }
        }),
        Subject::KeysOf(i) => {
            persist.memfs.inodes.get(i, guard).and_then(|c| c.dir()).map_or(!0, |d| d.lanes_behind(committed))
        }
        Subject::Key(dir, cookie) => persist
            .memfs
            .inodes
            .get(dir, guard)
            .and_then(|c| c.dir())
            .map_or(!0, |d| d.key_lanes(cookie, committed, guard)),
    }
}

/// Marks what a flushed fsync wrote, so that later fsyncs need not write it again.
pub(crate) fn mark_durable(persist: &Persist, taken: &[(usize, u64, Place)]) {
    let mut i = 0;
    while i < taken.len() {
        let lane = taken[i].0;
        debug_assert!(lane < persist.journal.lanes.len(), "a group of lane {lane}");
        let end = i + taken[i..].iter().take_while(|t| t.0 == lane).count();
        persist.journal.lanes.lock(lane).each_pending(&mut |buf| {
            for &(_, epoch, place) in &taken[i..end] {
                if epoch == buf.epoch {
                    buf.mark_durable(place);
                }
            }
        });
        i = end;
    }
}

#[cfg(test)]
mod tests {
    use crate::persist::Persist;
    use crate::{Cred, Fs, MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice, MemoryImage};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::{Arc, mpsc};

    type Task = Box<dyn FnOnce(&Fs) + Send>;

    /// A thread with a lane of its own, which does the tasks that it is sent.
    struct Hand {
        lane: usize,
        tasks: mpsc::Sender<Task>,
        did: mpsc::Receiver<usize>,
    }

    impl Hand {
        fn new(fs: &Fs) -> Hand {
            let (tasks, sent) = mpsc::channel::<Task>();
            let (done, did) = mpsc::channel();
            let fs = fs.clone();
            std::thread::spawn(move || {
                let lane = || fs.volume().0.persist.journal.lanes.mine();
                done.send(lane()).unwrap();
                for task in sent {
                    task(&fs);
                    if done.send(lane()).is_err() {
                        return;
                    }
                }
            });
            Hand { lane: did.recv().unwrap(), tasks, did }
        }

        /// Does it, and returns when it is done.
        fn does(&self, task: impl FnOnce(&Fs) + Send + 'static) {
            self.tasks.send(Box::new(task)).unwrap();
            self.did.recv().expect("it failed");
        }
    }

    fn fs() -> (Fs, Arc<MemoryDevice>) {
        let dev = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        let d: Arc<dyn Device> = dev.clone();
        // Names lie in the same leaves each time.
        let format = FormatOptions { hash_key: Some([1, 2]), ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&d), &format).unwrap();
        (open(d), dev)
    }

    fn open(d: Arc<dyn Device>) -> Fs {
        let options = MountOptions {
            background: false,
            lanes: 8,
            order: crate::Order::Relaxed,
            ..MountOptions::default()
        };
        Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root())
    }

    fn after_crash(dev: &MemoryDevice) -> Fs {
        open(Arc::new(MemoryImage::capture(dev).unwrap().fork().unwrap()))
    }

    /// A lane's groups that no search has come by.
    fn unseen(inner: &Persist, lane: usize) -> Option<usize> {
        let mut log = inner.journal.lanes.try_lock(lane)?;
        let mut n = 0;
        log.each_pending(&mut |buf| n += buf.unindexed());
        Some(n)
    }

    /// Waits until a search has left this lane, in which there was something for it.
    fn wait_for_search(inner: &Persist, lane: usize) {
        while unseen(inner, lane) != Some(0) {
            std::thread::yield_now();
        }
    }

    /// A name that comes and goes: it leaves groups about the inode and about the name.
    fn come_and_go(file: &'static str, name: &'static str) -> impl FnOnce(&Fs) + Send {
        move |fs| {
            fs.link(file, name).unwrap();
            fs.unlink(name).unwrap();
        }
    }

    /// A file gets another name in a lane that the search has left, and loses its first in one that
    /// is still to come: who takes the second along needs the first. Both are found by the inode
    /// they name.
    #[test]
    fn an_fsync_finds_the_name_that_a_file_got_behind_its_back() {
        let (fs, dev) = fs();
        let inner = &fs.volume().0.persist;
        fs.write("/f", b"content").unwrap();
        fs.volume().sync().unwrap();
        let f = fs.open("/f", OpenOptions::new().read(true)).unwrap();
        let (left, held, last) = (Hand::new(&fs), Hand::new(&fs), Hand::new(&fs));
        assert!(left.lane < held.lane && held.lane < last.lane);
        left.does(come_and_go("/f", "/one"));
        held.does(come_and_go("/f", "/two"));
        last.does(come_and_go("/f", "/three"));
        std::thread::scope(|s| {
            assert_ne!(unseen(inner, left.lane), Some(0));
            let lock = inner.journal.lanes.lock(held.lane);
            s.spawn(|| f.sync_all().unwrap());
            wait_for_search(inner, left.lane);
            left.does(|fs| fs.link("/f", "/other").unwrap());
            last.does(|fs| fs.unlink("/f").unwrap());
            drop(lock);
        });
        let fs = after_crash(&dev);
        assert_eq!(fs.read("/other").unwrap(), b"content");
        assert_eq!(fs.stat("/other").unwrap().nlink, 1);
        assert!(fs.stat("/f").is_err());
    }

    /// A file leaves its name in a lane that the search has left, and another gets the name in one
    /// that is still to come. The search is in the middle of that name, and came by the file
    /// before: all it found, it found by names.
    #[test]
    fn an_fsync_of_a_directory_finds_where_a_file_went_behind_its_back() {
        let (fs, dev) = fs();
        let inner = &fs.volume().0.persist;
        fs.mkdir("/d", 0o755).unwrap();
        for file in ["/d/f", "/x", "/y", "/z"] {
            fs.write(file, file.as_bytes()).unwrap();
        }
        fs.volume().sync().unwrap();
        let d = fs.open("/d", OpenOptions::new().read(true)).unwrap();
        let hands: [Hand; 5] = std::array::from_fn(|_| Hand::new(&fs));
        assert!(hands.is_sorted_by_key(|h| h.lane));
        // Who begins a lane's log looks at all lanes then.
        hands.iter().for_each(|h| h.does(come_and_go("/z", "/name")));
        let [first, held, left, held_next, last] = &hands;
        first.does(|fs| fs.link("/x", "/d/first").unwrap());
        held.does(|fs| fs.link("/x", "/d/held").unwrap());
        last.does(|fs| fs.link("/x", "/d/last").unwrap());
        std::thread::scope(|s| {
            assert_ne!(unseen(inner, first.lane), Some(0));
            let lock = inner.journal.lanes.lock(held.lane);
            s.spawn(|| d.sync_all().unwrap());
            // It looks for all names of the directory, in the lanes that have some now.
            wait_for_search(inner, first.lane);
            left.does(come_and_go("/y", "/d/name"));
            held_next.does(come_and_go("/y", "/d/name"));
            last.does(|fs| fs.rename("/d/f", "/d/name").unwrap());
            assert_ne!(unseen(inner, left.lane), Some(0));
            let next_lock = inner.journal.lanes.lock(held_next.lane);
            drop(lock);
            // It has come to the last lane, from there to the file, which only that one names, and
            // to the file's name.
            wait_for_search(inner, left.lane);
            left.does(|fs| fs.rename("/d/name", "/d/went").unwrap());
            last.does(|fs| fs.write("/d/name", b"").unwrap());
            drop(next_lock);
        });
        let fs = after_crash(&dev);
        assert_eq!(fs.read("/d/went").unwrap(), b"/d/f");
        assert_eq!(fs.stat("/d/went").unwrap().nlink, 1);
        assert!(fs.stat("/d/name").is_ok() && fs.stat("/d/f").is_err());
    }
}
