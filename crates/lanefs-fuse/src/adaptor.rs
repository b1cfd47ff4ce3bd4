//! What requests have in common: the state of a mount, and the rules FUSE leaves to the file
//! system's side.
//!
//! KILLPRIV_V2: this side clears setuid and setgid. The kernel says when, but for fallocate and
//! copy_file_range: there any caller but root counts as one without CAP_FSETID.

use crate::MountConfig;
use crate::acl::{self, Acl};
use crate::aside::Aside;
use crate::blocking_hook::about_to_wait;
use crate::handles::{ASSUMED, Handle, Handles};
use crate::known::Known;
use crate::room::Room;
use crate::translate::root;
use crate::wire::{Agreed, Device, Errno, Reply, Request};
use lanefs::{File, FileKind, Ino, NewInodeAttrs, Result, SetAttr, Stat, Volume};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

type Wire<T> = std::result::Result<T, Errno>;

pub(crate) struct Adaptor {
    pub volume: Volume,
    pub handles: Arc<Handles>,
    pub known: Arc<Known>,
    pub aside: Aside,
    pub ttl: Duration,
    /// The kernel gathers writes.
    pub writeback: bool,
    /// SETXATTR says when an ACL takes setgid away.
    pub setxattr_ext: bool,
    /// The kernel checks who sets flags of an inode.
    pub checks_flags: bool,
    dirsync: bool,
    pub room: Arc<Room>,
    pub closing: Arc<Closing>,
    failed: OnceLock<Failed>,
    /// With `allow_root`: the only user beside root who may enter.
    pub only: Option<u32>,
}

/// What is to be done when somebody who serves requests cannot go on.
type Failed = Box<dyn Fn() + Send + Sync>;

/// The mount is about to be cut off from who uses it: what the kernel holds is written back, and no
/// more is taken.
#[derive(Default)]
pub(crate) struct Closing {
    pub begun: AtomicBool,
    /// Requests with pages of the kernel's cache since then.
    pub writes: AtomicU64,
    /// Something that the kernel had accepted could not be written.
    pub lost: AtomicBool,
    /// How closing the volume went, until somebody has asked.
    closed: Mutex<Option<Result<()>>>,
}

impl Closing {
    /// Closes the volume.
    pub(crate) fn close(&self, volume: &Volume) {
        let mut closed = self.closed.lock().unwrap_or_else(|e| e.into_inner());
        let result = volume.close();
        // Only the first time does something.
        closed.get_or_insert(result);
    }

    /// Closes the volume if that has not been done, and tells how it went.
    pub(crate) fn end(&self, volume: &Volume) -> Result<()> {
        self.close(volume);
        self.closed.lock().unwrap_or_else(|e| e.into_inner()).take().unwrap_or(Ok(()))
    }
}

impl Adaptor {
    /// Has the kernel hand over all that it holds, until it holds nothing; no program's write is
    /// taken meanwhile, nor does a page come back into its cache. Called by a thread that serves no
    /// requests.
    pub(crate) fn call_all_in(&self) {
        self.closing.begun.store(true, SeqCst);
        loop {
            let before = self.closing.writes.load(SeqCst);
            for ino in self.handles.written() {
                // The attributes first: from then on a write(2) asks, and is refused.
                self.aside.attributes_changed(ino);
                self.aside.flush_kernel_pages(ino);
            }
            if self.closing.writes.load(SeqCst) == before {
                return;
            }
        }
    }

    pub(crate) fn new(volume: Volume, config: &MountConfig, agreed: Agreed, device: Arc<Device>) -> Adaptor {
        let handles = Arc::new(Handles::new());
        let known = Arc::new(Known::new());
        let room = Arc::new(Room::new(volume.clone(), agreed.writeback));
        let closing = Arc::new(Closing::default());
        let keeper = Arc::clone(&known);
        volume.keep_unnamed(Some(Box::new(move |ino| keeper.knows(ino))));
        Adaptor {
            volume,
            aside: Aside::new(Arc::clone(&handles), Arc::clone(&room), device),
            handles,
            known,
            ttl: if config.allow_root { Duration::ZERO } else { config.ttl },
            writeback: agreed.writeback,
            setxattr_ext: agreed.setxattr_ext,
            checks_flags: agreed.checks_flags,
            dirsync: config.dirsync || config.sync,
            closing,
            failed: OnceLock::new(),
            room,
            only: config.allow_root.then(|| rustix::process::geteuid().as_raw()),
        }
    }

    pub(crate) fn when_serving_fails(&self, then: Failed) {
        let _ = self.failed.set(then);
    }

    /// Somebody who serves requests cannot go on: the others, who wait for some, are not to be left
    /// as if all were well.
    pub(crate) fn serving_failed(&self, error: &std::io::Error) {
        tracing::error!("the mount ends: requests cannot be served: {error}");
        if let Some(then) = self.failed.get() {
            then();
        }
    }

    /// No request comes any more.
    pub(crate) fn end(&self) {
        self.aside.stop();
        self.volume.keep_unnamed(None);
    }

    /// The open file of a request.
    pub(crate) fn file(&self, handle: u64) -> Wire<&File> {
        self.handle(handle).map(|h| &h.file)
    }

    pub(crate) fn handle(&self, handle: u64) -> Wire<&Handle> {
        // SAFETY: called only with the handle of the request being answered, and the answer is sent
        // last.
        unsafe { self.handles.get(handle) }.ok_or(Errno(libc::EBADF))
    }

    /// Keeps an open file, whose setuid and setgid are this adaptor's business, and puts its
    /// handle.
    pub(crate) fn open_out(&self, mut file: File, flags: u32, opened: u32, reply: &mut Reply) -> Wire<()> {
        file.keep_privilege();
        // It was opened with O_APPEND only so that it may be; the kernel says where writes go (W2).
        file.never_append();
        let ino = file.ino();
        reply.open_out(self.handles.insert(file, flags as i32 & libc::O_DIRECT != 0), opened)?;
        self.about_to_answer(ino);
        Ok(())
    }

    /// The flags a file is opened with here (W1, W2, W5).
    pub(crate) fn open_flags(&self, flags: u32) -> i32 {
        let mut flags = flags as i32
            & !(libc::O_CREAT
                | libc::O_EXCL
                | libc::O_NOCTTY
                | libc::O_DIRECT
                | libc::O_TMPFILE
                | libc::O_SYNC
                | libc::O_DSYNC);
        if self.writeback && flags & libc::O_ACCMODE == libc::O_WRONLY {
            flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
        }
        flags
    }

    /// With `dirsync`, makes the changes of names durable before they are answered. If that fails
    /// the changes are there and the caller is told an error: what the kernel makes of that is
    /// dropped.
    pub(crate) fn sync_parent_dirs(&self, names: &[(Ino, &[u8])]) -> Wire<()> {
        if !self.dirsync {
            return Ok(());
        }
        about_to_wait();
        let synced = names.iter().try_for_each(|(dir, _)| self.volume.node_sync(*dir));
        if synced.is_err() {
            for (dir, name) in names {
                self.aside.attributes_changed(*dir);
                self.aside.forget(*dir, name);
            }
        }
        Ok(synced?)
    }

    /// The attributes that the kernel is told of an inode, and how long they hold (W9 of
    /// `requests::content`). To be called just before the answer.
    pub(crate) fn told(&self, stat: &Stat) -> (Stat, Duration) {
        self.about_to_answer(stat.ino);
        if self.writeback
            && stat.blocks == 0
            && stat.kind == FileKind::File
            && self.handles.is_written(stat.ino)
        {
            return (Stat { blocks: ASSUMED, ..*stat }, Duration::ZERO);
        }
        (*stat, self.ttl)
    }

    /// To be called before an answer that carries attributes: where room is scarce the kernel is
    /// not to believe those of files that are open for writing, so that it asks before it takes a
    /// write (`room`).
    pub(crate) fn about_to_answer(&self, ino: Ino) {
        if self.room.is_scarce() && self.handles.is_written(ino) {
            self.aside.attributes_changed(ino);
        }
    }

    /// `bytes` of room were taken, about.
    pub(crate) fn took_room(&self, bytes: u64) {
        if self.room.took(bytes) {
            self.handles.written().into_iter().for_each(|ino| self.aside.attributes_changed(ino));
        }
    }

    /// Puts a name's inode, which the kernel will know once more.
    pub(crate) fn enter(&self, stat: &Stat, reply: &mut Reply) -> Wire<()> {
        let (stat, holds) = self.told(stat);
        self.known.count(stat.ino);
        reply.entry_out(&stat, self.ttl, holds)
    }

    /// Takes back what an answer gave that nobody took.
    pub(crate) fn undo(&self, reply: &mut Reply) {
        for ino in reply.entered.drain(..) {
            self.known.forget(ino, 1);
        }
        if let Some(handle) = reply.opened.take() {
            // SAFETY: the kernel never learned of this handle, so no request names it.
            unsafe { self.handles.remove(handle) };
        }
    }

    /// The mode and ACLs of a file about to be made in `parent`.
    pub(crate) fn inherit(&self, parent: Ino, mode: u32, umask: u32, is_dir: bool) -> Wire<acl::Inherited> {
        let default = match self.volume.node_getxattr(&root(), parent, acl::DEFAULT) {
            Ok(value) => Acl::decode(&value),
            Err(e) if matches!(e.errno(), libc::ENODATA | libc::EOPNOTSUPP) => None,
            Err(e) => return Err(e.into()),
        };
        Ok(match default {
            Some(default) => default.inherit(mode, is_dir),
            None => acl::Inherited { mode: mode & !umask, access: None, default: None },
        })
    }

    /// Makes a node with `make(what it is born with)` and answers with its entry.
    pub(crate) fn make(
        &self,
        (parent, name): (Ino, &[u8]),
        (mode, umask): (u32, u32),
        is_dir: bool,
        reply: &mut Reply,
        make: impl FnOnce(NewInodeAttrs<'_>) -> Result<Stat>,
    ) -> Wire<()> {
        let inherited = self.inherit(parent, mode, umask, is_dir)?;
        let stat = make(NewInodeAttrs { mode: inherited.mode, xattrs: &inherited.xattrs() })?;
        self.sync_parent_dirs(&[(parent, name)])?;
        self.enter(&stat, reply)
    }

    /// Clears setuid and setgid if the file has them. The kernel is told before the request is
    /// answered: by a mode that it believes somebody would be root who is not.
    pub(crate) fn kill_priv(&self, target: Ino) -> Result<()> {
        if self.volume.node_stat(target)?.mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
            let kill = SetAttr { kill_priv: true, ..SetAttr::default() };
            self.volume.node_setattr(&root(), target, &kill)?;
            self.aside.attributes_changed(target);
        }
        Ok(())
    }

    /// The same if it is not root who changes the file.
    pub(crate) fn kill_priv_of(&self, req: &Request<'_>, target: Ino) -> Result<()> {
        // Few files have these bits; only of them it is asked who changes them.
        if self.volume.node_stat(target)?.mode & (libc::S_ISUID | libc::S_ISGID) == 0 || req.user() == Some(0)
        {
            return Ok(());
        }
        self.kill_priv(target)
    }

    /// Changes attributes, the ACL with the mode. The ACL first: it may find no room, and then
    /// nothing has changed.
    pub(crate) fn change(&self, target: Ino, set: &SetAttr) -> Result<Stat> {
        let old = match set.mode {
            Some(_) => match self.volume.node_getxattr(&root(), target, acl::ACCESS) {
                Ok(value) => Some(value),
                Err(e) if matches!(e.errno(), libc::ENODATA | libc::EOPNOTSUPP) => None,
                Err(e) => return Err(e),
            },
            None => None,
        };
        let acl = old.as_deref().and_then(Acl::decode);
        let (Some(mode), Some(mut acl)) = (set.mode, acl) else {
            return self.volume.node_setattr(&root(), target, set);
        };
        acl.chmod(mode);
        self.volume.node_setxattr(&root(), target, acl::ACCESS, &acl.encode(), 0)?;
        self.volume.node_setattr(&root(), target, set).inspect_err(|_| self.put_back(target, old.as_deref()))
    }

    /// Puts an access ACL back as it was; `None`: there was none.
    fn put_back(&self, target: Ino, old: Option<&[u8]>) {
        let back = match old {
            Some(value) => self.volume.node_setxattr(&root(), target, acl::ACCESS, value, 0),
            None => match self.volume.node_removexattr(&root(), target, acl::ACCESS) {
                Err(e) if e.errno() == libc::ENODATA => Ok(()),
                r => r,
            },
        };
        if let Err(e) = back {
            tracing::warn!("inode {}: its ACL does not agree with its mode: {e}", target.0);
        }
    }

    /// Sets an access ACL: the mode follows it, and an ACL that says no more than the mode is not
    /// kept. `kill_sgid`: what the kernel says of it, if it says anything.
    pub(crate) fn set_access_acl(
        &self,
        req: &Request<'_>,
        value: &[u8],
        flags: i32,
        kill_sgid: Option<bool>,
    ) -> Wire<()> {
        let target = req.ino;
        let old = self.volume.node_getxattr(&root(), target, acl::ACCESS).ok();
        let acl = Acl::decode(value).ok_or(Errno(libc::EINVAL))?;
        let stat = self.volume.node_stat(target)?;
        let mut mode = stat.mode & 0o7000 | acl.mode();
        if kill_sgid.unwrap_or(req.uid != 0 && req.gid != stat.gid) {
            mode &= !libc::S_ISGID;
        }
        if acl.is_plain() {
            match self.volume.node_removexattr(&root(), target, acl::ACCESS) {
                Err(e) if e.errno() != libc::ENODATA => return Err(e.into()),
                _ => {}
            }
        } else {
            self.volume.node_setxattr(&root(), target, acl::ACCESS, value, flags)?;
        }
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        if let Err(e) = self.volume.node_setattr(&root(), target, &set) {
            self.put_back(target, old.as_deref());
            return Err(e.into());
        }
        Ok(())
    }
}
