//! Mode, owner, ACLs and file capabilities (the *rights* of an inode) in an ordered volume: in the
//! order of names (SEMANTICS, "Order").
//!
//! 1. A change of rights is an operation of the log, as that of a name is: a group with a RIGHTS
//!    effect, in the epoch that was read under the inode's `attr_lock`, with a timestamp above that
//!    of the change before. So of one inode neither epochs nor timestamps go back, and what
//!    recovery folds is a prefix of the calls: NEW, then the last RIGHTS up to the last committed
//!    epoch.
//! 2. A record of an inode has rights too. Recovery believes it where it knows nothing later, so
//!    none may have rights of an epoch that a crash may take, and content that was written after
//!    `chmod 600` must not be found with the mode before. Hence: between capturing an inode and
//!    handing it to the store, who captures looks at `rights_epoch`; if that is not committed the
//!    capture is undone, and done anew when it is, with no lock held meanwhile. What was captured
//!    before a change of rights came is older than it, and does not take it back though it is
//!    handed over behind the fold of that: the store keeps the rights that were folded
//!    (`lanefs_store::InodeUpdate::rights_logged`).
//! 3. Not for an inode that was made in that very epoch: where the epoch is missing the inode is,
//!    and its record counts for nothing. The NEW of such a volume is marked (`logged`): who folds
//!    it takes the rights from it and from RIGHTS, and never from a record.
//! 4. A checkpoint folds RIGHTS up to its epoch, and so may write rights that are older than those
//!    of a record that came since: the later RIGHTS are not folded, lie in the log, and are
//!    carried. The inode stays in memory until they are (`Inode::epoch`).
//! 5. A seal waits for the content of what was renamed over files (persist::replaced), which by
//!    (2) would wait for a later seal, or for this one. So a rename over a file waits until the
//!    rights of the file that moves are committed, if it has content to write; and a change of
//!    rights of a file that is on such a list writes that content first (`Inode::owed`). Both look
//!    under `attr_lock`. So where a seal finds the rights of such a file pending it had nothing to
//!    write when it was renamed, or that is written.
//! 6. Changes of rights that come faster than epochs are committed would keep a capture from ever
//!    being done: from the second try on they wait (`Inode::held`).
//! 7. What a write takes away of setuid or capabilities is logged before the first byte of it is in
//!    memory. (On a mount the kernel removes capabilities, before it hands over the write.)
//! 8. An ACL and the mode that shows it change by one group: between two a crash could leave a file
//!    open to a group that neither lets in.
//!
//! `owed` and `held` go up under `attr_lock` (Relaxed: the lock orders it before the next change of
//! rights), and down without it, by Release: who finds them at 0, with Acquire or under the lock,
//! finds the content written, or the capture done. `rights_epoch` is stored under the lock when the
//! change is made, and loaded with Acquire by captures, which took the pages before.

use super::Op;
use crate::core::Core;
use crate::core::host::{HostWait, is_host_pending};
use crate::error::Error;
use crate::memfs::Inode;
use crate::memfs::inode::{DATASYNC, UNSYNCED};
use lanefs_format::record::Effect;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

/// The answer of a capture that has to be done anew when the rights are committed (2). It never
/// leaves the writeback.
pub(crate) const RIGHTS_PENDING: Error = Error::Posix(libc::EINPROGRESS);

/// Returns whether an error is [`RIGHTS_PENDING`].
pub(crate) fn is_pending(e: &Error) -> bool {
    matches!(e, Error::Posix(libc::EINPROGRESS))
}

/// The number of looks of a caller that waits for a capture before it sleeps.
const LOOKS: u32 = 100;

/// As long as this lives, nobody changes the rights of an inode (6).
pub(crate) struct Held<'c>(&'c Inode);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let before = self.0.held.fetch_sub(1, Release);
        debug_assert!(before > 0, "the rights of inode {} were held by nobody", self.0.ino);
    }
}

/// Returns whether the inode's rights changed in an epoch that a crash may take while the inode
/// stays (2, 3). False in a relaxed volume.
#[inline]
pub(crate) fn rights_pending(core: &Core, inode: &Inode) -> bool {
    let epoch = inode.rights_epoch.load(Acquire);
    epoch > core.journal.committed() && epoch != inode.born
}

/// Keeps others from changing the rights (6).
pub(crate) fn hold_rights(inode: &Inode) -> Held<'_> {
    let _l = inode.attr_lock.guard();
    inode.held.fetch_add(1, Relaxed);
    Held(inode)
}

/// Returns whether the rights of an inode have to stay as they are for now (5, 6). The caller holds
/// `attr_lock`, and waits without it ([`wait_for_rights`]).
pub(crate) fn rights_stay(inode: &Inode) -> bool {
    debug_assert!(inode.attr_lock.begin_read().is_none(), "a rename may come between");
    inode.owed.load(Relaxed) > 0 || inode.held.load(Relaxed) > 0
}

/// Waits for what keeps the rights of an inode as they are (5, 6).
pub(crate) fn wait_for_rights(core: &Core, inode: &Inode) {
    lanefs_sync::about_to_wait();
    // The handles of the file get an error; its content is not waited for any more.
    if let Some(persistence) = core.persistence() {
        let flushed = persistence.flush_renamed(inode);
        if let Err(e) = flushed
            && is_host_pending(&e)
        {
            // Its content is waited for.
            let _ = HostWait::for_ever().pause(core);
        }
    }
    while core.check_alive().is_ok() {
        for _ in 0..LOOKS {
            if inode.held.load(Acquire) == 0 {
                return;
            }
            lanefs_sync::schedule::spin_loop();
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Notes that the content of a file which is about to be renamed over another has to be durable
/// before that. Returns false if its rights have to be committed first, with no lock held (5).
pub(crate) fn owe_content(core: &Core, inode: &Inode) -> bool {
    if !core.is_ordered() {
        return true;
    }
    let _l = inode.attr_lock.guard();
    if rights_pending(core, inode) && has_to_flush(inode) {
        return false;
    }
    inode.owed.fetch_add(1, Relaxed);
    true
}

/// Returns whether a file has content that is not known to be durable.
pub(crate) fn has_to_flush(inode: &Inode) -> bool {
    inode.nlink.load(SeqCst) != 0 && (inode.has_dirty() || inode.has(DATASYNC | UNSYNCED))
}

/// A change of the rights of an inode; `None` leaves one alone.
#[derive(Default)]
pub(crate) struct Rights {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// The function that takes privilege from a mode, if the change does.
    pub drop: Option<fn(u32) -> u32>,
}

/// Changes mode and owner.
pub(crate) fn set_rights(core: &Core, inode: &Inode, r: &Rights) {
    debug_assert!(r.mode.is_none() || r.drop.is_none(), "a mode that was asked for is taken as it is");
    if !core.is_ordered() {
        return inode.set_owner_mode(r.mode, r.uid, r.gid, r.drop, false);
    }
    if inode.would_change(r.mode, r.uid, r.gid, r.drop) {
        while !try_rights(core, inode, r, None, || ()) {
            wait_for_rights(core, inode);
        }
    }
}

/// Changes rights and logs that, in an ordered volume; and calls `publish`, which makes `acls`
/// those of the inode. Returns false if the caller must wait first, with no lock held: see
/// [`wait_for_rights`].
pub(crate) fn try_rights(
    core: &Core,
    inode: &Inode,
    r: &Rights,
    acls: Option<&[u8]>,
    publish: impl FnOnce(),
) -> bool {
    debug_assert!(core.is_ordered(), "a relaxed volume logs no rights");
    let mut op = Op::begin(core);
    let _l = inode.attr_lock.guard();
    if rights_stay(inode) {
        return false;
    }
    inode.named_by(op.lane, 0);
    let v = op.version(inode.rights_ts());
    debug_assert!(v.ts > inode.rights_ts(), "1: timestamps go back");
    debug_assert!(v.epoch >= inode.rights_epoch.load(Acquire), "1: epochs go back");
    debug_assert!(v.epoch >= inode.born, "its NEW is of a later epoch");
    inode.named_by(op.lane, v.epoch);
    inode.set_owner_mode(r.mode, r.uid, r.gid, r.drop, true);
    publish();
    op.note_change(inode.rights_epoch.load(Relaxed) == v.epoch);
    inode.rights_changed(v.epoch, v.ts);
    let (mode, uid, gid) = (inode.mode(), inode.uid(), inode.gid());
    let generation = inode.generation;
    op.append(v, &[Effect::Rights { ino: inode.ino, generation, mode, uid, gid, acls }]);
    true
}

#[cfg(test)]
mod tests {
    use crate::acl::ACCESS;
    use crate::persist::testing::{volume, volume_in};
    use crate::persist::{commit, writeback};
    use crate::{OpenOptions, Volume};
    use lanefs_format::xattrs::CAPABILITY;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    fn mode_of(v: &Volume, path: &str) -> u32 {
        v.fs().stat(path).unwrap().mode & 0o7777
    }

    #[test]
    fn a_chmod_is_found_with_what_is_named_after_it() {
        let (v, device) = volume(64);
        let fs = v.fs();
        fs.write("/f", b"1").unwrap();
        v.sync().unwrap();
        fs.chmod("/f", 0o600).unwrap();
        fs.mkdir("/d", 0o755).unwrap();
        fs.open("/d", OpenOptions::new().read(true)).unwrap().sync_all().unwrap();
        let left = device.after_crash();
        assert!(left.fs().stat("/d").is_ok());
        assert_eq!(mode_of(&left, "/f"), 0o600);
    }

    #[test]
    fn content_behind_a_chmod_waits_for_it_and_the_names_before_it() {
        let (v, device) = volume(64);
        let fs = v.fs();
        fs.write("/f", b"1").unwrap();
        v.sync().unwrap();
        fs.mkdir("/d", 0o755).unwrap();
        fs.chmod("/f", 0o600).unwrap();
        fs.open("/f", OpenOptions::new().write(true)).unwrap().write_all_at(b"secret", 0).unwrap();
        // As when memory is short: nobody asked for names.
        writeback::write_back_all(&v.0.persist, false).unwrap();
        let left = device.after_crash();
        assert_eq!(mode_of(&left, "/f"), 0o600);
        assert!(left.fs().stat("/d").is_ok());
    }

    /// Each would wait for the other (5).
    #[test]
    fn a_rename_over_a_file_and_a_chmod_of_what_moves_do_not_wait_for_each_other() {
        let (v, device) = volume(64);
        let (fs, inner) = (v.fs(), &v.0.persist);
        let content = |path: &str, bytes: &[u8]| {
            fs.open(path, OpenOptions::new().write(true)).unwrap().write_all_at(bytes, 0).unwrap();
        };
        for path in ["/old", "/new"] {
            fs.write(path, b"1").unwrap();
        }
        v.sync().unwrap();
        // The chmod first: the rename has it committed.
        content("/new", b"2");
        fs.chmod("/new", 0o600).unwrap();
        let before = inner.journal.committed();
        fs.rename("/new", "/old").unwrap();
        assert!(inner.journal.committed() > before);
        let f = fs.open("/old", OpenOptions::new().read(true)).unwrap();
        assert!(f.inode().has_dirty() && f.inode().owed.load(Relaxed) == 1);
        // Then another: it has the content written, which the rename waits for.
        fs.chmod("/old", 0o640).unwrap();
        assert!(!f.inode().has_dirty() && f.inode().owed.load(Relaxed) == 0);
        let left = device.after_crash();
        assert_eq!((left.fs().read("/new").unwrap(), mode_of(&left, "/new")), (b"2".to_vec(), 0o600));
        // What is written behind that is not owed: the seal does not wait for what waits for it.
        content("/old", b"3");
        v.sync().unwrap();
        let left = device.after_crash();
        assert_eq!((left.fs().read("/old").unwrap(), mode_of(&left, "/old")), (b"3".to_vec(), 0o640));
        assert!(left.fs().stat("/new").is_err());
        // Clean when it moves, written then: as little.
        fs.write("/other", b"1").unwrap();
        v.sync().unwrap();
        fs.chmod("/old", 0o600).unwrap();
        fs.rename("/old", "/other").unwrap();
        content("/other", b"4");
        commit::seal_and_commit(&v.0.persist).unwrap();
        assert_eq!(mode_of(&device.after_crash(), "/other"), 0o600);
        let mut none = 0;
        assert_eq!(f.inode().errors.check_and_advance(&mut none), None);
    }

    #[test]
    fn changes_of_rights_do_not_keep_an_fsync_or_a_rename_from_being_done() {
        let (v, _device) = volume(64);
        let (fs, over, begun) = (v.fs(), AtomicBool::new(false), AtomicBool::new(false));
        fs.write("/f", b"1").unwrap();
        v.sync().unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let f = fs.open("/f", OpenOptions::new().read(true)).unwrap();
                let mut n = 0;
                while !over.load(Relaxed) {
                    n += 1;
                    let set = crate::SetAttr { mode: Some(0o600 | n & 7), ..Default::default() };
                    f.set_attr(&crate::Cred::root(), &set).unwrap();
                    begun.store(true, Relaxed);
                }
            });
            // On a busy machine all would be over before the first.
            while !begun.load(Relaxed) {
                std::thread::yield_now();
            }
            let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
            for n in 0..50u8 {
                f.write_all_at(&[n], 0).unwrap();
                f.sync_all().unwrap();
                f.write_all_at(&[n], 1).unwrap();
                let (from, to) = if n % 2 == 0 { ("/f", "/g") } else { ("/g", "/f") };
                fs.write(to, b"x").unwrap();
                fs.rename(from, to).unwrap();
            }
            over.store(true, Relaxed);
        });
    }

    #[test]
    fn setuid_that_a_write_took_away_does_not_come_back() {
        let (v, device) = volume(64);
        let fs = v.fs();
        fs.write("/f", b"1").unwrap();
        fs.chmod("/f", 0o4777).unwrap();
        v.sync().unwrap();
        let user = v.as_user(crate::Cred::user(7, 7, &[]));
        let f = user.open("/f", OpenOptions::new().write(true)).unwrap();
        f.write_all_at(b"mine", 0).unwrap();
        f.sync_data().unwrap();
        for _ in 0..2 {
            let left = device.after_crash();
            assert_eq!(left.fs().read("/f").unwrap(), b"mine");
            assert_eq!(mode_of(&left, "/f"), 0o777);
            v.checkpoint().unwrap();
        }
    }

    /// The value that file capabilities have on disk, with one that programs are given by it.
    const CAP_NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn capabilities_that_a_write_took_away_do_not_come_back() {
        for order in [crate::Order::Ordered, crate::Order::Relaxed] {
            let (v, device) = volume_in(order, 64);
            let fs = v.fs();
            fs.write("/f", b"1").unwrap();
            fs.chmod("/f", 0o777).unwrap();
            fs.setxattr("/f", CAPABILITY, &CAP_NET_RAW, 0).unwrap();
            v.sync().unwrap();
            assert_eq!(device.after_crash().fs().getxattr("/f", CAPABILITY).unwrap(), CAP_NET_RAW);
            // By whomever: they are the content's.
            let user = v.as_user(crate::Cred::user(7, 7, &[]));
            let f = user.open("/f", OpenOptions::new().write(true)).unwrap();
            f.write_all_at(b"mine", 0).unwrap();
            assert!(fs.getxattr("/f", CAPABILITY).is_err());
            f.sync_data().unwrap();
            for _ in 0..2 {
                let left = device.after_crash();
                assert_eq!(left.fs().read("/f").unwrap(), b"mine");
                let there = left.fs().getxattr("/f", CAPABILITY).map_err(|e| e.errno());
                assert_eq!(there, Err(libc::ENODATA), "{order:?}");
                v.checkpoint().unwrap();
            }
            // Found again from the store, and taken by a truncation.
            fs.setxattr("/f", CAPABILITY, &CAP_NET_RAW, 0).unwrap();
            v.sync().unwrap();
            let left = device.after_crash();
            left.fs().truncate("/f", 1).unwrap();
            assert!(left.fs().getxattr("/f", CAPABILITY).is_err());
        }
    }

    #[test]
    fn capabilities_are_found_in_the_order_of_calls() {
        let (v, device) = volume(64);
        let fs = v.fs();
        fs.write("/f", b"1").unwrap();
        fs.setxattr("/f", CAPABILITY, &CAP_NET_RAW, 0).unwrap();
        v.sync().unwrap();
        fs.removexattr("/f", CAPABILITY).unwrap();
        fs.chmod("/f", 0o640).unwrap();
        fs.mkdir("/d", 0o755).unwrap();
        fs.open("/d", OpenOptions::new().read(true)).unwrap().sync_all().unwrap();
        for _ in 0..2 {
            let left = device.after_crash();
            assert_eq!(mode_of(&left, "/f"), 0o640);
            assert!(left.fs().getxattr("/f", CAPABILITY).is_err());
            v.checkpoint().unwrap();
        }
    }

    /// One without the other would let the file's group in, whom neither does.
    #[test]
    fn an_acl_is_found_with_the_mode_that_shows_it() {
        let (v, device) = volume(64);
        let fs = v.fs();
        fs.write("/f", b"1").unwrap();
        fs.chmod("/f", 0o600).unwrap();
        v.sync().unwrap();
        let entry = |tag: u16, perm: u16, id: u32| {
            [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let head = 2u32.to_le_bytes().to_vec();
        let plain = [head.clone(), entry(1, 6, none), entry(4, 0, none), entry(32, 0, none)].concat();
        let named = [
            head,
            entry(1, 6, none),
            entry(2, 7, 2001),
            entry(4, 0, none),
            entry(16, 7, none),
            entry(32, 0, none),
        ]
        .concat();
        let logged = |what: &dyn Fn()| {
            let mut before = 0;
            let core = &v.0.persist;
            let mut count = |made: bool| {
                let (mut all, lane) = (0, core.journal.lanes.mine());
                core.journal.lanes.lock(lane).each_pending(&mut |b| all += b.groups());
                before = if made { all - before } else { all };
                before
            };
            count(false);
            what();
            count(true)
        };
        for (acl, has, mode) in [(&named, true, 0o670), (&plain, false, 0o600), (&named, true, 0o670)] {
            assert_eq!(logged(&|| fs.setxattr("/f", ACCESS, acl, 0).unwrap()), 1, "one group has both");
            commit::seal_and_commit(&v.0.persist).unwrap();
            let left = device.after_crash();
            assert_eq!((left.fs().getxattr("/f", ACCESS).is_ok(), mode_of(&left, "/f")), (has, mode));
        }
        assert_eq!(logged(&|| fs.chmod("/f", 0o640).unwrap()), 1, "one group has both");
        let set = crate::SetAttr { mode: Some(0o620), ..Default::default() };
        let f = fs.open("/f", OpenOptions::new().read(true)).unwrap();
        assert_eq!(logged(&|| f.set_attr(&crate::Cred::root(), &set).map(drop).unwrap()), 1);
        commit::seal_and_commit(&v.0.persist).unwrap();
        let left = device.after_crash();
        let acl = crate::acl::Acl::decode(&left.fs().getxattr("/f", ACCESS).unwrap()).unwrap();
        assert_eq!((acl.mode(), mode_of(&left, "/f")), (0o620, 0o620));
    }
}
