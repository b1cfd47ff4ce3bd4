//! An open volume.

use crate::error::{Error, Result};
use crate::stat::StatFs;
use crate::{Cred, Fs};
use lanefs_store::device::Device;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Bytes of memory for pages, cells and directories together. Default: a quarter of RAM.
    pub cache_size: u64,
    /// Refuse every change.
    pub read_only: bool,
    /// How often namespace changes are committed without being asked. Default 5 s.
    pub commit_interval: Duration,
    /// How old a dirty page may grow. Default 30 s.
    pub dirty_expire: Duration,
    /// Run background threads. Without them (tests, simulation) the caller calls [`Volume::tick`].
    pub background: bool,
    /// Lanes; 0 for the default (128).
    pub lanes: usize,
    /// mlogs to write to; 0 for the volume's own number.
    pub mlogs: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            cache_size: 0,
            read_only: false,
            commit_interval: Duration::from_secs(5),
            dirty_expire: Duration::from_secs(30),
            background: true,
            lanes: 0,
            mlogs: 0,
        }
    }
}

/// An open volume; cheap to clone. Dropping the last clone closes it cleanly.
#[derive(Clone)]
pub struct Volume(pub(crate) Arc<()>);

impl Volume {
    /// Opens the volume stored in these image files or block devices (one path for most volumes).
    pub fn open<P: AsRef<Path>>(_images: &[P], _options: &MountOptions) -> Result<Volume> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// Opens the volume stored on these devices.
    pub fn open_devices(_devices: Vec<Arc<dyn Device>>, _options: &MountOptions) -> Result<Volume> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// A new volume in memory, gone when it is closed.
    pub fn in_memory(_bytes: u64) -> Result<Volume> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// The volume as this credential may see it.
    pub fn as_user(&self, _cred: Cred) -> Fs {
        unimplemented!()
    }
    /// The volume as the calling process may see it.
    pub fn fs(&self) -> Fs {
        self.as_user(Cred::current())
    }
    /// Makes durable all that returned before this call: an epoch commit.
    pub fn sync(&self) -> Result<()> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// Sizes and counts.
    pub fn statfs(&self) -> Result<StatFs> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// One round of background work: reap, write back what is old, commit, checkpoint, clean, as needed.
    pub fn tick(&self) -> Result<()> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// A checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        Err(Error::Posix(libc::ENOSYS))
    }
    /// Stops the volume as a crash would: nothing more reaches the device, every call fails with EIO.
    pub fn shutdown(&self) {}
    /// Syncs, writes the final checkpoint with the clean mark and releases the devices. Later calls fail with EIO.
    pub fn close(&self) -> Result<()> {
        Err(Error::Posix(libc::ENOSYS))
    }
}
