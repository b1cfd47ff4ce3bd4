//! An inode in memory: all that memory holds of one file (Max's file cell, 4.2).
//!
//! An inode is laid out by who writes: (1) what look-ups, opens and reads read; (2) mode and owner,
//! which chmod and chown set; (3) the times that the home lane stores, and what operations on the
//! inode's names write; (4) extended attributes, which are read without a lock; (5) the body, whose
//! first fields are read; (6) the body's locks and marks (`memfs::data`), the marks for writeback,
//! and the lock of fsync. So reading a file shares no line with dirtying it or syncing it, `stat`
//! none with syncing it, getxattr none with anything but setxattr.
//!
//! Who writes what: mode and owner whoever changes them, several at once under `attr_lock`, which
//! readers of all three validate; `nlink` by operations on names of the inode, atomically; `lanes`
//! and `epoch` by operations that name it, tested first, so that a second one writes nothing; marks
//! atomically by anybody. Times and marks are stored here by the lane that made or loaded the
//! inode, its home; the other lanes' lie in `memfs::stamps`, of which [`Inode::stat`],
//! [`Inode::has`] and [`Inode::take_marks`] know. Readers (stat, permission checks) only read.

use super::data::{DataCtx, ErrSeq, FileData};
use super::dir::Dir;
pub(crate) use super::marks::*;
use super::stamps::{NO_TIME, Noted, STRIPED, Stamps};
use super::xattr::XattrSlot;
use crate::oplog::buffer::SoleGroup;
use crate::stat::Stat;
use crate::write_life::WriteLife;
use lanefs_format::{Attrs, FileKind, Ino, inode_flags};
use lanefs_sync::SeqWord;
use lanefs_sync::lock::Mutex;
use lanefs_sync::primitive::fence;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicI64, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

/// The bit at which the inode's flags begin in [`Inode::life`]: whoever would change an inode looks
/// there.
const FLAGS_AT: u32 = 13;
/// Nothing of it may be changed.
pub(crate) const IMMUTABLE: u32 = inode_flags::IMMUTABLE << FLAGS_AT;
/// Of a file the content only grows; of a directory no name goes.
pub(crate) const APPEND: u32 = inode_flags::APPEND << FLAGS_AT;
/// The time of the last access stays.
pub(crate) const NOATIME: u32 = inode_flags::NOATIME << FLAGS_AT;

/// The content of an inode, beside its attributes. The tag, and behind it what readers of the
/// content look at.
#[repr(C, u8)]
pub(crate) enum Body {
    /// A regular file's content.
    File(FileData),
    /// A symbolic link's target.
    Link(Box<[u8]>),
    /// A directory's names.
    Dir(Dir),
    /// Device nodes, pipes, sockets: nothing.
    None,
}

/// All that memory holds of one inode.
#[repr(C, align(64))]
pub(crate) struct Inode {
    pub ino: Ino,
    pub generation: u32,
    /// [`FROZEN`], [`EVICTED`], [`FREED`], [`ENDED`], [`HAS_XATTRS`], [`LINKABLE`], [`FUTURE`],
    /// [`PRIVILEGED`], and the flags of the inode: what those who find the inode look at.
    ///
    /// Written by anybody, by read-modify-writes. The Acquire load of `InodeTable::get` and the
    /// AcqRel of [`Inode::set`] and [`Inode::clear`] are partners of each other: who finds a mark
    /// finds what was done before it was set. The reaper's FREED (SeqCst, as is the evictor's
    /// EVICTED) is the partner of an opener's SeqCst load behind the slot that it took. All other
    /// loads are Relaxed: a test before a read-modify-write, or validated by `attr_lock`.
    pub life: AtomicU32,
    pub kind: FileKind,
    /// The lane that made it or loaded it: see `memfs::stamps`.
    home: u8,
    /// Errors of writing it back: each handle looks when it is opened and when it syncs.
    pub errors: ErrSeq,
    /// A directory's parent; changes under the volume's move lock. The Release store of a rename is
    /// the partner of the Acquire loads of those who walk up.
    pub parent: AtomicU64,
    /// Read by every read (relatime), written by few. Relaxed: one word, which orders nothing; for
    /// a capture there is the fence in [`Inode::set_times`].
    atime: AtomicI64,
    btime: i64,
    pub rdev: u64,
    stamps: NonNull<Stamps>,
    owner: Line,
    /// Second line. The superuser passes permission checks without looking here. Written as said in
    /// `memfs::owner`. Relaxed, all three: one alone orders nothing, and who needs all of one
    /// instant validates `attr_lock`, whose fences order them.
    pub(super) mode: AtomicU32,
    pub(super) uid: AtomicU32,
    pub(super) gid: AtomicU32,
    pub attr_lock: SeqWord,
    /// In an ordered volume: the epoch in which mode, owner or an ACL changed last, and the
    /// timestamp of that. Written under `attr_lock`: the epoch by a Release store, the partner of
    /// the Acquire load in `ops::rights::rights_pending`; the timestamp is read under that lock
    /// only, so Relaxed.
    pub rights_epoch: AtomicU64,
    pub(super) rights_ts: AtomicU64,
    /// Renames of this file over others whose content is not durable yet, and writers that wait for
    /// its rights to be committed: who would change its rights waits for both. Changes under
    /// `attr_lock` (Relaxed), or goes down: by a Release subtraction, the partner of the Acquire
    /// load of who waits for that without the lock.
    pub owed: AtomicU32,
    pub held: AtomicU32,
    times: Line,
    /// Third line. Names; for directories: the base to which the index's stripes are relative.
    /// Written by operations on names. SeqCst where the last name or the first one decides (link,
    /// unlink, the reaper): each is the partner of the others. Relaxed for `stat` and for the
    /// reclaimer, which looks at more before it acts.
    pub nlink: AtomicU32,
    /// Times: Relaxed, as `atime`. Stored by the home lane, or raised by who gives a slot back.
    mtime: AtomicI64,
    ctime: AtomicI64,
    /// Directories only: when the mtime was last set explicitly. A time of the index's stripes up
    /// to then does not count. Only raised. Relaxed, as the times.
    mtime_set: AtomicI64,
    /// Lanes (modulo 64) that may hold pending groups naming this inode. Bits are only added, by
    /// [`Inode::named_by`], SeqCst, before `epoch` is raised: the partner are the SeqCst loads of a
    /// closure, which look at `epoch` first.
    pub lanes: AtomicU64,
    /// Highest epoch of an operation that names it: not evicted before that is folded. Only raised,
    /// as `lanes`. The reclaimer's loads are Relaxed: what it decides by them is decided again by
    /// its compare-exchange of `life`.
    pub epoch: AtomicU64,
    /// Epoch of the group that made the inode; 0 if that is folded. Set before the inode is
    /// published.
    pub born: u64,
    /// The place of the group that made the inode and named it, as long as no other group names
    /// it but the one that takes the last name ([`SoleGroup`]). Stored by its maker under the lock
    /// of the name's leaf, and by whoever logs another group about it, before that. Relaxed: the
    /// reaper looks when nobody knows the inode any more.
    sole_group: AtomicU64,
    named: Line,
    /// Fourth line. Read without a lock; setxattr writes it.
    pub xattrs: XattrSlot,
    content: Line,
    pub body: Body,
    /// Behind a file's marks and locks, on the sixth line. The other marks: of changes, for
    /// writeback.
    ///
    /// Written by anybody, by read-modify-writes, AcqRel: [`Inode::set`] and [`Inode::clear`] are
    /// partners of each other, and SYNCING's end is that of the Acquire load in
    /// [`Inode::is_synced`]. Between a change and its mark there is a fence where it is needed
    /// ([`Inode::set_times`]); so the tests before are Relaxed.
    pub flags: AtomicU32,
    /// One fsync or writeback of this inode at a time: later ones find their work done.
    pub sync_lock: Mutex<()>,
}

// SAFETY: `stamps` points to the volume's, which are shared by all threads and outlive every use of
// an inode (see `Inode::stamps`); the rest is atomics, locks, and what never changes.
unsafe impl Send for Inode {}
// SAFETY: as above.
unsafe impl Sync for Inode {}

/// Marks in [`Inode::life`].
const LIFE: u32 = FROZEN | EVICTED | FREED | ENDED | HAS_XATTRS | LINKABLE | FUTURE | PRIVILEGED | FLAGS;
const _: () = assert!(LIFE & WRITE_LIFE == 0, "the expected life lies in the word of changes");
/// All flags of an inode.
const FLAGS: u32 = inode_flags::ALL << FLAGS_AT;
const _: () = assert!(FLAGS & (ENDED | PRIVILEGED | STORED | 0xffff) == 0, "marks of the inode");
const _: () = assert!(std::mem::offset_of!(Inode, stamps) < 64 && std::mem::offset_of!(Inode, mode) == 64);
const _: () = assert!(size_of::<Inode>() == 384 && std::mem::offset_of!(Inode, nlink) == 128);
const _: () = assert!(std::mem::offset_of!(Inode, xattrs) == 192 && std::mem::offset_of!(Inode, body) == 256);
const _: () = assert!(std::mem::offset_of!(Inode, flags) > 320);
/// Lanes fit in `home`.
const _: () = assert!(lanefs_sync::MAX_LANES <= 256);

/// Returns whether a mode has setuid or setgid.
pub(super) fn is_privileged(mode: u32) -> bool {
    mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

impl Inode {
    /// Makes an inode whose home is `lane`, of the volume to which `stamps` belong.
    pub fn new(
        ino: Ino,
        kind: FileKind,
        attrs: &Attrs,
        nlink: u32,
        parent: Ino,
        body: Body,
        (lane, stamps): (usize, &Stamps),
    ) -> Box<Inode> {
        debug_assert!(!ino.is_none() && lane < lanefs_sync::MAX_LANES);
        debug_assert!(
            match kind {
                FileKind::File => matches!(body, Body::File(_)),
                FileKind::Symlink => matches!(body, Body::Link(_)),
                FileKind::Dir => matches!(body, Body::Dir(_)),
                _ => matches!(body, Body::None),
            },
            "the body of another kind than {kind:?}"
        );
        let privileged = if is_privileged(attrs.mode) { PRIVILEGED } else { 0 };
        Box::new(Inode {
            ino,
            generation: attrs.generation,
            kind,
            home: lane as u8,
            life: AtomicU32::new(privileged | (attrs.flags & inode_flags::ALL) << FLAGS_AT),
            errors: ErrSeq::new(),
            stamps: NonNull::from(stamps),
            owner: Line,
            times: Line,
            flags: AtomicU32::new(0),
            named: Line,
            content: Line,
            mode: AtomicU32::new(attrs.mode),
            uid: AtomicU32::new(attrs.uid),
            gid: AtomicU32::new(attrs.gid),
            attr_lock: SeqWord::new(),
            rights_epoch: AtomicU64::new(0),
            rights_ts: AtomicU64::new(0),
            owed: AtomicU32::new(0),
            held: AtomicU32::new(0),
            nlink: AtomicU32::new(nlink),
            rdev: attrs.rdev,
            atime: AtomicI64::new(attrs.atime),
            mtime: AtomicI64::new(attrs.mtime),
            ctime: AtomicI64::new(attrs.ctime),
            mtime_set: AtomicI64::new(NO_TIME),
            btime: attrs.btime,
            parent: AtomicU64::new(parent.0),
            lanes: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            born: 0,
            sole_group: AtomicU64::new(SoleGroup::NONE.word()),
            sync_lock: Mutex::new(()),
            xattrs: XattrSlot::new(),
            body,
        })
    }

    fn stamps(&self) -> &Stamps {
        // SAFETY: the volume owns both the table of inodes and the stamps; whoever reaches an inode
        // keeps the volume. An inode that the collector frees later does not look here.
        unsafe { self.stamps.as_ref() }
    }

    /// Returns whether a lane's changes go to its slot, not into the inode.
    pub fn is_striped(&self, lane: usize, content: bool) -> bool {
        debug_assert!(lane < lanefs_sync::MAX_LANES);
        usize::from(self.home) != lane && !(content && self.has(FUTURE))
    }

    pub fn mode(&self) -> u32 {
        self.mode.load(Relaxed)
    }
    pub fn uid(&self) -> u32 {
        self.uid.load(Relaxed)
    }
    pub fn gid(&self) -> u32 {
        self.gid.load(Relaxed)
    }

    /// Returns the file's content; `None` for other kinds.
    pub fn data(&self) -> Option<&FileData> {
        match &self.body {
            // The kind first, as below.
            _ if self.kind != FileKind::File => None,
            Body::File(d) => Some(d),
            _ => None,
        }
    }

    /// Returns the directory's names; `None` for other kinds.
    pub fn dir(&self) -> Option<&Dir> {
        match &self.body {
            // The kind first: a file's body lies on a line that extending it writes.
            _ if self.kind != FileKind::Dir => None,
            Body::Dir(d) => Some(d),
            _ => None,
        }
    }

    /// Returns the number of links, as `stat` reports it.
    pub fn links(&self) -> u32 {
        let n = self.nlink.load(Relaxed);
        match &self.body {
            Body::Dir(d) if n > 0 => n.saturating_add_signed(d.subdirs()).max(2),
            _ => n,
        }
    }

    /// Returns the size in bytes, as `stat` reports it.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(d) => d.size(),
            Body::Link(t) => t.len() as u64,
            Body::Dir(_) => 4096,
            Body::None => 0,
        }
    }

    /// Returns mtime and ctime, of all lanes.
    fn times(&self) -> (i64, i64) {
        // First the slots: what is given back was stored into the inode before.
        let (mtime, ctime) = self.stamps().times(self.ino);
        fence(Acquire);
        (self.own_mtime().max(mtime), self.own_ctime().max(ctime))
    }

    fn own_mtime(&self) -> i64 {
        let own = self.mtime.load(Relaxed);
        let names = self.dir().map_or(NO_TIME, Dir::mtime);
        if names > self.mtime_set.load(Relaxed) { own.max(names) } else { own }
    }

    fn own_ctime(&self) -> i64 {
        self.ctime.load(Relaxed).max(self.dir().map_or(NO_TIME, Dir::mtime))
    }

    /// Returns the attributes, as `stat` reports them.
    pub fn stat(&self) -> Stat {
        let (mtime, ctime) = self.times();
        Stat {
            ino: self.ino,
            generation: self.generation,
            kind: self.kind,
            mode: self.mode(),
            nlink: self.links(),
            uid: self.uid(),
            gid: self.gid(),
            rdev: self.rdev,
            size: self.size(),
            blocks: self.data().map_or(u64::from(self.kind == FileKind::Dir) * 8, |d| d.blocks() * 8),
            atime: self.atime.load(Relaxed),
            mtime,
            ctime,
            btime: self.btime,
        }
    }

    /// Returns whether the inode has one of these flags, [`IMMUTABLE`], [`APPEND`] and [`NOATIME`].
    #[inline]
    pub fn has_flag(&self, flags: u32) -> bool {
        self.life.load(Relaxed) & flags != 0
    }

    /// Returns the flags of the inode, of [`inode_flags`].
    pub fn inode_flags(&self) -> u32 {
        (self.life.load(Relaxed) & FLAGS) >> FLAGS_AT
    }

    /// Puts the flags that `f` makes of those there are.
    pub fn change_inode_flags<E>(&self, f: impl FnOnce(u32) -> Result<u32, E>) -> Result<(), E> {
        let _l = self.attr_lock.guard();
        let flags = f(self.inode_flags())? & inode_flags::ALL;
        let _ = self.life.fetch_update(AcqRel, Relaxed, |l| Some(l & !FLAGS | flags << FLAGS_AT));
        debug_assert_eq!(self.inode_flags(), flags, "changed without attr_lock");
        Ok(())
    }

    /// Returns mode, owner and flags of one instant.
    fn owner_mode(&self) -> (u32, u32, u32, u32) {
        loop {
            if let Some(seq) = self.attr_lock.begin_read() {
                // The flags last: who changes them invalidates, who changes the mode alone does
                // not.
                let all = (self.mode(), self.uid(), self.gid(), self.inode_flags());
                if self.attr_lock.validate(seq) {
                    return all;
                }
            }
            lanefs_sync::schedule::spin_loop();
        }
    }

    /// Returns the attributes as they are captured for the store.
    pub fn attrs(&self) -> Attrs {
        let ((mode, uid, gid, flags), (mtime, ctime)) = (self.owner_mode(), self.times());
        Attrs {
            mode,
            uid,
            gid,
            flags,
            rdev: self.rdev,
            size: match &self.body {
                Body::File(data) => data.size_to_store(),
                _ if self.kind == FileKind::Dir => 0,
                _ => self.size(),
            },
            atime: self.atime.load(Relaxed),
            mtime,
            ctime,
            btime: self.btime,
            generation: self.generation,
        }
    }

    /// Sets times in the inode; `None` leaves one alone. Written only where they differ: within a
    /// tick of the coarse clock a second change writes no shared line. For the home lane, and for
    /// times that are not the clock's.
    pub fn set_times(&self, atime: Option<i64>, mtime: Option<i64>, ctime: Option<i64>) {
        let mut stored = false;
        for (slot, v) in [(&self.atime, atime), (&self.mtime, mtime), (&self.ctime, ctime)] {
            if let Some(v) = v
                && slot.load(Relaxed) != v
            {
                slot.store(v, Relaxed);
                stored = true;
            }
        }
        if stored {
            // Between the store and the look whether the inode is marked already; pairs with the
            // fence of the capture between clearing the mark and reading the times. Without it both
            // may miss the other, and the time is never written.
            fence(SeqCst);
        }
        if let (Some(_), Some(now), Some(d)) = (mtime, ctime, self.dir()) {
            // An explicit time wins over the stripes of the index, which are older, though their
            // times may be ahead of the clock's tick.
            self.mtime_set.fetch_max(now.max(d.mtime()), Relaxed);
        }
    }

    /// Sets an mtime, and perhaps a ctime, that are not the clock's `now`: the slots' are older.
    pub fn set_explicit(&self, mtime: Option<i64>, ctime: Option<i64>, now: i64) {
        debug_assert!(mtime.is_some() || ctime.is_some(), "nothing is set");
        if mtime.is_some_and(|t| t > now) {
            self.set(FUTURE);
        }
        self.stamps().forget_times(self.ino, mtime.is_some(), ctime.is_some());
        self.set_times(None, mtime, ctime);
        if let (Some(_), None, Some(d)) = (mtime, ctime, self.dir()) {
            self.mtime_set.fetch_max(now.max(d.mtime()), Relaxed);
        }
    }

    /// Returns whether a change at `ctime`, with these marks, is noted already in the slot of
    /// `lane`. Writes nothing.
    pub fn is_stamped(&self, lane: usize, mtime: Option<i64>, ctime: i64, marks: u32) -> bool {
        self.is_striped(lane, mtime.is_some()) && self.stamps().knows(lane, self.ino, mtime, ctime, marks)
    }

    /// Notes a change at `ctime`, with an mtime if it is one of the content, in the slot of `lane`,
    /// which the caller has locked.
    pub fn stamp(&self, lane: usize, mtime: Option<i64>, ctime: i64, marks: u32) -> Noted {
        if self.is_striped(lane, mtime.is_some()) {
            self.stamps().note(lane, self.ino, mtime, ctime, marks)
        } else {
            Noted::No
        }
    }

    /// Returns the stamps in which pages of this file that became dirty are noted, and whether
    /// `lane` does so.
    pub fn page_stamps(&self, lane: usize) -> (&Stamps, bool) {
        debug_assert!(self.kind == FileKind::File && lane < lanefs_sync::MAX_LANES);
        (self.stamps(), usize::from(self.home) != lane)
    }

    /// Notes that a name of this directory, of cookie `cookie`, changed at `time`, and its
    /// subdirectories by `subdirs`.
    pub fn note_change(&self, dir: &Dir, cookie: u64, time: i64, subdirs: i32) {
        debug_assert!(self.dir().is_some_and(|own| std::ptr::eq(own, dir)), "another inode's names");
        // After a time that was set, even within the clock's tick.
        let time = time.max(self.mtime_set.load(Relaxed).saturating_add(1));
        dir.note_change(cookie, time, subdirs);
    }

    /// Returns whether relatime wants the access time moved: it is not after the last change, or a
    /// day old.
    pub fn wants_atime(&self, now: i64) -> bool {
        let a = self.atime.load(Relaxed);
        a < now && {
            let (mtime, ctime) = self.times();
            a <= mtime || a <= ctime || now - a > 86_400_000_000_000
        }
    }

    /// Returns whether any of these marks is set, wherever it lies.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        debug_assert_ne!(flag, 0, "no mark is asked for");
        flag & LIFE != 0 && self.life.load(Relaxed) & flag != 0
            || flag & !LIFE != 0 && self.flags.load(Relaxed) & flag != 0
            || flag & STRIPED != 0 && self.stamps().marks(self.ino) & flag != 0
    }

    /// Returns whether one of these marks for a sync is set. `data_only`: as far as fdatasync asks,
    /// so without the slots of attributes.
    pub fn wants(&self, marks: u32, data_only: bool) -> bool {
        if !data_only {
            return self.has(marks);
        }
        self.flags.load(Relaxed) & marks != 0 || self.stamps().content_marks(self.ino) & marks != 0
    }

    /// Returns whether a page may be dirty; as [`FileData::has_dirty`].
    pub fn has_dirty(&self) -> bool {
        self.data().is_some_and(|d| d.has_dirty() || self.stamps().has_pages(self.ino))
    }

    /// Returns whether there is something of it that the store does not have.
    pub fn is_to_write(&self) -> bool {
        let changed = self.dir().is_some_and(Dir::has_changed);
        self.has_dirty() || changed || self.has(DIRTY | XATTR_DIRTY | DATASYNC)
    }

    /// Takes marks off, here and in the slots, before what they stand for is captured; returns what
    /// was set. The caller holds the sync lock and has set [`SYNCING`]. `data_only`: as far as
    /// fdatasync asks; the marks of attributes stay. `ctx`: for calls on the file's data.
    pub fn take_marks<'c>(&self, marks: u32, data_only: bool, ctx: impl FnOnce() -> DataCtx<'c>) -> u32 {
        debug_assert!(self.sync_lock.is_locked() && self.has(SYNCING), "see `is_synced`");
        debug_assert_eq!(marks & LIFE, 0, "marks of two words");
        // The fence behind pairs with the one in `set_times`; those of the slots with theirs.
        let marks = if data_only { marks & !(DIRTY | XATTR_DIRTY) } else { marks };
        // What stays set is not returned: who captures would take it for taken.
        let was = self.clear(marks) & marks;
        fence(SeqCst);
        let (striped, pages) =
            if data_only { self.stamps().take_content(self.ino) } else { self.stamps().take(self.ino) };
        if let Some(d) = self.data().filter(|_| !pages.is_empty()) {
            let ctx = ctx();
            pages.into_iter().for_each(|p| d.remark(&ctx, p));
        }
        was | striped
    }

    /// Has the file's tree know the pages that are noted in slots, which stay there: whoever takes
    /// the marks off next finds them again.
    pub fn mark_noted_pages(&self, ctx: &DataCtx<'_>) {
        debug_assert_eq!(ctx.ino, self.ino, "another file's data");
        if let Some(d) = self.data() {
            self.stamps().pages(self.ino).into_iter().for_each(|p| d.remark(ctx, p));
        }
    }

    /// Notes that the content is durable that so many renames over files waited for
    /// ([`Inode::owed`]). The caller holds the sync lock since it read their number.
    pub fn pay(&self, owed: u32) {
        debug_assert!(self.sync_lock.is_locked(), "another one may pay for the same renames");
        if owed > 0 {
            let before = self.owed.fetch_sub(owed, Release);
            debug_assert!(before >= owed, "{owed} renames, {before} were counted");
        }
    }

    /// Notes that the inode was taken from the dirty lists: the next change puts it on one. Slots
    /// without other marks are given back.
    pub fn unlist(&self) {
        self.clear(QUEUED);
        self.give_back();
    }

    /// Gives the slots without marks back.
    pub fn give_back(&self) {
        self.stamps().release(self.ino, &mut |mtime, ctime| {
            // Never before what is stored: see `FUTURE`.
            if mtime != NO_TIME {
                self.mtime.fetch_max(mtime, Relaxed);
            }
            self.ctime.fetch_max(ctime, Relaxed);
        });
    }

    /// Forgets what is in the slots: the inode is gone.
    pub fn drop_stamps(&self) {
        debug_assert!(self.has(FREED | EVICTED), "it is not gone: changes would be lost");
        self.stamps().drop_all(self.ino);
    }

    /// Returns the word that holds these marks.
    fn word(&self, flag: u32) -> &AtomicU32 {
        debug_assert_ne!(flag, 0);
        debug_assert_eq!(flag & FLAGS, 0, "the inode's flags change under attr_lock: change_inode_flags");
        debug_assert!(flag & LIFE == 0 || flag & !LIFE == 0, "marks of two words");
        if flag & LIFE != 0 { &self.life } else { &self.flags }
    }

    /// Sets flags, writing only if one is missing; returns what was set before.
    pub fn set(&self, flag: u32) -> u32 {
        let word = self.word(flag);
        let f = word.load(Relaxed);
        if f & flag == flag { f } else { word.fetch_or(flag, AcqRel) }
    }

    pub fn clear(&self, flag: u32) -> u32 {
        self.word(flag).fetch_and(!flag, AcqRel)
    }

    /// Clears flags, writing only if one is set.
    pub fn clear_if_set(&self, flag: u32) {
        if self.word(flag).load(Relaxed) & flag != 0 {
            self.clear(flag);
        }
    }

    /// Returns how long what is written to it will be wanted, as somebody has said.
    pub fn write_life(&self) -> WriteLife {
        // Relaxed: a hint, for what is written back later.
        let bits = (self.flags.load(Relaxed) & WRITE_LIFE) >> WRITE_LIFE_AT;
        let life = WriteLife::from_hint(bits.into());
        debug_assert!(life.is_some(), "life {bits} was never set");
        life.unwrap_or_default()
    }

    /// Sets that, writing only if it is another.
    pub fn set_write_life(&self, life: WriteLife) {
        let bits = (life.hint() as u32) << WRITE_LIFE_AT;
        debug_assert_eq!(bits & !WRITE_LIFE, 0, "{life:?} takes more than three bits");
        let changed = |f: u32| (f & WRITE_LIFE != bits).then_some(f & !WRITE_LIFE | bits);
        // AcqRel, as for the marks beside it: theirs go on being handed over.
        let _ = self.flags.fetch_update(AcqRel, Relaxed, changed);
    }

    /// Returns whether there is nothing that these marks, a page or a stripe of the directory stand
    /// for, nor a writeback under way: all that was done before is durable, as far as this inode
    /// goes. Writes nothing. `data_only`: as far as fdatasync asks.
    pub fn is_synced(&self, marks: u32, data_only: bool) -> bool {
        let dirty = match &self.body {
            Body::File(_) => self.has_dirty(),
            Body::Dir(d) => !data_only && d.has_changed(),
            _ => false,
        };
        let slots = self.stamps();
        let striped =
            if data_only { slots.content_marks(self.ino) } else { slots.marks(self.ino) } & marks != 0;
        // Whoever takes pages, stripes or slots off has set SYNCING before, and takes that off at
        // the end, when they are durable or marked again: who saw them gone sees one or the other.
        fence(Acquire);
        !dirty && !striped && self.flags.load(Acquire) & (marks | SYNCING) == 0
    }

    /// Returns where the only group about it lies.
    pub fn sole_group(&self) -> SoleGroup {
        SoleGroup::from_word(self.sole_group.load(Relaxed))
    }

    /// Notes where the only group about it lies, or that it was voided, or that there are others.
    pub fn set_sole_group(&self, group: SoleGroup) {
        let now = self.sole_group();
        debug_assert!(now != SoleGroup::VOID || group == now, "a voided group is gone for good");
        if now != group {
            self.sole_group.store(group.word(), Relaxed);
        }
    }

    /// Notes that lane `lane` logs a group in `epoch` that names this inode (before the group is
    /// appended), beside the one that made it.
    pub fn named_by(&self, lane: usize, epoch: u64) {
        if self.sole_group().is_known() {
            self.sole_group.store(SoleGroup::NONE.word(), Relaxed);
        }
        self.note_lane(lane, epoch);
    }

    /// Notes a lane that may hold pending groups naming this inode, up to `epoch`: the group that
    /// made it, and the one that takes its last name.
    pub fn note_lane(&self, lane: usize, epoch: u64) {
        debug_assert!(lane < lanefs_sync::MAX_LANES);
        let bit = 1u64 << (lane & 63);
        if self.lanes.load(Relaxed) & bit == 0 {
            self.lanes.fetch_or(bit, SeqCst);
        }
        if self.epoch.load(Relaxed) < epoch {
            self.epoch.fetch_max(epoch, SeqCst);
        }
        // Bits are only added, and the epoch is only raised.
        debug_assert_ne!(self.lanes.load(Relaxed) & bit, 0, "a closure would pass the lane by");
        debug_assert!(self.epoch.load(Relaxed) >= epoch);
    }
}
