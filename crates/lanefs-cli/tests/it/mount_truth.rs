//! What the kernel believes of a mount is so: what it shows, what it was told is durable, and what
//! it was told failed.

use crate::common::*;
use crate::transport::{Transport, transport};
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

on_each_transport! {
    what_cannot_be_read_is_an_error_and_never_zeros_or_the_end,
    a_map_that_finds_no_room_says_so_at_msync,
    setuid_that_a_write_took_is_not_believed_any_more,
    an_asynchronous_synchronous_write_is_durable_when_it_completes,
    readers_see_an_asynchronous_direct_write_when_it_is_complete,
    blocks_of_an_open_file_are_told_when_it_is_synced,
    what_was_written_to_an_open_file_is_archived,
    allow_root_keeps_others_out_of_listings,
    a_full_volume_refuses_the_write_that_does_not_fit,
    what_the_kernel_has_accepted_is_taken_by_nobody,
    writers_side_by_side_lose_nothing_that_was_accepted_on_a_full_volume,
    what_was_preallocated_is_shown_and_can_be_written_on_a_full_mount,
    a_user_who_fills_a_mount_leaves_the_last_to_root,
    root_goes_on_where_a_user_filled_a_mount_by_holes,
    a_file_without_a_name_has_space_for_what_it_takes,
    a_full_mount_is_read,
    what_root_writes_to_a_full_mount_is_seen_by_all,
    a_direct_write_that_does_not_fit_is_no_error_of_the_device,
    a_signal_loses_nothing_of_a_busy_mount,
    what_lies_on_top_of_a_mount_is_left_alone,
    a_range_that_was_synced_is_there_and_no_byte_is_wrong,
    a_copy_takes_nothing_that_is_stored_beside_it_by_a_map,
}

const PAGE: usize = 4096;

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited for {what}");
}

/// Flips a bit of the block of an image that holds these bytes.
fn damage(image: &Path, content: &[u8]) {
    let mut bytes = std::fs::read(image).unwrap();
    let at = bytes.chunks(PAGE).position(|block| block == content).expect("the page is in the image") * PAGE;
    bytes[at + 100] ^= 1;
    std::fs::write(image, bytes).unwrap();
}

/// A READ is answered with all bytes up to the end of the file, or with an error: a short answer is
/// the end or a hole to the kernel.
fn what_cannot_be_read_is_an_error_and_never_zeros_or_the_end() {
    let mut m = Mount::new(&[]);
    let good: Vec<u8> = (0..8750).flat_map(|i| format!("{i:08}").into_bytes()).collect();
    std::fs::write(m.path("f"), &good).unwrap();
    m.umount();
    damage(&m.image(), &good[6 * PAGE..7 * PAGE]);
    for options in ["rw", "nowriteback", "ro", "ro,nowriteback"] {
        m.mount(&["-o", options]);
        let mut seen = Vec::new();
        let read = File::open(m.path("f")).unwrap().read_to_end(&mut seen);
        assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO), "{options}");
        assert!(good.starts_with(&seen), "{options}: wrong bytes");
        assert_eq!(std::fs::metadata(m.path("f")).unwrap().len(), good.len() as u64);
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
        let mut block = Box::new(Aligned([0; 16 * PAGE]));
        let n = direct.read_at(&mut block.0, 0);
        assert!(n.is_err(), "{options}: {n:?} by O_DIRECT");
        drop(direct);
        m.umount();
    }
    // Nor is what was not read written: of the pages beside it none loses a byte.
    m.mount(&[]);
    let file = File::options().read(true).write(true).open(m.path("f")).unwrap();
    let _ = std::fs::read(m.path("f")).unwrap_err();
    let mut now = good.clone();
    if file.write_at(b"XXXXXXXXXX", 10 * PAGE as u64 + 5).is_ok() {
        file.sync_all().unwrap();
        now[10 * PAGE + 5..][..10].fill(b'X');
    }
    let refused = file.write_at(b"XXXXXXXXXX", 6 * PAGE as u64 + 5).and_then(|_| file.sync_all());
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(file);
    m.remount();
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
    let mut page = Box::new(Aligned([0; PAGE]));
    direct.read_exact_at(&mut page.0, 10 * PAGE as u64).unwrap();
    assert_eq!(page.0[..], now[10 * PAGE..11 * PAGE]);
}

/// Maps a file of which no page has a block, writes to all, and syncs.
fn write_through_a_map(file: &File, len: usize) -> rustix::io::Result<()> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    // SAFETY: a shared mapping of a file that this test alone uses, within its size, unmapped
    // below.
    unsafe {
        let map =
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?;
        std::ptr::write_bytes(map.cast::<u8>(), 7, len);
        let synced = msync(map, len, MsyncFlags::SYNC);
        munmap(map, len)?;
        synced
    }
}

/// The kernel looks at the error of a WRITE of its cache alone: a short answer would be success to
/// it.
fn a_map_that_finds_no_room_says_so_at_msync() {
    for options in ["rw", "nowriteback"] {
        // A volume with room for a part of what one WRITE carries.
        let mut m = Mount::new(&["-o", "nowriteback"]);
        std::fs::write(m.path("spare"), vec![1; 500 << 10]).unwrap();
        let len = 1 << 20;
        File::create(m.path("map")).unwrap().set_len(len as u64).unwrap();
        let mut fill = File::create(m.path("fill")).unwrap();
        for size in [1 << 20, 4096] {
            while fill.write(&vec![1; size]).is_ok_and(|n| n == size) {}
        }
        fill.sync_all().unwrap();
        drop(fill);
        std::fs::remove_file(m.path("spare")).unwrap();
        m.umount();
        m.mount(&["-o", options]);
        let file = File::options().read(true).write(true).open(m.path("map")).unwrap();
        assert!(write_through_a_map(&file, len).is_err(), "{options}: msync");
    }
}

/// The mode as who asks for nothing else sees it, which may be what the kernel remembers.
fn mode(path: &Path) -> u32 {
    let stat = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(stat.stx_mode) & 0o7777
}

/// An ordinary user wrote to a set-uid program of root's that all may write, ran it, and was root.
fn setuid_that_a_write_took_is_not_believed_any_more() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become an ordinary user");
        return;
    }
    for options in ["suid", "suid,nowriteback"] {
        let m = Mount::new(&["-o", options]);
        std::fs::set_permissions(m.work.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let other = m.path("other");
        std::fs::write(&other, vec![3; 8192]).unwrap();
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o644)).unwrap();
        let path = m.path("f");
        for op in
            ["append", "write", "truncate", "open", "allocate", "punch", "zero", "copy", "direct", "handed"]
        {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, vec![7; 16384]).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            assert_eq!(mode(&path), 0o6777);
            let (to, from) = (path.clone(), other.clone());
            let act = move || -> std::io::Result<()> {
                let file = || File::options().read(true).write(true).open(&to);
                let allocate = |mode| Ok(rustix::fs::fallocate(file()?, mode, 0, 4096)?);
                match op {
                    "append" => File::options().append(true).open(&to)?.write_all(b"x"),
                    "write" => file()?.write_all(b"x"),
                    "truncate" => file()?.set_len(100),
                    "open" => File::options().write(true).truncate(true).open(&to).map(drop),
                    "allocate" => allocate(FallocateFlags::empty()),
                    "punch" => allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
                    "zero" => allocate(FallocateFlags::ZERO_RANGE),
                    "copy" => {
                        let mut at = 0;
                        rustix::fs::copy_file_range(
                            File::open(&from)?,
                            Some(&mut 0),
                            file()?,
                            Some(&mut at),
                            4096,
                        )?;
                        Ok(())
                    }
                    "direct" => {
                        let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&to)?;
                        direct.write_all_at(&Box::new(Aligned([1; PAGE])).0, 0)
                    }
                    _ => {
                        // Opened by the user, written by root, who may keep setuid.
                        let opened = as_nobody(file)?;
                        opened.write_all_at(b"x", 0)?;
                        assert_eq!(mode(&to), 0o6777, "root took it away");
                        opened.sync_all()?;
                        assert_eq!(mode(&to), std::fs::metadata(&to)?.mode() & 0o7777);
                        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o777))
                    }
                }
            };
            if op == "handed" { act() } else { as_nobody(act) }.unwrap_or_else(|e| panic!("{op}: {e}"));
            assert_eq!(mode(&path), 0o777, "{op} with {options}");
        }
    }
}

/// Runs `f` in a thread that is an ordinary user: credentials are a thread's to the kernel.
pub fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        s.spawn(|| {
            for call in [libc::SYS_setresgid, libc::SYS_setresuid] {
                // SAFETY: the call takes three numbers and changes this thread alone, which ends
                // with `f`.
                assert_eq!(unsafe { libc::syscall(call, 65534, 65534, 65534) }, 0);
            }
            f()
        })
        .join()
        .unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}

/// A context of io_submit(2).
struct Aio(u64);

#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    rest: [u64; 2],
}

impl Aio {
    fn new() -> Aio {
        let mut context = 0u64;
        // SAFETY: the call writes one word through a pointer valid for that.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) }, 0);
        Aio(context)
    }
    /// Writes and waits for the completion: what it says.
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> i64 {
        const PWRITE: u16 = 1;
        let call = Iocb {
            opcode: PWRITE,
            fd: file.as_raw_fd() as u32,
            buffer: bytes.as_ptr() as u64,
            bytes: bytes.len() as u64,
            offset: offset as i64,
            ..Iocb::default()
        };
        let mut list = [&raw const call];
        let mut event = [0u64; 4];
        let null = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: the call block and the bytes live until the completion has been taken, here.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_io_submit, self.0, 1, list.as_mut_ptr()), 1);
            assert_eq!(libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, event.as_mut_ptr(), null), 1);
        }
        event[2] as i64
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: our own context, of which nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// The kernel follows a synchronous write by FSYNC, but not an asynchronous one.
fn an_asynchronous_synchronous_write_is_durable_when_it_completes() {
    for options in ["rw", "nowriteback"] {
        for flag in [libc::O_DSYNC, libc::O_SYNC] {
            let mut m = Mount::new(&["-o", options]);
            std::fs::write(m.path("f"), [b'o'; PAGE]).unwrap();
            File::open(m.path("f")).unwrap().sync_all().unwrap();
            let file =
                File::options().write(true).custom_flags(libc::O_DIRECT | flag).open(m.path("f")).unwrap();
            let new = Box::new(Aligned([b'n'; PAGE]));
            assert_eq!(Aio::new().write(&file, &new.0, 0), PAGE as i64);
            let mut how = 2u32;
            let dir = File::open(&m.dir).unwrap();
            // SAFETY: the ioctl reads at most one u32 through a pointer valid for that.
            assert_eq!(unsafe { libc::ioctl(dir.as_raw_fd(), 0x8004_587d, &raw mut how) }, 0);
            drop((file, dir));
            m.umount_of_a_stopped_one();
            m.mount(&[]);
            assert_eq!(std::fs::read(m.path("f")).unwrap(), new.0, "{options} {flag:o}");
        }
    }
}

/// The kernel drops its pages before an asynchronous write, and not again behind it: what was read
/// meanwhile stayed.
fn readers_see_an_asynchronous_direct_write_when_it_is_complete() {
    const N: usize = 160 * PAGE;
    let m = Mount::new(&[]);
    let path = m.path("f");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let mut bytes = Box::new(Aligned([1; N]));
    file.write_all_at(&bytes.0, 0).unwrap();
    let stop = AtomicBool::new(false);
    let stale = std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    let _ = std::fs::read(&path);
                }
            });
        }
        let aio = Aio::new();
        let reader = File::open(&path).unwrap();
        let mut seen = vec![0; N];
        let stale = (0..400u32).find(|round| {
            bytes.0.fill((round % 250) as u8 + 2);
            assert_eq!(aio.write(&file, &bytes.0, 0), N as i64);
            reader.read_exact_at(&mut seen, 0).unwrap();
            seen != bytes.0
        });
        stop.store(true, Relaxed);
        stale
    });
    assert_eq!(stale, None, "an old page after the write was complete");
}

/// `du`, and `tar -S`, which takes a file without blocks for one great hole.
fn blocks_of_an_open_file_are_told_when_it_is_synced() {
    for options in ["rw", "nowriteback"] {
        let m = Mount::new(&["-o", options]);
        let file = File::create_new(m.path("log")).unwrap();
        for chunk in 1..=4 {
            file.write_all_at(&vec![9; 2 << 20], (chunk - 1) * (2 << 20)).unwrap();
            file.sync_all().unwrap();
            assert_eq!(std::fs::metadata(m.path("log")).unwrap().blocks(), chunk * 4096, "{options}");
        }
        let sparse = File::create_new(m.path("sparse")).unwrap();
        sparse.write_all_at(&[1; 5000], 10_000_000).unwrap();
        sparse.sync_all().unwrap();
        assert_eq!(sparse.metadata().unwrap().blocks(), 16, "{options}");
        sparse.set_len(1000).unwrap();
        // While it is open the kernel may have more of it than the server.
        let most = if options == "rw" { 8 } else { 0 };
        assert!(sparse.metadata().unwrap().blocks() <= most, "{options}: cut off within a hole");
        drop(sparse);
        let none = || std::fs::metadata(m.path("sparse")).unwrap().blocks() == 0;
        wait_until("the handle to be released", none);
    }
}

/// What the kernel alone has of a file that is open: `tar -S` archives it, `cp` copies it.
fn what_was_written_to_an_open_file_is_archived() {
    for options in ["rw", "nowriteback"] {
        let m = Mount::new(&["-o", options]);
        std::fs::write(m.path("old"), "").unwrap();
        std::fs::write(m.path("cut"), [5; 9000]).unwrap();
        let how = [
            ("new", (true, false)),
            ("old", (false, false)),
            ("cut", (false, true)),
            ("looked-at", (true, false)),
        ];
        for (name, (create, cut)) in how {
            let out = m.work.path().join(format!("out-{options}"));
            std::fs::create_dir_all(out.join("tar")).unwrap();
            // It is there before the file is opened: a process made meanwhile closes the file, and
            // then the kernel hands over what it has.
            let script =
                "read go && tar -C $1 -cSf $3/archive $2 && tar -C $3/tar -xf $3/archive && cp $1/$2 $3";
            let mut archiver = Command::new("sh")
                .args(["-c", script, "sh", m.path("").to_str().unwrap(), name, out.to_str().unwrap()])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let file =
                OpenOptions::new().write(true).create_new(create).truncate(cut).open(m.path(name)).unwrap();
            if name == "looked-at" {
                std::fs::metadata(m.path(name)).unwrap();
            }
            file.write_all_at(&[7; 100_000], 0).unwrap();
            writeln!(archiver.stdin.take().unwrap()).unwrap();
            assert!(archiver.wait().unwrap().success());
            for copy in [out.join("tar").join(name), out.join(name)] {
                let bytes = std::fs::read(&copy).unwrap();
                assert!(bytes == [7; 100_000], "{options}, {name}: {} differs", copy.display());
            }
            drop(file);
        }
        // What is empty and closed has no block.
        std::fs::write(m.path("empty"), "").unwrap();
        let none = || std::fs::metadata(m.path("empty")).unwrap().blocks() == 0;
        wait_until("the handle to be released", none);
    }
}

/// Nor does the kernel show others what it remembers.
fn allow_root_keeps_others_out_of_listings() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become an ordinary user");
        return;
    }
    let m = Mount::new(&["-o", "allow_root"]);
    std::fs::set_permissions(m.work.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(m.path("d")).unwrap();
    std::fs::write(m.path("d/secret"), "x").unwrap();
    for dir in [m.dir.clone(), m.path("d")] {
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o705)).unwrap();
        assert!(std::fs::read_dir(&dir).unwrap().count() > 0);
        assert!(std::fs::metadata(&dir).is_ok());
    }
    for script in ["ls mnt", "ls mnt/d", "stat mnt/d/secret", "stat mnt", "cd mnt && ls"] {
        let mut shell = Command::new("sh");
        std::os::unix::process::CommandExt::uid(&mut shell, 65534);
        let run = run_command(shell.args(["-c", script]).current_dir(m.work.path()));
        assert!(run.code != 0 && !run.out.contains("secret"), "{script}: {run:?}");
    }
    assert_eq!(std::fs::read_dir(m.path("d")).unwrap().count(), 1);
}

/// Bytes that say where they are.
fn chunk(at: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| (at + i).to_le_bytes()).collect()
}

/// Writes until an error comes; how much was accepted. The error is ENOSPC.
fn fill(file: &File, size: usize) -> u64 {
    let mut at = file.metadata().unwrap().len();
    loop {
        match file.write_at(&chunk(at, size), at) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                return at;
            }
        }
        assert!(at < 600 << 20, "more is accepted than the volume has");
    }
}

fn holds(path: &Path, len: u64, size: usize) {
    let mut file = File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), len, "{}", path.display());
    let mut at = 0;
    let mut seen = vec![0; size];
    while at < len {
        let n = size.min((len - at) as usize);
        file.read_exact(&mut seen[..n]).unwrap();
        assert!(seen[..n] == chunk(at, size)[..n], "{} at {at}", path.display());
        at += n as u64;
    }
}

/// A writer who looks at nothing but `write` learns that the volume is full, and all that was
/// accepted is there: fsync has nothing to tell. What is removed makes room again.
fn a_full_volume_refuses_the_write_that_does_not_fit() {
    for (options, size) in [("rw", 1 << 20), ("rw", 4096), ("nowriteback", 1 << 20)] {
        let mut m = Mount::new(&["-o", options]);
        let before = rustix::fs::statvfs(&m.dir).unwrap().f_bavail * 4096;
        let early = File::create_new(m.path("early")).unwrap();
        early.write_all_at(&chunk(0, 4096), 0).unwrap();
        let file = File::create_new(m.path("f")).unwrap();
        let accepted = fill(&file, size);
        assert!(accepted > before / 10 * 9, "{options}: only {accepted} of {before}");
        file.sync_all().unwrap();
        // One that was open when there was room is refused as well, or loses nothing.
        let late = fill(&early, 4096);
        early.sync_all().unwrap();
        drop((file, early));
        let left = rustix::fs::statvfs(&m.dir).unwrap();
        assert!(left.f_bavail * 4096 < 2 << 20, "{options}: {} available", left.f_bavail * 4096);
        m.umount();
        m.mount(&["-o", options]);
        holds(&m.path("f"), accepted, size);
        holds(&m.path("early"), late, 4096);
        std::fs::remove_file(m.path("f")).unwrap();
        // The kernel tells the server a moment later that nobody has the removed file any more.
        let make = || File::create_new(m.path("again"));
        let again = (0..1000)
            .find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                make().ok()
            })
            .unwrap_or_else(|| make().unwrap());
        assert!(fill(&again, 1 << 20) > accepted / 2, "{options}: what was removed makes no room");
        again.sync_all().unwrap();
        drop(again);
        m.umount();
        m.fsck();
    }
}

/// What a program has written, and the kernel has not handed over, was taken by whoever needed
/// space past the kernel's cache: its fsync failed, and the content was gone. Where that filled the
/// volume writes to other files were accepted all the same, and lost.
fn what_the_kernel_has_accepted_is_taken_by_nobody() {
    type Takes = fn(&Mount, usize) -> std::io::Result<()>;
    let direct = |m: &Mount, name: &str| {
        let mut how = OpenOptions::new();
        how.write(true).create(true).custom_flags(libc::O_DIRECT).open(m.path(name))
    };
    let ways: [(&str, Takes); 8] = [
        ("past the cache", |m, n| {
            let mut how = OpenOptions::new();
            let file = how.write(true).create(true).custom_flags(libc::O_DIRECT).open(m.path("direct"))?;
            file.write_all_at(&Box::new(Aligned([0; 64 * PAGE])).0, (n * 64 * PAGE) as u64)
        }),
        ("preallocated", |m, n| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(m.path("kept"))?;
            Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), (n as u64) << 18, 1 << 18)?)
        }),
        ("copied", |m, n| {
            let to = File::create(m.path(&format!("c{n}")))?;
            let from = File::open(m.path("source"))?;
            let (mut a, mut b) = (0, 0);
            while a < 1 << 20 {
                rustix::fs::copy_file_range(&from, Some(&mut a), &to, Some(&mut b), 1 << 20)?;
            }
            Ok(())
        }),
        ("directories", |m, n| (0..100).try_for_each(|i| std::fs::create_dir(m.path(&format!("d{n}.{i}"))))),
        ("symbolic links", |m, n| {
            (0..100)
                .try_for_each(|i| std::os::unix::fs::symlink("x".repeat(3000), m.path(&format!("l{n}.{i}"))))
        }),
        ("attributes", |m, n| {
            let dir = m.path(&format!("d{n}"));
            std::fs::create_dir(&dir)?;
            Ok(rustix::fs::setxattr(&dir, "user.a", &[1; 60_000], rustix::fs::XattrFlags::empty())?)
        }),
        ("small files", |m, n| {
            (0..20).try_for_each(|i| std::fs::write(m.path(&format!("s{n}.{i}")), [1; 20_000]))
        }),
        ("synchronous", |m, n| {
            let mut how = OpenOptions::new();
            let file = how.write(true).create(true).custom_flags(libc::O_SYNC).open(m.path("sync"))?;
            file.write_all_at(&[0; 64 * PAGE], (n * 64 * PAGE) as u64)
        }),
    ];
    for (way, takes) in ways {
        let mut m = Mount::new(&[]);
        std::fs::write(m.path("source"), vec![7; 1 << 20]).unwrap();
        File::open(m.path("source")).unwrap().sync_all().unwrap();
        let early = File::create_new(m.path("early")).unwrap();
        early.write_all_at(&chunk(0, 2 << 20), 0).unwrap();
        let refused = (0..100_000).find_map(|n| takes(&m, n).err()).expect("the volume has an end");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{way}: {refused}");
        // Of others that are written by the cache now all is there that is accepted.
        let late = File::options().write(true).open(m.path("source")).unwrap();
        let accepted = fill(&late, 4096);
        late.sync_all().unwrap_or_else(|e| panic!("{way}: accepted and lost: {e}"));
        early.sync_all().unwrap_or_else(|e| panic!("{way}: what was written before is lost: {e}"));
        // What has its space is written over past the cache.
        drop(late);
        let over = direct(&m, "early").unwrap();
        over.write_all_at(&Box::new(Aligned([9; 16 * PAGE])).0, 0).unwrap();
        drop((over, early));
        m.umount();
        m.mount(&[]);
        let read = std::fs::read(m.path("early")).unwrap();
        assert!(
            read[..16 * PAGE] == [9; 16 * PAGE] && read[16 * PAGE..] == chunk(0, 2 << 20)[16 * PAGE..],
            "{way}"
        );
        assert_eq!(std::fs::metadata(m.path("source")).unwrap().len(), accepted, "{way}");
        m.umount();
        m.fsck();
    }
}

/// By the kernel's cache and past it.
fn a_user_who_fills_a_mount_leaves_the_last_to_root() {
    if !is_root() {
        return;
    }
    for options in ["rw", "nowriteback"] {
        let mut m = Mount::new(&["-o", options]);
        std::fs::set_permissions(&m.dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let at = |path: &str| m.path(path).display().to_string();
        let as_user = |command: String| {
            let mut c = std::process::Command::new("setpriv");
            c.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-c", &command]);
            run_command(&mut c)
        };
        as_user(format!("touch {} {}", at("g"), at("h"))).ok();
        let fill = format!("dd if=/dev/zero of={} bs=4k", at("f"));
        let refused = |run: Run| assert!(run.code != 0 && run.err.contains("No space left"), "{run:?}");
        refused(as_user(fill));
        let s = rustix::fs::statvfs(&m.dir).unwrap();
        assert!(
            s.f_bavail < 64 && s.f_bfree > s.f_blocks / 1024,
            "{options}: {} of {} blocks",
            s.f_bavail,
            s.f_bfree
        );
        let calls = [
            format!("fallocate -l 16M {}", at("g")),
            format!("head -c 100k /dev/zero > {}", at("h")),
            format!("head -c 40k /dev/zero | dd of={} bs=4k oflag=direct", at("h")),
            format!("for i in $(seq 2000); do ln {} {}$i || exit 1; done", at("h"), at("l")),
        ];
        // What is not gathered may take what is kept back for that.
        for call in calls.into_iter().take(if options == "rw" { 2 } else { 4 }) {
            refused(as_user(call));
        }
        // Root goes on with its log.
        let log = File::create(m.path("log")).unwrap();
        log.write_all_at(&chunk(0, 40_000), 0).unwrap();
        log.sync_all().unwrap();
        drop(log);
        as_user(format!("rm {}", at("f"))).ok();
        m.umount();
        m.mount(&["-o", options]);
        holds(&m.path("log"), 40_000, 40_000);
        m.umount();
        m.fsck();
    }
}

/// Whether this is root; says so if it is not.
fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("skipped: needs root");
    }
    is
}

/// Has a thread be an ordinary user, and do something.
fn as_user<T: Send>(does: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let user = s.spawn(|| {
            // SAFETY: the call takes numbers. It is not the C library's, which would change all
            // threads.
            let r = unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) };
            assert_eq!(r, 0);
            does()
        });
        user.join().unwrap()
    })
}

/// Lets other users make files.
fn let_all_in(m: &Mount) {
    for dir in [m.work.path(), &m.dir] {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    }
}

/// Nodes of maps are charged when they are written, and pages far apart need many.
fn root_goes_on_where_a_user_filled_a_mount_by_holes() {
    if !is_root() {
        return;
    }
    let mut m = Mount::new(&[]);
    let_all_in(&m);
    std::fs::write(m.path("old"), "").unwrap();
    as_user(|| {
        let file = File::create(m.path("f")).unwrap();
        let mut refused = 0;
        for n in 0.. {
            if let Err(e) = file.write_at(&[1; 4096], n * 12288) {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                refused += 1;
            }
            if refused == 3 {
                break;
            }
        }
        let _ = file.sync_all();
    });
    // Whatever is left is root's.
    let log = File::create(m.path("log")).unwrap();
    let accepted = fill_with(&log, 30_000);
    assert!(accepted >= 256 << 10, "only {accepted} bytes are left to root");
    assert!(std::fs::read(m.path("log")).unwrap() == words(0, accepted as usize), "as root sees it");
    log.sync_all().unwrap();
    drop(log);
    std::fs::remove_file(m.path("log")).unwrap();
    wait_until("what was removed to be given back", || {
        let again = OpenOptions::new().append(true).open(m.path("old"));
        again.is_ok_and(|mut f| f.write_all(&chunk(0, 40_000)).is_ok())
    });
    m.umount();
    m.mount(&[]);
    let len = std::fs::metadata(m.path("old")).unwrap().len();
    assert_eq!(std::fs::read(m.path("old")).unwrap()[len as usize - 40_000..], chunk(0, 40_000));
    m.umount();
    m.fsck();
}

/// Bytes that lie at `at`, a multiple of 8.
fn words(at: u64, len: usize) -> Vec<u8> {
    (at / 8..at / 8 + len as u64 / 8).flat_map(u64::to_le_bytes).collect()
}

/// Fills a mount as an ordinary user, by the kernel's cache and past it: the reserve for what is
/// gathered is not free then.
fn fill_as_user(m: &Mount) {
    let_all_in(m);
    as_user(|| {
        let file = File::create(m.path("full")).unwrap();
        fill_with(&file, 1 << 20);
        drop(file);
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(m.path("full"));
        let direct = direct.unwrap();
        let end = direct.metadata().unwrap().len().next_multiple_of(4096);
        while direct.write_all_at(&[1; 4096], direct.metadata().unwrap().len().max(end)).is_ok() {}
    });
}

/// Small writes to it were all accepted, and none was there.
fn a_file_without_a_name_has_space_for_what_it_takes() {
    if !is_root() {
        return;
    }
    let m = Mount::new(&[]);
    fill_as_user(&m);
    let unnamed = || {
        let how = libc::O_TMPFILE;
        OpenOptions::new().read(true).write(true).custom_flags(how).open(&m.dir)
    };
    let writes = |file: std::io::Result<File>| -> u64 {
        let Ok(file) = file.inspect_err(|e| assert_eq!(e.raw_os_error(), Some(libc::ENOSPC))) else {
            return 0;
        };
        let accepted = fill_with(&file, 4096);
        file.sync_all().unwrap();
        let mut seen = vec![0; accepted as usize];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == words(0, accepted as usize), "{accepted} bytes were accepted");
        accepted
    };
    as_user(|| writes(unnamed()));
    assert!(writes(unnamed()) > 0, "nothing is left to root");
}

/// Through handles that go past the kernel's cache, and others, and a map.
fn what_root_writes_to_a_full_mount_is_seen_by_all() {
    if !is_root() {
        return;
    }
    let mut m = Mount::new(&[]);
    fill_as_user(&m);
    // Of files that are made before the reserve is used the kernel gathers what is written.
    if transport() != Transport::Stateless {
        fill_with(&File::create(m.path("roots")).unwrap(), 4096);
    }
    let log = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("log")).unwrap();
    log.write_all_at(&words(0, 30_000), 0).unwrap();
    let reads = |len| assert!(std::fs::read(m.path("log")).unwrap() == words(0, len), "{len} bytes");
    reads(30_000);
    log.write_all_at(&words(30_000, 30_000), 30_000).unwrap();
    reads(60_000);
    // SAFETY: a shared map of a file that this test alone uses, within its size, unmapped below.
    unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), 60_000, prot, MapFlags::SHARED, &log, 0).unwrap();
        let seen = std::slice::from_raw_parts(map.cast::<u8>(), 60_000);
        assert!(seen == words(0, 60_000), "by the map");
        map.cast::<u8>().add(50_000).write_volatile(77);
        let mut byte = [0];
        log.read_exact_at(&mut byte, 50_000).unwrap();
        assert_eq!(byte, [77], "what was stored to the map");
        munmap(map, 60_000).unwrap();
    }
    log.write_all_at(&words(48_000, 8000), 48_000).unwrap();
    reads(60_000);
    log.sync_all().unwrap();
    drop(log);
    // The kernel keeps times where it gathers writes, and is told to forget them.
    let time = || std::fs::metadata(m.path("late")).unwrap().modified().unwrap();
    let late = File::create(m.path("late")).unwrap();
    let made = time();
    std::thread::sleep(std::time::Duration::from_millis(20));
    late.write_all_at(b"late", 0).unwrap();
    drop(late);
    wait_until("the time to be seen", || time() > made);
    m.umount();
    m.mount(&[]);
    assert!(std::fs::read(m.path("log")).unwrap() == words(0, 60_000));
    m.umount();
    m.fsck();
}

/// The kernel asks for attributes before a read behind the end, too.
fn a_full_mount_is_read() {
    if !is_root() {
        return;
    }
    let m = Mount::new(&[]);
    std::fs::write(m.path("f"), words(0, 40_000)).unwrap();
    std::fs::set_permissions(m.path("f"), PermissionsExt::from_mode(0o666)).unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
    let old = open();
    fill_as_user(&m);
    let reads = |file: &File, lens: [usize; 2]| {
        for len in lens {
            file.set_len(len as u64).unwrap();
            let mut seen = vec![0; 50_000];
            let n = file.read_at(&mut seen, 0).unwrap();
            assert!(seen[..n] == words(0, len), "{n} bytes of {len}");
        }
    };
    as_user(|| reads(&open(), [24_000, 3000]));
    reads(&old, [2000, 1000]);
}

/// Writes so much at a time until an error comes, and what is left of it in smaller parts; how much
/// was accepted. The error is ENOSPC.
fn fill_with(file: &File, size: usize) -> u64 {
    let mut at = 0;
    let mut part = size;
    while part >= 8 {
        match file.write_at(&words(at, part), at) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{part} bytes at {at}");
                part = part / 16 * 8;
            }
        }
        assert!(at < 600 << 20, "more is accepted than the volume has");
    }
    at
}

/// The kernel takes a short answer to such a write for an error of the device.
fn a_direct_write_that_does_not_fit_is_no_error_of_the_device() {
    for options in ["rw", "nowriteback"] {
        let mut m = Mount::new(&["-o", options]);
        for size in [256 << 10, 1 << 20, 3 << 20] {
            let direct = libc::O_DIRECT;
            let file = OpenOptions::new().write(true).create(true).custom_flags(direct).open(m.path("f"));
            let file = file.unwrap();
            let accepted = fill_with(&file, size);
            assert_eq!(file.metadata().unwrap().len(), accepted, "{options}, {size} bytes a write");
            file.sync_all().unwrap();
            // Nor is any of it found after a crash.
            file.write_all_at(&Box::new(Aligned([1; 1 << 20])).0[..size.min(1 << 20)], accepted).unwrap_err();
            let image = std::fs::read(m.image()).unwrap();
            let crashed = m.work.path().join("crashed");
            std::fs::write(&crashed, image).unwrap();
            let found = lanefs_in(m.work.path(), &["ls", "-l", "crashed:/"]);
            assert!(found.ok().out.contains(&accepted.to_string()), "{options}, {size} bytes, {accepted}");
            drop(file);
            m.umount();
            m.mount(&["-o", options]);
            assert!(std::fs::read(m.path("f")).unwrap() == words(0, accepted as usize), "{options}");
            std::fs::remove_file(m.path("f")).unwrap();
            m.umount();
            m.mount(&["-o", options]);
        }
        m.umount();
        m.fsck();
    }
}

/// Room that `fallocate` promised is shown by `stat` and `statfs`, and is there when everything
/// else is full: to writes at any offset, to a file that grows into it, and to pages of a map.
fn what_was_preallocated_is_shown_and_can_be_written_on_a_full_mount() {
    const SIZE: u64 = 16 << 20;
    for options in ["rw", "nowriteback"] {
        let mut m = Mount::new(&["-o", options]);
        let available = || rustix::fs::statvfs(&m.dir).unwrap().f_bavail * 4096;
        let before = available();
        let [inside, grows, mapped] = ["inside", "grows", "mapped"].map(|name| {
            let how = if name == "grows" { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.path(name)).unwrap();
            rustix::fs::fallocate(&file, how, 0, SIZE).unwrap();
            let stat = file.metadata().unwrap();
            assert_eq!((stat.len(), stat.blocks() * 512), (if name == "grows" { 0 } else { SIZE }, SIZE));
            file
        });
        assert!(before - available() >= 3 * SIZE, "{options}: {before} available, and then {}", available());
        let full = File::create_new(m.path("full")).unwrap();
        let accepted = fill(&full, 1 << 20);
        full.sync_all().unwrap();
        let parts: Vec<u64> = (0..SIZE).step_by(1 << 18).collect();
        let mut order = parts.clone();
        order.reverse();
        for (file, order) in [(&inside, &order), (&grows, &parts)] {
            for &at in order {
                file.write_all_at(&chunk(at, 1 << 18), at).unwrap_or_else(|e| panic!("{options} {at}: {e}"));
            }
            file.sync_all().unwrap_or_else(|e| panic!("{options}: {e}"));
        }
        // Where that ends it is as full as for others: once there may be space by chance.
        let refused = (0..2 << 10).find_map(|n| grows.write_all_at(&[1; 4096], SIZE + n * 4096).err());
        assert_eq!(refused.unwrap().raw_os_error(), Some(libc::ENOSPC), "{options}");
        grows.set_len(SIZE).unwrap();
        // SAFETY: a shared mapping of a file this test alone uses, within its size, unmapped below.
        unsafe {
            use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
            let len = SIZE as usize;
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let map = mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &mapped, 0).unwrap();
            for &at in &parts {
                let part = chunk(at, 1 << 18);
                std::ptr::copy_nonoverlapping(part.as_ptr(), map.cast::<u8>().add(at as usize), part.len());
            }
            msync(map, len, MsyncFlags::SYNC).unwrap_or_else(|e| panic!("{options}: {e}"));
            munmap(map, len).unwrap();
        }
        drop((inside, grows, mapped, full));
        m.umount();
        m.mount(&["-o", options]);
        for name in ["inside", "grows", "mapped"] {
            holds(&m.path(name), SIZE, 1 << 18);
        }
        holds(&m.path("full"), accepted, 1 << 20);
        m.umount();
        m.fsck();
    }
}

fn writers_side_by_side_lose_nothing_that_was_accepted_on_a_full_volume() {
    let mut m = Mount::new(&[]);
    let accepted: Vec<u64> = std::thread::scope(|s| {
        let writers: Vec<_> = (0..4)
            .map(|i| {
                let path = m.path(&format!("f{i}"));
                s.spawn(move || {
                    let file = File::create_new(path).unwrap();
                    let accepted = fill(&file, 256 << 10);
                    file.sync_all().unwrap();
                    accepted
                })
            })
            .collect();
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    m.umount();
    m.mount(&[]);
    for (i, len) in accepted.into_iter().enumerate() {
        holds(&m.path(&format!("f{i}")), len, 256 << 10);
    }
}

/// What programs had written was dropped when the connection was cut: writing back had only begun.
fn a_signal_loses_nothing_of_a_busy_mount() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut m = Mount::new(&[]);
        m.umount();
        let mut command = Command::new(LANEFS);
        let how = transport().option();
        command.args(["mount", "--foreground", "-o", &how, "v.lane", "mnt"]).current_dir(m.work.path());
        let mut child = command.stdin(std::process::Stdio::null()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while mount_line(&m.dir).is_none() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "does not mount");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mapped = File::options().read(true).write(true).create_new(true).open(m.path("mapped")).unwrap();
        mapped.set_len(1 << 20).unwrap();
        // SAFETY: a shared mapping within the file, which lives until it is unmapped below.
        let map = unsafe {
            use rustix::mm::{MapFlags, ProtFlags, mmap};
            let how = ProtFlags::READ | ProtFlags::WRITE;
            let map = mmap(std::ptr::null_mut(), 1 << 20, how, MapFlags::SHARED, &mapped, 0).unwrap();
            std::ptr::copy_nonoverlapping(chunk(0, 1 << 20).as_ptr(), map.cast(), 1 << 20);
            map
        };
        drop(mapped);
        let file = File::create_new(m.path("f")).unwrap();
        let mut at = 0;
        while at < 100 << 20 {
            file.write_all_at(&chunk(at, 1 << 20), at).unwrap();
            at += 1 << 20;
        }
        // SAFETY: our own child's pid, which has not been waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(mount_line(&m.dir), None);
        // SAFETY: mapped above and not used any more.
        unsafe { rustix::mm::munmap(map, 1 << 20).unwrap() };
        drop(file);
        m.mount(&[]);
        holds(&m.path("f"), at, 1 << 20);
        holds(&m.path("mapped"), 1 << 20, 1 << 20);
    }
}

/// Unmounts what a test has put on top.
struct OnTop<'a>(&'a Path);

impl Drop for OnTop<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn what_lies_on_top_of_a_mount_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to mount something else");
        return;
    }
    let m = Mount::new(&[]);
    let file = File::create_new(m.path("f")).unwrap();
    file.write_all_at(&chunk(0, 1 << 20), 0).unwrap();
    let server = m.server();
    let none = c"size=1m";
    rustix::mount::mount("none", &m.dir, "tmpfs", rustix::mount::MountFlags::empty(), none).unwrap();
    let top = OnTop(&m.dir);
    std::fs::write(m.path("stranger"), "x").unwrap();
    lanefs_in(m.work.path(), &["umount", "mnt"]).fails(1, &["on top"]);
    assert!(m.path("stranger").exists());
    let pid = rustix::process::Pid::from_raw(server).unwrap();
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    // SAFETY: the process that holds the image of this test's own volume.
    unsafe { libc::kill(server, libc::SIGTERM) };
    rustix::event::poll(&mut [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)], None)
        .unwrap();
    assert!(m.path("stranger").exists(), "what lay on top was unmounted");
    drop(top);
    drop(file);
    let clean = lanefs_in(m.work.path(), &["info", "--json", "v.lane"]).ok().json();
    assert_eq!(clean["clean"], true);
    let list = lanefs_in(m.work.path(), &["ls", "--json", "v.lane:/"]).ok().json();
    assert_eq!(list[0]["size"], 1 << 20);
}

/// SEMANTICS F2: msync of a range makes its pages durable and none before them; the file may end
/// behind any page that was handed over.
fn a_range_that_was_synced_is_there_and_no_byte_is_wrong() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    const LEN: usize = 1 << 20;
    let mut m = Mount::new(&[]);
    let file = File::options().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
    file.write_all_at(&chunk(0, LEN), 0).unwrap();
    let synced = 16 * PAGE..20 * PAGE;
    // SAFETY: a shared mapping of a file that this test alone uses, within its size, unmapped at
    // once.
    unsafe {
        let how = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), LEN, how, MapFlags::SHARED, &file, 0).unwrap();
        let part = map.cast::<u8>().add(synced.start);
        part.write_volatile(part.read_volatile());
        msync(part.cast(), synced.len(), MsyncFlags::SYNC).unwrap();
        let mut how = 2u32;
        let dir = File::open(&m.dir).unwrap();
        // The ioctl reads at most one u32 through a pointer valid for that.
        assert_eq!(libc::ioctl(dir.as_raw_fd(), 0x8004_587d, &raw mut how), 0);
        munmap(map, LEN).unwrap();
    }
    drop(file);
    m.umount_of_a_stopped_one();
    m.mount(&[]);
    let (seen, written) = (std::fs::read(m.path("f")).unwrap(), chunk(0, LEN));
    assert!((synced.end..=LEN).contains(&seen.len()) && seen.len().is_multiple_of(PAGE), "{}", seen.len());
    assert_eq!(seen[synced.clone()], written[synced]);
    for (i, page) in seen.chunks(PAGE).enumerate() {
        assert!(page == &written[i * PAGE..][..PAGE] || page.iter().all(|b| *b == 0), "page {i}");
    }
}

/// The kernel drops the pages that were copied to, also those of which a part was.
fn a_copy_takes_nothing_that_is_stored_beside_it_by_a_map() {
    const PROGRAM: &str = "
import mmap, os, signal
def new(name, size):
    f = os.open(name, os.O_RDWR | os.O_CREAT)
    os.pwrite(f, bytes(size), 0)
    return f
f, g = new('f', 12288), new('g', 8192)
copier = os.fork()
if copier == 0:
    while True:
        os.copy_file_range(g, f, 1000, 0, 2000)
        os.copy_file_range(g, f, 5000, 0, 4096)
try:
    m = mmap.mmap(f, 12288)
    for i in range(30000):
        for at in (0, 3000, 10000):
            m[at:at + 8] = i.to_bytes(8, 'little')
        for at in (0, 3000, 10000):
            found = int.from_bytes(os.pread(f, 8, at), 'little')
            assert found == i, f'{found} at {at} instead of {i}'
finally:
    os.kill(copier, signal.SIGKILL)
    os.waitpid(copier, 0)
# What has whole pages, or ends with the file, is copied as ever.
h = new('h', 0)
os.pwrite(g, b'x' * 8000, 0)
assert os.copy_file_range(g, h, 7000, 0, 0) == 7000
done = 0
while done < 6000:
    done += os.copy_file_range(g, h, 6000 - done, done, 123 + done)
assert os.pread(h, 9000, 0) == b'x' * 7000
";
    let m = Mount::new(&[]);
    run_command(Command::new("python3").args(["-c", PROGRAM]).current_dir(m.path("."))).ok();
}
