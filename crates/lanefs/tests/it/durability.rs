//! What is there after a crash. (The crash simulator in lab/crash tries every state; these are
//! the plain cases.)

use crate::{after_crash, errno, ls, options, reopen, root};
use lanefs::{Cred, Fs, MountOptions, OpenOptions, Order, Volume};
use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan, When};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;

/// A volume of 64 MiB that is opened with this order, and its device.
fn opened(order: Order) -> (Fs, Arc<MemoryDevice>) {
    let (fs, dev) = root(64);
    fs.volume().close().unwrap();
    drop(fs);
    let d: Arc<dyn Device> = dev.clone();
    let v = Volume::open_devices(vec![d], &MountOptions { order, ..options() }).unwrap();
    (v.as_user(Cred::root()), dev)
}

/// What is left where one file of two in a new directory was fsynced.
fn one_of_two_is_fsynced(order: Order) -> Vec<String> {
    let (fs, dev) = opened(order);
    fs.mkdir_all("/a/b", 0o755).unwrap();
    fs.write("/a/b/before", b"no").unwrap();
    let f = fs.create("/a/b/synced").unwrap();
    f.write_all_at(b"yes", 0).unwrap();
    f.sync_all().unwrap();
    fs.write("/a/b/after", b"no").unwrap();
    let fs = after_crash(&dev);
    assert_eq!(fs.read("/a/b/synced").unwrap(), b"yes");
    ls(&fs, "/a/b")
}

#[test]
fn an_fsynced_new_file_is_there_with_its_name_its_directories_and_nothing_else() {
    assert_eq!(one_of_two_is_fsynced(Order::Relaxed), ["synced"]);
}

/// git, dpkg and others go by it, because ext4 and XFS do: the name that a lock file was renamed to
/// counts only if all that it refers to is there.
#[test]
fn an_fsync_of_an_ordered_volume_keeps_all_names_that_returned_before_it() {
    assert_eq!(one_of_two_is_fsynced(Order::Ordered), ["before", "synced"]);
}

/// The file that is fsynced need not have changed, nor be near.
#[test]
fn an_fsync_of_any_file_keeps_a_rename_that_returned_before_it() {
    for dirty in [false, true] {
        let (fs, dev) = opened(Order::Ordered);
        let log = fs.create("/log").unwrap();
        fs.mkdir("/objects", 0o755).unwrap();
        fs.write("/objects/tmp", b"object").unwrap();
        fs.volume().sync().unwrap();
        fs.rename("/objects/tmp", "/objects/1").unwrap();
        if dirty {
            log.write_all_at(b"line", 0).unwrap();
        }
        log.sync_all().unwrap();
        let fs = after_crash(&dev);
        assert_eq!(ls(&fs, "/objects"), ["1"], "dirty: {dirty}");
    }
}

/// As on ext4, so that a database does not wait for those who make files beside it; what names its
/// own file, and all before that, is kept.
#[test]
fn an_fdatasync_of_an_ordered_volume_keeps_names_up_to_the_last_of_its_file() {
    let (fs, dev) = opened(Order::Ordered);
    let db = fs.create("/db").unwrap();
    fs.volume().sync().unwrap();
    fs.mkdir("/before", 0o755).unwrap();
    fs.rename("/db", "/data").unwrap();
    db.sync_data().unwrap();
    assert_eq!(ls(&after_crash(&dev), "/"), ["before", "data"]);
    fs.mkdir("/beside", 0o755).unwrap();
    db.write_all_at(b"row", 0).unwrap();
    db.sync_data().unwrap();
    let left = after_crash(&dev);
    assert_eq!(left.read("/data").unwrap(), b"row");
    assert_eq!(ls(&left, "/"), ["before", "data"], "nobody asked for /beside");
}

/// Many threads make files and fsync them, each seals epochs for all; what one of them was told is
/// there, whoever wrote it.
#[test]
fn what_several_threads_fsync_at_once_is_there_with_all_before_it() {
    let (fs, dev) = opened(Order::Ordered);
    std::thread::scope(|s| {
        for t in 0..4 {
            let fs = &fs;
            s.spawn(move || {
                for n in 0..100 {
                    fs.write(format!("/{t}-{n}-before"), b"x").unwrap();
                    let f = fs.create(format!("/{t}-{n}")).unwrap();
                    f.write_all_at(&vec![n as u8; 100 + n * 2000], 0).unwrap();
                    f.sync_all().unwrap();
                }
            });
        }
    });
    let left = after_crash(&dev);
    for (t, n) in (0..4).flat_map(|t| (0..100).map(move |n| (t, n))) {
        assert_eq!(left.read(format!("/{t}-{n}")).unwrap(), vec![n as u8; 100 + n * 2000]);
        left.stat(format!("/{t}-{n}-before")).unwrap();
    }
}

#[test]
fn sync_makes_everything_durable() {
    let (fs, dev) = root(64);
    for i in 0..300 {
        fs.mkdir(&*format!("/d{i}"), 0o700).unwrap();
        fs.write(&*format!("/d{i}/f"), vec![i as u8; i * 50]).unwrap();
    }
    fs.volume().sync().unwrap();
    let fs = after_crash(&dev);
    for i in 0..300 {
        assert_eq!(fs.read(&*format!("/d{i}/f")).unwrap(), vec![i as u8; i * 50]);
    }
    assert_eq!(fs.stat("/").unwrap().nlink, 302);
}

#[test]
fn replacing_by_rename_yields_old_or_new_whole() {
    let (fs, dev) = root(64);
    fs.write("/f", b"old").unwrap();
    fs.volume().sync().unwrap();
    let f = fs.create("/f.tmp").unwrap();
    f.write_all_at(b"newer", 0).unwrap();
    f.sync_all().unwrap();
    fs.rename("/f.tmp", "/f").unwrap();
    let c = after_crash(&dev);
    assert_eq!(c.read("/f").unwrap(), b"old");
    assert_eq!(c.read("/f.tmp").unwrap(), b"newer");
    f.sync_all().unwrap();
    let c = after_crash(&dev);
    assert_eq!(c.read("/f").unwrap(), b"newer");
    assert_eq!(ls(&c, "/"), ["f"]);
}

#[test]
fn an_fsynced_removal_takes_the_other_name_along() {
    // O4: link b, then unlink a, fsync of the directory entry's owner: the file must keep its name
    //     b.
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    fs.write("/a", b"keep me").unwrap();
    fs.volume().sync().unwrap();
    fs.link("/a", "/d/b").unwrap();
    fs.unlink("/a").unwrap();
    fs.open("/", &OpenOptions::new()).unwrap().sync_all().unwrap();
    let c = after_crash(&dev);
    assert_eq!(errno(c.stat("/a")), libc::ENOENT);
    assert_eq!(c.read("/d/b").unwrap(), b"keep me");
    assert_eq!(c.stat("/d/b").unwrap().nlink, 1);
}

#[test]
fn an_fsync_after_a_directory_moved_commits_the_move() {
    let (fs, dev) = root(64);
    fs.mkdir_all("/a/d", 0o755).unwrap();
    fs.mkdir("/b", 0o755).unwrap();
    fs.volume().sync().unwrap();
    fs.rename("/a/d", "/b/d").unwrap();
    let f = fs.create("/b/d/f").unwrap();
    f.sync_all().unwrap();
    let d = fs.open("/b/d", &OpenOptions::new()).unwrap();
    d.sync_all().unwrap();
    let c = after_crash(&dev);
    assert_eq!(ls(&c, "/b/d"), ["f"]);
    assert_eq!(ls(&c, "/a"), Vec::<String>::new());
    assert_eq!(c.stat("/b/d/..").unwrap().ino, c.stat("/b").unwrap().ino);
    assert_eq!((c.stat("/a").unwrap().nlink, c.stat("/b").unwrap().nlink), (2, 3));
}

#[test]
fn links_that_come_and_go_leave_the_right_names_and_count() {
    let (fs, dev) = root(64);
    fs.write("/x", b"x").unwrap();
    for _ in 0..2 {
        fs.link("/x", "/a").unwrap();
        fs.unlink("/a").unwrap();
    }
    fs.link("/x", "/b").unwrap();
    fs.link("/x", "/a").unwrap();
    fs.unlink("/a").unwrap();
    for sync in [false, true] {
        if sync {
            fs.volume().sync().unwrap();
        } else {
            fs.open("/x", &OpenOptions::new()).unwrap().sync_all().unwrap();
        }
        let c = after_crash(&dev);
        assert_eq!(ls(&c, "/"), ["b", "x"]);
        assert_eq!(c.stat("/b").unwrap().nlink, 2);
    }
}

#[test]
fn an_unlinked_open_file_is_freed_by_recovery() {
    let (fs, dev) = root(64);
    let free = {
        fs.volume().checkpoint().unwrap();
        fs.statfs().unwrap().free
    };
    let f = fs.create("/gone").unwrap();
    f.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    f.sync_all().unwrap();
    fs.unlink("/gone").unwrap();
    fs.volume().sync().unwrap();
    fs.volume().checkpoint().unwrap();
    let c = after_crash(&dev);
    assert_eq!(ls(&c, "/"), Vec::<String>::new());
    c.volume().checkpoint().unwrap();
    assert!(c.statfs().unwrap().free + 16 >= free, "{} of {free}", c.statfs().unwrap().free);
    drop(f);
}

#[test]
fn recovery_twice_is_the_same_as_once() {
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    for i in 0..50 {
        let f = fs.create(&*format!("/d/{i}")).unwrap();
        f.write_all_at(&[i; 5000], 0).unwrap();
        f.sync_all().unwrap();
        if i % 3 == 0 {
            fs.unlink(&*format!("/d/{i}")).unwrap();
        }
    }
    fs.open("/d", &OpenOptions::new()).unwrap().sync_all().unwrap();
    let a = after_crash(&dev);
    let names = ls(&a, "/d");
    drop(a);
    let b = after_crash(&dev);
    assert_eq!(ls(&b, "/d"), names);
    assert_eq!(names.len(), 33);
    for n in names {
        assert_eq!(b.read(&*format!("/d/{n}")).unwrap(), [n.parse::<u8>().unwrap(); 5000]);
    }
}

#[test]
fn a_shut_down_volume_answers_eio_and_keeps_what_was_synced() {
    let (fs, dev) = root(64);
    fs.write("/f", b"synced").unwrap();
    fs.volume().sync().unwrap();
    fs.write("/g", b"lost").unwrap();
    fs.volume().shutdown();
    assert_eq!(errno(fs.stat("/f")), libc::EIO);
    assert_eq!(errno(fs.write("/h", b"")), libc::EIO);
    let c = after_crash(&dev);
    assert_eq!(ls(&c, "/"), ["f"]);
}

/// SEMANTICS F5, and what it is for: editors and installers that write a new file and rename it
/// over the old one without any fsync of it. Whatever makes the rename durable must bring the
/// content along.
#[test]
fn a_replacing_rename_brings_the_content_along() {
    type Durable = fn(&lanefs::Fs);
    let ways: [(&str, Durable); 4] = [
        ("fsync of the directory", |fs| fs.open("/d", &OpenOptions::new()).unwrap().sync_all().unwrap()),
        ("a checkpoint", |fs| fs.volume().checkpoint().unwrap()),
        ("an fsync that pulls the rename", |fs| {
            fs.open("/other-name", &OpenOptions::new()).unwrap().sync_all().unwrap()
        }),
        ("an fsync that commits the epoch", |fs| {
            fs.rename("/e/moves", "/d/moves").unwrap();
            fs.open("/d/moves", &OpenOptions::new()).unwrap().sync_all().unwrap();
        }),
    ];
    for (how, durable) in ways {
        let (fs, dev) = root(64);
        fs.mkdir("/d", 0o755).unwrap();
        fs.mkdir_all("/e/moves", 0o755).unwrap();
        fs.write("/d/f", b"old").unwrap();
        fs.link("/d/f", "/other-name").unwrap();
        fs.volume().sync().unwrap();
        fs.write("/d/f.tmp", [7; 20_000]).unwrap();
        fs.rename("/d/f.tmp", "/d/f").unwrap();
        durable(&fs);
        let c = after_crash(&dev);
        assert_eq!(c.read("/d/f").unwrap(), [7; 20_000], "after {how}");
        assert_eq!(errno(c.stat("/d/f.tmp")), libc::ENOENT);
    }
}

/// Pages written back under memory pressure reach the device without a flush and without a batch
/// that recovery could find. They are no longer dirty, but `sync` must make them durable all the
/// same.
#[test]
fn sync_covers_what_was_written_back_before_it() {
    let dev = std::sync::Arc::new(lanefs_store::device::MemoryDevice::new(64 << 20).unwrap());
    let d: std::sync::Arc<dyn lanefs_store::device::Device> = dev.clone();
    lanefs_store::Store::format(std::slice::from_ref(&d), &Default::default()).unwrap();
    let options = lanefs::MountOptions { cache_size: 4 << 20, ..crate::options() };
    let fs = lanefs::Volume::open_devices(vec![d], &options).unwrap().as_user(lanefs::Cred::root());
    for i in 0..20u8 {
        fs.write(&*format!("/f{i}"), vec![i; 1 << 20]).unwrap();
    }
    fs.volume().sync().unwrap();
    let c = after_crash(&dev);
    for i in 0..20u8 {
        assert!(c.read(&*format!("/f{i}")).unwrap() == vec![i; 1 << 20], "/f{i} is not what was written");
    }
}

/// Waiting for the end of unlinked files went on for ever when one was freed and another was still
/// held open.
#[test]
fn an_unlinked_file_that_is_held_open_does_not_keep_the_reaper_busy() {
    let (fs, _) = root(64);
    fs.write("/freed", b"").unwrap();
    let held = fs.create("/held").unwrap();
    fs.unlink("/freed").unwrap();
    fs.unlink("/held").unwrap();
    for _ in 0..3 {
        fs.volume().tick().unwrap();
    }
    held.write_all_at(b"still here", 0).unwrap();
    fs.volume().close().unwrap();
}

/// A sync that failed is never followed by one that succeeds without what the first was to make
/// durable: the device may have forgotten it.
#[test]
fn after_a_failed_flush_no_sync_and_no_fsync_succeeds() {
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, Plan};
    use std::sync::Arc;
    let dev = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
    let d: Arc<dyn Device> = dev.clone();
    lanefs_store::Store::format(std::slice::from_ref(&d), &Default::default()).unwrap();
    let fs = lanefs::Volume::open_devices(vec![d], &crate::options()).unwrap().as_user(lanefs::Cred::root());
    let clean = fs.create("/clean").unwrap();
    clean.sync_all().unwrap();
    fs.mkdir("/d", 0o755).unwrap();
    dev.set_plan(Plan::none().nth(Kind::Flush, 0, Fault::Error(libc::EIO)));
    let failed = |r: lanefs::Result<()>, why: &str| assert_eq!(r.expect_err(why).errno(), libc::EIO, "{why}");
    failed(fs.volume().sync(), "its flush failed");
    failed(fs.volume().sync(), "nothing was repaired since");
    failed(fs.open("/", &OpenOptions::new()).unwrap().sync_all(), "the name of /d is not durable");
    failed(clean.sync_all(), "the volume went read-only");
    failed(fs.volume().checkpoint(), "the volume went read-only");
    // What could never become durable is refused; what is there can be read.
    let refused = |r: lanefs::Result<()>| assert_eq!(r.unwrap_err().errno(), libc::EROFS);
    refused(fs.mkdir("/e", 0o755));
    refused(fs.unlink("/clean"));
    refused(fs.rename("/clean", "/moved"));
    refused(fs.chmod("/clean", 0o600));
    refused(fs.setxattr("/clean", b"user.a", b"b", 0));
    refused(clean.write_all_at(b"x", 0));
    refused(clean.set_len(1));
    assert_eq!(fs.stat("/d").unwrap().nlink, 2);
    failed(fs.volume().close(), "nothing of it became durable");
}

/// One read that fails while the volume is opened: opening may fail, but must not go on from an
/// older checkpoint and make that durable.
#[test]
fn a_read_error_while_opening_loses_nothing() {
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan};
    use std::sync::Arc;
    let (fs, dev) = root(64);
    for i in 0..4 {
        fs.mkdir(&*format!("/{i}"), 0o755).unwrap();
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
    }
    let image = MemoryImage::capture(&dev).unwrap();
    for nth in 0..60 {
        let copy: MemoryDevice = image.fork().unwrap();
        let faulty = FaultyDevice::new(copy, Plan::none().nth(Kind::Read, nth, Fault::Error(libc::EIO)));
        let d: Arc<dyn Device> = Arc::new(faulty);
        drop(lanefs::Volume::open_devices(vec![d.clone()], &crate::options()));
        let again = lanefs::Volume::open_devices(vec![d], &crate::options()).unwrap();
        assert_eq!(ls(&again.as_user(lanefs::Cred::root()), "/"), ["0", "1", "2", "3"], "read {nth} failed");
    }
}

/// A file that inherits an ACL has it with its name, whatever made the name durable, and loses it
/// only by a call.
#[test]
fn what_a_file_is_born_with_is_durable_with_its_name() {
    use lanefs::{Cred, NewInodeAttrs};
    const ACCESS: &[u8] = b"system.posix_acl_access";
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    let root_user = Cred::root();
    let ways: [fn(&lanefs::Fs); 5] = [
        |fs| fs.open("/d", &OpenOptions::new()).unwrap().sync_all().unwrap(),
        |fs| fs.open("/d/f", &OpenOptions::new()).unwrap().sync_data().unwrap(),
        |fs| fs.volume().checkpoint().unwrap(),
        |fs| {
            // The store hears of the size before the inode is folded.
            fs.write("/d/f", [1; 9000]).unwrap();
            fs.truncate("/d/f", 5000).unwrap();
            fs.volume().checkpoint().unwrap();
        },
        |fs| fs.volume().sync().unwrap(),
    ];
    for (n, durable) in ways.iter().enumerate() {
        let (fs, dev) = root(64);
        fs.mkdir("/d", 0o755).unwrap();
        fs.volume().sync().unwrap();
        let d = fs.stat("/d").unwrap().ino;
        let birth = NewInodeAttrs { mode: 0o640, xattrs: &[(ACCESS, &[1; 44]), (b"user.a", b"value")] };
        let flags = libc::O_CREAT | libc::O_RDWR;
        fs.volume().node_create(&root_user, d, b"f", birth, flags).unwrap();
        fs.volume().node_create(&root_user, d, b"taken", birth, flags).unwrap();
        let big = vec![2; 3700];
        let of_dir = NewInodeAttrs { mode: 0o750, xattrs: &[(DEFAULT, &big), (ACCESS, &big)] };
        fs.volume().node_mkdir(&root_user, d, b"sub", of_dir).unwrap();
        fs.removexattr("/d/taken", ACCESS).unwrap();
        fs.removexattr("/d/taken", b"user.a").unwrap();
        fs.open("/d/taken", &OpenOptions::new()).unwrap().sync_all().unwrap();
        durable(&fs);
        for c in [after_crash(&dev), crate::reopen(fs, &dev)] {
            assert_eq!(c.getxattr("/d/f", ACCESS).unwrap(), [1; 44], "way {n}");
            assert_eq!(c.getxattr("/d/f", b"user.a").unwrap(), b"value");
            assert_eq!(c.stat("/d/f").unwrap().mode & 0o7777, 0o640);
            // What a call took away does not come back when the inode is folded.
            assert_eq!(errno(c.getxattr("/d/taken", ACCESS)), libc::ENODATA, "way {n}");
            if c.stat("/d/sub").is_ok() {
                assert_eq!(c.getxattr("/d/sub", DEFAULT).unwrap(), big);
            } else {
                assert_eq!(n, 1, "only an fsync of another name may leave it behind");
            }
        }
    }
}

/// What no group can hold, or nobody may set, is refused before anything is made; a file that was
/// there is left alone.
#[test]
fn what_cannot_be_born_is_refused_whole() {
    use lanefs::{Cred, NewInodeAttrs};
    let (fs, _dev) = root(64);
    let dir = fs.stat("/").unwrap().ino;
    let user = Cred::user(5, 5, &[]);
    fs.chmod("/", 0o777).unwrap();
    let big = vec![3; 3900];
    type Pairs<'a> = &'a [(&'a [u8], &'a [u8])];
    let list: [(Pairs<'_>, i32); 5] = [
        (&[(b"user.a", &big), (b"user.b", &big)], libc::ENOSPC),
        (&[(b"system.posix_acl_default", b"")], libc::EACCES),
        (&[(b"trusted.a", b"")], libc::EPERM),
        (&[(b"odd", b"")], libc::EOPNOTSUPP),
        (&[(b"", b"")], libc::ERANGE),
    ];
    for (xattrs, want) in list {
        let birth = NewInodeAttrs { mode: 0o600, xattrs };
        assert_eq!(errno(fs.volume().node_mknod(&user, dir, b"f", birth, 0)), want);
        assert_eq!(ls(&fs, "/"), Vec::<String>::new());
    }
    let set = fs.volume().node_setxattr(&Cred::root(), dir, b"system.posix_acl_default", &big, 0);
    assert_eq!(errno(set), libc::ENOSPC);
    fs.write("/there", b"").unwrap();
    let birth = NewInodeAttrs { mode: 0o600, xattrs: &[(b"user.a", b"")] };
    fs.volume().node_create(&Cred::root(), dir, b"there", birth, libc::O_CREAT | libc::O_RDWR).unwrap();
    assert_eq!(errno(fs.getxattr("/there", b"user.a")), libc::ENODATA);
}

/// Written, cut and not written back: the size of the cut must not become durable without the
/// content, or zeros would stand where data was.
#[test]
fn a_truncated_file_is_not_found_longer_than_what_was_written_back() {
    let (fs, dev) = root(64);
    let f = fs.create("/f").unwrap();
    f.sync_all().unwrap();
    f.write_all_at(&[1; 14_000], 0).unwrap();
    f.set_len(11_000).unwrap();
    fs.volume().checkpoint().unwrap();
    let found = after_crash(&dev).read("/f").unwrap();
    assert!(found.is_empty() || found == [1; 11_000], "{} bytes, some are zeros", found.len());
}

/// The store had the new size, and the block of before: the page that was cut was only in memory. A
/// file that grew without its last page being looked at showed the old bytes.
#[test]
fn what_a_truncation_cut_off_stays_away_when_the_file_grows_after_a_crash() {
    type Grow = fn(&lanefs::File);
    let ways: [(&str, Grow); 5] = [
        ("truncate", |f| f.set_len(9000).unwrap()),
        ("a write far behind", |f| f.write_all_at(b"end", 8997).unwrap()),
        ("allocate", |f| f.allocate(0, 8000, 1000).unwrap()),
        ("zero range", |f| f.allocate(libc::FALLOC_FL_ZERO_RANGE, 8000, 1000).unwrap()),
        ("append", |f| {
            f.append(&[0; 8900]).unwrap();
        }),
    ];
    let (fs, dev) = root(64);
    fs.write("/f", [0xaa; 6000]).unwrap();
    fs.volume().sync().unwrap();
    fs.truncate("/f", 100).unwrap();
    fs.volume().checkpoint().unwrap();
    let image = MemoryImage::capture(&*dev).unwrap();
    for (way, grow) in ways {
        let dev = Arc::new(image.fork().unwrap());
        let d: Arc<dyn Device> = dev.clone();
        let fs = Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root());
        let f = fs.open("/f", OpenOptions::new().read(true).write(true)).unwrap();
        assert_eq!(f.stat().unwrap().size, 100, "{way}: the checkpoint took the truncation along");
        grow(&f);
        let shown = |fs: &Fs| {
            let all = fs.read("/f").unwrap();
            assert!(all[..100] == [0xaa; 100] && all[100..8997].iter().all(|b| *b == 0), "{way}");
        };
        shown(&fs);
        // Nor when it is read from the device, after a crash or not.
        f.sync_all().unwrap();
        shown(&after_crash(&dev));
        drop(f);
        shown(&reopen(fs, &dev));
    }
}

/// An fsync logs a part of an epoch, and what comes behind it undoes that part: all of the epoch
/// comes to nothing, and must be committed all the same.
#[test]
fn what_undoes_an_fsynced_change_in_the_same_epoch_is_durable_after_a_sync() {
    let (fs, dev) = root(64);
    fs.mkdir("/A", 0o755).unwrap();
    fs.mkdir("/B", 0o755).unwrap();
    fs.write("/f", b"x").unwrap();
    let a = fs.stat("/A").unwrap().ino;
    fs.volume().sync().unwrap();
    let sync_root = || fs.open("/", OpenOptions::new().read(true)).unwrap().sync_all().unwrap();
    fs.rename2("/A", "/B", libc::RENAME_EXCHANGE).unwrap();
    sync_root();
    fs.rename2("/A", "/B", libc::RENAME_EXCHANGE).unwrap();
    fs.volume().sync().unwrap();
    assert_eq!(after_crash(&dev).stat("/A").unwrap().ino, a);
    fs.link("/f", "/g").unwrap();
    sync_root();
    fs.unlink("/g").unwrap();
    fs.volume().sync().unwrap();
    assert_eq!(ls(&after_crash(&dev), "/"), ["A", "B", "f"]);
}

/// Also a sync that has nothing to write: what was promised before may be gone.
#[test]
fn no_sync_of_a_broken_or_closed_volume_succeeds() {
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, Plan};
    use std::sync::Arc;
    let make = || {
        let dev = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
        let d: Arc<dyn Device> = dev.clone();
        lanefs_store::Store::format(std::slice::from_ref(&d), &Default::default()).unwrap();
        let v = lanefs::Volume::open_devices(vec![d], &crate::options()).unwrap();
        let fs = v.as_user(lanefs::Cred::root());
        let f = fs.create("/f").unwrap();
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        f.sync_all().unwrap();
        (fs, f, dev)
    };
    let (fs, f, dev) = make();
    fs.chmod("/f", 0o600).unwrap();
    fs.volume().sync().unwrap();
    dev.set_plan(Plan::none().nth(Kind::Flush, 0, Fault::Error(libc::EIO)));
    fs.volume().checkpoint().expect_err("its flush failed");
    let failed = |r: lanefs::Result<()>, why: &str| assert_eq!(r.expect_err(why).errno(), libc::EIO, "{why}");
    for _ in 0..2 {
        failed(fs.volume().sync(), "the volume is broken");
        failed(f.sync_all(), "the volume is broken");
        failed(f.sync_data(), "the volume is broken");
    }
    let (fs, f, _) = make();
    fs.volume().close().unwrap();
    for _ in 0..2 {
        failed(f.sync_all(), "the volume is closed");
        failed(f.sync_data(), "the volume is closed");
    }
}

/// A directory of which nothing but names changed is on no list but that of its names, each time
/// anew.
#[test]
fn a_sync_makes_the_time_of_a_directory_durable_of_which_only_names_changed() {
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    for n in 0..3 {
        fs.set_times("/d", None, Some(lanefs::SetTime::At(1000 * n)), true).unwrap();
        fs.volume().sync().unwrap();
        assert_eq!(after_crash(&dev).stat("/d").unwrap().mtime, 1000 * n);
        if n % 2 == 0 {
            fs.write("/d/name", b"").unwrap()
        } else {
            fs.unlink("/d/name").unwrap()
        }
        let mtime = fs.stat("/d").unwrap().mtime;
        assert!(mtime > 1000 * n);
        fs.volume().sync().unwrap();
        assert_eq!(after_crash(&dev).stat("/d").unwrap().mtime, mtime, "round {n}");
    }
}

#[test]
fn a_closed_volume_lets_go_of_its_image() {
    // A clone, or a handle, kept the image open and locked until the last of them was dropped.
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    Volume::create(&[&image], 64 << 20).unwrap();
    let v = Volume::open(&[&image], &options()).unwrap();
    let other = v.clone();
    let file = v.fs().create("/f").unwrap();
    file.write_all_at(b"content", 0).unwrap();
    assert_eq!(Volume::open(&[&image], &options()).unwrap_err().errno(), libc::EBUSY);
    v.close().unwrap();
    let again = Volume::open(&[&image], &options()).unwrap();
    assert_eq!(again.fs().read("/f").unwrap(), b"content");
    assert_eq!(errno(file.sync_all()), libc::EIO);
    assert_eq!(errno(other.fs().write("/g", b"")), libc::EIO);
    again.shutdown();
    again.close().unwrap();
    drop((v, other, file));
    drop(Volume::open(&[&image], &options()).unwrap());
}

/// A file whose map the device does not read holds back its own content, and nobody else's: not at
/// a sync, not where it took another file's name, and not at a close.
#[test]
fn what_one_file_cannot_say_holds_back_nobody_else() {
    for rename in [false, true] {
        let faulty = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
        let dev: Arc<dyn Device> = faulty.clone();
        Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
        let opened = || Volume::open_devices(vec![dev.clone()], &options()).unwrap().as_user(Cred::root());
        let fs = opened();
        let f = fs.create("/bad").unwrap();
        // Too many pieces for the inode's own block.
        (0..2000).for_each(|n| f.write_all_at(b"x", n * 8192).unwrap());
        fs.write("/old", b"old").unwrap();
        drop(f);
        fs.volume().close().unwrap();
        drop(fs);
        let fs = opened();
        let f = fs.open("/bad", OpenOptions::new().write(true)).unwrap();
        // Behind the end: a write before it would look in the map whether the page is a hole.
        f.write_all_at(&[1; 4096], 2000 * 8192).unwrap();
        let make = |name: &str| (0..20).for_each(|n| fs.write(format!("/{name}{n}"), b"content").unwrap());
        let left = |name: &str| {
            let left = after_crash(faulty.inner());
            (0..20).for_each(|n| assert_eq!(left.read(format!("/{name}{n}")).unwrap(), b"content"));
        };
        make("a");
        if rename {
            fs.rename("/bad", "/old").unwrap();
        }
        // Its map is what is read first; nothing else has to be. Twice with the others, and twice
        // when it is by itself.
        let often = When { times: 4, ..When::default() };
        faulty.set_plan(Plan::none().rule(Kind::Read, often, Fault::Error(libc::EIO)));
        assert_eq!(errno(fs.volume().sync()), libc::EIO, "rename {rename}");
        left("a");
        let map = faulty.fired()[0].offset;
        faulty.set_plan(Plan::none().range(Kind::Read, map..map + 4096, Fault::Error(libc::EIO)));
        make("b");
        if rename {
            fs.rename("/old", "/bad").unwrap();
            fs.write("/old", b"").unwrap();
            fs.rename("/bad", "/old").unwrap();
        }
        assert_eq!(errno(fs.volume().sync()), libc::EIO, "rename {rename}");
        left("b");
        make("c");
        assert_eq!(errno(fs.volume().close()), libc::EIO, "rename {rename}");
        left("c");
    }
}

/// Each was a trip to the device: inodes of files with a piece of content beside their attributes
/// have a block of their own.
#[test]
fn files_of_a_directory_are_looked_at_with_few_reads() {
    let counting = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
    let dev: Arc<dyn Device> = counting.clone();
    Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
    let opened = || Volume::open_devices(vec![dev.clone()], &options()).unwrap().as_user(Cred::root());
    let fs = opened();
    (0..600).for_each(|n| fs.write(format!("/{n}"), vec![7; 6000]).unwrap());
    fs.volume().close().unwrap();
    drop(fs);
    let fs = opened();
    let names = super::ls(&fs, "/");
    let before = counting.requests()[Kind::Read as usize];
    names.iter().for_each(|name| assert_eq!(fs.stat(format!("/{name}")).unwrap().size, 6000));
    let reads = counting.requests()[Kind::Read as usize] - before;
    assert!(reads < 100, "{reads} reads for {} files", names.len());
}

/// So was the content of each. What was brought along of files that are written over meanwhile, or
/// removed and made again, is not handed out for the new content.
#[test]
fn files_of_a_directory_are_read_with_few_reads() {
    let counting = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
    let dev: Arc<dyn Device> = counting.clone();
    Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
    let options = MountOptions { cache_size: 256 << 20, ..options() };
    let opened = || Volume::open_devices(vec![dev.clone()], &options).unwrap().as_user(Cred::root());
    let content = |n: usize, round: u8| vec![n as u8 ^ round; 5000 + 4096 * (n % 3)];
    let fs = opened();
    (0..600).for_each(|n| fs.write(format!("/{n}"), content(n, 0)).unwrap());
    fs.volume().close().unwrap();
    drop(fs);
    let fs = opened();
    let names: Vec<usize> = super::ls(&fs, "/").iter().map(|name| name.parse().unwrap()).collect();
    names.iter().for_each(|n| assert!(fs.stat(format!("/{n}")).unwrap().size >= 5000));
    let reads = || counting.requests()[Kind::Read as usize];
    let before = reads();
    for n in &names[..300] {
        assert_eq!(fs.read(format!("/{n}")).unwrap(), content(*n, 0));
    }
    let (reads, some) = (reads() - before, names.len() / 2);
    assert!(reads < some as u64 / 4, "{reads} reads for {some} files");
    // Others of the same zones, by turns: as they were, written over, and made anew.
    for (i, n) in names[300..].iter().enumerate() {
        let path = format!("/{n}");
        match i % 3 {
            0 => assert_eq!(fs.read(&path).unwrap(), content(*n, 0)),
            1 => fs.write(&path, content(*n, 1)).unwrap(),
            _ => {
                fs.unlink(&path).unwrap();
                fs.write(&path, content(*n, 1)).unwrap();
            }
        }
        if i % 50 == 0 {
            fs.volume().sync().unwrap();
            fs.volume().checkpoint().unwrap();
        }
    }
    fs.volume().close().unwrap();
    drop(fs);
    let fs = opened();
    for (i, n) in names.iter().enumerate() {
        let round = u8::from(i >= 300 && (i - 300) % 3 > 0);
        assert_eq!(fs.read(format!("/{n}")).unwrap(), content(*n, round), "file {n}");
    }
}

/// Whoever follows a change of devices may fail to; the devices are as they should be all the same.
#[test]
fn a_panic_about_the_progress_comes_when_the_device_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let image = |name: &str| dir.path().join(name);
    let [old, new, third] = ["old", "new", "third"].map(|name| {
        let path = image(name);
        drop(lanefs_store::device::FileDevice::create(&path, 32 << 20).unwrap());
        path
    });
    let d: Arc<dyn Device> = Arc::new(lanefs_store::device::FileDevice::open(&old, false).unwrap());
    Store::format(&[d], &FormatOptions::default()).unwrap();
    let volume = Volume::open(&[&old], &options()).unwrap();
    volume.as_user(Cred::root()).write("/f", vec![7; 3 << 20]).unwrap();
    let replaced = || volume.replace_device(&old, &new, true, &|_, _| panic!("not told"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(replaced));
    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "not told");
    volume.replace_device(&new, &third, true, &|_, _| {}).unwrap();
    volume.grow(Some(64 << 20)).unwrap();
    volume.close().unwrap();
    drop(volume);
    let volume = Volume::open(&[&third], &options()).unwrap();
    assert_eq!(volume.as_user(Cred::root()).read("/f").unwrap(), vec![7; 3 << 20]);
}
