//! A LaneFS volume in this process: calls of the library.

use super::{Memory, Target, TargetFile, as_bytes, buffer, flags, remove_tree};
use crate::cost::{CountingDevice, Traffic};
use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::processors::Helpers;
use lanefs::{File, Fs, MountOptions, OpenOptions, SetTime, Volume, WriteLife};
use lanefs_store::device::{Device, MemoryDevice, ReadReq, WriteReq};
use lanefs_store::{FormatOptions, Store};
use std::path::Path;
use std::sync::Arc;

/// A volume open in this process.
pub struct VolumeTarget {
    volume: Volume,
    fs: Fs,
    direct: bool,
    counter: Option<Arc<CountingDevice>>,
    prefix: Name,
}

/// Memory that was written from end to end before and is never given back, as an SSD in use is:
/// otherwise the system's clearing of pages would count as the file system's work.
#[derive(Debug)]
struct WrittenDevice(MemoryDevice);

impl WrittenDevice {
    fn new(device: MemoryDevice) -> Res<WrittenDevice> {
        let zeros = buffer(1 << 20);
        let mut at = 0;
        while at < device.size() {
            let len = (device.size() - at).min(1 << 20);
            let data = &as_bytes(&zeros)[..len as usize];
            device.write(&[WriteReq { offset: at, data }]).at("writing the device once")?;
            at += len;
        }
        debug_assert_eq!(at, device.size(), "all of it is written");
        Ok(WrittenDevice(device))
    }
}

impl Device for WrittenDevice {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.0.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        self.0.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        self.0.flush()
    }
    fn needs_flush(&self) -> bool {
        self.0.needs_flush()
    }
    fn discard(&self, _offset: u64, _len: u64) -> lanefs_store::Result<()> {
        Ok(())
    }
}

/// A file of a volume.
pub struct VolumeFile(File);

impl VolumeTarget {
    /// Makes a new volume in memory.
    pub fn memory(memory: &Memory, direct: bool) -> Res<VolumeTarget> {
        let device = Self::memory_device(memory)?;
        let volume = memory.off.while_making(|| Self::fresh(device, memory))?;
        Ok(Self::over(volume, direct))
    }

    /// Makes the device of a volume in memory.
    fn memory_device(memory: &Memory) -> Res<Arc<dyn Device>> {
        let device = MemoryDevice::new(memory.bytes).at("a device in memory")?;
        Ok(if memory.written { Arc::new(WrittenDevice::new(device)?) } else { Arc::new(device) })
    }

    /// Makes a new volume in memory whose device counts what goes to it.
    pub fn counted(memory: &Memory, direct: bool) -> Res<VolumeTarget> {
        let counter = Arc::new(CountingDevice::new(Self::memory_device(memory)?));
        let device = counter.clone();
        let volume = memory.off.while_making(|| Self::fresh(device, memory))?;
        Ok(VolumeTarget { counter: Some(counter), ..Self::over(volume, direct) })
    }

    /// Opens the volume on a device, and counts what goes to that.
    pub fn counting(device: Arc<dyn Device>, direct: bool) -> Res<VolumeTarget> {
        let counter = Arc::new(CountingDevice::new(device));
        let volume = Volume::open_devices(vec![counter.clone()], &MountOptions::default())
            .at("a volume whose device counts")?;
        Ok(VolumeTarget { counter: Some(counter), ..Self::over(volume, direct) })
    }

    /// Takes a volume that is open already.
    pub fn of(volume: Volume) -> VolumeTarget {
        Self::over(volume, false)
    }

    /// Formats a device and opens the volume.
    fn fresh(device: Arc<dyn Device>, memory: &Memory) -> Res<Volume> {
        let (metadata_copies, hash_key) = (memory.copies, memory.hash_key);
        let format = FormatOptions { metadata_copies, hash_key, ..FormatOptions::for_caller() };
        Store::format(std::slice::from_ref(&device), &format).at("formatting a volume in memory")?;
        Volume::open_devices(vec![device], &memory.options()).at("a volume in memory")
    }

    /// Opens the volume stored in an image file or on a device.
    pub fn image(path: &Path, options: &MountOptions, direct: bool) -> Res<VolumeTarget> {
        let volume = Volume::open(&[path], options).at(path.display())?;
        Ok(Self::over(volume, direct))
    }

    /// Makes the target of an open volume.
    fn over(volume: Volume, direct: bool) -> VolumeTarget {
        let fs = volume.fs();
        VolumeTarget { volume, fs, direct, counter: None, prefix: Name::new("") }
    }

    /// Returns the volume itself.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

impl TargetFile for VolumeFile {
    #[inline]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Op<usize> {
        Ok(self.0.read_at(buf, offset)?)
    }
    #[inline]
    fn write_at(&self, buf: &[u8], offset: u64) -> Op<usize> {
        Ok(self.0.write_at(buf, offset)?)
    }
    #[inline]
    fn write(&self, buf: &[u8]) -> Op<usize> {
        Ok(self.0.write(buf)?)
    }
    fn rewind(&self) -> Op<()> {
        self.0.lseek(0, libc::SEEK_SET)?;
        Ok(())
    }
    fn size(&self) -> Op<u64> {
        Ok(self.0.stat()?.size)
    }
    #[inline]
    fn set_len(&self, size: u64) -> Op<()> {
        Ok(self.0.set_len(size)?)
    }
    #[inline]
    fn sync(&self) -> Op<()> {
        Ok(self.0.sync_all()?)
    }
    fn sync_data(&self) -> Op<()> {
        Ok(self.0.sync_data()?)
    }
    fn set_life(&self, is_short: bool) -> Op<()> {
        self.0.set_write_life(if is_short { WriteLife::Short } else { WriteLife::Extreme });
        Ok(())
    }
}

impl Target for VolumeTarget {
    type File = VolumeFile;

    fn prefix(&self) -> &Name {
        &self.prefix
    }

    #[inline]
    fn open(&self, path: &Name, flags: i32) -> Op<VolumeFile> {
        let mut how = flags & !flags::DATA;
        if flags & flags::DATA != 0 && self.direct {
            how |= libc::O_DIRECT;
        }
        Ok(VolumeFile(self.fs.open(path.bytes(), &OpenOptions { flags: how, mode: 0o644 })?))
    }

    #[inline]
    fn stat(&self, path: &Name) -> Op<u64> {
        Ok(self.fs.stat(path.bytes())?.size)
    }

    fn mkdir(&self, path: &Name) -> Op<()> {
        Ok(self.fs.mkdir(path.bytes(), 0o755)?)
    }

    #[inline]
    fn unlink(&self, path: &Name) -> Op<()> {
        Ok(self.fs.unlink(path.bytes())?)
    }

    fn rmdir(&self, path: &Name) -> Op<()> {
        Ok(self.fs.rmdir(path.bytes())?)
    }

    #[inline]
    fn rename(&self, old: &Name, new: &Name) -> Op<()> {
        Ok(self.fs.rename(old.bytes(), new.bytes())?)
    }

    fn read_dir(&self, path: &Name, mut f: impl FnMut(&[u8], bool)) -> Op<u64> {
        let path: &[u8] = if path.is_empty() { b"/" } else { path.bytes() };
        let mut seen = 0;
        self.fs.read_dir_from(path, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                f(entry.name, entry.kind == lanefs::FileKind::Dir);
                seen += 1;
            }
            true
        })?;
        Ok(seen)
    }

    fn sync_dir(&self, path: &Name) -> Op<()> {
        let how = OpenOptions { flags: libc::O_RDONLY | libc::O_DIRECTORY, mode: 0 };
        Ok(self.fs.open(path.bytes(), &how)?.sync_all()?)
    }

    fn statfs(&self) -> Op<u64> {
        Ok(self.fs.statfs()?.free)
    }

    fn set_times_now(&self, path: &Name) -> Op<()> {
        Ok(self.fs.set_times(path.bytes(), Some(SetTime::Now), Some(SetTime::Now), true)?)
    }

    fn traffic(&self) -> Option<Traffic> {
        self.counter.as_ref().map(|c| c.traffic())
    }

    fn processes(&self) -> bool {
        false
    }

    fn quiesce(&self) -> Res<()> {
        self.volume.sync().at("syncing the volume")?;
        // What the log holds is folded, and then what was removed is freed and what is freed is
        // cleaned.
        self.volume.checkpoint().at("a checkpoint of the volume")?;
        for _ in 0..2 {
            self.volume.tick().at("a round of the volume's background")?;
        }
        Ok(())
    }

    fn helpers(&self) -> Helpers {
        Helpers::none()
    }

    /// Opens the place of a cell. A volume that holds nothing is used from its root, so that paths
    /// have as many components as on a directory target; in one that holds something the cell gets
    /// a directory.
    fn enter(&mut self) -> Res<()> {
        self.volume.sync().at("syncing the volume")?;
        // The first frees what was removed, the second what the first moved.
        for _ in 0..2 {
            self.volume.tick().at("a round of the volume's background")?;
        }
        let mut empty = true;
        self.fs
            .read_dir_from("/", 0, &mut |entry| {
                empty &= entry.name == b"." || entry.name == b"..";
                empty
            })
            .at("listing the volume's root")?;
        debug_assert!(self.prefix.is_empty(), "one cell at a time");
        if !empty {
            let dir = format!("lanefs-bench.{}", std::process::id());
            self.fs.mkdir(dir.as_str(), 0o755).at(format!("mkdir {dir}"))?;
            self.prefix.push(&dir).push("/");
        }
        Ok(())
    }

    fn leave(&mut self) -> Res<()> {
        let mut root = self.prefix.clone();
        debug_assert!(root.is_empty() || root.bytes().ends_with(b"/"));
        root.cut(root.len().saturating_sub(1));
        remove_tree(self, &root).at("removing what the workload left")?;
        if !root.is_empty() {
            self.rmdir(&root).at(format!("rmdir {root}"))?;
        }
        self.prefix = Name::new("");
        Ok(())
    }
}
