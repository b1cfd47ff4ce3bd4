//! Whole files by path.

use super::{AsPath, Fs};
use crate::error::{Error, Result};
use crate::{OpenOptions, SetAttr};
use lanefs_format::MAX_FILE_SIZE;

impl Fs {
    /// Reads a whole file, as it is while it is read. Errors: those of [`Fs::open`] and
    /// [`crate::File::read_at`].
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let file = self.open(path, &OpenOptions::new())?;
        let mut all = Vec::new();
        file.read_to_end_at(&mut all, 0)?;
        Ok(all)
    }

    /// Reads a whole file of text. [`Error::NotUtf8`]: it is none. Other errors as [`Fs::read`].
    pub fn read_to_string(&self, path: impl AsPath) -> Result<String> {
        String::from_utf8(self.read(path)?).map_err(|_| Error::NotUtf8)
    }

    /// Replaces a file's content, making it if need be. Not atomic across a crash: for that write
    /// another file, sync it and rename. Errors: those of [`Fs::open`] and
    /// [`crate::File::write_all_at`].
    pub fn write(&self, path: impl AsPath, data: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_all_at(data.as_ref(), 0)
    }

    /// Copies content and permission bits of a regular file to another, which is made or replaced;
    /// returns the bytes copied. Follows symbolic links. Not atomic across a crash: each page, the
    /// size and the mode are found as in [content and attributes](crate#content-and-attributes).
    ///
    /// # Errors
    /// EINVAL: `from` is no regular file, or both are the same one, which is left alone. Else those
    /// of [`Fs::open`], [`crate::File::copy_range_to`] and, for the bits, [`Fs::chmod`].
    pub fn copy(&self, from: impl AsPath, to: impl AsPath) -> Result<u64> {
        let reader = self.open(from, &OpenOptions::new())?;
        let stat = reader.stat()?;
        if !stat.kind.is_file() {
            return Err(Error::Posix(libc::EINVAL));
        }
        let writer = self.open(to, OpenOptions::new().write(true).create(true).mode(stat.mode & 0o7777))?;
        if writer.ino() == reader.ino() {
            return Err(Error::Posix(libc::EINVAL));
        }
        writer.set_len(0)?;
        let mut done = 0;
        loop {
            match reader.copy_range_to(done, &writer, done, u64::MAX - done)? {
                0 => break,
                n => done += n,
            }
        }
        debug_assert!(done <= MAX_FILE_SIZE, "{done} bytes were copied");
        writer.set_attr(&self.cred, &SetAttr { mode: Some(stat.mode), ..SetAttr::default() })?;
        Ok(done)
    }
}
