//! New image files.
//!
//! An image gets its name when the volume is on it ([`NewImage`]): until then it is a file without
//! a name, which goes with the process that makes it. So whoever is killed meanwhile leaves no file
//! behind that looks like an image and holds no volume. Where the file system under it has no such
//! files, or the process does not see itself in /proc, the file has its name from the start.

use super::file::{FileDevice, FileOptions, cannot_be_made, may_be_written_to};
use crate::error::{Result, StoreError};
use lanefs_format::BLOCK_SIZE;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Permissions of a new image: its owner's alone.
const MODE: u32 = 0o600;

impl FileDevice {
    /// Makes a sparse image file of `size` bytes and opens it.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<FileDevice> {
        let path = path.as_ref();
        check_size(path, size)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(path, flags, Mode::from_raw_mode(MODE)).map_err(|e| cannot_be_there(path, e))?;
        let done = set_size(&fd, path, size).and_then(|()| make_name_durable(&fd, path));
        drop(fd);
        done.and_then(|()| FileDevice::open_with(path, FileOptions::default())).inspect_err(|_| {
            // Best effort: the file is of no use to anybody.
            let _ = rustix::fs::unlink(path);
        })
    }
}

/// An image file on which a volume is being made: see the head of this file. Dropped before
/// [`NewImage::give_names`] it is gone.
#[derive(Debug)]
pub struct NewImage {
    device: Arc<FileDevice>,
    path: PathBuf,
    /// The file, where it has no name.
    unnamed: Option<OwnedFd>,
    /// It has its name, and is not to keep it.
    is_named: bool,
}

impl NewImage {
    /// Makes a sparse file of `size` bytes that is to become `path`, which must not exist, and
    /// opens it.
    pub fn new(path: impl AsRef<Path>, size: u64) -> Result<NewImage> {
        let path = path.as_ref();
        check_size(path, size)?;
        if path.symlink_metadata().is_ok() {
            return Err(cannot_be_there(path, Errno::EXIST));
        }
        if let Some((device, file)) = without_name(path, size)? {
            let (device, unnamed) = (Arc::new(device), Some(file));
            return Ok(NewImage { device, path: path.into(), unnamed, is_named: false });
        }
        let device = Arc::new(FileDevice::create(path, size)?);
        Ok(NewImage { device, path: path.into(), unnamed: None, is_named: true })
    }

    /// Returns the open image.
    pub fn device(&self) -> Arc<FileDevice> {
        debug_assert!(!self.is_named || self.unnamed.is_none(), "{} is done", self.path.display());
        self.device.clone()
    }

    /// Gives all of them their names, durably, and keeps them; none of them where that fails for
    /// one. A crash meanwhile may leave some.
    pub fn give_names(mut images: Vec<NewImage>) -> Result<()> {
        // The first one of a volume tells of the others: it comes last.
        for image in images.iter_mut().rev() {
            let Some(file) = &image.unnamed else { continue };
            debug_assert!(!image.is_named, "{} has its name, and none", image.path.display());
            rustix::fs::linkat(CWD, by_descriptor(file), CWD, &image.path, AtFlags::SYMLINK_FOLLOW)
                .map_err(|e| cannot_be_there(&image.path, e))?;
            image.is_named = true;
            make_name_durable(file, &image.path)?;
        }
        images.iter_mut().for_each(|image| image.is_named = false);
        Ok(())
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if self.is_named {
            // Best effort: the error that led here is the caller's.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Makes and opens a file without a name beside what `path` will be; `None` where that cannot be.
fn without_name(path: &Path, size: u64) -> Result<Option<(FileDevice, OwnedFd)>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(directory(path), flags, Mode::from_raw_mode(MODE)) else {
        return Ok(None); // What is wrong, if anything is, the one with a name says.
    };
    let by = by_descriptor(&file);
    if rustix::fs::stat(&by).is_err() {
        return Ok(None);
    }
    set_size(&file, path, size)?;
    debug_assert!(rustix::fs::fstat(&file).is_ok_and(|s| s.st_nlink == 0), "{} has a name", by.display());
    let device = FileDevice::open_as(&by, path.display().to_string(), FileOptions::default())?;
    Ok(Some((device, file)))
}

fn by_descriptor(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn check_size(path: &Path, size: u64) -> Result<()> {
    let name = path.display();
    if size == 0 || !size.is_multiple_of(BLOCK_SIZE as u64) || size > i64::MAX as u64 {
        return Err(StoreError::Invalid(format!(
            "{name}: an image of {size} bytes is not possible; give a multiple of {BLOCK_SIZE} below 8 EiB"
        )));
    }
    may_be_written_to(&name.to_string(), size)
}

fn set_size(file: &OwnedFd, path: &Path, size: u64) -> Result<()> {
    debug_assert!(size > 0, "an image of no bytes");
    rustix::fs::ftruncate(file, size).map_err(|e| not_made(path, e, cannot_be_made(size, e)))
}

/// Makes a file's name durable: else it is gone after a crash, whatever is synced into it.
fn make_name_durable(file: &OwnedFd, path: &Path) -> Result<()> {
    debug_assert!(path.symlink_metadata().is_ok(), "{} has no name", path.display());
    let synced = rustix::fs::fsync(file).and_then(|()| {
        let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::fsync(rustix::fs::open(directory(path), open, Mode::empty())?)
    });
    match synced {
        // Some file systems cannot sync a directory, and some directories may be written and not
        // read.
        Ok(()) | Err(Errno::INVAL | Errno::ACCESS | Errno::NOTSUP) => Ok(()),
        Err(e) => Err(not_made(path, e, format!("its name cannot be made durable: {e}"))),
    }
}

fn cannot_be_there(path: &Path, e: Errno) -> StoreError {
    let why = match e {
        Errno::EXIST => "exists already; remove it first, or format it as it is".into(),
        Errno::NOENT => "its directory does not exist; make it first".into(),
        e => format!("cannot be created: {e}"),
    };
    not_made(path, e, why)
}

fn not_made(path: &Path, e: Errno, why: String) -> StoreError {
    debug_assert!(!why.is_empty(), "{}: {e}, and no reason", path.display());
    StoreError::NotOpened { device: path.display().to_string(), why, errno: e.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::NewImage;
    use crate::Store;
    use crate::device::{Device, FileDevice};
    use std::path::Path;
    use std::sync::Arc;

    fn names(dir: &Path) -> Vec<String> {
        let all = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut all: Vec<_> = all.collect();
        all.sort();
        all
    }

    #[test]
    fn an_image_has_a_name_when_it_holds_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: &str| dir.path().join(n);
        let made: Vec<_> = ["a", "b"].iter().map(|n| NewImage::new(path(n), 32 << 20).unwrap()).collect();
        assert_eq!(names(dir.path()), [""; 0], "whoever dies now leaves nothing");
        let devices: Vec<Arc<dyn Device>> = made.iter().map(|n| n.device() as _).collect();
        assert!(devices[0].name().ends_with("/a"), "{}", devices[0].name());
        Store::format(&devices, &crate::FormatOptions::default()).unwrap();
        drop(devices);
        NewImage::give_names(made).unwrap();
        assert_eq!(names(dir.path()), ["a", "b"]);
        let open = |n: &str| Arc::new(FileDevice::open(path(n), false).unwrap()) as Arc<dyn Device>;
        drop(Store::open(vec![open("a"), open("b")], &crate::OpenOptions::default()).unwrap());
        // One of two cannot have its name: neither has.
        let two =
            vec![NewImage::new(path("c"), 1 << 20).unwrap(), NewImage::new(path("d"), 1 << 20).unwrap()];
        std::fs::write(path("c"), b"another's").unwrap();
        assert_eq!(NewImage::give_names(two).unwrap_err().errno(), libc::EEXIST);
        assert_eq!(names(dir.path()), ["a", "b", "c"]);
        assert_eq!(std::fs::read(path("c")).unwrap(), b"another's");
        assert_eq!(NewImage::new(path("c"), 1 << 20).unwrap_err().errno(), libc::EEXIST);
        assert_eq!(NewImage::new(path("x/y"), 1 << 20).unwrap_err().errno(), libc::ENOENT);
    }
}
