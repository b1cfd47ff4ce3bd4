//! Open directories: paths that begin in one, and its entries.

use super::{AsPath, gone};
use crate::error::{Result, posix};
use crate::{File, FileKind, Fs, Ino, Metadata, OpenOptions, Volume};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// An open directory, from [`Fs::open_dir`]. Relative paths given to it begin there, wherever it is
/// moved meanwhile; nothing has to be looked up on the way to it. Once it is removed they are
/// ENOENT.
///
/// It is no cage: as with `openat(2)`, an absolute path begins at the volume's root, and `..` and
/// symbolic links lead out.
///
/// The calls here are those of [`Fs`] by the same name, with their errors and promises;
/// [`Dir::fs`] has all of them.
#[derive(Clone, Debug)]
pub struct Dir {
    fs: Fs,
    file: Arc<File>,
}

impl Dir {
    /// Makes one of a view and an open directory, however that was opened: with O_PATH it needs not
    /// be readable, as one that is opened for `openat(2)` alone.
    ///
    /// # Errors
    /// ENOTDIR: another kind of file. EXDEV: it is of another volume than the view.
    pub fn of(fs: &Fs, file: Arc<File>) -> Result<Dir> {
        if file.inode().dir().is_none() {
            return posix(libc::ENOTDIR);
        }
        debug_assert_eq!(file.inode().kind, FileKind::Dir, "inode {} has entries", file.ino());
        if !file.is_of(&fs.volume().0.persist) {
            return posix(libc::EXDEV);
        }
        Ok(Dir::new(fs, file))
    }

    /// Has the paths of a view begin in an open directory.
    pub(crate) fn new(fs: &Fs, file: impl Into<Arc<File>>) -> Dir {
        let file = file.into();
        debug_assert!(file.inode().dir().is_some(), "inode {} was opened as a directory", file.ino());
        Dir { fs: fs.starting_at(file.clone()), file }
    }

    /// Returns the volume as it is seen from here: relative paths begin in this directory.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Returns the directory as an open file: for attributes, and for its inode number.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the attributes of the directory itself. EIO once the volume is closed.
    pub fn dir_metadata(&self) -> Result<Metadata> {
        self.file.metadata()
    }

    /// Makes its entries durable, and what their names need ([names](crate#names)). Errors as
    /// [`File::sync_all`].
    pub fn sync_all(&self) -> Result<()> {
        self.file.sync_all()
    }

    /// Lists its entries, without `.` and `..`. Errors: those of [every
    /// call](crate::error#every-call).
    pub fn entries(&self) -> Result<ReadDir> {
        self.fs.read_dir(".")
    }

    /// Opens or makes a file below it: [`Fs::open`].
    pub fn open_file(&self, path: impl AsPath, options: &OpenOptions) -> Result<File> {
        self.fs.open(path, options)
    }

    /// Opens a directory below it: [`Fs::open_dir`].
    pub fn open_dir(&self, path: impl AsPath) -> Result<Dir> {
        self.fs.open_dir(path)
    }

    /// Makes a directory below it: [`Fs::create_dir`].
    pub fn create_dir(&self, path: impl AsPath) -> Result<()> {
        self.fs.create_dir(path)
    }

    /// Returns the attributes of something below it: [`Fs::metadata`].
    pub fn metadata(&self, path: impl AsPath) -> Result<Metadata> {
        self.fs.metadata(path)
    }

    /// Returns whether something below it exists: [`Fs::exists`].
    pub fn exists(&self, path: impl AsPath) -> Result<bool> {
        self.fs.exists(path)
    }

    /// Lists a directory below it: [`Fs::read_dir`].
    pub fn read_dir(&self, path: impl AsPath) -> Result<ReadDir> {
        self.fs.read_dir(path)
    }

    /// Reads a whole file below it: [`Fs::read`].
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        self.fs.read(path)
    }

    /// Replaces the content of a file below it: [`Fs::write`].
    pub fn write(&self, path: impl AsPath, data: impl AsRef<[u8]>) -> Result<()> {
        self.fs.write(path, data)
    }

    /// Removes a name of a file below it: [`Fs::remove_file`].
    pub fn remove_file(&self, path: impl AsPath) -> Result<()> {
        self.fs.remove_file(path)
    }

    /// Removes an empty directory below it: [`Fs::remove_dir`].
    pub fn remove_dir(&self, path: impl AsPath) -> Result<()> {
        self.fs.remove_dir(path)
    }

    /// Removes a directory below it with all that is in it: [`Fs::remove_dir_all`].
    pub fn remove_dir_all(&self, path: impl AsPath) -> Result<()> {
        self.fs.remove_dir_all(path)
    }

    /// Renames something below it to a name below `to`: `renameat(2)`. After a crash as
    /// [`Fs::rename`].
    ///
    /// # Errors
    /// EXDEV: `to` is a directory of another volume. Else those of [`Fs::rename`].
    pub fn rename(&self, old: impl AsPath, to: &Dir, new: impl AsPath) -> Result<()> {
        self.fs.rename_to(old.as_path(), &to.fs, new.as_path())
    }
}

/// The entries of a directory, from [`Fs::read_dir`], without `.` and `..` and in no order that
/// means anything. An entry that is there throughout is listed once; one that comes or goes
/// meanwhile may be listed.
///
/// Each may be an error: those of [every call](crate::error#every-call). After one there are no
/// more. A directory that was removed meanwhile has no entries.
#[derive(Debug)]
pub struct ReadDir {
    listing: Arc<Listing>,
    /// Entries that were brought and not given out.
    batch: VecDeque<Entry>,
    /// The cookie behind which the next batch begins; `None` behind the last.
    next: Option<u64>,
}

/// The part that the entries of one listing have in common.
#[derive(Debug)]
struct Listing {
    fs: Fs,
    dir: File,
    path: Vec<u8>,
}

/// An entry as it was listed.
#[derive(Debug)]
struct Entry {
    name: Box<[u8]>,
    kind: FileKind,
    ino: Ino,
}

/// The number of entries that are brought at once, under one guard.
const BATCH: usize = 128;

impl ReadDir {
    /// Begins to list an open directory.
    pub(crate) fn new(fs: &Fs, dir: File, path: &[u8]) -> ReadDir {
        debug_assert!(dir.inode().dir().is_some(), "inode {} was opened as a directory", dir.ino());
        let listing = Listing { fs: fs.clone(), dir, path: path.into() };
        ReadDir { listing: Arc::new(listing), batch: VecDeque::new(), next: Some(0) }
    }

    /// Returns the directory that is listed.
    pub(crate) fn dir(&self) -> &File {
        &self.listing.dir
    }

    /// Brings the entries behind a cookie.
    fn bring(&mut self, from: u64) -> Result<()> {
        debug_assert!(self.batch.is_empty(), "entries would come out of order");
        let (mut last, mut more) = (from, false);
        let batch = &mut self.batch;
        let volume: &Volume = self.listing.fs.volume();
        volume.node_readdir(self.listing.dir.ino(), from, &mut |e| {
            debug_assert!(e.cookie > last, "an entry of cookie {} comes behind {last}", e.cookie);
            last = e.cookie;
            if e.name != b"." && e.name != b".." {
                batch.push_back(Entry { name: e.name.into(), kind: e.kind, ino: e.ino });
            }
            more = batch.len() >= BATCH;
            !more
        })?;
        debug_assert_eq!(more, self.batch.len() == BATCH, "{} entries", self.batch.len());
        self.next = more.then_some(last);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        loop {
            if let Some(entry) = self.batch.pop_front() {
                return Some(Ok(DirEntry { listing: self.listing.clone(), entry }));
            }
            let from = self.next.take()?;
            if let Err(e) = self.bring(from) {
                return Some(Err(gone(e)));
            }
        }
    }
}

/// One entry of a directory, from [`ReadDir`].
#[derive(Debug)]
pub struct DirEntry {
    listing: Arc<Listing>,
    entry: Entry,
}

impl DirEntry {
    /// Returns its name.
    pub fn file_name(&self) -> OsString {
        self.name().into()
    }

    /// Returns its name, borrowed.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.entry.name)
    }

    /// Returns the path that was listed, and the name behind it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.listing.path.clone())).join(self.name())
    }

    /// Returns the kind of file, as the directory has it: nothing is looked up.
    pub fn file_type(&self) -> FileKind {
        self.entry.kind
    }

    /// Returns its inode number.
    pub fn ino(&self) -> Ino {
        self.entry.ino
    }

    /// Returns the attributes of what the name names now; a symbolic link is not followed.
    ///
    /// # Errors
    /// ENOENT: the name is gone. EACCES: the directory may not be searched.
    pub fn metadata(&self) -> Result<Metadata> {
        let Listing { fs, dir, .. } = &*self.listing;
        let stat = fs.volume().node_lookup(fs.cred(), dir.ino(), &self.entry.name);
        stat.map(Metadata::from).map_err(gone)
    }
}
