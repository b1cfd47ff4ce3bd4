//! Attributes, permissions, extended attributes.

use crate::{errno, reopen, root};
use lanefs::{Cred, OpenOptions, SetTime};

#[test]
fn attributes_are_kept_to_the_nanosecond() {
    let (fs, dev) = root(64);
    fs.write("/f", b"x").unwrap();
    fs.chmod("/f", 0o4751).unwrap();
    fs.chown("/f", Some(1000), Some(2000), true).unwrap();
    fs.chmod("/f", 0o6755).unwrap();
    fs.set_times("/f", Some(SetTime::At(-1)), Some(SetTime::At(1_234_567_890_123_456_789)), true).unwrap();
    let fs = reopen(fs, &dev);
    let s = fs.stat("/f").unwrap();
    assert_eq!((s.mode & 0o7777, s.uid, s.gid), (0o6755, 1000, 2000));
    assert_eq!((s.atime, s.mtime), (-1, 1_234_567_890_123_456_789));
    assert!(s.ctime >= s.btime);
}

#[test]
fn permissions_are_checked_for_ordinary_users() {
    let (fs, _d) = root(64);
    let alice = fs.volume().as_user(Cred::user(1, 10, &[20]));
    let bob = fs.volume().as_user(Cred::user(2, 11, &[]));
    fs.mkdir("/home", 0o777).unwrap();
    alice.write("/home/a", b"secret").unwrap();
    assert_eq!(alice.stat("/home/a").unwrap().uid, 1);
    alice.chmod("/home/a", 0o640).unwrap();
    assert_eq!(errno(bob.read("/home/a")), libc::EACCES);
    assert_eq!(errno(bob.chmod("/home/a", 0o777)), libc::EPERM);
    assert_eq!(errno(bob.truncate("/home/a", 0)), libc::EACCES);
    assert_eq!(errno(alice.chown("/home/a", Some(2), None, true)), libc::EPERM);
    alice.chown("/home/a", None, Some(20), true).unwrap();
    // Sticky: only owners remove.
    fs.chmod("/home", 0o1777).unwrap();
    assert_eq!(errno(bob.unlink("/home/a")), libc::EPERM);
    assert_eq!(errno(bob.rename("/home/a", "/home/b")), libc::EPERM);
    bob.write("/home/b", b"").unwrap();
    assert_eq!(errno(bob.rename("/home/b", "/home/a")), libc::EPERM);
    fs.chmod("/home", 0o755).unwrap();
    assert_eq!(errno(bob.write("/home/c", b"")), libc::EACCES);
    assert_eq!(errno(alice.unlink("/home/a")), libc::EACCES);
    fs.mkdir("/shut", 0o700).unwrap();
    assert_eq!(errno(alice.stat("/shut/x")), libc::EACCES);
    assert_eq!(errno(alice.read_dir_from("/shut", 0, &mut |_| true)), libc::EACCES);
}

#[test]
fn a_setgid_directory_hands_its_group_on_and_writes_drop_privilege() {
    let (fs, _d) = root(64);
    fs.mkdir("/g", 0o777).unwrap();
    fs.chown("/g", None, Some(77), true).unwrap();
    fs.chmod("/g", 0o2777).unwrap();
    let u = fs.volume().as_user(Cred::user(5, 5, &[]));
    u.mkdir("/g/sub", 0o755).unwrap();
    let s = u.stat("/g/sub").unwrap();
    assert_eq!((s.gid, s.mode & 0o7777), (77, 0o2755));
    u.write("/g/f", b"x").unwrap();
    u.chmod("/g/f", 0o4755).unwrap();
    u.open("/g/f", OpenOptions::new().write(true)).unwrap().write_all_at(b"y", 0).unwrap();
    assert_eq!(u.stat("/g/f").unwrap().mode & 0o7777, 0o755);
}

#[test]
fn extended_attributes_of_all_sizes_survive() {
    let (fs, dev) = root(64);
    fs.write("/f", b"").unwrap();
    fs.mkdir("/d", 0o755).unwrap();
    assert_eq!(errno(fs.getxattr("/f", b"user.none")), libc::ENODATA);
    assert_eq!(errno(fs.setxattr("/f", b"odd.name", b"", 0)), libc::EOPNOTSUPP);
    fs.setxattr("/f", b"user.small", b"v", 0).unwrap();
    fs.setxattr("/f", b"user.big", &[3; 60_000], 0).unwrap();
    fs.setxattr("/f", b"trusted.t", b"", 0).unwrap();
    fs.setxattr("/d", b"user.dir", b"also", 0).unwrap();
    assert_eq!(errno(fs.setxattr("/f", b"user.small", b"w", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(errno(fs.setxattr("/f", b"user.other", b"w", libc::XATTR_REPLACE)), libc::ENODATA);
    let both = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    assert_eq!(errno(fs.setxattr("/f", b"user.small", b"w", both)), libc::EEXIST);
    assert_eq!(errno(fs.setxattr("/f", b"user.other", b"w", both)), libc::ENODATA);
    assert_eq!(errno(fs.setxattr("/f", b"user.huge", &vec![0; 65537], 0)), libc::E2BIG);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.getxattr("/f", b"user.big").unwrap(), vec![3; 60_000]);
    assert_eq!(fs.getxattr("/d", b"user.dir").unwrap(), b"also");
    assert_eq!(fs.listxattr("/f").unwrap().len(), 3);
    let u = fs.volume().as_user(Cred::user(9, 9, &[]));
    assert_eq!(u.listxattr("/f").unwrap().len(), 2);
    assert_eq!(errno(u.getxattr("/f", b"trusted.t")), libc::ENODATA);
    fs.removexattr("/f", b"user.big").unwrap();
    assert_eq!(errno(fs.removexattr("/f", b"user.big")), libc::ENODATA);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.listxattr("/f").unwrap().len(), 2);
}

#[test]
fn advisory_locks_exclude_each_other_and_go_with_the_handle() {
    use lanefs::locks::Lock;
    let (fs, _d) = root(64);
    let a = fs.create("/l").unwrap();
    let b = fs.open("/l", &OpenOptions::new()).unwrap();
    a.lock(Lock::Shared, false).unwrap();
    b.lock(Lock::Shared, false).unwrap();
    assert_eq!(errno(a.lock(Lock::Exclusive, false)), libc::EWOULDBLOCK);
    drop(b);
    a.lock(Lock::Exclusive, false).unwrap();
    let c = fs.open("/l", &OpenOptions::new()).unwrap();
    assert_eq!(errno(c.lock(Lock::Shared, false)), libc::EWOULDBLOCK);
    a.unlock();
    c.lock(Lock::Shared, true).unwrap();
}

#[test]
fn setgid_of_a_prechecked_caller_is_left_alone() {
    // Through a mount only the effective group is known; the kernel looked at the others.
    let (fs, _dev) = root(16);
    fs.mkdir("/d", 0o777).unwrap();
    fs.chown("/d", None, Some(50), true).unwrap();
    fs.chmod("/d", 0o2777).unwrap();
    let dir = fs.stat("/d").unwrap().ino;
    let checked = Cred { prechecked: true, ..Cred::user(1000, 1000, &[]) };
    let make = |cred: &Cred, name: &[u8]| fs.volume().node_mknod(cred, dir, name, 0o2775, 0).unwrap();
    let stat = make(&checked, b"a");
    assert_eq!((stat.mode & 0o7777, stat.gid), (0o2775, 50));
    let stat = make(&Cred::user(1000, 1000, &[]), b"b");
    assert_eq!((stat.mode & 0o7777, stat.gid), (0o775, 50), "not in the group, and nobody checked");
}

#[test]
fn noatime_covers_files_and_directories() {
    use lanefs_store::device::Device;
    for noatime in [false, true] {
        let (v, dev) = crate::volume(16);
        v.close().unwrap();
        let d: std::sync::Arc<dyn Device> = dev.clone();
        let options = lanefs::MountOptions { noatime, ..crate::options() };
        let fs = lanefs::Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
        fs.mkdir("/d", 0o755).unwrap();
        fs.write("/d/f", b"content").unwrap();
        let long_ago = Some(lanefs::SetTime::At(1));
        for path in ["/d", "/d/f"] {
            fs.set_times(path, long_ago, None, true).unwrap();
        }
        crate::ls(&fs, "/d");
        fs.read("/d/f").unwrap();
        for path in ["/d", "/d/f"] {
            assert_eq!(fs.stat(path).unwrap().atime == 1, noatime, "{path}");
        }
    }
}

/// The stripes of the index hold times of changes of names; one that was set wins over older ones,
/// and loses to a change after it, even within one tick of the clock.
#[test]
fn a_directory_has_the_time_that_was_set_until_a_name_changes() {
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    for n in 0..40 {
        fs.write(format!("/d/f{n}"), b"x").unwrap();
    }
    let changed = fs.stat("/d").unwrap().mtime;
    fs.set_times("/d", None, Some(SetTime::At(5_000)), true).unwrap();
    assert_eq!(fs.stat("/d").unwrap().mtime, 5_000);
    assert!(fs.stat("/d").unwrap().ctime >= changed);
    fs.unlink("/d/f7").unwrap();
    let removed = fs.stat("/d").unwrap().mtime;
    assert!(removed >= changed, "{removed} {changed}");
    fs.set_times("/d", None, Some(SetTime::At(6_000)), true).unwrap();
    let fs = reopen(fs, &dev);
    assert_eq!(fs.stat("/d").unwrap().mtime, 6_000);
    fs.mkdir("/d/sub", 0o755).unwrap();
    // Not `removed`: in one tick with a time that was set, that is a nanosecond ahead of the clock,
    // and this mount knows of no time set before it.
    assert!(fs.stat("/d").unwrap().mtime >= changed);
}

/// Times from 1678 to 2262 are kept (SEMANTICS T4), so also those before 1970, whoever sets them
/// and whatever else is stamped.
#[test]
fn times_before_1970_are_kept() {
    let (fs, dev) = root(64);
    fs.write("/f", b"x").unwrap();
    fs.mkdir("/d", 0o755).unwrap();
    fs.write("/d/name", b"x").unwrap();
    let old = -304_084_799_500_000_000;
    let least = i64::MIN + 1;
    for t in [old, least, -1] {
        for path in ["/f", "/d"] {
            fs.set_times(path, Some(SetTime::At(t)), Some(SetTime::At(t)), true).unwrap();
            assert_eq!((fs.stat(path).unwrap().atime, fs.stat(path).unwrap().mtime), (t, t), "{path}");
        }
    }
    // Another thread's changes of everything else are noted beside the inode.
    std::thread::scope(|s| s.spawn(|| fs.chmod("/f", 0o600).unwrap()).join().unwrap());
    std::thread::scope(|s| s.spawn(|| fs.chmod("/d", 0o700).unwrap()).join().unwrap());
    assert_eq!((fs.stat("/f").unwrap().mtime, fs.stat("/d").unwrap().mtime), (-1, -1));
    let set = lanefs::SetAttr { ctime: Some(old), mtime: Some(SetTime::At(old)), ..Default::default() };
    let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
    f.set_attr(&Cred::root(), &set).unwrap();
    drop(f);
    for _ in 0..2 {
        let s = fs.stat("/f").unwrap();
        assert_eq!((s.atime, s.mtime, s.ctime), (-1, old, old));
        assert_eq!(fs.stat("/d").unwrap().mtime, -1);
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
    }
    let fs = reopen(fs, &dev);
    let s = fs.stat("/f").unwrap();
    assert_eq!((s.atime, s.mtime, s.ctime), (-1, old, old));
    assert_eq!(fs.stat("/d").unwrap().mtime, -1);
    // And what changes from now on is after that.
    fs.unlink("/d/name").unwrap();
    fs.write("/f", b"y").unwrap();
    assert!(
        fs.stat("/d").unwrap().mtime > 0
            && fs.stat("/f").unwrap().mtime > 0
            && fs.stat("/f").unwrap().ctime > 0
    );
}

#[test]
fn what_was_removed_is_free_when_somebody_asks() {
    let (fs, _dev) = crate::root(64);
    let v = fs.volume().clone();
    let before = v.statfs().unwrap().free;
    for turn in 0..3 {
        fs.write("/f", vec![7; 8 << 20]).unwrap();
        v.sync().unwrap();
        assert!(v.statfs().unwrap().free < before - 2000);
        let open = fs.open("/f", &lanefs::OpenOptions { flags: libc::O_RDONLY, mode: 0 }).unwrap();
        fs.unlink("/f").unwrap();
        assert!(v.statfs().unwrap().free < before - 2000, "it is open");
        drop(open);
        let mut free = 0;
        // The last checkpoint took its time, and nobody is held up by one after the other.
        for _ in 0..1000 {
            free = v.statfs().unwrap().free;
            if free + 50 > before {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(free + 50 > before, "turn {turn}: {free} of {before}");
    }
}

#[test]
fn attributes_with_nothing_behind_the_prefix_are_refused_as_on_linux() {
    let (fs, _dev) = crate::root(64);
    fs.write("/f", b"").unwrap();
    for name in [&b"user."[..], b"trusted.", b"security."] {
        assert_eq!(errno(fs.setxattr("/f", name, b"v", 0)), libc::EINVAL, "{name:?}");
        assert_eq!(errno(fs.getxattr("/f", name)), libc::EINVAL, "{name:?}");
        assert_eq!(errno(fs.removexattr("/f", name)), libc::EINVAL, "{name:?}");
    }
    assert_eq!(errno(fs.setxattr("/f", b"nothing.", b"v", 0)), libc::EOPNOTSUPP);
    fs.setxattr("/f", b"user.a.", b"v", 0).unwrap();
    assert_eq!(fs.getxattr("/f", b"user.a.").unwrap(), b"v");
}

#[test]
fn what_is_opened_to_be_looked_at_needs_no_right_and_gives_none() {
    let (fs, _dev) = crate::root(64);
    fs.write("/f", b"12345").unwrap();
    fs.chmod("/f", 0).unwrap();
    fs.symlink("f", "/l").unwrap();
    fs.mknod("/p", libc::S_IFIFO, 0).unwrap();
    fs.mkdir("/d", 0o711).unwrap();
    fs.write("/d/x", b"x").unwrap();
    let user = fs.volume().as_user(Cred::user(5, 5, &[]));
    let look = |path, more| user.open(path, OpenOptions::new().custom_flags(libc::O_PATH | more));
    // Flags beside it do not count: nothing is emptied, and nothing made.
    let changing = libc::O_RDWR | libc::O_TRUNC | libc::O_CREAT | libc::O_APPEND;
    let held = [
        look("/f", 0).unwrap(),
        look("/f", changing).unwrap(),
        user.volume().node_open(user.cred(), fs.stat("/f").unwrap().ino, libc::O_PATH | changing).unwrap(),
    ];
    assert_eq!(errno(look("/none", changing)), libc::ENOENT);
    for f in &held {
        assert_eq!(f.stat().unwrap().size, 5);
        assert_eq!(errno(f.read_at(&mut [0], 0)), libc::EBADF);
        assert_eq!(errno(f.write_at(b"x", 0)), libc::EBADF);
        assert_eq!(errno(f.lseek(0, libc::SEEK_DATA)), libc::EBADF);
        assert_eq!(errno(f.lock(lanefs::locks::Lock::Shared, false)), libc::EBADF);
        assert_eq!(errno(f.lock_range(0..1, lanefs::locks::Lock::Shared, false)), libc::EBADF);
        let set = lanefs::SetAttr { mode: Some(0o600), ..Default::default() };
        assert_eq!(errno(f.set_attr(&Cred::root(), &set)), libc::EBADF);
    }
    assert_eq!(errno(look("/f", libc::O_DIRECTORY)), libc::ENOTDIR);
    assert_eq!(look("/l", libc::O_NOFOLLOW).unwrap().stat().unwrap().kind, lanefs::FileKind::Symlink);
    assert_eq!(look("/l", 0).unwrap().ino(), held[0].ino());
    assert_eq!(look("/p", 0).unwrap().stat().unwrap().kind, lanefs::FileKind::Fifo);
    // Paths begin in a directory that may be searched and not read.
    assert_eq!(errno(user.open_dir("/d")), libc::EACCES);
    let dir = lanefs::fs::Dir::of(&user, look("/d", 0).unwrap().into()).unwrap();
    assert_eq!(dir.read("x").unwrap(), b"x");
    assert_eq!(errno(dir.entries()), libc::EACCES);
    let file = look("/f", 0).unwrap().into();
    assert_eq!(errno(lanefs::fs::Dir::of(&user, file)), libc::ENOTDIR);
    let other = lanefs::Volume::in_memory(64 << 20).unwrap().fs();
    assert_eq!(errno(lanefs::fs::Dir::of(&other, look("/d", 0).unwrap().into())), libc::EXDEV);
}

#[test]
fn calls_by_path_change_a_link_itself_where_that_is_asked() {
    let (fs, _dev) = crate::root(64);
    fs.write("/f", b"12345").unwrap();
    fs.symlink("f", "/l").unwrap();
    fs.lsetxattr("/l", b"trusted.a", b"1", 0).unwrap();
    assert_eq!(fs.lgetxattr("/l", b"trusted.a").unwrap(), b"1");
    assert_eq!(errno(fs.getxattr("/l", b"trusted.a")), libc::ENODATA);
    assert_eq!(fs.llistxattr("/l").unwrap(), [b"trusted.a"]);
    assert!(fs.listxattr("/l").unwrap().is_empty());
    fs.lremovexattr("/l", b"trusted.a").unwrap();
    assert!(fs.llistxattr("/l").unwrap().is_empty());
    // What is returned is of what was changed.
    let owner = lanefs::SetAttr { uid: Some(7), ..Default::default() };
    let (link, file) = (fs.lstat("/l").unwrap().ino, fs.stat("/l").unwrap().ino);
    let changed = fs.set_attr("/l", false, &owner).unwrap();
    assert_eq!((changed.ino, changed.uid, fs.stat("/f").unwrap().uid), (link, 7, 0));
    let size = lanefs::SetAttr { size: Some(3), ..Default::default() };
    let changed = fs.set_attr("/l", true, &size).unwrap();
    assert_eq!((changed.ino, changed.size), (file, 3));
    let mode = lanefs::SetAttr { mode: Some(0o600), ..Default::default() };
    assert_eq!(errno(fs.set_attr("/l", false, &mode)), libc::EOPNOTSUPP);
    assert_eq!(fs.set_attr("/f", false, &mode).unwrap().mode & 0o7777, 0o600);
    // The mode of a link allows everything, that of the file does not.
    let user = fs.with_cred(Cred::user(5, 5, &[]));
    user.laccess("/l", libc::W_OK).unwrap();
    assert_eq!(errno(user.access("/l", libc::W_OK)), libc::EACCES);
}

/// Setgid without group-execute stayed whoever wrote; Linux leaves it to the file's group since
/// 6.2.
#[test]
fn setgid_that_is_no_program_goes_where_a_stranger_writes() {
    let (fs, _dev) = crate::root(64);
    let stranger = Cred::user(1, 10, &[]);
    let (first, second) = (Cred::user(1, 20, &[]), Cred::user(1, 10, &[5, 20]));
    let size = |n| lanefs::SetAttr { size: Some(n), ..Default::default() };
    type Change<'a> = (&'a str, &'a dyn Fn(&lanefs::Fs));
    let open = |u: &lanefs::Fs| u.open("/f", OpenOptions::new().write(true)).unwrap();
    let changes: [Change<'_>; 8] = [
        ("write", &|u| assert_eq!(open(u).write_at(b"x", 0).unwrap(), 1)),
        ("append", &|u| assert_eq!(open(u).append(b"x").unwrap(), 5)),
        ("set_len", &|u| open(u).set_len(3).unwrap()),
        ("truncate", &|u| u.truncate("/f", 3).unwrap()),
        ("set_attr", &|u| assert_eq!(open(u).set_attr(u.cred(), &size(3)).unwrap().size, 3)),
        ("O_TRUNC", &|u| drop(u.open("/f", OpenOptions::new().write(true).truncate(true)).unwrap())),
        ("allocate", &|u| open(u).allocate(0, 0, 100).unwrap()),
        ("chown", &|u| u.chown("/f", Some(1), None, true).unwrap()),
    ];
    for (what, change) in changes {
        let root = Cred::root();
        // mode, who changes it, mode then; the superuser's writes leave all, its chown not setuid.
        for (mode, who, left) in [
            (0o2646, &stranger, 0o646),
            (0o6646, &stranger, 0o646),
            (0o2646, &first, 0o2646),
            (0o2646, &second, 0o2646),
            (0o6646, &second, 0o2646),
            (0o2656, &second, 0o656),
            (0o2646, &root, 0o2646),
            (0o6656, &root, if what == "chown" { 0o656 } else { 0o6656 }),
        ] {
            fs.write("/f", b"12345").unwrap();
            fs.chown("/f", Some(1), Some(20), true).unwrap();
            fs.chmod("/f", mode).unwrap();
            change(&fs.volume().as_user(who.clone()));
            assert_eq!(fs.stat("/f").unwrap().mode & 0o7777, left, "{what} of {mode:o} by {who:?}");
        }
    }
}

/// An ACL as the kernel hands it over: tags, permissions and ids.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

/// What a mode says, as an ACL.
fn plain(mode: u16) -> Vec<u8> {
    let none = u32::MAX;
    acl(&[(1, mode >> 6 & 7, none), (4, mode >> 3 & 7, none), (32, mode & 7, none)])
}

/// One that says more than a mode: its mask is 6, and what it shows 0760.
fn with_a_user(mode: u16) -> Vec<u8> {
    let none = u32::MAX;
    acl(&[
        (1, mode >> 6 & 7, none),
        (2, 6, 1000),
        (4, 5, none),
        (16, mode >> 3 & 7, none),
        (32, mode & 7, none),
    ])
}

/// Programs copy a mode as an ACL. It was stored as an attribute like others: the mode stayed as it
/// was, and the file was shown with an ACL.
#[test]
fn an_access_acl_sets_the_mode_and_is_kept_where_it_says_more() {
    const ACCESS: &[u8] = lanefs::acl::ACCESS;
    let (fs, dev) = root(64);
    fs.write("/f", b"").unwrap();
    fs.chmod("/f", 0o4600).unwrap();
    let mode = |fs: &lanefs::Fs| fs.stat("/f").unwrap().mode & 0o7777;
    fs.setxattr("/f", ACCESS, &plain(0o644), 0).unwrap();
    assert_eq!(mode(&fs), 0o4644);
    assert_eq!(fs.listxattr("/f").unwrap(), Vec::<Vec<u8>>::new());
    // One that says more, by whichever way it comes.
    let ino = fs.stat("/f").unwrap().ino;
    let user = Cred::root();
    let ways: [&dyn Fn() -> lanefs::Result<()>; 4] = [
        &|| fs.setxattr("/f", ACCESS, &with_a_user(0o760), 0),
        &|| fs.lsetxattr("/f", ACCESS, &with_a_user(0o760), libc::XATTR_CREATE),
        &|| fs.volume().node_setxattr_and_mode(&user, ino, ACCESS, &with_a_user(0o760), 0),
        &|| fs.volume().node_set_access_acl(&user, ino, &with_a_user(0o760), false),
    ];
    for (n, set) in ways.iter().enumerate() {
        fs.chmod("/f", 0o4600).unwrap();
        set().unwrap();
        assert_eq!(mode(&fs), 0o4760, "way {n}");
        assert_eq!(fs.getxattr("/f", ACCESS).unwrap(), with_a_user(0o760), "way {n}");
    }
    // A mode moves what it shows: the mask, not the group's entry.
    let by_handle = |m| {
        let file = fs.open("/f", OpenOptions::new().write(true)).unwrap();
        let set = lanefs::SetAttr { mode: Some(m), ..Default::default() };
        file.set_attr(&user, &set).unwrap();
    };
    fs.chmod("/f", 0o640).unwrap();
    assert_eq!((mode(&fs), fs.getxattr("/f", ACCESS).unwrap()), (0o640, with_a_user(0o640)));
    by_handle(0o604);
    assert_eq!((mode(&fs), fs.getxattr("/f", ACCESS).unwrap()), (0o604, with_a_user(0o604)));
    let fs = reopen(fs, &dev);
    assert_eq!((mode(&fs), fs.getxattr("/f", ACCESS).unwrap()), (0o604, with_a_user(0o604)));
    // What the mode says takes an ACL away, and so does one without entries.
    fs.setxattr("/f", ACCESS, &plain(0o440), 0).unwrap();
    assert_eq!((mode(&fs), errno(fs.getxattr("/f", ACCESS))), (0o440, libc::ENODATA));
    fs.setxattr("/f", ACCESS, &with_a_user(0o777), 0).unwrap();
    fs.setxattr("/f", ACCESS, &acl(&[]), 0).unwrap();
    assert_eq!((mode(&fs), errno(fs.getxattr("/f", ACCESS))), (0o777, libc::ENODATA));
    fs.removexattr("/f", ACCESS).unwrap();
}

#[test]
fn an_acl_that_is_refused_leaves_the_mode() {
    use lanefs::acl::{ACCESS, DEFAULT};
    let (fs, _d) = root(64);
    let alice = fs.volume().as_user(Cred::user(1, 10, &[]));
    fs.mkdir("/d", 0o777).unwrap();
    alice.write("/d/f", b"").unwrap();
    alice.symlink("f", "/d/l").unwrap();
    fs.chmod("/d/f", 0o2660).unwrap();
    let bob = fs.volume().as_user(Cred::user(2, 11, &[]));
    let good = with_a_user(0o750);
    assert_eq!(errno(bob.setxattr("/d/f", ACCESS, &good, 0)), libc::EPERM);
    assert_eq!(errno(alice.setxattr("/d/f", ACCESS, &good[..good.len() - 1], 0)), libc::EINVAL);
    assert_eq!(errno(alice.setxattr("/d", DEFAULT, b"no ACL", 0)), libc::EINVAL);
    assert_eq!(errno(alice.setxattr("/d/f", ACCESS, b"none", 0)), libc::EINVAL);
    assert_eq!(errno(alice.setxattr("/d/f", DEFAULT, &good, 0)), libc::EACCES);
    assert_eq!(errno(alice.lsetxattr("/d/l", ACCESS, &good, 0)), libc::EOPNOTSUPP);
    // A change of which one part is refused changes nothing, the ACL neither.
    alice.setxattr("/d/f", ACCESS, &good, 0).unwrap();
    let both = lanefs::SetAttr { mode: Some(0o600), uid: Some(2), ..Default::default() };
    assert_eq!(errno(alice.set_attr("/d/f", true, &both)), libc::EPERM);
    assert_eq!(fs.stat("/d/f").unwrap().mode & 0o7777, 0o2750);
    assert_eq!(fs.getxattr("/d/f", ACCESS).unwrap(), good);
    // Setgid goes with an ACL, as with a mode, where the owner is not in the file's group.
    fs.chown("/d/f", None, Some(77), true).unwrap();
    fs.chmod("/d/f", 0o2750).unwrap();
    alice.setxattr("/d/f", ACCESS, &good, 0).unwrap();
    assert_eq!(fs.stat("/d/f").unwrap().mode & 0o7777, 0o750);
    fs.chmod("/d/f", 0o2750).unwrap();
    let ino = fs.stat("/d/f").unwrap().ino;
    fs.volume().node_set_access_acl(&Cred::root(), ino, &good, true).unwrap();
    assert_eq!(fs.stat("/d/f").unwrap().mode & 0o7777, 0o750);
}

/// A file that a crash took had a number and a generation, and the next one that was made had the
/// same ones: its handle led there.
#[test]
fn a_handle_of_a_file_that_a_crash_took_leads_to_no_other() {
    let (fs, dev) = root(64);
    fs.write("/kept", b"kept").unwrap();
    fs.volume().sync().unwrap();
    let of = |fs: &lanefs::Fs, name: &str| {
        let stat = fs.stat(name).unwrap();
        (stat.ino, fs.volume().handle_generation(&stat))
    };
    let kept = of(&fs, "/kept");
    let names: Vec<String> = (0..20).map(|n| format!("/{n}")).collect();
    let made = |fs: &lanefs::Fs| -> Vec<_> {
        names.iter().for_each(|name| drop(fs.create(&**name).unwrap()));
        names.iter().map(|name| of(fs, name)).collect()
    };
    let before = made(&fs);
    // Nothing is mounted again within a tick of the clock.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let left = crate::after_crash(&dev);
    assert_eq!(of(&left, "/kept"), kept, "it leads to its file for good");
    let after = made(&left);
    let numbers = |of: &[(lanefs::Ino, u32)]| of.iter().map(|h| h.0).collect::<Vec<_>>();
    assert_eq!(numbers(&before), numbers(&after), "this looks at nothing where no number comes again");
    assert!(before.iter().all(|handle| !after.contains(handle)));
}
