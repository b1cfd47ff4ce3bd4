//! Names: making, removing, linking, moving, listing.

use crate::{after_crash, errno, ls, reopen, root};
use lanefs::{Cred, FileKind, OpenOptions};

#[test]
fn a_tree_is_built_listed_and_still_there_after_a_remount() {
    let (fs, dev) = root(64);
    fs.mkdir_all("/a/b/c", 0o755).unwrap();
    fs.write("/a/b/c/hello", b"world").unwrap();
    fs.symlink("b/c", "/a/short").unwrap();
    fs.link("/a/b/c/hello", "/a/other").unwrap();
    fs.mknod("/a/pipe", libc::S_IFIFO | 0o600, 0).unwrap();
    let check = |fs: &lanefs::Fs| {
        assert_eq!(ls(fs, "/a"), ["b", "other", "pipe", "short"]);
        assert_eq!(fs.read("/a/short/hello").unwrap(), b"world");
        assert_eq!(fs.stat("/a/other").unwrap().nlink, 2);
        assert_eq!(fs.stat("/a").unwrap().nlink, 3);
        assert_eq!(fs.stat("/").unwrap().nlink, 3);
        assert_eq!(fs.lstat("/a/short").unwrap().kind, FileKind::Symlink);
        assert_eq!(fs.readlink("/a/short").unwrap(), b"b/c");
        assert_eq!(fs.lstat("/a/pipe").unwrap().kind, FileKind::Fifo);
        assert_eq!(fs.stat("/a/b/../b/./c//hello").unwrap().size, 5);
    };
    check(&fs);
    let fs = reopen(fs, &dev);
    check(&fs);
    let fs = reopen(fs, &dev);
    check(&fs);
}

#[test]
fn failures_have_the_errno_linux_gives() {
    let (fs, _d) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    fs.write("/f", b"x").unwrap();
    assert_eq!(errno(fs.mkdir("/d", 0o755)), libc::EEXIST);
    assert_eq!(errno(fs.mkdir("/", 0o755)), libc::EEXIST);
    assert_eq!(errno(fs.mkdir("/no/d", 0o755)), libc::ENOENT);
    assert_eq!(errno(fs.mkdir("/f/d", 0o755)), libc::ENOTDIR);
    assert_eq!(errno(fs.unlink("/d")), libc::EISDIR);
    assert_eq!(errno(fs.rmdir("/f")), libc::ENOTDIR);
    assert_eq!(errno(fs.rmdir("/")), libc::EBUSY);
    assert_eq!(errno(fs.rmdir("/d/.")), libc::EINVAL);
    assert_eq!(errno(fs.unlink("/nothing")), libc::ENOENT);
    assert_eq!(errno(fs.stat(&*"n".repeat(256))), libc::ENAMETOOLONG);
    assert_eq!(errno(fs.stat("")), libc::ENOENT);
    fs.write(&*"n".repeat(255), b"").unwrap();
    assert_eq!(errno(fs.link("/d", "/e")), libc::EPERM);
    assert_eq!(errno(fs.link("/f", "/d")), libc::EEXIST);
    assert_eq!(errno(fs.open("/f", OpenOptions::new().write(true).create_new(true))), libc::EEXIST);
    assert_eq!(errno(fs.open("/d", OpenOptions::new().write(true))), libc::EISDIR);
    fs.symlink("/loop", "/loop").unwrap();
    assert_eq!(errno(fs.symlink("", "/f/under")), libc::ENOENT);
    assert_eq!(errno(fs.symlink(&*"n".repeat(4096), "/none/under")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs.stat("/loop")), libc::ELOOP);
    assert_eq!(errno(fs.open("/loop", OpenOptions::new().custom_flags(libc::O_NOFOLLOW))), libc::ELOOP);
    fs.write("/d/in", b"").unwrap();
    assert_eq!(errno(fs.rmdir("/d")), libc::ENOTEMPTY);
    assert_eq!(errno(fs.rename("/d", "/d/in/deeper")), libc::ENOTDIR);
    fs.mkdir("/d/sub", 0o755).unwrap();
    assert_eq!(errno(fs.rename("/d", "/d/sub/d")), libc::EINVAL);
    assert_eq!(errno(fs.rename("/d", "/f")), libc::ENOTDIR);
    assert_eq!(errno(fs.rename("/f", "/d")), libc::EISDIR);
    fs.mkdir("/empty", 0o755).unwrap();
    assert_eq!(errno(fs.rename("/empty", "/d")), libc::ENOTEMPTY);
    assert_eq!(errno(fs.rename2("/f", "/d/in", libc::RENAME_NOREPLACE)), libc::EEXIST);
    assert_eq!(errno(fs.rename2("/f", "/none", libc::RENAME_EXCHANGE)), libc::ENOENT);
}

#[test]
fn rename_moves_replaces_and_exchanges() {
    let (fs, dev) = root(64);
    fs.mkdir("/a", 0o755).unwrap();
    fs.mkdir("/b", 0o755).unwrap();
    fs.write("/a/f", b"new").unwrap();
    fs.write("/b/f", b"old").unwrap();
    let held = fs.open("/b/f", &OpenOptions::new()).unwrap();
    fs.rename("/a/f", "/b/f").unwrap();
    assert_eq!(fs.read("/b/f").unwrap(), b"new");
    let mut buf = [0; 3];
    held.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"old", "the replaced file lives while it is open");
    assert_eq!(held.stat().unwrap().nlink, 0);
    drop(held);
    // A directory moves, and its `..` with it.
    fs.mkdir("/a/d", 0o755).unwrap();
    fs.write("/a/d/x", b"1").unwrap();
    fs.rename("/a/d", "/b/d").unwrap();
    assert_eq!(fs.stat("/b/d/..").unwrap().ino, fs.stat("/b").unwrap().ino);
    assert_eq!((fs.stat("/a").unwrap().nlink, fs.stat("/b").unwrap().nlink), (2, 3));
    // Over an empty directory.
    fs.mkdir("/a/e", 0o755).unwrap();
    fs.rename("/b/d", "/a/e").unwrap();
    assert_eq!(fs.read("/a/e/x").unwrap(), b"1");
    // Exchange of a directory and a file.
    fs.rename2("/a/e", "/b/f", libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(fs.read("/a/e").unwrap(), b"new");
    assert_eq!(fs.read("/b/f/x").unwrap(), b"1");
    assert_eq!(fs.stat("/b/f/..").unwrap().ino, fs.stat("/b").unwrap().ino);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.read("/a/e").unwrap(), b"new");
    assert_eq!(fs.read("/b/f/x").unwrap(), b"1");
    assert_eq!((fs.stat("/a").unwrap().nlink, fs.stat("/b").unwrap().nlink), (2, 3));
    assert_eq!(fs.stat("/b/f/..").unwrap().ino, fs.stat("/b").unwrap().ino);
}

#[test]
fn names_of_every_byte_survive() {
    let (fs, dev) = root(64);
    for b in (1..=255u8).filter(|b| *b != b'/') {
        fs.write(&[b'x', b][..], [b]).unwrap();
    }
    let fs = reopen(fs, &dev);
    for b in (1..=255u8).filter(|b| *b != b'/') {
        assert_eq!(fs.read(&[b'x', b][..]).unwrap(), [b]);
    }
}

#[test]
fn cookies_stay_and_a_listing_goes_on_where_it_was_also_after_a_remount() {
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    for i in 0..2000 {
        fs.write(&*format!("/d/file-{i}"), b"").unwrap();
    }
    let list = |fs: &lanefs::Fs, from: u64, n: usize| {
        let mut v = Vec::new();
        fs.read_dir_from("/d", from, &mut |e| {
            v.push((e.cookie, e.name.to_vec(), e.ino));
            v.len() < n
        })
        .unwrap();
        v
    };
    let all = list(&fs, 0, usize::MAX);
    assert_eq!(all.len(), 2002);
    assert!(all.is_sorted_by(|a, b| a.0 < b.0));
    let half = all[999].0;
    assert_eq!(list(&fs, half, usize::MAX), all[1000..]);
    assert_eq!(list(&fs, half, 5), all[1000..1005]);
    let fs = reopen(fs, &dev);
    assert_eq!(list(&fs, 0, usize::MAX), all);
    for (_, name, _) in all.iter().skip(2).step_by(2) {
        fs.unlink([b"/d/", name.as_slice()].concat()).unwrap();
    }
    let left: Vec<_> = all.iter().take(2).chain(all.iter().skip(3).step_by(2)).cloned().collect();
    assert_eq!(list(&fs, 0, usize::MAX), left);
    let fs = reopen(fs, &dev);
    assert_eq!(list(&fs, 0, usize::MAX), left);
    assert_eq!(list(&fs, half, usize::MAX).len(), left.iter().filter(|e| e.0 > half).count());
}

#[test]
fn no_file_is_made_in_a_directory_that_is_gone() {
    let (fs, _) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    let dir = fs.open("/d", OpenOptions::new().read(true)).unwrap();
    fs.rmdir("/d").unwrap();
    let birth = || lanefs::NewInodeAttrs { mode: 0o600, xattrs: &[] };
    let made = fs.volume().node_tmpfile(fs.cred(), dir.ino(), birth(), libc::O_TMPFILE | libc::O_RDWR);
    assert_eq!(made.unwrap_err().errno(), libc::ENOENT);
}

#[test]
fn an_unnamed_file_can_get_a_name() {
    let (fs, dev) = root(64);
    let f = fs.open("/", OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE)).unwrap();
    f.write_all_at(b"from nowhere", 0).unwrap();
    assert_eq!(f.stat().unwrap().nlink, 0);
    fs.volume().tick().unwrap();
    fs.volume().tick().unwrap();
    f.link_to(fs.cred(), lanefs::Ino(1), b"named").unwrap();
    drop(f);
    fs.volume().tick().unwrap();
    fs.volume().tick().unwrap();
    assert_eq!(fs.read("/named").unwrap(), b"from nowhere");
    let fs = reopen(fs, &dev);
    assert_eq!(fs.read("/named").unwrap(), b"from nowhere");
    assert_eq!(fs.stat("/named").unwrap().nlink, 1);
}

#[test]
fn deleted_files_give_their_space_back_and_stay_while_open() {
    let (fs, dev) = root(64);
    fs.volume().checkpoint().unwrap();
    let free = fs.statfs().unwrap().free;
    let f = fs.create("/big").unwrap();
    f.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    f.sync_all().unwrap();
    assert!(fs.statfs().unwrap().free + 2000 < free);
    fs.unlink("/big").unwrap();
    for _ in 0..4 {
        fs.volume().tick().unwrap();
    }
    let mut b = [0; 10];
    f.read_exact_at(&mut b, 4 << 20).unwrap();
    assert_eq!(b, [7; 10]);
    drop(f);
    for _ in 0..6 {
        fs.volume().tick().unwrap();
    }
    let now = fs.statfs().unwrap().free;
    assert!(now + 16 > free, "{now} of {free} blocks are free again");
    let fs = after_crash(&dev);
    assert_eq!(errno(fs.stat("/big")), libc::ENOENT);
}

/// A listing from the largest offset on overflowed, and without assertions began again.
#[test]
fn nothing_is_listed_behind_the_last_offset() {
    let v = lanefs::Volume::in_memory(64 << 20).unwrap();
    let fs = v.fs();
    fs.write("/a", b"x").unwrap();
    for from in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1] {
        fs.read_dir_from("/", from, &mut |e| panic!("{:?} is listed from {from} on", e.name)).unwrap();
    }
}

/// As Linux answers: whoever would make a file through a path that asks for a directory hears
/// EISDIR, others hear what is in the way.
#[test]
fn a_path_that_ends_in_a_slash_makes_no_file() {
    let (fs, _) = root(64);
    fs.write("/f", b"").unwrap();
    fs.mkdir("/d", 0o755).unwrap();
    for (target, name) in
        [("f/", "/lf"), ("d/", "/ld"), ("none/", "/ln"), ("lf", "/llf"), ("ld/", "/lld"), ("f/x", "/through")]
    {
        fs.symlink(target, name).unwrap();
    }
    let open = |path: &str, create: bool, new: bool| {
        let mut o = OpenOptions::new();
        o.read(true).write(create).create(create).create_new(new);
        fs.open(path, &o).map(|_| ()).map_err(|e| e.errno())
    };
    let names = ["/f/", "/d/", "/lf", "/ld", "/ln", "/llf", "/lld", "/lf/", "/none/", "/ld/", "/d/none/"];
    for name in names {
        assert_eq!(open(name, true, false), Err(libc::EISDIR), "{name}");
        let link = name.starts_with("/l") && !name.ends_with('/');
        assert_eq!(open(name, true, true), Err(if link { libc::EEXIST } else { libc::EISDIR }), "{name}");
    }
    for name in ["/f/", "/lf", "/llf", "/lf/", "/through"] {
        assert_eq!(open(name, false, false), Err(libc::ENOTDIR), "{name}");
    }
    assert_eq!(open("/through", true, false), Err(libc::ENOTDIR));
    for name in ["/d/", "/ld", "/lld", "/ld/"] {
        assert_eq!(open(name, false, false), Ok(()), "{name}");
    }
}

#[test]
fn options_mean_what_those_of_std_mean() {
    let (fs, _) = root(64);
    let user = fs.volume().as_user(Cred::user(1000, 1000, &[]));
    fs.write("/drop", b"").unwrap();
    fs.chmod("/drop", 0o222).unwrap();
    // Writing alone asks for no right to read, and gives none.
    let f = user.open("/drop", OpenOptions::new().write(true)).unwrap();
    f.write_all_at(b"in", 0).unwrap();
    assert_eq!(errno(f.read_at(&mut [0; 2], 0)), libc::EBADF);
    assert_eq!(errno(user.open("/drop", &OpenOptions::new())), libc::EACCES);
    assert_eq!(errno(user.open("/drop", OpenOptions::new().read(true).write(true))), libc::EACCES);
    user.open("/drop", OpenOptions::new().read(true).write(true).read(false)).unwrap();
    fs.open("/new", OpenOptions::new().write(true).create(true).create_new(false)).unwrap();
    fs.open("/new", OpenOptions::new().write(true).create_new(true).create_new(false)).unwrap();
}

#[test]
fn a_file_is_linked_in_its_own_volume_only_and_copied_into_any() {
    let ((fs, _one), (other, _two)) = (root(64), root(64));
    let f = fs.create("/f").unwrap();
    f.write_all_at(b"abc", 0).unwrap();
    let there = other.create("/f").unwrap();
    assert_eq!(f.ino(), there.ino());
    assert_eq!(errno(other.link_file(&f, "/g")), libc::EXDEV);
    fs.link_file(&f, "/g").unwrap();
    // One number in two volumes is not one file.
    assert_eq!(f.copy_range_to(0, &there, 0, 3).unwrap(), 3);
    assert_eq!(other.read("/f").unwrap(), b"abc");
    assert_eq!(errno(f.copy_range_to(0, &f, 1, 3)), libc::EINVAL);
}

#[test]
fn a_path_has_at_most_4095_bytes() {
    let (fs, _dev) = root(64);
    fs.write("/f", b"").unwrap();
    let path = |len: usize| "/".repeat(len - 1) + "f";
    fs.stat(&*path(4095)).unwrap();
    assert_eq!(errno(fs.stat(&*path(4096))), libc::ENAMETOOLONG);
}

/// Numbers of removed files are given out again, in this mount and in the next: else the inode
/// table would grow for ever. And what has such a number is a file like any other, also when its
/// inode is read again.
#[test]
fn numbers_of_removed_files_come_again() {
    let (mut fs, dev) = root(64);
    let mut highest = Vec::new();
    for round in 0..6 {
        if round == 3 {
            fs = reopen(fs, &dev);
        }
        let mut most = 0;
        for n in 0..300 {
            let name = format!("/{round}-{n}");
            fs.write(&*name, name.as_bytes()).unwrap();
            most = most.max(fs.stat(&*name).unwrap().ino.0);
        }
        highest.push(most);
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        for n in 0..300 {
            let name = format!("/{round}-{n}");
            assert_eq!(fs.read(&*name).unwrap(), name.as_bytes());
            fs.unlink(&*name).unwrap();
        }
        for _ in 0..3 {
            fs.volume().tick().unwrap();
            fs.volume().checkpoint().unwrap();
        }
    }
    assert!(highest[5] <= highest[0] + 600, "{highest:?}");
    assert!(highest[2] <= highest[0] + 600, "{highest:?}");
}

/// Lanes remember where paths lead (memfs::paths).
#[test]
fn a_path_that_was_walked_before_leads_where_it_leads_now() {
    let (fs, dev) = root(16);
    let text = |path: &str| fs.read(path).map(|b| String::from_utf8(b).unwrap()).map_err(|e| e.errno());
    let errno = |path: &str| text(path).unwrap_err();
    let make = |top: &str, content: &str| {
        fs.create_dir_all(format!("{top}/b/c")).unwrap();
        fs.write(format!("{top}/b/c/f"), content).unwrap();
        // Often enough for it to be remembered.
        (0..4).for_each(|_| assert_eq!(text(&format!("{top}/b/c/f")).unwrap(), content));
    };
    make("/a", "1");
    // A directory on the way is moved, and another takes its name.
    fs.rename("/a/b", "/a/x").unwrap();
    assert_eq!((errno("/a/b/c/f"), text("/a/x/c/f").as_deref()), (libc::ENOENT, Ok("1")));
    make("/a", "2");
    fs.rename("/a", "/y").unwrap();
    assert_eq!((errno("/a/b/c/f"), text("/y/b/c/f").as_deref()), (libc::ENOENT, Ok("2")));
    make("/a", "3");
    make("/y", "2");
    // Two are exchanged, and one is replaced.
    fs.rename2("/a/b", "/y/b", libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((text("/a/b/c/f").as_deref(), text("/y/b/c/f").as_deref()), (Ok("2"), Ok("3")));
    fs.unlink("/y/b/c/f").unwrap();
    assert_eq!(errno("/y/b/c/f"), libc::ENOENT);
    fs.rename("/a/b/c", "/y/b/c").unwrap();
    assert_eq!((errno("/a/b/c/f"), text("/y/b/c/f").as_deref()), (libc::ENOENT, Ok("2")));
    // One is removed; there is a file, and then a link.
    fs.rmdir("/a/b").unwrap();
    assert_eq!(errno("/a/b/c/f"), libc::ENOENT);
    fs.write("/a/b", "").unwrap();
    assert_eq!(errno("/a/b/c/f"), libc::ENOTDIR);
    fs.unlink("/a/b").unwrap();
    fs.symlink("../y/b", "/a/b").unwrap();
    (0..4).for_each(|_| assert_eq!(text("/a/b/c/f").as_deref(), Ok("2")));
    // What may be walked is no matter of who walked before.
    make("/a/d", "4");
    fs.chmod("/a/d/b", 0o700).unwrap();
    let user = fs.volume().as_user(lanefs::Cred::user(7, 7, &[]));
    assert_eq!(user.stat("/a/d/b/c/f").unwrap_err().errno(), libc::EACCES);
    let fs = reopen(fs, &dev);
    assert_eq!(fs.read("/a/d/b/c/f").unwrap(), b"4");
}
