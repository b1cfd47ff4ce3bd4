//! The marks of an inode in memory, in its own words and in the slots of lanes.

/// Attributes changed since they were captured.
pub(crate) const DIRTY: u32 = 1;
/// On some lane's dirty list.
pub(crate) const QUEUED: u32 = 2;
/// Something went to the store that no flush is known to cover.
pub(crate) const UNSYNCED: u32 = 4;
/// The reclaimer wants it; any use clears the mark.
pub(crate) const FROZEN: u32 = 8;
/// It left memory: look the number up again.
pub(crate) const EVICTED: u32 = 16;
/// The inode has been freed.
pub(crate) const FREED: u32 = 32;
/// Extended attributes changed since they were captured.
pub(crate) const XATTR_DIRTY: u32 = 64;
/// Used since the reclaimer last came by.
pub(crate) const USED: u32 = 128;
/// The store may have extended attributes that are not in memory yet.
pub(crate) const HAS_XATTRS: u32 = 256;
/// The size changed since the last durable capture: fdatasync must write the inode too.
pub(crate) const DATASYNC: u32 = 512;

/// A writeback is under way: marks are gone, and what they stood for is not durable yet.
pub(crate) const SYNCING: u32 = 2048;

/// Made by O_TMPFILE without O_EXCL and never named since: link(2) may give it its first name.
pub(crate) const LINKABLE: u32 = 1024;

/// The mtime may lie ahead of the clock: what is stamped now would be hidden by it, and goes to the
/// inode.
pub(crate) const FUTURE: u32 = 4096;
/// Its DEAD is logged: nobody has it, and the store must hear of it no more. Set under the inode's
/// sync_lock.
pub(crate) const ENDED: u32 = 1 << 16;
/// The mode may have setuid or setgid, or the file capabilities: what a write takes away.
pub(crate) const PRIVILEGED: u32 = 8192;
/// The store has all attributes, as they once were: what fdatasync writes may leave them as they
/// are there. Not while it must not: after a write that took setuid or setgid away.
pub(crate) const STORED: u32 = 16384;

/// Three bits beside the marks, in the word of those of changes: how long what is written to the
/// file will be wanted, as its users say ([`crate::WriteLife`]).
pub(crate) const WRITE_LIFE: u32 = 7 << WRITE_LIFE_AT;
/// Where they begin.
pub(crate) const WRITE_LIFE_AT: u32 = 24;

const _: () = {
    let all = [
        DIRTY,
        QUEUED,
        UNSYNCED,
        FROZEN,
        EVICTED,
        FREED,
        XATTR_DIRTY,
        USED,
        HAS_XATTRS,
        DATASYNC,
        SYNCING,
        LINKABLE,
        FUTURE,
        ENDED,
        PRIVILEGED,
        STORED,
    ];
    let (mut n, mut seen) = (0, 0);
    while n < all.len() {
        assert!(all[n].is_power_of_two() && seen & all[n] == 0, "a mark is a bit of its own");
        seen |= all[n];
        n += 1;
    }
    assert!(seen & WRITE_LIFE == 0, "three bits of their own");
};

/// The next field lies on a line of its own.
#[repr(align(64))]
pub(crate) struct Line;
