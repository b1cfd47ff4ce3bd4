//! One lane's groups of one epoch, and the index over them that whoever needs it makes.

use lanefs_format::record::{self, Effect, Group};
use lanefs_format::{Ino, Version};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes in a chunk of a buffer; a group never straddles two.
const CHUNK: usize = 256 * 1024;
/// Bytes of groups that are copied out of the chunk they were logged in.
const COPIED: usize = 4096;

const _: () = assert!(CHUNK / 8 >= record::GROUP_MAX, "a group fits in the smallest chunk");
const _: () = assert!(CHUNK <= u32::MAX as usize, "an offset is the lower half of a place");

/// The place of a group: chunk in the upper half, offset in the lower.
pub(crate) type Place = u64;

/// A subject that a closure asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Subject {
    /// Groups that name this inode: as new, linked, unlinked, replaced, moved or dead.
    Inode(Ino),
    /// Groups that write this key: directory and cookie.
    Key(Ino, u64),
    /// Groups that write any key of this directory.
    KeysOf(Ino),
}

/// A lane's groups of one epoch, in order.
#[derive(Default)]
pub(crate) struct EpochBuf {
    /// The epoch all groups here belong to.
    pub epoch: u64,
    /// Chunks that take no more groups; shared with the commit once sealed.
    full: Vec<Arc<Vec<u8>>>,
    /// The chunk in use.
    open: Vec<u8>,
    groups: usize,
    /// Blocks that were reserved for what is logged: one for each NEW, and those of names.
    pub promised: u64,
    index: Index,
}

#[derive(Default)]
struct Index {
    places: HashMap<Subject, SmallVec<[Place; 2]>>,
    /// Up to where the groups are indexed.
    chunk: usize,
    offset: usize,
    indexed: usize,
    /// Groups that an fsync has made durable: later fsyncs need not write them again.
    durable: HashSet<Place>,
}

impl EpochBuf {
    /// Returns whether nothing was logged, nor promised.
    pub fn is_empty(&self) -> bool {
        self.groups == 0 && self.promised == 0
    }

    /// Makes sure that the next group fits without allocating; returns whether a new chunk was
    /// begun. Called before any key is locked.
    pub fn make_space(&mut self) -> bool {
        if self.open.capacity() - self.open.len() < record::GROUP_MAX {
            // The first chunk of a quiet lane is small; a busy lane soon gets whole ones.
            let size = if self.open.capacity() == 0 { CHUNK / 8 } else { CHUNK };
            let full = std::mem::replace(&mut self.open, Vec::with_capacity(size));
            if !full.is_empty() {
                self.full.push(Arc::new(full));
            }
            debug_assert!(self.open.capacity() >= record::GROUP_MAX && self.open.is_empty());
            return true;
        }
        false
    }

    /// Logs one group: the single append of step 6.
    pub fn append(&mut self, version: Version, effects: &[Effect<'_>]) {
        debug_assert!(!effects.is_empty(), "a group without effects");
        debug_assert_eq!(version.epoch, self.epoch, "a group of another epoch");
        self.make_space();
        let (start, capacity) = (self.open.len(), self.open.capacity());
        record::encode_group(&mut self.open, version, effects);
        debug_assert!(self.open.len() > start, "a group has a header");
        debug_assert_eq!(self.open.capacity(), capacity, "the append allocated, with keys locked");
        self.groups += 1;
        self.promised += u64::from(effects.iter().any(|e| matches!(e, Effect::New { .. })));
        self.check_invariants();
    }

    /// Returns the number of groups logged.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Returns the number of groups not indexed yet.
    pub fn unindexed(&self) -> usize {
        self.groups - self.index.indexed
    }

    /// Brings the index up to date.
    pub fn extend_index(&mut self) {
        let ix = &mut self.index;
        loop {
            let bytes = self.full.get(ix.chunk).map_or(&self.open, |c| c);
            while ix.offset < bytes.len() {
                let place = (ix.chunk as u64) << 32 | ix.offset as u64;
                let Ok(g) = record::group_at(bytes, ix.offset) else {
                    debug_assert!(false, "the oplog holds only what it encoded");
                    return;
                };
                ix.offset += g.bytes.len();
                ix.indexed += 1;
                subjects(&g, &mut |s| {
                    let v = ix.places.entry(s).or_default();
                    if v.last() != Some(&place) {
                        v.push(place);
                    }
                });
            }
            debug_assert_eq!(ix.offset, bytes.len(), "a group ends with its chunk");
            if ix.chunk >= self.full.len() {
                debug_assert_eq!(ix.indexed, self.groups, "groups were passed over");
                return;
            }
            ix.chunk += 1;
            ix.offset = 0;
        }
    }

    /// Returns the places of the groups about `s` that are not durable yet. The index must be up to
    /// date.
    pub fn about(&self, s: Subject) -> impl Iterator<Item = Place> + '_ {
        debug_assert_eq!(self.unindexed(), 0, "what was logged last would be missed");
        self.index.places.get(&s).into_iter().flatten().copied().filter(|p| !self.index.durable.contains(p))
    }

    /// Returns the group at a place that this buffer gave.
    pub fn at(&self, p: Place) -> Option<Group<'_>> {
        debug_assert!((p >> 32) as usize <= self.full.len(), "a place of another buffer");
        let chunk = self.full.get((p >> 32) as usize).map_or(&self.open, |c| c);
        debug_assert!(((p & 0xffff_ffff) as usize) < chunk.len(), "no group begins there");
        record::group_at(chunk, (p & 0xffff_ffff) as usize).ok()
    }

    /// Notes that an fsync made this group durable.
    pub fn mark_durable(&mut self, p: Place) {
        debug_assert!(self.at(p).is_some(), "no group begins there");
        self.index.durable.insert(p);
    }

    /// Takes what was logged: a closed buffer, to which no group is added any more. This one is
    /// empty then. A little is copied out, so that its chunk stays where it is: an epoch for each
    /// fsync would make a new one each time.
    pub fn take(&mut self) -> EpochBuf {
        self.check_invariants();
        let taken = self.take_groups();
        debug_assert!(self.is_empty() && self.index.indexed == 0, "something was left behind");
        debug_assert!(taken.open.is_empty(), "a closed buffer takes no group");
        taken.check_invariants();
        taken
    }

    fn take_groups(&mut self) -> EpochBuf {
        if !self.full.is_empty() || self.open.len() > COPIED {
            let mut taken = std::mem::take(self);
            let open = std::mem::take(&mut taken.open);
            if !open.is_empty() {
                taken.full.push(Arc::new(open));
            }
            return taken;
        }
        let groups = Arc::new(self.open.clone());
        self.open.clear();
        EpochBuf {
            epoch: self.epoch,
            full: if groups.is_empty() { Vec::new() } else { vec![groups] },
            open: Vec::new(),
            groups: std::mem::take(&mut self.groups),
            promised: std::mem::take(&mut self.promised),
            index: std::mem::take(&mut self.index),
        }
    }

    /// Returns the raw groups of a closed buffer, chunk by chunk.
    pub fn chunks(&self) -> &[Arc<Vec<u8>>] {
        debug_assert!(self.open.is_empty(), "some groups are in no chunk yet");
        &self.full
    }

    /// Returns the memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.full.iter().map(|c| c.len()).sum::<usize>() + self.open.len()
    }

    /// Checks what holds of the chunks and of the index between any two changes.
    pub fn check_invariants(&self) {
        let (ix, full) = (&self.index, self.full.len());
        debug_assert!(self.full.last().is_none_or(|c| !c.is_empty()), "a chunk without a group");
        debug_assert_eq!(self.groups == 0, full == 0 && self.open.is_empty(), "{} groups", self.groups);
        debug_assert!(ix.indexed <= self.groups, "{} of {} groups indexed", ix.indexed, self.groups);
        debug_assert!(ix.chunk <= full, "the index is in chunk {}, and {full} are full", ix.chunk);
        let at = self.full.get(ix.chunk).map_or(self.open.len(), |c| c.len());
        debug_assert!(ix.offset <= at, "the index is at {} of a chunk of {at}", ix.offset);
        debug_assert!(ix.durable.len() <= ix.indexed, "only what the index gave is marked durable");
        debug_assert!(ix.indexed > 0 || ix.places.is_empty(), "places of no group");
    }
}

/// Calls `f` with everything a group is about.
pub(crate) fn subjects(g: &Group<'_>, f: &mut dyn FnMut(Subject)) {
    for e in g.effects().flatten() {
        match e {
            Effect::Set { dir, cookie, ino, old, .. } => {
                f(Subject::Key(dir, cookie));
                f(Subject::KeysOf(dir));
                f(Subject::Inode(ino));
                if !old.is_none() {
                    f(Subject::Inode(old));
                }
            }
            Effect::Clr { dir, cookie, old, .. } => {
                f(Subject::Key(dir, cookie));
                f(Subject::KeysOf(dir));
                f(Subject::Inode(old));
            }
            Effect::New { ino, .. }
            | Effect::Dead { ino, .. }
            | Effect::Parent { ino, .. }
            | Effect::Rights { ino, .. } => f(Subject::Inode(ino)),
            // It stands behind NEW of the same inode.
            Effect::Xattrs { .. } => {}
        }
    }
}

/// A buffer that was taken by a seal: read-only groups, shared by the commit and by closures until
/// it is committed.
pub(crate) type Sealed = Arc<lanefs_sync::lock::Mutex<EpochBuf>>;
