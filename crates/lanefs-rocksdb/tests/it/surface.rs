//! The calls of the file system, each by itself.

use crate::built::{compile, run, text};
use std::process::Command;

#[test]
fn every_call_answers_as_rocksdb_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut surface = Command::new(compile("surface"));
    surface.arg(dir.path().join("disk.lane"));
    let mount = dir.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    // Needs root, or fusermount3 and a /dev/fuse that this user may open.
    match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => drop(surface.arg(&mount)),
        Err(e) => eprintln!("/dev/fuse: {e}: its mount is not tested"),
    }
    let out = run(&mut surface);
    assert_eq!(std::fs::read_dir(&mount).unwrap().count(), 0, "it was unmounted");
    assert_eq!(text(&out), "surface done\n");
    // The volume was closed with its last file: nothing is left to be recovered.
    let volume = lanefs::Volume::open(&[dir.path().join("disk.lane")], &Default::default()).unwrap();
    assert_eq!(volume.fs().read_dir("/").unwrap().count(), 2, "/kept and /backup");
    volume.close().unwrap();
}
