//! A directory of a mounted file system: system calls, relative to a directory descriptor.

use super::{Target, TargetFile, flags};
use crate::cost::Traffic;
use crate::error::{Context, Failure, Op, Res};
use crate::name::Name;
use crate::processors::Helpers;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The type of FUSE file systems in statfs(2).
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// A directory of a mounted file system.
pub struct DirTarget {
    path: PathBuf,
    direct: bool,
    /// The cell's own directory, below `path`; open between `enter` and `leave`.
    cell: Option<(PathBuf, OwnedFd)>,
    prefix: Name,
}

/// A file of a mounted file system.
pub struct DirFile(OwnedFd);

/// The number of cell directories made, which makes their names unique within the process. Added to
/// by who enters a cell. Relaxed: only its value counts.
static CELLS: AtomicU64 = AtomicU64::new(0);

impl DirTarget {
    /// Makes the target of the file system mounted at, or below, `path`; `direct` opens data files
    /// with O_DIRECT.
    pub fn new(path: &Path, direct: bool) -> Res<DirTarget> {
        if !path.is_dir() {
            return Err(Failure::new(format!("{} is not a directory", path.display())));
        }
        Ok(DirTarget { path: path.to_path_buf(), direct, cell: None, prefix: Name::new("") })
    }

    /// Returns the directory that cells are made in.
    pub fn root(&self) -> &Path {
        &self.path
    }

    /// Returns the cell's directory.
    fn at(&self) -> Op<&OwnedFd> {
        // Between `leave` and `enter` there is no directory: ESTALE, never a panic.
        self.cell.as_ref().map(|(_, fd)| fd).ok_or(crate::Errno(libc::ESTALE))
    }
}

impl TargetFile for DirFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Op<usize> {
        Ok(rustix::io::pread(&self.0, buf, offset)?)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Op<usize> {
        Ok(rustix::io::pwrite(&self.0, buf, offset)?)
    }
    fn write(&self, buf: &[u8]) -> Op<usize> {
        Ok(rustix::io::write(&self.0, buf)?)
    }
    fn rewind(&self) -> Op<()> {
        rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Start(0))?;
        Ok(())
    }
    fn size(&self) -> Op<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_size as u64)
    }
    fn set_len(&self, size: u64) -> Op<()> {
        Ok(rustix::fs::ftruncate(&self.0, size)?)
    }
    fn sync(&self) -> Op<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }
    fn sync_data(&self) -> Op<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }
    fn set_life(&self, is_short: bool) -> Op<()> {
        // Neither is in `libc`: F_SET_RW_HINT, and RWH_WRITE_LIFE_SHORT and RWH_WRITE_LIFE_EXTREME.
        const SET_HINT: i32 = 1036;
        let life: u64 = if is_short { 2 } else { 5 };
        // SAFETY: the command reads a u64, which lives for the call.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), SET_HINT, &raw const life) } {
            -1 => Err(crate::Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))),
            _ => Ok(()),
        }
    }
}

impl Target for DirTarget {
    type File = DirFile;

    fn prefix(&self) -> &Name {
        &self.prefix
    }

    #[inline]
    fn open(&self, path: &Name, flags: i32) -> Op<DirFile> {
        let mut how = OFlags::from_bits_retain((flags & !flags::DATA) as u32) | OFlags::CLOEXEC;
        if flags & flags::DATA != 0 && self.direct {
            how |= OFlags::DIRECT;
        }
        Ok(DirFile(rustix::fs::openat(self.at()?, path.cstr(), how, Mode::from_raw_mode(0o644))?))
    }

    #[inline]
    fn stat(&self, path: &Name) -> Op<u64> {
        Ok(rustix::fs::statat(self.at()?, path.cstr(), AtFlags::empty())?.st_size as u64)
    }

    fn mkdir(&self, path: &Name) -> Op<()> {
        Ok(rustix::fs::mkdirat(self.at()?, path.cstr(), Mode::from_raw_mode(0o755))?)
    }

    #[inline]
    fn unlink(&self, path: &Name) -> Op<()> {
        Ok(rustix::fs::unlinkat(self.at()?, path.cstr(), AtFlags::empty())?)
    }

    fn rmdir(&self, path: &Name) -> Op<()> {
        Ok(rustix::fs::unlinkat(self.at()?, path.cstr(), AtFlags::REMOVEDIR)?)
    }

    #[inline]
    fn rename(&self, old: &Name, new: &Name) -> Op<()> {
        let at = self.at()?;
        Ok(rustix::fs::renameat(at, old.cstr(), at, new.cstr())?)
    }

    fn read_dir(&self, path: &Name, mut f: impl FnMut(&[u8], bool)) -> Op<u64> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.is_empty() { c"." } else { path.cstr() };
        let fd = rustix::fs::openat(self.at()?, path, how, Mode::empty())?;
        // 32 KiB is what glibc's readdir asks for.
        let mut buf = [MaybeUninit::<u8>::uninit(); 32 << 10];
        let mut entries = RawDir::new(&fd, &mut buf);
        let mut seen = 0;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                f(name, entry.file_type() == FileType::Directory);
                seen += 1;
            }
        }
        Ok(seen)
    }

    fn sync_dir(&self, path: &Name) -> Op<()> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.at()?, path.cstr(), how, Mode::empty())?;
        Ok(rustix::fs::fsync(fd)?)
    }

    fn statfs(&self) -> Op<u64> {
        // What others keep back root may use; a FUSE file system keeps it from everybody.
        let free = rustix::fs::fstatvfs(self.at()?)?;
        let is_fuse = rustix::fs::fstatfs(self.at()?)?.f_type == FUSE_MAGIC;
        Ok(if is_fuse { free.f_bavail } else { free.f_bfree })
    }

    fn set_times_now(&self, path: &Name) -> Op<()> {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::utimensat(self.at()?, path.cstr(), &times, AtFlags::empty())?)
    }

    fn traffic(&self) -> Option<Traffic> {
        None
    }

    fn processes(&self) -> bool {
        true
    }

    fn place(&self) -> Option<PathBuf> {
        self.cell.as_ref().map(|(path, _)| path.clone())
    }

    fn quiesce(&self) -> Res<()> {
        rustix::fs::syncfs(self.at().at("the cell's directory")?).at("syncfs")
    }

    fn helpers(&self) -> Helpers {
        Helpers::of_mount(&self.path)
    }

    fn enter(&mut self) -> Res<()> {
        debug_assert!(self.cell.is_none(), "one cell at a time");
        let n = CELLS.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("lanefs-bench.{}.{n}", std::process::id()));
        std::fs::create_dir(&path).at(format!("mkdir {}", path.display()))?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, how, Mode::empty()) {
            Ok(fd) => {
                let synced = rustix::fs::syncfs(&fd).at(format!("syncfs {}", path.display()));
                debug_assert!(self.prefix.is_empty(), "paths are relative to the cell's directory");
                self.cell = Some((path, fd));
                if synced.is_err() {
                    let _ = self.leave();
                }
                synced
            }
            Err(e) => {
                let _ = std::fs::remove_dir(&path);
                Err(Failure::new(format!("open {}: {e}", path.display())))
            }
        }
    }

    fn leave(&mut self) -> Res<()> {
        match self.cell.take() {
            Some((path, _)) => std::fs::remove_dir_all(&path).at(format!("removing {}", path.display())),
            None => Ok(()),
        }
    }
}

impl Drop for DirTarget {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}
