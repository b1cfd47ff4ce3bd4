//! Mode, owner, times, extended attributes.

use super::*;
use crate::op::{ACCESS_ACL, CAPABILITY, Tagged, When, acl_of, chmod_acl};

/// The most bytes of one extended attribute's value.
const XATTR_VALUE_MAX: u32 = 65_536;

const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Model {
    /// Notes the attributes as they are now.
    pub(super) fn attr_changed(&mut self, id: Id) {
        if let Some(n) = self.inodes.get(&id) {
            let state = AttrState {
                mode: n.mode,
                uid: n.uid,
                gid: n.gid,
                mtime: n.mtime.known(),
                xattrs: n.xattrs.clone(),
            };
            self.changes.push(Change::Attr { id, state });
        }
    }

    pub(super) fn chmod(&mut self, c: &Cred, path: &Name, mode: u32) -> Res {
        let id = self.lookup(c, path, true)?;
        self.owner(c, id)?;
        let n = self.ino_mut(id)?;
        let mut mode = mode & 0o7777;
        if c.uid != 0 && !c.in_group(n.gid) {
            mode &= !libc::S_ISGID;
        }
        n.mode = n.mode & libc::S_IFMT | mode;
        if let Some(acl) = n.xattrs.get_mut(&ACCESS_ACL.into()) {
            chmod_acl(Arc::make_mut(acl).as_mut_slice(), mode);
        }
        self.attr_changed(id);
        Ok(Outcome::Done)
    }

    pub(super) fn chown(
        &mut self,
        c: &Cred,
        path: &Name,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Res {
        let id = self.lookup(c, path, follow)?;
        let n = self.ino_mut(id)?;
        let owner = c.uid == n.uid;
        if c.uid != 0 {
            if uid.is_some_and(|u| !owner || u != n.uid) {
                return Err(libc::EPERM);
            }
            if gid.is_some_and(|g| !owner || g != n.gid && !c.in_group(g)) {
                return Err(libc::EPERM);
            }
        }
        // As the kernel, root included: whoever changes the owner clears setuid, and setgid with
        // group-execute.
        if !n.is_dir() {
            n.mode &= !libc::S_ISUID;
            if n.mode & 0o010 != 0 || c.uid != 0 && !c.in_group(n.gid) {
                n.mode &= !libc::S_ISGID;
            }
            n.xattrs.remove(&CAPABILITY.into());
        }
        n.uid = uid.unwrap_or(n.uid);
        n.gid = gid.unwrap_or(n.gid);
        self.attr_changed(id);
        Ok(Outcome::Done)
    }

    pub(super) fn utimens(&mut self, c: &Cred, path: &Name, atime: When, mtime: When) -> Res {
        if (atime, mtime) == (When::Keep, When::Keep) {
            return Ok(Outcome::Done);
        }
        let id = self.lookup(c, path, true)?;
        if (atime, mtime) == (When::Now, When::Now) {
            if self.owner(c, id).is_err() {
                self.permission(c, id, 2)?;
            }
        } else {
            self.owner(c, id)?;
        }
        let n = self.ino_mut(id)?;
        for (field, when) in [(&mut n.atime, atime), (&mut n.mtime, mtime)] {
            match when {
                When::Keep => {}
                When::Now => *field = Time::Clock,
                When::At(t) => *field = Time::Set(t),
            }
        }
        self.attr_changed(id);
        Ok(Outcome::Done)
    }

    /// The checks before any call on an extended attribute. As the library's calls by inode number,
    /// which check no ACL against the mode and let no name inherit one.
    fn xattr_place(&self, c: &Cred, path: &Name, name: &Name, write: bool) -> Res<Id> {
        let id = self.lookup(c, path, true)?;
        let n = self.ino(id)?;
        let refused = |e| if write { Err(e) } else { Err(libc::ENODATA) };
        if name.0 == ACCESS_ACL || name.0 == DEFAULT_ACL {
            if name.0 == DEFAULT_ACL && !n.is_dir() {
                return Err(if write { libc::EACCES } else { libc::ENODATA });
            }
            if write {
                self.owner(c, id)?;
            }
            return Ok(id);
        }
        if name.0.starts_with(b"trusted.") {
            if c.uid != 0 {
                return refused(libc::EPERM);
            }
        } else if name.0.starts_with(b"security.") {
            if write && c.uid != 0 {
                return Err(libc::EPERM);
            }
        } else if !name.0.starts_with(b"system.") {
            if name.0.starts_with(b"user.") {
                if !n.is_file() && !n.is_dir() {
                    return refused(libc::EPERM);
                }
                if write && n.is_dir() && n.mode & libc::S_ISVTX != 0 {
                    self.owner(c, id)?;
                }
            }
            self.permission(c, id, if write { 2 } else { 4 })?;
        }
        let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
        match prefixes.iter().find(|p| name.0.starts_with(p)) {
            None => Err(libc::EOPNOTSUPP),
            Some(p) if name.0.len() == p.len() => Err(libc::EINVAL),
            Some(_) => Ok(id),
        }
    }

    fn xattr_name(name: &Name) -> Res<()> {
        if name.0.is_empty() || name.0.len() > 255 { Err(libc::ERANGE) } else { Ok(()) }
    }

    pub(super) fn setxattr(&mut self, c: &Cred, path: &Name, name: &Name, value: Tagged, flags: i32) -> Res {
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
            return Err(libc::EINVAL);
        }
        Self::xattr_name(name)?;
        if value.len > XATTR_VALUE_MAX {
            return Err(libc::E2BIG);
        }
        let id = self.xattr_place(c, path, name, true)?;
        if name.0 == ACCESS_ACL {
            return self.set_acl(c, id, value);
        }
        if name.0 == CAPABILITY && !(1..=64).contains(&value.len) {
            return Err(libc::EINVAL);
        }
        let n = self.ino_mut(id)?;
        let there = n.xattrs.contains_key(name);
        if there && flags & libc::XATTR_CREATE != 0 {
            return Err(libc::EEXIST);
        }
        if !there && flags & libc::XATTR_REPLACE != 0 {
            return Err(libc::ENODATA);
        }
        n.xattrs.insert(name.clone(), Arc::new(value.bytes(0)));
        self.attr_changed(id);
        Ok(Outcome::Done)
    }

    /// SEMANTICS: the mode follows an access ACL, which is kept where it says more.
    fn set_acl(&mut self, c: &Cred, id: Id, value: Tagged) -> Res {
        let n = self.ino_mut(id)?;
        let Some((bytes, perms)) = acl_of(value) else {
            if n.xattrs.remove(&ACCESS_ACL.into()).is_some() {
                self.attr_changed(id);
            }
            return Ok(Outcome::Done);
        };
        let [owner, group, others] = perms.shown;
        n.mode = n.mode & !0o777 | owner << 6 | group << 3 | others;
        if c.uid != 0 && !c.in_group(n.gid) {
            n.mode &= !libc::S_ISGID;
        }
        match perms.names {
            true => drop(n.xattrs.insert(ACCESS_ACL.into(), Arc::new(bytes))),
            false => drop(n.xattrs.remove(&ACCESS_ACL.into())),
        }
        self.attr_changed(id);
        Ok(Outcome::Done)
    }

    pub(super) fn getxattr(&mut self, c: &Cred, path: &Name, name: &Name) -> Res {
        Self::xattr_name(name)?;
        let id = self.xattr_place(c, path, name, false)?;
        let value = self.ino(id)?.xattrs.get(name).ok_or(libc::ENODATA)?;
        Ok(Outcome::Bytes(value.to_vec()))
    }

    pub(super) fn listxattr(&mut self, c: &Cred, path: &Name) -> Res {
        let id = self.lookup(c, path, true)?;
        let names = self.ino(id)?.xattrs.keys();
        Ok(Outcome::Keys(names.filter(|n| c.uid == 0 || !n.0.starts_with(b"trusted.")).cloned().collect()))
    }

    pub(super) fn removexattr(&mut self, c: &Cred, path: &Name, name: &Name) -> Res {
        Self::xattr_name(name)?;
        let id = self.xattr_place(c, path, name, true)?;
        let there = self.ino_mut(id)?.xattrs.remove(name).is_some();
        if !there {
            // An ACL need not be there.
            let is_acl = name.0 == ACCESS_ACL || name.0 == DEFAULT_ACL;
            return if is_acl { Ok(Outcome::Done) } else { Err(libc::ENODATA) };
        }
        self.attr_changed(id);
        Ok(Outcome::Done)
    }
}
