//! The examples do what they say.

use lanefs::{MountOptions, Volume};

#[path = "../../examples/hello.rs"]
#[allow(dead_code)]
mod hello;
#[path = "../../examples/kvlog.rs"]
#[allow(dead_code)]
mod kvlog;
#[path = "../../examples/loader.rs"]
#[allow(dead_code)]
mod loader;

#[test]
fn hello_says_what_it_made() {
    let said = hello::run().unwrap();
    assert_eq!(said[0], "hello, world");
    for line in ["12 bytes, 1 name", "Dir polite", "Symlink short"] {
        assert!(said.iter().any(|l| l == line), "{line:?} is not in {said:?}");
    }
}

#[test]
fn the_log_keeps_what_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("kv.lane");
    Volume::create(&[&image], 64 << 20).unwrap();
    let open = || Volume::open(&[&image], &MountOptions::default()).unwrap();
    let volume = open();
    let mut store = kvlog::KvLog::open(volume.fs()).unwrap();
    for n in 0..50_u32 {
        store.set(format!("key{}", n % 10).as_bytes(), &n.to_le_bytes()).unwrap();
    }
    // What a crash in the middle of an append leaves.
    let log = volume.fs().open("/log", lanefs::OpenOptions::new().write(true).append(true)).unwrap();
    log.append(&[200, 0, 0, 0, 9, 9]).unwrap();
    log.sync_all().unwrap();
    volume.shutdown();
    drop((store, log, volume));
    let volume = open();
    let mut store = kvlog::KvLog::open(volume.fs()).unwrap();
    assert_eq!(store.get(b"key3"), Some(&43_u32.to_le_bytes()[..]));
    let before = volume.fs().stat("/log").unwrap().size;
    store.compact().unwrap();
    assert!(volume.fs().stat("/log").unwrap().size < before);
    store.set(b"last", b"value").unwrap();
    drop(store);
    volume.close().unwrap();
    drop(volume);
    let volume = open();
    let store = kvlog::KvLog::open(volume.fs()).unwrap();
    assert_eq!(store.get(b"key9"), Some(&49_u32.to_le_bytes()[..]));
    assert_eq!((store.get(b"last"), store.get(b"none")), (Some(&b"value"[..]), None));
}

#[test]
fn a_volume_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let images = [dir.path().join("a"), dir.path().join("b")];
    std::fs::write(&images[1], "something").unwrap();
    Volume::create(&images, 64 << 20).unwrap_err();
    assert!(!images[0].exists(), "nothing is left behind");
    assert_eq!(std::fs::read(&images[1]).unwrap(), b"something");
}

#[test]
fn many_threads_load_a_tree() {
    let volume = Volume::in_memory(256 << 20).unwrap();
    assert_eq!(loader::run(&volume, 3, 500).unwrap(), 1500);
}

/// The first steps are taken by people who are not root.
#[test]
fn an_ordinary_user_runs_them() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return; // All the tests of this file are that user's.
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let program = dir.path().join("it");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut tests = std::process::Command::new(&program);
    tests.args(["--exact", "examples::hello_says_what_it_made", "examples::many_threads_load_a_tree"]);
    let out = tests.uid(65534).gid(65534).current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("2 passed"), "{said}");
}
