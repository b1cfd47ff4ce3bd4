//! Volumes that the kernel mounts as block devices, of which it tells the server more: `sync` and
//! `syncfs` are promises, and an unmount ends when the volume is closed.

use crate::common::*;
use lanefs_store::Store;
use lanefs_store::device::{Device, FileDevice};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

on_each_transport! {
    what_syncfs_covered_survives_the_end_of_the_server,
    what_sync_covered_survives_the_end_of_the_server,
    an_unmount_returns_when_the_volume_is_closed,
    a_block_device_is_mounted_as_one_and_is_nobody_elses_meanwhile,
    an_image_behind_a_loop_device_is_known_by_its_name,
    an_image_goes_by_its_name_while_a_loop_device_stands_for_it,
    an_image_has_one_user_whatever_loop_devices_it_has,
    parts_of_a_file_have_users_of_their_own,
    a_signal_ends_a_mount_of_a_block_device_in_use,
    a_device_that_takes_no_writes_is_named_as_one,
    a_device_that_becomes_smaller_has_failed,
}

/// Nothing is made durable but what a test asks for; the image is read and written by way of a loop
/// device.
const QUIET: &[&str] = &["-o", "loop,commit=3600,dirty_expire=3600"];

/// The same, with a loop device that only stands for the image.
const QUIET_FILE: &[&str] = &["-o", "commit=3600,dirty_expire=3600"];

/// A volume in a file that is not mounted yet.
fn unmounted() -> Mount {
    let mut m = Mount::new(&[]);
    m.umount();
    m
}

fn loops_of(image: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir("/sys/block").unwrap().flatten();
    let is_of = |dir: &Path| {
        let backing = std::fs::read_to_string(dir.join("loop/backing_file")).unwrap_or_default();
        Path::new(backing.trim_end_matches('\n')) == image
    };
    all.map(|e| e.path()).filter(|dir| is_of(dir)).collect()
}

/// The kernel detaches a loop device when the last of its users is gone, a moment later.
fn is_detached(image: &Path) -> bool {
    let begun = Instant::now();
    while !loops_of(image).is_empty() {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Ends the server of a mount as a crash of it would, and takes the dead mount away.
fn kill_server(m: &mut Mount) {
    let pid = Pid::from_raw(m.server_of_mount() as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let begun = Instant::now();
    // Until the last thread is gone.
    while std::fs::metadata(&m.dir).is_ok() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    unmount_when_free(&m.dir);
}

/// By umount(2), which waits for nobody else. A file of the mount that a test had open is open in a
/// child that another test has forked, too, until that runs its program.
fn unmount_when_free(dir: &Path) {
    let begun = Instant::now();
    loop {
        match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::BUSY) if begun.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done.unwrap(),
        }
    }
}

fn what_is_covered_survives(sync: fn(&Path)) {
    let mut m = unmounted();
    for turn in 0..4 {
        m.mount(if turn % 2 == 0 { QUIET } else { QUIET_FILE });
        assert_eq!(mount_line(&m.dir).unwrap().0, "fuseblk.lanefs");
        std::fs::create_dir(m.path(&format!("d{turn}"))).unwrap();
        std::fs::write(m.path(&format!("d{turn}/f")), vec![turn; 100_000]).unwrap();
        sync(&m.dir);
        kill_server(&mut m);
        assert!(is_detached(&m.image()));
    }
    m.mount(QUIET);
    for turn in 0..4 {
        assert_eq!(std::fs::read(m.path(&format!("d{turn}/f"))).unwrap(), vec![turn; 100_000]);
    }
    m.umount();
    assert!(is_detached(&m.image()));
    m.fsck();
}

fn what_syncfs_covered_survives_the_end_of_the_server() {
    what_is_covered_survives(|dir| rustix::fs::syncfs(File::open(dir).unwrap()).unwrap());
}

fn what_sync_covered_survives_the_end_of_the_server() {
    what_is_covered_survives(|_| rustix::fs::sync());
}

fn an_unmount_returns_when_the_volume_is_closed() {
    let mut m = unmounted();
    for turn in 0..6 {
        m.mount(if turn % 2 == 0 { QUIET } else { QUIET_FILE });
        for n in 0..200 {
            std::fs::write(m.path(&format!("f{turn}-{n}")), "content").unwrap();
        }
        unmount_when_free(&m.dir);
        assert!(is_detached(&m.image()));
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(m.image(), true).unwrap());
        assert!(Store::was_closed(vec![device]).unwrap());
    }
    m.fsck();
}

/// A loop device that stays until it is detached.
struct Losetup(String);

impl Losetup {
    fn new(image: &Path) -> Losetup {
        Losetup::with(&[], image)
    }
    fn with(options: &[&str], image: &Path) -> Losetup {
        let run =
            run_command(Command::new("losetup").args(["--find", "--show"]).args(options).arg(image)).ok();
        Losetup(run.out.trim_end().into())
    }
}

impl Drop for Losetup {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn a_block_device_is_mounted_as_one_and_is_nobody_elses_meanwhile() {
    let mut m = unmounted();
    let device = Losetup::new(&m.image());
    let mount = |options: &str| {
        let how = format!("{options},{}", transport().option());
        lanefs_in(m.work.path(), &["mount", "-o", &how, &device.0, "mnt"])
    };
    for options in ["rw", "ro"] {
        mount(options).ok();
        let (kind, source, flags) = mount_line(&m.dir).unwrap();
        assert_eq!((kind.as_str(), source.as_str()), ("fuseblk.lanefs", device.0.as_str()));
        assert!(flags.split(',').any(|f| f == options), "{flags}");
        if options == "rw" {
            std::fs::write(m.path("f"), "content").unwrap();
            rustix::fs::syncfs(File::open(&m.dir).unwrap()).unwrap();
            lanefs_in(m.work.path(), &["mkfs", "--force", &device.0]).fails(1, &["in use"]);
            let twice = File::options().write(true).open(&device.0).is_ok();
            assert!(twice, "the kernel lets others open it who do not ask to be alone");
        }
        assert_eq!(std::fs::read(m.path("f")).unwrap(), b"content");
        lanefs_in(m.work.path(), &["df", "mnt"]).ok();
        lanefs_in(m.work.path(), &["umount", "mnt"]).ok();
        lanefs_in(m.work.path(), &["fsck", &device.0]).ok();
    }
    drop(device);
    assert!(is_detached(&m.image()));
    m.mount(&["-o", "noloop"]);
    assert_eq!(mount_line(&m.dir).unwrap().0, "fuse.lanefs", "an image in a file is none");
}

/// The device has no bytes, so nobody can do anything to the volume by it, nor does it keep others
/// from the image: not even when the server was killed and the dead mount is still there.
fn an_image_goes_by_its_name_while_a_loop_device_stands_for_it() {
    let mut m = unmounted();
    std::fs::create_dir(m.work.path().join("other")).unwrap();
    for options in ["rw", "ro"] {
        m.mount(&["-o", options]);
        let (kind, source, flags) = mount_line(&m.dir).unwrap();
        assert_eq!(kind, "fuseblk.lanefs");
        assert!(flags.split(',').any(|f| f == options), "{flags}");
        let [device] = &loops_of(&m.image())[..] else { panic!("one stands for it") };
        assert_eq!(std::fs::read_to_string(device.join("size")).unwrap().trim_end(), "0");
        assert_eq!(std::fs::read(&source).unwrap(), [0; 0]);
        lanefs_in(m.work.path(), &["mkfs", "--force", &source]).fails(1, &[&source]);
        lanefs_in(m.work.path(), &["mkfs", "--force", "v.lane"]).fails(1, &["in use"]);
        if options == "rw" {
            std::fs::write(m.path("f"), "content").unwrap();
            lanefs_in(m.work.path(), &["mount", "v.lane", "other"]).fails(1, &["in use"]);
        }
        for name in ["v.lane", "mnt", &source] {
            lanefs_in(m.work.path(), &["df", name]).ok();
            let told = lanefs_in(m.work.path(), &["info", name]).ok().out;
            // Who only reads beside one that only reads opens the image itself.
            assert!(options == "ro" || told.contains("mounted at"), "{name}: {told}");
        }
        if options == "rw" {
            // The device of the volume is the image, by that name too.
            let replace = |old: &str, new: &[&str]| {
                lanefs_in(m.work.path(), &[&["device", "replace", "mnt", old], new].concat()).ok()
            };
            replace(&source, &["w.lane", "--size", "256M"]);
            replace("w.lane", &["v.lane", "--force"]);
            lanefs_in(m.work.path(), &["device", "remove", "mnt", &source]).fails(1, &["v.lane"]);
        }
        m.umount();
        assert!(is_detached(&m.image()));
    }
    // As of an image that is mounted without.
    m.mount(&[]);
    std::fs::write(m.path("g"), "content").unwrap();
    File::open(m.path("g")).unwrap().sync_all().unwrap();
    let pid = Pid::from_raw(m.server_of_mount() as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert!(is_gone(pid));
    assert_eq!(loops_of(&m.image()).len(), 1, "the dead mount has it");
    lanefs_in(m.work.path(), &["fsck", "v.lane"]).ok();
    lanefs_in(m.work.path(), &["mount", "v.lane", "other"]).ok();
    assert_eq!(std::fs::read(m.work.path().join("other/g")).unwrap(), b"content");
    lanefs_in(m.work.path(), &["umount", "other"]).ok();
    unmount_when_free(&m.dir);
    assert!(is_detached(&m.image()));
    m.fsck();
}

fn an_image_behind_a_loop_device_is_known_by_its_name() {
    let mut m = unmounted();
    m.mount(QUIET);
    std::fs::write(m.path("f"), "content").unwrap();
    lanefs_in(m.work.path(), &["df", "v.lane"]).ok();
    lanefs_in(m.work.path(), &["info", "v.lane"]).ok();
    let other = m.work.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for options in ["loop", "rw"] {
        lanefs_in(m.work.path(), &["mount", "-o", options, "v.lane", "other"])
            .fails(1, &["v.lane", "attached as /dev/loop"]);
    }
    // The kernel's knobs of the mount's own device are found: it may gather writes as for any file
    // system.
    let device = loops_of(&m.image()).pop().unwrap();
    let number = std::fs::read_to_string(device.join("dev")).unwrap();
    let bdi = format!("/sys/class/bdi/{}-fuseblk", number.trim_end());
    assert_eq!(std::fs::read_to_string(format!("{bdi}/read_ahead_kb")).unwrap().trim_end(), "1024");
    m.umount();
    assert!(is_detached(&m.image()));
    m.fsck();
}

/// Each of two mounts wrote over what the other had made durable.
fn an_image_has_one_user_whatever_loop_devices_it_has() {
    let mut m = unmounted();
    std::fs::create_dir(m.work.path().join("other")).unwrap();
    let in_use = |m: &Mount, device: &str| {
        let commands: [&[&str]; 4] = [
            &["mount", device, "other"],
            &["mount", "-o", "ro", device, "other"],
            &["fsck", device],
            &["mkfs", "--force", device],
        ];
        for command in commands {
            // As fsck(8) has it, in the one case.
            let code = if command[0] == "fsck" { 8 } else { 1 };
            lanefs_in(m.work.path(), command).fails(code, &["in use"]);
        }
    };
    // The file is mounted, and then attached.
    m.mount(&[]);
    std::fs::write(m.path("f"), "content").unwrap();
    let (one, two) = (Losetup::new(&m.image()), Losetup::new(&m.image()));
    in_use(&m, &one.0);
    assert_eq!(std::fs::read(m.path("f")).unwrap(), b"content");
    m.umount();
    // One device of two is mounted.
    let how = transport().option();
    lanefs_in(m.work.path(), &["mount", "-o", &how, &one.0, "mnt"]).ok();
    m.is_mounted();
    in_use(&m, &two.0);
    assert_eq!(std::fs::read(m.path("f")).unwrap(), b"content");
    lanefs_in(m.work.path(), &["umount", "mnt"]).ok();
    m.is_unmounted();
    lanefs_in(m.work.path(), &["fsck", &two.0]).ok();
    drop((one, two));
    assert!(is_detached(&m.image()));
    m.fsck();
}

/// As partitions of a disk are.
fn parts_of_a_file_have_users_of_their_own() {
    let mut m = unmounted();
    let disk = m.work.path().join("disk");
    File::create(&disk).unwrap().set_len(192 << 20).unwrap();
    let part = |offset| Losetup::with(&["--offset", offset, "--sizelimit", "64MiB"], &disk);
    let (one, two, across) = (part("0"), part("64MiB"), part("32MiB"));
    for device in [&one, &two] {
        lanefs_in(m.work.path(), &["mkfs", &device.0]).ok();
    }
    let how = transport().option();
    lanefs_in(m.work.path(), &["mount", "-o", &how, &one.0, "mnt"]).ok();
    m.is_mounted();
    lanefs_in(m.work.path(), &["fsck", &two.0]).ok();
    lanefs_in(m.work.path(), &["mkfs", "--force", &across.0]).fails(1, &["in use"]);
    lanefs_in(m.work.path(), &["umount", "mnt"]).ok();
    m.is_unmounted();
    lanefs_in(m.work.path(), &["fsck", &one.0]).ok();
    drop((one, two, across));
    assert!(is_detached(&disk));
    m.mount(&[]);
}

/// Those who use the mount fail, and what they had written is there.
fn a_signal_ends_a_mount_of_a_block_device_in_use() {
    let mut m = unmounted();
    m.mount(QUIET);
    let mut file = File::create(m.path("f")).unwrap();
    std::io::Write::write_all(&mut file, &[7; 300_000]).unwrap();
    let pid = Pid::from_raw(m.server_of_mount() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(is_gone(pid), "the server does not end");
    assert!(file.sync_all().is_err());
    drop(file);
    assert_eq!(mount_line(&m.dir), None);
    assert!(is_detached(&m.image()));
    m.mount(&[]);
    assert_eq!(std::fs::read(m.path("f")).unwrap(), [7; 300_000]);
}

fn is_gone(pid: Pid) -> bool {
    let begun = Instant::now();
    while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
        if begun.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The kernel opens it for writing all the same, and the first write failed as if it were broken.
fn a_device_that_takes_no_writes_is_named_as_one() {
    let m = unmounted();
    let device = Losetup::with(&["--read-only"], &m.image());
    let mount = |options: &str| {
        let how = format!("{options},{}", transport().option());
        lanefs_in(m.work.path(), &["mount", "-o", &how, &device.0, "mnt"])
    };
    mount("rw").fails(1, &[&device.0, "read-only", "-o ro"]);
    mount("ro").ok();
    lanefs_in(m.work.path(), &["umount", "mnt"]).ok();
    m.fsck();
}

/// The kernel says "no space" of what lies behind the end of a device. That was taken for a full
/// host: everybody waited for space that was not to come, and an unmount for ever.
fn a_device_that_becomes_smaller_has_failed() {
    let mut m = unmounted();
    let device = Losetup::new(&m.image());
    let how = transport().option();
    lanefs_in(m.work.path(), &["mount", "-o", &how, &device.0, "mnt"]).ok();
    m.is_mounted();
    std::fs::write(m.path("before"), "content").unwrap();
    File::open(m.path("before")).unwrap().sync_all().unwrap();
    File::options().write(true).open(m.image()).unwrap().set_len(32 << 20).unwrap();
    run_command(Command::new("losetup").args(["--set-capacity", &device.0])).ok();
    let mut failed = None;
    for n in 0..200 {
        let content: Vec<u8> = (0..1_000_000u32).map(|i| (i * 31 + n) as u8).collect();
        let write = || -> std::io::Result<()> {
            let mut file = File::create(m.path(&format!("f{n}")))?;
            std::io::Write::write_all(&mut file, &content)?;
            file.sync_all()
        };
        if let Err(e) = write() {
            failed = e.raw_os_error();
            break;
        }
    }
    assert!(matches!(failed, Some(libc::EIO | libc::EROFS)), "{failed:?}");
    let told = lanefs_in(m.work.path(), &["stat", "mnt"]).ok().out;
    assert!(told.contains("has become smaller") && !told.contains("waiting for space"), "{told}");
    let begun = Instant::now();
    // It was unmounted without a word, as if it had been closed.
    umount_when_free(m.work.path()).fails(1, &[&device.0, "cannot be read", "full size", "log"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "the unmount waited");
    assert_eq!(mount_line(&m.dir), None);
}
