//! What open(2) and close(2) promise, whether or not the kernel tells the mount of them.

use crate::common::*;
use crate::mount_truth::as_nobody;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags, flock, statx};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::Duration;

on_each_transport! {
    an_unlinked_open_file_lives_whatever_else_is_forgotten,
    opening_with_o_trunc_cuts_and_dates_the_file,
    opening_with_o_trunc_leaves_no_zeros_before_what_is_appended_beside_it,
    appends_of_two_processes_do_not_overlap,
    locks_go_with_the_descriptor_and_with_the_process,
    what_is_open_stays_readable_when_the_mode_forbids_it,
    who_may_not_open_is_refused,
    direct_writes_are_seen_by_who_reads_through_the_cache,
    a_map_and_a_descriptor_show_the_same,
    an_fsync_of_any_descriptor_makes_the_content_durable,
    a_file_is_made_once_and_open_whatever_its_mode,
    where_nobody_checks_modes_only_root_enters_and_the_rest_stays,
    without_extended_attributes_none_is_given_or_taken_and_what_is_stored_stays,
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// Files of 40 MiB pass through a cache of 16 MiB, and names through the kernel, while a file that
/// has no name is written by one descriptor and read by another.
fn an_unlinked_open_file_lives_whatever_else_is_forgotten() {
    let mut m = Mount::new(&["-o", "commit=1,cache_size=16M"]);
    let path = m.path("gone");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let (writer, reader) = (both().open(&path).unwrap(), File::open(&path).unwrap());
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // Nothing of it is dirty, and it could leave the server's memory.
    writer.sync_all().unwrap();
    for round in 0..5u8 {
        for n in 0..40 {
            let other = m.path(&format!("other{n}"));
            std::fs::write(&other, vec![round; 1 << 20]).unwrap();
            std::fs::remove_file(&other).unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
        let at = u64::from(round) << 18;
        writer.write_all_at(&vec![round + 2; 1 << 18], at).unwrap();
        let mut seen = vec![0; 1 << 18];
        reader.read_exact_at(&mut seen, at).unwrap();
        assert!(seen.iter().all(|b| *b == round + 2), "round {round}");
        writer.sync_data().unwrap();
    }
    let stat = statx(&reader, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL).unwrap();
    assert_eq!((stat.stx_nlink, stat.stx_size), (0, 5 << 18));
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Box::new(Page([0; 4096]));
    direct.read_exact_at(&mut page.0, 4 << 18).unwrap();
    assert_eq!(page.0, [6; 4096]);
    writer.set_len(3).unwrap();
    let mut rest = Vec::new();
    (&reader).read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [2; 3]);
    drop((writer, reader, direct));
    m.umount();
    m.fsck();
}

fn opening_with_o_trunc_cuts_and_dates_the_file() {
    let mut m = Mount::new(&[]);
    let path = m.path("f");
    std::fs::write(&path, [1; 10_000]).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    let reader = File::open(&path).unwrap();
    reader.set_modified(old).unwrap();
    let cut = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 0);
    assert_eq!((&reader).read(&mut [0; 10]).unwrap(), 0);
    assert!(std::fs::metadata(&path).unwrap().mtime() > 1000);
    cut.write_all_at(b"tail", 100).unwrap();
    drop((cut, reader));
    m.remount();
    let mut want = vec![0; 100];
    want.extend(b"tail");
    assert_eq!(std::fs::read(&path).unwrap(), want, "nothing of before comes back");
}

fn appends_of_two_processes_do_not_overlap() {
    let m = Mount::new(&[]);
    let path = m.path("log");
    std::fs::write(&path, "").unwrap();
    let append = |line: &str| {
        let script = format!("exec >>log; i=0; while [ $i -lt 500 ]; do echo {line}; i=$((i+1)); done");
        Command::new("sh").args(["-c", &script]).current_dir(&m.dir).spawn().unwrap()
    };
    let children = ["first-first-first", "second"].map(append);
    children.into_iter().for_each(|mut c| assert!(c.wait().unwrap().success()));
    let text = std::fs::read_to_string(&path).unwrap();
    let count = |line: &str| text.lines().filter(|l| *l == line).count();
    assert_eq!((count("first-first-first"), count("second"), text.lines().count()), (500, 500, 1000));
}

fn locks_go_with_the_descriptor_and_with_the_process() {
    let m = Mount::new(&[]);
    let path = m.path("f");
    std::fs::write(&path, "").unwrap();
    let open = || both().open(&path).unwrap();
    let try_lock = |f: &File| flock(f, FlockOperation::NonBlockingLockExclusive);
    let (first, second) = (open(), open());
    try_lock(&first).unwrap();
    assert_eq!(try_lock(&second), Err(rustix::io::Errno::WOULDBLOCK));
    drop(first);
    try_lock(&second).unwrap();
    drop(second);
    // A process that is killed, with a lock of the whole file.
    let mut child = Command::new("flock")
        .args([
            "--exclusive",
            "--no-fork",
            path.to_str().unwrap(),
            "sh",
            "-c",
            "echo locked; exec sleep 1000",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    child.stdout.take().unwrap().read_exact(&mut said).unwrap();
    let other = open();
    assert_eq!((&said, try_lock(&other)), (b"locked\n", Err(rustix::io::Errno::WOULDBLOCK)));
    child.kill().unwrap();
    child.wait().unwrap();
    // Waits for as long as it takes.
    flock(&other, FlockOperation::LockExclusive).unwrap();
    // And of bytes, which belong to the process.
    let range = |f: &File| rustix::fs::fcntl_lock(f, FlockOperation::NonBlockingLockExclusive);
    range(&other).unwrap();
    let test = "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB)";
    let may =
        || Command::new("python3").args(["-c", test]).arg(&path).stderr(Stdio::null()).status().unwrap();
    assert!(!may().success(), "another process took bytes that are locked");
    drop(other);
    assert!(may().success(), "a closed descriptor keeps its lock");
}

fn what_is_open_stays_readable_when_the_mode_forbids_it() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become an ordinary user");
        return;
    }
    let m = Mount::new(&[]);
    std::fs::set_permissions(m.work.path(), Permissions::from_mode(0o755)).unwrap();
    let path = m.path("f");
    std::fs::write(&path, [5; 9000]).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let (reader, writer) = as_nobody(|| (File::open(&path).unwrap(), both().open(&path).unwrap()));
    std::fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    as_nobody(|| {
        assert_eq!(File::open(&path).unwrap_err().raw_os_error(), Some(libc::EACCES));
        let mut seen = [0; 9000];
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [5; 9000]);
        writer.write_all_at(&[6; 10], 8995).unwrap();
        writer.sync_all().unwrap();
    });
    assert_eq!(std::fs::read(&path).unwrap()[8994..], [[5].as_slice(), &[6; 10]].concat());
}

fn who_may_not_open_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become an ordinary user");
        return;
    }
    let m = Mount::new(&["-o", "allow_other"]);
    std::fs::set_permissions(m.work.path(), Permissions::from_mode(0o755)).unwrap();
    let path = m.path("d/f");
    std::fs::create_dir(m.path("d")).unwrap();
    std::fs::write(&path, "content").unwrap();
    let tries = || {
        let open = |o: &mut OpenOptions| o.open(&path).map(drop).map_err(|e| e.raw_os_error());
        let (reads, writes) = (open(OpenOptions::new().read(true)), open(OpenOptions::new().write(true)));
        (reads, writes, open(OpenOptions::new().read(true).custom_flags(libc::O_TRUNC)))
    };
    let refused = Err(Some(libc::EACCES));
    for (dir, mode, want) in [
        (0o755, 0o600, (refused, refused, refused)),
        (0o755, 0o644, (Ok(()), refused, refused)),
        (0o755, 0o622, (refused, Ok(()), refused)),
        (0o700, 0o666, (refused, refused, refused)),
    ] {
        std::fs::set_permissions(m.path("d"), Permissions::from_mode(dir)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        // The superuser looks first, so that the kernel knows the names.
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        assert_eq!(as_nobody(tries), want, "{dir:o} {mode:o}");
    }
    // Nor may a file be written that is run.
    std::fs::set_permissions(m.path("d"), Permissions::from_mode(0o755)).unwrap();
    std::fs::copy("/bin/sleep", m.path("sleep")).unwrap();
    let mut child = Command::new(m.path("sleep")).arg("1000").spawn().unwrap();
    let busy = OpenOptions::new().write(true).open(m.path("sleep")).map(drop);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(busy.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
}

fn direct_writes_are_seen_by_who_reads_through_the_cache() {
    #[repr(align(4096))]
    struct Pages([u8; 8192]);
    let m = Mount::new(&[]);
    let path = m.path("f");
    std::fs::write(&path, [1; 16384]).unwrap();
    let (cached, direct) =
        (both().open(&path).unwrap(), both().custom_flags(libc::O_DIRECT).open(&path).unwrap());
    let mut pages = Box::new(Pages([0; 8192]));
    for round in 2..40u8 {
        let at = u64::from(round % 2) * 8192;
        let mut seen = [0; 8192];
        cached.read_exact_at(&mut seen, at).unwrap();
        pages.0 = [round; 8192];
        direct.write_all_at(&pages.0, at).unwrap();
        cached.read_exact_at(&mut seen, at).unwrap();
        assert_eq!(seen, [round; 8192]);
        cached.write_all_at(&[round + 100; 10], at + 5).unwrap();
        direct.read_exact_at(&mut pages.0, at).unwrap();
        assert_eq!(
            (pages.0[4], pages.0[5], pages.0[14], pages.0[15]),
            (round, round + 100, round + 100, round)
        );
    }
}

fn a_map_and_a_descriptor_show_the_same() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let mut m = Mount::new(&[]);
    let path = m.path("f");
    std::fs::write(&path, [1; 12288]).unwrap();
    let (file, other) = (both().open(&path).unwrap(), both().open(&path).unwrap());
    // SAFETY: a shared mapping of a file that this test alone uses, within its size, unmapped
    // below; what is written by a descriptor is read by volatile loads.
    unsafe {
        let (null, rw) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let map = mmap(null, 12288, rw, MapFlags::SHARED, &file, 0).unwrap();
        let byte = |n: usize| map.cast::<u8>().add(n);
        drop(file);
        byte(5000).write_volatile(2);
        let mut seen = [0; 2];
        other.read_exact_at(&mut seen, 4999).unwrap();
        assert_eq!(seen, [1, 2]);
        other.write_all_at(&[3; 10], 9000).unwrap();
        assert_eq!(byte(9009).read_volatile(), 3);
        byte(0).write_volatile(4);
        msync(map, 12288, MsyncFlags::SYNC).unwrap();
        byte(1).write_volatile(5);
        munmap(map, 12288).unwrap();
    }
    drop(other);
    m.remount();
    let there = std::fs::read(&path).unwrap();
    assert_eq!((there[0], there[1], there[2], there[5000], there[9009]), (4, 5, 1, 2, 3));
}

fn an_fsync_of_any_descriptor_makes_the_content_durable() {
    let mut m = Mount::new(&["-o", "commit=3600,dirty_expire=3600"]);
    let path = m.path("f");
    let writer = both().create_new(true).open(&path).unwrap();
    writer.write_all_at(&[7; 20_000], 0).unwrap();
    // By one that can only read, and by one of a file without a name.
    File::open(&path).unwrap().sync_all().unwrap();
    let gone = both().create_new(true).open(m.path("gone")).unwrap();
    std::fs::remove_file(m.path("gone")).unwrap();
    gone.write_all_at(&[8; 10], 0).unwrap();
    gone.sync_all().unwrap();
    let root = File::open(&m.dir).unwrap();
    // SAFETY: the ioctl reads one u32, which lives until it returns: the shutdown as by a crash.
    let r = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&root), 0x8004_587d, &raw const TWO) };
    assert_eq!(r, 0);
    drop((writer, gone, root));
    m.umount_of_a_stopped_one();
    m.mount(&[]);
    assert_eq!(std::fs::read(&path).unwrap(), [7; 20_000]);
    assert!(!m.path("gone").exists());
}

/// The flags of a shutdown that makes nothing durable.
static TWO: u32 = 2;

fn a_file_is_made_once_and_open_whatever_its_mode() {
    let m = Mount::new(&[]);
    let path = m.path("f");
    let made = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path).unwrap();
    (&made).write_all(b"content").unwrap();
    assert_eq!(made.metadata().unwrap().mode() & 0o7733, 0o400);
    assert_eq!(File::create_new(&path).unwrap_err().raw_os_error(), Some(libc::EEXIST));
    assert_eq!(std::fs::read(&path).unwrap(), b"content", "a second open without O_EXCL");
    let dir = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty());
    assert_eq!(dir.unwrap_err(), rustix::io::Errno::NOTDIR);
    let below = rustix::fs::openat(CWD, m.path("f/g"), OFlags::CREATE | OFlags::RDWR, Mode::RUSR);
    assert_eq!(below.unwrap_err(), rustix::io::Errno::NOTDIR);
    let on_a_dir = rustix::fs::open(&m.dir, OFlags::CREATE | OFlags::RDWR, Mode::RUSR);
    assert_eq!(on_a_dir.unwrap_err(), rustix::io::Errno::ISDIR);
}

fn without_extended_attributes_none_is_given_or_taken_and_what_is_stored_stays() {
    let mut m = Mount::new(&[]);
    let none = rustix::fs::XattrFlags::empty();
    let (f, g) = (m.path("f"), m.path("g"));
    std::fs::write(&f, "content").unwrap();
    rustix::fs::setxattr(&f, "user.kept", b"value", none).unwrap();
    m.umount();
    m.mount(&["-o", "noxattr"]);
    let mut value = [0; 16];
    for _ in 0..2 {
        let refused = Err(rustix::io::Errno::OPNOTSUPP);
        assert_eq!(rustix::fs::setxattr(&f, "user.new", b"value", none), refused);
        assert_eq!(rustix::fs::getxattr(&f, "user.kept", &mut value).map(drop), refused);
        assert_eq!(rustix::fs::removexattr(&f, "user.kept"), refused);
        assert_eq!(rustix::fs::listxattr(&f, &mut value[..]).map(drop), refused);
    }
    std::fs::write(&g, "content").unwrap();
    m.remount();
    let read = rustix::fs::getxattr(&f, "user.kept", &mut value).unwrap();
    assert_eq!(value[..read], *b"value");
    assert_eq!(std::fs::read_to_string(&g).unwrap(), "content");
}

/// Another user enters neither by a path nor by a thread of root's that acts as that user; ACLs are
/// kept and inherited; a file that nobody may run is not run.
fn where_nobody_checks_modes_only_root_enters_and_the_rest_stays() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let mut m = Mount::new(&["-o", "unchecked"]);
    std::fs::set_permissions(m.work.path(), Permissions::from_mode(0o755)).unwrap();
    let (dir, path) = (m.path("d"), m.path("d/f"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    // user::rw-, user:65534:rw-, group::r--, mask::rw-, other::---
    let entries =
        [(1u16, 6u16, u32::MAX), (2, 6, 65534), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        acl.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&dir, "system.posix_acl_default", &acl, none).unwrap();
    std::fs::write(&path, "content").unwrap();
    let mode = |m: &Mount| std::fs::metadata(m.path("d/f")).unwrap().mode() & 0o777;
    assert_eq!(mode(&m), 0o660, "the default ACL takes the umask's place");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let mut kept = [0; 100];
    let n = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut kept).unwrap();
    assert_eq!((n, kept[4 + 3 * 8 + 2]), (acl.len(), 0), "chmod moves the mask");
    let opened = as_nobody(|| File::open(&path).map(drop).map_err(|e| e.raw_os_error()));
    assert_eq!(opened, Err(Some(libc::EACCES)));
    let listed = as_nobody(|| std::fs::read_dir(&m.dir).map(drop).map_err(|e| e.raw_os_error()));
    assert_eq!(listed, Err(Some(libc::EACCES)));
    let made = std::thread::scope(|s| {
        let acts = s.spawn(|| {
            // SAFETY: the call takes a number and changes this thread alone, which ends here.
            unsafe { libc::setfsuid(65534) };
            std::fs::write(m.path("d/g"), "").map_err(|e| e.raw_os_error())
        });
        acts.join().unwrap()
    });
    assert_eq!(made, Err(Some(libc::EACCES)), "a thread that acts as another user");
    let run = Command::new(&path).status().unwrap_err();
    assert_eq!(run.raw_os_error(), Some(libc::EACCES));
    m.remount();
    assert_eq!(mode(&m), 0o600);
    m.umount();
    m.fsck();
}

/// Where the kernel gathers no writes it sent such an opening without the inode's lock, and the
/// append went to where the end had been.
fn opening_with_o_trunc_leaves_no_zeros_before_what_is_appended_beside_it() {
    for options in ["rw", "nowriteback"] {
        let mut m = Mount::new(&["-o", options]);
        let path = m.path("log");
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(&path).unwrap();
        let begin = std::sync::Barrier::new(2);
        let over = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..300 {
                    begin.wait();
                    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
                    over.wait();
                }
            });
            let mut log = OpenOptions::new().append(true).open(&path).unwrap();
            let mut wrong = 0;
            for _ in 0..300 {
                file.set_len(0).unwrap();
                file.write_all_at(&[b'x'; 5000], 0).unwrap();
                begin.wait();
                log.write_all(b"0123456789").unwrap();
                over.wait();
                let found = std::fs::read(&path).unwrap();
                wrong += usize::from(!found.is_empty() && found != b"0123456789");
            }
            assert_eq!(wrong, 0, "{options}");
        });
        drop(file);
        m.umount();
        m.fsck();
    }
}
