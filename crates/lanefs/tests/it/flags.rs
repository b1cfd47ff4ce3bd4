//! Flags of inodes: what they forbid, who sets them, and what of them survives.

use crate::{after_crash, errno, reopen, root};
use lanefs::inode_flags::{ALL, APPEND, IMMUTABLE, NOATIME, NODUMP};
use lanefs::{Cred, Fs, OpenOptions, SetAttr, SetTime};
use libc::{EOPNOTSUPP, EPERM};

fn open(fs: &Fs, flags: i32) -> lanefs::Result<lanefs::File> {
    fs.open("/f", &OpenOptions { flags, mode: 0o644 })
}

#[test]
fn an_immutable_file_stays_as_it_is_and_so_do_its_names() {
    let (fs, _d) = root(64);
    fs.write("/f", b"content").unwrap();
    fs.write("/g", b"").unwrap();
    let held = open(&fs, libc::O_RDWR).unwrap();
    fs.set_inode_flags("/f", IMMUTABLE).unwrap();
    let before = fs.stat("/f").unwrap();
    let appends = libc::O_WRONLY | libc::O_APPEND;
    for flags in [libc::O_WRONLY, libc::O_RDWR, appends, libc::O_RDONLY | libc::O_TRUNC] {
        assert_eq!(errno(open(&fs, flags)), EPERM, "{flags:#x}");
    }
    let set = |set: SetAttr| errno(held.set_attr(&Cred::root(), &set));
    let refused = [
        errno(held.write_at(b"x", 0)),
        errno(held.append(b"x")),
        errno(held.set_len(0)),
        errno(held.allocate(0, 0, 8192)),
        errno(held.copy_range_to(0, &held, 4096, 7)),
        errno(fs.truncate("/f", 7)),
        errno(fs.chmod("/f", 0o600)),
        errno(fs.chown("/f", Some(1), None, true)),
        errno(fs.set_times("/f", Some(SetTime::Now), Some(SetTime::Now), true)),
        set(SetAttr { mtime: Some(SetTime::At(5)), ..SetAttr::default() }),
        set(SetAttr { mode: Some(0o600), ctime: Some(5), ..SetAttr::default() }),
        errno(fs.setxattr("/f", b"user.a", b"", 0)),
        errno(fs.removexattr("/f", b"user.a")),
        errno(fs.link("/f", "/h")),
        errno(fs.unlink("/f")),
        errno(fs.rename("/f", "/h")),
        errno(fs.rename("/g", "/f")),
        errno(fs.rename2("/g", "/f", libc::RENAME_EXCHANGE)),
        errno(fs.access("/f", libc::W_OK)),
    ];
    assert_eq!(refused, [EPERM; 19]);
    assert_eq!(fs.stat("/f").unwrap(), before);
    assert_eq!(fs.read("/f").unwrap(), b"content");
    // What a kernel has accepted, and the times that it kept, it may hand over still.
    held.write_back_at(b"C", 0).unwrap();
    let kept = SetAttr { mtime: Some(SetTime::At(6)), ctime: Some(7), ..SetAttr::default() };
    let s = held.set_attr(&Cred::root(), &kept).unwrap();
    assert_eq!((s.mtime, s.ctime, fs.read("/f").unwrap()), (6, 7, b"Content".to_vec()));
    assert_eq!(
        errno(fs.volume().node_setattr(&Cred::root(), s.ino, &SetAttr { atime: Some(SetTime::Now), ..kept })),
        EPERM
    );
    fs.set_inode_flags("/f", 0).unwrap();
    held.write_at(b"x", 0).unwrap();
    fs.unlink("/f").unwrap();
}

#[test]
fn a_file_that_only_grows_is_opened_for_nothing_else() {
    let (fs, _d) = root(64);
    fs.write("/f", b"content").unwrap();
    let held = open(&fs, libc::O_RDWR).unwrap();
    fs.set_inode_flags("/f", APPEND).unwrap();
    let appends = libc::O_RDWR | libc::O_APPEND;
    for flags in [libc::O_WRONLY, libc::O_RDWR, appends | libc::O_TRUNC, libc::O_TRUNC] {
        assert_eq!(errno(open(&fs, flags)), EPERM, "{flags:#x}");
    }
    let f = open(&fs, appends).unwrap();
    f.write(b" and more").unwrap();
    // As on ext4: who had it open goes on, but for what makes it shorter.
    held.write_at(b"C", 0).unwrap();
    f.allocate(libc::FALLOC_FL_KEEP_SIZE, 0, 8192).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!([errno(held.set_len(3)), errno(f.set_len(99)), errno(f.allocate(punch, 0, 1))], [EPERM; 3]);
    let two = |a, m| fs.set_times("/f", a, m, true);
    two(Some(SetTime::Now), Some(SetTime::Now)).unwrap();
    assert_eq!([errno(two(Some(SetTime::Now), None)), errno(two(None, Some(SetTime::At(1))))], [EPERM; 2]);
    assert_eq!([errno(fs.unlink("/f")), errno(fs.link("/f", "/g")), errno(fs.chmod("/f", 0))], [EPERM; 3]);
    assert_eq!(fs.read("/f").unwrap(), b"Content and more");
}

#[test]
fn entries_of_a_directory_with_flags() {
    let (fs, _d) = root(64);
    fs.mkdir("/d", 0o777).unwrap();
    fs.write("/d/f", b"").unwrap();
    fs.mkdir("/d/sub", 0o755).unwrap();
    fs.write("/g", b"").unwrap();
    let makes = |to: &str| {
        let unnamed = OpenOptions { flags: libc::O_TMPFILE | libc::O_RDWR, mode: 0o600 };
        [
            fs.create(format!("/d/{to}")).map(drop),
            fs.mkdir(format!("/d/{to}1"), 0o755),
            fs.symlink("x", format!("/d/{to}2")),
            fs.link("/g", format!("/d/{to}3")),
            fs.open("/d", &unnamed).map(drop),
            fs.rename("/g", format!("/d/{to}4")).and_then(|()| fs.write("/g", b"")),
        ]
    };
    let removes = || {
        let out = [fs.unlink("/d/f"), fs.rmdir("/d/sub"), fs.rename("/d/f", "/h")];
        [out, [fs.rename("/d/f", "/d/h"), fs.rename("/g", "/d/f"), fs.rename("/d", "/e")]].concat()
    };
    fs.set_inode_flags("/d", IMMUTABLE).unwrap();
    makes("a").into_iter().chain(removes()).for_each(|r| assert_eq!(errno(r), EPERM));
    fs.write("/d/f", b"its content is another matter").unwrap();
    fs.set_inode_flags("/d", APPEND).unwrap();
    makes("b").into_iter().for_each(|r| r.unwrap());
    removes().into_iter().for_each(|r| assert_eq!(errno(r), EPERM));
    fs.set_inode_flags("/d", 0).unwrap();
    fs.unlink("/d/f").unwrap();
}

#[test]
fn who_may_set_what() {
    let (fs, _d) = root(64);
    fs.write("/f", b"").unwrap();
    fs.chown("/f", Some(1), Some(1), true).unwrap();
    fs.symlink("f", "/link").unwrap();
    fs.mknod("/pipe", libc::S_IFIFO, 0).unwrap();
    let [owner, other] = [1, 2].map(|u| fs.volume().as_user(Cred::user(u, u, &[])));
    owner.set_inode_flags("/link", NODUMP | NOATIME).unwrap();
    assert_eq!(fs.inode_flags("/f").unwrap(), NODUMP | NOATIME);
    assert_eq!(errno(other.set_inode_flags("/f", 0)), EPERM);
    for flag in [IMMUTABLE, APPEND] {
        assert_eq!(errno(owner.set_inode_flags("/f", flag)), EPERM);
        fs.set_inode_flags("/f", flag).unwrap();
        assert_eq!(errno(owner.set_inode_flags("/f", 0)), EPERM);
        // Only ext4's rule: nothing else changes while it is immutable.
        let r = fs.set_inode_flags("/f", flag | NODUMP);
        if flag == IMMUTABLE {
            assert_eq!(errno(r), EPERM)
        } else {
            r.unwrap()
        }
        fs.set_inode_flags("/f", flag & !IMMUTABLE).unwrap();
    }
    for bit in (0..32).filter(|b| ALL & 1 << b == 0) {
        assert_eq!(errno(fs.set_inode_flags("/f", APPEND | 1 << bit)), EOPNOTSUPP);
    }
    assert_eq!(fs.inode_flags("/f").unwrap(), APPEND);
    assert_eq!(errno(fs.inode_flags("/pipe")), libc::ENOTTY);
}

#[test]
fn flags_are_durable_as_modes_are() {
    let (fs, dev) = root(64);
    for name in ["/f", "/g"] {
        fs.write(name, b"content").unwrap();
    }
    fs.mkdir("/d", 0o755).unwrap();
    fs.volume().sync().unwrap();
    fs.set_inode_flags("/f", IMMUTABLE).unwrap();
    fs.set_inode_flags("/d", APPEND | NODUMP).unwrap();
    fs.set_inode_flags("/g", NODUMP).unwrap();
    // Nobody asked for anything yet.
    let crashed = after_crash(&dev);
    assert_eq!(["/f", "/g", "/d"].map(|n| crashed.inode_flags(n).unwrap()), [0; 3]);
    for name in ["/f", "/d"] {
        fs.open(name, &OpenOptions::new()).unwrap().sync_all().unwrap();
    }
    let g = fs.open("/g", OpenOptions::new().write(true)).unwrap();
    g.write_at(b"again", 0).unwrap();
    g.sync_data().unwrap();
    let crashed = after_crash(&dev);
    assert_eq!(["/f", "/d"].map(|n| crashed.inode_flags(n).unwrap()), [IMMUTABLE, APPEND | NODUMP]);
    assert_eq!(crashed.read("/g").unwrap(), b"againnt");
    assert_eq!(errno(crashed.unlink("/f")), EPERM);
    drop(crashed);
    g.sync_all().unwrap();
    assert_eq!(after_crash(&dev).inode_flags("/g").unwrap(), NODUMP);
    // A checkpoint, and an inode that leaves memory.
    let fs = reopen(fs, &dev);
    assert_eq!(["/f", "/g", "/d"].map(|n| fs.inode_flags(n).unwrap()), [IMMUTABLE, NODUMP, APPEND | NODUMP]);
    fs.set_inode_flags("/f", 0).unwrap();
    let f = fs.open("/f", &OpenOptions::new()).unwrap();
    f.sync_all().unwrap();
    after_crash(&dev).unlink("/f").unwrap();
}

#[test]
fn what_a_directory_hands_on_is_durable_with_the_inode() {
    let (fs, dev) = root(64);
    fs.mkdir("/d", 0o755).unwrap();
    fs.set_inode_flags("/d", NODUMP | NOATIME).unwrap();
    fs.write("/d/f", b"content").unwrap();
    fs.mkdir("/d/sub", 0o755).unwrap();
    fs.set_inode_flags("/d", APPEND).unwrap();
    fs.write("/d/g", b"").unwrap();
    let all = |fs: &Fs| ["/d/f", "/d/sub", "/d/g"].map(|n| fs.inode_flags(n).unwrap());
    assert_eq!(all(&fs), [NODUMP | NOATIME, NODUMP | NOATIME, 0]);
    fs.open("/d/f", &OpenOptions::new()).unwrap().sync_all().unwrap();
    assert_eq!(after_crash(&dev).inode_flags("/d/f").unwrap(), NODUMP | NOATIME);
    fs.volume().sync().unwrap();
    assert_eq!(all(&after_crash(&dev)), all(&fs));
    let before = all(&fs);
    assert_eq!(all(&reopen(fs, &dev)), before);
}

#[test]
fn reading_leaves_the_time_of_access_alone() {
    let (fs, _d) = root(64);
    for (name, flags) in [("/f", NOATIME), ("/g", 0)] {
        fs.write(name, b"content").unwrap();
        fs.set_times(name, Some(SetTime::At(1)), None, true).unwrap();
        fs.set_inode_flags(name, flags).unwrap();
        fs.read(name).unwrap();
        assert_eq!(fs.stat(name).unwrap().atime == 1, flags == NOATIME, "{name}");
    }
}
