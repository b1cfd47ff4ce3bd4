//! Device content that is cheap to copy, to change and to recognise: shared blocks in shared
//! chunks, with a running hash.

use lanefs_store::device::{Device, ReadReq, WriteReq};
use lanefs_store::{Result, StoreError};
use lanefs_sync::random::{mix, spread};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Bytes that a device writes whole or not at all.
pub const SECTOR: usize = 512;

/// The bytes of a block, shared, and what tells them apart.
#[derive(Debug)]
pub struct Shared {
    bytes: [u8; BLOCK],
    hash: u64,
}

impl Shared {
    /// These bytes.
    pub fn new(bytes: [u8; BLOCK]) -> Arc<Shared> {
        Arc::new(Shared { hash: hash_block(&bytes), bytes })
    }
    /// Returns the hash of the bytes, which tells blocks apart.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8; BLOCK] {
        &self.bytes
    }
}

/// Blocks that are copied together when one of them changes.
const CHUNK: usize = 32;

/// The content of one device.
#[derive(Clone, Debug)]
pub struct Image {
    chunks: Vec<Arc<[Arc<Shared>; CHUNK]>>,
    blocks: usize,
    hash: u64,
}

fn hash_block(bytes: &[u8; BLOCK]) -> u64 {
    let mut h = 0x517c_c1b7_2722_0a95_u64;
    for w in bytes.as_chunks::<8>().0 {
        h = (h.rotate_left(5) ^ u64::from_le_bytes(*w)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    mix(h)
}

impl Image {
    /// `blocks` blocks of zeros.
    pub fn zeros(blocks: usize) -> Image {
        let zero = Shared::new([0; BLOCK]);
        let chunk: Arc<[Arc<Shared>; CHUNK]> = Arc::new(std::array::from_fn(|_| zero.clone()));
        let mut i = Image { chunks: vec![chunk; blocks.div_ceil(CHUNK)], blocks, hash: 0 };
        i.hash = (0..blocks).fold(0, |h, b| h ^ i.part(b));
        i
    }

    fn at(&self, block: usize) -> &Arc<Shared> {
        &self.chunks[block / CHUNK][block % CHUNK]
    }

    fn part(&self, block: usize) -> u64 {
        mix(self.at(block).hash ^ spread(block as u64))
    }

    /// Tells contents apart.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// One block.
    pub fn block(&self, block: usize) -> &[u8; BLOCK] {
        &self.at(block).bytes
    }

    /// All of it.
    pub fn to_vec(&self) -> Vec<u8> {
        (0..self.blocks).flat_map(|b| *self.block(b)).collect()
    }

    /// Replaces a whole block.
    pub fn put_shared(&mut self, block: usize, new: Arc<Shared>) {
        self.hash ^= self.part(block);
        Arc::make_mut(&mut self.chunks[block / CHUNK])[block % CHUNK] = new;
        self.hash ^= self.part(block);
    }

    /// Replaces those sectors of a block whose bit is set.
    pub fn put(&mut self, block: usize, bytes: &[u8], sectors: u8) {
        let mut new = if sectors == 0xff { [0; BLOCK] } else { *self.block(block) };
        for s in (0..8).filter(|s| sectors >> s & 1 == 1) {
            let r = s * SECTOR..(s + 1) * SECTOR;
            new[r.clone()].copy_from_slice(&bytes[r]);
        }
        self.put_shared(block, Shared::new(new));
    }
}

/// A device over an [`Image`].
#[derive(Debug)]
pub struct CowDevice(Mutex<Image>);

impl CowDevice {
    /// A device that holds this.
    pub fn new(image: Image) -> CowDevice {
        CowDevice(Mutex::new(image))
    }
    /// Returns the content that it has now.
    pub fn image(&self) -> Image {
        self.lock().clone()
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, Image> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn range(&self, image: &Image, offset: u64, len: usize) -> Result<usize> {
        let (first, n) = (offset as usize / BLOCK, len / BLOCK);
        let aligned = (offset as usize).is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        if !aligned || first.checked_add(n).is_none_or(|end| end > image.blocks) {
            return Err(StoreError::Io {
                device: self.name().into(),
                what: "request",
                offset,
                message: format!("{len} bytes are not aligned or beyond the end"),
                errno: libc::EINVAL,
            });
        }
        Ok(first)
    }
}

impl Device for CowDevice {
    fn size(&self) -> u64 {
        (self.lock().blocks * BLOCK) as u64
    }
    fn name(&self) -> &str {
        "crash image"
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        let image = self.lock();
        for r in reqs {
            let first = self.range(&image, r.offset, r.data.len())?;
            for (i, b) in r.data.chunks_mut(BLOCK).enumerate() {
                b.copy_from_slice(image.block(first + i));
            }
        }
        Ok(())
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let mut image = self.lock();
        for r in reqs {
            let first = self.range(&image, r.offset, r.data.len())?;
            for (i, b) in r.data.chunks(BLOCK).enumerate() {
                image.put(first + i, b, 0xff);
            }
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut image = self.lock();
        let first = self.range(&image, offset, len as usize)?;
        for i in 0..len as usize / BLOCK {
            image.put(first + i, &[0; BLOCK], 0xff);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_have_equal_hashes_whatever_the_way_there() {
        let mut a = Image::zeros(8);
        let fresh = a.hash();
        let mut b = a.clone();
        a.put(1, &[7; BLOCK], 0xff);
        a.put(2, &[9; BLOCK], 0x0f);
        b.put(2, &[9; BLOCK], 0x0f);
        assert_ne!(a.hash(), b.hash());
        b.put(1, &[7; BLOCK], 0x55);
        b.put(1, &[7; BLOCK], 0xaa);
        assert_eq!(a.hash(), b.hash());
        a.put(1, &[0; BLOCK], 0xff);
        a.put(2, &[0; BLOCK], 0xff);
        assert_eq!(a.hash(), fresh);
        // The same bytes in other places are another content.
        let (mut c, mut d) = (Image::zeros(8), Image::zeros(8));
        c.put(3, &[1; BLOCK], 0xff);
        d.put(4, &[1; BLOCK], 0xff);
        assert_ne!(c.hash(), d.hash());
        assert_eq!((a.block(2)[0], b.block(2)[2047], b.block(2)[2048]), (0, 9, 0));
    }
}
