//! Files that are renamed over others, after a crash of the server: the name has the old content or
//! the new, whole, also of a file that was open for writing (SEMANTICS F5).

use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

on_each_transport! {
    a_file_that_replaces_another_while_it_is_open_is_found_whole,
    programs_that_replace_files_at_once_do_not_wait_for_each_other,
}

/// Programs that rename a new file over the old one before they close it; ext4 writes what it has
/// gathered of it before the rename.
fn a_file_that_replaces_another_while_it_is_open_is_found_whole() {
    let mut m = Mount::new(&[]);
    let content = |n: usize, byte: u8| vec![byte; [10, 10_000, 700_000][n]];
    for n in 0..3 {
        std::fs::write(m.path(&format!("f{n}")), content(n, b'o')).unwrap();
    }
    File::open(&m.dir).unwrap().sync_all().unwrap();
    let mut open = Vec::new();
    for n in 0..3 {
        let mut f = File::options().create_new(true).read(true).write(true).open(m.path("new")).unwrap();
        f.write_all(&content(n, b'n')).unwrap();
        std::fs::rename(m.path("new"), m.path(&format!("f{n}"))).unwrap();
        // It goes on to be written and read.
        f.write_all(b"more").unwrap();
        f.rewind().unwrap();
        let mut bytes = Vec::new();
        f.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [content(n, b'n'), b"more".to_vec()].concat());
        open.push(f);
    }
    // The names are durable, and of the files what F5 says.
    File::open(&m.dir).unwrap().sync_all().unwrap();
    kill_process(Pid::from_raw(m.server_of_mount() as i32).unwrap(), Signal::KILL).unwrap();
    drop(open);
    m.umount();
    m.mount(&[]);
    for n in 0..3 {
        let found = std::fs::read(m.path(&format!("f{n}"))).unwrap();
        let whole = content(n, b'n');
        assert!(found.starts_with(&whole), "f{n} has {} bytes of {}", found.len(), whole.len());
    }
    m.umount();
    m.fsck();
}

/// More of them than threads serve the mount, each of which waits for its own pages.
fn programs_that_replace_files_at_once_do_not_wait_for_each_other() {
    let mut m = Mount::new(&[]);
    let path = |n: usize, what: &str| m.path(&format!("{what}{n}"));
    std::thread::scope(|s| {
        for n in 0..24 {
            let path = &path;
            s.spawn(move || {
                for turn in 0..20u8 {
                    let mut f = File::create(path(n, "new")).unwrap();
                    f.write_all(&vec![turn; 20_000]).unwrap();
                    std::fs::rename(path(n, "new"), path(n, "f")).unwrap();
                    assert_eq!(std::fs::read(path(n, "f")).unwrap(), vec![turn; 20_000]);
                    // Refused as ever.
                    assert!(std::fs::rename(path(n, "none"), path(n, "f")).is_err());
                    std::fs::create_dir_all(path(n, "dir")).unwrap();
                    let refused = std::fs::rename(path(n, "f"), path(n, "dir")).unwrap_err();
                    assert_eq!(refused.raw_os_error(), Some(libc::EISDIR));
                }
            });
        }
    });
    m.remount();
    for n in 0..24 {
        assert_eq!(std::fs::read(m.path(&format!("f{n}"))).unwrap(), vec![19; 20_000]);
    }
    m.umount();
    m.fsck();
}
