//! The state of a mount, which all requests have in common.

use crate::MountConfig;
use crate::aside::{self, Aside};
use crate::blocking_hook::about_to_wait;
use crate::closing::Closing;
use crate::counts::Counts;
use crate::handles::{ASSUMED, Handles, Held, Way};
use crate::idle::IdlePolling;
use crate::known::Known;
use crate::report::{Reporter, Reports};
use crate::space::Space;
use crate::sync_errors::SyncErrors;
use crate::translate::root;
use crate::wire::abi::FOPEN_DIRECT_IO;
use crate::wire::{Agreed, Device, Errno, Reply};
use lanefs::{AwaitHandedOver, File, FileKind, Ino, Stat, Volume};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The open file of a request.
pub(crate) enum Opened<'h> {
    /// That of a handle.
    Held(Held<'h>),
    /// One that is closed with the request.
    Made(File),
}

impl Opened<'_> {
    /// Returns whether the kernel was told to read and write past its cache.
    pub(crate) fn goes_past_cache(&self) -> bool {
        match self {
            Opened::Held(handle) => handle.past_cache,
            Opened::Made(_) => false,
        }
    }
}

impl Deref for Opened<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Opened::Held(handle) => &handle.file,
            Opened::Made(file) => file,
        }
    }
}

type Wire<T> = std::result::Result<T, Errno>;

/// The state of a mount.
pub(crate) struct Adaptor {
    pub volume: Volume,
    pub handles: Arc<Handles>,
    pub known: Arc<Known>,
    pub aside: Aside,
    /// The time for which the kernel may believe names and attributes.
    pub ttl: Duration,
    /// Whether the kernel gathers writes.
    pub writeback: bool,
    /// Whether the kernel opens files without a request: no request has a handle then.
    pub stateless: bool,
    pub sync_errors: SyncErrors,
    /// Whether SETXATTR states when an ACL takes setgid away.
    pub setxattr_ext: bool,
    /// Whether the kernel checks who sets flags of an inode.
    pub checks_flags: bool,
    /// Whether changes of names are durable before they are answered.
    pub dirsync: bool,
    pub space: Arc<Space>,
    pub closing: Arc<Closing>,
    pub counts: Arc<Counts>,
    /// What asks idle processors to poll while requests come thick.
    pub idle: Option<IdlePolling>,
    pub reports: Reports,
    /// Whether others change the volume, so that the kernel may keep nothing.
    pub shared: bool,
    /// Called when somebody who serves requests cannot go on.
    failed: OnceLock<Failed>,
    /// Whether nobody checks modes: then only root's requests are served.
    pub unchecked: bool,
    /// Whether there are no extended attributes.
    pub noxattr: bool,
    /// Whether the kernel asks for each directory that is opened, so that this fails on a dead
    /// mount (`auto_unmount`, G6 of [`crate::watchdog`]).
    pub opens_dirs: bool,
    /// With `allow_root`: the only user beside root who may enter.
    pub only: Option<u32>,
    /// Whether the kernel is a virtual machine's ([`crate::guest`]): nothing can be told to it, it
    /// is not believed, and the numbers of its processes and users mean nothing on this machine.
    pub guest: bool,
}

/// A function that ends the mount.
type Failed = Box<dyn Fn() + Send + Sync>;

impl Adaptor {
    /// Makes the state of a mount of `volume`, after the handshake. `device`: where the kernel is
    /// told what to drop; `None`: it is a virtual machine's.
    pub(crate) fn new(
        volume: Volume,
        config: &MountConfig,
        agreed: Agreed,
        device: Option<Arc<Device>>,
        counts: Arc<Counts>,
    ) -> Adaptor {
        let guest = device.is_none();
        let handles = Arc::new(if guest { Handles::numbered() } else { Handles::new() });
        let known = Arc::new(Known::new());
        let space = Arc::new(Space::new(volume.clone(), agreed.writeback));
        let closing = Arc::new(Closing::new(config.shared || guest));
        let keeper = Arc::clone(&known);
        volume.keep_unnamed(Some(Box::new(move |ino| keeper.knows(ino))));
        volume.write_gathered(match agreed.writeback && !agreed.stateless {
            true => Some(Box::new(handles.all_written())),
            false => None,
        });
        let teller = device.clone().filter(|_| agreed.writeback);
        volume.await_handed_over(teller.map(|device| -> AwaitHandedOver {
            Arc::new(move |ino, ranges| aside::await_pieces(&device, ino, ranges))
        }));
        let adaptor = Adaptor {
            reports: Reports::new(Reporter::new(volume.clone(), Arc::clone(&counts))),
            volume,
            aside: Aside::new(Arc::clone(&handles), Arc::clone(&space), device),
            handles,
            known,
            // Where a change of a name fails when it was made, a guest cannot be told.
            ttl: if guest && (config.dirsync || config.sync) {
                Duration::ZERO
            } else {
                config.believes_for()
            },
            writeback: agreed.writeback,
            stateless: agreed.stateless,
            sync_errors: SyncErrors::default(),
            setxattr_ext: agreed.setxattr_ext,
            checks_flags: agreed.checks_flags,
            dirsync: config.dirsync || config.sync,
            closing,
            counts,
            idle: None,
            shared: config.shared,
            failed: OnceLock::new(),
            space,
            unchecked: config.is_unchecked(),
            noxattr: config.noxattr,
            opens_dirs: config.auto_unmount,
            only: config.allow_root.then(|| rustix::process::geteuid().as_raw()),
            guest,
        };
        debug_assert!(!guest || !adaptor.writeback && !adaptor.stateless && adaptor.only.is_none());
        debug_assert!(adaptor.only.is_none() || adaptor.ttl.is_zero(), "who enters is asked each time");
        debug_assert!(!adaptor.shared || adaptor.ttl.is_zero() && !adaptor.writeback && !adaptor.stateless);
        debug_assert_eq!(adaptor.space.reserve() > 0, adaptor.writeback, "a reserve is for what is gathered");
        adaptor
    }

    /// Sets what is done when somebody who serves requests cannot go on, once for a mount.
    pub(crate) fn when_serving_fails(&self, then: Failed) {
        let first = self.failed.set(then).is_ok();
        debug_assert!(first, "once for a mount");
    }

    /// Returns the inodes of which the kernel may hold unwritten pages.
    pub(crate) fn may_be_held(&self) -> Vec<Ino> {
        if self.stateless { self.known.cached() } else { self.handles.written() }
    }

    /// Returns whether the kernel may hold unwritten pages of an inode.
    pub(crate) fn may_hold(&self, ino: Ino) -> bool {
        if self.stateless { self.known.is_cached(ino) } else { self.handles.is_written(ino) }
    }

    /// Ends the mount because somebody who serves requests cannot go on: the others, who wait for
    /// some, are not to be left as if all were well.
    pub(crate) fn serving_failed(&self, error: &std::io::Error) {
        tracing::error!("the mount ends: requests cannot be served: {error}");
        if let Some(then) = self.failed.get() {
            then();
        }
    }

    /// Waits for the answers still due. No request comes any more.
    pub(crate) fn end(&self) {
        self.aside.stop();
        self.volume.keep_unnamed(None);
        self.volume.write_gathered(None);
        self.volume.await_handed_over(None);
    }

    /// Returns the open file of a request about `ino`: that of its handle, or one that is opened
    /// with `flags` for this request alone.
    pub(crate) fn file(&self, ino: Ino, handle: u64, flags: i32) -> Wire<Opened<'_>> {
        if !self.stateless {
            return self.handle(handle).map(Opened::Held);
        }
        debug_assert_eq!(handle, 0, "no handle was given out");
        // As root: the kernel has checked who may open it, and states what becomes of setuid.
        let mut file = self.volume.node_open(&root(), ino, flags)?;
        file.keep_privilege();
        file.never_append();
        debug_assert_eq!(file.ino(), ino);
        Ok(Opened::Made(file))
    }

    /// Returns the handle of a request.
    pub(crate) fn handle(&self, handle: u64) -> Wire<Held<'_>> {
        // SAFETY: called only with the handle of the request being answered, and the answer is sent
        // last; a guest's are looked up.
        unsafe { self.handles.get(handle) }.ok_or(Errno(libc::EBADF))
    }

    /// Keeps an open file, whose setuid and setgid are this adaptor's business, and puts its
    /// handle.
    pub(crate) fn open_out(
        &self,
        mut file: File,
        flags: u32,
        opened: u32,
        made: Option<(Ino, &[u8])>,
        reply: &mut Reply,
    ) -> Wire<()> {
        debug_assert!(reply.opened.is_none(), "a request opens one file");
        file.keep_privilege();
        // It was opened with O_APPEND only so that it may be; the kernel states where writes go
        // (W2).
        file.never_append();
        let ino = file.ino();
        if self.stateless {
            // The kernel knows the inode, so it stays though nobody has it open here.
            debug_assert!(self.known.knows(ino), "it was counted for this answer (K1)");
            return reply.open_out(0, opened);
        }
        let way = match flags as i32 & libc::O_DIRECT {
            0 if self.writeback && opened & FOPEN_DIRECT_IO != 0 => {
                Way::PastCache(made.map(|(dir, name)| (dir, name.to_vec())))
            }
            0 => Way::ByCache,
            _ => Way::Direct,
        };
        let handle = self.handles.insert(file, way).ok_or(Errno(libc::ENFILE))?;
        reply.open_out(handle, opened)?;
        debug_assert!(reply.opened.is_some(), "nobody would release the handle");
        self.about_to_answer(ino);
        Ok(())
    }

    /// Returns the flags a file is opened with here (W1, W2, W5).
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
        debug_assert_eq!(flags & (libc::O_CREAT | libc::O_EXCL | libc::O_DIRECT | libc::O_SYNC), 0);
        flags
    }

    /// With `dirsync`, makes the changes of names durable before they are answered. If that fails
    /// the changes are there and the caller gets an error: what the kernel makes of that is
    /// dropped.
    pub(crate) fn sync_parent_dirs(&self, names: &[(Ino, &[u8])]) -> Wire<()> {
        debug_assert!(matches!(names.len(), 1 | 2), "a rename changes two names, anything else one");
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

    /// Returns the attributes that the kernel gets of an inode, and how long they hold (W9 of
    /// `requests::content`). Called just before the answer.
    pub(crate) fn attributes_for_kernel(&self, stat: &Stat) -> (Stat, Duration) {
        if self.guest {
            return (*stat, if changes_unseen(stat) { Duration::ZERO } else { self.ttl });
        }
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

    /// Returns how long attributes hold that the kernel asks for through a handle; otherwise they
    /// would hold for `holds`.
    pub(crate) fn holds_for_handle(&self, holds: Duration) -> Duration {
        debug_assert!(holds <= self.ttl, "longer than anything is believed");
        if self.guest { holds } else { self.ttl }
    }

    /// Has the kernel ask for the attributes of a file that is open for writing where space is
    /// scarce, so that it asks before it takes a write ([`crate::space`]). Called before an answer
    /// that carries attributes, which the kernel does not believe then.
    pub(crate) fn about_to_answer(&self, ino: Ino) {
        if self.space.is_scarce() && self.handles.is_written(ino) {
            self.aside.attributes_changed(ino);
        }
    }

    /// Takes note that about `bytes` of space were used.
    pub(crate) fn took_space(&self, bytes: u64) {
        if self.space.took(bytes) {
            self.handles.written().into_iter().for_each(|ino| self.aside.attributes_changed(ino));
        }
    }

    /// Returns the attributes of an inode that the kernel is about to know, with the generation
    /// that file handles have, and how long they hold.
    pub(crate) fn entry_for_kernel(&self, stat: &Stat) -> (Stat, Duration) {
        let (mut stat, holds) = self.attributes_for_kernel(stat);
        stat.generation = self.volume.handle_generation(&stat);
        (stat, holds)
    }

    /// Answers with a name's inode, which the kernel will know once more.
    pub(crate) fn enter(&self, stat: &Stat, reply: &mut Reply) -> Wire<()> {
        let (stat, holds) = self.entry_for_kernel(stat);
        self.known.count(stat.ino);
        debug_assert!(self.known.knows(stat.ino), "not forgotten before it is answered (K1)");
        reply.entry_out(&stat, self.ttl, holds)
    }

    /// Takes back what an answer gave that nobody took.
    pub(crate) fn undo(&self, reply: &mut Reply) {
        for ino in reply.entered.drain(..) {
            debug_assert!(self.known.knows(ino), "it was counted for this answer (K1)");
            self.known.forget(ino, 1);
        }
        if let Some(handle) = reply.opened.take() {
            // SAFETY: the kernel never learned of this handle, so no request names it.
            drop(unsafe { self.handles.remove(handle) });
        }
    }
}

/// Returns whether attributes of a file may change without the kernel's doing, or without its
/// taking note (W8 of `requests::content`): a write takes setuid and setgid, and pages of a map
/// that are written back take blocks where there were holes.
fn changes_unseen(stat: &Stat) -> bool {
    debug_assert_ne!(stat.ino.0, 0, "0 stands for no inode");
    let has_holes = stat.blocks.saturating_mul(512) < stat.size;
    stat.kind == FileKind::File && (has_holes || stat.mode & (libc::S_ISUID | libc::S_ISGID) != 0)
}
