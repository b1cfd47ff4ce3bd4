//! What an access ACL and the mode have to do with each other: see [`crate::acl`].
//!
//! Both change at once. In an ordered volume they are one group of the log (`ops::rights`): after a
//! crash either is found with the other, as on ext4. An ACL that goes while the mode stays would
//! give the file's group what the ACL's mask gave others.

use super::attr;
use super::posix;
use super::rights::Rights;
use super::xattr;
use crate::acl::{ACCESS, Acl, DEFAULT, NO_ENTRIES};
use crate::core::Core;
use crate::error::Result;
use crate::memfs::Inode;
use crate::stat::SetAttr;
use crate::{Cred, FileKind};

/// Sets an attribute; where it is an access ACL the mode follows. Returns false if the volume has
/// no space for it now, as [`xattr::set_xattr`].
pub(crate) fn set_xattr(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    name: &[u8],
    value: &[u8],
    flags: i32,
) -> Result<bool> {
    if name != ACCESS && name != DEFAULT {
        return xattr::set_xattr(core, cred, inode, (name, value), flags);
    }
    if inode.kind == FileKind::Symlink {
        return posix(libc::EOPNOTSUPP);
    }
    if value.is_empty() || value == NO_ENTRIES {
        return xattr::remove_xattr(core, cred, inode, name);
    }
    if name == ACCESS {
        return set_access(core, cred, inode, value, false);
    }
    // Flags are not looked at, as the kernel does not.
    if Acl::decode(value).is_none() {
        posix(libc::EINVAL)
    } else {
        xattr::set_xattr(core, cred, inode, (name, value), 0)
    }
}

/// Sets the access ACL and the mode that shows it; an ACL that is no more than the mode is not
/// kept. `kill_sgid`: setgid goes. Returns false if the volume has no space for it now.
pub(crate) fn set_access(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    value: &[u8],
    kill_sgid: bool,
) -> Result<bool> {
    let Some(acl) = Acl::decode(value) else { return posix(libc::EINVAL) };
    let kept = if kill_sgid { 0o7000 & !libc::S_ISGID } else { 0o7000 };
    let mode = inode.mode() & kept | acl.mode();
    debug_assert_eq!(acl.mode() & !0o777, 0, "an ACL gives no setuid, setgid or sticky bit");
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    let change = |r: &Rights| match acl.is_plain() {
        true => xattr::remove_with(core, cred, inode, ACCESS, r),
        false => xattr::set_with(core, cred, inode, (ACCESS, value), 0, r),
    };
    attr::set_attr_by(core, cred, inode, &set, false, change)
}

/// Changes attributes, the access ACL with the mode. Returns false if the volume has no space now
/// to write the ACL anew.
pub(crate) fn set_attr(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    set: &SetAttr,
    through_handle: bool,
) -> Result<bool> {
    let old = match set.mode {
        Some(_) => access_acl(core, cred, inode)?,
        None => None,
    };
    let acl = old.as_deref().and_then(Acl::decode);
    let (Some(mode), Some(mut acl)) = (set.mode, acl) else {
        return attr::set_attr(core, cred, inode, set, through_handle).map(|()| true);
    };
    acl.chmod(mode);
    let change = |r: &Rights| xattr::set_with(core, cred, inode, (ACCESS, &acl.encode()), 0, r);
    attr::set_attr_by(core, cred, inode, set, through_handle, change)
}

/// Returns the access ACL; `None`: there is none.
fn access_acl(core: &Core, cred: &Cred, inode: &Inode) -> Result<Option<Vec<u8>>> {
    match xattr::get_xattr(core, cred, inode, ACCESS) {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.errno() == libc::ENODATA => Ok(None),
        Err(e) => Err(e),
    }
}
