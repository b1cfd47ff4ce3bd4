//! A volume on a sparse image whose host has no space left: what is new is refused, what was
//! accepted waits, what is removed makes space, and nothing that was acknowledged is lost.

use crate::persist::background;
use crate::{File, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, MemoryImage, ThinDevice};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::lock::Mutex;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Thin = Arc<ThinDevice<MemoryDevice>>;

fn options(background: bool) -> MountOptions {
    let commit_interval = Duration::from_millis(50);
    MountOptions { background, lanes: 4, commit_interval, ..MountOptions::default() }
}

/// A volume of 64 MiB on a host with so many blocks.
fn volume(blocks: u64, background: bool) -> (Volume, Thin) {
    let thin: Thin = Arc::new(ThinDevice::new(MemoryDevice::new(64 << 20).unwrap(), blocks));
    let device: Arc<dyn Device> = thin.clone();
    let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &format).unwrap();
    (Volume::open_devices(vec![device], &options(background)).unwrap(), thin)
}

fn after_crash(thin: &Thin) -> Volume {
    let left = thin.at_rest(|device| MemoryImage::capture(device)).unwrap().fork().unwrap();
    Volume::open_devices(vec![Arc::new(left)], &options(false)).unwrap()
}

/// Waits until it is so: what is waited for happens on its own, however loaded the machine is.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: never");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Fills the host, and writes until a write was refused; returns the names of what was synced.
fn fill(v: &Volume, thin: &Thin) -> Vec<String> {
    thin.fill();
    let mut synced = Vec::new();
    while !v.waits_for_host() {
        assert!(synced.len() < 500, "the host is full, and all goes on");
        let name = format!("/small{}", synced.len());
        v.fs().write(&*name, vec![7; 20_000]).unwrap();
        v.fs().open(&*name, OpenOptions::new().write(true)).unwrap().sync_all().unwrap();
        synced.push(name);
    }
    synced
}

#[test]
fn what_is_removed_makes_space_on_a_host_that_is_full() {
    let (v, thin) = volume(8000, true);
    let fs = v.fs();
    fs.write("/big", vec![5; 20 << 20]).unwrap();
    v.sync().unwrap();
    thin.fill();
    let synced = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for n in 0.. {
                let name = format!("/small{n}");
                match fs.write(&*name, vec![n as u8; 20_000]) {
                    Err(e) => return e.errno(),
                    Ok(()) => fs.open(&*name, OpenOptions::new().write(true)).unwrap().sync_all().unwrap(),
                }
                synced.lock().push((name, n as u8));
            }
            0
        });
        until("the host is short", || v.waits_for_host());
        let refused = |e: crate::Error| assert_eq!(e.errno(), libc::ENOSPC);
        refused(fs.write("/new", b"content").unwrap_err());
        refused(fs.mkdir("/dir", 0o755).unwrap_err());
        let big = fs.open("/big", OpenOptions::new().write(true)).unwrap();
        refused(big.write_all_at(&[1], 30 << 20).unwrap_err());
        refused(big.allocate(0, 30 << 20, 1 << 20).unwrap_err());
        assert_eq!(fs.read("/big").unwrap(), vec![5; 20 << 20]);
        drop(big);
        fs.unlink("/big").unwrap();
        until("there is space again", || !v.waits_for_host());
        assert_eq!(writer.join().unwrap(), libc::ENOSPC);
    });
    assert!(thin.left() > 3000, "{} blocks", thin.left());
    fs.write("/after", vec![9; 1 << 20]).unwrap();
    fs.open("/after", OpenOptions::new().write(true)).unwrap().sync_all().unwrap();
    let crashed = after_crash(&thin).fs();
    for (name, n) in synced.into_inner() {
        assert_eq!(crashed.read(&*name).unwrap(), vec![n; 20_000], "{name}");
    }
    assert_eq!(crashed.read("/after").unwrap(), vec![9; 1 << 20]);
    assert!(crashed.stat("/big").is_err());
    v.close().unwrap();
}

#[test]
fn what_was_accepted_is_kept_until_the_host_has_space() {
    let (v, thin) = volume(3000, false);
    let fs = v.fs();
    let f = fs.create("/f").unwrap();
    f.write_all_at(&[3; 4 << 20], 0).unwrap();
    let synced = fill(&v, &thin);
    // The kernel of a mount has accepted what it hands over.
    assert_eq!(f.write_back_at(&[4; 1 << 20], 4 << 20).unwrap(), 1 << 20);
    assert_eq!(f.write_at(&[4; 4096], 8 << 20).unwrap_err().errno(), libc::ENOSPC);
    std::thread::scope(|s| {
        let waits = s.spawn(|| f.sync_all());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished(), "nobody has freed anything");
        thin.give(4000);
        waits.join().unwrap().unwrap();
    });
    assert!(!v.waits_for_host());
    let crashed = after_crash(&thin).fs();
    assert!(synced.iter().all(|name| crashed.read(&**name).unwrap() == vec![7; 20_000]));
    let bytes = crashed.read("/f").unwrap();
    assert!(
        bytes.len() == 5 << 20 && bytes[..4 << 20].iter().all(|b| *b == 3) && bytes.ends_with(&[4; 4096])
    );
}

#[test]
fn a_close_waits_for_the_host_and_can_be_given_up() {
    for give_up in [false, true] {
        let (v, thin) = volume(3000, false);
        v.fs().write("/f", vec![3; 8 << 20]).unwrap();
        let synced = fill(&v, &thin);
        std::thread::scope(|s| {
            let closes = s.spawn(|| v.close());
            let trouble = || v.0.persist.store.report().devices.trouble.unwrap_or_default();
            until("it closes", || trouble().contains("being closed"));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!closes.is_finished(), "nobody has freed anything");
            if give_up {
                v.shutdown();
                assert!(closes.join().unwrap().is_err());
            } else {
                thin.give(6000);
                closes.join().unwrap().unwrap();
            }
        });
        let found = after_crash(&thin);
        assert_eq!(found.open_report().clean, !give_up);
        let fs = found.fs();
        assert!(synced.iter().all(|name| fs.read(&**name).unwrap() == vec![7; 20_000]));
        assert!(give_up || fs.read("/f").unwrap() == vec![3; 8 << 20]);
    }
}

/// Who looked at a file of a volume whose host is full waited for ever when it was unmounted, for
/// the sake of the access time.
#[test]
fn a_close_does_not_wait_to_write_access_times() {
    let (v, thin) = volume(3000, false);
    v.fs().write("/read", vec![3; 20_000]).unwrap();
    let synced = fill(&v, &thin);
    v.shutdown();
    drop(v);
    let v = Volume::open_devices(vec![thin.clone()], &options(false)).unwrap();
    thin.fill();
    for name in synced.iter().chain([&"/read".to_string()]) {
        let _ = v.fs().read(&**name);
    }
    let closing = v.clone();
    let (tell, told) = mpsc::channel();
    let close = std::thread::spawn(move || tell.send(closing.close()));
    let closed = told.recv_timeout(Duration::from_secs(10));
    v.shutdown();
    close.join().unwrap().ok();
    closed.expect("it waits for the host").unwrap();
    let after = after_crash(&thin).fs();
    assert!(synced.iter().all(|name| after.read(&**name).unwrap() == vec![7; 20_000]));
}

/// Does something that must not wait for the host: if it hangs the volume is stopped, and the test
/// fails.
fn ends<T: Send + 'static>(v: &Volume, what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (did, done) = mpsc::channel();
    let thread = std::thread::spawn(move || did.send(f()).expect("somebody waits for it"));
    match done.recv_timeout(Duration::from_secs(30)) {
        Ok(result) => {
            thread.join().unwrap();
            result
        }
        Err(e) => {
            v.shutdown();
            panic!("{what}: {e}");
        }
    }
}

/// A host that has so many blocks more than the volume keeps of it.
fn leave(thin: &Thin, blocks: u64) {
    thin.fill();
    thin.give(blocks);
}

fn to_write(v: &Volume, name: &str) -> Arc<File> {
    Arc::new(v.fs().open(name, OpenOptions::new().read(true).write(true)).unwrap())
}

/// A call that waits in a thread of its own.
fn waiting(file: &Arc<File>, call: fn(&File) -> crate::Result<()>) -> JoinHandle<crate::Result<()>> {
    let file = file.clone();
    std::thread::spawn(move || call(&file))
}

/// Waits for the end of a call that waited for the host.
fn ended(v: &Volume, what: &str, call: JoinHandle<crate::Result<()>>) -> crate::Result<()> {
    ends(v, what, move || call.join().unwrap())
}

/// A volume of which `/x` has 8 MiB that are not written, for which its host has no space, and
/// `/victim` 8 MiB that are; and `/new` and `/old` a little.
fn waiting_volume(background: bool) -> (Volume, Thin, Arc<File>) {
    let (v, thin) = volume(20_000, background);
    let fs = v.fs();
    for name in ["/victim", "/x", "/old"] {
        fs.write(name, vec![5; 8 << 20]).unwrap();
    }
    v.sync().unwrap();
    v.checkpoint().unwrap();
    let x = to_write(&v, "/x");
    x.write_all_at(&[6; 8 << 20], 0).unwrap();
    fs.write("/new", b"new").unwrap();
    leave(&thin, 600);
    (v, thin, x)
}

/// The fsync held the file's locks while it waited, and all of these hung.
#[test]
fn a_file_of_which_an_fsync_waits_is_cut_and_replaced_and_removed() {
    for (background, call) in [(false, File::sync_all as fn(&File) -> _), (true, File::sync_data)] {
        let (v, thin, x) = waiting_volume(background);
        let fs = v.fs();
        let waits = waiting(&x, call);
        until("the host is short", || v.waits_for_host());
        let (file, names) = (x.clone(), v.fs());
        ends(&v, "the file is cut, and names are changed", move || {
            file.set_len(6 << 20).unwrap();
            file.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 20).unwrap();
            file.set_len((5 << 20) + 1).unwrap();
            file.write_all_at(&[7; 100], 2 << 20).unwrap();
            assert_eq!(names.read("/x").unwrap()[(2 << 20) - 1..][..102], {
                let mut bytes = [7; 102];
                (bytes[0], bytes[101]) = (6, 6);
                bytes
            });
            assert_eq!(names.read_dir("/").unwrap().count(), 4);
            // Where the background makes checkpoints there may be space by now.
            let e = names.link("/x", "/more").err();
            assert!(e.map_or(background, |e| e.errno() == libc::ENOSPC));
            names.rename("/x", "/old").unwrap();
            names.rename("/new", "/old").unwrap();
            names.unlink("/old").unwrap();
        });
        // Where the background makes checkpoints what was cut may do.
        assert!(background || !waits.is_finished() && v.waits_for_host(), "nobody has freed anything");
        let remover = v.clone();
        ends(&v, "what is removed is committed", move || {
            remover.fs().unlink("/victim").unwrap();
            (0..4).for_each(|_| background::tick(&remover.0.persist, true).unwrap());
        });
        ended(&v, "the fsync", waits).unwrap();
        assert!(!v.waits_for_host() && thin.left() > 1000, "{} blocks", thin.left());
        fs.write("/after", vec![9; 1 << 20]).unwrap();
        to_write(&v, "/after").sync_all().unwrap();
        let crashed = after_crash(&thin).fs();
        assert_eq!(crashed.read("/after").unwrap(), vec![9; 1 << 20]);
        assert!(crashed.stat("/victim").is_err() && crashed.stat("/x").is_err());
        drop(x);
        v.close().unwrap();
    }
}

/// Nobody had asked for it, and it held the same locks.
#[test]
fn a_file_that_is_written_ahead_is_cut_and_removed() {
    let (v, thin, x) = waiting_volume(true);
    // The kernel of a mount hands over what it has accepted.
    let mut at = 8 << 20;
    while !v.waits_for_host() {
        let writer = x.clone();
        ends(&v, "a write", move || writer.write_back_at(&[7; 1 << 20], at).unwrap());
        at += 1 << 20;
        assert!(at < 40 << 20, "the host has 600 blocks, and all is written");
    }
    let (file, names) = (x.clone(), v.fs());
    let size = ends(&v, "the file is cut and removed", move || {
        assert_eq!(file.write_back_at(&[8; 1 << 20], at).unwrap(), 1 << 20);
        file.set_len(3 << 20).unwrap();
        file.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 4096).unwrap();
        names.rename("/new", "/old").unwrap();
        names.rename("/x", "/a").unwrap();
        file.stat().unwrap().size
    });
    assert_eq!(size, 3 << 20);
    let (file, names) = (x.clone(), v.fs());
    ends(&v, "there is space again", move || {
        names.unlink("/victim").unwrap();
        file.sync_all().unwrap();
    });
    let mut found = after_crash(&thin).fs().read("/a").unwrap();
    assert_eq!(found.len(), 3 << 20);
    assert!(found.drain(..4096).all(|b| b == 0) && found.iter().all(|b| *b == 6));
    drop(x);
    v.close().unwrap();
}

/// The host was filled between two looks at it: a piece that was let through is refused, and waits
/// with the file's lock, for which who hands over more must not wait.
#[test]
fn what_a_kernel_hands_over_does_not_wait_for_one_who_waits_for_the_host() {
    let (v, thin) = volume(20_000, true);
    let [x, other] = ["/x", "/other"].map(|name| Arc::new(v.fs().create(name).unwrap()));
    other.write_all_at(&[9; 8 << 20], 0).unwrap();
    let held = x.inode().sync_lock.lock();
    let writer = x.clone();
    let writes = std::thread::spawn(move || {
        for at in (0..24 << 20).step_by(1 << 20) {
            assert_eq!(writer.write_back_at(&[7; 1 << 20], at).unwrap(), 1 << 20);
        }
    });
    // It is many steps behind, and waits for the lock: by now the host has space.
    until("it is far behind", || v.0.persist.ahead.is_far_behind(x.inode().ino));
    thin.fill();
    let waits = waiting(&other, File::sync_all);
    until("the host is short", || v.waits_for_host());
    ends(&v, "what is handed over", move || writes.join().unwrap());
    drop(held);
    thin.give(20_000);
    for file in [&other, &x] {
        ended(&v, "an fsync when there is space", waiting(file, File::sync_all)).unwrap();
    }
    waits.join().unwrap().unwrap();
    assert_eq!(after_crash(&thin).fs().read("/x").unwrap(), vec![7; 24 << 20]);
    drop((x, other));
    v.close().unwrap();
}

/// A thread that serves a mount waits for a while: the kernel holds locks for it.
#[test]
fn an_impatient_fsync_fails_and_loses_nothing() {
    let (v, thin, x) = waiting_volume(false);
    let other = to_write(&v, "/x");
    for _ in 0..2 {
        let impatient = waiting(&x, |x| {
            lanefs_sync::set_patience(Some(Duration::from_millis(50)));
            x.sync_all()
        });
        let e = ended(&v, "an impatient fsync", impatient).unwrap_err();
        assert!(e.errno() == libc::ENOSPC && e.is_of_full_host(), "{e:?}");
        assert!(e.to_string().contains("waiting for space on the host"), "{e}");
    }
    let impatient = ends(&v, "an impatient sync", {
        let v = v.clone();
        move || {
            lanefs_sync::set_patience(Some(Duration::from_millis(50)));
            v.sync()
        }
    });
    assert_eq!(impatient.unwrap_err().errno(), libc::ENOSPC);
    assert!(v.waits_for_host() && x.inode().has_dirty());
    thin.give(8000);
    for file in [&x, &other] {
        ended(&v, "an fsync when there is space", waiting(file, File::sync_all)).unwrap();
    }
    assert_eq!(after_crash(&thin).fs().read("/x").unwrap(), vec![6; 8 << 20]);
    drop((x, other));
    v.close().unwrap();
}

/// A seal waits for the content of what was renamed over a file. What is small goes from what is
/// kept, and removals behind it become durable; what is large is put off, and nothing with it.
#[test]
fn what_was_renamed_over_a_file_waits_and_holds_up_no_call() {
    for large in [false, true] {
        let (v, thin, x) = waiting_volume(false);
        let waits = waiting(&x, File::sync_all);
        until("the host is short", || v.waits_for_host());
        let names = v.fs();
        let committer = v.clone();
        ends(&v, "a rename over a file, and its seal", move || {
            names.rename(if large { "/x" } else { "/new" }, "/old").unwrap();
            names.unlink("/victim").unwrap();
            (0..4).for_each(|_| background::tick(&committer.0.persist, true).unwrap());
            // A name is durable with the content, or not at all.
            names.rename("/old", "/abc").unwrap();
            names.chmod("/", 0o700).unwrap();
            (0..4).for_each(|_| background::tick(&committer.0.persist, true).unwrap());
        });
        assert_eq!(v.waits_for_host(), large);
        let crashed = after_crash(&thin).fs();
        let found = crashed.read(if crashed.stat("/abc").is_ok() { "/abc" } else { "/old" }).unwrap();
        match large {
            true => assert!(found == vec![5; 8 << 20] && crashed.stat("/victim").is_ok()),
            false => assert!(found == b"new" && crashed.stat("/victim").is_err()),
        }
        thin.give(8000);
        ended(&v, "the fsync", waits).unwrap();
        v.sync().unwrap();
        let expected = if large { vec![6; 8 << 20] } else { b"new".to_vec() };
        assert_eq!(after_crash(&thin).fs().read("/abc").unwrap(), expected);
        drop(x);
        v.close().unwrap();
    }
}

/// What is removed must become durable whatever else waits.
#[test]
fn a_removal_makes_space_however_many_wait() {
    let (v, thin, x) = waiting_volume(true);
    let fs = v.fs();
    let files: Vec<Arc<File>> = (0..6)
        .map(|n| {
            let f = fs.create(format!("/f{n}")).unwrap();
            f.write_back_at(&vec![n; 2 << 20], 0).unwrap();
            Arc::new(f)
        })
        .collect();
    let waits: Vec<_> = files.iter().chain([&x]).map(|f| waiting(f, File::sync_all)).collect();
    until("the host is short", || v.waits_for_host());
    std::thread::sleep(Duration::from_millis(20));
    let names = v.fs();
    ends(&v, "the removal", move || {
        names.unlink("/victim").unwrap();
        names.unlink("/old").unwrap();
    });
    // What they free is not enough for all.
    until("some go on", || waits.iter().any(JoinHandle::is_finished));
    thin.give(8000);
    waits.into_iter().for_each(|w| ended(&v, "an fsync", w).unwrap());
    let crashed = after_crash(&thin).fs();
    (0..6).for_each(|n| assert_eq!(crashed.read(format!("/f{n}")).unwrap(), vec![n; 2 << 20]));
    drop((files, x));
    v.close().unwrap();
}
