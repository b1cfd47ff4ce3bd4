//! A directory of the running kernel, through system calls: tmpfs, ext4, or LaneFS through FUSE.
//!
//! Every target has a thread of its own, which leaves the process's shared working state
//! (`CLONE_FS`), makes the directory its root and takes other users' credentials by raw system
//! calls, which act on the calling thread only. Needs root.

use super::{Target, compared_size};
use crate::op::{ACCESS_ACL, Attributes, Fd, Name, Op, Outcome, When, Who, acl_of};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_long};
use std::io::{Error, Result};
use std::path::Path;
use std::sync::mpsc;

type Call = (Who, Op, mpsc::Sender<Outcome>);

/// A directory as a target.
#[derive(Debug)]
pub struct Directory {
    calls: mpsc::Sender<Call>,
}

impl Directory {
    /// Returns whether this process may do what a directory target needs.
    pub fn possible() -> bool {
        // SAFETY: geteuid has no preconditions.
        unsafe { libc::geteuid() == 0 }
    }

    /// Starts the thread that works in `dir`, which should be empty and owned by root with
    /// mode 0755.
    pub fn new(dir: &Path) -> Result<Directory> {
        let dir = CString::new(dir.as_os_str().as_encoded_bytes())?;
        let (calls, inbox) = mpsc::channel::<Call>();
        let (ready, started) = mpsc::channel();
        std::thread::spawn(move || {
            let entered = enter(&dir);
            let ok = entered.is_ok();
            let sent = ready.send(entered);
            if !ok || sent.is_err() {
                return;
            }
            let mut worker = Worker { who: Who::Root, open: BTreeMap::new() };
            while let Ok((who, op, answer)) = inbox.recv() {
                let r = worker.become_user(who).and_then(|()| worker.call(&op));
                let out = r.unwrap_or_else(|e| Outcome::Fail(e.raw_os_error().unwrap_or(libc::EIO)));
                if answer.send(out).is_err() {
                    break;
                }
            }
        });
        started.recv().map_err(Error::other)??;
        Ok(Directory { calls })
    }
}

impl Target for Directory {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        let (tx, rx) = mpsc::channel();
        match self.calls.send((who, op.clone(), tx)) {
            Ok(()) => rx.recv().unwrap_or(Outcome::Fail(libc::EIO)),
            Err(_) => Outcome::Fail(libc::EIO),
        }
    }
}

fn check(r: c_long) -> Result<u64> {
    if r < 0 { Err(Error::last_os_error()) } else { Ok(r as u64) }
}

fn enter(dir: &CString) -> Result<()> {
    // SAFETY: plain system calls on a valid C string; unshare(CLONE_FS) makes root, working
    // directory and umask this thread's own, so that nothing outside the thread changes.
    unsafe {
        check(libc::unshare(libc::CLONE_FS).into())?;
        check(libc::chroot(dir.as_ptr()).into())?;
        check(libc::chdir(c"/".as_ptr()).into())?;
        libc::umask(0);
    }
    Ok(())
}

struct Worker {
    who: Who,
    open: BTreeMap<Fd, i32>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        for fd in self.open.values() {
            // SAFETY: the descriptor is this worker's own and is closed once.
            unsafe { libc::close(*fd) };
        }
    }
}

fn cstr(name: &Name) -> Result<CString> {
    CString::new(name.0.clone()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

impl Worker {
    fn become_user(&mut self, who: Who) -> Result<()> {
        if who == self.who {
            return Ok(());
        }
        let c = who.cred();
        let groups: Vec<u32> = c.groups.to_vec();
        let keep = -1i64;
        // SAFETY: raw system calls (not the C library's, which would tell all threads); the group
        // list lives across the call. The real and saved ids stay 0, so root can be had back.
        unsafe {
            check(libc::syscall(libc::SYS_setresuid, keep, 0i64, keep))?;
            check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            check(libc::syscall(libc::SYS_setresgid, keep, i64::from(c.gid), keep))?;
            check(libc::syscall(libc::SYS_setresuid, keep, i64::from(c.uid), keep))?;
        }
        self.who = who;
        Ok(())
    }

    fn fd(&self, fd: Fd) -> Result<i32> {
        self.open.get(&fd).copied().ok_or(Error::from_raw_os_error(libc::EBADF))
    }

    fn with_open<R>(&self, path: &Name, flags: i32, f: impl FnOnce(i32) -> Result<R>) -> Result<R> {
        let p = cstr(path)?;
        // SAFETY: a valid C string; the descriptor is closed below.
        let fd = check(unsafe { libc::open(p.as_ptr(), flags | libc::O_CLOEXEC) }.into())? as i32;
        let r = f(fd);
        // SAFETY: opened above, closed once.
        unsafe { libc::close(fd) };
        r
    }

    fn list(&self, path: &Name) -> Result<Outcome> {
        self.with_open(path, libc::O_RDONLY | libc::O_DIRECTORY, |fd| {
            let mut list = BTreeMap::new();
            let mut buf = vec![0u8; 4096];
            loop {
                // SAFETY: the buffer is as long as said.
                let n =
                    check(unsafe { libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len()) })?;
                if n == 0 {
                    return Ok(Outcome::List(list));
                }
                let mut at = 0usize;
                while at < n as usize {
                    let ino = u64::from_ne_bytes(std::array::from_fn(|i| buf[at + i]));
                    let len = u16::from_ne_bytes([buf[at + 16], buf[at + 17]]) as usize;
                    let kind = buf[at + 18];
                    let name: Vec<u8> =
                        buf[at + 19..at + len].iter().copied().take_while(|b| *b != 0).collect();
                    if name != b"." && name != b".." && list.insert(Name(name), (kind, ino)).is_some() {
                        return Err(Error::other("a name was listed twice"));
                    }
                    at += len;
                }
            }
        })
    }

    fn stat(&self, fd: i32, path: &CString, flags: i32) -> Result<Outcome> {
        // SAFETY: all-zero is a valid stat buffer; the call fills it.
        let mut s: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: valid C string and buffer.
        check(unsafe { libc::fstatat(fd, path.as_ptr(), &mut s, flags) }.into())?;
        let ns = |sec: i64, nsec: i64| sec.wrapping_mul(1_000_000_000).wrapping_add(nsec);
        Ok(Outcome::Attr(Attributes {
            id: (s.st_ino, 0),
            mode: s.st_mode,
            nlink: s.st_nlink as u32,
            uid: s.st_uid,
            gid: s.st_gid,
            size: compared_size(s.st_mode, s.st_size as u64),
            atime: Some(ns(s.st_atime, s.st_atime_nsec)),
            mtime: Some(ns(s.st_mtime, s.st_mtime_nsec)),
        }))
    }

    fn call(&mut self, op: &Op) -> Result<Outcome> {
        let done = |r: i32| check(r.into()).map(|_| Outcome::Done);
        let count = |r: i64| check(r).map(Outcome::Count);
        let none = libc::AT_FDCWD;
        // SAFETY: every call below gets valid C strings, and buffers that live across it and are as
        // long as said.
        unsafe {
            match op {
                Op::Open { fd, path, flags, mode } => {
                    if self.open.contains_key(fd) {
                        return Err(Error::from_raw_os_error(libc::EMFILE));
                    }
                    let r = check(libc::open(cstr(path)?.as_ptr(), flags | libc::O_CLOEXEC, *mode).into())?;
                    self.open.insert(*fd, r as i32);
                    Ok(Outcome::Done)
                }
                Op::Close { fd } => {
                    let r = self.fd(*fd)?;
                    self.open.remove(fd);
                    done(libc::close(r))
                }
                Op::Mkdir { path, mode } => done(libc::mkdir(cstr(path)?.as_ptr(), *mode)),
                Op::Mknod { path, mode } => done(libc::mknod(cstr(path)?.as_ptr(), *mode, 0)),
                Op::Rmdir { path } => done(libc::rmdir(cstr(path)?.as_ptr())),
                Op::Unlink { path } => done(libc::unlink(cstr(path)?.as_ptr())),
                Op::Link { old, new } => done(libc::link(cstr(old)?.as_ptr(), cstr(new)?.as_ptr())),
                Op::LinkFd { fd, new } => done(libc::linkat(
                    self.fd(*fd)?,
                    c"".as_ptr(),
                    none,
                    cstr(new)?.as_ptr(),
                    libc::AT_EMPTY_PATH,
                )),
                Op::Symlink { target, path } => {
                    done(libc::symlink(cstr(target)?.as_ptr(), cstr(path)?.as_ptr()))
                }
                Op::Readlink { path } => {
                    let mut buf = vec![0u8; 4096];
                    let n = check(
                        libc::readlink(cstr(path)?.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) as i64
                    )?;
                    buf.truncate(n as usize);
                    Ok(Outcome::Bytes(buf))
                }
                Op::Rename { old, new, flags } => {
                    done(libc::renameat2(none, cstr(old)?.as_ptr(), none, cstr(new)?.as_ptr(), *flags))
                }
                Op::Readdir { path } => self.list(path),
                Op::Stat { path } => self.stat(none, &cstr(path)?, 0),
                Op::Lstat { path } => self.stat(none, &cstr(path)?, libc::AT_SYMLINK_NOFOLLOW),
                Op::Fstat { fd } => self.stat(self.fd(*fd)?, &c"".into(), libc::AT_EMPTY_PATH),
                Op::Chmod { path, mode } => done(libc::chmod(cstr(path)?.as_ptr(), *mode)),
                Op::Chown { path, uid, gid, follow } => {
                    let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                    let (u, g) = (uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX));
                    done(libc::fchownat(none, cstr(path)?.as_ptr(), u, g, flags))
                }
                Op::Utimens { path, atime, mtime } => {
                    let spec = |w: &When| match w {
                        When::Keep => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
                        When::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
                        When::At(t) => libc::timespec {
                            tv_sec: t.div_euclid(1_000_000_000),
                            tv_nsec: t.rem_euclid(1_000_000_000),
                        },
                    };
                    let t = [spec(atime), spec(mtime)];
                    done(libc::utimensat(none, cstr(path)?.as_ptr(), t.as_ptr(), 0))
                }
                Op::Truncate { path, size } => done(libc::truncate(cstr(path)?.as_ptr(), *size as i64)),
                Op::Ftruncate { fd, size } => done(libc::ftruncate(self.fd(*fd)?, *size as i64)),
                Op::Read { fd, len } => {
                    let mut buf = vec![0u8; *len as usize];
                    let n = check(libc::read(self.fd(*fd)?, buf.as_mut_ptr().cast(), buf.len()) as i64)?;
                    buf.truncate(n as usize);
                    Ok(Outcome::Bytes(buf))
                }
                Op::Pread { fd, offset, len } => {
                    let mut buf = vec![0u8; *len as usize];
                    let n =
                        check(
                            libc::pread(self.fd(*fd)?, buf.as_mut_ptr().cast(), buf.len(), *offset as i64)
                                as i64,
                        )?;
                    buf.truncate(n as usize);
                    Ok(Outcome::Bytes(buf))
                }
                Op::Write { fd, data } => {
                    let f = self.fd(*fd)?;
                    // The bytes tell where they belong, so the place must be known first.
                    let append = libc::fcntl(f, libc::F_GETFL) & libc::O_APPEND != 0;
                    let whence = if append { libc::SEEK_END } else { libc::SEEK_CUR };
                    let at = if append {
                        let mut s: libc::stat = std::mem::zeroed();
                        check(libc::fstat(f, &mut s).into())?;
                        s.st_size as u64
                    } else {
                        check(libc::lseek(f, 0, whence))?
                    };
                    let bytes = data.bytes(at);
                    count(libc::write(f, bytes.as_ptr().cast(), bytes.len()) as i64)
                }
                Op::Pwrite { fd, offset, data } => {
                    let f = self.fd(*fd)?;
                    let mut at = *offset;
                    if libc::fcntl(f, libc::F_GETFL) & libc::O_APPEND != 0 {
                        let mut s: libc::stat = std::mem::zeroed();
                        check(libc::fstat(f, &mut s).into())?;
                        at = s.st_size as u64;
                    }
                    let bytes = data.bytes(at);
                    count(libc::pwrite(f, bytes.as_ptr().cast(), bytes.len(), *offset as i64) as i64)
                }
                Op::Fallocate { fd, mode, offset, len } => {
                    done(libc::fallocate(self.fd(*fd)?, *mode, *offset as i64, *len as i64))
                }
                Op::Lseek { fd, offset, whence } => count(libc::lseek(self.fd(*fd)?, *offset, *whence)),
                Op::Fsync { fd } => done(libc::fsync(self.fd(*fd)?)),
                Op::Fdatasync { fd } => done(libc::fdatasync(self.fd(*fd)?)),
                Op::FsyncDir { path } => {
                    self.with_open(path, libc::O_RDONLY | libc::O_DIRECTORY, |fd| done(libc::fsync(fd)))
                }
                Op::FsyncPath { path } => self.with_open(path, libc::O_RDONLY, |fd| done(libc::fsync(fd))),
                Op::Sync => self
                    .with_open(&"/".into(), libc::O_RDONLY | libc::O_DIRECTORY, |fd| done(libc::syncfs(fd))),
                Op::Setxattr { path, name, value, flags } => {
                    let acl = acl_of(*value).filter(|_| name.0 == ACCESS_ACL);
                    let v = acl.map_or_else(|| value.bytes(0), |acl| acl.0);
                    done(libc::setxattr(
                        cstr(path)?.as_ptr(),
                        cstr(name)?.as_ptr(),
                        v.as_ptr().cast(),
                        v.len(),
                        *flags,
                    ))
                }
                Op::Getxattr { path, name } => {
                    let mut buf = vec![0u8; 65_536];
                    let n = check(libc::getxattr(
                        cstr(path)?.as_ptr(),
                        cstr(name)?.as_ptr(),
                        buf.as_mut_ptr().cast(),
                        buf.len(),
                    ) as i64)?;
                    buf.truncate(n as usize);
                    Ok(Outcome::Bytes(buf))
                }
                Op::Listxattr { path } => {
                    let mut buf = vec![0u8; 65_536];
                    let p = cstr(path)?;
                    let n = check(libc::listxattr(p.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) as i64)?;
                    let names = buf[..n as usize].split(|b| *b == 0).filter(|n| !n.is_empty());
                    let ours = names.filter(|n| n.starts_with(b"user.") || n.starts_with(b"trusted."));
                    Ok(Outcome::Keys(ours.map(|n| Name(n.to_vec())).collect::<BTreeSet<_>>()))
                }
                Op::Removexattr { path, name } => {
                    done(libc::removexattr(cstr(path)?.as_ptr(), cstr(name)?.as_ptr()))
                }
                Op::Access { path, mask } => done(libc::syscall(
                    libc::SYS_faccessat2,
                    none,
                    cstr(path)?.as_ptr(),
                    *mask,
                    libc::AT_EACCESS,
                ) as i32),
                Op::Tick | Op::Checkpoint | Op::Remount => Ok(Outcome::Done),
            }
        }
    }
}

/// Returns the rules that the running kernel's `fs.protected_*` settings add.
pub fn kernel_quirks() -> crate::model::Quirks {
    let get = |name: &str| -> u8 {
        std::fs::read_to_string(format!("/proc/sys/fs/{name}"))
            .ok()
            .and_then(|s| s.trim().parse().ok())
            .unwrap_or(0)
    };
    crate::model::Quirks {
        hardlinks: get("protected_hardlinks") != 0,
        symlinks: get("protected_symlinks") != 0,
        regular: get("protected_regular"),
    }
}
