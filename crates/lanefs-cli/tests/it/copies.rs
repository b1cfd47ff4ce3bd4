//! What a copy keeps, whose it is, and what it refuses.

use crate::common::*;
use rustix::fs::XattrFlags;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command as an ordinary user, in a directory of that user's. `None` without root, which alone
/// can become others.
pub fn ordinary() -> Option<(tempfile::TempDir, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become an ordinary user");
        return None;
    }
    let work = tempfile::tempdir().unwrap();
    let program = work.path().join("lanefs");
    std::fs::copy(LANEFS, &program).unwrap();
    std::os::unix::fs::chown(work.path(), Some(65534), Some(65534)).unwrap();
    Some((work, program))
}

pub fn as_user(dir: &Path, program: &Path, args: &[&str]) -> Run {
    run_command(Command::new(program).args(args).current_dir(dir).uid(65534).gid(65534))
}

/// Names and whole attributes of all in a directory of an image.
fn listed(dir: &Path, place: &str) -> Vec<serde_json::Value> {
    lanefs_in(dir, &["ls", "--json", place]).ok().json().as_array().unwrap().clone()
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    let m = dir.path().join("tree");
    std::fs::create_dir(&m).unwrap();
    std::fs::write(m.join("f"), "content").unwrap();
    std::fs::hard_link(m.join("f"), m.join("hard")).unwrap();
    std::os::unix::fs::symlink("f", m.join("soft")).unwrap();
    at(&["cp", "-rp", "tree", "v.lane:/"]).ok();
    let before = listed(dir.path(), "v.lane:/tree");
    std::os::unix::fs::symlink("v.lane", dir.path().join("w.lane")).unwrap();
    for (from, to) in [
        ("v.lane:/tree/f", "v.lane:/tree/f"),
        ("v.lane:/tree/f", "v.lane:/tree/"),
        ("v.lane:/tree/f", "v.lane:/tree/../tree/f"),
        ("v.lane:/tree/f", "w.lane:/tree/f"),
        ("v.lane:/tree/soft", "v.lane:/tree/f"),
        ("v.lane:/tree/f", "v.lane:/tree/soft"),
    ] {
        at(&["cp", from, to]).fails(1, &["are the same file"]);
        assert_eq!(at(&["cat", "v.lane:/tree/f"]).ok().out, "content", "{from} {to}");
    }
    at(&["cp", "-r", "v.lane:/tree", "v.lane:/"]).fails(1, &["are the same file"]);
    assert_eq!(listed(dir.path(), "v.lane:/tree"), before);
    // Two files of two volumes have the same numbers.
    std::fs::copy(dir.path().join("v.lane"), dir.path().join("x.lane")).unwrap();
    at(&["cp", "v.lane:/tree/f", "x.lane:/tree/f"]).ok();
    // The image itself is not a file to write to.
    at(&["cp", "v.lane:/tree/f", "v.lane"]).fails(1, &["v.lane"]);
    at(&["cp", "v.lane", "v.lane:/tree/image"]).fails(1, &["v.lane"]);
    at(&["fsck", "v.lane"]).ok();
}

#[test]
fn a_hard_link_to_the_source_is_the_same_file() {
    let (dir, image) = volume("64M");
    let v = lanefs::Volume::open(&[&image], &lanefs::MountOptions::default()).unwrap();
    v.fs().write("/f", b"content").unwrap();
    v.fs().link("/f", "/g").unwrap();
    v.close().unwrap();
    drop(v);
    lanefs_in(dir.path(), &["cp", "v.lane:/f", "v.lane:/g"]).fails(1, &["are the same file"]);
    assert_eq!(lanefs_in(dir.path(), &["cat", "v.lane:/g"]).ok().out, "content");
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["mkdir", "-p", "v.lane:/dst/deep"]).ok();
    for to in ["v.lane:/dst/sub", "v.lane:/dst/deep", "v.lane:/dst/deep/../new"] {
        at(&["cp", "-r", "v.lane:/dst", to]).fails(1, &["cannot copy a directory", "into itself"]);
    }
    at(&["cp", "-r", "v.lane:/", "v.lane:/dst/all"]).fails(1, &["into itself"]);
    assert_eq!(at(&["tree", "v.lane:/dst"]).ok().out, "v.lane:/dst\n`-- deep\n\n1 directories, 0 files\n");
    at(&["cp", "-r", "v.lane:/dst", "v.lane:/dst2"]).ok();
}

#[test]
fn a_copy_that_preserves_keeps_attributes_acls_and_hard_links() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    let src = dir.path().join("src");
    std::fs::create_dir_all(src.join("d")).unwrap();
    std::fs::write(src.join("a"), "one file").unwrap();
    std::fs::hard_link(src.join("a"), src.join("d/b")).unwrap();
    std::fs::hard_link(src.join("a"), src.join("c")).unwrap();
    std::fs::write(src.join("plain"), "").unwrap();
    let set = |p: &Path, name: &str, value: &[u8]| rustix::fs::lsetxattr(p, name, value, XattrFlags::empty());
    if set(&src.join("a"), "user.colour", b"blue").is_err() {
        println!("skipped: no extended attributes here");
        return;
    }
    set(&src.join("d"), "user.empty", b"").unwrap();
    // user::rw- user:65534:r-- group::r-- mask::r-- other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 65534), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let acls = set(&src.join("a"), "system.posix_acl_access", &acl).is_ok();
    if acls {
        set(&src.join("d"), "system.posix_acl_default", &acl).unwrap();
    }
    let root = rustix::process::geteuid().is_root();
    if root {
        set(&src.join("a"), "trusted.kept", b"too").unwrap();
    }
    std::fs::set_permissions(src.join("c"), PermissionsExt::from_mode(0o440)).unwrap();
    at(&["cp", "-rp", "src", "v.lane:/"]).ok();
    at(&["cp", "-rp", "v.lane:/src", "v.lane:/again"]).ok();
    at(&["cp", "-rp", "v.lane:/again", "back"]).ok();
    let back = dir.path().join("back");
    let names = ["a", "c", "d/b"];
    let inodes: Vec<u64> = names.iter().map(|n| back.join(n).metadata().unwrap().ino()).collect();
    assert!(inodes.iter().all(|i| *i == inodes[0]), "hard links: {inodes:?}");
    assert_eq!(back.join("a").metadata().unwrap().mode(), src.join("a").metadata().unwrap().mode());
    let get = |p: &Path, name: &str| {
        let mut value = [0; 256];
        rustix::fs::lgetxattr(p, name, &mut value).map(|n| value[..n].to_vec()).ok()
    };
    for name in ["a", "d", "plain"] {
        for x in [
            "user.colour",
            "user.empty",
            "trusted.kept",
            "system.posix_acl_access",
            "system.posix_acl_default",
        ] {
            assert_eq!(get(&back.join(name), x), get(&src.join(name), x), "{x} of {name}");
        }
    }
    assert_eq!(get(&back.join("a"), "user.colour").as_deref(), Some(&b"blue"[..]));
    // A file that was there before and is now a name of another.
    at(&["cp", "-rp", "src/a", "src/d", "v.lane:/src"]).ok();
    at(&["cp", "-r", "v.lane:/src", "plainly"]).ok();
    assert_eq!(get(&dir.path().join("plainly/a"), "user.colour"), None, "kept without -p");
    at(&["fsck", "v.lane"]).ok();
}

#[test]
fn holes_of_host_files_are_not_read() {
    let (dir, _) = volume("64M");
    let file = std::fs::File::create(dir.path().join("holes")).unwrap();
    // What a reader of all of it would take minutes for.
    file.set_len(4 << 40).unwrap();
    file.write_all_at(b"middle", 1 << 40).unwrap();
    let start = std::time::Instant::now();
    lanefs_in(dir.path(), &["cp", "holes", "v.lane:/"]).ok();
    lanefs_in(dir.path(), &["cp", "v.lane:/holes", "back"]).ok();
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    let back = std::fs::File::open(dir.path().join("back")).unwrap();
    let mut middle = [0; 8];
    back.read_exact_at(&mut middle, 1 << 40).unwrap();
    assert_eq!((&middle, back.metadata().unwrap().len()), (b"middle\0\0", 4 << 40));
}

#[test]
fn what_an_ordinary_user_makes_is_the_users() {
    let Some((work, program)) = ordinary() else { return };
    let user = |args: &[&str]| as_user(work.path(), &program, args);
    user(&["mkfs", "--size", "64M", "v.lane"]).ok();
    std::fs::create_dir(work.path().join("src")).unwrap();
    std::fs::write(work.path().join("src/f"), "x").unwrap();
    std::fs::set_permissions(work.path().join("src/f"), PermissionsExt::from_mode(0o4755)).unwrap();
    user(&["mkdir", "-p", "v.lane:/a/b"]).ok();
    user(&["cp", "-r", "src", "v.lane:/plain"]).ok();
    user(&["cp", "-rp", "src", "v.lane:/kept"]).ok();
    for place in ["v.lane:/", "v.lane:/a", "v.lane:/plain", "v.lane:/kept"] {
        for e in listed(work.path(), place) {
            assert_eq!((e["uid"].as_u64(), e["gid"].as_u64()), (Some(65534), Some(65534)), "{place} {e}");
            assert!(e["mode"].as_str().unwrap().starts_with('0'), "of another's setuid program: {e}");
        }
    }
    // Who owns the image changes all of it, and takes out what is root's.
    lanefs_in(work.path(), &["cp", "-p", "src/f", "v.lane:/roots"]).ok();
    let roots = listed(work.path(), "v.lane:/").into_iter().find(|e| e["name"] == "roots").unwrap();
    assert_eq!(roots["uid"], 0);
    user(&["cp", "-p", "v.lane:/roots", "out"]).ok();
    assert_eq!(work.path().join("out").metadata().unwrap().uid(), 65534);
    user(&["rm", "v.lane:/roots"]).ok();
    user(&["fsck", "v.lane"]).ok();
}

#[test]
fn a_copy_that_does_not_fit_says_what_and_how_much_is_free() {
    let (dir, _) = volume("16M");
    std::fs::write(dir.path().join("big"), vec![7; 40 << 20]).unwrap();
    lanefs_in(dir.path(), &["cp", "big", "v.lane:/big"]).fails(1, &["v.lane:/big", "MiB were free"]);
}

/// Directories `one` and `two` that, copied to one place, lead through links of the first to
/// `victim` and `other`.
fn trees_with_links(work: &Path) {
    for dir in ["victim", "one/t", "two/t/x"] {
        std::fs::create_dir_all(work.join(dir)).unwrap();
    }
    for file in ["victim/file", "other"] {
        std::fs::write(work.join(file), "safe").unwrap();
    }
    std::os::unix::fs::symlink(work.join("victim"), work.join("one/t/x")).unwrap();
    std::os::unix::fs::symlink(work.join("other"), work.join("one/t/f")).unwrap();
    std::fs::write(work.join("two/t/x/file"), "evil").unwrap();
    std::fs::write(work.join("two/t/f"), "evil").unwrap();
}

#[test]
fn nothing_is_written_through_links_below_the_target() {
    // A copy made directories of the links that another source, or an earlier copy, had put there,
    // and wrote to files far from its target.
    let (dir, _) = volume("64M");
    let work = dir.path();
    let at = |args: &[&str]| lanefs_in(work, args);
    trees_with_links(work);
    at(&["mkfs", "--size", "64M", "w.lane"]).ok();
    at(&["cp", "-r", "one/t", "v.lane:/"]).ok();
    at(&["cp", "-r", "two/t", "w.lane:/"]).ok();
    let untouched = || {
        for file in ["victim/file", "other"] {
            assert_eq!(std::fs::read_to_string(work.join(file)).unwrap(), "safe", "{file}");
        }
    };
    std::fs::create_dir(work.join("out")).unwrap();
    at(&["cp", "-r", "v.lane:/t", "w.lane:/t", "out"]).fails(1, &["out/t/", "symbolic link", "remove it"]);
    untouched();
    for from in ["w.lane:/t/x", "w.lane:/t/f"] {
        at(&["cp", "-rp", from, "out/t"]).fails(1, &["out/t/", "symbolic link"]);
        untouched();
    }
    // What the user named is followed.
    std::os::unix::fs::symlink(work.join("out"), work.join("link")).unwrap();
    at(&["cp", "-r", "w.lane:/t/x", "link"]).ok();
    assert_eq!(std::fs::read_to_string(work.join("out/x/file")).unwrap(), "evil");
}

#[test]
fn nothing_is_written_through_links_inside_an_image() {
    let (dir, image) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    trees_with_links(dir.path());
    let v = lanefs::Volume::open(&[&image], &lanefs::MountOptions::default()).unwrap();
    v.fs().mkdir("/victim", 0o755).unwrap();
    v.fs().write("/victim/file", b"safe").unwrap();
    v.fs().mkdir("/t", 0o755).unwrap();
    v.fs().symlink("/victim", "/t/x").unwrap();
    v.fs().symlink("/victim/file", "/t/f").unwrap();
    v.close().unwrap();
    drop(v);
    for from in ["two/t", "two/t/x", "two/t/f"] {
        let to = if from == "two/t" { "v.lane:/" } else { "v.lane:/t" };
        at(&["cp", "-r", from, to]).fails(1, &["v.lane:/t/", "symbolic link"]);
        assert_eq!(at(&["cat", "v.lane:/victim/file"]).ok().out, "safe", "{from}");
    }
}

#[test]
fn what_is_private_is_private_while_it_is_copied() {
    let (dir, _) = volume("64M");
    let work = dir.path();
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(work.join(path), PermissionsExt::from_mode(mode)).unwrap();
    };
    std::fs::create_dir(work.join("p")).unwrap();
    std::fs::write(work.join("p/f"), vec![7; 100_000]).unwrap();
    mode("p", 0o700);
    mode("p/f", 0o600);
    lanefs_in(work, &["cp", "-r", "p", "v.lane:/"]).ok();
    // The copy is cut short in the middle: what it has made by then is to be seen.
    let cut = |args: &str| {
        let script = format!("umask 0; ulimit -f 8; exec \"$0\" cp {args}");
        let run = run_command(Command::new("sh").args(["-c", &script, LANEFS]).current_dir(work));
        assert_ne!(run.code, 0, "{run:?}");
    };
    let is = |path: &str| work.join(path).metadata().unwrap().mode() & 0o777;
    cut("-r v.lane:/p fresh");
    assert_eq!((is("fresh"), is("fresh/f")), (0o700, 0o600));
    std::fs::create_dir(work.join("there")).unwrap();
    std::fs::write(work.join("there/f"), "").unwrap();
    mode("there", 0o777);
    mode("there/f", 0o666);
    cut("-r v.lane:/p/ there/");
    cut("v.lane:/p/f there/f");
    assert_eq!(is("there/f"), 0o600);
    std::fs::write(work.join("q"), "").unwrap();
    lanefs_in(work, &["mkdir", "v.lane:/open"]).ok();
    lanefs_in(work, &["cp", "-r", "v.lane:/open", "opened"]).ok();
    assert_eq!(is("opened"), 0o755);
}

#[test]
fn a_deep_tree_needs_few_descriptors_and_a_device_keeps_its_mode() {
    let (dir, _) = volume("64M");
    let work = dir.path();
    let deep = "d/".repeat(200);
    std::fs::create_dir_all(work.join(&deep)).unwrap();
    std::fs::write(work.join(&deep).join("f"), "deep").unwrap();
    let few = |args: &str| {
        let script = format!("ulimit -n 40; exec \"$0\" cp {args}");
        run_command(Command::new("sh").args(["-c", &script, LANEFS]).current_dir(work)).ok();
    };
    few("-rp d v.lane:/");
    few("-rp v.lane:/d back");
    assert_eq!(std::fs::read_to_string(work.join("back").join(&deep[2..]).join("f")).unwrap(), "deep");
    if rustix::process::geteuid().is_root() {
        let null = work.join("null");
        let kind = rustix::fs::FileType::CharacterDevice;
        let dev = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(rustix::fs::CWD, &null, kind, rustix::fs::Mode::from_raw_mode(0o666), dev)
            .unwrap();
        std::fs::set_permissions(&null, PermissionsExt::from_mode(0o666)).unwrap();
        let from = format!("v.lane:/{deep}f");
        lanefs_in(work, &["cp", &from, "null"]).ok();
        assert_eq!(null.metadata().unwrap().mode() & 0o777, 0o666);
    }
}
