//! Devices in memory: for tests, for volumes that need not survive, and as the images a crash
//! simulation makes.
//!
//! A [`MemoryDevice`] is one mapping. Requests copy straight in and out of it and share nothing, so
//! I/O of different threads runs in parallel. Pages are touched on first use; a fresh device of any
//! size costs nothing.
//!
//! A [`MemoryImage`] is frozen content in an anonymous file. [`MemoryImage::fork`] gives a device
//! that starts with that content, copy-on-write, in constant time: thousands of crash states of one
//! image cost only what each of them changes.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use lanefs_sync::racy_copy::copy_racy;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::{Device, ReadReq, WriteReq, check_range, io_error};
use crate::error::{Result, StoreError};
use lanefs_format::BLOCK_SIZE;

/// A device of fixed size in this process's memory. A flush is free: the memory is the medium.
#[derive(Debug)]
pub struct MemoryDevice {
    mapping: Mapping,
    name: String,
    /// Keeps the image a fork maps; where there is one, dropped pages would come back with its
    /// content.
    image: Option<Arc<MemoryImage>>,
}

impl MemoryDevice {
    /// Returns a device of `size` bytes, all zero. `size` is a multiple of 4 KiB and not zero.
    pub fn new(size: u64) -> Result<MemoryDevice> {
        Ok(MemoryDevice { mapping: Mapping::anonymous(size)?, name: "memory".into(), image: None })
    }

    /// Returns a device that holds a copy of `bytes`, whose length is a multiple of 4 KiB.
    pub fn from_bytes(bytes: &[u8]) -> Result<MemoryDevice> {
        let d = MemoryDevice::new(bytes.len() as u64)?;
        d.mapping.store(0, bytes);
        Ok(d)
    }

    /// Returns the same device with another name in messages.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> MemoryDevice {
        self.name = name.into();
        self
    }

    /// Returns a copy of the whole content.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = vec![0; self.mapping.len];
        self.mapping.load(0, &mut v);
        v
    }

    /// Overwrites bytes at any offset, past the rules of [`Device::write`]: how tests damage an
    /// image.
    pub fn poke(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.in_range("poke", offset, bytes.len())?;
        self.mapping.store(offset as usize, bytes);
        Ok(())
    }

    /// Copies bytes from any offset.
    pub fn peek(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.in_range("peek", offset, bytes.len())?;
        self.mapping.load(offset as usize, bytes);
        Ok(())
    }

    fn in_range(&self, what: &'static str, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(io_error(&self.name, what, offset, libc::EINVAL, "beyond the end of the device")),
        }
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.mapping.len as u64
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        for r in reqs.iter() {
            check_range(self, "read", r.offset, r.data.len())?;
        }
        for r in reqs {
            self.mapping.load(r.offset as usize, r.data);
        }
        Ok(())
    }

    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        for r in reqs {
            check_range(self, "write", r.offset, r.data.len())?;
        }
        for r in reqs {
            self.mapping.store(r.offset as usize, r.data);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn needs_flush(&self) -> bool {
        false
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let len = usize::try_from(len).map_err(|_| {
            io_error(&self.name, "discard", offset, libc::EINVAL, "beyond the end of the device")
        })?;
        check_range(self, "discard", offset, len)?;
        if self.image.is_none() {
            self.mapping.drop_pages(offset as usize, len);
        } else {
            for at in (offset as usize..offset as usize + len).step_by(BLOCK_SIZE) {
                self.mapping.store(at, &[0; BLOCK_SIZE]);
            }
        }
        Ok(())
    }
}

/// Frozen content of a device, from which devices are forked.
#[derive(Debug)]
pub struct MemoryImage {
    file: OwnedFd,
    size: u64,
}

impl MemoryImage {
    /// Copies the whole content of `device`. Blocks of zeros take no memory.
    pub fn capture(device: &dyn Device) -> Result<Arc<MemoryImage>> {
        const CHUNK: usize = 64 * BLOCK_SIZE;
        let size = device.size();
        let image = MemoryImage::empty(size)?;
        let mut buf = vec![lanefs_format::Block([0; BLOCK_SIZE]); CHUNK / BLOCK_SIZE];
        let mut at = 0;
        while at < size {
            let n = ((size - at) as usize).min(CHUNK) / BLOCK_SIZE;
            debug_assert!(n > 0, "a device of {size} bytes ends in the middle of a block");
            {
                let mut reqs: Vec<ReadReq<'_>> = buf[..n]
                    .iter_mut()
                    .enumerate()
                    .map(|(i, b)| ReadReq { offset: at + (i * BLOCK_SIZE) as u64, data: &mut b.0 })
                    .collect();
                device.read(&mut reqs)?;
            }
            for (i, b) in buf[..n].iter().enumerate() {
                if b.0 != [0; BLOCK_SIZE] {
                    image.put(at + (i * BLOCK_SIZE) as u64, &b.0)?;
                }
            }
            at += (n * BLOCK_SIZE) as u64;
        }
        debug_assert_eq!(at, image.size, "all of the device is in the image");
        Ok(Arc::new(image))
    }

    /// Returns an image of zeros.
    pub fn zeros(size: u64) -> Result<Arc<MemoryImage>> {
        Ok(Arc::new(MemoryImage::empty(size)?))
    }

    fn empty(size: u64) -> Result<MemoryImage> {
        check_size(size)?;
        let file = memfd_create("lanefs-image", MemfdFlags::CLOEXEC).map_err(|e| no_memory(size, e))?;
        ftruncate(&file, size).map_err(|e| no_memory(size, e))?;
        Ok(MemoryImage { file, size })
    }

    fn put(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        debug_assert!(offset + bytes.len() as u64 <= self.size, "content behind the end of an image");
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.file, bytes, offset) {
                Ok(n) => {
                    offset += n as u64;
                    bytes = &bytes[n..];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(no_memory(self.size, e)),
            }
        }
        Ok(())
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns a device that starts with this content and shares what it does not change.
    pub fn fork(self: &Arc<Self>) -> Result<MemoryDevice> {
        let mapping = Mapping::private(self.size, &self.file)?;
        Ok(MemoryDevice { mapping, name: "memory".into(), image: Some(self.clone()) })
    }
}

fn check_size(size: u64) -> Result<usize> {
    match usize::try_from(size) {
        Ok(len) if len != 0 && len.is_multiple_of(BLOCK_SIZE) && len <= isize::MAX as usize => Ok(len),
        _ => Err(StoreError::Invalid(format!(
            "a memory device of {size} bytes is not possible; give a multiple of {BLOCK_SIZE}"
        ))),
    }
}

fn no_memory(size: u64, e: rustix::io::Errno) -> StoreError {
    StoreError::NotOpened {
        device: "memory".into(),
        why: format!("{size} bytes are not to be had: {e}; ask for less"),
        errno: e.raw_os_error(),
    }
}

/// An owned private mapping, readable and writable, of `len` bytes.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Mapping` owns its pages and has no thread affinity; all access goes through `load` and
// `store`, whose copies are made by machine instructions and so may race.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives no references into the pages.
unsafe impl Sync for Mapping {}

impl Mapping {
    const PROT: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    fn anonymous(size: u64) -> Result<Mapping> {
        let len = check_size(size)?;
        let flags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
        // SAFETY: no address is asked for, so the kernel picks an unused range and no existing
        // memory changes.
        let p = unsafe { mmap_anonymous(std::ptr::null_mut(), len, Self::PROT, flags) };
        Mapping::own(p, len)
    }

    fn private(size: u64, file: impl AsFd) -> Result<Mapping> {
        let len = check_size(size)?;
        let flags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
        // SAFETY: as in `anonymous`. The file is at least `len` bytes long and is never shortened
        // (only this module holds its descriptor), so no page of the mapping lies past its end.
        let p = unsafe { mmap(std::ptr::null_mut(), len, Self::PROT, flags, file, 0) };
        Mapping::own(p, len)
    }

    fn own(p: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Mapping> {
        let p = p.map_err(|e| no_memory(len as u64, e))?;
        let base = NonNull::new(p.cast()).ok_or_else(|| no_memory(len as u64, rustix::io::Errno::NOMEM))?;
        debug_assert!(len > 0 && len.is_multiple_of(BLOCK_SIZE), "a mapping of {len} bytes");
        Ok(Mapping { base, len })
    }

    /// Copies out `to.len()` bytes from `at`.
    fn load(&self, at: usize, to: &mut [u8]) {
        assert!(at.checked_add(to.len()).is_some_and(|end| end <= self.len));
        // SAFETY: the range was just checked to lie in the mapping, which lives as long as `self`;
        // `to` is exclusively borrowed and cannot overlap it, as no reference into the mapping is
        // ever given out. Other threads reach the mapping only through this function and `store`,
        // so by `copy_racy`. A mixed result is possible and allowed: a device promises nothing
        // about a block that is read while it is written.
        unsafe { copy_racy(self.base.as_ptr().add(at), to.as_mut_ptr(), to.len()) }
    }

    /// Copies `from` in at `at`.
    fn store(&self, at: usize, from: &[u8]) {
        assert!(at.checked_add(from.len()).is_some_and(|end| end <= self.len));
        // SAFETY: as in `load`, with the directions exchanged.
        unsafe { copy_racy(from.as_ptr(), self.base.as_ptr().add(at), from.len()) }
    }

    /// Gives pages back; they read as zeros from then on. Only for anonymous mappings.
    fn drop_pages(&self, at: usize, len: usize) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        debug_assert!(at.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE), "parts of pages");
        if len == 0 {
            return;
        }
        // SAFETY: the range lies in the mapping and nothing refers into it; the kernel replaces
        // whole pages.
        let done = unsafe { madvise(self.base.as_ptr().add(at).cast(), len, Advice::LinuxDontNeed) };
        debug_assert!(done.is_ok(), "{done:?}");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value with this length and nothing refers into it
        // any more.
        let done = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(done.is_ok(), "{done:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::conformance;

    #[test]
    fn behaves_as_a_device() {
        conformance::check(&MemoryDevice::new(1 << 20).unwrap());
    }

    /// It is no fault of a disk.
    #[test]
    fn more_than_there_is_is_refused_as_memory() {
        for refused in [MemoryDevice::new(1 << 50).err(), MemoryDevice::new(1 << 62).err()] {
            let e = refused.expect("no address space has as much");
            assert_eq!(e.errno(), libc::ENOMEM, "{e}");
            assert!(e.to_string().contains("ask for less") && !e.to_string().contains("cables"), "{e}");
        }
    }

    #[test]
    fn a_fork_behaves_as_a_device() {
        conformance::check(&MemoryImage::zeros(1 << 20).unwrap().fork().unwrap());
    }

    #[test]
    fn threads_write_their_own_blocks() {
        let d = MemoryDevice::new(64 * BLOCK_SIZE as u64).unwrap();
        std::thread::scope(|s| {
            for t in 0..8u64 {
                let d = &d;
                s.spawn(move || {
                    for b in (t..64).step_by(8) {
                        let data = [b as u8 + 1; BLOCK_SIZE];
                        d.write(&[WriteReq { offset: b * BLOCK_SIZE as u64, data: &data }]).unwrap();
                    }
                });
            }
        });
        let all = d.to_vec();
        for b in 0..64 {
            assert!(all[b * BLOCK_SIZE..][..BLOCK_SIZE].iter().all(|&x| x == b as u8 + 1));
        }
    }

    #[test]
    fn forks_share_the_image_and_keep_their_changes() {
        let base = MemoryDevice::new(16 * BLOCK_SIZE as u64).unwrap();
        base.poke(5 * 4096 + 7, b"hello").unwrap();
        let image = MemoryImage::capture(&base).unwrap();
        base.poke(5 * 4096 + 7, b"later").unwrap();
        let (a, b) = (image.fork().unwrap(), image.fork().unwrap());
        a.poke(0, b"mine").unwrap();
        a.discard(5 * 4096, 4096).unwrap();
        let peek = |d: &MemoryDevice, at| {
            let mut v = [0; 5];
            d.peek(at, &mut v).unwrap();
            v
        };
        assert_eq!(&peek(&b, 5 * 4096 + 7), b"hello");
        assert_eq!(peek(&b, 0), [0; 5]);
        assert_eq!(&peek(&a, 0), b"mine\0");
        assert_eq!(peek(&a, 5 * 4096 + 7), [0; 5]);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for size in [0, 1, 4095, u64::MAX, !4095] {
            assert!(MemoryDevice::new(size).is_err(), "{size}");
        }
    }
}
