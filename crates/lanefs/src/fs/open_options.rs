//! The options of opening a file.

use crate::ops::open;

/// The options of opening a file; like `std::fs::OpenOptions`, with the flags POSIX adds.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Flags of `open(2)`. `O_ACCMODE` in place of an access mode: none was chosen, the file is
    /// opened for reading.
    pub flags: i32,
    /// Permission bits of a file that is made (the umask is the caller's business).
    pub mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Chooses nothing: opens an existing file for reading.
    pub fn new() -> OpenOptions {
        OpenOptions { flags: libc::O_ACCMODE, mode: 0o666 }
    }

    /// Returns the flags that `open(2)` would be given.
    pub(super) fn chosen(&self) -> i32 {
        let flags = match self.flags & libc::O_ACCMODE {
            libc::O_ACCMODE => self.flags & !libc::O_ACCMODE | libc::O_RDONLY,
            _ => self.flags,
        };
        debug_assert_ne!(flags & libc::O_ACCMODE, libc::O_ACCMODE, "no access mode is left");
        open::counting(flags)
    }

    /// Sets the access mode.
    fn access(&mut self, read: bool, write: bool) -> &mut Self {
        let m = match (read, write) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            (true, false) => libc::O_RDONLY,
            (false, false) => libc::O_ACCMODE,
        };
        self.flags = self.flags & !libc::O_ACCMODE | m;
        debug_assert_eq!((self.has_read(), self.has_write()), (read, write), "{:o}", self.flags);
        self
    }

    /// Returns whether reading was chosen.
    fn has_read(&self) -> bool {
        matches!(self.flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
    }

    /// Returns whether writing was chosen.
    fn has_write(&self) -> bool {
        matches!(self.flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    }

    /// Sets a flag, or takes it off.
    fn flag(&mut self, flag: i32, on: bool) -> &mut Self {
        if on {
            self.flags |= flag
        } else {
            self.flags &= !flag
        }
        self
    }

    /// Allows reading.
    pub fn read(&mut self, on: bool) -> &mut Self {
        let w = self.has_write();
        self.access(on, w)
    }
    /// Allows writing.
    pub fn write(&mut self, on: bool) -> &mut Self {
        let r = self.has_read();
        self.access(r, on)
    }
    /// Has every write go to the end. Allows writing.
    pub fn append(&mut self, on: bool) -> &mut Self {
        if on {
            self.write(true);
        }
        self.flag(libc::O_APPEND, on)
    }
    /// Empties the file when it is opened; asks for the permission to write it.
    pub fn truncate(&mut self, on: bool) -> &mut Self {
        self.flag(libc::O_TRUNC, on)
    }
    /// Makes the file if it does not exist.
    pub fn create(&mut self, on: bool) -> &mut Self {
        self.flag(libc::O_CREAT, on)
    }
    /// Makes the file; EEXIST if it exists. Switched off again, the file is still made if it does
    /// not exist.
    pub fn create_new(&mut self, on: bool) -> &mut Self {
        if on {
            self.flags |= libc::O_CREAT;
        }
        self.flag(libc::O_EXCL, on)
    }
    /// Sets the permission bits of a new file. Default 0666.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }
    /// Adds further flags of `open(2)`: O_TMPFILE, O_SYNC, O_DSYNC, O_NOFOLLOW, O_DIRECTORY,
    /// O_DIRECT, O_NOATIME, O_PATH. With O_PATH the file is opened to be looked at, whatever its
    /// kind and its mode, and other flags than O_DIRECTORY and O_NOFOLLOW do not count.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.flags |= flags;
        self
    }
}
