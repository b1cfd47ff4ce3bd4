//! What a measurement works on: the library, or a folder of a mounted volume.

use crate::process::Failure;
use lanefs::Fs;
use std::path::PathBuf;

/// Where files are made.
pub enum Target {
    Library(Fs),
    Mount(PathBuf),
}

use Target::{Library, Mount};

impl Target {
    pub fn mkdir(&self, path: &str) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.mkdir(path, 0o755)?,
            Mount(dir) => std::fs::create_dir(dir.join(path))?,
        }
        Ok(())
    }
    pub fn rmdir(&self, path: &str) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.rmdir(path)?,
            Mount(dir) => std::fs::remove_dir(dir.join(path))?,
        }
        Ok(())
    }
    pub fn write(&self, path: &str, data: &[u8]) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.write(path, data)?,
            Mount(dir) => std::fs::write(dir.join(path), data)?,
        }
        Ok(())
    }
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        Ok(match self {
            Library(fs) => fs.read(path)?,
            Mount(dir) => std::fs::read(dir.join(path))?,
        })
    }
    pub fn stat(&self, path: &str) -> Result<(), Failure> {
        match self {
            Library(fs) => drop(fs.stat(path)?),
            Mount(dir) => {
                let _ = std::fs::metadata(dir.join(path))?;
            }
        }
        Ok(())
    }
    pub fn link(&self, old: &str, new: &str) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.link(old, new)?,
            Mount(dir) => std::fs::hard_link(dir.join(old), dir.join(new))?,
        }
        Ok(())
    }
    pub fn rename(&self, old: &str, new: &str) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.rename(old, new)?,
            Mount(dir) => std::fs::rename(dir.join(old), dir.join(new))?,
        }
        Ok(())
    }
    pub fn unlink(&self, path: &str) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.unlink(path)?,
            Mount(dir) => std::fs::remove_file(dir.join(path))?,
        }
        Ok(())
    }
    /// How many names a directory holds, `.` and `..` not counted.
    pub fn list(&self, path: &str) -> Result<u64, Failure> {
        match self {
            Library(fs) => {
                let mut seen = 0;
                fs.read_dir_from(path, 0, &mut |e| {
                    seen += u64::from(e.name != b"." && e.name != b"..");
                    true
                })?;
                Ok(seen)
            }
            Mount(dir) => std::fs::read_dir(dir.join(path))?.try_fold(0, |n, e| Ok(e.map(|_| n + 1)?)),
        }
    }
    pub fn sync(&self) -> Result<(), Failure> {
        match self {
            Library(fs) => fs.volume().sync()?,
            Mount(dir) => rustix::fs::syncfs(std::fs::File::open(dir)?)?,
        }
        Ok(())
    }
}
