//! One lane's groups of one epoch, and the index over them that whoever needs it makes.

use lanefs_format::record::{self, Effect, Group};
use lanefs_format::{Ino, Version};
use lanefs_store::Groups;
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

/// Where a group lies that is the only one about an inode: the lane, and the place in its buffer of
/// the epoch in which the inode was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SoleGroup(u64);

impl SoleGroup {
    /// There are other groups about the inode, or the place is not known.
    pub const NONE: SoleGroup = SoleGroup(u64::MAX);
    /// The group was voided: the log has nothing of the inode.
    pub const VOID: SoleGroup = SoleGroup(u64::MAX - 1);

    /// Returns the group at a place: the number of a chunk in its upper half, and the offset there.
    pub fn at(lane: usize, place: Place) -> SoleGroup {
        debug_assert!(lane < lanefs_sync::MAX_LANES);
        match place >> 48 {
            0 => SoleGroup((lane as u64) << 48 | place),
            _ => SoleGroup::NONE,
        }
    }

    /// Returns it as a word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Returns what [`SoleGroup::word`] gave.
    pub fn from_word(word: u64) -> SoleGroup {
        SoleGroup(word)
    }

    /// Returns whether there is one such group, and it was not voided.
    #[inline]
    pub fn is_known(self) -> bool {
        self.0 < SoleGroup::VOID.0
    }

    /// Returns lane and place.
    pub fn place(self) -> Option<(usize, Place)> {
        self.is_known().then_some(((self.0 >> 48) as usize, self.0 & ((1 << 48) - 1)))
    }
}

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

/// The groups of an epoch that change what the same epoch has changed before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Undone {
    /// Changes of names and rights, about: a name that was removed is not remembered.
    pub changes: usize,
    /// Ends of inodes that were made in the epoch: of these there is none too few.
    pub inodes: usize,
}

impl std::ops::AddAssign for Undone {
    fn add_assign(&mut self, more: Undone) {
        self.changes += more.changes;
        self.inodes += more.inodes;
    }
}

/// A lane's groups of one epoch, in order.
#[derive(Default)]
pub(crate) struct EpochBuf {
    /// The epoch all groups here belong to.
    pub epoch: u64,
    /// Chunks that take no more groups; shared with the commit once sealed. Where all groups were
    /// voided the chunk is empty, and keeps its number.
    full: Vec<Arc<Vec<u8>>>,
    /// The chunk in use.
    open: Vec<u8>,
    /// The groups of each chunk that were not voided, and of all: first those of the full ones.
    counts: Vec<Count>,
    /// A chunk to go on with, until the epoch ends.
    spare: Vec<u8>,
    groups: usize,
    /// Blocks that were reserved for what is logged: those of new inodes and of names.
    pub promised: u64,
    /// What of it can be absorbed.
    pub undone: Undone,
    /// Groups in memory that were voided, and their bytes.
    voided: usize,
    void_bytes: usize,
    index: Index,
}

/// The groups of a chunk.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Count {
    live: u32,
    all: u32,
    /// Bytes of those that were voided.
    void_bytes: u32,
}

#[derive(Default)]
struct Index {
    /// Of each subject, in order; without those that were durable when somebody asked for it.
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
            let next = Some(std::mem::take(&mut self.spare)).filter(|s| s.capacity() >= size);
            let full = std::mem::replace(&mut self.open, next.unwrap_or_else(|| Vec::with_capacity(size)));
            if !full.is_empty() {
                self.full.push(Arc::new(full));
                self.drop_if_void(self.full.len() - 1);
            }
            // For the one that begins.
            self.counts.reserve(1);
            debug_assert!(self.open.capacity() >= record::GROUP_MAX && self.open.is_empty());
            return true;
        }
        false
    }

    /// Logs one group: the single append of step 6. Returns its place.
    pub fn append(&mut self, version: Version, effects: &[Effect<'_>]) -> Place {
        debug_assert!(!effects.is_empty(), "a group without effects");
        debug_assert_eq!(version.epoch, self.epoch, "a group of another epoch");
        self.make_space();
        let (start, capacity) = (self.open.len(), self.open.capacity());
        record::encode_group(&mut self.open, version, effects);
        debug_assert!(self.open.len() > start, "a group has a header");
        debug_assert_eq!(self.open.capacity(), capacity, "the append allocated, with keys locked");
        self.groups += 1;
        if self.counts.len() == self.full.len() {
            self.counts.push(Count::default());
        }
        if let Some(count) = self.counts.last_mut() {
            (count.live, count.all) = (count.live + 1, count.all + 1);
        }
        self.check_invariants();
        (self.full.len() as u64) << 32 | start as u64
    }

    /// Voids two groups at places that [`EpochBuf::append`] gave, of which the second undoes the
    /// first: they count as never logged. Returns false, and does nothing, if a closure may have
    /// one already, which somebody was or will be promised.
    pub fn void_both(&mut self, made: Place, removed: Place) -> bool {
        debug_assert!(made < removed, "a name is removed before it is there");
        debug_assert!(self.at(made).is_some_and(|g| g.makes_an_inode()), "a group that makes no inode");
        debug_assert!(self.at(removed).is_some_and(|g| g.count == 1), "a group of more than a name");
        let unseen = (self.index.chunk as u64) << 32 | self.index.offset as u64;
        if made < unseen {
            return false;
        }
        // Before either is voided: nobody else has a chunk before the seal.
        let chunks = [made, removed].map(|p| (p >> 32) as usize);
        if chunks.iter().any(|c| self.full.get_mut(*c).is_some_and(|full| Arc::get_mut(full).is_none())) {
            debug_assert!(false, "a chunk of an open buffer is shared");
            return false;
        }
        for p in [made, removed] {
            let (chunk, at) = ((p >> 32) as usize, (p & 0xffff_ffff) as usize);
            let bytes = match self.full.get_mut(chunk) {
                Some(full) => record::void_group(Arc::<Vec<u8>>::make_mut(full), at),
                None => record::void_group(&mut self.open, at),
            };
            self.voided += 1;
            let count = &mut self.counts[chunk];
            (count.live, count.void_bytes) = (count.live - 1, count.void_bytes + bytes as u32);
            self.void_bytes += bytes;
            self.drop_if_void(chunk);
        }
        self.undone.changes = self.undone.changes.saturating_sub(1);
        self.check_invariants();
        true
    }

    /// Empties a full chunk of which all groups were voided: what is undone at once takes no memory
    /// until the epoch ends. One that the index has begun with stays: its groups are counted there.
    fn drop_if_void(&mut self, chunk: usize) {
        if chunk < self.index.chunk || chunk == self.index.chunk && self.index.offset > 0 {
            return;
        }
        let (Some(count), Some(full)) = (self.counts.get_mut(chunk), self.full.get_mut(chunk)) else {
            return;
        };
        if count.live > 0 || count.all == 0 {
            return;
        }
        self.void_bytes -= std::mem::take(&mut count.void_bytes) as usize;
        let n = std::mem::take(&mut count.all) as usize;
        (self.groups, self.voided) = (self.groups - n, self.voided - n);
        self.spare = Arc::get_mut(full).map(std::mem::take).unwrap_or_default();
        self.spare.clear();
        self.check_invariants();
    }

    /// Forgets, at the end of an epoch of which all groups were voided, which chunks they lay in.
    pub fn restart(&mut self) {
        debug_assert_eq!(self.groups, 0, "groups would be lost");
        self.full.clear();
        self.counts.clear();
        self.spare = Vec::new();
        self.index = Index::default();
        self.undone = Undone::default();
    }

    /// Returns the number of groups that are in memory, some of them void.
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
    /// date. What has become durable is looked at once for each subject: it leaves the index here,
    /// so an fsync of a directory costs what it writes, not all that was made there in the epoch.
    pub fn about(&mut self, s: Subject) -> &[Place] {
        debug_assert_eq!(self.unindexed(), 0, "what was logged last would be missed");
        let Index { places, durable, .. } = &mut self.index;
        let Some(about) = places.get_mut(&s) else { return &[] };
        if !durable.is_empty() {
            about.retain(|p| !durable.contains(p));
        }
        about
    }

    /// Returns the group at a place that this buffer gave.
    pub fn at(&self, p: Place) -> Option<Group<'_>> {
        debug_assert!((p >> 32) as usize <= self.full.len(), "a place of another buffer");
        let chunk = self.full.get((p >> 32) as usize).map_or(&self.open, |c| c);
        debug_assert!(((p & 0xffff_ffff) as usize) < chunk.len(), "no group begins there");
        record::group_at(chunk, (p & 0xffff_ffff) as usize).ok()
    }

    /// Notes that an fsync made a group durable that [`EpochBuf::about`] gave.
    pub fn mark_durable(&mut self, p: Place) {
        debug_assert!(self.at(p).is_some(), "no group begins there");
        self.index.durable.insert(p);
    }

    /// Takes what was logged: a closed buffer, to which no group is added any more. This one is
    /// empty then. A little is copied out, so that its chunk stays where it is: an epoch for each
    /// fsync would make a new one each time.
    pub fn take(&mut self) -> EpochBuf {
        self.check_invariants();
        self.spare = Vec::new();
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
            counts: self.counts.drain(..).collect(),
            spare: Vec::new(),
            groups: std::mem::take(&mut self.groups),
            promised: std::mem::take(&mut self.promised),
            undone: std::mem::take(&mut self.undone),
            voided: std::mem::take(&mut self.voided),
            void_bytes: std::mem::take(&mut self.void_bytes),
            index: std::mem::take(&mut self.index),
        }
    }

    /// Adds the groups of a closed buffer that were not voided to `out`, chunk by chunk; returns
    /// how many there are.
    pub fn take_part(&self, out: &mut Vec<Groups>) -> usize {
        debug_assert!(self.open.is_empty(), "some groups are in no chunk yet");
        if self.voided == 0 {
            out.extend(self.full.iter().filter(|c| !c.is_empty()).cloned().map(Groups::from));
            return self.groups;
        }
        for chunk in &self.full {
            let left = record::without_void(chunk);
            if !left.is_empty() {
                out.push(left.into());
            }
        }
        self.groups - self.voided
    }

    /// Returns the memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.full.iter().map(|c| c.len()).sum::<usize>() + self.open.len()
    }

    /// Returns the bytes in memory of groups that were voided.
    pub fn void_bytes(&self) -> usize {
        self.void_bytes
    }

    /// Checks what holds of the chunks and of the index between any two changes.
    pub fn check_invariants(&self) {
        let (ix, full) = (&self.index, self.full.len());
        debug_assert_eq!(self.groups == 0, self.bytes() == 0, "{} groups", self.groups);
        debug_assert!(self.counts.len() <= full + 1, "counts of {} chunks", self.counts.len());
        let (mut all, mut live) = (0, 0);
        self.counts.iter().for_each(|c| (all, live) = (all + c.all as usize, live + c.live as usize));
        debug_assert_eq!((all, all - live), (self.groups, self.voided), "the chunks' counts");
        debug_assert!(self.void_bytes <= self.bytes(), "{} bytes are void", self.void_bytes);
        debug_assert!(self.voided <= self.groups, "{} of {} groups voided", self.voided, self.groups);
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

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::{FileKind, ROOT_INO};

    const NAME: &[u8] = &[b'x'; 200];

    /// Logs the making of a file and its removal; returns their places.
    fn pair(b: &mut EpochBuf, n: u64) -> (Place, Place) {
        let (ino, dir, kind) = (Ino(n + 100), ROOT_INO, FileKind::File);
        let version = |ts| Version { epoch: b.epoch, ts, lane: 0 };
        let (first, second) = (version(n * 2 + 1), version(n * 2 + 2));
        let (generation, mode, uid, gid, rdev, time) = (1, libc::S_IFREG | 0o644, 0, 0, 0, 0);
        let target: &[u8] = b"";
        let new =
            Effect::New { ino, parent: dir, generation, mode, uid, gid, rdev, time, target, logged: true };
        let set = Effect::Set { dir, cookie: n * 8, name: NAME, ino, old: Ino::NONE, kind };
        let made = b.append(first, &[new, set]);
        (made, b.append(second, &[Effect::Clr { dir, cookie: n * 8, name: NAME, old: ino, kind }]))
    }

    /// A file that comes and goes for ever takes a chunk or two.
    #[test]
    fn chunks_of_void_groups_are_used_again() {
        let mut b = EpochBuf { epoch: 5, ..EpochBuf::default() };
        for n in 0..10_000 {
            let (made, removed) = pair(&mut b, n);
            assert!(b.void_both(made, removed));
            assert!(b.bytes() <= CHUNK, "{} bytes of nothing", b.bytes());
        }
        let (made, _) = pair(&mut b, 10_000);
        let mut left = Vec::new();
        assert_eq!((b.take().take_part(&mut left), left.len()), (2, 1));
        assert!(made >> 32 > 10, "the chunks kept their numbers");
    }

    /// An index over groups that were voided counts them: their chunk stays.
    #[test]
    fn a_chunk_that_is_indexed_stays_when_its_groups_are_void() {
        let mut b = EpochBuf { epoch: 5, ..EpochBuf::default() };
        let (made, removed) = pair(&mut b, 0);
        assert!(b.void_both(made, removed));
        b.extend_index();
        let (made, removed) = pair(&mut b, 1);
        assert!(b.void_both(made, removed), "the index has not seen them");
        let mut n = 2;
        while b.full.len() < 3 {
            let (made, removed) = pair(&mut b, n);
            assert!(b.void_both(made, removed));
            n += 1;
        }
        b.extend_index();
        assert_eq!(b.unindexed(), 0);
        let (made, removed) = pair(&mut b, n);
        assert_eq!(b.unindexed(), 2);
        b.extend_index();
        assert!(!b.void_both(made, removed), "a closure may have them");
        let mut left = Vec::new();
        assert_eq!(b.take().take_part(&mut left), 2);
    }

    /// Names of one directory that an fsync has made durable are looked at once more, not by each
    /// fsync to come.
    #[test]
    fn what_is_durable_leaves_the_index_when_it_is_asked_for() {
        let mut b = EpochBuf { epoch: 5, ..EpochBuf::default() };
        let dir = Subject::KeysOf(ROOT_INO);
        for turn in 0..100 {
            let (made, removed) = pair(&mut b, turn);
            b.extend_index();
            assert_eq!(b.about(dir), [made, removed], "only what is not durable");
            assert_eq!(b.index.places[&dir].len(), 2, "the index is left with the rest");
            assert_eq!(b.about(Subject::Inode(Ino(turn + 100))), [made, removed]);
            b.mark_durable(made);
            assert_eq!(b.about(dir), [removed], "in any mixture");
            b.mark_durable(removed);
        }
        assert!(b.about(dir).is_empty() && b.about(Subject::Inode(Ino(199))).is_empty());
        assert!(b.about(Subject::Inode(Ino(7))).is_empty(), "of what was never logged there is nothing");
    }
}
