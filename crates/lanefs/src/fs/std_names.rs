//! Names as `std::fs` calls what is done with them. Modes of what is made are 0777 and 0666, less
//! the umask of [`Fs::with_umask`].

use super::dir::{Dir, ReadDir};
use super::{AsPath, Fs, gone};
use crate::error::{Result, posix};
use crate::{File, FileKind, Metadata, OpenOptions, Permissions};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The flags with which a directory is opened: never through a symbolic link in the last component.
const NO_LINK: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW;

impl Fs {
    /// Returns the attributes of a file; follows symbolic links. Errors: those of
    /// [paths](crate::error#paths).
    pub fn metadata(&self, path: impl AsPath) -> Result<Metadata> {
        self.stat(path).map(Metadata::from)
    }

    /// Returns the attributes of a file; does not follow a symbolic link at the end. Errors: those
    /// of [paths](crate::error#paths).
    pub fn symlink_metadata(&self, path: impl AsPath) -> Result<Metadata> {
        self.lstat(path).map(Metadata::from)
    }

    /// Returns whether a path names something, through symbolic links. Errors: those of
    /// [paths](crate::error#paths), without ENOENT.
    pub fn exists(&self, path: impl AsPath) -> Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(e) if e.errno() == libc::ENOENT => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sets the permission bits. Errors and crash as [`Fs::chmod`].
    pub fn set_permissions(&self, path: impl AsPath, permissions: Permissions) -> Result<()> {
        self.chmod(path, permissions.mode())
    }

    /// Opens a directory, so that paths can begin there.
    ///
    /// # Errors
    /// ENOTDIR: it is none. EACCES: it may not be read.
    pub fn open_dir(&self, path: impl AsPath) -> Result<Dir> {
        Ok(Dir::new(self, self.open(path, OpenOptions::new().custom_flags(libc::O_DIRECTORY))?))
    }

    /// Lists the entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    /// ENOTDIR: not a directory. EACCES: it may not be read.
    pub fn read_dir(&self, path: impl AsPath) -> Result<ReadDir> {
        let path = path.as_path();
        let dir = self.open(path, OpenOptions::new().custom_flags(libc::O_DIRECTORY))?;
        Ok(ReadDir::new(self, dir, path))
    }

    /// Makes a directory. Errors and crash as [`Fs::mkdir`].
    pub fn create_dir(&self, path: impl AsPath) -> Result<()> {
        self.mkdir(path, 0o777)
    }

    /// Makes a directory and all that are missing above it; one that is there is no error. Crash as
    /// [`Fs::mkdir_all`].
    ///
    /// # Errors
    /// Those of [`Fs::mkdir`]; EEXIST only if what is there is no directory.
    pub fn create_dir_all(&self, path: impl AsPath) -> Result<()> {
        match path.as_path() {
            // As `std::fs`: the directory in which a path begins is there.
            b"" => Ok(()),
            path => self.make_all(path, 0o777, libc::EEXIST),
        }
    }

    /// Removes a name of a file; does not follow a symbolic link. Errors and crash as
    /// [`Fs::unlink`].
    pub fn remove_file(&self, path: impl AsPath) -> Result<()> {
        self.unlink(path)
    }

    /// Removes an empty directory. Errors and crash as [`Fs::rmdir`].
    pub fn remove_dir(&self, path: impl AsPath) -> Result<()> {
        self.rmdir(path)
    }

    /// Gives a file another name; does not follow a symbolic link at `old`. Errors and crash as
    /// [`Fs::link`].
    pub fn hard_link(&self, old: impl AsPath, new: impl AsPath) -> Result<()> {
        self.link(old, new)
    }

    /// Returns a symbolic link's target. Errors as [`Fs::readlink`].
    pub fn read_link(&self, path: impl AsPath) -> Result<PathBuf> {
        Ok(PathBuf::from(OsString::from_vec(self.readlink(path)?)))
    }

    /// Removes a directory with all that is in it, from the leaves up. A symbolic link is removed
    /// and not followed, at the end of the path and below. What others remove meanwhile is no
    /// error.
    ///
    /// Each removal is an operation of its own: after an error or a crash a part may be gone, and
    /// what is left is a whole tree.
    ///
    /// # Errors
    /// - ENOTDIR: the path names what is neither directory nor symbolic link.
    /// - EACCES: a directory may not be read or searched. And those of [removed
    ///   names](crate::error#removed-names).
    /// - ENOTEMPTY: others made something in it meanwhile. EBUSY: the root, which is empty then.
    pub fn remove_dir_all(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path();
        if self.lstat(path)?.kind.is_symlink() {
            return self.unlink(path);
        }
        let top = self.open(path, OpenOptions::new().custom_flags(NO_LINK))?;
        // A stack of its own: trees may be deeper than that of a thread.
        let mut open = vec![(Vec::new(), ReadDir::new(self, top, b""))];
        loop {
            debug_assert!(open.iter().skip(1).all(|(name, _)| !name.is_empty()), "a level without a name");
            let Some((_, level)) = open.last_mut() else { return self.rmdir(path) };
            let Some(entry) = level.next().transpose()? else {
                let name = open.pop().map(|(name, _)| name).unwrap_or_default();
                if let Some((_, above)) = open.last() {
                    unless_gone(self.volume.node_rmdir(&self.cred, above.dir().ino(), &name))?;
                }
                continue;
            };
            let (parent, name) = (level.dir().ino(), entry.file_name().into_vec());
            debug_assert!(name != b"." && name != b"..", "a listing leaves the dots out");
            if entry.file_type().is_dir() {
                match self.open_child(level.dir(), &name) {
                    Ok(dir) => {
                        open.push((name, ReadDir::new(self, dir, b"")));
                        continue;
                    }
                    // Another file took its name.
                    Err(e) if e.errno() == libc::ENOTDIR => {}
                    Err(e) => {
                        unless_gone(Err(e))?;
                        continue;
                    }
                }
            }
            unless_gone(self.volume.node_unlink(&self.cred, parent, &name))?;
        }
    }

    /// Opens a directory by its name in another one.
    fn open_child(&self, parent: &File, name: &[u8]) -> Result<File> {
        let found = self.volume.node_lookup(&self.cred, parent.ino(), name).map_err(gone)?;
        if found.kind != FileKind::Dir {
            return posix(libc::ENOTDIR);
        }
        self.volume.node_open(&self.cred, found.ino, NO_LINK).map_err(gone)
    }
}

/// Takes for success that others have removed what was to be removed.
fn unless_gone(r: Result<()>) -> Result<()> {
    match r {
        Err(e) if matches!(e.errno(), libc::ENOENT | libc::ESTALE) => Ok(()),
        r => r,
    }
}
