//! POSIX ACLs beside modes. Programs copy a mode as an ACL where they are linked to libacl
//! (`sed -i`, vim, cp and tar do), also that of a file which has no ACL.
//!
//! The volume stores an ACL as the extended attribute that the kernel has for it, and decides by
//! the mode alone. What the two have to do with each other is said here, as file systems in the
//! kernel do it: an access ACL sets the mode, and is kept only where the mode does not say all of
//! it; a change of mode changes the ACL's owner, mask and other entries.

use crate::volume;
use lanefs::{Error, FileKind, Ino, Result, SetAttr, Volume};
use lanefs_fuse::acl::{ACCESS, Acl, DEFAULT};
use libc::c_int;

/// The bytes of an ACL without entries, which stands for none.
const NO_ENTRIES: usize = 4;

/// Sets an extended attribute of an inode as the program may.
pub fn set_xattr(volume: &Volume, ino: Ino, name: &[u8], value: &[u8], flags: c_int) -> Result<()> {
    let cred = volume::view(volume).cred();
    if name != ACCESS && name != DEFAULT {
        return volume.node_setxattr(cred, ino, name, value, flags);
    }
    let stat = volume.node_stat(ino)?;
    if stat.kind == FileKind::Symlink {
        return Err(Error::Posix(libc::EOPNOTSUPP));
    }
    if value.len() <= NO_ENTRIES {
        return remove_xattr(volume, ino, name);
    }
    let acl = Acl::decode(value).ok_or(Error::Posix(libc::EINVAL))?;
    if name == DEFAULT {
        return volume.node_setxattr(cred, ino, name, value, flags);
    }
    // The ACL first: there may be no space for it, and then nothing has changed. Flags are not
    // looked at, as the kernel does not.
    if acl.is_plain() {
        remove_xattr(volume, ino, name)?;
    } else {
        volume.node_setxattr(cred, ino, name, value, 0)?;
    }
    let mode = Some(stat.mode & 0o7000 | acl.mode());
    debug_assert_eq!(acl.mode() & !0o777, 0, "an ACL gives no setuid, setgid or sticky bit");
    volume.node_setattr(cred, ino, &SetAttr { mode, ..SetAttr::default() }).map(|_| ())
}

/// Removes an extended attribute of an inode as the program may. An ACL need not be there.
pub fn remove_xattr(volume: &Volume, ino: Ino, name: &[u8]) -> Result<()> {
    match volume.node_removexattr(volume::view(volume).cred(), ino, name) {
        Err(e) if e.errno() == libc::ENODATA && (name == ACCESS || name == DEFAULT) => Ok(()),
        result => result,
    }
}

/// Changes attributes of an inode as the program may, the ACL with the mode.
pub fn change(volume: &Volume, ino: Ino, set: &SetAttr) -> Result<()> {
    let cred = volume::view(volume).cred();
    if let Some(mode) = set.mode
        && let Ok(value) = volume.node_getxattr(cred, ino, ACCESS)
        && let Some(mut acl) = Acl::decode(&value)
    {
        acl.chmod(mode);
        volume.node_setxattr(cred, ino, ACCESS, &acl.encode(), 0)?;
        debug_assert_eq!(acl.mode(), mode & 0o777, "the mode shows the ACL");
    }
    volume.node_setattr(cred, ino, set).map(|_| ())
}
