//! The file cell: all that memory holds of one inode (Max 4.2).
//!
//! A cell is laid out by who writes: (1) what look-ups, opens and reads read; (2) what `stat` tells and changes of the inode set: mode, owner,
//! links, times; (3) extended attributes, which are read without a lock; (4) the body, whose first fields are read; (5) the body's locks
//! and marks (`memfs::data`), the marks for writeback, what operations on its names write, and the lock of fsync. So reading a file
//! shares no line with dirtying it or syncing it, `stat` none with syncing it, and getxattr none with anything but setxattr.
//!
//! Who writes what: attributes by `attr_lock`'s holder (times also by whoever writes data, one field at a time); `nlink`
//! by operations on names of the inode, atomically; `lanes` and `epoch` by operations that name it, tested first, so that a
//! second one writes nothing; `flags` atomically by anybody. Readers (stat, permission checks) only read.

use super::data::{ErrSeq, FileData};
use super::dir::Dir;
use super::xattr::XattrSlot;
use crate::stat::Stat;
use lanefs_store::{Attrs, FileKind, Ino};
use lanefs_sync::lock::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*, fence};

/// Attributes changed since they were captured.
pub(crate) const DIRTY: u32 = 1;
/// On some lane's dirty list.
pub(crate) const QUEUED: u32 = 2;
/// Something went to the store that no flush is known to cover.
pub(crate) const UNSYNCED: u32 = 4;
/// The reclaimer wants it; any use clears the mark.
pub(crate) const FROZEN: u32 = 8;
/// No longer the inode's cell: look the number up again.
pub(crate) const EVICTED: u32 = 16;
/// The inode has been freed.
pub(crate) const FREED: u32 = 32;
/// Extended attributes changed since they were captured.
pub(crate) const XATTR_DIRTY: u32 = 64;
/// Used since the reclaimer last came by.
pub(crate) const USED: u32 = 128;
/// The store may have extended attributes that are not in memory yet.
pub(crate) const HAS_XATTRS: u32 = 256;
/// Size or mode changed since the last durable capture: fdatasync must write the inode too.
pub(crate) const DATASYNC: u32 = 512;

/// A writeback is under way: marks are gone, and what they stood for is not durable yet.
pub(crate) const SYNCING: u32 = 2048;

/// Made by O_TMPFILE without O_EXCL and never named since: link(2) may give it its first name.
pub(crate) const LINKABLE: u32 = 1024;

/// What a cell holds beside attributes. The tag, and behind it what readers of the content look at.
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
pub(crate) struct Cell {
    pub ino: Ino,
    pub generation: u32,
    /// [`FROZEN`], [`EVICTED`], [`FREED`], [`HAS_XATTRS`], [`LINKABLE`]: what those who find the cell look at.
    pub life: AtomicU32,
    pub kind: FileKind,
    /// Errors of writing it back: each handle looks when it is opened and when it syncs.
    pub errors: ErrSeq,
    /// A directory's parent; changes under the volume's move lock.
    pub parent: AtomicU64,
    /// Read by every read (relatime), written by few.
    atime: AtomicI64,
    btime: i64,
    pub rdev: u64,
    times: Line,
    /// Second line: what `stat` tells and changes of the inode set. The superuser passes permission checks without looking here.
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    /// Names. For directories: the base to which the index's stripes are relative.
    pub nlink: AtomicU32,
    mtime: AtomicI64,
    ctime: AtomicI64,
    /// Directories only: when the mtime was last set explicitly. What the index's stripes say of a time up to then does not count.
    mtime_set: AtomicI64,
    named: Line,
    /// Third line. Read without a lock; setxattr writes it.
    pub xattrs: XattrSlot,
    content: Line,
    pub body: Body,
    /// Behind a file's marks and locks, on the fifth line. The other marks: of changes, for writeback.
    pub flags: AtomicU32,
    pub attr_lock: Mutex<()>,
    /// One fsync or writeback of this inode at a time: later ones find their work done.
    pub sync_lock: Mutex<()>,
    /// Lanes (modulo 64) that may hold pending groups naming this inode.
    pub lanes: AtomicU64,
    /// Highest epoch of an operation that names it: not evicted before that is folded.
    pub epoch: AtomicU64,
}

/// The next field lies on a line of its own.
#[repr(align(64))]
pub(crate) struct Line;

/// Marks in [`Cell::life`].
const LIFE: u32 = FROZEN | EVICTED | FREED | HAS_XATTRS | LINKABLE;
const _: () = assert!(std::mem::offset_of!(Cell, rdev) < 64 && std::mem::offset_of!(Cell, mode) == 64);
const _: () = assert!(size_of::<Cell>() == 320);
const _: () = assert!(std::mem::offset_of!(Cell, xattrs) == 128 && std::mem::offset_of!(Cell, body) == 192);
const _: () = assert!(std::mem::offset_of!(Cell, flags) > 256);

impl Cell {
    pub fn new(ino: Ino, kind: FileKind, attrs: &Attrs, nlink: u32, parent: Ino, body: Body) -> Box<Cell> {
        Box::new(Cell {
            ino,
            generation: attrs.generation,
            kind,
            life: AtomicU32::new(0),
            errors: ErrSeq::new(),
            times: Line,
            flags: AtomicU32::new(0),
            named: Line,
            content: Line,
            mode: AtomicU32::new(attrs.mode),
            uid: AtomicU32::new(attrs.uid),
            gid: AtomicU32::new(attrs.gid),
            nlink: AtomicU32::new(nlink),
            rdev: attrs.rdev,
            atime: AtomicI64::new(attrs.atime),
            mtime: AtomicI64::new(attrs.mtime),
            ctime: AtomicI64::new(attrs.ctime),
            mtime_set: AtomicI64::new(0),
            btime: attrs.btime,
            parent: AtomicU64::new(parent.0),
            lanes: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            attr_lock: Mutex::new(()),
            sync_lock: Mutex::new(()),
            xattrs: XattrSlot::new(),
            body,
        })
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

    /// The file's content; `None` for other kinds.
    pub fn data(&self) -> Option<&FileData> {
        match &self.body {
            // The kind first, as below.
            _ if self.kind != FileKind::File => None,
            Body::File(d) => Some(d),
            _ => None,
        }
    }

    /// The directory's names; `None` for other kinds.
    pub fn dir(&self) -> Option<&Dir> {
        match &self.body {
            // The kind first: a file's body lies on a line that extending it writes.
            _ if self.kind != FileKind::Dir => None,
            Body::Dir(d) => Some(d),
            _ => None,
        }
    }

    /// Links as `stat` tells them.
    pub fn links(&self) -> u32 {
        let n = self.nlink.load(Relaxed);
        match &self.body {
            Body::Dir(d) if n > 0 => n.saturating_add_signed(d.subdirs()).max(2),
            _ => n,
        }
    }

    /// Bytes, as `stat` tells them.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(d) => d.size(),
            Body::Link(t) => t.len() as u64,
            Body::Dir(_) => 4096,
            Body::None => 0,
        }
    }

    fn mtime(&self) -> i64 {
        let own = self.mtime.load(Relaxed);
        let names = self.dir().map_or(0, Dir::mtime);
        if names > self.mtime_set.load(Relaxed) { own.max(names) } else { own }
    }

    fn ctime(&self) -> i64 {
        self.ctime.load(Relaxed).max(self.dir().map_or(0, Dir::mtime))
    }

    /// What `stat` tells.
    pub fn stat(&self) -> Stat {
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
            mtime: self.mtime(),
            ctime: self.ctime(),
            btime: self.btime,
        }
    }

    /// The attributes as they are captured for the store.
    pub fn attrs(&self) -> Attrs {
        let _l = self.attr_lock.lock();
        Attrs {
            mode: self.mode(),
            uid: self.uid(),
            gid: self.gid(),
            flags: 0,
            rdev: self.rdev,
            size: if self.kind == FileKind::Dir { 0 } else { self.size() },
            atime: self.atime.load(Relaxed),
            mtime: self.mtime(),
            ctime: self.ctime(),
            btime: self.btime,
            generation: self.generation,
        }
    }

    /// Changes mode and owner (attr_lock held by the caller through `_l`).
    pub fn set_owner_mode(&self, _l: &lanefs_sync::lock::MutexGuard<'_, ()>, mode: u32, uid: u32, gid: u32) {
        for (slot, v) in [(&self.mode, mode), (&self.uid, uid), (&self.gid, gid)] {
            // Permission checks read the line: what stays as it is is not written.
            if slot.load(Relaxed) != v {
                slot.store(v, Relaxed);
            }
        }
    }

    /// Sets times; `None` leaves one alone. Written only where they differ: within a tick of the coarse clock a second change
    /// writes no shared line.
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
            // Between the store and the look whether the inode is marked already; pairs with the fence of the capture between clearing the
            // mark and reading the times. Without it both may miss the other, and the time is never written.
            fence(SeqCst);
        }
        if let (Some(_), Some(now), Some(d)) = (mtime, ctime, self.dir()) {
            // An explicit time wins over the stripes of the index, which are older, though their times may be ahead of the clock's tick.
            self.mtime_set.fetch_max(now.max(d.mtime()), Relaxed);
        }
    }

    /// Notes that a name of this directory, of cookie `cookie`, changed at `time`, and its subdirectories by `subdirs`.
    pub fn note_change(&self, dir: &Dir, cookie: u64, time: i64, subdirs: i32) {
        // After a time that was set, even within the clock's tick.
        let time = time.max(self.mtime_set.load(Relaxed).saturating_add(1));
        dir.note_change(cookie, time, subdirs);
    }

    /// Whether relatime wants the access time moved: it is not after the last change, or a day old.
    pub fn wants_atime(&self, now: i64) -> bool {
        let a = self.atime.load(Relaxed);
        a < now && (a <= self.mtime() || a <= self.ctime() || now - a > 86_400_000_000_000)
    }

    /// Whether any of these marks is set, in whichever word.
    pub fn has(&self, flag: u32) -> bool {
        flag & LIFE != 0 && self.life.load(Relaxed) & flag != 0
            || flag & !LIFE != 0 && self.flags.load(Relaxed) & flag != 0
    }

    /// The word that holds these marks.
    fn word(&self, flag: u32) -> &AtomicU32 {
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
        if self.has(flag) {
            self.clear(flag);
        }
    }

    /// Whether there is nothing that these marks, a page or a stripe of the directory stand for, nor a writeback under way: all that
    /// was done before is durable, as far as this inode goes. Writes nothing.
    pub fn is_synced(&self, marks: u32, names_too: bool) -> bool {
        let dirty = match &self.body {
            Body::File(d) => d.has_dirty(),
            Body::Dir(d) => names_too && d.has_changed(),
            _ => false,
        };
        // Whoever takes pages or stripes off has set SYNCING before, and takes that off at the end, when they are durable or marked again:
        // who saw them gone sees one or the other.
        fence(Acquire);
        !dirty && self.flags.load(Acquire) & (marks | SYNCING) == 0
    }

    /// Notes that lane `lane` logs a group in `epoch` that names this inode (before the group is appended).
    pub fn named_by(&self, lane: usize, epoch: u64) {
        let bit = 1u64 << (lane & 63);
        if self.lanes.load(Relaxed) & bit == 0 {
            self.lanes.fetch_or(bit, SeqCst);
        }
        if self.epoch.load(Relaxed) < epoch {
            self.epoch.fetch_max(epoch, SeqCst);
        }
    }
}
