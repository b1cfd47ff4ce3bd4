//! A lane's private state. All of it is reached under the lane's log lock only.

use super::buffer::{EpochBuf, Place, Sealed, SoleGroup, Undone};
use super::inode_numbers::NumberCache;
use super::short_lived::ShortLived;
use lanefs_format::{Ino, Version, record::Effect};
use std::sync::Arc;

/// Groups after which a lane of a small volume looks how much is logged.
const LOOK: usize = 256;

/// An inode that lost its last name, or never had one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub ino: Ino,
    /// The group that says so, if it says nothing else.
    pub removal: SoleGroup,
}

/// The lane's private state: its half of the double-buffered oplog and what it caches to stay
/// private.
pub(crate) struct LaneLog {
    /// Timestamp of the lane's last operation. Kept when another thread takes the lane over.
    pub last_ts: u64,
    /// Buffers by parity of the epoch: operations go on in one while the other is sealed.
    open: [EpochBuf; 2],
    /// Sealed, not yet committed.
    pub sealed: Vec<Sealed>,
    /// Inode numbers this lane may give out.
    pub numbers: NumberCache,
    /// Inodes that became dirty here since the last writeback (ScaleXFS's per-core list).
    pub dirty: Vec<Ino>,
    /// Inodes that lost their last name here.
    pub orphans: Vec<Orphan>,
    /// Bytes of content that went with last names here since the reaper was asked to end them soon.
    pub ended_bytes: u64,
    /// Files that were made and removed here, and that the lane ends itself.
    pub short_lived: ShortLived,
    /// Directories that lost names here since the last seal, and how many; some more than once.
    pub thinned: Vec<(Ino, u64)>,
    /// Files that were renamed over another here: their content goes before the commit
    /// (persist::replaced).
    pub replaced: Vec<Ino>,
    /// Files of `replaced` that a seal has taken and is making durable, a list for each such seal
    /// (persist::replaced, 4).
    pub in_hand: Vec<Arc<[Ino]>>,
    /// What the running operation undoes: counted with its group.
    pub undoes: Undone,
    /// Seals that are announced: a rename over a file has to write the file first
    /// (persist::replaced, 3).
    pub seals_ahead: u32,
}

impl LaneLog {
    pub fn new(last_ts: u64, end_together: usize) -> LaneLog {
        LaneLog {
            last_ts,
            open: Default::default(),
            sealed: Vec::new(),
            numbers: NumberCache::default(),
            dirty: Vec::new(),
            orphans: Vec::new(),
            ended_bytes: 0,
            short_lived: ShortLived::new(end_together),
            thinned: Vec::new(),
            replaced: Vec::new(),
            in_hand: Vec::new(),
            undoes: Undone::default(),
            seals_ahead: 0,
        }
    }

    /// Allocates, before the locks, the space that the append may need, in either buffer. Returns
    /// whether it had to.
    pub fn make_space(&mut self) -> bool {
        let [a, b] = &mut self.open;
        a.make_space() | b.make_space()
    }

    /// Logs one group in its epoch's buffer: step 6. Returns its place.
    pub fn append(&mut self, version: Version, effects: &[Effect<'_>]) -> Place {
        debug_assert!(version.ts > self.last_ts, "a lane's timestamps grow: {version:?}");
        let undoes = std::mem::take(&mut self.undoes);
        let buffer = self.buffer(version.epoch);
        let place = buffer.append(version, effects);
        buffer.undone += undoes;
        self.last_ts = version.ts;
        place
    }

    /// Voids two groups of the epoch `epoch`, if it still runs: see
    /// [`EpochBuf::void_both`].
    pub fn void_both(&mut self, epoch: u64, made: Place, removed: Place) -> bool {
        let b = &mut self.open[(epoch & 1) as usize];
        // One that was taken is empty, and may keep its epoch.
        b.epoch == epoch && b.groups() > 0 && b.void_both(made, removed)
    }

    /// Counts blocks that were reserved for operations of an epoch: given back when it is folded.
    pub fn promise(&mut self, epoch: u64, blocks: u64) {
        debug_assert!(blocks > 0, "nothing to give back");
        self.buffer(epoch).promised += blocks;
    }

    fn buffer(&mut self, epoch: u64) -> &mut EpochBuf {
        debug_assert!(self.open[(!epoch & 1) as usize].epoch < epoch, "a lane's epochs do not go back");
        let b = &mut self.open[(epoch & 1) as usize];
        if b.epoch != epoch {
            debug_assert!(b.is_empty(), "the buffer of epoch {} was not taken before {epoch}", b.epoch);
            debug_assert!(b.epoch < epoch, "epoch {} has begun in this lane", b.epoch);
            b.epoch = epoch;
        }
        b
    }

    /// Moves, in the seal's short step, the buffer of `epoch` among the sealed ones and returns it,
    /// if anything was logged.
    pub fn take(&mut self, epoch: u64) -> Option<Sealed> {
        let b = &mut self.open[(epoch & 1) as usize];
        if b.epoch != epoch {
            return None;
        }
        if b.is_empty() {
            b.restart();
            return None;
        }
        let taken = Arc::new(lanefs_sync::lock::Mutex::new(b.take()));
        self.sealed.push(taken.clone());
        self.check_invariants();
        Some(taken)
    }

    /// Checks what holds of the buffers between any two operations.
    pub fn check_invariants(&self) {
        let mut last = 0;
        if cfg!(debug_assertions) {
            for sealed in &self.sealed {
                let epoch = sealed.lock().epoch;
                debug_assert!(epoch > last, "epoch {epoch} was sealed behind {last}");
                last = epoch;
            }
            for (parity, b) in self.open.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
                debug_assert_eq!(b.epoch & 1, parity as u64, "epoch {} in the other's buffer", b.epoch);
                debug_assert!(b.epoch > last, "epoch {} was sealed, and goes on", b.epoch);
                b.check_invariants();
            }
        }
    }

    /// Forgets buffers up to `epoch`: they are committed.
    pub fn committed(&mut self, epoch: u64) {
        self.sealed.retain(|s| s.lock().epoch > epoch);
        self.check_invariants();
    }

    /// Calls `f` with every buffer that holds pending groups.
    pub fn each_pending(&mut self, f: &mut dyn FnMut(&mut EpochBuf)) {
        for s in &self.sealed {
            f(&mut s.lock());
        }
        for b in &mut self.open {
            if !b.is_empty() {
                f(b);
            }
        }
    }

    /// Notes that a directory lost a name.
    #[inline]
    pub fn thin(&mut self, dir: Ino) {
        match self.thinned.last_mut() {
            Some((last, names)) if *last == dir => *names += 1,
            _ => note_lost(&mut self.thinned, (dir, 1)),
        }
    }

    /// Returns whether it is time to look how much is logged, on a small volume.
    pub fn is_time(&self) -> bool {
        self.open.iter().any(|b| b.groups() % LOOK == LOOK - 1)
    }

    /// Returns the number of bytes in the open buffers.
    pub fn open_bytes(&self) -> usize {
        self.open.iter().map(EpochBuf::bytes).sum()
    }

    /// Returns how many of them are of groups that are void, or are about to be.
    pub fn void_bytes(&self) -> usize {
        self.open.iter().map(EpochBuf::void_bytes).sum::<usize>() + self.short_lived.bytes()
    }
}

/// Adds names that a directory lost to a list on which some stand more than once, but not many
/// times more.
#[cold]
pub(crate) fn note_lost(list: &mut Vec<(Ino, u64)>, (dir, names): (Ino, u64)) {
    debug_assert!(names > 0 && !dir.is_none());
    if list.len() == list.capacity() {
        let all = |list: &[(Ino, u64)]| list.iter().map(|lost| lost.1).sum::<u64>();
        let before = if cfg!(debug_assertions) { all(list) } else { 0 };
        list.sort_unstable();
        list.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0 };
            same
        });
        debug_assert!(list.is_sorted_by(|a, b| a.0 < b.0), "each directory stands there once");
        debug_assert_eq!(all(list), before, "names were forgotten");
        list.reserve(list.len().max(16));
    }
    list.push((dir, names));
}
