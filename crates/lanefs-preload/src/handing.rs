//! Open files that others are to have, by way of the mount that this process serves.
//!
//! H1 Before a child is made, what is open becomes a file of the mount, in this process too: parent
//!    and child have one position then, as after any fork. From there on the kernel serves it.
//! H2 What cannot be had so stays this process's, and the child's descriptor answers EIO: a file
//!    that has no name any more or may not be opened by it, one that is locked, one of which a
//!    shared mapping is there.
//! H3 Before the process becomes another program, which has the volume but not this mount, the
//!    files of the mount become the volume's again.

use crate::attributes::errno;
use crate::hook::errno as told;
use crate::raw::sys;
use crate::report::Call;
use crate::table::{self, Description};
use crate::{opening, placeholder, served, shared, volume};
use lanefs::{FileKind, Ino, Volume};
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Flags with which a file is opened through the mount as it was opened here.
const KEPT: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_NOATIME
    | libc::O_PATH
    | libc::O_DIRECTORY;

/// Hands over what is open, before a child is made (H1).
pub fn before_fork() {
    static CALL: Call = Call::new("fork");
    let Some(mount) = served::directory() else { return };
    if !volume::is_owner() || volume::is_inside() || served::is_host() {
        return;
    }
    // Descriptors of one open file go together.
    let mut open: HashMap<usize, (Arc<Description>, Vec<c_int>)> = HashMap::new();
    for fd in table::in_range(0, u32::MAX) {
        if let Some(d) = table::get(fd) {
            open.entry(Arc::as_ptr(&d) as usize).or_insert_with(|| (d, Vec::new())).1.push(fd);
        }
    }
    for (d, numbers) in open.values() {
        // What cannot be handed over stays (H2).
        let _ = hand_over(&mount.dir, d, numbers);
    }
    // The last one who has it frees the file, which is a call on the volume, and does not fail.
    let _ = volume::serve(&CALL, |_| {
        drop(open);
        Ok(())
    });
}

/// Returns the inode and the device of an open file of the kernel.
fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: fstat writes one stat through the pointer.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (sys!(libc::SYS_fstat, fd, &raw mut stat) == 0).then_some((stat.st_ino, stat.st_dev))
    }
}

/// Has numbers of one open file of the volume refer to the same file of the mount.
fn hand_over(mount: &[u8], d: &Description, numbers: &[c_int]) -> Result<(), c_int> {
    let ino = d.file.ino();
    if d.path.is_empty() || d.locked.load(Ordering::Relaxed) || shared::has(ino) {
        return Err(libc::EBUSY);
    }
    let path = CString::new([mount, &d.path].concat()).map_err(|_| libc::EINVAL)?;
    let flags = d.flags.load(Ordering::Relaxed) & KEPT;
    // SAFETY: the path ends in a NUL; the descriptor that is opened is the library's.
    let fd = unsafe {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
        sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) as c_int
    };
    if fd < 0 {
        return Err(told());
    }
    let fd = placeholder::own(fd);
    let given_up = |e| {
        placeholder::disown(fd);
        // SAFETY: the descriptor was opened above.
        unsafe { sys!(libc::SYS_close, fd) };
        Err(e)
    };
    if identity(fd).is_none_or(|(found, _)| found != ino.0) {
        return given_up(libc::ENOENT);
    }
    let held = d.position.lock().unwrap_or_else(PoisonError::into_inner);
    if !d.path_only() && d.kind == FileKind::File {
        let at = d.file.lseek(0, libc::SEEK_CUR).map_err(errno)?;
        // SAFETY: lseek takes any numbers.
        if unsafe { sys!(libc::SYS_lseek, fd, at, libc::SEEK_SET) } < 0 {
            return given_up(told());
        }
    } else if d.listed.load(Ordering::Relaxed) != 0 {
        // The rest of a listing that has begun.
        return given_up(libc::EBUSY);
    }
    for &number in numbers {
        // SAFETY: the number is the volume's, and becomes a copy of the library's descriptor.
        unsafe {
            let on_exec = sys!(libc::SYS_fcntl, number, libc::F_GETFD) as c_int & libc::FD_CLOEXEC;
            let on_exec = if on_exec != 0 { libc::O_CLOEXEC } else { 0 };
            if sys!(libc::SYS_dup3, fd, number, on_exec) < 0 {
                continue;
            }
        }
        table::remove(number);
    }
    // Who is about to use the position finds it there.
    d.successor.store(fd, Ordering::Relaxed);
    drop(held);
    Ok(())
}

/// Returns whether two descriptors are of one open file of the kernel.
fn are_one(a: c_int, b: c_int) -> bool {
    const KCMP_FILE: c_int = 0;
    let this = std::process::id();
    // SAFETY: kcmp takes numbers, and changes nothing.
    unsafe { sys!(libc::SYS_kcmp, this, this, KCMP_FILE, a, b) == 0 }
}

/// Takes the files of the mount back that stay open when the process becomes another program (H3).
pub fn take_back() {
    static CALL: Call = Call::new("exec");
    let Some(mount) = served::directory() else { return };
    if !volume::is_owner() || volume::is_inside() {
        return;
    }
    let Ok(root) = CString::new(mount.dir.clone()) else { return };
    // SAFETY: the path ends in a NUL; the descriptor is closed again.
    let device = unsafe {
        let fd =
            sys!(libc::SYS_openat, libc::AT_FDCWD, root.as_ptr(), libc::O_PATH | libc::O_CLOEXEC, 0) as c_int;
        let found = identity(fd);
        sys!(libc::SYS_close, fd);
        found.map(|(_, device)| device)
    };
    let mut taken: Vec<(c_int, Arc<Description>)> = Vec::new();
    for fd in volume::descriptors() {
        // SAFETY: F_GETFD takes any number.
        let stays = unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFD) } == 0;
        let Some((ino, _)) = identity(fd).filter(|(_, of)| stays && Some(*of) == device) else { continue };
        let same = taken.iter().find(|(other, _)| are_one(*other, fd)).map(|(_, d)| d.clone());
        let description = match same {
            Some(d) => Ok(d),
            None => volume::serve(&CALL, |v| reopen(v, fd, Ino(ino))),
        };
        if let Ok(description) = description {
            taken.push((fd, description));
        }
    }
    for (fd, description) in taken {
        // SAFETY: the number becomes a copy of a descriptor that the library keeps.
        if unsafe { sys!(libc::SYS_dup3, placeholder::file(), fd, 0) } >= 0 {
            // What has no place in the table has nothing to give.
            let _ = table::set(fd, description);
        }
    }
}

/// Opens in the volume what a descriptor of the mount has open.
fn reopen(volume: &Volume, fd: c_int, ino: Ino) -> Result<Arc<Description>, c_int> {
    // SAFETY: both calls take numbers.
    let (flags, at) = unsafe {
        (sys!(libc::SYS_fcntl, fd, libc::F_GETFL) as c_int, sys!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR))
    };
    let cred = lanefs::Cred { prechecked: true, ..volume::view(volume).cred().clone() };
    let file = volume
        .node_open(&cred, ino, flags & (libc::O_ACCMODE | libc::O_SYNC | libc::O_PATH))
        .map_err(errno)?;
    if at > 0 {
        file.lseek(at as i64, libc::SEEK_SET).map_err(errno)?;
    }
    Ok(Arc::new(opening::description(file, flags)?))
}
