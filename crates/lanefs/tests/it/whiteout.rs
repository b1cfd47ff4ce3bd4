//! RENAME_WHITEOUT: what an overlay asks of the layer that it writes to.

use crate::{after_crash, errno, ls, reopen, root};
use lanefs::{Cred, FileKind, Fs, OpenOptions};
use libc::{EINVAL, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn is_whiteout(fs: &Fs, path: &str) -> bool {
    let s = fs.lstat(path).unwrap();
    s.kind == FileKind::Char && (s.rdev, s.mode & 0o7777, s.nlink) == (0, 0, 1)
}

#[test]
fn a_whiteout_comes_where_the_name_was() {
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    fs.mkdir("/d/sub", 0o755).unwrap();
    fs.mkdir("/e", 0o755).unwrap();
    for name in ["/d/a", "/d/b", "/e/old"] {
        fs.write(name, name.as_bytes()).unwrap();
    }
    let ino = fs.stat("/d/a").unwrap().ino;
    fs.rename2("/d/a", "/e/a", RENAME_WHITEOUT).unwrap();
    // Over a file, and from one name of a directory to another.
    fs.rename2("/d/b", "/e/old", RENAME_WHITEOUT).unwrap();
    fs.rename2("/e/a", "/e/aa", RENAME_WHITEOUT | RENAME_NOREPLACE).unwrap();
    // A directory: what stays is none.
    fs.rename2("/d/sub", "/e/sub", RENAME_WHITEOUT).unwrap();
    let check = |fs: &Fs| {
        assert_eq!((ls(fs, "/d"), ls(fs, "/e")), (names("a b sub"), names("a aa old sub")));
        assert!(["/d/a", "/d/b", "/d/sub", "/e/a"].iter().all(|n| is_whiteout(fs, n)));
        assert_eq!(
            (fs.read("/e/aa").unwrap(), fs.read("/e/old").unwrap()),
            (b"/d/a".to_vec(), b"/d/b".to_vec())
        );
        assert_eq!((fs.stat("/e/aa").unwrap().ino, fs.stat("/e/sub").unwrap().nlink), (ino, 2));
        assert_eq!((fs.stat("/d").unwrap().nlink, fs.stat("/e").unwrap().nlink), (2, 3));
    };
    check(&fs);
    fs.open("/e/aa", &OpenOptions::new()).unwrap().sync_all().unwrap();
    fs.open("/e", &OpenOptions::new()).unwrap().sync_all().unwrap();
    check(&after_crash(&dev));
    let fs = reopen(fs, &dev);
    check(&fs);
    // It is a name as any other.
    fs.rename2("/e/aa", "/d/a", RENAME_WHITEOUT).unwrap();
    fs.unlink("/e/aa").unwrap();
    fs.rename("/d/sub", "/e/moved").unwrap();
    fs.link("/e/moved", "/e/linked").unwrap();
    assert_eq!(fs.stat("/e/linked").unwrap().nlink, 2);
}

fn names(list: &str) -> Vec<String> {
    list.split(' ').map(String::from).collect()
}

#[test]
fn answers_of_a_rename_with_a_whiteout() {
    let (fs, _d) = root(64);
    fs.chmod("/", 0o777).unwrap();
    fs.write("/a", b"").unwrap();
    fs.write("/b", b"").unwrap();
    fs.link("/a", "/same").unwrap();
    fs.mkdir("/d", 0o755).unwrap();
    let rename = |a: &str, b: &str, flags: u32| errno(fs.rename2(a, b, flags | RENAME_WHITEOUT));
    assert_eq!(rename("/a", "/b", RENAME_EXCHANGE), EINVAL);
    assert_eq!(rename("/a", "/b", 8), EINVAL);
    assert_eq!(rename("/a", "/b", RENAME_NOREPLACE), libc::EEXIST);
    assert_eq!(rename("/none", "/b", 0), libc::ENOENT);
    assert_eq!(rename("/a", "/d", 0), libc::EISDIR);
    assert_eq!(rename("/d", "/d/e", 0), EINVAL);
    assert_eq!(rename("/a", "/d/.", RENAME_NOREPLACE), libc::EEXIST);
    // One inode by two names, or by one: nothing happens.
    fs.rename2("/a", "/same", RENAME_WHITEOUT).unwrap();
    fs.rename2("/b", "/b", RENAME_WHITEOUT).unwrap();
    assert_eq!(ls(&fs, "/"), names("a b d same"));
    assert!(!is_whiteout(&fs, "/a") && !is_whiteout(&fs, "/b"));
    // Anybody may, also by mknod; of other devices none.
    let user = fs.volume().as_user(Cred::user(7, 8, &[]));
    user.write("/u", b"").unwrap();
    user.rename2("/u", "/v", RENAME_WHITEOUT).unwrap();
    user.mknod("/w", libc::S_IFCHR, 0).unwrap();
    let s = fs.lstat("/u").unwrap();
    assert!(is_whiteout(&fs, "/u") && is_whiteout(&fs, "/w") && (s.uid, s.gid) == (7, 8));
    assert_eq!(errno(user.mknod("/x", libc::S_IFCHR, 1)), libc::EPERM);
    assert_eq!(errno(user.mknod("/x", libc::S_IFBLK, 0)), libc::EPERM);
}

/// A full volume has room for no whiteout, and nothing happens then.
#[test]
fn without_room_the_name_stays() {
    let (fs, _d) = root(8);
    fs.write("/a", b"content").unwrap();
    fs.write("/b", b"").unwrap();
    let (mut made, mut links) = (0, 0);
    let e = loop {
        match fs.mknod(format!("/n{made}"), libc::S_IFREG | 0o644, 0) {
            Ok(()) => made += 1,
            Err(e) => break e.errno(),
        }
    };
    assert_eq!(e, libc::ENOSPC);
    // A name takes less than an inode.
    while fs.link("/b", format!("/l{links}")).is_ok() {
        links += 1;
    }
    assert_eq!(errno(fs.rename2("/a", "/b", RENAME_WHITEOUT)), libc::ENOSPC);
    assert_eq!((fs.read("/a").unwrap(), fs.read("/b").unwrap()), (b"content".to_vec(), vec![]));
    for n in 0..made {
        fs.unlink(format!("/n{n}")).unwrap();
    }
    (0..links).for_each(|n| fs.unlink(format!("/l{n}")).unwrap());
    fs.rename2("/a", "/b", RENAME_WHITEOUT).unwrap();
    assert!(is_whiteout(&fs, "/a"));
}

/// Nobody finds the old name missing, nor the new one.
#[test]
fn at_no_moment_a_name_is_missing() {
    let (fs, _d) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    fs.write("/a", b"").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let looks = s.spawn(|| {
            let mut seen = 0;
            while !done.load(Relaxed) {
                fs.lstat("/a").unwrap();
                seen += 1;
            }
            seen
        });
        for n in 0..2000 {
            fs.rename2("/a", format!("/d/{n}"), RENAME_WHITEOUT).unwrap();
            fs.rename2(format!("/d/{n}"), "/a", RENAME_WHITEOUT).unwrap();
        }
        done.store(true, Relaxed);
        assert!(looks.join().unwrap() > 0);
    });
    assert_eq!(ls(&fs, "/d").len(), 2000);
    assert_eq!(fs.lstat("/a").unwrap().kind, FileKind::File);
}
