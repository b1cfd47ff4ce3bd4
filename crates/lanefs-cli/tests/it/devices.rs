//! `lanefs shrink` and `lanefs device`, of images and of mounted volumes that are used meanwhile.

use crate::common::*;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

on_each_transport! {
    devices_come_and_go_below_a_mount_that_is_written_to,
}

const MIB: u64 = 1 << 20;

fn content(file: usize, len: usize) -> Vec<u8> {
    (0..len / 8).flat_map(|i| ((file << 32 | i) as u64).to_le_bytes()).collect()
}

/// The bytes of all devices, and how many these are.
fn size(work: &Path, place: &str) -> (u64, u64) {
    let info = lanefs_in(work, &["info", "--json", place]).ok().json();
    (info["total_blocks"].as_u64().unwrap() * 4096, info["devices"].as_u64().unwrap())
}

fn len(work: &Path, image: &str) -> u64 {
    std::fs::metadata(work.join(image)).unwrap().len()
}

/// The image that was made for it was removed when the last word could not be said, and the volume
/// named it by then.
#[test]
fn an_added_image_stays_though_nobody_reads_what_is_said() {
    let (dir, _) = volume("64M");
    let say_nobody = |args: &[&str]| {
        let (nobody, to) = std::io::pipe().unwrap();
        drop(nobody);
        std::process::Command::new(LANEFS).args(args).current_dir(dir.path()).stdout(to).status().unwrap();
    };
    say_nobody(&["device", "add", "v.lane", "w.lane", "--size", "32M"]);
    assert_eq!(size(dir.path(), "v.lane,w.lane"), (96 * MIB, 2));
    say_nobody(&["device", "replace", "v.lane,w.lane", "w.lane", "x.lane", "--size", "32M"]);
    assert_eq!(size(dir.path(), "v.lane,x.lane"), (96 * MIB, 2));
}

#[test]
fn images_are_added_grown_shrunk_and_removed() {
    let (dir, _) = volume("64M");
    let work = dir.path();
    let at = |args: &[&str]| lanefs_in(work, args);
    for n in 0..3 {
        std::fs::write(work.join(format!("host{n}")), content(n, 16 << 20)).unwrap();
    }
    at(&["cp", "host0", "v.lane:/f0"]).ok();
    at(&["device", "add", "v.lane", "w.lane"]).fails(1, &["does not exist", "--size"]);
    let run = at(&["device", "add", "v.lane", "w.lane", "--size", "32M"]).ok();
    assert!(run.out.contains("96") && run.out.contains("64"), "{run:?}");
    assert_eq!(size(work, "v.lane,w.lane"), (96 * MIB, 2));
    at(&["info", "v.lane"]).fails(1, &["device 1 is missing"]);
    at(&["info", "w.lane"]).fails(1, &["device 0"]);
    at(&["device", "add", "v.lane,w.lane", "w.lane"]).fails(1, &["w.lane"]);
    at(&["cp", "host1", "v.lane,w.lane:/f1"]).ok();
    at(&["grow", "v.lane,w.lane", "--size", "64M"]).ok();
    assert_eq!((len(work, "v.lane"), len(work, "w.lane")), (64 * MIB, 64 * MIB));
    at(&["cp", "host2", "v.lane,w.lane:/f2"]).ok();
    at(&["fsck", "v.lane", "w.lane"]).ok();
    // 48 MiB are there.
    at(&["device", "remove", "v.lane,w.lane", "v.lane"]).fails(1, &["only the last device", "w.lane"]);
    at(&["device", "remove", "v.lane,w.lane", "host0"]).fails(1, &["no device of the volume"]);
    at(&["device", "replace", "v.lane,w.lane", "host0", "x.lane", "--size", "64M"])
        .fails(1, &["no device of the volume"]);
    let small = ["device", "replace", "v.lane,w.lane", "v.lane", "x.lane", "--size", "63M"];
    at(&small).fails(1, &["too small", "67108864"]);
    assert!(!work.join("x.lane").exists(), "it was made for nothing");
    let run = at(&["device", "replace", "v.lane,w.lane", "v.lane", "x.lane", "--size", "64M"]).ok();
    assert!(run.out.contains("x.lane in place of v.lane"), "{run:?}");
    at(&["info", "v.lane,w.lane"]).fails(1, &["v.lane: not a LaneFS volume"]);
    at(&["fsck", "x.lane,w.lane"]).ok();
    at(&["device", "replace", "-q", "x.lane,w.lane", "x.lane", "v.lane", "--force"]).ok();
    at(&["fsck", "v.lane", "w.lane"]).ok();
    at(&["shrink", "v.lane,w.lane", "--size", "16M"]).ok();
    assert_eq!(len(work, "w.lane"), 16 * MIB);
    at(&["fsck", "v.lane", "w.lane"]).ok();
    at(&["device", "remove", "v.lane,w.lane", "w.lane"]).ok();
    assert_eq!(size(work, "v.lane"), (64 * MIB, 1));
    at(&["info", "v.lane", "w.lane"]).fails(1, &["w.lane"]);
    let run = at(&["shrink", "v.lane", "--size", "32M"]).fails(1, &["needs", "delete files"]);
    let smallest = run.err.split("needs ").nth(1).unwrap().split(' ').next().unwrap();
    at(&["shrink", "-q", "v.lane", "--size", smallest]).ok();
    assert_eq!(len(work, "v.lane").to_string(), smallest);
    at(&["shrink", "v.lane", "--size", "64M"]).fails(1, &["would lose no segment"]);
    at(&["fsck", "v.lane"]).ok();
    at(&["scrub", "v.lane"]).ok();
    for n in 0..3 {
        at(&["cp", &format!("v.lane:/f{n}"), "back"]).ok();
        assert!(std::fs::read(work.join("back")).unwrap() == content(n, 16 << 20), "file {n}");
    }
    // What holds something is not overwritten without a word.
    at(&["device", "add", "v.lane", "host0"]).fails(1, &["--force"]);
    at(&["device", "add", "v.lane", "host0", "--force"]).ok();
    at(&["fsck", "v.lane", "host0"]).ok();
}

fn devices_come_and_go_below_a_mount_that_is_written_to() {
    const LEN: usize = 256 << 10;
    let mut m = Mount::new(&["-o", "mlogs=1"]);
    let work = m.work.path().to_path_buf();
    let stop = AtomicBool::new(false);
    let write = |n: usize| {
        let mut f = std::fs::File::create(m.path(&format!("f{}", n % 200)))?;
        f.write_all(&content(n, LEN))?;
        f.sync_all()
    };
    let run = |args: &[&str]| {
        let run = lanefs_in(&work, args);
        if run.code != 0 {
            stop.store(true, Ordering::SeqCst);
        }
        run.ok()
    };
    let written = std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::SeqCst) && n >= 200 {
                    return n;
                }
                write(n).unwrap_or_else(|e| panic!("file {n}: {e}"));
            }
            0
        });
        let own = lanefs_in(&work, &["device", "add", "mnt", "mnt/own.lane", "--size", "8M"]);
        own.fails(1, &["lies on the volume that is mounted at", "elsewhere"]);
        assert!(!m.path("own.lane").exists(), "what was made for it is removed");
        run(&["device", "add", "mnt", "w.lane", "--size", "128M"]);
        assert_eq!(size(&work, "mnt"), (384 * MIB, 2));
        run(&["device", "add", "v.lane", "x.lane", "--size", "64M"]);
        run(&["device", "remove", "mnt", "x.lane"]);
        run(&["shrink", "mnt", "--size", "64M"]);
        assert_eq!(len(&work, "w.lane"), 64 * MIB);
        lanefs_in(&work, &["grow", "v.lane", "--size", "1G"]).fails(1, &["only the last device", "w.lane"]);
        run(&["grow", "mnt", "--size", "96M"]);
        // Any of them is replaced, the one behind the mount's name too.
        run(&["device", "replace", "mnt", "w.lane", "z.lane", "--size", "128M"]);
        run(&["device", "replace", "mnt", "v.lane", "y.lane", "--size", "256M"]);
        std::fs::remove_file(work.join("v.lane")).unwrap();
        run(&["device", "replace", "mnt", "y.lane", "v.lane", "--size", "256M"]);
        run(&["device", "replace", "mnt", "z.lane", "w.lane", "--force"]);
        run(&["device", "remove", "mnt", "w.lane"]);
        run(&["shrink", "mnt", "--size", "160M"]);
        assert_eq!((size(&work, "mnt"), len(&work, "v.lane")), ((160 * MIB, 1), 160 * MIB));
        stop.store(true, Ordering::SeqCst);
        writer.join().unwrap()
    });
    let statvfs = rustix::fs::statvfs(&m.dir).unwrap();
    assert!(statvfs.f_blocks * statvfs.f_frsize < 160 * MIB);
    lanefs_in(&work, &["shrink", "mnt", "--size", "20M"]).fails(1, &["needs"]);
    lanefs_in(&work, &["scrub", "mnt"]).ok();
    m.umount();
    m.fsck();
    m.mount(&[]);
    for n in written - 200..written {
        assert!(std::fs::read(m.path(&format!("f{}", n % 200))).unwrap() == content(n, LEN), "file {n}");
    }
    // Both ways of naming several images.
    run(&["device", "add", "mnt", "w.lane", "--force"]);
    m.umount();
    for images in [&["v.lane,w.lane"][..], &["v.lane", "w.lane"]] {
        run(&[&["mount"], images, &["mnt"]].concat());
        let there = std::fs::read_dir(&m.dir).unwrap().count();
        umount_when_free(&work).ok();
        assert_eq!(there, 200, "{images:?}");
    }
}
