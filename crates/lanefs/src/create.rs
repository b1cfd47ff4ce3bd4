//! Making volumes.

use crate::device::Device;
use crate::error::Result;
use lanefs_store::device::NewImage;
use lanefs_store::{FormatOptions, Store};
use std::path::Path;
use std::sync::Arc;

/// The options of making a volume: nothing chosen makes an ordinary one, whose root belongs to the
/// calling process.
///
/// ```no_run
/// # fn main() -> lanefs::Result<()> {
/// use lanefs::CreateOptions;
///
/// CreateOptions::new().label("mail").metadata_copies(2).create(&["disk.lane"], 4 << 30)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CreateOptions(FormatOptions);

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions::new()
    }
}

impl CreateOptions {
    /// Chooses nothing.
    pub fn new() -> CreateOptions {
        CreateOptions(FormatOptions::for_caller())
    }

    /// Sets a name for people, at most 64 bytes. Default: none.
    pub fn label(&mut self, label: &str) -> &mut Self {
        self.0.label = label.into();
        self
    }

    /// Sets the blocks of 4096 bytes in a segment, the unit of allocation and cleaning: a power of
    /// two from 16 to 512. Default: 512; small volumes get smaller segments by themselves.
    pub fn segment_blocks(&mut self, blocks: u32) -> &mut Self {
        self.0.segment_blocks = blocks;
        self
    }

    /// Sets the number of independent logs, at most 128; a small volume is used with fewer.
    /// Default: one per CPU, at most 16.
    pub fn logs(&mut self, logs: u32) -> &mut Self {
        self.0.mlogs = logs;
        self
    }

    /// Sets how often everything but file data lies on the devices: 1, the default, or 2, so that
    /// the damage of one block loses nothing that it describes.
    pub fn metadata_copies(&mut self, copies: u32) -> &mut Self {
        self.0.metadata_copies = copies;
        self
    }

    /// Sets owner and group of the root directory. Default: the calling process's.
    pub fn owner(&mut self, uid: u32, gid: u32) -> &mut Self {
        (self.0.uid, self.0.gid) = (uid, gid);
        self
    }

    /// Sets the permission bits of the root directory. Default: 0755.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.0.mode = mode;
        self
    }

    /// Sets the times of the root directory, nanoseconds since 1970 ([`crate::times`]). Default:
    /// the present.
    pub fn time(&mut self, time: i64) -> &mut Self {
        self.0.time = Some(time);
        self
    }

    /// Sets the volume's identity. Default: a random one.
    pub fn uuid(&mut self, uuid: [u8; 16]) -> &mut Self {
        self.0.uuid = Some(uuid);
        self
    }

    /// Sets the key of the hash by which directories are ordered. It keeps others from choosing
    /// names that collide, so only a test that wants the same image twice gives one. Default: a
    /// random one.
    pub fn hash_key(&mut self, key: [u64; 2]) -> &mut Self {
        self.0.hash_key = Some(key);
        self
    }

    /// Overwrites a LaneFS volume that is there, for [`CreateOptions::format`]. Default: refuse.
    pub fn force(&mut self, force: bool) -> &mut Self {
        self.0.force = force;
        self
    }

    /// Makes a volume in new image files of `size` bytes each, a multiple of 4096. After an error
    /// nothing is left behind, and neither is where the process is killed, if the file system has
    /// files without a name: they get theirs when the volume is whole. Durable when it returns, as
    /// far as the directories of the files are; after a crash before that it is whole or none.
    ///
    /// # Errors
    /// - EEXIST: one of them exists. ENOENT, EACCES and others: those of the system, from making
    ///   it.
    /// - EINVAL: a size that cannot be, or is too small; an option out of its bounds.
    /// - EBUSY: another process opened one meanwhile.
    /// - EIO, ENOSPC: those of the file system under them.
    pub fn create<P: AsRef<Path>>(&self, images: &[P], size: u64) -> Result<()> {
        let made: Vec<NewImage> =
            images.iter().map(|image| NewImage::new(image, size)).collect::<Result<_, _>>()?;
        debug_assert_eq!(made.len(), images.len(), "an image is not made");
        let devices: Vec<_> = made.iter().map(|image| image.device() as Arc<dyn Device>).collect();
        self.format(&devices)?;
        drop(devices);
        Ok(NewImage::give_names(made)?)
    }

    /// Makes a volume on open devices, all of each: images and block devices that are there, or
    /// memory. What they held is gone, but a LaneFS volume is refused without
    /// [`CreateOptions::force`]. Durable when it returns; after a crash before that the devices
    /// hold the new volume, what they held before, or none.
    ///
    /// # Errors
    /// EINVAL: they hold a volume, are too small, or an option is out of its bounds. EIO, ENOSPC:
    /// those of a device.
    pub fn format(&self, devices: &[Arc<dyn Device>]) -> Result<()> {
        Ok(Store::format(devices, &self.0)?)
    }
}
