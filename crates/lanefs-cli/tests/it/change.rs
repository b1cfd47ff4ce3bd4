//! `lanefs grow` and `lanefs label`, of images and of mounted volumes that are used meanwhile.

use crate::common::*;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

on_each_transport! {
    a_mounted_volume_grows_while_a_program_writes,
    what_was_grown_survives_a_kill,
    a_mounted_volume_is_given_another_label,
    an_ordinary_user_changes_no_volume_of_another,
}

const MIB: u64 = 1 << 20;

fn size(work: &Path, place: &str) -> u64 {
    let info = lanefs_in(work, &["info", "--json", place]).ok().json();
    info["total_blocks"].as_u64().unwrap() * 4096
}

fn usable(work: &Path, place: &str) -> u64 {
    lanefs_in(work, &["df", "--json", place]).ok().json()[0]["size"].as_u64().unwrap()
}

/// Bytes that tell which file and which part of it they belong to.
fn content(file: usize, len: usize) -> Vec<u8> {
    (0..len / 8).flat_map(|i| ((file << 32 | i) as u64).to_le_bytes()).collect()
}

#[test]
fn an_image_grows_and_never_shrinks() {
    let (dir, image) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    std::fs::write(dir.path().join("host"), content(1, 3 << 20)).unwrap();
    at(&["cp", "host", "v.lane:/before"]).ok();
    let before = usable(dir.path(), "v.lane");
    let run = at(&["grow", "v.lane", "--size", "192M"]).ok();
    assert!(run.out.contains("192") && run.out.contains("64"), "{run:?}");
    assert_eq!(
        (std::fs::metadata(&image).unwrap().len(), size(dir.path(), "v.lane")),
        (192 * MIB, 192 * MIB)
    );
    assert!(usable(dir.path(), "v.lane") > before + 110 * MIB);
    at(&["fsck", "v.lane"]).ok();
    at(&["grow", "v.lane", "--size", "100M"]).fails(1, &["v.lane", "cannot be made smaller"]);
    at(&["grow", "v.lane", "--size", "201330688"]).fails(1, &["at least"]);
    at(&["grow", "v.lane", "--size", "1E"]).fails(1, &["v.lane", "less than 64 PiB"]);
    at(&["mkfs", "new.lane", "--size", "1E"]).fails(1, &["choose a smaller size"]);
    assert!(!dir.path().join("new.lane").exists());
    assert_eq!(size(dir.path(), "v.lane"), 192 * MIB);
    let run = at(&["grow", "v.lane", "--size", "192M"]).ok();
    assert!(run.out.contains("as before"), "{run:?}");
    // A file that somebody else made longer.
    std::fs::File::options().write(true).open(&image).unwrap().set_len(256 * MIB).unwrap();
    at(&["grow", "-q", "v.lane"]).ok();
    assert_eq!(size(dir.path(), "v.lane"), 256 * MIB);
    std::fs::write(dir.path().join("host2"), content(2, 200 << 20)).unwrap();
    at(&["cp", "host2", "v.lane:/after"]).ok();
    at(&["scrub", "v.lane"]).ok();
    at(&["fsck", "v.lane"]).ok();
    at(&["cp", "v.lane:/before", "v.lane:/after", "."]).ok();
    assert!(std::fs::read(dir.path().join("after")).unwrap() == content(2, 200 << 20));
    assert!(std::fs::read(dir.path().join("before")).unwrap() == content(1, 3 << 20));
    at(&["grow", "no.lane"]).fails(1, &["no.lane", "no such image"]);
}

fn a_mounted_volume_grows_while_a_program_writes() {
    const LEN: usize = 1 << 20;
    let mut m = Mount::new(&[]);
    let (stop, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    // 256 MiB hold less than 300 of these: the last ones find room only where the volume has grown.
    let write = |n: usize| {
        let mut f = std::fs::File::create(m.path(&format!("f{n}")))?;
        f.write_all(&content(n, LEN))?;
        f.sync_all()
    };
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::SeqCst) || n == 400 {
                    break;
                }
                write(n).unwrap_or_else(|e| panic!("file {n}: {e}"));
                written.store(n + 1, Ordering::SeqCst);
            }
        });
        for (files, target) in [(20, "320M"), (60, "512M"), (120, "768M")] {
            while written.load(Ordering::SeqCst) < files && !writer.is_finished() {
                std::thread::yield_now();
            }
            let place = if files == 60 { "v.lane" } else { "mnt" };
            let run = lanefs_in(m.work.path(), &["grow", place, "--size", target]);
            if run.code != 0 {
                stop.store(true, Ordering::SeqCst);
            }
            run.ok();
        }
        writer.join().unwrap();
    });
    assert_eq!(written.load(Ordering::SeqCst), 400);
    assert_eq!((size(m.work.path(), "mnt"), size(m.work.path(), "v.lane")), (768 * MIB, 768 * MIB));
    let statvfs = rustix::fs::statvfs(&m.dir).unwrap();
    assert!(statvfs.f_blocks * statvfs.f_frsize > 700 * MIB);
    lanefs_in(m.work.path(), &["grow", "mnt", "--size", "300M"]).fails(1, &["cannot be made smaller"]);
    lanefs_in(m.work.path(), &["scrub", "mnt"]).ok();
    m.umount();
    m.fsck();
    m.mount(&[]);
    for n in 0..400 {
        assert!(std::fs::read(m.path(&format!("f{n}"))).unwrap() == content(n, LEN), "file {n}");
    }
    assert_eq!(size(m.work.path(), "mnt"), 768 * MIB);
}

fn what_was_grown_survives_a_kill() {
    let mut m = Mount::new(&[]);
    lanefs_in(m.work.path(), &["grow", "mnt", "--size", "512M"]).ok();
    for n in 0..300 {
        let mut f = std::fs::File::create(m.path(&format!("f{n}"))).unwrap();
        f.write_all(&content(n, 1 << 20)).unwrap();
        f.sync_all().unwrap();
    }
    let pid = rustix::process::Pid::from_raw(m.server()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    m.umount();
    m.fsck();
    m.mount(&[]);
    assert_eq!(size(m.work.path(), "mnt"), 512 * MIB);
    for n in 0..300 {
        assert!(std::fs::read(m.path(&format!("f{n}"))).unwrap() == content(n, 1 << 20), "file {n}");
    }
}

/// By the name of one volume nobody changes another.
#[test]
fn an_image_with_another_ones_old_name_is_not_the_mounted_one() {
    let m = Mount::new(&[]);
    let work = m.work.path();
    std::fs::rename(m.image(), work.join("old.lane")).unwrap();
    lanefs_in(work, &["mkfs", "--size", "64M", "--label", "new", "v.lane"]).ok();
    lanefs_in(work, &["grow", "v.lane", "--size", "96M"]).ok();
    lanefs_in(work, &["label", "v.lane", "mine"]).ok();
    assert_eq!((size(work, "v.lane"), size(work, "mnt")), (96 * MIB, 256 * MIB));
    assert_eq!(lanefs_in(work, &["label", "v.lane"]).ok().out, "mine\n");
    assert_eq!(lanefs_in(work, &["label", "mnt"]).ok().out, "\n");
    assert!(usable(work, "v.lane") < 96 * MIB, "df tells of the mounted one");
}

#[test]
fn a_volume_whose_mount_another_one_covers_is_not_that_one() {
    let mut below = Mount::new(&[]);
    let work = below.work.path().to_path_buf();
    lanefs_in(&work, &["mkfs", "--size", "64M", "--label", "above", "w.lane"]).ok();
    let said = lanefs_in(&work, &["mount", "w.lane", "mnt"]).ok().out;
    assert!(said.starts_with("mnt: requests ") && said.contains("; permissions "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let runs = [&["grow", "v.lane", "--size", "512M"][..], &["label", "v.lane", "wrong"]]
        .map(|args| lanefs_in(&work, args));
    let above = (size(&work, "w.lane"), lanefs_in(&work, &["label", "w.lane"]));
    lanefs_in(&work, &["umount", "mnt"]).ok();
    for run in runs {
        run.fails(1, &["v.lane", "in use by process"]);
    }
    assert_eq!((above.0, above.1.ok().out.as_str()), (64 * MIB, "above\n"));
    assert_eq!(size(&work, "v.lane"), 256 * MIB);
    below.umount();
}

/// Whatever is asked of a mount whose server is gone, the answer says what to do.
#[test]
fn a_mount_whose_server_is_gone_is_named_as_that() {
    let mut m = Mount::new(&[]);
    let pid = rustix::process::Pid::from_raw(m.server()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while std::fs::metadata(&m.dir).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for command in ["df", "info", "label", "grow", "scrub", "ls"] {
        let run = lanefs_in(m.work.path(), &[command, "mnt"]);
        assert!(run.code != 0 && run.err.contains("lanefs umount mnt"), "{command}: {run:?}");
    }
    // The image is there, and free.
    lanefs_in(m.work.path(), &["df", "v.lane"]).ok();
    m.umount();
    m.fsck();
}

#[test]
fn an_image_is_given_another_label() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    let export = || at(&["info", "--export", "v.lane"]).ok().out;
    let uuid = at(&["info", "--json", "v.lane"]).ok().json()["uuid"].as_str().unwrap().to_string();
    let lines = |label: &str| format!("DEVNAME=v.lane\nUUID={uuid}\n{label}BLOCK_SIZE=4096\nTYPE=lanefs\n");
    assert_eq!(at(&["label", "v.lane"]).ok().out, "\n");
    assert_eq!(export(), lines(""));
    at(&["label", "v.lane", "my home"]).ok();
    assert_eq!(at(&["label", "v.lane"]).ok().out, "my home\n");
    assert_eq!(export(), lines("LABEL=my\\ home\n"));
    at(&["label", "v.lane", &"x".repeat(65)]).fails(1, &["64 bytes"]);
    at(&["label", "v.lane", "a\nb"]).fails(1, &["control"]);
    at(&["label", "v.lane", ""]).ok();
    assert_eq!(export(), lines(""));
    at(&["fsck", "v.lane"]).ok();
}

fn a_mounted_volume_is_given_another_label() {
    let mut m = Mount::new(&[]);
    std::fs::write(m.path("f"), b"x").unwrap();
    let work = m.work.path().to_path_buf();
    let label = |place: &str| lanefs_in(&work, &["label", place]).ok().out;
    lanefs_in(&work, &["label", "mnt", "one"]).ok();
    assert_eq!((label("mnt").as_str(), label("v.lane").as_str()), ("one\n", "one\n"));
    lanefs_in(&work, &["label", "v.lane", "two"]).ok();
    lanefs_in(&work, &["label", "mnt", &"x".repeat(65)]).fails(1, &["64 bytes"]);
    assert_eq!(label("mnt"), "two\n");
    assert!(lanefs_in(&work, &["info", "--export", "mnt"]).ok().out.contains("LABEL=two\n"));
    m.umount();
    m.fsck();
    assert_eq!(label("v.lane"), "two\n");
    m.mount(&["-o", "ro"]);
    lanefs_in(&work, &["label", "mnt", "three"]).fails(1, &["ead-only"]);
    lanefs_in(&work, &["grow", "mnt", "--size", "512M"]).fails(1, &["ead-only"]);
}

fn an_ordinary_user_changes_no_volume_of_another() {
    let m = Mount::new(&[]);
    std::fs::set_permissions(m.work.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // The one that was built may lie where that user may not go.
    let program = m.work.path().join("lanefs");
    std::fs::copy(LANEFS, &program).unwrap();
    for args in [&["grow", "mnt", "--size", "512M"][..], &["label", "mnt", "mine"]] {
        let mut command = Command::new(&program);
        command.args(args).current_dir(m.work.path());
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        run_command(&mut command).fails(1, &["only root (with CAP_SYS_ADMIN), or the user who mounted it"]);
    }
    assert_eq!(size(m.work.path(), "mnt"), 256 * MIB);
}

/// A loop device that goes away with the test.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_block_device_that_was_made_longer_is_used_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    let set_len =
        |mib: u64| std::fs::File::options().create(true).append(true).open(&file)?.set_len(mib * MIB);
    set_len(64).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
    let Some(made) = made.ok().filter(|m| m.status.success()) else { return }; // No loop devices here.
    let device = Loop(String::from_utf8(made.stdout).unwrap().trim().to_string());
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["mkfs", &device.0]).ok();
    at(&["grow", &device.0, "--size", "128M"]).fails(1, &["not made longer", "leave the size out"]);
    set_len(128).unwrap();
    assert!(Command::new("losetup").args(["-c", &device.0]).status().unwrap().success());
    at(&["grow", &device.0]).ok();
    assert_eq!(size(dir.path(), &device.0), 128 * MIB);
    at(&["fsck", &device.0]).ok();
}
