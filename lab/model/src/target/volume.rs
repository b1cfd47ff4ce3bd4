//! A LaneFS volume in this process as a target.

use super::{Target, compared_size};
use crate::op::{ACCESS_ACL, Attributes, Fd, Name, Op, Outcome, When, Who, acl_of};
use lanefs::{Error, File, Fs, OpenOptions, Result, SetTime, Volume};
use std::collections::BTreeMap;

/// Closes a volume and opens it again.
pub type Remount = Box<dyn FnMut(Volume) -> Result<Volume> + Send>;

/// A volume, its callers and their handles.
pub struct VolumeTarget {
    volume: Option<Volume>,
    fs: Vec<Fs>,
    open: BTreeMap<Fd, (File, i32)>,
    remount: Option<Remount>,
}

impl std::fmt::Debug for VolumeTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolumeTarget({} handles)", self.open.len())
    }
}

impl VolumeTarget {
    /// A target on an open volume; `remount` serves [`Op::Remount`].
    pub fn new(volume: Volume, remount: Option<Remount>) -> VolumeTarget {
        let fs = Who::ALL.iter().map(|w| volume.as_user(w.cred())).collect();
        VolumeTarget { volume: Some(volume), fs, open: BTreeMap::new(), remount }
    }

    /// The volume.
    pub fn volume(&self) -> Result<&Volume> {
        self.volume.as_ref().ok_or(Error::Posix(libc::EIO))
    }

    fn file(&self, fd: Fd) -> Result<&File> {
        self.open.get(&fd).map(|f| &f.0).ok_or(Error::Posix(libc::EBADF))
    }

    fn with_open<R>(
        &self,
        who: Who,
        path: &Name,
        flags: i32,
        f: impl FnOnce(&File) -> Result<R>,
    ) -> Result<R> {
        f(&self.fs[who as usize].open(path.0.as_slice(), &OpenOptions { flags, mode: 0 })?)
    }

    fn remount(&mut self) -> Result<Outcome> {
        if !self.open.is_empty() {
            return Err(Error::Posix(libc::EBUSY));
        }
        let Some(again) = &mut self.remount else {
            self.volume()?.sync()?;
            return Ok(Outcome::Done);
        };
        self.fs.clear();
        let volume = again(self.volume.take().ok_or(Error::Posix(libc::EIO))?)?;
        self.fs = Who::ALL.iter().map(|w| volume.as_user(w.cred())).collect();
        self.volume = Some(volume);
        Ok(Outcome::Done)
    }

    fn appends(&self, fd: Fd) -> bool {
        self.open.get(&fd).is_some_and(|f| f.1 & libc::O_APPEND != 0)
    }

    fn end_of(file: &File) -> Result<u64> {
        Ok(file.stat()?.size)
    }

    fn act(&mut self, who: Who, op: &Op) -> Result<Outcome> {
        let done = |r: Result<()>| r.map(|()| Outcome::Done);
        if self.fs.is_empty() {
            return Err(Error::Posix(libc::EIO));
        }
        let fs = &self.fs[who as usize];
        match op {
            Op::Open { fd, path, flags, mode } => {
                if self.open.contains_key(fd) {
                    return Err(Error::Posix(libc::EMFILE));
                }
                let f = fs.open(path.0.as_slice(), &OpenOptions { flags: *flags, mode: *mode })?;
                self.open.insert(*fd, (f, *flags));
                Ok(Outcome::Done)
            }
            Op::Close { fd } => self.open.remove(fd).map(|_| Outcome::Done).ok_or(Error::Posix(libc::EBADF)),
            Op::Mkdir { path, mode } => done(fs.mkdir(path.0.as_slice(), *mode)),
            Op::Mknod { path, mode } => done(fs.mknod(path.0.as_slice(), *mode, 0)),
            Op::Rmdir { path } => done(fs.rmdir(path.0.as_slice())),
            Op::Unlink { path } => done(fs.unlink(path.0.as_slice())),
            Op::Link { old, new } => done(fs.link(old.0.as_slice(), new.0.as_slice())),
            Op::LinkFd { fd, new } => done(fs.link_file(self.file(*fd)?, new.0.as_slice())),
            Op::Symlink { target, path } => done(fs.symlink(target.0.as_slice(), path.0.as_slice())),
            Op::Readlink { path } => fs.readlink(path.0.as_slice()).map(Outcome::Bytes),
            Op::Rename { old, new, flags: 0 } => done(fs.rename(old.0.as_slice(), new.0.as_slice())),
            Op::Rename { old, new, flags } => done(fs.rename2(old.0.as_slice(), new.0.as_slice(), *flags)),
            Op::Readdir { path } => {
                let mut list = BTreeMap::new();
                let mut twice = None;
                fs.read_dir_from(path.0.as_slice(), 0, &mut |e| {
                    let kind = (e.kind.mode_bits() >> 12) as u8;
                    let name = Name(e.name.to_vec());
                    if e.name != b"."
                        && e.name != b".."
                        && list.insert(name.clone(), (kind, e.ino.0)).is_some()
                    {
                        twice = Some(name);
                    }
                    true
                })?;
                // A name listed twice shows as an entry nobody made.
                if let Some(mut n) = twice {
                    n.0.extend_from_slice(b" (listed twice)");
                    list.insert(n, (0, 0));
                }
                Ok(Outcome::List(list))
            }
            Op::Stat { path } => Ok(stat(fs.stat(path.0.as_slice())?)),
            Op::Lstat { path } => Ok(stat(fs.lstat(path.0.as_slice())?)),
            Op::Fstat { fd } => Ok(stat(self.file(*fd)?.stat()?)),
            Op::Chmod { path, mode } => done(fs.chmod(path.0.as_slice(), *mode)),
            Op::Chown { path, uid, gid, follow } => done(fs.chown(path.0.as_slice(), *uid, *gid, *follow)),
            Op::Utimens { path, atime, mtime } => {
                let t = |w: &When| match w {
                    When::Keep => None,
                    When::Now => Some(SetTime::Now),
                    When::At(t) => Some(SetTime::At(*t)),
                };
                done(fs.set_times(path.0.as_slice(), t(atime), t(mtime), true))
            }
            Op::Truncate { path, size } => done(fs.truncate(path.0.as_slice(), *size)),
            Op::Ftruncate { fd, size } => done(self.file(*fd)?.set_len(*size)),
            Op::Read { fd, len } => {
                let mut buf = vec![0; *len as usize];
                let n = self.file(*fd)?.read(&mut buf)?;
                buf.truncate(n);
                Ok(Outcome::Bytes(buf))
            }
            Op::Pread { fd, offset, len } => {
                let mut buf = vec![0; *len as usize];
                let n = self.file(*fd)?.read_at(&mut buf, *offset)?;
                buf.truncate(n);
                Ok(Outcome::Bytes(buf))
            }
            Op::Write { fd, data } => {
                let f = self.file(*fd)?;
                let at = if self.appends(*fd) { Self::end_of(f)? } else { f.lseek(0, libc::SEEK_CUR)? };
                f.write(&data.bytes(at)).map(|n| Outcome::Count(n as u64))
            }
            Op::Pwrite { fd, offset, data } => {
                let f = self.file(*fd)?;
                let at = if self.appends(*fd) { Self::end_of(f)? } else { *offset };
                f.write_at(&data.bytes(at), *offset).map(|n| Outcome::Count(n as u64))
            }
            Op::Fallocate { fd, mode, offset, len } => done(self.file(*fd)?.allocate(*mode, *offset, *len)),
            Op::Lseek { fd, offset, whence } => self.file(*fd)?.lseek(*offset, *whence).map(Outcome::Count),
            Op::Fsync { fd } => done(self.file(*fd)?.sync_all()),
            Op::Fdatasync { fd } => done(self.file(*fd)?.sync_data()),
            Op::FsyncDir { path } => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                done(self.with_open(who, path, flags, |f| f.sync_all()))
            }
            Op::FsyncPath { path } => done(self.with_open(who, path, libc::O_RDONLY, |f| f.sync_all())),
            Op::Sync => done(self.volume()?.sync()),
            Op::Setxattr { path, name, value, flags } if name.0 == ACCESS_ACL => {
                let bytes = acl_of(*value).map_or(Vec::new(), |acl| acl.0);
                done(fs.setxattr(path.0.as_slice(), &name.0, &bytes, *flags))
            }
            // By number, where any bytes are an ACL: what is looked at is when they are durable.
            Op::Setxattr { path, name, value, flags } if name.0.starts_with(b"system.posix_acl_") => {
                let ino = fs.stat(path.0.as_slice())?.ino;
                done(fs.volume().node_setxattr(fs.cred(), ino, &name.0, &value.bytes(0), *flags))
            }
            Op::Setxattr { path, name, value, flags } => {
                done(fs.setxattr(path.0.as_slice(), &name.0, &value.bytes(0), *flags))
            }
            Op::Getxattr { path, name } => fs.getxattr(path.0.as_slice(), &name.0).map(Outcome::Bytes),
            Op::Listxattr { path } => {
                let names = fs.listxattr(path.0.as_slice())?;
                Ok(Outcome::Keys(names.into_iter().map(Name).collect()))
            }
            Op::Removexattr { path, name } => done(fs.removexattr(path.0.as_slice(), &name.0)),
            Op::Access { path, mask } => done(fs.access(path.0.as_slice(), *mask)),
            Op::Tick => done(self.volume()?.tick()),
            Op::Checkpoint => done(self.volume()?.checkpoint()),
            Op::Remount => self.remount(),
        }
    }
}

/// The answer of stat.
pub fn stat(s: lanefs::Stat) -> Outcome {
    Outcome::Attr(Attributes {
        id: (s.ino.0, s.generation),
        mode: s.mode,
        nlink: s.nlink,
        uid: s.uid,
        gid: s.gid,
        size: compared_size(s.mode, s.size),
        atime: Some(s.atime),
        mtime: Some(s.mtime),
    })
}

impl Target for VolumeTarget {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        self.act(who, op).unwrap_or_else(|e| Outcome::Fail(e.errno()))
    }
}
