//! Operations by inode number, for front ends that keep inode numbers (FUSE). `cred.prechecked` says that
//! permissions were checked by the kernel.

use crate::error::{Error, Result};
use crate::{Cred, DirEntry, File, Ino, SetAttr, Stat, Volume};

const NO: Error = Error::Posix(libc::ENOSYS);

macro_rules! node_calls {
    ($($(#[$m:meta])* fn $n:ident(&self $(, $a:ident: $t:ty)*) -> $r:ty;)*) => { impl Volume { $( $(#[$m])* pub fn $n(&self $(, $a: $t)*) -> $r { $(let _ = $a;)* Err(NO) } )* } }
}
node_calls! {
    /// The inode that `name` of `parent` names. ENOENT if none.
    fn node_lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Stat>;
    /// Attributes. ESTALE if the inode is gone.
    fn node_stat(&self, ino: Ino) -> Result<Stat>;
    /// Changes attributes and returns the new ones.
    fn node_setattr(&self, cred: &Cred, ino: Ino, set: &SetAttr) -> Result<Stat>;
    /// Creates (or, without O_EXCL, opens) a regular file.
    fn node_create(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, flags: i32) -> Result<(Stat, File)>;
    /// Opens an inode; directories too.
    fn node_open(&self, cred: &Cred, ino: Ino, flags: i32) -> Result<File>;
    /// A file without a name (O_TMPFILE).
    fn node_tmpfile(&self, cred: &Cred, parent: Ino, mode: u32, flags: i32) -> Result<(Stat, File)>;
    /// Makes a file of any kind but directory and symbolic link.
    fn node_mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Stat>;
    /// Makes a directory.
    fn node_mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Stat>;
    /// Makes a symbolic link.
    fn node_symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Stat>;
    /// Makes another name for an inode.
    fn node_link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Stat>;
    /// Removes a name of a file.
    fn node_unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn node_rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()>;
    /// Renames; flags as in renameat2(2).
    fn node_rename(&self, cred: &Cred, parent: Ino, name: &[u8], to: Ino, to_name: &[u8], flags: u32) -> Result<()>;
    /// A symbolic link's target.
    fn node_readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    /// Calls `f` for each entry behind `cookie` (0: from the start; `.` and `..` included) until it returns false.
    fn node_readdir(&self, ino: Ino, cookie: u64, f: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
    /// getxattr(2); ENODATA if there is none.
    fn node_getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// setxattr(2).
    fn node_setxattr(&self, cred: &Cred, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()>;
    /// listxattr(2): the names.
    fn node_listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// removexattr(2).
    fn node_removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()>;
    /// access(2).
    fn node_access(&self, cred: &Cred, ino: Ino, mask: i32) -> Result<()>;
    /// fsync of a directory by inode number.
    fn node_sync(&self, ino: Ino) -> Result<()>;
}
