//! Files without a name on a mount: what the kernel still knows is there.

use crate::common::*;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

on_each_transport! {
    a_temporary_file_gets_a_name_or_goes,
    what_the_kernel_knows_is_not_stale_and_what_it_forgot_gives_its_room_back,
    a_birth_time_is_told_and_stays,
}

/// Long enough for the background thread of a volume that commits every second to free what may be
/// freed.
const ROUNDS: Duration = Duration::from_millis(2500);

fn a_temporary_file_gets_a_name_or_goes() {
    let mut m = Mount::new(&["-o", "commit=1"]);
    let make = |flags| {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC | flags;
        rustix::fs::open(&m.dir, flags, Mode::from_raw_mode(0o640)).map(File::from)
    };
    let name = |file: &File, to: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, from, CWD, m.path(to), AtFlags::SYMLINK_FOLLOW)
    };
    let file = make(OFlags::empty()).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(std::fs::read_dir(&m.dir).unwrap().count(), 0);
    std::thread::sleep(ROUNDS);
    name(&file, "named").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    let secret = make(OFlags::EXCL).unwrap();
    assert_eq!(name(&secret, "secret"), Err(rustix::io::Errno::NOENT), "O_EXCL: never to be named");
    drop((file, secret));
    m.remount();
    assert_eq!(std::fs::read(m.path("named")).unwrap(), b"content");
    assert_eq!(std::fs::metadata(m.path("named")).unwrap().mode() & 0o777, 0o640);
    m.umount();
    m.fsck();
}

fn what_the_kernel_knows_is_not_stale_and_what_it_forgot_gives_its_room_back() {
    let mut m = Mount::new(&["-o", "commit=1"]);
    let free = |m: &Mount| rustix::fs::statvfs(&m.dir).unwrap().f_bfree;
    std::fs::create_dir(m.path("dir")).unwrap();
    // Handles of which a FUSE server is told nothing.
    let path_of = |n: &str| {
        rustix::fs::open(m.path(n), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(File::from).unwrap()
    };
    let dir = path_of("dir");
    std::fs::write(m.path("file"), vec![7; 8 << 20]).unwrap();
    let file = path_of("file");
    File::open(m.path("file")).unwrap().sync_all().unwrap();
    let full = free(&m);
    std::fs::remove_dir(m.path("dir")).unwrap();
    std::fs::remove_file(m.path("file")).unwrap();
    std::thread::sleep(ROUNDS);
    for (what, handle) in [("directory", &dir), ("file", &file)] {
        let stat =
            rustix::fs::statx(handle, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(stat.stx_nlink, 0, "{what}");
    }
    let again = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert!(again == vec![7; 8 << 20], "a file opened again by its handle");
    drop((dir, file));
    let start = Instant::now();
    while free(&m) < full + 2000 {
        assert!(start.elapsed() < Duration::from_secs(60), "the room of a forgotten file does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
    m.umount();
    m.fsck();
}

fn a_birth_time_is_told_and_stays() {
    let mut m = Mount::new(&[]);
    std::fs::write(m.path("f"), "content").unwrap();
    let born = |m: &Mount| {
        let stat = rustix::fs::statx(CWD, m.path("f"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
        assert!(stat.stx_mask & StatxFlags::BTIME.bits() != 0, "no birth time is told");
        (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
    };
    let before = born(&m);
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(m.path("f"), "other content").unwrap();
    m.remount();
    assert_eq!(born(&m), before);
    assert!(before.0 > 0);
}
