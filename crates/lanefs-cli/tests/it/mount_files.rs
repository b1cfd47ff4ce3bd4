//! Files on a mount, through the system calls programs use.

use crate::common::*;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, XattrFlags};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

on_each_transport! {
    files_links_and_attributes_survive_a_remount,
    times_of_cached_writes_do_not_move_when_they_reach_the_volume,
    renames_replace_exchange_or_refuse,
    appends_truncates_holes_and_maps,
    pages_of_a_map_go_where_they_belong_beside_handles_that_append,
    times_before_1970_survive_a_remount,
    data_not_yet_written_back_is_data_to_seek,
    what_a_map_holds_is_data_to_seek,
    an_unlinked_file_lives_while_it_is_open,
    a_large_directory_lists_every_name_once,
    a_default_acl_takes_the_umasks_place,
    setuid_goes_when_somebody_else_writes,
}

fn files_links_and_attributes_survive_a_remount() {
    let mut m = Mount::new(&[]);
    let p = |n: &str| m.path(n);
    std::fs::create_dir_all(p("d/e")).unwrap();
    std::fs::write(p("d/e/f"), "content").unwrap();
    std::fs::hard_link(p("d/e/f"), p("hard")).unwrap();
    symlink("d/e/f", p("soft")).unwrap();
    std::fs::set_permissions(p("hard"), PermissionsExt::from_mode(0o4751)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::options().write(true).open(p("hard")).unwrap().set_modified(old).unwrap();
    rustix::fs::setxattr(p("hard"), "user.colour", b"blue", XattrFlags::empty()).unwrap();
    std::fs::rename(p("d/e/f"), p("d/g")).unwrap();
    let before = std::fs::metadata(p("hard")).unwrap();
    m.remount();
    let p = |n: &str| m.path(n);
    let after = std::fs::metadata(p("d/g")).unwrap();
    for (what, a, b) in [
        ("ino", before.ino(), after.ino()),
        ("nlink", before.nlink(), 2),
        ("nlink after", after.nlink(), 2),
        ("mode", u64::from(before.mode()), u64::from(after.mode())),
        ("size", before.size(), after.size()),
    ] {
        assert_eq!(a, b, "{what}");
    }
    assert_eq!(after.modified().unwrap(), old);
    assert_eq!((before.ctime(), before.ctime_nsec()), (after.ctime(), after.ctime_nsec()));
    assert_eq!(std::fs::read_link(p("soft")).unwrap().to_str(), Some("d/e/f"));
    let mut value = [0; 16];
    let n = rustix::fs::getxattr(p("hard"), "user.colour", &mut value).unwrap();
    assert_eq!(&value[..n], b"blue");
    assert_eq!(std::fs::metadata(p("d")).unwrap().nlink(), 3);
    std::fs::remove_file(p("hard")).unwrap();
    assert_eq!(std::fs::metadata(p("d/g")).unwrap().nlink(), 1);
    m.umount();
    m.fsck();
}

fn times_of_cached_writes_do_not_move_when_they_reach_the_volume() {
    let mut m = Mount::new(&[]);
    let mut file = File::create(m.path("f")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    let seen = file.metadata().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    file.sync_all().unwrap();
    drop(file);
    m.remount();
    let after = std::fs::metadata(m.path("f")).unwrap();
    assert_eq!(seen.modified().unwrap(), after.modified().unwrap());
    assert_eq!((seen.ctime(), seen.ctime_nsec()), (after.ctime(), after.ctime_nsec()));
}

fn renames_replace_exchange_or_refuse() {
    let m = Mount::new(&[]);
    let (a, b) = (m.path("a"), m.path("b"));
    std::fs::write(&a, "A").unwrap();
    std::fs::write(&b, "B").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap()), (b"B".to_vec(), b"A".to_vec()));
    std::fs::rename(&a, &b).unwrap();
    assert!(!a.exists());
    assert_eq!(std::fs::read(&b).unwrap(), b"B");
    std::fs::create_dir_all(m.path("x/y")).unwrap();
    let cycle = std::fs::rename(m.path("x"), m.path("x/y/z")).unwrap_err();
    assert_eq!(cycle.raw_os_error(), Some(libc::EINVAL));
    let full = std::fs::remove_dir(m.path("x")).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOTEMPTY));
}

fn appends_truncates_holes_and_maps() {
    let m = Mount::new(&[]);
    let path = m.path("f");
    let mut one = File::options().append(true).create(true).open(&path).unwrap();
    let mut two = File::options().append(true).open(&path).unwrap();
    for _ in 0..100 {
        one.write_all(b"one.").unwrap();
        two.write_all(b"two.").unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one.two.".repeat(100));

    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.set_len(10).unwrap();
    file.set_len(20).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one.two.on\0\0\0\0\0\0\0\0\0\0");
    file.write_all_at(b"far", 1 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 3);
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() < 100);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), 4096);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(4096)).unwrap(), 1 << 40);

    let solid =
        File::options().read(true).write(true).create(true).truncate(true).open(m.path("solid")).unwrap();
    solid.write_all_at(&[5; 65_536], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&solid, punch, 8192, 8192).unwrap();
    let mut content = Vec::new();
    File::open(m.path("solid")).unwrap().read_to_end(&mut content).unwrap();
    assert!(content[8192..16384].iter().all(|b| *b == 0) && content[16384..].iter().all(|b| *b == 5));
    rustix::fs::fallocate(&solid, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(solid.metadata().unwrap().len(), 1 << 20);

    // SAFETY: a shared mapping of a file this test alone uses, within its size, unmapped below.
    unsafe {
        let map = rustix::mm::mmap(
            std::ptr::null_mut(),
            65_536,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &solid,
            0,
        )
        .unwrap();
        std::ptr::write_bytes(map.cast::<u8>().add(4096), 9, 100);
        rustix::mm::msync(map, 65_536, rustix::mm::MsyncFlags::SYNC).unwrap();
        rustix::mm::munmap(map, 65_536).unwrap();
    }
    let mut page = [0; 100];
    File::open(m.path("solid")).unwrap().read_exact_at(&mut page, 4096).unwrap();
    assert_eq!(page, [9; 100]);
}

/// The kernel sends pages of a map by any handle that may write, also one that appends; and a
/// handle may begin and cease to append.
fn pages_of_a_map_go_where_they_belong_beside_handles_that_append() {
    for options in [&[][..], &["-o", "nowriteback"]] {
        let mut m = Mount::new(options);
        let path = m.path("f");
        let mut file = File::options().read(true).append(true).create(true).open(&path).unwrap();
        file.write_all(&[b'A'; 8192]).unwrap();
        // SAFETY: as above.
        unsafe {
            let flags = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
            let null = std::ptr::null_mut();
            let map = rustix::mm::mmap(null, 8192, flags, rustix::mm::MapFlags::SHARED, &file, 0).unwrap();
            std::ptr::copy_nonoverlapping(b"MMAP".as_ptr(), map.cast(), 4);
            rustix::mm::msync(map, 8192, rustix::mm::MsyncFlags::SYNC).unwrap();
            rustix::mm::munmap(map, 8192).unwrap();
        }
        file.write_all(b"end").unwrap();
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty()).unwrap();
        file.seek(std::io::SeekFrom::Start(4)).unwrap();
        file.write_all(b"here").unwrap();
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).unwrap();
        file.write_all(b"!").unwrap();
        file.sync_all().unwrap();
        drop(file);
        m.umount();
        m.mount(options);
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len(), 8196, "{options:?}");
        assert_eq!(&content[..9], b"MMAPhereA");
        assert_eq!(&content[8191..], b"Aend!");
        m.umount();
        m.fsck();
    }
}

/// SEMANTICS T4.
fn times_before_1970_survive_a_remount() {
    let mut m = Mount::new(&[]);
    let old = SystemTime::UNIX_EPOCH - Duration::new(304_084_800, 500_000_000);
    std::fs::write(m.path("f"), "x").unwrap();
    std::fs::create_dir(m.path("d")).unwrap();
    for name in ["f", "d"] {
        let file = File::open(m.path(name)).unwrap();
        file.set_times(std::fs::FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
    }
    for _ in 0..2 {
        for name in ["f", "d"] {
            let s = std::fs::metadata(m.path(name)).unwrap();
            assert_eq!((s.modified().unwrap(), s.accessed().unwrap()), (old, old), "{name}");
        }
        m.remount();
    }
}

fn data_not_yet_written_back_is_data_to_seek() {
    let m = Mount::new(&[]);
    let writer = File::create(m.path("f")).unwrap();
    writer.write_all_at(&[1; 4096], 1 << 20).unwrap();
    // Another program copies the file while it is still open for writing.
    let mut reader = File::open(m.path("f")).unwrap();
    let at = rustix::fs::seek(&reader, SeekFrom::Data(0)).unwrap();
    assert!(at <= 1 << 20, "{at}");
    let mut byte = [0];
    reader.seek(std::io::SeekFrom::Start(1 << 20)).unwrap();
    reader.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [1]);
}

/// Also where the kernel gathers no writes.
fn what_a_map_holds_is_data_to_seek() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let m = Mount::new(&[]);
    let file = File::options().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
    file.set_len(1 << 20).unwrap();
    // SAFETY: a shared mapping of a file that this test alone uses, within its size, unmapped
    // below.
    unsafe {
        let how = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), 1 << 20, how, MapFlags::SHARED, &file, 0).unwrap();
        map.cast::<u8>().add(70_000).write_volatile(7);
        let reader = File::open(m.path("f")).unwrap();
        let at = rustix::fs::seek(&reader, SeekFrom::Data(0));
        munmap(map, 1 << 20).unwrap();
        assert!(at.is_ok_and(|at| at <= 70_000), "{at:?}");
    }
}

fn an_unlinked_file_lives_while_it_is_open() {
    let mut m = Mount::new(&[]);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(m.path("f")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    std::fs::remove_file(m.path("f")).unwrap();
    file.write_all_at(b" after", 6).unwrap();
    file.sync_all().unwrap();
    let mut content = [0; 12];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"before after");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    m.umount();
    m.fsck();
}

fn a_large_directory_lists_every_name_once() {
    let mut m = Mount::new(&[]);
    let dir = m.path("many");
    std::fs::create_dir(&dir).unwrap();
    for i in 0..5000 {
        File::create(dir.join(format!("name {i:05}"))).unwrap();
    }
    for round in 0..2 {
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), 5000, "round {round}");
        assert!(names.iter().enumerate().all(|(i, n)| *n == format!("name {i:05}")));
        m.remount();
    }
    // Removed while it is listed.
    for entry in std::fs::read_dir(&dir).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::remove_dir(&dir).unwrap();
}

fn setuid_goes_when_somebody_else_writes() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become an ordinary user");
        return;
    }
    let m = Mount::new(&["-o", "suid"]);
    // The temporary directory is root's alone.
    std::fs::set_permissions(m.work.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for script in ["echo x >> f", "truncate -s 3 f", "echo x > f", "fallocate -l 8192 f"] {
        std::fs::write(m.path("f"), "content").unwrap();
        std::os::unix::fs::chown(m.path("f"), Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(m.path("f"), PermissionsExt::from_mode(0o6777)).unwrap();
        let mut shell = std::process::Command::new("sh");
        std::os::unix::process::CommandExt::uid(&mut shell, 65534);
        run_command(shell.args(["-ec", script]).current_dir(&m.dir)).ok();
        assert_eq!(std::fs::metadata(m.path("f")).unwrap().mode() & 0o7777, 0o777, "{script}");
    }
}

fn a_default_acl_takes_the_umasks_place() {
    let mut m = Mount::new(&[]);
    let dir = m.path("d");
    std::fs::create_dir(&dir).unwrap();
    // user::rwx user:65534:rw- group::r-x mask::rwx other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 6, 65534), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(&dir, "system.posix_acl_default", &acl, XattrFlags::empty()).unwrap();
    std::fs::write(dir.join("f"), "x").unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    m.remount();
    let dir = m.path("d");
    assert_eq!(std::fs::metadata(dir.join("f")).unwrap().mode() & 0o777, 0o660);
    assert_eq!(std::fs::metadata(dir.join("sub")).unwrap().mode() & 0o777, 0o770);
    let mut value = [0; 64];
    let n = rustix::fs::getxattr(dir.join("f"), "system.posix_acl_access", &mut value).unwrap();
    assert_eq!(n, 44);
    assert_eq!(rustix::fs::getxattr(dir.join("sub"), "system.posix_acl_default", &mut value).unwrap(), 44);
    std::fs::set_permissions(dir.join("f"), PermissionsExt::from_mode(0o640)).unwrap();
    let n = rustix::fs::getxattr(dir.join("f"), "system.posix_acl_access", &mut value).unwrap();
    let mask = value[..n][4..].chunks(8).find(|e| e[0] == 16).unwrap()[2];
    assert_eq!(mask, 4, "chmod sets the mask");
}
