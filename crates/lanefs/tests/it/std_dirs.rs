//! Directory handles and listings.

use crate::{errno, root};
use lanefs::{Cred, OpenOptions};
use std::collections::BTreeSet;

#[test]
fn a_listing_has_each_name_once_and_no_dots() {
    let (fs, _) = root(64);
    fs.create_dir("d").unwrap();
    let names: BTreeSet<String> = (0..2000).map(|n| format!("name {n}")).collect();
    for name in &names {
        fs.write(format!("d/{name}"), b"").unwrap();
    }
    fs.create_dir("d/dir").unwrap();
    fs.symlink("nowhere", "d/link").unwrap();
    let (mut seen, mut kinds) = (BTreeSet::new(), 0);
    for entry in fs.read_dir("d").unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(entry.path(), std::path::Path::new("d").join(&name));
        let meta = entry.metadata().unwrap();
        assert_eq!((meta.file_type(), meta.ino()), (entry.file_type(), entry.ino()));
        kinds += u32::from(entry.file_type().is_dir()) + 2 * u32::from(entry.file_type().is_symlink());
        assert!(seen.insert(name));
    }
    assert_eq!((seen.len(), kinds), (names.len() + 2, 3));
    assert!(names.is_subset(&seen));
    assert_eq!(fs.read_dir("d/dir").unwrap().count(), 0);
}

#[test]
fn a_listing_goes_on_while_its_names_go() {
    let (fs, _) = root(64);
    fs.create_dir("d").unwrap();
    for n in 0..1000 {
        fs.write(format!("d/{n}"), b"").unwrap();
    }
    let mut seen = 0;
    for entry in fs.read_dir("d").unwrap() {
        let entry = entry.unwrap();
        fs.remove_file(entry.path()).unwrap();
        assert_eq!(errno(entry.metadata()), libc::ENOENT);
        seen += 1;
    }
    assert_eq!((seen, fs.read_dir("d").unwrap().count()), (1000, 0));
}

#[test]
fn a_listing_asks_for_the_right_to_read() {
    let (fs, _) = root(16);
    fs.mkdir("shut", 0o711).unwrap();
    fs.write("f", b"").unwrap();
    let alice = fs.volume().as_user(Cred::user(1, 1, &[]));
    assert_eq!(errno(alice.read_dir("shut")), libc::EACCES);
    assert_eq!(errno(alice.read_dir("f")), libc::ENOTDIR);
    assert_eq!(errno(alice.read_dir("none")), libc::ENOENT);
    assert_eq!(errno(alice.remove_dir_all("shut")), libc::EACCES);
    assert!(fs.exists("shut").unwrap());
}

#[test]
fn a_handle_stays_with_its_directory() {
    let (fs, _) = root(32);
    fs.create_dir_all("a/b").unwrap();
    fs.create_dir("other").unwrap();
    let dir = fs.open_dir("a/b").unwrap();
    dir.write("f", b"before").unwrap();
    fs.rename("a/b", "other/moved").unwrap();
    fs.create_dir("a/b").unwrap();
    // Another directory has its name; the handle has the directory.
    assert_eq!(dir.read("f").unwrap(), b"before");
    let file = dir.open_file("g", OpenOptions::new().write(true).create_new(true)).unwrap();
    file.write_all_at(b"after", 0).unwrap();
    assert_eq!(fs.read("other/moved/g").unwrap(), b"after");
    assert_eq!(fs.read_dir("a/b").unwrap().count(), 0);
    assert_eq!(dir.entries().unwrap().count(), 2);
    assert_eq!(dir.dir_metadata().unwrap().ino(), fs.metadata("other/moved").unwrap().ino());
    // As with openat: no cage.
    assert!(dir.exists("../moved/f").unwrap() && dir.exists("/other").unwrap());
    assert!(!dir.exists("other").unwrap());
    dir.create_dir("sub").unwrap();
    dir.fs().symlink("g", "link").unwrap();
    assert_eq!(dir.read("link").unwrap(), b"after");
    assert_eq!(dir.open_dir("sub").unwrap().fs().read("../g").unwrap(), b"after");
    dir.remove_file("link").unwrap();
    dir.remove_dir("sub").unwrap();
}

#[test]
fn names_go_from_handle_to_handle() {
    let (fs, _) = root(32);
    fs.create_dir_all("a").unwrap();
    fs.create_dir_all("b").unwrap();
    let (a, b) = (fs.open_dir("a").unwrap(), fs.open_dir("b").unwrap());
    a.write("f", b"moved").unwrap();
    a.rename("f", &b, "g").unwrap();
    assert_eq!(fs.read("b/g").unwrap(), b"moved");
    assert_eq!(errno(a.rename("f", &b, "h")), libc::ENOENT);
    a.create_dir("d").unwrap();
    b.write("g", b"x").unwrap();
    assert_eq!(errno(a.rename("d/", &b, "g/")), libc::ENOTDIR);
    assert_eq!(errno(a.rename("d", &a.open_dir("d").unwrap(), "e")), libc::EINVAL);
    let (elsewhere, _) = root(16);
    assert_eq!(errno(a.rename("d", &elsewhere.open_dir("/").unwrap(), "d")), libc::EXDEV);
}

#[test]
fn a_removed_directory_has_nothing_in_it() {
    let (fs, _) = root(32);
    fs.create_dir("d").unwrap();
    let dir = fs.open_dir("d").unwrap();
    let seen_from_there = dir.fs().clone();
    fs.remove_dir("d").unwrap();
    assert_eq!(errno(dir.write("f", b"")), libc::ENOENT);
    assert_eq!(errno(dir.create_dir("x")), libc::ENOENT);
    assert_eq!(errno(dir.read("f")), libc::ENOENT);
    assert_eq!(dir.entries().map(|e| e.count()).unwrap_or(0), 0);
    // While anything begins there, no other file gets its number.
    drop(dir);
    for n in 0..100 {
        fs.volume().tick().unwrap();
        fs.volume().checkpoint().unwrap();
        fs.create_dir(format!("new{n}")).unwrap();
        assert_eq!(errno(seen_from_there.write("f", b"")), libc::ENOENT);
    }
}
