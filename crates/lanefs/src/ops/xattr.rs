//! Extended attributes: getxattr, setxattr, listxattr, removexattr.

use super::perm::{self, R, W};
use super::posix;
use crate::error::Result;
use crate::memfs::Cell;
use crate::memfs::cell::{HAS_XATTRS, XATTR_DIRTY};
use crate::memfs::xattr::{XATTR_NAME_MAX, XATTR_VALUE_MAX, Xattrs};
use crate::volume::Inner;
use crate::{Cred, FileKind};
use lanefs_sync::clock::coarse_realtime_ns;

/// Names the caller may use at all, and whether changing one takes ownership rather than write permission.
fn check(cell: &Cell, cred: &Cred, name: &[u8], write: bool) -> Result<()> {
    if name.is_empty() {
        return posix(libc::ERANGE);
    }
    if name.len() > XATTR_NAME_MAX {
        return posix(libc::ERANGE);
    }
    let has = |p: &[u8]| name.starts_with(p) && name.len() > p.len();
    if has(b"user.") {
        // Only files and directories have user attributes; in a sticky directory only the owner changes them.
        if !matches!(cell.kind, FileKind::File | FileKind::Dir) {
            return posix(if write { libc::EPERM } else { libc::ENODATA });
        }
        if write && cell.kind == FileKind::Dir && cell.mode() & libc::S_ISVTX != 0 {
            perm::check_owner(cell, cred)?;
        }
        return perm::check(cell, cred, if write { W } else { R });
    }
    if has(b"trusted.") {
        return if cred.is_root() || cred.prechecked {
            Ok(())
        } else {
            posix(if write { libc::EPERM } else { libc::ENODATA })
        };
    }
    if has(b"security.") {
        return if write && !cred.is_root() && !cred.prechecked { posix(libc::EPERM) } else { Ok(()) };
    }
    if name == b"system.posix_acl_access" || name == b"system.posix_acl_default" {
        if name.ends_with(b"default") && cell.kind != FileKind::Dir {
            return posix(if write { libc::EACCES } else { libc::ENODATA });
        }
        return if write { perm::check_owner(cell, cred) } else { Ok(()) };
    }
    posix(libc::EOPNOTSUPP)
}

impl Inner {
    /// Runs `f` on the inode's attributes, loaded from the store if need be.
    fn with_xattrs<R>(&self, cell: &Cell, f: impl FnOnce(&mut Xattrs) -> R) -> Result<R> {
        loop {
            let mut x = cell.xattrs.lock();
            if let Some(x) = x.as_mut() {
                return Ok(f(x));
            }
            if !cell.has(HAS_XATTRS) {
                let mut fresh = Xattrs::default();
                let r = f(&mut fresh);
                if !fresh.is_empty() {
                    *x = Some(Box::new(fresh));
                }
                return Ok(r);
            }
            drop(x);
            let Some(image) = self.store.load_inode(cell.ino)? else { return posix(libc::ESTALE) };
            let Some(loaded) = Xattrs::decode(&image.xattrs) else {
                let why = "its extended attributes are malformed".into();
                return Err(lanefs_store::StoreError::BadInode { ino: cell.ino, why }.into());
            };
            cell.xattrs.lock().get_or_insert_with(|| Box::new(loaded));
        }
    }

    pub(crate) fn get_xattr(&self, cred: &Cred, cell: &Cell, name: &[u8]) -> Result<Vec<u8>> {
        check(cell, cred, name, false)?;
        if !cell.has(HAS_XATTRS) {
            return posix(libc::ENODATA);
        }
        match self.with_xattrs(cell, |x| x.get(name).map(<[u8]>::to_vec))? {
            Some(v) => Ok(v),
            None => posix(libc::ENODATA),
        }
    }

    pub(crate) fn list_xattrs(&self, cred: &Cred, cell: &Cell) -> Result<Vec<Vec<u8>>> {
        if !cell.has(HAS_XATTRS) {
            return Ok(Vec::new());
        }
        let all = cred.is_root() || cred.prechecked;
        self.with_xattrs(cell, |x| {
            x.names().filter(|n| all || !n.starts_with(b"trusted.")).map(<[u8]>::to_vec).collect()
        })
    }

    pub(crate) fn set_xattr(
        &self,
        cred: &Cred,
        cell: &Cell,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        check(cell, cred, name, true)?;
        self.writable()?;
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0
            || flags == libc::XATTR_CREATE | libc::XATTR_REPLACE
        {
            return posix(libc::EINVAL);
        }
        if value.len() > XATTR_VALUE_MAX {
            return posix(libc::E2BIG);
        }
        let r = self.with_xattrs(cell, |x| {
            let there = x.get(name).is_some();
            if there && flags == libc::XATTR_CREATE {
                return Err(libc::EEXIST);
            }
            if !there && flags == libc::XATTR_REPLACE {
                return Err(libc::ENODATA);
            }
            x.set(name, value)
        })?;
        r.map_err(crate::Error::Posix)?;
        self.xattrs_changed(cell);
        Ok(())
    }

    pub(crate) fn remove_xattr(&self, cred: &Cred, cell: &Cell, name: &[u8]) -> Result<()> {
        check(cell, cred, name, true)?;
        self.writable()?;
        if !self.with_xattrs(cell, |x| x.remove(name))? {
            return posix(libc::ENODATA);
        }
        self.xattrs_changed(cell);
        Ok(())
    }

    fn xattrs_changed(&self, cell: &Cell) {
        cell.set(HAS_XATTRS);
        cell.set_times(None, None, Some(coarse_realtime_ns()));
        self.dirty_cell(cell, XATTR_DIRTY);
    }
}
