//! Volumes full of files: what was promised is kept, and what is deleted gives its space back.

use crate::{after_crash, options, reopen, root, volume_as, volume_with};
use lanefs::{Cred, Fs, MountOptions, OpenOptions, Order, Volume};
use lanefs_store::device::{Device, FileDevice, MemoryDevice};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::random::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Empty files until the volume is full; how many.
fn fill(fs: &Fs) -> usize {
    for n in 0.. {
        match fs.create(format!("/f{n}")) {
            Ok(_) => {}
            Err(e) if e.errno() == libc::ENOSPC => return n,
            Err(e) => panic!("f{n}: {e}"),
        }
    }
    unreachable!()
}

/// A removal and what it leads to come in two folds when a checkpoint falls between them.
#[test]
fn a_volume_full_of_files_can_be_emptied() {
    for (step, copies) in [(1, 1), (2, 1), (3, 1), (10, 1), (1, 2), (3, 2)] {
        let o = FormatOptions { metadata_copies: copies, packed_inodes: false, ..Default::default() };
        let (volume, dev) = volume_as(32, o);
        let fs = volume.as_user(Cred::root());
        let n = fill(&fs);
        assert!(n > 5200 / copies as usize, "{n} files");
        for i in (0..n).filter(|i| i % step == 0) {
            fs.unlink(format!("/f{i}")).unwrap();
        }
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        let crashed = after_crash(&dev);
        assert_eq!(crashed.stat("/f0").unwrap_err().errno(), libc::ENOENT);
        drop(crashed);
        fs.write("/again", b"x").unwrap();
        let fs = reopen(fs, &dev);
        assert_eq!(fs.read("/again").unwrap(), b"x");
    }
}

/// Of files that share blocks there are many more, and what is logged when they go is more than
/// they give back at once. Before, whatever makes them larger is tried on the full volume.
#[test]
fn a_volume_full_of_files_that_share_blocks_can_be_changed_and_emptied() {
    for (step, copies) in [(1, 1), (3, 1), (2, 2)] {
        let (volume, dev) = volume_with(5, copies);
        let fs = volume.as_user(Cred::root());
        let n = fill(&fs);
        assert!(n > 8000 / copies as usize, "{n} files");
        fs.volume().sync().unwrap();
        for i in 0..n {
            fs.chmod(format!("/f{i}"), 0o600).unwrap();
        }
        fs.volume().sync().unwrap();
        // Some space, for others to become larger until there is none.
        for i in n - n / 8..n {
            fs.unlink(format!("/f{i}")).unwrap();
        }
        let n = n - n / 8;
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        fs.volume().checkpoint().unwrap();
        let mut made = [0; 3];
        for i in (0..n).step_by(7) {
            let path = format!("/f{i}");
            let r = match i / 7 % 3 {
                0 => fs.write(&path, [b'x'; 3000]),
                1 => fs.write(&path, [b'x'; 9000]),
                _ => fs.setxattr(&path, b"user.a", &[b'x'; 400], 0),
            };
            match r {
                Ok(()) => made[i / 7 % 3] += 1,
                Err(e) => assert_eq!(e.errno(), libc::ENOSPC, "{path}: {e}"),
            }
            if i % 700 == 0 {
                fs.volume().sync().unwrap();
            }
        }
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        drop(after_crash(&dev));
        for i in (0..n).filter(|i| i % step == 0) {
            fs.unlink(format!("/f{i}")).unwrap();
        }
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        assert_eq!(after_crash(&dev).stat("/f0").unwrap_err().errno(), libc::ENOENT);
        fs.write("/again", b"x").unwrap();
        let fs = reopen(fs, &dev);
        assert_eq!(fs.read("/again").unwrap(), b"x");
        assert_eq!(fs.stat("/f1").is_ok(), step > 1);
        close_and_check(fs, dev);
        assert!(made.iter().all(|n| *n > 0), "of {n} files {made:?} were changed");
    }
}

/// A name of 250 bytes.
fn long(n: usize) -> String {
    format!("/{n:0>250}")
}

/// Fills the volume with what `make` makes, takes out every `step`th, all at once, and looks at
/// what a crash leaves and a clean close does.
fn fill_and_take_out(
    mib: u64,
    step: usize,
    make: impl Fn(&Fs, usize) -> lanefs::Result<()>,
    take: impl Fn(&Fs, usize),
) {
    let (fs, dev) = root(mib);
    let mut n = 0;
    loop {
        match make(&fs, n) {
            Ok(()) => n += 1,
            Err(e) if e.errno() == libc::ENOSPC => break,
            Err(e) => panic!("{n}: {e}"),
        }
    }
    fs.volume().sync().unwrap_or_else(|e| panic!("sync of {n}: {e}"));
    (0..n).filter(|i| i % step == 0).for_each(|i| take(&fs, i));
    fs.volume().sync().unwrap_or_else(|e| panic!("{n} made, every {step}th taken out: {e}"));
    drop(after_crash(&dev));
    fs.volume().checkpoint().unwrap_or_else(|e| panic!("{n} made, every {step}th taken out: {e}"));
    fs.write("/again", b"x").unwrap();
    let fs = reopen(fs, &dev);
    assert_eq!(fs.read("/again").unwrap(), b"x");
    close_and_check(fs, dev);
}

#[test]
fn a_volume_full_of_long_names_can_be_emptied() {
    for step in [1, 2, 3, 10] {
        fill_and_take_out(
            32,
            step,
            |fs, n| fs.create(long(n)).map(drop),
            |fs, n| fs.unlink(long(n)).unwrap(),
        );
    }
}

#[test]
fn a_volume_full_of_hard_links_can_be_emptied() {
    for step in [1, 2] {
        fill_and_take_out(
            16,
            step,
            |fs, n| {
                if n % 50_000 == 0 {
                    drop(fs.create(format!("/file{}", n / 50_000))?);
                }
                fs.link(format!("/file{}", n / 50_000), long(n))
            },
            |fs, n| fs.unlink(long(n)).unwrap(),
        );
    }
}

#[test]
fn a_volume_full_of_attributes_can_be_emptied() {
    for step in [1, 2, 10] {
        fill_and_take_out(
            32,
            step,
            |fs, n| {
                drop(fs.create(format!("/f{n}"))?);
                fs.setxattr(format!("/f{n}"), b"user.large", &[7; 3000], 0)?;
                fs.setxattr(format!("/f{n}"), b"user.larger", &[8; 9000], 0)
            },
            |fs, n| {
                fs.removexattr(format!("/f{n}"), b"user.larger").unwrap();
            },
        );
    }
}

/// The same with the background threads at work, and a volume that is dropped as by a crash in the
/// middle of it.
#[test]
fn names_come_and_go_on_a_full_volume() {
    let dev = root(16).1;
    let d: std::sync::Arc<dyn lanefs_store::device::Device> = dev.clone();
    let options = lanefs::MountOptions { cache_size: 64 << 20, ..Default::default() };
    let fs = lanefs::Volume::open_devices(vec![d], &options).unwrap().as_user(lanefs::Cred::root());
    fs.mkdir("/dir", 0o755).unwrap();
    let name = |n: usize| format!("/dir{}", long(n));
    let mut n = 0;
    for round in 0..3 {
        let from = n;
        loop {
            match fs.create(name(n)) {
                Ok(_) => n += 1,
                Err(e) if e.errno() == libc::ENOSPC => break,
                Err(e) => panic!("{n}: {e}"),
            }
        }
        fs.volume().sync().unwrap_or_else(|e| panic!("round {round}, {n}: {e}"));
        for i in (from..n).rev() {
            fs.unlink(name(i)).unwrap_or_else(|e| panic!("round {round}, {i} of {n}: {e}"));
        }
        fs.volume().sync().unwrap_or_else(|e| panic!("round {round}, {n} removed: {e}"));
        let names = crate::ls(&after_crash(&dev), "/dir");
        assert!(names.len() <= 1, "{} names", names.len());
    }
    assert!(n > 5000, "{n}");
    close_and_check(fs, dev);
}

/// With two copies of the tree a promise of a file, a name or attributes is one of twice as many
/// blocks, and is kept.
#[test]
fn what_two_copies_take_is_promised() {
    let (volume, dev) = volume_with(16, 2);
    let fs = volume.as_user(Cred::root());
    let full = |e: lanefs::Error| assert_eq!(e.errno(), libc::ENOSPC);
    for round in 0..3 {
        let mut n = 0;
        loop {
            let path = long(n);
            let made = fs.write(path.as_str(), vec![n as u8; 5000 * (n % 3)]);
            if let Err(e) = made.and_then(|()| match n % 5 {
                0 => fs.setxattr(path.as_str(), b"user.large", &[8; 9000], 0),
                _ => Ok(()),
            }) {
                full(e);
                break;
            }
            n += 1;
        }
        assert!(n > 300, "round {round}: {n}");
        fs.volume().sync().unwrap_or_else(|e| panic!("round {round}, {n}: {e}"));
        fs.volume().checkpoint().unwrap();
        let crashed = after_crash(&dev);
        assert_eq!(crashed.stat(long(n - 1).as_str()).unwrap().size, 5000 * ((n as u64 - 1) % 3));
        drop(crashed);
        for i in 0..=n {
            if let Err(e) = fs.unlink(long(i).as_str()) {
                assert!(i == n && e.errno() == libc::ENOENT, "round {round}, {i} of {n}: {e}");
            }
        }
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
    }
    close_and_check(fs, dev);
}

/// No block is marked as in use that nothing refers to: what the cleaner moved and a fold wrote
/// anew once was.
fn close_and_check(fs: Fs, dev: std::sync::Arc<lanefs_store::device::MemoryDevice>) {
    fs.volume().close().unwrap();
    drop(fs);
    let report = lanefs_store::fsck::check(vec![dev], &Default::default(), &|_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// What no room helps is told at once: no checkpoint is made for it.
#[test]
fn too_many_attributes_are_no_reason_to_make_room() {
    use lanefs_store::device::{Device, ReadReq};
    let (fs, dev) = root(16);
    let slots = || {
        let mut bytes = vec![0; 8192];
        dev.read(&mut [ReadReq { offset: 4096, data: &mut bytes }]).unwrap();
        bytes
    };
    fs.write("/f", b"x").unwrap();
    fs.setxattr("/f", b"user.a", &[1; 60_000], 0).unwrap();
    fs.setxattr("/f", b"user.b", &[2; 60_000], 0).unwrap();
    fs.volume().sync().unwrap();
    let before = slots();
    assert_eq!(fs.setxattr("/f", b"user.c", &[3; 60_000], 0).unwrap_err().errno(), libc::ENOSPC);
    assert!(slots() == before, "a checkpoint was made");
    fs.volume().checkpoint().unwrap();
    assert!(slots() != before, "a checkpoint shows");
}

/// What deleted files held comes back in the middle of a write or an append too, not only before
/// it.
#[test]
fn writes_are_whole_while_deleted_files_hold_the_room() {
    let (fs, dev) = root(32);
    let data = vec![7; 130_000];
    for n in 0..600 {
        let f = fs.create(format!("/f{n}")).unwrap();
        assert_eq!(f.write_at(&data, 0).unwrap(), data.len(), "file {n}");
        assert_eq!(f.append(&data[..50_000]).unwrap(), 130_000, "file {n}");
        if n >= 20 {
            fs.unlink(format!("/f{}", n - 20)).unwrap();
        }
    }
    for n in 580..600 {
        assert_eq!(fs.read(format!("/f{n}")).unwrap(), vec![7; 180_000]);
    }
    close_and_check(fs, dev);
}

/// What an engine with a rollback journal does: pages are logged, synced, written over, and where
/// there is no space for all of them put back. The journals of many transactions are removed and
/// not folded when the volume is full.
#[test]
fn a_transaction_on_a_full_volume_is_rolled_back() {
    let page = |n: u64| vec![n as u8; 4096];
    let logs = |first| [(first, 2, 1), (first, 4, 1), (first, 2, 2), (first, 4, 2)];
    for (first, pages_logged, mlogs) in [80, 400, 800].into_iter().flat_map(logs) {
        let dev = Arc::new(MemoryDevice::new(8 << 20).unwrap());
        let device: Arc<dyn Device> = dev.clone();
        let o = FormatOptions { segment_blocks: 16, mlogs, ..Default::default() };
        Store::format(std::slice::from_ref(&device), &o).unwrap();
        let volume = Volume::open_devices(vec![device], &options()).unwrap();
        let fs = volume.as_user(Cred::root());
        let log = fs.create("/log").unwrap();
        for n in 0..first {
            log.write_all_at(&page(n), n << 12).unwrap();
            if n % 13 == 0 {
                log.sync_all().unwrap();
            }
        }
        drop(log);
        fs.unlink("/log").unwrap();
        let db = fs.create("/db").unwrap();
        db.write_all_at(&page(0), 0).unwrap();
        db.sync_all().unwrap();
        let mut pages = 1;
        for n in 1.. {
            let journal = fs.create("/journal").unwrap();
            let grown = (|| {
                journal.write_all_at(&page(n).repeat(pages_logged), 0)?;
                journal.sync_all()?;
                journal.write_all_at(&page(n), 0)?;
                journal.sync_all()?;
                (0..13).try_for_each(|i| db.write_all_at(&page(n), (pages + i) << 12))?;
                db.write_all_at(&page(n), 0)?;
                db.write_all_at(&page(n), (pages / 2) << 12)?;
                db.sync_all()
            })();
            if let Err(e) = &grown {
                assert_eq!(e.errno(), libc::ENOSPC, "{e}");
                for i in [0, pages / 2] {
                    db.write_all_at(&page(0), i << 12).unwrap();
                }
                db.set_len(pages << 12).unwrap();
                db.sync_all().unwrap();
            }
            drop(journal);
            fs.unlink("/journal").unwrap();
            if grown.is_err() {
                break;
            }
            pages += 13;
        }
        assert!(pages > 1000, "{pages} pages");
        drop(db);
        close_and_check(fs, dev);
    }
}

/// The last page of a file that one thread makes longer and another syncs needed a second block
/// now and then, which no write had promised: fsync said ENOSPC.
#[test]
fn an_fsync_beside_appends_on_a_full_volume_finds_what_they_promised() {
    let (volume, dev) = volume_with(8, 1);
    let fs = volume.as_user(Cred::root());
    let log = fs.create("/log").unwrap();
    log.append(&[7; 10]).unwrap();
    log.sync_all().unwrap();
    log.append(&[7; 10]).unwrap();
    let rest = fs.create("/rest").unwrap();
    while rest.append(&[1; 4096]).is_ok() {}
    fs.volume().sync().unwrap();
    let (over, appended, mut errors) = (AtomicBool::new(false), AtomicU64::new(0), Vec::new());
    let refused = std::thread::scope(|s| {
        let appends = s.spawn(|| {
            let mut refused = 0;
            while !over.load(Relaxed) {
                log.set_len(10).unwrap();
                for _ in 0..2000 {
                    if let Err(e) = log.append(&[7; 2]) {
                        assert_eq!(e.errno(), libc::ENOSPC, "{e}");
                        refused += 1;
                    }
                    appended.fetch_add(1, Relaxed);
                }
            }
            refused
        });
        let mut seen = 0;
        for _ in 0..600 {
            // Each has something to write, unless the other has made the file short just now.
            while appended.load(Relaxed) == seen && !appends.is_finished() {
                std::thread::yield_now();
            }
            seen = appended.load(Relaxed);
            errors.extend(log.sync_all().err().map(|e| e.to_string()));
        }
        over.store(true, Relaxed);
        appends.join().unwrap()
    });
    assert_eq!(errors, [""; 0], "{refused} appends were refused");
    log.sync_all().unwrap();
    let bytes = fs.read("/log").unwrap();
    assert_eq!(bytes.len() as u64, log.stat().unwrap().size);
    assert!(bytes.iter().all(|b| *b == 7));
    assert_eq!(after_crash(&dev).read("/log").unwrap(), bytes);
    drop((log, rest));
    close_and_check(fs, dev);
}

/// Fills a volume with files of some sizes in some directories, until there is no space for another
/// page. Returns the bytes that are in them.
fn fill_with_content(fs: &Fs) -> u64 {
    let mut random = Rng::new(1);
    let content = vec![7; 1 << 20];
    let mut bytes = 0;
    for n in 0_u64.. {
        let dir = format!("/d{}", n % 16);
        if n < 16 {
            fs.mkdir(&dir, 0o755).unwrap();
        }
        let size = 1 + random.below(if n % 8 == 0 { 1 << 20 } else { 20_000 }) as usize;
        let path = format!("{dir}/f{n}");
        let written = match fs.create(&path) {
            Err(e) if e.errno() == libc::ENOSPC => break,
            file => file.unwrap(),
        };
        // A write that finds no space for all of it is short, or refused: then by pages.
        let mut at = 0;
        while at < size {
            match written.write_at(&content[..(size - at).min(64 << 10)], at as u64) {
                Ok(n) => at += n,
                Err(e) => {
                    assert_eq!(e.errno(), libc::ENOSPC, "{path}: {e}");
                    break;
                }
            }
        }
        bytes += at as u64;
        if at < size {
            break;
        }
    }
    // By pages, as long as there is one.
    let last = fs.create("/last");
    let mut at = 0;
    while let Ok(file) = &last
        && let Ok(n) = file.write_at(&content[..4096], at)
    {
        at += n as u64;
    }
    bytes + at
}

/// What a volume loses with each round in which it is filled and emptied, or opened again, would
/// show; so would a sync that finds no space for what was accepted. With
/// `LANEFS_FILLS` as many rounds (docs/TESTING.md).
#[test]
fn the_same_fits_each_time_a_volume_is_filled() {
    let rounds = seeds(7);
    let (volume, dev) = volume_as(128, FormatOptions::default());
    let mut fs = volume.as_user(Cred::root());
    drop(volume);
    let mut held = Vec::new();
    for round in 0..rounds {
        let bytes = fill_with_content(&fs);
        fs.volume().sync().unwrap();
        let stat = fs.statfs().unwrap();
        eprintln!("round {round}: {bytes} bytes, {} of {} blocks free", stat.free, stat.blocks);
        held.push(bytes);
        for d in 0..16 {
            fs.remove_dir_all(format!("/d{d}")).unwrap();
        }
        // Where there was not even space for the inode it is not there.
        if let Err(e) = fs.remove_file("/last") {
            assert_eq!(e.errno(), libc::ENOENT, "{e}");
        }
        if round % 3 == 2 {
            // Without the thrift of a full volume each page that is written makes a checkpoint.
            let made = fs.volume().report().unwrap().store.checkpoints.in_place;
            assert!(made < 1000, "{made} checkpoints of the store's own in three rounds");
            fs = reopen(fs, &dev);
        }
    }
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(least + (48 << 10) >= *most, "{least} to {most} bytes: {held:?}");
    close_and_check(fs, dev);
}

/// A volume of 64 MiB; all that is written to it fits into memory, so nothing is written back for
/// want of that.
fn volume_in_memory() -> (Fs, Arc<MemoryDevice>) {
    let dev = Arc::new(MemoryDevice::new(64 << 20).unwrap());
    let d: Arc<dyn Device> = dev.clone();
    let format = FormatOptions { segment_blocks: 64, mlogs: 2, ..Default::default() };
    Store::format(std::slice::from_ref(&d), &format).unwrap();
    let options = lanefs::MountOptions { cache_size: 512 << 20, ..options() };
    (Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root()), dev)
}

/// Writes a page at each multiple of `step` of a file until there is no space, syncs, and returns
/// how many there are after a crash.
fn islands(step: u64) -> u64 {
    let (fs, dev) = volume_in_memory();
    let file = fs.create("/islands").unwrap();
    let mut n = 0_u64;
    loop {
        match file.write_all_at(&[1 + (n % 255) as u8; 4096], n * step) {
            Ok(()) => n += 1,
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC, "page {n}: {e}");
                break;
            }
        }
    }
    fs.volume().sync().unwrap();
    let crashed = after_crash(&dev);
    let again = crashed.open("/islands", lanefs::OpenOptions::new().read(true)).unwrap();
    let mut page = [0; 4096];
    for i in 0..n {
        again.read_exact_at(&mut page, i * step).unwrap();
        assert!(page.iter().all(|b| *b == 1 + (i % 255) as u8), "page {i} of {n}, {step} apart");
    }
    drop((again, crashed));
    fs.volume().checkpoint().unwrap();
    drop(file);
    fs.unlink("/islands").unwrap();
    fs.volume().sync().unwrap();
    fs.write("/again", vec![7; 50 << 20]).unwrap();
    close_and_check(fs, dev);
    n
}

/// Of a page of its own each of these has a node of the map; nobody had promised these, and what
/// was accepted could not be synced any more.
#[test]
fn islands_in_a_sea_of_holes_have_space_for_their_maps() {
    let side_by_side = islands(4096);
    assert!(side_by_side > 14_000, "{side_by_side} pages");
    for step in [1 << 17, 1 << 20, 1 << 23] {
        let n = islands(step);
        assert!(n > side_by_side * 2 / 5, "{n} pages, {step} apart");
    }
    // Two nodes for each.
    assert!(islands(1 << 28) > side_by_side / 4);
}

/// All that a full volume holds is written over in memory before any of it is synced: each page has
/// a block to give back. What is new has the space that there is meanwhile.
#[test]
fn all_of_a_full_volume_waits_in_memory_to_be_written_over() {
    for (mlogs, copies, keeps) in [(1, 1, 0), (2, 2, 0), (2, 2, 400), (4, 2, 800)] {
        let what = format!("{mlogs} logs, {copies} copies, {keeps} blocks free");
        let dev = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        let d: Arc<dyn Device> = dev.clone();
        let format = FormatOptions { segment_blocks: 64, mlogs, ..Default::default() };
        let format = FormatOptions { metadata_copies: copies, ..format };
        Store::format(std::slice::from_ref(&d), &format).unwrap();
        let options = MountOptions { cache_size: 512 << 20, ..options() };
        let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
        let blocks = fs.statfs().unwrap().free;
        let file = fs.create("/large").unwrap();
        let mut pages = 0;
        while pages < blocks - keeps && file.write_all_at(&[0; 4096], pages * 4096).is_ok() {
            pages += 1;
        }
        fs.volume().sync().unwrap();
        let dirty = || fs.volume().report().unwrap().cache.dirty_bytes / 4096;
        let mut is = vec![0_u8; pages as usize];
        let mut rng = Rng::new(keeps + mlogs as u64);
        for round in 1..4 {
            for n in 0..2 * pages {
                let (at, value) = (rng.below(pages), round * 50 + (n % 50) as u8);
                let many = if n % 4 == 0 { 1 + rng.below(20).min(pages - at - 1) } else { 1 };
                is[at as usize..(at + many) as usize].fill(value);
                let written = file.write_all_at(&vec![value; many as usize * 4096], at * 4096);
                written.unwrap_or_else(|e| panic!("{what}: write {n}: {e}"));
                if keeps > 0 && n % 1000 == 0 {
                    fs.write(format!("/new{}", n % 4000), [1; 9000])
                        .unwrap_or_else(|e| panic!("{what}: {e}"));
                }
            }
            // What is new may have all of them written back.
            assert!(keeps > 0 || dirty() > pages * 9 / 10, "{what}: {} of {pages} pages wait", dirty());
            file.sync_all().unwrap_or_else(|e| panic!("{what}: fsync: {e}"));
            assert!(dirty() < 16, "{what}: {} pages are left", dirty());
            let crashed = after_crash(&dev);
            let again = crashed.read("/large").unwrap();
            assert_eq!(again.len() as u64, pages * 4096);
            let same = again.chunks(4096).zip(&is).all(|(page, is)| page.iter().all(|b| b == is));
            assert!(same, "{what}: round {round}");
        }
        drop(file);
        close_and_check(fs, dev);
    }
}

/// Such pages are written over, on a volume that is full but for some hundredths: each has a node
/// of the map written anew by the next checkpoint, so that is made before what it needs is more
/// than is free. Nobody made it: an fsync failed for want of space with a fifth of the volume free,
/// and the volume could be neither closed nor opened.
#[test]
fn islands_are_written_over_again_and_again() {
    let mut rng = Rng::new(11);
    for (step, free, every) in [(1 << 20, 4, 0), (1 << 20, 20, 0), (1 << 28, 10, 100), (1 << 20, 10, 1)] {
        let what = format!("{step} apart, {free} % free, fsync every {every}");
        let (fs, dev) = volume_in_memory();
        let total = fs.statfs().unwrap().blocks;
        let file = fs.create("/islands").unwrap();
        let islands = total / if step > 1 << 20 { 10 } else { 6 };
        (0..islands).for_each(|n| file.write_all_at(&[0; 4096], n * step).unwrap());
        fs.volume().sync().unwrap();
        let left = fs.statfs().unwrap().free - total * free / 100;
        fs.write("/fill", vec![1; left as usize * 4096]).unwrap();
        fs.volume().sync().unwrap();
        let mut is = vec![0; islands as usize];
        let rounds = if every == 1 { 1 } else { 4 };
        for round in 0..rounds * islands {
            let n = rng.below(islands);
            is[n as usize] = round % 255 + 1;
            let page = [is[n as usize] as u8; 4096];
            file.write_all_at(&page, n * step).unwrap_or_else(|e| panic!("{what}: write {round}: {e}"));
            if every > 0 && round % every == 0 {
                file.sync_data().unwrap_or_else(|e| panic!("{what}: fsync at {round}: {e}"));
            }
        }
        file.sync_all().unwrap_or_else(|e| panic!("{what}: {e}"));
        let crashed = after_crash(&dev);
        let again = crashed.open("/islands", lanefs::OpenOptions::new().read(true)).unwrap();
        let mut page = [0; 4096];
        for n in 0..islands {
            again.read_exact_at(&mut page, n * step).unwrap();
            assert!(page.iter().all(|b| u64::from(*b) == is[n as usize]), "{what}: page {n}");
        }
        drop((again, crashed, file));
        close_and_check(fs, dev);
    }
}

/// Islands on a volume without a free block are punched, in part and as a whole, and what is left
/// of the file is cut: none of that needs space that somebody has to have (SEMANTICS D7).
#[test]
fn islands_are_punched_on_a_full_volume() {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for (pages, step) in [(1, 1 << 20), (2, 1 << 20), (3, 1 << 20), (2, 1 << 28)] {
        let what = format!("{pages} pages each, {step} apart");
        let (fs, dev) = volume_in_memory();
        let total = fs.statfs().unwrap().blocks;
        let file = fs.create("/islands").unwrap();
        let islands = total / if step > 1 << 20 { 14 } else { 8 };
        let island = vec![7; pages * 4096];
        (0..islands).for_each(|n| file.write_all_at(&island, n * step).unwrap());
        fs.volume().sync().unwrap();
        let fill = fs.create("/fill").unwrap();
        let mut at = 0;
        while fill.write_all_at(&[1; 4096], at).is_ok() {
            at += 4096;
        }
        fs.volume().sync().unwrap();
        let ok = |did: &str, n: u64, r: lanefs::Result<()>| {
            r.unwrap_or_else(|e| panic!("{what}: {did} {n} of {islands}: {e}"));
        };
        // The last one is cut in its middle.
        for n in 0..islands - 1 {
            ok("punching a part of", n, file.allocate(mode, n * step + 100, 200));
        }
        ok("syncing", 0, file.sync_all());
        for n in 0..islands - 1 {
            ok("punching", n, file.allocate(mode, n * step, 4096));
        }
        ok("cutting", islands, file.set_len((islands - 1) * step + 100));
        ok("syncing", 1, file.sync_all());
        fs.volume().checkpoint().unwrap();
        // What checkpoints charge may be more than what was free.
        assert!(fs.statfs().unwrap().free > islands * 9 / 10, "{what}: {:?}", fs.statfs());
        drop((file, fill));
        close_and_check(fs, dev);
    }
}

/// Files without holes need few nodes: on a volume that is half full they may be written, and
/// removed, without going to the device for the sake of their maps.
#[test]
fn whole_files_wait_in_memory_until_the_volume_is_nearly_full() {
    let (fs, dev) = volume_in_memory();
    fs.write("/old", vec![1; 30 << 20]).unwrap();
    fs.volume().sync().unwrap();
    let dirty = || fs.volume().report().unwrap().cache.dirty_bytes;
    assert_eq!(dirty(), 0);
    for round in 0..4 {
        for n in 0..96 {
            fs.write(format!("/f{n}"), vec![n; 256 << 10]).unwrap();
        }
        assert_eq!(dirty(), 24 << 20, "round {round}: something was written back");
        for n in 0..96 {
            fs.unlink(format!("/f{n}")).unwrap();
        }
        fs.volume().sync().unwrap();
    }
    close_and_check(fs, dev);
}

/// Files of 1 to 16 pages on a volume as users make it, which fsyncs of a few pages write over.
struct Overwriting {
    mib: u64,
    /// How full the volume is.
    mille: u64,
    /// Each has files of its own.
    threads: usize,
    order: Order,
    /// Else there is a checkpoint now and then.
    background: bool,
    /// Not even something new is refused; but a whole file more, where little is left.
    strict: bool,
    seed: u64,
}

impl Overwriting {
    fn label(&self) -> String {
        let Overwriting { mib, mille, threads, order, background, seed, .. } = self;
        format!("{mib} MiB, {mille} thousandths, {threads} threads, {order:?}, {background}, seed {seed}")
    }

    fn ok(&self, fs: &Fs, what: &str, r: lanefs::Result<()>) {
        let state = || format!("{:?} {:?}", fs.statfs(), fs.volume().report());
        r.unwrap_or_else(|e| panic!("{}: {what}: {e}; {}", self.label(), state()));
    }

    /// Returns whether what is new was accepted, as it may have to be.
    fn accepted(&self, fs: &Fs, what: &str, r: lanefs::Result<()>, may_be_refused: bool) -> bool {
        match r {
            Err(e) if may_be_refused && e.errno() == libc::ENOSPC => false,
            r => {
                self.ok(fs, what, r);
                true
            }
        }
    }

    fn has_space(&self, fs: &Fs) -> bool {
        let s = fs.statfs().unwrap();
        s.free * 1000 > s.blocks * (1000 - self.mille)
    }

    /// Fills the volume, writes it over, and ends as by a crash: what was accepted is never refused
    /// by an fsync, and all of it is found.
    fn run(&self) {
        let dev = Arc::new(MemoryDevice::new(self.mib << 20).unwrap());
        let d: Arc<dyn Device> = dev.clone();
        Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
        let o = MountOptions { background: self.background, order: self.order, ..options() };
        let fs = Volume::open_devices(vec![d], &o).unwrap().as_user(Cred::root());
        let mut random = Rng::new(self.seed);
        // What is in each page of each file of each thread.
        let mut files: Vec<Vec<Vec<u8>>> = vec![Vec::new(); self.threads];
        for t in (0..self.threads).cycle() {
            if !self.has_space(&fs) {
                break;
            }
            let pages: Vec<u8> = (0..1 + random.below(16)).map(|p| p as u8).collect();
            fs.write(format!("/f{t}.{}", files[t].len()), content(&pages)).unwrap();
            files[t].push(pages);
        }
        fs.volume().sync().unwrap();
        std::thread::scope(|s| {
            for (t, files) in files.iter_mut().enumerate() {
                let fs = &fs;
                s.spawn(move || self.write_over(fs, t, files));
            }
        });
        self.ok(&fs, "last sync", fs.volume().sync());
        // Nothing is written behind it.
        fs.volume().shutdown();
        drop(fs);
        let d: Arc<dyn Device> = dev.clone();
        let fs = Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root());
        for (t, files) in files.iter().enumerate() {
            for (n, pages) in files.iter().enumerate() {
                let found = fs.read(format!("/f{t}.{n}")).unwrap();
                assert!(found == content(pages), "{}: /f{t}.{n} after a crash", self.label());
            }
        }
        close_and_check(fs, dev);
    }

    fn write_over(&self, fs: &Fs, t: usize, files: &mut [Vec<u8>]) {
        let mut random = Rng::new(self.seed * 100 + t as u64);
        let writing = |path: &str| fs.open(path, OpenOptions::new().write(true)).unwrap();
        let ok = |what: &str, r: lanefs::Result<()>| self.ok(fs, what, r);
        let (new, rounds) = (format!("/new{t}"), self.mib * 160 / self.threads as u64);
        for round in 0..rounds {
            let n = random.below(files.len() as u64) as usize;
            let (path, pages, byte) = (format!("/f{t}.{n}"), &mut files[n], round as u8);
            let f = writing(&path);
            match random.below(20) {
                0 => {
                    let may_be_refused = !self.strict || self.mille > 900;
                    if self.accepted(fs, "make", fs.write(&new, content(pages)), may_be_refused) {
                        if random.below(2) == 0 {
                            ok("sync what was made", writing(&new).sync_all());
                        }
                        ok("replace", fs.rename(&new, &path));
                    } else {
                        fs.unlink(&new)
                            .or_else(|e| if e.errno() == libc::ENOENT { Ok(()) } else { Err(e) })
                            .unwrap();
                    }
                }
                1 if pages.len() > 1 => {
                    pages.truncate(pages.len() / 2);
                    ok("cut", f.set_len(pages.len() as u64 * 4096));
                    ok("sync what was cut", f.sync_all());
                }
                2 | 3 if pages.len() < 16 && self.has_space(fs) => {
                    let grown = f.write_all_at(&[byte; 4096], pages.len() as u64 * 4096);
                    if self.accepted(fs, "grow", grown, !self.strict) {
                        pages.push(byte);
                        ok("sync what grew", f.sync_data());
                    }
                }
                4 => ok("sync all", fs.volume().sync()),
                _ => {
                    let first = random.below(pages.len() as u64) as usize;
                    let some = pages.iter_mut().enumerate().skip(first).take(1 + random.below(3) as usize);
                    for (p, page) in some {
                        let written = f.write_all_at(&[byte; 4096], p as u64 * 4096);
                        if self.accepted(fs, "write", written, !self.strict) {
                            *page = byte;
                        }
                    }
                    if random.below(3) > 0 {
                        ok("sync", f.sync_all());
                    }
                }
            }
            if !self.background && round % 512 == 511 {
                ok("checkpoint", fs.volume().checkpoint());
            }
        }
    }
}

/// Returns pages of these bytes.
fn content(pages: &[u8]) -> Vec<u8> {
    pages.iter().flat_map(|n| [*n; 4096]).collect()
}

/// Returns how many seeds are tried: `LANEFS_FILLS` says it (docs/TESTING.md).
fn seeds(usual: u64) -> u64 {
    std::env::var("LANEFS_FILLS").map_or(usual, |n| n.parse().unwrap())
}

/// Volumes of a few MiB were refused an fsync for ever when they were half full: nothing that had
/// been made since the last fold could be cleaned, and the store's own checkpoints, which write it
/// again each time, took what is kept back for the fold.
#[test]
fn an_fsync_is_not_refused_what_was_accepted_on_volumes_of_any_size() {
    let (threads, order, strict) = (1, Order::Ordered, true);
    for seed in 0..seeds(1) {
        for mib in [2, 4, 6, 7, 10, 12, 16] {
            for (mille, background) in [(500, false), (800, true), (900, false), (950, true)] {
                Overwriting { mib, mille, threads, order, background, strict, seed }.run();
            }
        }
    }
}

/// Of four threads one seals while another finds no space.
#[test]
fn no_thread_is_refused_what_was_accepted_on_a_small_volume() {
    let (threads, background, strict) = (4, true, false);
    let relaxed = (8, 500, Order::Relaxed);
    let ordered = [(3, 900), (8, 500), (8, 900), (16, 960)].map(|(mib, mille)| (mib, mille, Order::Ordered));
    for seed in 0..seeds(3) {
        for (mib, mille, order) in ordered.into_iter().chain([relaxed]) {
            Overwriting { mib, mille, threads, order, background, strict, seed }.run();
        }
    }
}

/// Files with blocks of their own that are changed here and there, on a volume with a fifth of it
/// free: what is free lies between what lives, and each checkpoint takes segments and gives back
/// none. What was kept back for checkpoints was used up, and the volume could neither be closed nor
/// opened.
#[test]
fn a_volume_of_small_files_that_are_changed_here_and_there_can_be_closed_and_opened() {
    const FILES: u64 = 3000;
    for seed in 0..8 {
        let dev: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
        // Nobody works in the background in half of the turns, as where that comes too late.
        let options = MountOptions { background: seed % 2 == 0, ..MountOptions::default() };
        let open = || Volume::open_devices(vec![dev.clone()], &options).unwrap();
        let volume = open();
        let fs = volume.as_user(Cred::root());
        let mut rng = Rng::at(seed);
        for n in 0..FILES {
            fs.write(format!("/{n}"), [n as u8; 6000]).unwrap();
        }
        for turn in 0..2 * FILES {
            let path = format!("/{}", rng.below(FILES));
            fs.setxattr(&path, b"user.x", &[turn as u8; 3000], 0).unwrap();
            let file = fs.open(&path, OpenOptions::new().write(true)).unwrap();
            file.write_at(&[turn as u8; 3000], rng.below(3000)).unwrap();
            drop(file);
            if turn % 1000 == 0 {
                fs.volume().sync().unwrap_or_else(|e| panic!("seed {seed}, turn {turn}: {e}"));
            }
        }
        drop(fs);
        volume.close().unwrap();
        drop(volume);
        open().close().unwrap();
    }
}

/// Who removed files to make a volume smaller was told that they do not fit, until the background
/// had ended them.
#[test]
fn what_was_removed_just_now_is_in_nobodys_way_when_the_volume_gets_smaller() {
    let dir = tempfile::tempdir().unwrap();
    let device = |name: &str| -> Arc<dyn Device> {
        Arc::new(FileDevice::create(dir.path().join(name), 64 << 20).unwrap())
    };
    let first = device("first");
    Store::format(std::slice::from_ref(&first), &FormatOptions { mlogs: 1, ..FormatOptions::default() })
        .unwrap();
    // Nobody else ends them.
    let options = MountOptions { background: false, ..MountOptions::default() };
    let v = Volume::open_devices(vec![first], &options).unwrap();
    let fs = v.as_user(Cred::root());
    let fill = || (0..10).for_each(|n| fs.write(format!("/{n}"), vec![n as u8 + 1; 4 << 20]).unwrap());
    fill();
    v.sync().unwrap();
    (1..10).for_each(|n| fs.unlink(format!("/{n}")).unwrap());
    assert_eq!(v.shrink(32 << 20).unwrap().after, 32 << 20);
    v.grow(Some(64 << 20)).unwrap();
    drop(device("second"));
    v.add_device(&dir.path().join("second"), false).unwrap();
    fill();
    (10..22).for_each(|n| fs.write(format!("/{n}"), vec![n as u8 + 1; 4 << 20]).unwrap());
    v.sync().unwrap();
    (1..22).for_each(|n| fs.unlink(format!("/{n}")).unwrap());
    v.remove_device(&dir.path().join("second")).unwrap();
    assert!(fs.read("/0").unwrap() == vec![1; 4 << 20]);
    v.close().unwrap();
}

/// Space that is kept for pages was promised to them again when they were written: until they were
/// written back they took twice as much, and of a volume that was half full nothing was to be had.
#[test]
fn what_is_preallocated_takes_its_space_once() {
    for keep_size in [true, false] {
        let (volume, dev) = volume_with(96, 1);
        let fs = volume.as_user(Cred::root());
        let mode = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        let content: Vec<u8> = (0..1_000_000).map(|i| i as u8 ^ (i >> 8) as u8).collect();
        let open = OpenOptions::new().read(true).write(true).create(true).clone();
        let files: Vec<_> = (0..40).map(|n| fs.open(format!("/f{n}"), &open).unwrap()).collect();
        files.iter().for_each(|f| f.allocate(mode, 0, content.len() as u64).unwrap());
        let before = fs.statfs().unwrap().free;
        for (n, file) in files.iter().enumerate() {
            // As one piece, and in pieces that are no pages.
            let piece = if n % 2 == 0 { content.len() } else { 5000 };
            for (i, part) in content.chunks(piece).enumerate() {
                file.write_at(part, (i * piece) as u64).unwrap();
            }
        }
        let after = fs.statfs().unwrap().free;
        // The last page of each may go into its inode.
        assert!(after + 2 * files.len() as u64 >= before, "{keep_size}: {before} free, then {after}");
        // There is space for as much again.
        fs.write("/more", vec![7; 40_000_000]).unwrap();
        fs.volume().sync().unwrap();
        drop(files);
        let fs = reopen(fs, &dev);
        assert!((0..40).all(|n| fs.read(format!("/f{n}")).unwrap() == content));
        assert_eq!(fs.read("/more").unwrap(), vec![7; 40_000_000]);
    }
}

/// Users fill a volume up to what is left to root, by whatever call; they change and remove what
/// they have. Root goes on.
#[test]
fn the_last_of_a_volume_is_left_to_root() {
    let (volume, dev) = volume_as(64, FormatOptions::default());
    let root = volume.as_user(Cred::root());
    root.chmod("/", 0o777).unwrap();
    let user = volume.as_user(Cred::user(1000, 1000, &[]));
    drop(volume);
    let left = |s: lanefs::StatFs| s.free - s.available;
    let empty = root.statfs().unwrap();
    assert_eq!(left(empty), empty.blocks / 512);
    let page = [7; 4096];
    let [mine, appended, roots] = ["/mine", "/appended", "/roots"].map(|path| match path {
        "/roots" => root.create(path).unwrap(),
        _ => user.create(path).unwrap(),
    });
    assert!(mine.allocate(0, 0, (empty.free - left(empty) / 2) * 4096).is_err());
    let mut pages = 0;
    while mine.write_at(&page, pages * 4096).is_ok() {
        pages += 1;
    }
    let full = |r: lanefs::Result<()>| assert_eq!(r.unwrap_err().errno(), libc::ENOSPC);
    full(appended.append(&page).map(drop));
    full(appended.allocate(0, 0, 8 << 12));
    full(user.setxattr("/mine", b"user.long", &[1; 9000], 0));
    let made = (0..2000).take_while(|n| user.create(format!("/f{n}")).is_ok()).count();
    assert!(made < 200, "{made} files");
    user.volume().sync().unwrap();
    let s = root.statfs().unwrap();
    assert!(s.available < 8 && s.free >= left(s) / 2 && s.free < 2 * left(s), "{s:?}");
    // What is there is changed, and made shorter.
    for n in 0..pages {
        mine.write_at(&[8; 4096], n * 4096).unwrap();
    }
    user.volume().sync().unwrap();
    // Root goes on, by each of the calls.
    roots.write_at(&page, 0).unwrap();
    roots.append(&page).unwrap();
    roots.allocate(0, 1 << 20, 8192).unwrap();
    root.mkdir("/log", 0o755).unwrap();
    full(user.create("/more").map(drop).and_then(|()| mine.append(&page).map(drop)));
    user.truncate("/mine", (pages - 200) * 4096).unwrap();
    user.volume().sync().unwrap();
    appended.append(&page).unwrap();
    drop((mine, appended, roots, user));
    close_and_check(root, dev);
}

/// What a truncation, a hole or a removal gave back was promised to others at once. Where these
/// synced, and a crash came before the truncation was durable, there was more than the volume
/// holds: what was preallocated could not be written, and holes were not punched.
#[test]
fn what_a_crash_brings_back_was_promised_to_nobody() {
    type TakesAway = fn(&Fs, u64);
    let ways: [(&str, TakesAway); 4] = [
        ("to nothing", |fs, _| fs.truncate("/big", 0).unwrap()),
        ("to its half", |fs, size| fs.truncate("/big", size / 2).unwrap()),
        ("a hole", |fs, size| {
            let big = fs.open("/big", OpenOptions::new().write(true)).unwrap();
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            big.allocate(mode, 4096, size - 4096).unwrap();
        }),
        ("removed", |fs, _| fs.unlink("/big").unwrap()),
    ];
    for (how, takes_away) in ways {
        for preallocated in [false, true] {
            let (volume, dev) = volume_with(64, 1);
            let fs = volume.as_user(Cred::root());
            drop(volume);
            let file = fs.create("/new").unwrap();
            file.append(&[1; 4096]).unwrap();
            let big = fs.create("/big").unwrap();
            let mut size = 0;
            for step in [1 << 20, 1 << 16, 4096] {
                let more = |size| match preallocated {
                    true => big.allocate(0, size, step).is_ok(),
                    false => big.write_at(&vec![7; step as usize], size).is_ok_and(|n| n as u64 == step),
                };
                while more(size) {
                    size += step;
                }
            }
            fs.volume().sync().unwrap();
            fs.volume().checkpoint().unwrap();
            drop(big);
            takes_away(&fs, size);
            // As much as was given back, but for a little; then it is found to be durable.
            let wanted = (size / 2 - (1 << 20)) / 4096 * 4096;
            file.allocate(0, 4096, wanted).unwrap();
            file.sync_all().unwrap();
            let again = after_crash(&dev);
            let what = format!("{how}, {preallocated}");
            let file = again.open("/new", OpenOptions::new().read(true).write(true)).unwrap();
            for at in (0..wanted).step_by(1 << 16) {
                let part = vec![9; (wanted - at).min(1 << 16) as usize];
                assert_eq!(file.write_at(&part, 4096 + at).unwrap(), part.len(), "{what}: at {at}");
            }
            file.sync_all().unwrap_or_else(|e| panic!("{what}: what was written is lost: {e}"));
            drop(file);
            again.volume().close().unwrap();
        }
    }
}

/// What had been logged in a moment, of long targets and names, was more than a volume could hold
/// beside the blocks that it is folded into: the fold found no space, and the volume stopped.
#[test]
fn a_volume_is_filled_in_a_moment_with_what_is_long_in_the_log() {
    type Makes = fn(&Fs, usize) -> lanefs::Result<()>;
    let ways: [(&str, Makes); 3] = [
        ("targets", |fs, n| fs.symlink("x".repeat(3000), format!("/l{n}"))),
        ("names", |fs, n| {
            // A file has so many names at the most.
            let file = format!("/of {}", n / 50_000);
            if n % 50_000 == 0 {
                fs.create(&file)?;
            }
            fs.link(&file, format!("/{n:08}{}", "y".repeat(240)))
        }),
        ("directories", |fs, n| fs.mkdir(format!("/{n:08}{}", "y".repeat(240)), 0o755)),
    ];
    for (what, makes) in ways {
        for (mib, background) in [(96, false), (128, true)] {
            let dev = Arc::new(MemoryDevice::new(mib << 20).unwrap());
            let d: Arc<dyn Device> = dev.clone();
            Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
            let options = MountOptions { background, cache_size: 1 << 30, ..options() };
            let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
            fs.write("/early", vec![7; 2 << 20]).unwrap();
            let made = (0..).find(|n| makes(&fs, *n).is_err()).unwrap();
            let e = makes(&fs, made).unwrap_err();
            assert_eq!(e.errno(), libc::ENOSPC, "{what}, {mib} MiB, {background}: {e}");
            fs.volume().sync().unwrap_or_else(|e| panic!("{what}, {mib} MiB, {background}: {e}"));
            fs.volume().close().unwrap();
            let fs = after_crash(&dev);
            let is_made = |name: &[u8]| !name.starts_with(b"early") && !name.starts_with(b"of ");
            let names = fs
                .read_dir("/")
                .unwrap()
                .filter(|e| is_made(e.as_ref().unwrap().name().as_encoded_bytes()))
                .count();
            assert_eq!(names, made, "{what}, {mib} MiB");
        }
    }
}
