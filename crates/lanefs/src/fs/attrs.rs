//! Attributes by path, extended ones too.

use super::{AsPath, Fs};
use crate::core::memory;
use crate::core::space;
use crate::error::Error;
use crate::memfs::Inode;
use crate::ops::resolve;
use crate::ops::{acl, posix, xattr};
use crate::{Result, SetAttr, SetTime, Stat};
use crossbeam_epoch::pin;

/// The number of times that a path is walked anew whose file goes away behind the walk.
const TURNS: usize = 100;

impl Fs {
    /// Changes attributes of what a path leads to.
    fn set(&self, path: &[u8], follow: bool, set: &SetAttr) -> Result<()> {
        self.change(path, follow, set, |_| ())
    }

    /// Changes attributes of what a path leads to, and returns what `look` makes of the inode. One
    /// pin over the walk and the change, here and below: a number that was found is not another
    /// file's before the pin goes.
    fn change<T>(&self, path: &[u8], follow: bool, set: &SetAttr, look: impl Fn(&Inode) -> T) -> Result<T> {
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        let mut seen = None;
        space::change_with_space(persist, || {
            let guard = pin();
            for _ in 0..TURNS {
                let ino = self.find(path, follow, &guard)?;
                debug_assert!(!ino.is_none(), "a path leads to inode 0");
                match self.volume.change_attrs(&self.cred, ino, set, &guard) {
                    // Gone between the two: the path may lead to what has replaced it.
                    Err(Error::Posix(libc::ESTALE)) => {}
                    result => {
                        seen = result?.map(&look);
                        return Ok(seen.is_some());
                    }
                }
            }
            posix(libc::ENOENT)
        })?;
        debug_assert!(seen.is_some(), "what was changed was looked at");
        seen.map_or_else(|| posix(libc::ENOENT), Ok)
    }

    /// Changes attributes of what a path leads to, all that is asked or nothing, and returns the
    /// new ones; `follow` false changes those of a symbolic link. The path is walked once: what is
    /// returned is of the file that was changed, whatever the path leads to by then. Durable as
    /// [attributes](crate#content-and-attributes) are, a size as [`Fs::truncate`].
    ///
    /// # Errors
    /// EOPNOTSUPP: the mode of a symbolic link. Else those of [`Fs::chmod`], [`Fs::chown`],
    /// [`Fs::set_times`] and [`Fs::truncate`].
    pub fn set_attr(&self, path: impl AsPath, follow: bool, set: &SetAttr) -> Result<Stat> {
        let stat = self.change(path.as_path(), follow, set, Inode::stat)?;
        debug_assert!(follow || set.mode.is_none() || !stat.kind.is_symlink(), "a link got a mode");
        Ok(stat)
    }

    /// Changes extended attributes of what a path leads to, by an `f` that returns false where
    /// there was no space. Space is waited for without a pin, so the path is walked anew behind
    /// that.
    fn change_xattrs(&self, path: &[u8], follow: bool, f: impl Fn(&Inode) -> Result<bool>) -> Result<()> {
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        space::change_with_space(persist, || {
            let guard = pin();
            let ino = self.find(path, follow, &guard)?;
            debug_assert!(!ino.is_none(), "a path leads to inode 0");
            f(resolve::find(persist, ino, &guard)?)
        })
    }

    /// Sets the mode as chmod(2): `mode` is the bits 07777. Setgid goes if the caller is neither
    /// the superuser nor in the file's group; an [ACL](crate::acl) follows. Durable as
    /// [attributes](crate#content-and-attributes) are.
    ///
    /// # Errors
    /// EPERM: not the owner. EROFS: the volume was opened for reading only. ENOSPC: no space to
    /// write the ACL anew.
    pub fn chmod(&self, path: impl AsPath, mode: u32) -> Result<()> {
        self.set(path.as_path(), true, &SetAttr { mode: Some(mode), ..Default::default() })
    }

    /// Sets the owner as chown(2); `follow` false is lchown; `None` leaves one alone. Of what is no
    /// directory setuid goes, and setgid where the group may execute. Durable as
    /// [attributes](crate#content-and-attributes) are: owner and mode together.
    ///
    /// # Errors
    /// EPERM: only the superuser changes the owner, and only the owner the group, to one of its
    /// own. EROFS: the volume was opened for reading only.
    pub fn chown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>, follow: bool) -> Result<()> {
        self.set(path.as_path(), follow, &SetAttr { uid, gid, ..Default::default() })
    }

    /// Sets times as utimensat(2), in nanoseconds since 1970; `follow` false sets those of a
    /// symbolic link. With nothing to set it does nothing and finds nothing wrong, as the kernel.
    /// Durable as [attributes](crate#content-and-attributes) are.
    ///
    /// # Errors
    /// EPERM: not the owner, and a time was given or only one is set. EACCES: not the owner, both
    /// are the present, and the file may not be written. EROFS: the volume was opened for reading
    /// only.
    pub fn set_times(
        &self,
        path: impl AsPath,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        follow: bool,
    ) -> Result<()> {
        if atime.is_none() && mtime.is_none() {
            return self.volume.0.persist.check_alive();
        }
        self.set(path.as_path(), follow, &SetAttr { atime, mtime, ..Default::default() })
    }

    /// Sets the size as truncate(2): cuts off, or extends with zeros, to `size` bytes. After a
    /// crash the truncation is there whole or not at all: what was cut off is back only with the
    /// old size, and never shows when the file grows later. Durable as
    /// [content](crate#content-and-attributes) is.
    ///
    /// # Errors
    /// - EISDIR: a directory. EINVAL: neither that nor a regular file. EFBIG: more than 2^63-1
    ///   bytes.
    /// - EACCES: the file may not be written. EROFS: the volume was opened for reading only.
    /// - ENOSPC, ENOMEM: no space to rewrite the page in which the end falls. EIO: that page cannot
    ///   be read.
    pub fn truncate(&self, path: impl AsPath, size: u64) -> Result<()> {
        self.set(path.as_path(), true, &SetAttr { size: Some(size), ..Default::default() })
    }

    /// Checks permissions as access(2) with `R_OK|W_OK|X_OK`, for this credential.
    ///
    /// # Errors
    /// EACCES: something asked for is not allowed. EROFS: `W_OK` of a file, directory or symbolic
    /// link on a volume opened for reading only. ESTALE: removed meanwhile.
    pub fn access(&self, path: impl AsPath, mask: i32) -> Result<()> {
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.volume.node_access(&self.cred, ino, mask)
    }

    /// Does what [`Fs::access`] does, without following a symbolic link at the end; the mode of a
    /// link allows everything.
    pub fn laccess(&self, path: impl AsPath, mask: i32) -> Result<()> {
        let guard = pin();
        let ino = self.find(path.as_path(), false, &guard)?;
        self.volume.node_access(&self.cred, ino, mask)
    }

    /// Returns an attribute's whole value, as getxattr(2). Follows symbolic links.
    ///
    /// # Errors
    /// - ENODATA: no such attribute; or `user.` of what is neither file nor directory, `trusted.`
    ///   for others than the superuser, a default ACL of what is no directory.
    /// - EOPNOTSUPP: none of `user.`, `trusted.`, `security.` and the two ACLs. ERANGE: a name that
    ///   is empty or longer than 255 bytes.
    /// - EACCES: `user.`, and the file may not be read. ESTALE: removed meanwhile.
    pub fn getxattr(&self, path: impl AsPath, name: &[u8]) -> Result<Vec<u8>> {
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.volume.node_getxattr(&self.cred, ino, name)
    }

    /// Does what [`Fs::getxattr`] does, without following a symbolic link at the end.
    pub fn lgetxattr(&self, path: impl AsPath, name: &[u8]) -> Result<Vec<u8>> {
        let guard = pin();
        let ino = self.find(path.as_path(), false, &guard)?;
        self.volume.node_getxattr(&self.cred, ino, name)
    }

    /// Sets an attribute as setxattr(2): `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`; with
    /// both it fails. Follows symbolic links. Durable as [attributes](crate#content-and-attributes)
    /// are: after a crash all of an inode's extended attributes are those of one instant, and a
    /// value is whole.
    ///
    /// An access ACL sets the mode, and is kept where the mode does not say all of it; one without
    /// entries is removed ([`crate::acl`]). `flags` say nothing of ACLs.
    ///
    /// # Errors
    /// - EEXIST: `XATTR_CREATE`, and it exists. ENODATA: `XATTR_REPLACE`, and it does not. EINVAL:
    ///   other flags; an ACL that is none.
    /// - E2BIG: more than 65,536 bytes. ENOSPC: no space, more than 128 KiB for the inode, or a
    ///   default ACL of more than 3800 bytes.
    /// - EOPNOTSUPP, ERANGE: as [`Fs::getxattr`]; EOPNOTSUPP: an ACL of a symbolic link.
    /// - EPERM: `user.` of what is neither file nor directory, or of another's sticky directory;
    ///   `trusted.` and `security.` by others than the superuser; ACLs by others than the owner.
    /// - EACCES: `user.`, and the file may not be written; a default ACL of what is no directory.
    /// - EROFS: the volume was opened for reading only. ESTALE: removed meanwhile.
    pub fn setxattr(&self, path: impl AsPath, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.change_xattrs(path.as_path(), true, |inode| {
            acl::set_xattr(&self.volume.0.persist, &self.cred, inode, name, value, flags)
        })
    }

    /// Does what [`Fs::setxattr`] does, without following a symbolic link at the end.
    pub fn lsetxattr(&self, path: impl AsPath, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.change_xattrs(path.as_path(), false, |inode| {
            acl::set_xattr(&self.volume.0.persist, &self.cred, inode, name, value, flags)
        })
    }

    /// Returns the names of attributes, as listxattr(2), those of `trusted.` for the superuser
    /// only. Follows symbolic links. ESTALE: removed meanwhile.
    pub fn listxattr(&self, path: impl AsPath) -> Result<Vec<Vec<u8>>> {
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.volume.node_listxattr(&self.cred, ino)
    }

    /// Does what [`Fs::listxattr`] does, without following a symbolic link at the end.
    pub fn llistxattr(&self, path: impl AsPath) -> Result<Vec<Vec<u8>>> {
        let guard = pin();
        let ino = self.find(path.as_path(), false, &guard)?;
        self.volume.node_listxattr(&self.cred, ino)
    }

    /// Removes an attribute as removexattr(2); an ACL need not be there. Follows symbolic links.
    /// Crash as [`Fs::setxattr`].
    ///
    /// # Errors
    /// ENODATA: no such attribute. ENOSPC: more than a few hundred bytes are left of others, have
    /// to be written anew, and there is no space for that at all. EOPNOTSUPP, ERANGE, EPERM,
    /// EACCES, EROFS, ESTALE: as [`Fs::setxattr`].
    pub fn removexattr(&self, path: impl AsPath, name: &[u8]) -> Result<()> {
        self.change_xattrs(path.as_path(), true, |inode| {
            xattr::remove_xattr(&self.volume.0.persist, &self.cred, inode, name)
        })
    }

    /// Does what [`Fs::removexattr`] does, without following a symbolic link at the end.
    pub fn lremovexattr(&self, path: impl AsPath, name: &[u8]) -> Result<()> {
        self.change_xattrs(path.as_path(), false, |inode| {
            xattr::remove_xattr(&self.volume.0.persist, &self.cred, inode, name)
        })
    }

    /// Returns the flags of an inode, of [`crate::inode_flags`]. Follows symbolic links. Errors as
    /// [`crate::Volume::node_flags`].
    pub fn inode_flags(&self, path: impl AsPath) -> Result<u32> {
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.volume.node_flags(ino)
    }

    /// Sets the flags of an inode. Follows symbolic links. Errors and crash as
    /// [`crate::Volume::node_set_flags`].
    pub fn set_inode_flags(&self, path: impl AsPath, flags: u32) -> Result<()> {
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.volume.node_set_flags(&self.cred, ino, flags)
    }
}
