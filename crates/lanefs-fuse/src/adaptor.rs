//! What requests have in common: the state of a mount, and the rules FUSE leaves to the file system's side.
//!
//! KILLPRIV_V2: this side clears setuid and setgid. The kernel says when for writes; the crate hides its flag for
//! truncating opens and setattr, where any caller but root counts as one without CAP_FSETID.

use crate::MountConfig;
use crate::acl::{self, Acl};
use crate::handles::Handles;
use crate::seek::Seeker;
use crate::translate::*;
use fuser::{Errno, FileHandle, INodeNo, Notifier, ReplyEntry, Request};
use lanefs::{File, Ino, Result, SetAttr, Stat, Volume};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) struct Adaptor {
    pub volume: Volume,
    pub handles: Arc<Handles>,
    pub seeker: Seeker,
    pub ttl: Duration,
    /// The kernel gathers writes; settled in `init`.
    pub writeback: bool,
    noatime: bool,
    dirsync: bool,
    pub max_write: u32,
}

impl Adaptor {
    pub(crate) fn new(volume: Volume, config: &MountConfig, notifier: Arc<OnceLock<Notifier>>) -> Adaptor {
        let handles = Arc::new(Handles::new());
        Adaptor {
            volume,
            seeker: Seeker::new(Arc::clone(&handles), notifier),
            handles,
            ttl: config.ttl,
            writeback: config.writeback,
            noatime: config.noatime,
            dirsync: config.dirsync || config.sync,
            max_write: config.max_write,
        }
    }

    /// The open file of a request.
    pub(crate) fn file(&self, fh: FileHandle) -> Result<&File, Errno> {
        // SAFETY: called only with the handle of the request being answered, and every method answers last.
        unsafe { self.handles.get(fh.0) }.ok_or(Errno::EBADF)
    }

    /// The flags a file is opened with here (W1, W2).
    pub(crate) fn open_flags(&self, flags: i32) -> i32 {
        let mut flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_DIRECT);
        if self.writeback {
            flags &= !(libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC);
            if flags & libc::O_ACCMODE == libc::O_WRONLY {
                flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
            }
        }
        if self.noatime {
            flags |= libc::O_NOATIME;
        }
        flags
    }

    /// With `dirsync`, makes the change of a directory durable before it is answered.
    pub(crate) fn settled<T>(&self, dirs: &[Ino], result: Result<T>) -> Result<T, Errno> {
        let value = result.map_err(errno)?;
        if self.dirsync {
            for dir in dirs {
                self.volume.node_sync(*dir).map_err(errno)?;
            }
        }
        Ok(value)
    }

    /// The mode and ACLs of a file about to be made in `parent`.
    pub(crate) fn inherit(
        &self,
        parent: Ino,
        mode: u32,
        umask: u32,
        is_dir: bool,
    ) -> Result<acl::Inherited, Errno> {
        let default = match self.volume.node_getxattr(&root(), parent, acl::DEFAULT) {
            Ok(value) => Acl::decode(&value),
            Err(e) if matches!(e.errno(), libc::ENODATA | libc::EOPNOTSUPP) => None,
            Err(e) => return Err(errno(e)),
        };
        Ok(match default {
            Some(default) => default.inherit(mode, is_dir),
            None => acl::Inherited { mode: mode & !umask, access: None, default: None },
        })
    }

    pub(crate) fn give_acls(&self, ino: Ino, inherited: &acl::Inherited) -> Result<()> {
        for (name, value) in [(acl::ACCESS, &inherited.access), (acl::DEFAULT, &inherited.default)] {
            if let Some(value) = value {
                self.volume.node_setxattr(&root(), ino, name, value, 0)?;
            }
        }
        Ok(())
    }

    /// Makes a node with `make(mode)` and answers with its entry.
    pub(crate) fn make(
        &self,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        is_dir: bool,
        reply: ReplyEntry,
        make: impl FnOnce(u32) -> Result<Stat>,
    ) {
        let result = self.inherit(ino(parent), mode, umask, is_dir).and_then(|inherited| {
            let made = make(inherited.mode).and_then(|stat| {
                self.give_acls(stat.ino, &inherited)?;
                Ok(stat)
            });
            self.settled(&[ino(parent)], made)
        });
        self.entry(result, reply);
    }

    pub(crate) fn entry(&self, result: Result<Stat, Errno>, reply: ReplyEntry) {
        match result {
            Ok(stat) => reply.entry(&self.ttl, &attr(&stat), generation(&stat)),
            Err(e) => reply.error(e),
        }
    }

    /// Clears setuid and setgid if the file has them.
    pub(crate) fn kill_priv(&self, target: Ino) -> Result<()> {
        if self.volume.node_stat(target)?.mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
            let kill = SetAttr { kill_priv: true, ..SetAttr::default() };
            self.volume.node_setattr(&root(), target, &kill)?;
        }
        Ok(())
    }

    pub(crate) fn change(&self, target: Ino, set: &SetAttr) -> Result<Stat> {
        let stat = self.volume.node_setattr(&root(), target, set)?;
        if set.mode.is_some()
            && let Ok(value) = self.volume.node_getxattr(&root(), target, acl::ACCESS)
            && let Some(mut acl) = Acl::decode(&value)
        {
            acl.chmod(stat.mode);
            self.volume.node_setxattr(&root(), target, acl::ACCESS, &acl.encode(), 0)?;
        }
        Ok(stat)
    }

    /// Sets an access ACL: the mode follows it, and an ACL that says no more than the mode is not kept.
    pub(crate) fn set_access_acl(
        &self,
        req: &Request,
        target: Ino,
        value: &[u8],
        flags: i32,
    ) -> Result<(), Errno> {
        let acl = Acl::decode(value).ok_or(Errno::EINVAL)?;
        let stat = self.volume.node_stat(target).map_err(errno)?;
        let mut mode = stat.mode & 0o7000 | acl.mode();
        if req.uid() != 0 && req.gid() != stat.gid {
            mode &= !libc::S_ISGID;
        }
        if acl.is_plain() {
            match self.volume.node_removexattr(&root(), target, acl::ACCESS) {
                Err(e) if e.errno() != libc::ENODATA => return Err(errno(e)),
                _ => {}
            }
        } else {
            self.volume.node_setxattr(&root(), target, acl::ACCESS, value, flags).map_err(errno)?;
        }
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.volume.node_setattr(&root(), target, &set).map_err(errno)?;
        Ok(())
    }

    pub(crate) fn write_all(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        cached: bool,
    ) -> Result<u32, Errno> {
        let mut done = 0;
        while done < data.len() {
            let at = offset.saturating_add(done as u64);
            let wrote =
                if cached { file.write_back_at(&data[done..], at) } else { file.write_at(&data[done..], at) };
            match wrote {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(errno(e)),
                Err(_) => break,
            }
        }
        Ok(done as u32)
    }
}
