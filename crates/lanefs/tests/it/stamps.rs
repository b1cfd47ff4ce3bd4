//! Inodes that one thread made and others change: their times, marks and dirty pages lie in the
//! slots of those threads' lanes.

use super::{after_crash, reopen, root};
use lanefs::{Cred, Fs, OpenOptions, SetAttr, SetTime};
use lanefs_store::device::MemoryDevice;
use std::sync::Arc;
use std::time::Duration;

/// Runs `f` in a thread of its own, hence on another lane than its caller's.
fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| s.spawn(f).join().unwrap())
}

fn a_tick() {
    std::thread::sleep(Duration::from_millis(12));
}

/// A volume with the file /f of four pages, all durable.
fn four_pages() -> (Fs, Arc<MemoryDevice>) {
    let (fs, dev) = root(64);
    fs.write("/f", [1u8; 4 * 4096]).unwrap();
    fs.set_times("/f", Some(SetTime::At(5)), Some(SetTime::At(5)), true).unwrap();
    fs.volume().sync().unwrap();
    fs.volume().checkpoint().unwrap();
    a_tick();
    (fs, dev)
}

#[test]
fn a_write_of_another_thread_is_told_at_once_and_made_durable_by_fsync() {
    let (fs, dev) = four_pages();
    let before = fs.stat("/f").unwrap();
    let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    for (n, page) in [2u64, 0, 3].into_iter().enumerate() {
        elsewhere(|| f.write_all_at(&[7 + n as u8; 4096], page * 4096).unwrap());
    }
    let now = fs.stat("/f").unwrap();
    assert!(now.mtime > before.mtime && now.ctime > before.ctime);
    f.sync_all().unwrap();
    assert_eq!((fs.stat("/f").unwrap().mtime, fs.stat("/f").unwrap().ctime), (now.mtime, now.ctime));
    let found = after_crash(&dev);
    assert_eq!((found.stat("/f").unwrap().mtime, found.stat("/f").unwrap().ctime), (now.mtime, now.ctime));
    let bytes = found.read("/f").unwrap();
    assert_eq!([bytes[0], bytes[4096], bytes[2 * 4096], bytes[3 * 4096]], [8, 1, 7, 9]);
    // And again: the slots were taken, not kept as clean.
    a_tick();
    elsewhere(|| f.write_all_at(&[42; 4096], 4096).unwrap());
    f.sync_data().unwrap();
    assert_eq!(after_crash(&dev).read("/f").unwrap()[4096], 42);
    assert!(fs.stat("/f").unwrap().mtime > now.mtime);
}

#[test]
fn changes_of_many_threads_are_durable_with_sync_and_with_a_clean_close() {
    let (fs, dev) = four_pages();
    let before = fs.stat("/f").unwrap();
    for round in 0..3u32 {
        a_tick();
        elsewhere(|| fs.chmod("/f", 0o600 + round).unwrap());
        elsewhere(|| fs.setxattr("/f", b"user.k", &[round as u8; 9], 0).unwrap());
        elsewhere(|| fs.link("/f", format!("/g{round}")).unwrap());
        let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
        // More pages than a slot names.
        elsewhere(|| f.write_all_at(&[round as u8; 40 * 4096], 0).unwrap());
        let now = fs.stat("/f").unwrap();
        assert!(now.ctime > before.ctime && now.mtime > before.mtime);
        fs.volume().sync().unwrap();
        let found = after_crash(&dev);
        let told = found.stat("/f").unwrap();
        assert_eq!((told.mtime, told.ctime, told.mode & 0o777), (now.mtime, now.ctime, 0o600 + round));
        assert_eq!((told.nlink, told.size), (2 + round, 40 * 4096));
        assert_eq!(found.getxattr("/f", b"user.k").unwrap(), [round as u8; 9]);
        assert!(found.read("/f").unwrap().iter().all(|b| *b == round as u8));
    }
    elsewhere(|| fs.chmod("/f", 0o640).unwrap());
    let last = fs.stat("/f").unwrap();
    let again = reopen(fs, &dev).stat("/f").unwrap();
    assert_eq!((again.ctime, again.mode & 0o777), (last.ctime, 0o640));
}

#[test]
fn an_explicit_time_wins_over_older_writes_and_loses_to_newer_ones_whoever_makes_them() {
    let (fs, _dev) = four_pages();
    let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    let write = || f.write_all_at(b"x", 0).unwrap();
    let set = |ns: i64| fs.set_times("/f", None, Some(SetTime::At(ns)), true).unwrap();
    let mtime = || fs.stat("/f").unwrap().mtime;
    // Back, after a write in another lane's slot.
    elsewhere(write);
    set(1_000);
    assert_eq!(mtime(), 1_000);
    elsewhere(|| set(2_000));
    assert_eq!(mtime(), 2_000);
    elsewhere(write);
    assert!(mtime() > 2_000);
    // Ahead of the clock: a write brings it back to now.
    let ahead = 4_000_000_000_000_000_000;
    for writer in [0, 1] {
        set(ahead);
        assert_eq!(mtime(), ahead);
        if writer == 0 {
            elsewhere(write)
        } else {
            write()
        }
        assert!(mtime() < ahead && mtime() > 2_000);
    }
    // The ctime is the clock's all the while.
    assert!(fs.stat("/f").unwrap().ctime < ahead);
}

#[test]
fn a_page_dirtied_by_another_thread_is_data_for_seek_and_lost_by_truncation() {
    let (fs, dev) = root(64);
    fs.write("/h", b"").unwrap();
    fs.truncate("/h", 64 * 4096).unwrap();
    fs.volume().sync().unwrap();
    let f = fs.open("/h", OpenOptions::new().read(true).write(true)).unwrap();
    elsewhere(|| f.write_all_at(&[3; 4096], 9 * 4096).unwrap());
    assert_eq!(f.lseek(0, libc::SEEK_DATA).unwrap(), 9 * 4096);
    assert_eq!(f.lseek(9 * 4096, libc::SEEK_HOLE).unwrap(), 10 * 4096);
    elsewhere(|| f.set_len(4096).unwrap());
    f.set_len(64 * 4096).unwrap();
    f.sync_all().unwrap();
    assert!(after_crash(&dev).read("/h").unwrap().iter().all(|b| *b == 0));
}

#[test]
fn setuid_goes_with_a_chown_and_a_write_of_a_user_from_any_thread() {
    let (fs, _dev) = root(64);
    fs.write("/s", b"").unwrap();
    let mode = || fs.stat("/s").unwrap().mode & 0o7777;
    fs.chmod("/s", 0o6777).unwrap();
    elsewhere(|| fs.chown("/s", Some(7), Some(8), true).unwrap());
    let s = fs.stat("/s").unwrap();
    assert_eq!((mode(), s.uid, s.gid), (0o777, 7, 8));
    fs.chmod("/s", 0o4777).unwrap();
    let user = fs.volume().as_user(Cred::user(9, 9, &[]));
    elsewhere(|| user.open("/s", OpenOptions::new().write(true)).unwrap().write_all_at(b"x", 0).unwrap());
    assert_eq!(mode(), 0o777);
}

/// The mark was put where fdatasync does not look.
#[test]
fn fdatasync_finds_a_truncation_beside_a_time_that_another_thread_set() {
    let (fs, dev) = four_pages();
    let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    let ino = fs.stat("/f").unwrap().ino;
    let cut = SetAttr { size: Some(2 * 4096), mtime: Some(SetTime::At(77)), ..SetAttr::default() };
    elsewhere(|| fs.volume().node_setattr(&Cred::root(), ino, &cut).unwrap());
    f.sync_data().unwrap();
    assert_eq!(after_crash(&dev).stat("/f").unwrap().size, 2 * 4096);
}

#[test]
fn fdatasync_leaves_attributes_behind_and_forgets_none() {
    let (fs, dev) = four_pages();
    fs.chmod("/f", 0o600).unwrap();
    fs.volume().sync().unwrap();
    let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    for who in [0, 1] {
        let mode = 0o640 + who;
        let chmod = || fs.chmod("/f", mode).unwrap();
        let append = || f.write_all_at(&[9; 4096], (4 + u64::from(who)) * 4096).unwrap();
        if who == 0 {
            elsewhere(chmod);
            elsewhere(append);
        } else {
            chmod();
            append();
        }
        fs.setxattr("/f", b"user.k", &[who as u8; 3], 0).unwrap();
        let now = fs.stat("/f").unwrap();
        f.sync_data().unwrap();
        // All of the content, and the mode that the file had when it was written (SEMANTICS F8); of
        // the attributes else what was durable before, whole.
        let found = after_crash(&dev);
        let told = found.stat("/f").unwrap();
        assert_eq!(told.size, (5 + u64::from(who)) * 4096);
        assert_eq!(told.mode & 0o777, mode);
        assert!(found.read("/f").unwrap()[4 * 4096..].iter().all(|b| *b == 9));
        assert_eq!(found.getxattr("/f", b"user.k").is_ok(), who == 1);
        // What it left behind goes with the next sync, of either kind.
        if who == 0 {
            fs.volume().sync().unwrap()
        } else {
            f.sync_all().unwrap()
        }
        let found = after_crash(&dev);
        let told = found.stat("/f").unwrap();
        assert_eq!((told.mode & 0o777, told.mtime, told.ctime), (mode, now.mtime, now.ctime));
        assert_eq!(found.getxattr("/f", b"user.k").unwrap(), [who as u8; 3]);
    }
    // A new file has all its attributes with its first fdatasync.
    let g = fs.open("/g", OpenOptions::new().write(true).create(true).mode(0o604)).unwrap();
    fs.chown("/g", Some(5), Some(6), true).unwrap();
    g.write_all_at(b"new", 0).unwrap();
    g.sync_data().unwrap();
    let told = after_crash(&dev).stat("/g").unwrap();
    assert_eq!((told.mode & 0o777, told.uid, told.gid, told.size), (0o604, 5, 6, 3));
}

#[test]
fn a_privilege_that_a_write_took_away_is_gone_with_fdatasync() {
    let (fs, dev) = four_pages();
    fs.chmod("/f", 0o4777).unwrap();
    fs.volume().sync().unwrap();
    let user = fs.volume().as_user(Cred::user(9, 9, &[]));
    let f = user.open("/f", OpenOptions::new().write(true)).unwrap();
    elsewhere(|| f.write_all_at(b"evil", 0).unwrap());
    f.sync_data().unwrap();
    let found = after_crash(&dev);
    assert_eq!(
        (&found.read("/f").unwrap()[..4], found.stat("/f").unwrap().mode & 0o7777),
        (&b"evil"[..], 0o777)
    );
}
