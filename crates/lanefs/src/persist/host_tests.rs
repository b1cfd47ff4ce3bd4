//! A volume on a sparse image whose host has no space left: what is new is refused, what was
//! accepted waits, what is removed makes space, and nothing that was acknowledged is lost.

use crate::{MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, MemoryImage, ThinDevice};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::lock::Mutex;
use std::sync::Arc;
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
    let left = MemoryImage::capture(thin.inner()).unwrap().fork().unwrap();
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
