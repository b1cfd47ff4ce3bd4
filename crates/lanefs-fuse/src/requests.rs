//! Requests of the kernel, each translated into one call of the library.
//!
//! What the writeback cache asks of this side (the kernel's fs/fuse/file.c):
//!
//! W1 Files opened write-only are opened for reading too: the kernel fills partly written pages.
//! W2 O_APPEND is the kernel's: it knows the size; writes come with their offset.
//! W3 Writes from the cache leave times alone; the kernel keeps mtime and ctime and sends them by SETATTR, before
//!    the FSYNC that was to cover them.
//! W4 FLUSH has nothing left to do once the kernel wrote back its pages at close, so it is answered "not
//!    implemented" and not sent again; errors of writes reach close and fsync by the kernel's own account.

use crate::acl::{self, Acl};
use crate::adaptor::Adaptor;
use crate::seek;
use crate::translate::*;
use crate::{IOC_GETPID, IOC_GOINGDOWN};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use lanefs::{Cred, Ino, SetAttr, Stat};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

/// Wanted of the kernel; what it does not offer is left out.
const WANTED: [InitFlags; 13] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_HAS_IOCTL_DIR,
];

/// Entries read from a directory at a time for readdirplus, so that no lock of the directory is held while their
/// attributes are fetched.
const PLUS_STEP: usize = 32;

thread_local! {
    /// A reader thread's buffer for READ; grows to the largest request and is used again.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const NO_STAT: Stat = Stat {
    ino: Ino::NONE,
    generation: 0,
    kind: lanefs::FileKind::File,
    mode: 0,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    size: 0,
    blocks: 0,
    atime: 0,
    mtime: 0,
    ctime: 0,
    btime: 0,
};

fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

/// Answers with a value, or only its size if the caller asked for that.
fn value(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(v) if size == 0 => reply.size(v.len() as u32),
        Ok(v) if v.len() <= size as usize => reply.data(&v),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(e) => reply.error(e),
    }
}

impl Filesystem for Adaptor {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in WANTED {
            let _ = config.add_capabilities(flag);
        }
        // The mode is masked by this side, because a default ACL takes the umask's place.
        let acls = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        config
            .add_capabilities(acls)
            .map_err(|_| std::io::Error::other("the kernel's FUSE is older than 4.9 and offers no ACLs"))?;
        self.writeback = self.writeback && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_ok();
        let _ = config.set_max_write(self.max_write);
        let _ = config.set_max_readahead(self.max_write).or_else(|most| config.set_max_readahead(most));
        let _ = config.set_max_background(128);
        Ok(())
    }

    fn destroy(&mut self) {
        self.seeker.stop();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.volume.node_lookup(&cred(req), ino(parent), name.as_bytes()) {
            Ok(stat) => reply.entry(&self.ttl, &attr(&stat), generation(&stat)),
            Err(e) if e.errno() == libc::ENOENT => {
                reply.entry(&self.ttl, &no_entry(), fuser::Generation(0));
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn forget(&self, _req: &Request, _ino: INodeNo, _nlookup: u64) {}

    fn getattr(&self, _req: &Request, target: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let stat = match fh.map(|fh| self.file(fh)) {
            Some(Ok(file)) => file.stat(),
            _ => self.volume.node_stat(ino(target)),
        };
        match stat {
            Ok(stat) => reply.attr(&self.ttl, &attr(&stat)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        target: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(nanos),
            kill_priv: size.is_some() && req.uid() != 0,
        };
        match self.change(ino(target), &set) {
            Ok(stat) => reply.attr(&self.ttl, &attr(&stat)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readlink(&self, _req: &Request, target: INodeNo, reply: ReplyData) {
        match self.volume.node_readlink(ino(target)) {
            Ok(path) => reply.data(&path),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.make(parent, mode, umask, false, reply, |mode| {
            self.volume.node_mknod(&cred(req), ino(parent), name.as_bytes(), mode, rdev_from_kernel(rdev))
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.make(parent, mode, umask, true, reply, |mode| {
            self.volume.node_mkdir(&cred(req), ino(parent), name.as_bytes(), mode)
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.volume.node_unlink(&cred(req), ino(parent), name.as_bytes());
        done(self.settled(&[ino(parent)], result), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.volume.node_rmdir(&cred(req), ino(parent), name.as_bytes());
        done(self.settled(&[ino(parent)], result), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let result = self.volume.node_symlink(&cred(req), ino(parent), name.as_bytes(), target);
        self.entry(self.settled(&[ino(parent)], result), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (ino(parent), ino(newparent));
        let result =
            self.volume.node_rename(&cred(req), from, name.as_bytes(), to, newname.as_bytes(), flags.bits());
        done(self.settled(&[from, to], result), reply);
    }

    fn link(&self, req: &Request, target: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let result = self.volume.node_link(&cred(req), ino(target), ino(newparent), newname.as_bytes());
        self.entry(self.settled(&[ino(newparent)], result), reply);
    }

    fn open(&self, req: &Request, target: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let truncates = flags.0 & libc::O_TRUNC != 0;
        let opened =
            self.volume.node_open(&cred(req), ino(target), self.open_flags(flags.0)).and_then(|file| {
                if truncates && req.uid() != 0 {
                    self.kill_priv(ino(target))?;
                }
                Ok(file)
            });
        match opened {
            Ok(file) => reply.opened(FileHandle(self.handles.insert(file)), FopenFlags::FOPEN_KEEP_CACHE),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.inherit(ino(parent), mode, umask, false).and_then(|inherited| {
            let flags = self.open_flags(flags) | flags & (libc::O_CREAT | libc::O_EXCL);
            let made = self
                .volume
                .node_create(&cred(req), ino(parent), name.as_bytes(), inherited.mode, flags)
                .and_then(|(stat, file)| {
                    self.give_acls(stat.ino, &inherited)?;
                    Ok((stat, file))
                });
            self.settled(&[ino(parent)], made)
        });
        match made {
            Ok((stat, file)) => {
                let handle = FileHandle(self.handles.insert(file));
                reply.created(
                    &self.ttl,
                    &attr(&stat),
                    generation(&stat),
                    handle,
                    FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(e) => return reply.error(e),
        };
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match file.read_at(&mut buffer[..size], offset) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        target: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let cached = self.writeback && write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let wrote = self.file(fh).and_then(|file| {
            if kill {
                self.kill_priv(ino(target)).map_err(errno)?;
            }
            let n = self.write_all(file, offset, data, cached)?;
            // With the writeback cache the kernel follows up with FSYNC by itself, except on this path; without it
            // the file was opened with the flag and the library has seen to it.
            if flags.0 & libc::O_DSYNC != 0 && kill && self.writeback {
                file.sync_data().map_err(errno)?;
            }
            Ok(n)
        });
        match wrote {
            Ok(n) => reply.written(n),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS); // W4
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // SAFETY: the handle of RELEASE.
        unsafe { self.handles.remove(fh.0) };
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let result = self
            .file(fh)
            .and_then(|file| if datasync { file.sync_data() } else { file.sync_all() }.map_err(errno));
        done(result, reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Directories are read by inode number: the kernel need not open them, keeps their pages cached, and
        // drops these itself when it changes the directory.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, dir: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let result = self.volume.node_readdir(ino(dir), offset, &mut |e| {
            !reply.add(INodeNo(e.ino.0), e.cookie, file_type(e.kind), OsStr::from_bytes(e.name))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        dir: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut cookie = offset;
        let mut entries: Vec<(Ino, u64, Vec<u8>)> = Vec::with_capacity(PLUS_STEP);
        loop {
            entries.clear();
            let result = self.volume.node_readdir(ino(dir), cookie, &mut |e| {
                entries.push((e.ino, e.cookie, e.name.to_vec()));
                entries.len() < PLUS_STEP
            });
            if let Err(e) = result {
                return reply.error(errno(e));
            }
            for (target, next, name) in &entries {
                cookie = *next;
                let stat = match self.volume.node_stat(*target) {
                    Ok(stat) => stat,
                    // Removed since it was listed.
                    Err(e) if matches!(e.errno(), libc::ESTALE | libc::ENOENT) => continue,
                    // A damaged inode: lookup will say so; the listing shows its name.
                    Err(_) => Stat { ino: *target, ..NO_STAT },
                };
                let name = OsStr::from_bytes(name);
                let full =
                    reply.add(INodeNo(target.0), *next, name, &self.ttl, &attr(&stat), generation(&stat));
                if full {
                    return reply.ok();
                }
            }
            if entries.len() < PLUS_STEP {
                return reply.ok();
            }
        }
    }

    fn fsyncdir(&self, _req: &Request, dir: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        done(self.volume.node_sync(ino(dir)).map_err(errno), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.volume.statfs() {
            Ok(s) => reply.statfs(s.blocks, s.free, s.free, s.files, s.files_free, 4096, s.name_max, 4096),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        target: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (target, name) = (ino(target), name.as_bytes());
        let result = match name {
            acl::ACCESS => self.set_access_acl(req, target, value, flags),
            acl::DEFAULT if Acl::decode(value).is_none() => Err(Errno::EINVAL),
            _ => self.volume.node_setxattr(&cred(req), target, name, value, flags).map_err(errno),
        };
        done(result, reply);
    }

    fn getxattr(&self, req: &Request, target: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let result = self.volume.node_getxattr(&cred(req), ino(target), name.as_bytes());
        value(result.map_err(errno), size, reply);
    }

    fn listxattr(&self, req: &Request, target: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.volume.node_listxattr(&cred(req), ino(target)).map_err(errno);
        let list = names.map(|names| {
            names.into_iter().fold(Vec::new(), |mut list, name| {
                list.extend(name);
                list.push(0);
                list
            })
        });
        value(list, size, reply);
    }

    fn removexattr(&self, req: &Request, target: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.volume.node_removexattr(&cred(req), ino(target), name.as_bytes());
        done(result.map_err(errno), reply);
    }

    fn access(&self, req: &Request, target: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let who = Cred { prechecked: false, ..cred(req) };
        done(self.volume.node_access(&who, ino(target), mask.bits()).map_err(errno), reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match cmd {
            _ if !flags.contains(IoctlFlags::FUSE_IOCTL_DIR) => reply.error(Errno::ENOTTY),
            IOC_GETPID => reply.ioctl(0, &std::process::id().to_ne_bytes()),
            IOC_GOINGDOWN if req.uid() != 0 => reply.error(Errno::EPERM),
            IOC_GOINGDOWN => {
                self.volume.shutdown();
                reply.ioctl(0, &[]);
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        target: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = self.file(fh).and_then(|file| {
            if req.uid() != 0 {
                self.kill_priv(ino(target)).map_err(errno)?;
            }
            file.allocate(mode, offset, length).map_err(errno)
        });
        done(result, reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        target: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if self.writeback && self.handles.is_written(ino(target)) {
            self.seeker.seek(target, fh.0, offset, whence, reply);
        } else {
            seek::answer(&self.handles, fh.0, offset, whence, reply);
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The answer carries 32 bits; the caller comes back for the rest.
        let len = len.min(1 << 30);
        let copied = self.file(fh_in).and_then(|from| {
            let to = self.file(fh_out)?;
            if req.uid() != 0 {
                self.kill_priv(ino(ino_out)).map_err(errno)?;
            }
            from.copy_range_to(offset_in, to, offset_out, len).map_err(errno)
        });
        match copied {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(e),
        }
    }
}
