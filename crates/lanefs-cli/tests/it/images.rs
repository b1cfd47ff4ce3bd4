//! Images without a mount.

use crate::common::*;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

#[test]
fn mkfs_makes_a_sparse_image_and_does_not_overwrite() {
    let (dir, image) = volume("64M");
    let meta = std::fs::metadata(&image).unwrap();
    assert_eq!(meta.len(), 64 << 20);
    assert!(meta.blocks() * 512 < 16 << 20, "not sparse: {} blocks", meta.blocks());
    let before = lanefs_in(dir.path(), &["info", "--json", "v.lane"]).ok().json();
    assert_eq!(before["clean"], true);
    assert_eq!(before["total_blocks"], (64 << 20) / 4096);

    lanefs_in(dir.path(), &["mkfs", "v.lane"]).fails(1, &["v.lane", "--force"]);
    assert_eq!(lanefs_in(dir.path(), &["info", "--json", "v.lane"]).ok().json()["uuid"], before["uuid"]);
    lanefs_in(dir.path(), &["mkfs", "--force", "--label", "again", "v.lane"]).ok();
    let after = lanefs_in(dir.path(), &["info", "--json", "v.lane"]).ok().json();
    assert_ne!(after["uuid"], before["uuid"]);
    assert_eq!(after["label"], "again");
    lanefs_in(dir.path(), &["mkfs", "--size", "128M", "v.lane"]).fails(1, &["--force"]);
    lanefs_in(dir.path(), &["mkfs", "--size", "128M", "--force", "v.lane"]).ok();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 128 << 20);
    lanefs_in(dir.path(), &["fsck", "v.lane"]).ok();
}

/// It left a file without a volume, which `mount --create` refuses.
#[test]
fn a_mkfs_that_is_killed_leaves_a_volume_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.lane");
    let mut mkfs = std::process::Command::new(LANEFS);
    mkfs.args(["mkfs", "--size", "256M", "v.lane"]).current_dir(dir.path());
    mkfs.stdout(std::process::Stdio::null());
    let begun = std::time::Instant::now();
    assert!(mkfs.status().unwrap().success());
    let (took, rounds) = (begun.elapsed(), 40);
    let mut left = 0;
    for round in 0..rounds {
        std::fs::remove_file(&image).unwrap_or(());
        let mut killed = mkfs.spawn().unwrap();
        std::thread::sleep(took * round / rounds);
        killed.kill().unwrap();
        killed.wait().unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.is_empty() || names == ["v.lane"], "{names:?}");
        if !names.is_empty() {
            lanefs_in(dir.path(), &["fsck", "v.lane"]).ok();
            left += 1;
        }
    }
    assert!(left < rounds, "none was killed in time");
}

/// Whoever wrote to an image behind the limit was ended by a signal, with what it had accepted.
#[test]
fn a_limit_of_what_may_be_written_is_told_before_anything_is_accepted() {
    let (dir, _) = volume("64M");
    std::fs::write(dir.path().join("large"), vec![7; 4 << 20]).unwrap();
    std::fs::create_dir(dir.path().join("mnt")).unwrap();
    lanefs_in(dir.path(), &["cp", "large", "v.lane:/"]).ok();
    let limited = |command: &str| {
        let line = format!("ulimit -f 2000; exec {LANEFS} {command}");
        run_command(std::process::Command::new("sh").args(["-c", &line]).current_dir(dir.path()))
    };
    for command in ["mkdir v.lane:/d", "mkfs --size 64M w.lane", "grow v.lane", "mount v.lane mnt"] {
        limited(command).fails(1, &[".lane", "ulimit -f unlimited"]);
    }
    assert!(!dir.path().join("w.lane").exists());
    assert_eq!(limited("ls v.lane:/").ok().out, "large\n");
    limited("cp v.lane:/large out").fails(1, &["out", "ulimit -f"]);
}

#[test]
fn what_cannot_be_made_is_refused_before_anything_is_touched() {
    let (dir, image) = volume("64M");
    let before = std::fs::read(&image).unwrap();
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    for wrong in ["0", "129", "1000"] {
        let run = at(&["mkfs", "--force", "--mlogs", wrong, "v.lane"]);
        assert!(run.code == 2 && run.err.contains("128") && run.err.contains('1'), "{run:?}");
    }
    at(&["mkfs", "--force", "--label", "a\tb", "v.lane"]).fails(1, &["label"]);
    at(&["mkfs", "--force", "--size", "64K", "v.lane"]).fails(1, &["KiB"]);
    assert!(std::fs::read(&image).unwrap() == before, "the volume that was there is not touched");
    at(&["mkfs", "--mlogs", "0", "new.lane"]);
    assert!(!dir.path().join("new.lane").exists());
}

#[test]
fn fewer_mlogs_than_asked_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    let run = at(&["mkfs", "--size", "64M", "--mlogs", "64", "v.lane"]).ok();
    let made = at(&["info", "--json", "v.lane"]).ok().json()["mlogs"].to_string();
    assert_eq!(run.err.lines().count(), 1, "{run:?}");
    assert!(run.err.contains(&format!(" {made} ")) && run.err.contains("64"), "{made}: {run:?}");
    let run = at(&["mkfs", "--size", "64M", "--mlogs", "1", "--label", "home", "w.lane"]).ok();
    let made = at(&["info", "--json", "w.lane"]).ok().json();
    for said in ["w.lane", "64", "1 mlogs", "label \"home\"", made["uuid"].as_str().unwrap()] {
        assert!(run.out.contains(said), "{said}: {run:?}");
    }
    assert_eq!((run.out.lines().count(), run.err), (1, String::new()));
    let run = at(&["mkfs", "--quiet", "--size", "64M", "x.lane"]).ok();
    assert_eq!((run.out, run.err), (String::new(), String::new()));
}

#[test]
fn the_whole_volume_is_removed_only_if_that_is_said() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["mkdir", "-p", "v.lane:/a/b"]).ok();
    for root in ["v.lane:/", "v.lane", "v.lane:/.", "v.lane:/a/.."] {
        at(&["rm", "-r", root]).fails(1, &["--all", "root"]);
        at(&["rm", "-rf", root]).fails(1, &["--all"]);
        assert_eq!(at(&["ls", "v.lane:/"]).ok().out.trim(), "a");
    }
    at(&["rm", "-r", "--all", "v.lane:/"]).ok();
    assert_eq!(at(&["ls", "v.lane:/"]).ok().out, "");
    at(&["fsck", "v.lane"]).ok();
}

#[test]
fn what_is_not_a_volume_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text"), "hello\n".repeat(10_000)).unwrap();
    std::fs::write(dir.path().join("empty"), "").unwrap();
    for name in ["text", "empty"] {
        lanefs_in(dir.path(), &["ls", &format!("{name}:/")]).fails(1, &[name]);
        lanefs_in(dir.path(), &["info", name]).fails(1, &[name]);
        assert_eq!(lanefs_in(dir.path(), &["fsck", name]).code, 8, "{name}");
    }
    lanefs_in(dir.path(), &["mkfs", "text"]).fails(1, &["text", "--force"]);
    assert_eq!(std::fs::read(dir.path().join("text")).unwrap().len(), 60_000, "left as it was");
}

#[test]
fn damaged_images_are_refused_or_read_but_never_empty_and_never_a_panic() {
    let (dir, image) = volume("64M");
    std::fs::write(dir.path().join("file"), "content").unwrap();
    lanefs_in(dir.path(), &["cp", "file", "v.lane:/file"]).ok();
    let whole = std::fs::read(&image).unwrap();
    for length in [0, 100, 4096, 1 << 20, 32 << 20] {
        std::fs::write(&image, &whole[..length]).unwrap();
        let run = lanefs_in(dir.path(), &["ls", "v.lane:/"]);
        assert!(run.code == 1 || run.out.contains("file"), "cut to {length}: {run:?}");
        assert!(!run.err.contains("panicked"), "cut to {length}: {run:?}");
    }
    std::fs::write(&image, &whole).unwrap();
    let out = std::fs::File::options().write(true).open(&image).unwrap();
    // Every block of the first MiB in turn.
    for block in 0..256u64 {
        let at = block * 4096;
        out.write_all_at(&[0xa5; 4096], at).unwrap();
        let run = lanefs_in(dir.path(), &["ls", "v.lane:/"]);
        assert!(run.code == 1 || run.out.contains("file"), "block {block}: {run:?}");
        assert!(!run.err.contains("panicked"), "block {block}: {run:?}");
        out.write_all_at(&whole[at as usize..at as usize + 4096], at).unwrap();
    }
}

/// Every path below `dir` with kind, permission bits, link target and content.
fn tree(dir: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut list = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let content = match () {
                () if meta.is_dir() => {
                    todo.push(path.clone());
                    Vec::new()
                }
                () if meta.is_symlink() => {
                    std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                () => std::fs::read(&path).unwrap(),
            };
            list.push((path.strip_prefix(dir).unwrap().display().to_string(), meta.mode(), content));
        }
    }
    list.sort();
    list
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let (dir, _) = volume("256M");
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("deep/er/empty")).unwrap();
    std::fs::write(source.join("small"), "x").unwrap();
    std::fs::write(source.join("deep/none"), "").unwrap();
    std::fs::write(source.join("deep/er/tool"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(source.join("deep/er/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("../small", source.join("deep/link")).unwrap();
    let big: Vec<u8> = (0..3_000_001u32).flat_map(|i| (i * 7).to_le_bytes()).collect();
    std::fs::write(source.join("big"), &big).unwrap();
    let holes = std::fs::File::create(source.join("holes")).unwrap();
    holes.write_all_at(b"end", 50 << 20).unwrap();
    for i in 0..300 {
        std::fs::write(source.join("deep/er").join(format!("file {i}")), vec![i as u8; i * 40]).unwrap();
    }

    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["cp", "source", "v.lane:/"]).fails(1, &["-r"]);
    at(&["cp", "-r", "source", "v.lane:/dst"]).ok();
    at(&["cp", "-r", "v.lane:/dst", "back"]).ok();
    assert_eq!(tree(&source), tree(&dir.path().join("back")));
    at(&["cp", "-r", "v.lane:/dst", "v.lane:/copy"]).ok();
    at(&["cp", "-r", "v.lane:/copy", "back2"]).ok();
    assert_eq!(tree(&source), tree(&dir.path().join("back2")));

    assert_eq!(at(&["cat", "v.lane:/dst/deep/er/tool"]).ok().out, "#!/bin/sh\n");
    let list = at(&["ls", "--json", "v.lane:/dst"]).ok().json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["big", "deep", "holes", "small"]);
    assert_eq!(list[2]["size"], (50 << 20) + 3);
    assert!(list[2]["blocks"].as_u64().unwrap() < 1000, "the hole takes room: {}", list[2]);
    assert!(at(&["ls", "-l", "v.lane:/dst/deep"]).ok().out.contains("link -> ../small"));
    let drawn = at(&["tree", "v.lane:/dst"]).ok().out;
    assert!(drawn.contains("`-- small") && drawn.contains("3 directories, 306 files"), "{drawn}");
    let full = at(&["df", "--json", "v.lane"]).ok().json();
    assert!(full[0]["used"].as_u64().unwrap() > 24_000_000, "{full}");

    at(&["rm", "v.lane:/copy"]).fails(1, &["-r"]);
    at(&["rm", "-r", "v.lane:/copy", "v.lane:/dst"]).ok();
    at(&["rm", "v.lane:/dst"]).fails(1, &["v.lane:/dst"]);
    at(&["rm", "-f", "v.lane:/dst"]).ok();
    assert_eq!(at(&["ls", "v.lane:/"]).ok().out, "");
    at(&["fsck", "v.lane"]).ok();
}

#[test]
fn directories_are_made() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["mkdir", "v.lane:/a/b"]).fails(1, &["v.lane:/a/b"]);
    at(&["mkdir", "-p", "v.lane:/a/b"]).ok();
    at(&["mkdir", "-p", "v.lane:/a/b"]).ok();
    at(&["mkdir", "v.lane:/a/b"]).fails(1, &["v.lane:/a/b"]);
    assert_eq!(at(&["ls", "v.lane:/a"]).ok().out, "b\n");
}

#[test]
fn a_volume_may_lie_on_two_images() {
    let dir = tempfile::tempdir().unwrap();
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["mkfs", "--size", "64M", "a.lane", "b.lane"]).ok();
    assert_eq!(at(&["info", "--json", "a.lane", "b.lane"]).ok().json()["devices"], 2);
    std::fs::write(dir.path().join("f"), vec![7; 40 << 20]).unwrap();
    std::fs::write(dir.path().join("g"), vec![9; 40 << 20]).unwrap();
    at(&["cp", "f", "g", "a.lane,b.lane:/"]).ok();
    at(&["cp", "a.lane,b.lane:/g", "back"]).ok();
    assert_eq!(std::fs::read(dir.path().join("back")).unwrap(), vec![9; 40 << 20]);
    at(&["fsck", "a.lane", "b.lane"]).ok();
    assert_eq!(at(&["ls", "a.lane:/"]).code, 1, "half a volume is refused");
}

/// A page that is damaged ended `cat`, and fsck named an inode.
#[test]
fn a_damaged_page_is_named_by_path_and_passed_over_if_asked() {
    let (dir, image) = volume("16M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    let pages: Vec<u8> = (0..40u8).flat_map(|p| [p + 100; 4096]).collect();
    std::fs::write(dir.path().join("file"), &pages).unwrap();
    at(&["mkdir", "v.lane:/some"]).ok();
    at(&["cp", "file", "v.lane:/some/file"]).ok();
    let mut bytes = std::fs::read(&image).unwrap();
    for n in [107u8, 108, 120] {
        let block = bytes.chunks(4096).position(|b| b.iter().all(|x| *x == n)).unwrap();
        bytes[block * 4096] ^= 1;
    }
    std::fs::write(&image, &bytes).unwrap();
    for repair in [&["fsck", "v.lane"][..], &["fsck", "--repair", "v.lane"]] {
        let run = at(repair);
        assert!(run.code == 4 && run.out.contains("/some/file: inode "), "{run:?}");
        assert!(!run.out.contains("run `lanefs fsck --repair`"), "{run:?}");
    }
    at(&["cat", "v.lane:/some/file"]).fails(1, &["/some/file"]);
    let run = std::process::Command::new(LANEFS)
        .args(["cat", "--keep-going", "v.lane:/some/file"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let mut want = pages;
    want[7 * 4096..9 * 4096].fill(0);
    want[20 * 4096..21 * 4096].fill(0);
    assert!(run.status.code() == Some(1) && run.stdout == want);
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(said.contains("bytes 28672 to 36863") && said.contains("bytes 81920 to 86015"), "{said}");
}

/// Names are bytes: as arguments, and in what programs read.
#[test]
fn names_that_are_no_text_are_listed_read_and_removed() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let (work, _) = volume("64M");
    let names: [&[u8]; 3] = [b"\xff\xfe", b"esc\x1b[2J\n", "gr\u{fc}n".as_bytes()];
    for name in names {
        std::fs::write(work.path().join(OsStr::from_bytes(name)), name).unwrap();
    }
    let run = |args: &[OsString]| {
        let done = std::process::Command::new(LANEFS).current_dir(work.path()).args(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    };
    let inside = |name: &[u8]| OsString::from_vec([b"v.lane:/", name].concat());
    for name in names {
        run(&["cp".into(), OsString::from_vec(name.to_vec()), inside(name)]);
        assert_eq!(run(&["cat".into(), inside(name)]), name);
    }
    let mut sorted = names;
    sorted.sort_unstable();
    let listed = [sorted.join(&b'\n'), vec![b'\n']].concat();
    assert_eq!(run(&["ls".into(), "v.lane:/".into()]), listed);
    for name in names {
        run(&["rm".into(), inside(name)]);
    }
    assert_eq!(run(&["ls".into(), "v.lane:/".into()]), b"");
    let missing = std::process::Command::new(LANEFS)
        .current_dir(work.path())
        .arg("cat")
        .arg(inside(names[1]))
        .output()
        .unwrap();
    assert!(!missing.stderr.contains(&0x1b), "a name in a message changes no terminal");
}
