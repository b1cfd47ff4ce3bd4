//! File handles, as an NFS server keeps them: they lead to the file after the kernel has forgotten
//! it, after a remount, and to nothing else after the file is gone.

use crate::common::*;
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Read, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

on_each_transport! {
    a_handle_leads_to_the_file_after_the_kernel_forgot_it,
    a_handle_leads_to_the_file_after_a_remount,
    a_handle_of_what_is_gone_leads_nowhere,
    a_handle_cannot_be_made_from_that_of_another_file,
    without_handles_the_kernel_says_so,
}

/// `struct file_handle` with the room that any handle takes.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    content: [u8; 128],
}

/// The kernel puts the upper half of the number first, then the lower, then the generation.
impl Handle {
    fn ino(&self) -> u64 {
        let half = |at: usize| u64::from(u32::from_ne_bytes(self.content[at..at + 4].try_into().unwrap()));
        half(0) << 32 | half(4)
    }
    fn generation(&self) -> u32 {
        u32::from_ne_bytes(self.content[8..12].try_into().unwrap())
    }
    fn of(&self, ino: u64) -> Handle {
        let mut other = self.clone();
        other.content[..4].copy_from_slice(&((ino >> 32) as u32).to_ne_bytes());
        other.content[4..8].copy_from_slice(&(ino as u32).to_ne_bytes());
        other
    }
}

fn handle_of(path: &Path) -> Result<Handle> {
    let mut handle = Handle { bytes: 128, kind: 0, content: [0; 128] };
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut mount = 0;
    let to: *mut Handle = &raw mut handle;
    // SAFETY: the path ends in NUL; the handle says that it has room for 128 bytes, and has; the
    // kernel writes there and to `mount`.
    let r = unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), to.cast(), &raw mut mount, 0) };
    if r == 0 { Ok(handle) } else { Err(Error::last_os_error()) }
}

fn open(dir: &Path, handle: &Handle, flags: i32) -> Result<File> {
    let mount = File::open(dir)?;
    let mut handle = handle.clone();
    let to: *mut Handle = &raw mut handle;
    // SAFETY: the kernel reads the handle, which is as long as it says; the descriptor is open.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), to.cast(), flags) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

fn forget_all() {
    rustix::fs::sync();
    for _ in 0..3 {
        std::fs::write("/proc/sys/vm/drop_caches", "2").expect("drop_caches");
    }
}

fn content(dir: &Path, handle: &Handle) -> Result<String> {
    let mut text = String::new();
    open(dir, handle, libc::O_RDONLY)?.read_to_string(&mut text)?;
    Ok(text)
}

fn is_stale<T>(result: Result<T>) -> bool {
    result.is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE))
}

/// Whether the file's content becomes stale. The kernel may know a removed file for a moment more:
/// it releases what was closed behind the back of who closed it.
fn becomes_stale(dir: &Path, handle: &Handle) -> bool {
    let mut tries = 0..1000;
    tries.any(|_| {
        let stale = is_stale(content(dir, handle));
        if !stale {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        stale
    })
}

fn a_handle_leads_to_the_file_after_the_kernel_forgot_it() {
    let m = Mount::new(&["-o", "handles"]);
    std::fs::create_dir_all(m.path("a/b")).unwrap();
    std::fs::write(m.path("a/b/f"), "in the file").unwrap();
    std::os::unix::fs::symlink("f", m.path("a/b/link")).unwrap();
    let [file, dir, link] = ["a/b/f", "a/b", "a/b/link"].map(|n| handle_of(&m.path(n)).unwrap());
    forget_all();
    assert_eq!(content(&m.dir, &file).unwrap(), "in the file");
    // The kernel asks for the parents of a directory that it does not know.
    forget_all();
    let dir = open(&m.dir, &dir, libc::O_RDONLY).unwrap();
    let up = rustix::fs::openat(&dir, "../../a", OFlags::RDONLY, Mode::empty()).unwrap();
    let there = std::fs::metadata(m.path("a")).unwrap().ino();
    assert_eq!(rustix::fs::fstat(&up).unwrap().st_ino, there);
    drop((dir, up));
    forget_all();
    let link = open(&m.dir, &link, libc::O_PATH).unwrap();
    let target = rustix::fs::readlinkat(&link, "", Vec::new()).unwrap();
    assert_eq!(target.as_bytes(), b"f");
}

fn a_handle_leads_to_the_file_after_a_remount() {
    let mut m = Mount::new(&["-o", "handles"]);
    std::fs::create_dir(m.path("d")).unwrap();
    std::fs::write(m.path("d/f"), "in the file").unwrap();
    let (root, file) = (handle_of(&m.dir).unwrap(), handle_of(&m.path("d/f")).unwrap());
    m.umount();
    m.mount(&["-o", "handles"]);
    assert_eq!(content(&m.dir, &file).unwrap(), "in the file");
    assert!(open(&m.dir, &root, libc::O_RDONLY).unwrap().metadata().unwrap().is_dir());
    // What is known of it is forgotten as of any other file: its room comes back when it is
    // removed.
    std::fs::remove_file(m.path("d/f")).unwrap();
    assert!(becomes_stale(&m.dir, &file));
}

/// Files that are made together had one generation, so that their numbers, which follow each other,
/// were all that a handle needs.
fn a_handle_cannot_be_made_from_that_of_another_file() {
    let mut m = Mount::new(&["-o", "handles"]);
    let handles = |m: &Mount| -> Vec<Handle> {
        (0..20).map(|n| handle_of(&m.path(&format!("f{n}"))).unwrap()).collect()
    };
    for n in 0..20 {
        std::fs::write(m.path(&format!("f{n}")), "content").unwrap();
    }
    let mut given = handles(&m);
    for other in &given[1..] {
        assert!(is_stale(content(&m.dir, &given[0].of(other.ino()))));
    }
    m.umount();
    m.mount(&["-o", "handles"]);
    // As a listing tells them.
    assert_eq!(std::fs::read_dir(&m.dir).unwrap().count(), 20);
    for (before, after) in given.iter().zip(handles(&m)) {
        assert_eq!((before.ino(), before.generation()), (after.ino(), after.generation()));
    }
    given.sort_by_key(Handle::generation);
    assert!(given.windows(2).all(|w| w[0].generation().abs_diff(w[1].generation()) > 1));
}

fn a_handle_of_what_is_gone_leads_nowhere() {
    let mut m = Mount::new(&["-o", "handles"]);
    std::fs::write(m.path("f"), "old").unwrap();
    std::fs::create_dir(m.path("d")).unwrap();
    let (file, dir) = (handle_of(&m.path("f")).unwrap(), handle_of(&m.path("d")).unwrap());
    std::fs::remove_file(m.path("f")).unwrap();
    std::fs::remove_dir(m.path("d")).unwrap();
    assert!(becomes_stale(&m.dir, &file) && is_stale(open(&m.dir, &dir, libc::O_RDONLY)));
    m.umount();
    m.mount(&["-o", "handles"]);
    assert!(is_stale(content(&m.dir, &file)) && is_stale(open(&m.dir, &dir, libc::O_RDONLY)));
    // Its number, used again, is another file's. Numbers that earlier mounts left free are looked
    // for when the volume is opened and by checkpoints; asking for the free space makes one when
    // there is something to win.
    let old = file.ino();
    let mut again = false;
    for round in 0..100 {
        std::fs::write(m.path("large"), vec![1; 4 << 20]).unwrap();
        again |= std::fs::metadata(m.path("large")).unwrap().ino() == old;
        std::fs::remove_file(m.path("large")).unwrap();
        rustix::fs::statvfs(&m.dir).unwrap();
        for n in 0..300 {
            let path = m.path(&format!("n{}", round * 300 + n));
            std::fs::write(&path, "new").unwrap();
            again |= std::fs::metadata(&path).unwrap().ino() == old;
        }
        if again {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(is_stale(content(&m.dir, &file)));
    assert!(again, "no number was used again");
    // Numbers that never were.
    for ino in [0, 2, 15, 1 << 40, u64::MAX] {
        assert!(is_stale(open(&m.dir, &file.of(ino), libc::O_RDONLY)), "{ino}");
    }
    assert!(rustix::fs::openat(CWD, m.path("n0"), OFlags::RDONLY, Mode::empty()).is_ok());
}

fn without_handles_the_kernel_says_so() {
    let m = Mount::new(&["-o", "handles=off"]);
    std::fs::write(m.path("f"), "").unwrap();
    assert_eq!(handle_of(&m.path("f")).err().and_then(|e| e.raw_os_error()), Some(libc::EOPNOTSUPP));
}
