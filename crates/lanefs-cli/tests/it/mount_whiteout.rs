//! RENAME_WHITEOUT through the kernel, as ext4 does it, and an overlay that writes to a mount.

use crate::common::*;
use rustix::fs::{AtFlags, CWD, RenameFlags, renameat_with, statat};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

on_each_transport! {
    a_whiteout_is_made_as_on_ext4,
    an_overlay_may_have_its_upper_layer_here,
    an_overlay_may_have_all_its_layers_here,
}

type Node = (u32, u64, u32, u32, u64);

type Named = (String, Node);

/// Mode, device, owner and number of links of a name.
fn node(path: &Path) -> Node {
    let s = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    (s.st_mode, s.st_rdev, s.st_uid, s.st_gid, s.st_nlink)
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), i32> {
    renameat_with(CWD, from, CWD, to, flags).map_err(|e| e.raw_os_error())
}

fn run(program: &str, args: &[&str]) -> Run {
    run_command(Command::new(program).args(args))
}

/// A directory on which something is mounted that the end of the test unmounts.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
    }
}

/// What renames with a whiteout answer under `top`, and what is there then.
fn what_happens(top: &Path) -> (Vec<Result<(), i32>>, Vec<Named>) {
    let (white, new) = (RenameFlags::WHITEOUT, RenameFlags::NOREPLACE);
    let at = |name: &str| top.join(name);
    std::fs::create_dir_all(at("d/sub")).unwrap();
    for name in ["a", "b", "c", "d/a"] {
        std::fs::write(at(name), name).unwrap();
    }
    std::fs::hard_link(at("b"), at("b2")).unwrap();
    // The kernel is to know what there is before.
    node(&at("d/sub"));
    let mut told = Vec::new();
    let mut go = |from: &str, to: &str, flags| told.push(rename(&at(from), &at(to), flags));
    go("a", "a2", white);
    go("a2", "d/a2", white | new);
    go("d/a2", "c", white);
    go("c", "d/a", white | new);
    go("c", "d/a", white | RenameFlags::EXCHANGE);
    go("none", "d/b", white);
    go("b", "b2", white);
    go("b", "b", white);
    go("d/sub", "sub", white);
    go("sub", "d", white);
    let names = ["a", "a2", "b", "b2", "c", "d", "d/a", "d/a2", "d/sub", "sub"];
    (told, names.map(|n| (n.to_string(), node(&at(n)))).to_vec())
}

fn a_whiteout_is_made_as_on_ext4() {
    let work = tempfile::tempdir().unwrap();
    let (image, dir) = (work.path().join("ext4"), work.path().join("mnt"));
    std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    std::fs::create_dir(&dir).unwrap();
    run("mkfs.ext4", &["-q", image.to_str().unwrap()]).ok();
    run("mount", &["-o", "loop", image.to_str().unwrap(), dir.to_str().unwrap()]).ok();
    let _ext4 = Mounted(dir.clone());
    let mut m = Mount::new(&[]);
    let (told, there) = what_happens(&m.dir);
    let (want, there_then) = what_happens(&dir);
    assert_eq!((&told, &there), (&want, &there_then));
    assert!(told[0].is_ok() && told.iter().any(Result::is_err));
    m.remount();
    assert!(there.iter().all(|(name, before)| node(&m.path(name)) == *before));
    assert_eq!(std::fs::read(m.path("c")).unwrap(), b"a");
    // Whoever may rename may leave one, which is theirs.
    std::fs::set_permissions(m.work.path(), Permissions::from_mode(0o755)).unwrap();
    m.umount();
    m.mount(&["-o", "allow_other"]);
    std::fs::set_permissions(&m.dir, Permissions::from_mode(0o777)).unwrap();
    std::fs::write(m.path("mine"), "").unwrap();
    std::os::unix::fs::chown(m.path("mine"), Some(1234), Some(1234)).unwrap();
    let (from, to) = (m.path("mine"), m.path("moved"));
    let child = format!(
        "import ctypes, os, sys\nos.setgid(1234)\nos.setuid(1234)\nr = ctypes.CDLL(None).renameat2(-100, b'{}', -100, b'{}', 4)\nsys.exit(-r)",
        from.display(),
        to.display()
    );
    run("python3", &["-c", &child]).ok();
    assert_eq!(node(&from), (libc::S_IFCHR, 0, 1234, 1234, 1));
    m.umount();
    m.fsck();
}

/// An overlay removes by whiteouts and hides by xattrs; what it wrote is found by another one.
fn an_overlay_may_have_its_upper_layer_here() {
    let mut m = Mount::new(&["-o", "suid,dev"]);
    let below = m.work.path().join("below");
    std::fs::create_dir_all(below.join("d/sub")).unwrap();
    for name in ["a", "b", "d/c", "d/sub/e"] {
        std::fs::write(below.join(name), name).unwrap();
    }
    // Programs that run as their owner or group. What is copied up has its mode before its owner.
    let set_ids = [("suid", 0o4755, 0), ("sgid", 0o2755, 0), ("both", 0o6711, 1000)];
    std::fs::create_dir(below.join("bin")).unwrap();
    for (name, mode, owner) in set_ids {
        let path = below.join("bin").join(name);
        std::fs::write(&path, name).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let top = m.work.path().join("top");
    std::fs::create_dir(&top).unwrap();
    for name in ["upper", "work"] {
        std::fs::create_dir(m.path(name)).unwrap();
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        below.display(),
        m.path("upper").display(),
        m.path("work").display()
    );
    let mount = || {
        let args = ["-t", "overlay", "overlay", "-o", &options, top.to_str().unwrap()];
        run("mount", &args).ok();
        Mounted(top.clone())
    };
    let content = |name: &str| std::fs::read_to_string(top.join(name)).unwrap();
    let copied = m.path("upper/bin");
    let check = || {
        assert_eq!((names(&top), names(&top.join("d"))), ("b bin c d".into(), "new".into()));
        for (name, mode, owner) in set_ids {
            let is = std::fs::metadata(copied.join(name)).unwrap();
            assert_eq!((is.mode() & 0o7777, is.uid(), is.gid()), (mode, owner, owner), "{name}");
        }
        assert_eq!(
            (content("b"), content("c"), content("d/new")),
            ("b and more".into(), "d/c".into(), "new".into())
        );
    };
    let overlay = mount();
    // One that is below only, one that is copied, one that moves, and a directory in place of
    // another.
    std::fs::remove_file(top.join("a")).unwrap();
    std::fs::write(top.join("b"), "b and more").unwrap();
    std::fs::rename(top.join("d/c"), top.join("c")).unwrap();
    std::fs::remove_dir_all(top.join("d")).unwrap();
    std::fs::create_dir(top.join("d")).unwrap();
    std::fs::write(top.join("d/new"), "new").unwrap();
    std::fs::write(top.join("gone"), "").unwrap();
    std::fs::remove_file(top.join("gone")).unwrap();
    for (name, ..) in set_ids {
        let file = std::fs::File::options().write(true).open(top.join("bin").join(name)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    check();
    // As ever where a program asks for another owner.
    std::os::unix::fs::chown(top.join("bin/suid"), Some(1000), None).unwrap();
    assert_eq!(std::fs::metadata(m.path("upper/bin/suid")).unwrap().mode() & 0o7777, 0o755);
    std::os::unix::fs::chown(top.join("bin/suid"), Some(0), None).unwrap();
    std::fs::set_permissions(top.join("bin/suid"), Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(node(&m.path("upper/a")).0 & libc::S_IFMT, libc::S_IFCHR);
    drop(overlay);
    m.umount();
    m.fsck();
    m.mount(&["-o", "suid,dev"]);
    let overlay = mount();
    check();
    assert_eq!(names(&below), "a b bin d");
    drop(overlay);
    m.umount();
    m.fsck();
}

fn names(dir: &Path) -> String {
    let all = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.join(" ")
}

/// Where both layers are of one file system an overlay keeps a handle of what it copied up, and
/// later finds the file below by that: the kernel asks for the name of what has none there.
fn an_overlay_may_have_all_its_layers_here() {
    let mut m = Mount::new(&["-o", "suid,dev"]);
    let names = |kind: &str| (0..20).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
    for dir in ["low/dirs", "up", "work"] {
        std::fs::create_dir_all(m.path(dir)).unwrap();
    }
    for name in [names("f"), names("dirs/g")].concat() {
        std::fs::write(m.path("low").join(&name), &name).unwrap();
    }
    std::os::unix::fs::symlink("f0", m.path("low/link")).unwrap();
    let merged = m.work.path().join("merged");
    std::fs::create_dir(&merged).unwrap();
    let append = |name: &str| {
        let file = std::fs::OpenOptions::new().append(true).open(merged.join(name)).unwrap();
        std::io::Write::write_all(&mut { file }, b" and more").unwrap();
    };
    let drop_caches = || {
        rustix::fs::sync();
        std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    };
    let look = |round: usize| {
        for name in [names("f"), names("dirs/g")].concat() {
            let content = std::fs::read(merged.join(&name)).map(|c| String::from_utf8(c).unwrap());
            let want = format!("{name}{}", " and more".repeat(round));
            assert_eq!(content.map_err(|e| e.to_string()), Ok(want));
        }
        std::os::unix::fs::lchown(merged.join("link"), Some(round as u32), None).unwrap();
        assert_eq!(statat(CWD, merged.join("link"), AtFlags::SYMLINK_NOFOLLOW).unwrap().st_uid, round as u32);
    };
    for (round, options) in ["", "index=on,redirect_dir=on,metacopy=on,nfs_export=off"].iter().enumerate() {
        let at = |dir: &str| m.path(dir).display().to_string();
        let (low, up, work) = (at("low"), at("up"), at("work"));
        let layers = format!("lowerdir={low},upperdir={up},workdir={work},{options}");
        let to = merged.to_str().unwrap();
        run("mount", &["-t", "overlay", "overlay", "-o", layers.trim_end_matches(','), to]).ok();
        let overlay = Mounted(merged.clone());
        for name in [names("f"), names("dirs/g")].concat() {
            append(&name);
        }
        for _ in 0..3 {
            look(round + 1);
            drop_caches();
        }
        std::fs::rename(merged.join(format!("f{round}")), merged.join("moved")).unwrap();
        drop_caches();
        for _ in 0..3 {
            assert!(std::fs::read(merged.join("moved")).is_ok());
        }
        std::fs::rename(merged.join("moved"), merged.join(format!("f{round}"))).unwrap();
        drop(overlay);
        m.remount();
    }
    m.umount();
    m.fsck();
}
