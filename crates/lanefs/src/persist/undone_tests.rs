//! Tests of what an epoch both does and undoes: what the log has of it, and what is left after a
//! crash.

use super::{commit, reaper};
use crate::memfs::inode::FREED;
use crate::{Fs, MountOptions, OpenOptions, Order, Volume};
use lanefs_format::Ino;
use lanefs_format::record::{Effect, groups};
use lanefs_store::device::{Device, MemoryDevice, MemoryImage};
use lanefs_store::{FormatOptions, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// A volume without a background, and its device.
fn volume(order: Order) -> (Volume, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(64 << 20).unwrap());
    let d: Arc<dyn Device> = device.clone();
    Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
    (Volume::open_devices(vec![d], &options(order)).unwrap(), device)
}

fn options(order: Order) -> MountOptions {
    MountOptions { background: false, lanes: 4, order, ..MountOptions::default() }
}

/// The names of the root after a crash now.
fn after_crash(device: &MemoryDevice) -> Vec<String> {
    let left = MemoryImage::capture(device).unwrap().fork().unwrap();
    let v = Volume::open_devices(vec![Arc::new(left)], &options(Order::Ordered)).unwrap();
    names(&v.fs())
}

fn names(fs: &Fs) -> Vec<String> {
    let names = fs.read_dir("/").unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<_> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns what waits for the fold: new inodes, names that come, names that go, and ends.
fn logged(v: &Volume) -> [usize; 4] {
    let backlog = v.0.persist.journal.backlog.lock();
    let mut n = [0; 4];
    for effect in backlog.groups.iter().flat_map(|c| &c.groups).flat_map(|g| groups(g)) {
        for e in effect.unwrap().effects() {
            match e.unwrap() {
                Effect::New { .. } => n[0] += 1,
                Effect::Set { .. } => n[1] += 1,
                Effect::Clr { .. } => n[2] += 1,
                Effect::Dead { .. } => n[3] += 1,
                _ => {}
            }
        }
    }
    n
}

/// Half of what a program writes of the log may be files that are gone by then.
#[test]
fn of_a_file_that_came_and_went_the_log_has_its_number() {
    for order in [Order::Ordered, Order::Relaxed] {
        let (v, device) = volume(order);
        let (fs, persist) = (v.fs(), &v.0.persist);
        for n in 0..100 {
            fs.write(format!("/{n}"), b"content").unwrap();
            if n >= 10 {
                fs.unlink(format!("/{}", n - 10)).unwrap();
            }
        }
        let promised = persist.store.space().reserved;
        assert_eq!(reaper::reap(persist, true).unwrap(), 90);
        commit::seal_and_commit(persist).unwrap();
        assert_eq!(logged(&v), [10, 10, 0, 90], "{order:?}");
        // Small files share blocks, and are promised a sixteenth of one, beside their pages.
        assert_eq!(reaper::release_cancelled(persist), 90 / 16);
        let left = persist.store.space().reserved;
        assert_eq!(left, promised - 90 - 90 / 16, "what no fold will write is promised");
        let left = names(&fs);
        assert_eq!((left.len(), after_crash(&device)), (10, left.clone()));
        v.checkpoint().unwrap();
        assert_eq!(after_crash(&device), left);
        // What is open when it goes is there for who has it, as long as that is.
        let open = fs.create("/open").unwrap();
        fs.unlink("/open").unwrap();
        assert_eq!(reaper::reap(persist, true).unwrap(), 0);
        commit::seal_and_commit(persist).unwrap();
        open.write_all_at(b"still", 0).unwrap();
        v.checkpoint().unwrap();
        assert_eq!(open.stat().unwrap().size, 5);
        drop(open);
        assert_eq!(reaper::reap(persist, true).unwrap(), 1);
        // Their numbers are free.
        for n in 0..100 {
            fs.write(format!("/again-{n}"), b"content").unwrap();
        }
        v.sync().unwrap();
        assert_eq!(after_crash(&device).len(), 110);
    }
}

/// What an fsync has written of an epoch is undone by that epoch's commit alone.
#[test]
fn what_an_fsync_has_promised_is_taken_back_by_the_log() {
    let (v, device) = volume(Order::Relaxed);
    let fs = v.fs();
    let f = fs.create("/f").unwrap();
    fs.create("/g").unwrap();
    f.sync_all().unwrap();
    assert!(after_crash(&device).contains(&"f".to_owned()));
    fs.unlink("/f").unwrap();
    fs.unlink("/g").unwrap();
    v.sync().unwrap();
    assert_eq!((names(&fs), after_crash(&device)), (vec![], vec![]));
}

/// A file that has another name, or had one, is more than one group.
#[test]
fn a_file_stays_whose_first_name_goes() {
    for epochs in [false, true] {
        let (v, device) = volume(Order::Ordered);
        let fs = v.fs();
        let seal = || epochs.then(|| commit::seal_and_commit(&v.0.persist).unwrap());
        for n in 0..5 {
            fs.create(format!("/first-{n}")).unwrap();
            seal();
        }
        fs.link("/first-0", "/link").unwrap();
        fs.rename("/first-1", "/moved").unwrap();
        fs.rename("/first-2", "/first-3").unwrap();
        seal();
        fs.unlink("/first-0").unwrap();
        fs.rename("/moved", "/first-1").unwrap();
        fs.link("/first-4", "/gone").unwrap();
        fs.unlink("/gone").unwrap();
        v.sync().unwrap();
        let left = ["first-1", "first-3", "first-4", "link"];
        assert_eq!((names(&fs), after_crash(&device)), (left.map(String::from).to_vec(), names(&fs)));
        for name in left {
            fs.unlink(format!("/{name}")).unwrap();
        }
        v.sync().unwrap();
        assert_eq!(after_crash(&device), Vec::<String>::new());
    }
}

/// Another thread's log has nothing of the file's making.
#[test]
fn another_thread_removes_what_one_has_made() {
    let (v, device) = volume(Order::Ordered);
    let fs = v.fs();
    for n in 0..20 {
        fs.create(format!("/{n}")).unwrap();
    }
    std::thread::scope(|s| {
        s.spawn(|| (0..10).for_each(|n| fs.unlink(format!("/{n}")).unwrap()));
    });
    let open = fs.open("/10", OpenOptions::new().read(true)).unwrap();
    fs.unlink("/10").unwrap();
    v.sync().unwrap();
    assert_eq!((after_crash(&device).len(), names(&fs).len()), (9, 9));
    drop(open);
    reaper::reap(&v.0.persist, true).unwrap();
    v.sync().unwrap();
    v.checkpoint().unwrap();
    assert_eq!(after_crash(&device), names(&fs));
}

/// An epoch in which nothing is undone is written as the lanes have it; with an inode that it both
/// made and ended it is absorbed.
#[test]
fn ends_of_what_an_epoch_made_are_absorbed() {
    let (v, device) = volume(Order::Ordered);
    let (fs, persist) = (v.fs(), &v.0.persist);
    fs.create("/a").unwrap();
    fs.link("/a", "/b").unwrap();
    fs.unlink("/a").unwrap();
    fs.unlink("/b").unwrap();
    assert_eq!(reaper::reap(persist, true).unwrap(), 1);
    commit::seal_and_commit(persist).unwrap();
    assert_eq!(logged(&v), [0, 0, 0, 1]);
    v.checkpoint().unwrap();
    assert_eq!(after_crash(&device), Vec::<String>::new());
}

/// Who changes the same thing all the time would fill the log with it.
#[test]
fn of_many_changes_of_one_thing_the_log_has_the_last() {
    let (v, device) = volume(Order::Ordered);
    let (fs, persist) = (v.fs(), &v.0.persist);
    fs.create("/f").unwrap();
    fs.create("/g").unwrap();
    v.sync().unwrap();
    v.checkpoint().unwrap();
    for n in 0..1000 {
        fs.chmod("/f", 0o600 | n & 7).unwrap();
        fs.rename("/g", "/h").unwrap();
        fs.rename("/h", "/g").unwrap();
    }
    let before = persist.journal.open_log_bytes();
    commit::seal_and_commit(persist).unwrap();
    let after = persist.journal.log_bytes();
    assert!(before > 10_000 && after < 200, "{before} bytes were logged, {after} are left");
    let left = MemoryImage::capture(&device).unwrap().fork().unwrap();
    let v = Volume::open_devices(vec![Arc::new(left)], &options(Order::Ordered)).unwrap();
    assert_eq!(v.fs().stat("/f").unwrap().mode & 0o777, 0o600 | 999 & 7);
}

/// Makes and removes files until the lane has ended some; returns how many files that took.
/// Other tests may hold back the collector for a while.
fn pairs(v: &Volume, fs: &Fs, mut each: impl FnMut(usize, u64, u32)) -> usize {
    let before = v.0.persist.journal.inodes_in_memory();
    let mut most = before;
    for n in 0.. {
        let name = format!("/{n}");
        let stat = {
            drop(fs.create(&*name).unwrap());
            fs.stat(&*name).unwrap()
        };
        fs.unlink(&*name).unwrap();
        each(n, stat.ino.0, stat.generation);
        let now = v.0.persist.journal.inodes_in_memory();
        if now < most - 100 && n > 2000 {
            return n;
        }
        most = most.max(now);
    }
    0
}

/// Their numbers are given out again, each as another file's; the log has nothing of them, and
/// nothing stays promised.
#[test]
fn a_lane_ends_files_that_lived_for_a_moment() {
    let (v, _) = volume(Order::Ordered);
    let (fs, persist) = (v.fs(), &v.0.persist);
    commit::seal_and_commit(persist).unwrap();
    let reserved = persist.store.space().reserved;
    let mut seen: HashMap<u64, u32> = HashMap::new();
    let mut again = 0;
    let made = pairs(&v, &fs, |_, ino, generation| {
        let before = seen.insert(ino, generation);
        assert!(before.is_none_or(|b| b < generation), "number {ino}: {before:?}, {generation}");
        again += usize::from(before.is_some());
    });
    let promised = persist.store.space().reserved - reserved;
    assert!(promised < made as u64 / 16, "{promised} blocks for {made} files");
    let held = persist.journal.inodes_in_memory();
    assert!(held < made as i64, "{held} of {made} files are in memory");
    assert!(persist.memfs.dead.lock().is_empty(), "no end is to be folded");
    let dead = reaper::reap(persist, true).unwrap();
    assert!(dead < made, "the reaper ended {dead} of {made}");
    pairs(&v, &fs, |_, ino, _| again += usize::from(seen.contains_key(&ino)));
    assert!(again > 0, "no number was given out again");
    commit::seal_and_commit(persist).unwrap();
    assert_eq!(fs.read_dir("/").unwrap().count(), 0);
    v.close().unwrap();
}

/// Who has a file open goes on with it; who comes too late gets ESTALE, and what an fsync may
/// have logged is not voided.
#[test]
fn what_is_open_or_logged_is_left_to_the_reaper() {
    let (v, _) = volume(Order::Ordered);
    let (fs, persist) = (v.fs(), &v.0.persist);
    let open = fs.open("/open", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    fs.unlink("/open").unwrap();
    fs.create("/synced").unwrap().sync_all().unwrap();
    fs.unlink("/synced").unwrap();
    let number = open.metadata().unwrap().ino();
    let mut numbers = vec![];
    pairs(&v, &fs, |_, ino, _| numbers.push(Ino(ino)));
    assert!(!numbers.contains(&number), "{number} is open");
    open.write_all_at(b"content", 0).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 7);
    drop(open);
    while reaper::reap(persist, true).unwrap() > 0 {}
    assert_eq!(v.node_stat(number).unwrap_err().errno(), libc::ESTALE);
}

/// What somebody found by its name is not another file meanwhile, however long that takes: its
/// number is not given out again.
#[test]
fn a_lane_waits_for_whoever_found_a_file_by_its_name() {
    let (v, _) = volume(Order::Ordered);
    let (fs, persist) = (v.fs(), &v.0.persist);
    drop(fs.create("/found").unwrap());
    let number = fs.stat("/found").unwrap().ino;
    let (found, unlinked) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|s| {
        s.spawn(|| {
            let guard = crossbeam_epoch::pin();
            let inode = persist.memfs.inodes.get(number, &guard).unwrap();
            found.wait();
            unlinked.wait();
            assert!(!inode.has(FREED), "it may be given up any moment");
            let still = persist.memfs.inodes.peek(number, &guard).unwrap();
            assert!(std::ptr::eq(inode, still), "another file has its number");
        });
        found.wait();
        fs.unlink("/found").unwrap();
        let again = (0..2000).any(|n| {
            drop(fs.create(format!("/{n}")).unwrap());
            let again = fs.stat(format!("/{n}")).unwrap().ino == number;
            fs.unlink(format!("/{n}")).unwrap();
            again
        });
        unlinked.wait();
        assert!(!again, "its number was given out again");
    });
}
