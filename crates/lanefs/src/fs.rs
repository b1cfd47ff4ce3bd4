//! A volume seen with a credential: operations by path.

use crate::error::{Error, Result};
use crate::{Cred, DirEntry, File, SetTime, Stat, StatFs, Volume};

/// How a file is opened; like `std::fs::OpenOptions`, with the flags POSIX adds.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Flags of `open(2)`.
    pub flags: i32,
    /// Permission bits of a file that is made (the umask is the caller's business).
    pub mode: u32,
}

/// A volume seen with a credential. Paths are bytes, separated by `/`, relative to the volume's root.
#[derive(Clone)]
pub struct Fs {
    pub(crate) volume: Volume,
    pub(crate) cred: Cred,
}

const NO: Error = Error::Posix(libc::ENOSYS);
type P<'a> = &'a [u8];

/// Anything that names a path: `&str`, `&[u8]`, `&Path`.
pub trait AsPath {
    /// The path's bytes.
    fn as_path(&self) -> P<'_>;
}
impl AsPath for str {
    fn as_path(&self) -> P<'_> {
        self.as_bytes()
    }
}
impl AsPath for [u8] {
    fn as_path(&self) -> P<'_> {
        self
    }
}
impl AsPath for String {
    fn as_path(&self) -> P<'_> {
        self.as_bytes()
    }
}
impl AsPath for std::path::Path {
    fn as_path(&self) -> P<'_> {
        std::os::unix::ffi::OsStrExt::as_bytes(self.as_os_str())
    }
}
impl<T: AsPath + ?Sized> AsPath for &T {
    fn as_path(&self) -> P<'_> {
        (**self).as_path()
    }
}

macro_rules! path_calls {
    ($($(#[$m:meta])* fn $n:ident(&self $(, $a:ident: $t:ty)*) -> $r:ty;)*) => { impl Fs { $( $(#[$m])* pub fn $n(&self $(, $a: $t)*) -> $r { $(let _ = $a;)* Err(NO) } )* } }
}
path_calls! {
    /// open(2).
    fn open(&self, path: impl AsPath, options: &OpenOptions) -> Result<File>;
    /// Creates or truncates for writing, mode 0666.
    fn create(&self, path: impl AsPath) -> Result<File>;
    /// stat(2): follows symbolic links.
    fn stat(&self, path: impl AsPath) -> Result<Stat>;
    /// lstat(2).
    fn lstat(&self, path: impl AsPath) -> Result<Stat>;
    /// mkdir(2).
    fn mkdir(&self, path: impl AsPath, mode: u32) -> Result<()>;
    /// All missing directories of a path.
    fn mkdir_all(&self, path: impl AsPath, mode: u32) -> Result<()>;
    /// mknod(2).
    fn mknod(&self, path: impl AsPath, mode: u32, rdev: u64) -> Result<()>;
    /// rmdir(2).
    fn rmdir(&self, path: impl AsPath) -> Result<()>;
    /// unlink(2).
    fn unlink(&self, path: impl AsPath) -> Result<()>;
    /// link(2).
    fn link(&self, old: impl AsPath, new: impl AsPath) -> Result<()>;
    /// symlink(2).
    fn symlink(&self, target: impl AsPath, path: impl AsPath) -> Result<()>;
    /// readlink(2).
    fn readlink(&self, path: impl AsPath) -> Result<Vec<u8>>;
    /// rename(2).
    fn rename(&self, old: impl AsPath, new: impl AsPath) -> Result<()>;
    /// renameat2(2) with `RENAME_NOREPLACE` or `RENAME_EXCHANGE`.
    fn rename2(&self, old: impl AsPath, new: impl AsPath, flags: u32) -> Result<()>;
    /// chmod(2).
    fn chmod(&self, path: impl AsPath, mode: u32) -> Result<()>;
    /// chown(2); `follow` false is lchown.
    fn chown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>, follow: bool) -> Result<()>;
    /// utimensat(2).
    fn set_times(&self, path: impl AsPath, atime: Option<SetTime>, mtime: Option<SetTime>, follow: bool) -> Result<()>;
    /// truncate(2).
    fn truncate(&self, path: impl AsPath, size: u64) -> Result<()>;
    /// access(2) with `R_OK|W_OK|X_OK`.
    fn access(&self, path: impl AsPath, mask: i32) -> Result<()>;
    /// Reads a whole file.
    fn read(&self, path: impl AsPath) -> Result<Vec<u8>>;
    /// Replaces a file's content.
    fn write(&self, path: impl AsPath, data: &[u8]) -> Result<()>;
    /// Calls `f` for each entry behind `cookie` until it returns false.
    fn read_dir(&self, path: impl AsPath, cookie: u64, f: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
    /// getxattr(2).
    fn getxattr(&self, path: impl AsPath, name: &[u8]) -> Result<Vec<u8>>;
    /// setxattr(2) with `XATTR_CREATE` or `XATTR_REPLACE`.
    fn setxattr(&self, path: impl AsPath, name: &[u8], value: &[u8], flags: i32) -> Result<()>;
    /// listxattr(2).
    fn listxattr(&self, path: impl AsPath) -> Result<Vec<Vec<u8>>>;
    /// removexattr(2).
    fn removexattr(&self, path: impl AsPath, name: &[u8]) -> Result<()>;
    /// statfs(2).
    fn statfs(&self) -> Result<StatFs>;
}
