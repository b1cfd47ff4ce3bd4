//! Operations by inode number, for front ends that keep inode numbers (FUSE). `cred.prechecked`
//! means that permissions were checked by the kernel.
//!
//! All namespace changes become durable with the next epoch commit ([`Volume::sync`], or the
//! timer), or earlier with an fsync that needs them; each is atomic: after a crash it is there
//! whole or not at all, and none is there without those it depends on ([names](crate#names)).
//!
//! Every call may answer ESTALE for a number that leads to no inode (any more), and the errors of
//! [every call](crate::error#every-call). EACCES and EPERM do not come of permissions where
//! `cred.prechecked`.
//!
//! **ACLs.** [`Volume::node_setattr`] and [`Volume::node_setxattr`] change what they are asked to
//! and nothing beside it; the calls with an ACL or a mode in their name keep the two in step
//! ([`crate::acl`]).
//!
//! **New inodes.** What a new inode is to have from the start ([`NewInodeAttrs`]) is refused with
//! ERANGE (a name of an attribute that is empty or longer than 255 bytes), EOPNOTSUPP (one without
//! a known prefix), EPERM (`user.` for what is neither file nor directory; `trusted.` and
//! `security.` by others than the superuser), EACCES (a default ACL for what is no directory) and
//! ENOSPC (more than 7680 bytes in all, encoded).

use crate::core::memory;
use crate::core::space;
use crate::error::{Error, Result};
use crate::file::opening;
use crate::memfs::Inode;
use crate::memfs::inode::LINKABLE;
use crate::ops::acl;
use crate::ops::attr;
use crate::ops::create;
use crate::ops::create::Spec;
use crate::ops::flags;
use crate::ops::link;
use crate::ops::readdir;
use crate::ops::remove;
use crate::ops::rename;
use crate::ops::resolve;
use crate::ops::{perm, posix, xattr};
use crate::{Cred, File, FileKind, Ino, NewInodeAttrs, NodeEntry, SetAttr, Stat, Volume};
use crossbeam_epoch::{Guard, pin};

impl Volume {
    /// Looks up the inode that `name` of `parent` names. `.` and `..` are understood.
    ///
    /// # Errors
    /// ENOENT: none. ENOTDIR: `parent` is no directory. EACCES: it may not be searched.
    /// ENAMETOOLONG: more than 255 bytes.
    pub fn node_lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Stat> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        memory::wait_for_memory(persist);
        let guard = pin();
        let (inode, dir) = resolve::find_dir(persist, parent, &guard)?;
        perm::check(inode, cred, perm::X)?;
        match name {
            b"." => return Ok(inode.stat()),
            b".." => {
                // Acquire: pairs with the Release of the rename that moved the directory.
                let up = Ino(inode.parent.load(std::sync::atomic::Ordering::Acquire));
                return Ok(resolve::find(persist, up, &guard)?.stat());
            }
            _ if name.len() > lanefs_format::NAME_MAX => return posix(libc::ENAMETOOLONG),
            _ => {}
        }
        for _ in 0..1000 {
            match resolve::lookup(persist, inode, dir, name, &guard)? {
                None => return posix(libc::ENOENT),
                Some((ino, _)) => match resolve::find(persist, ino, &guard) {
                    Ok(c) => return Ok(c.stat()),
                    Err(Error::Posix(libc::ESTALE)) => lanefs_sync::schedule::yield_now(),
                    Err(e) => return Err(e),
                },
            }
        }
        posix(libc::ENOENT)
    }

    /// Returns attributes. No errors but those above.
    pub fn node_stat(&self, ino: Ino) -> Result<Stat> {
        self.0.persist.check_alive()?;
        Ok(resolve::find(&self.0.persist, ino, &pin())?.stat())
    }

    /// Returns whether a file has space of its own, preallocated or written, wherever it is written
    /// next, up to the end of what was preallocated: then it is written on a full volume too. False
    /// for a file with holes, and when what was preallocated is used up.
    pub fn node_is_backed(&self, ino: Ino) -> bool {
        let store = &self.0.persist.store;
        let pages = |size: u64| size.div_ceil(lanefs_format::BLOCK_SIZE as u64);
        self.node_stat(ino).is_ok_and(|s| store.is_backed(ino, pages(s.size)).unwrap_or(false))
    }

    /// Changes attributes, all that is asked or nothing, and returns the new ones. Durable as
    /// [attributes](crate#content-and-attributes) are, a size as [`crate::Fs::truncate`].
    ///
    /// # Errors
    /// EPERM, EACCES, EISDIR, EINVAL, EFBIG, ENOSPC, ENOMEM, EIO, EROFS: as [`crate::Fs::chmod`],
    /// [`crate::Fs::chown`], [`crate::Fs::set_times`] and [`crate::Fs::truncate`].
    pub fn node_setattr(&self, cred: &Cred, ino: Ino, set: &SetAttr) -> Result<Stat> {
        memory::slow_down_meta(&self.0.persist);
        let guard = pin();
        let inode = resolve::find(&self.0.persist, ino, &guard)?;
        let _held = self.hold_for(cred, inode, set)?;
        attr::set_attr(&self.0.persist, cred, inode, set, false)?;
        Ok(inode.stat())
    }

    /// Does the same, and changes the access ACL with the mode. ENOSPC: also no space to write the
    /// ACL anew.
    pub fn node_setattr_and_acl(&self, cred: &Cred, ino: Ino, set: &SetAttr) -> Result<Stat> {
        memory::slow_down_meta(&self.0.persist);
        let mut stat = None;
        space::change_with_space(&self.0.persist, || {
            let guard = pin();
            let changed = self.change_attrs(cred, ino, set, &guard)?;
            stat = changed.map(Inode::stat);
            Ok(changed.is_some())
        })?;
        debug_assert!(stat.is_some(), "inode {ino} was changed");
        stat.map_or_else(|| posix(libc::ENOSPC), Ok)
    }

    /// Does the same for callers that do not ask for the new ones, which lie on more lines; `None`:
    /// there is no space for the ACL now, and nothing has changed.
    pub(crate) fn change_attrs<'g>(
        &self,
        cred: &Cred,
        ino: Ino,
        set: &SetAttr,
        guard: &'g Guard,
    ) -> Result<Option<&'g Inode>> {
        let inode = resolve::find(&self.0.persist, ino, guard)?;
        let _held = self.hold_for(cred, inode, set)?;
        Ok(acl::set_attr(&self.0.persist, cred, inode, set, false)?.then_some(inode))
    }

    /// Returns a handle if the size is to be set: its slot keeps the inode from being freed under a
    /// truncation.
    fn hold_for(&self, cred: &Cred, inode: &Inode, set: &SetAttr) -> Result<Option<File>> {
        set.size.is_some().then(|| opening::handle(&self.0, inode, cred, libc::O_RDWR)).transpose()
    }

    /// Creates (or, without O_EXCL, opens) a regular file, and returns whether it was made. One
    /// that was there stays as it is, but for O_TRUNC. What is made is open whatever its mode, and
    /// durable as [names](crate#names) are, with what it is born with.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names) and of [`NewInodeAttrs`], below; EEXIST with
    /// O_EXCL only. Of a file that was there those of [`Volume::node_open`].
    pub fn node_create<'a>(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        birth: impl Into<NewInodeAttrs<'a>>,
        flags: i32,
    ) -> Result<(Stat, File, bool)> {
        memory::slow_down_meta(&self.0.persist);
        let opened = &self.0;
        let NewInodeAttrs { mode, xattrs } = birth.into();
        let xattrs = xattr::first(cred, FileKind::File, xattrs)?;
        let spec = Spec { kind: FileKind::File, mode, rdev: 0, target: b"", xattrs: &xattrs };
        let (f, made) = space::with_space(&opened.persist, || {
            opening::create_at(opened, cred, (parent, name), &spec, flags, &pin())
        })?;
        Ok((f.inode().stat(), f, made))
    }

    /// Opens an inode; directories too. O_CREAT and O_EXCL do not count.
    ///
    /// # Errors
    /// - EISDIR: a directory, and writing or O_TRUNC. ENOTDIR: O_DIRECTORY, and none.
    /// - ELOOP: a symbolic link. ENXIO: a pipe, a socket or a device. With O_PATH neither.
    /// - EACCES: the mode forbids it, without O_PATH. EPERM: O_NOATIME by another than the owner.
    /// - EROFS: writing or O_TRUNC on a volume opened for reading only. With O_TRUNC also those of
    ///   [`File::set_len`].
    pub fn node_open(&self, cred: &Cred, ino: Ino, flags: i32) -> Result<File> {
        opening::open_ino(&self.0, cred, ino, flags & !(libc::O_CREAT | libc::O_EXCL), &pin())
    }

    /// Makes a file without a name (O_TMPFILE), open whatever its mode; [`File::link_to`] can give
    /// it one, unless `flags` has O_EXCL. After a crash it is gone if it has none.
    ///
    /// # Errors
    /// ENOTDIR: `parent` is no directory. EACCES: it may not be changed. ENOSPC: no space. EROFS:
    /// the volume was opened for reading only. And those of [`NewInodeAttrs`].
    pub fn node_tmpfile<'a>(
        &self,
        cred: &Cred,
        parent: Ino,
        birth: impl Into<NewInodeAttrs<'a>>,
        flags: i32,
    ) -> Result<(Stat, File)> {
        let NewInodeAttrs { mode, xattrs } = birth.into();
        let xattrs = xattr::first(cred, FileKind::File, xattrs)?;
        let spec = Spec { kind: FileKind::File, mode, rdev: 0, target: b"", xattrs: &xattrs };
        space::with_space(&self.0.persist, || {
            let guard = pin();
            let inode = create::make_unnamed(&self.0.persist, cred, parent, &spec, &guard)?;
            if flags & libc::O_EXCL == 0 {
                inode.set(LINKABLE);
            }
            let f = opening::handle(&self.0, inode, cred, flags)?;
            create::note_unnamed(&self.0.persist, inode);
            Ok((inode.stat(), f))
        })
    }

    /// Makes a file of any kind but directory and symbolic link; `birth` has the bits of the type
    /// (none: a regular file), `rdev` counts for devices. Durable as [names](crate#names) are.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names) and of [`NewInodeAttrs`]; EPERM, EINVAL: as
    /// [`crate::Fs::mknod`].
    pub fn node_mknod<'a>(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        birth: impl Into<NewInodeAttrs<'a>>,
        rdev: u64,
    ) -> Result<Stat> {
        let NewInodeAttrs { mode, xattrs } = birth.into();
        let spec = Spec::of_node(cred, mode, rdev)?;
        let xattrs = xattr::first(cred, spec.kind, xattrs)?;
        self.make(cred, parent, name, &Spec { xattrs: &xattrs, ..spec })
    }

    /// Makes a directory. Durable as [names](crate#names) are. Errors: those of [new
    /// names](crate::error#new-names) and of [`NewInodeAttrs`].
    pub fn node_mkdir<'a>(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        birth: impl Into<NewInodeAttrs<'a>>,
    ) -> Result<Stat> {
        let NewInodeAttrs { mode, xattrs } = birth.into();
        let xattrs = xattr::first(cred, FileKind::Dir, xattrs)?;
        self.make(
            cred,
            parent,
            name,
            &Spec { kind: FileKind::Dir, mode, rdev: 0, target: b"", xattrs: &xattrs },
        )
    }

    /// Makes a symbolic link; `target` is 1 to 4095 bytes. Durable as [names](crate#names) are,
    /// always with its target.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names). ENOENT: `target` is empty or has a NUL.
    /// ENAMETOOLONG: it is longer.
    pub fn node_symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        if target.is_empty() || target.contains(&0) {
            return posix(libc::ENOENT);
        }
        self.make(
            cred,
            parent,
            name,
            &Spec { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target, xattrs: b"" },
        )
    }

    /// Makes a named inode that is not opened.
    fn make(&self, cred: &Cred, parent: Ino, name: &[u8], spec: &Spec<'_>) -> Result<Stat> {
        memory::slow_down_meta(&self.0.persist);
        let persist = &self.0.persist;
        space::with_space(persist, || {
            create::make_new(persist, cred, (parent, name), spec, &pin()).map(Inode::stat)
        })
    }

    /// Makes another name for an inode. Errors and crash as [`File::link_to`].
    pub fn node_link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Stat> {
        memory::slow_down_meta(&self.0.persist);
        space::with_space(&self.0.persist, || {
            let guard = pin();
            let inode = resolve::find(&self.0.persist, ino, &guard)?;
            // The slot keeps an inode without a name from being freed meanwhile.
            // SeqCst, as the reaper's look at it.
            let unnamed = inode.nlink.load(std::sync::atomic::Ordering::SeqCst) == 0;
            let _held = unnamed.then(|| opening::handle(&self.0, inode, cred, libc::O_RDONLY)).transpose()?;
            link::link(&self.0.persist, cred, inode, parent, name, &guard)?;
            Ok(inode.stat())
        })
    }

    /// Removes a name of a file, which lives on while it is open. Crash as [`crate::Fs::unlink`].
    ///
    /// # Errors
    /// Those of [removed names](crate::error#removed-names). EISDIR: a directory, `.` or `..`.
    /// ENOTDIR: `parent` is no directory.
    pub fn node_unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        memory::slow_down_meta(&self.0.persist);
        remove::unlink(&self.0.persist, cred, parent, name, &pin())
    }

    /// Removes an empty directory. Crash as [`crate::Fs::rmdir`].
    ///
    /// # Errors
    /// Those of [removed names](crate::error#removed-names). ENOTDIR: no directory, or `parent` is
    /// none. ENOTEMPTY: it has names, or `..`. EINVAL: `.`.
    pub fn node_rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        memory::slow_down_meta(&self.0.persist);
        remove::rmdir(&self.0.persist, cred, parent, name, &pin())
    }

    /// Renames; flags as in renameat2(2) and [`crate::Fs::rename2`]. After a crash either the old
    /// or the new names are there, with their whiteout, never both and never none.
    ///
    /// # Errors
    /// As [`crate::Fs::rename2`]; EBUSY for `.` and `..`, ENOENT for an empty name, ENOTDIR where
    /// `parent` or `to` is no directory.
    pub fn node_rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        to: Ino,
        to_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        memory::slow_down_meta(&self.0.persist);
        let persist = &self.0.persist;
        space::with_space(persist, || {
            rename::rename(persist, cred, (parent, name), (to, to_name), flags, &pin())
        })
    }

    /// Returns a symbolic link's target. EINVAL: another kind.
    pub fn node_readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.persist.check_alive()?;
        let guard = pin();
        resolve::link_target(resolve::find(&self.0.persist, ino, &guard)?)
    }

    /// Calls `f` for each entry behind `cookie` (0: from the start; `.` and `..` included) until it
    /// returns false. Whether the directory may be read is not asked.
    ///
    /// # Errors
    /// ENOTDIR: no directory.
    pub fn node_readdir(
        &self,
        ino: Ino,
        cookie: u64,
        f: &mut dyn FnMut(NodeEntry<'_>) -> bool,
    ) -> Result<()> {
        self.0.persist.check_alive()?;
        readdir::read_dir(&self.0.persist, ino, cookie, f, &mut pin())
    }

    /// Returns an attribute's value, as getxattr(2). Errors as [`crate::Fs::getxattr`].
    pub fn node_getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.persist.check_alive()?;
        let guard = pin();
        xattr::get_xattr(&self.0.persist, cred, resolve::find(&self.0.persist, ino, &guard)?, name)
    }

    /// Sets an attribute as setxattr(2). Errors and crash as [`crate::Fs::setxattr`].
    pub fn node_setxattr(&self, cred: &Cred, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        let persist = &self.0.persist;
        memory::slow_down_meta(persist);
        space::change_with_space(persist, || {
            let guard = pin();
            xattr::set_xattr(persist, cred, resolve::find(persist, ino, &guard)?, (name, value), flags)
        })
    }

    /// Does the same, and has the mode follow an access ACL.
    pub fn node_setxattr_and_mode(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let persist = &self.0.persist;
        memory::slow_down_meta(persist);
        space::change_with_space(persist, || {
            let guard = pin();
            acl::set_xattr(persist, cred, resolve::find(persist, ino, &guard)?, name, value, flags)
        })
    }

    /// Sets the access ACL, and the mode with it; `kill_sgid`: setgid goes, for a front end whose
    /// kernel says so. EINVAL: it is no ACL. Other errors and crash as [`crate::Fs::setxattr`].
    pub fn node_set_access_acl(&self, cred: &Cred, ino: Ino, value: &[u8], kill_sgid: bool) -> Result<()> {
        let persist = &self.0.persist;
        memory::slow_down_meta(persist);
        space::change_with_space(persist, || {
            let guard = pin();
            acl::set_access(persist, cred, resolve::find(persist, ino, &guard)?, value, kill_sgid)
        })
    }

    /// Returns the names of attributes, as listxattr(2), those of `trusted.` for the superuser
    /// only.
    pub fn node_listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.persist.check_alive()?;
        let guard = pin();
        xattr::list_xattrs(&self.0.persist, cred, resolve::find(&self.0.persist, ino, &guard)?)
    }

    /// Removes an attribute as removexattr(2). Errors and crash as [`crate::Fs::removexattr`].
    pub fn node_removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let persist = &self.0.persist;
        memory::slow_down_meta(persist);
        space::change_with_space(persist, || {
            let guard = pin();
            xattr::remove_xattr(persist, cred, resolve::find(persist, ino, &guard)?, name)
        })
    }

    /// Checks permissions as access(2): `mask` is `R_OK|W_OK|X_OK`. EACCES, EROFS: as
    /// [`crate::Fs::access`].
    pub fn node_access(&self, cred: &Cred, ino: Ino, mask: i32) -> Result<()> {
        self.0.persist.check_alive()?;
        let guard = pin();
        let inode = resolve::find(&self.0.persist, ino, &guard)?;
        if mask & libc::W_OK != 0 && matches!(inode.kind, FileKind::File | FileKind::Dir | FileKind::Symlink)
        {
            self.0.persist.writable()?;
        }
        perm::check(inode, cred, mask as u32 & 7)
    }

    /// Returns the flags of an inode, of [`crate::inode_flags`]; none are set in a new one but
    /// those that its directory hands on, NODUMP and NOATIME.
    ///
    /// # Errors
    /// ENOTTY: neither a file nor a directory: no other kind has any.
    pub fn node_flags(&self, ino: Ino) -> Result<u32> {
        let guard = pin();
        flags::inode_flags(&self.0.persist, resolve::find(&self.0.persist, ino, &guard)?)
    }

    /// Sets the flags of an inode to these, all of [`crate::inode_flags`]. Durable as
    /// [attributes](crate#content-and-attributes) are: after a crash they are those of the last
    /// fsync or of a later call.
    ///
    /// IMMUTABLE: every change of the inode, of its names and of a directory's entries is EPERM,
    /// for everybody. APPEND: a file is opened for writing with O_APPEND alone and never gets
    /// shorter, a directory loses no name; neither is renamed, linked or removed, nor changes mode,
    /// owner, extended attributes or times but to the present. NODUMP is for programs that make
    /// backups. NOATIME: reading leaves atime alone. A handle that was open for writing before goes
    /// on with APPEND, and gets EPERM with IMMUTABLE.
    ///
    /// # Errors
    /// - EPERM: not the owner; or IMMUTABLE or APPEND changes, and the caller is not the superuser;
    ///   or another flag changes and IMMUTABLE stays.
    /// - EOPNOTSUPP: another flag. ENOTTY: as [`Volume::node_flags`]. EROFS: the volume was opened
    ///   for reading only.
    pub fn node_set_flags(&self, cred: &Cred, ino: Ino, flags: u32) -> Result<()> {
        let guard = pin();
        flags::set_inode_flags(&self.0.persist, cred, resolve::find(&self.0.persist, ino, &guard)?, flags)
    }

    /// Makes an inode durable, as fsync, of a directory above all: its names are durable when it
    /// returns. Errors as [`File::sync_all`].
    pub fn node_sync(&self, ino: Ino) -> Result<()> {
        let f = {
            let guard = pin();
            opening::handle(
                &self.0,
                resolve::find(&self.0.persist, ino, &guard)?,
                &Cred::root(),
                libc::O_RDONLY,
            )?
        };
        f.sync_all()
    }
}
