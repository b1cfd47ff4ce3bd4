//! An answer, put together in a buffer that is used again for the next one and sent by one call.

use super::Errno;
use super::abi::OUT_HEADER;
use super::device_number::rdev_to_kernel;
use lanefs::{FileKind, Ino, Stat, times};
use smallvec::SmallVec;
use std::time::Duration;

/// The alignment of an answer's content, in bytes.
const ALIGNMENT: usize = 4096;

/// Bytes of a `struct fuse_entry_out`.
const ENTRY_OUT: usize = 128;

/// The way a request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The buffer's content goes to the kernel.
    Now,
    /// The kernel expects nothing.
    None,
    /// Somebody else answers.
    Elsewhere,
    /// Nothing was done: the request is to be done once more when there is space for so many bytes,
    /// or was found to be none ([`crate::taking`]).
    Again(u64),
}

/// The answer to one request.
pub(crate) struct Reply<'b> {
    bytes: &'b mut [u8],
    /// The bytes put so far, those of the header included.
    len: usize,
    pub answer: Answer,
    /// Inodes the kernel knows once more when it has taken this answer.
    pub entered: SmallVec<[Ino; 4]>,
    /// A handle the kernel will release if it has taken this answer.
    pub opened: Option<u64>,
}

/// A buffer for answers. What follows the header begins at a multiple of 4096, so that a device can
/// read into it.
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// The bytes before the header.
    skip: usize,
}

impl ReplyBuffer {
    /// Makes a buffer for answers of `most` bytes.
    pub fn new(most: usize) -> ReplyBuffer {
        let bytes = vec![0; OUT_HEADER + most + ALIGNMENT];
        let skip = (ALIGNMENT - (bytes.as_ptr().addr() + OUT_HEADER) % ALIGNMENT) % ALIGNMENT;
        debug_assert!(skip < ALIGNMENT);
        debug_assert!((bytes.as_ptr().addr() + skip + OUT_HEADER).is_multiple_of(ALIGNMENT));
        ReplyBuffer { bytes, skip }
    }

    /// Returns all of it, the header first.
    pub fn bytes(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - ALIGNMENT + self.skip;
        debug_assert!((self.skip + OUT_HEADER..=self.bytes.len()).contains(&end));
        &mut self.bytes[self.skip..end]
    }
}

impl<'b> Reply<'b> {
    /// Begins an answer in `bytes`, whose first [`OUT_HEADER`] are for the header.
    pub fn over(bytes: &'b mut [u8]) -> Reply<'b> {
        debug_assert!(bytes.len() >= OUT_HEADER);
        Reply { bytes, len: OUT_HEADER, answer: Answer::Now, entered: SmallVec::new(), opened: None }
    }

    /// Asserts that what was put lies in the buffer.
    fn check_invariants(&self) {
        debug_assert!((OUT_HEADER..=self.bytes.len()).contains(&self.len), "{} bytes", self.len);
    }

    /// Returns the bytes to send: with an error nothing but the error.
    pub fn finish(&mut self, unique: u64, result: Result<(), Errno>) -> &[u8] {
        let error = match result {
            Ok(()) => 0,
            Err(e) => {
                debug_assert!((1..512).contains(&e.0), "the kernel refuses an answer with errno {}", e.0);
                self.len = OUT_HEADER;
                -e.0
            }
        };
        self.check_invariants();
        self.bytes[..4].copy_from_slice(&(self.len as u32).to_ne_bytes());
        self.bytes[4..8].copy_from_slice(&error.to_ne_bytes());
        self.bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        &self.bytes[..self.len]
    }

    /// Returns the number of bytes put so far, without the header.
    pub fn len(&self) -> usize {
        self.len - OUT_HEADER
    }

    /// Returns the next `n` bytes, to be filled from the front; [`Reply::keep`] is called with the
    /// number of those that were. EINVAL if an answer cannot hold as many.
    pub fn space(&mut self, n: usize) -> Result<&mut [u8], Errno> {
        self.bytes.get_mut(self.len..self.len + n).ok_or(Errno(libc::EINVAL))
    }

    /// Keeps the first `n` bytes of what [`Reply::space`] returned.
    pub fn keep(&mut self, n: usize) {
        debug_assert!(n <= self.bytes.len() - self.len, "more is kept than there was space for");
        self.len += n;
        self.check_invariants();
    }

    /// Adds bytes; EINVAL if there are more than an answer can hold.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.space(bytes.len())?.copy_from_slice(bytes);
        self.keep(bytes.len());
        Ok(())
    }

    /// Adds a word of 32 bits.
    pub fn u32(&mut self, v: u32) -> Result<(), Errno> {
        self.put(&v.to_ne_bytes())
    }

    /// Adds a word of 64 bits.
    pub fn u64(&mut self, v: u64) -> Result<(), Errno> {
        self.put(&v.to_ne_bytes())
    }

    /// Adds a `struct fuse_attr`.
    fn attr(&mut self, s: &Stat) -> Result<(), Errno> {
        let times = [s.atime, s.mtime, s.ctime].map(times::parts);
        let mut b = [0; 88];
        let words = [s.ino.0, s.size, s.blocks, times[0].0 as u64, times[1].0 as u64, times[2].0 as u64];
        debug_assert!(times.iter().all(|t| t.1 < 1_000_000_000), "nanoseconds of a second");
        for (at, w) in b.chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&w.to_ne_bytes());
        }
        let mode = s.kind.mode_bits() | s.mode & 0o7777;
        let rdev = rdev_to_kernel(s.rdev);
        let halves = [
            times[0].1, times[1].1, times[2].1, mode, s.nlink, s.uid, s.gid, rdev,
            4096, /* block size */
            0,
        ];
        debug_assert_eq!((8 * words.len(), 48 + 4 * halves.len()), (48, b.len()), "every word has its place");
        debug_assert_ne!(s.ino.0, 0, "0 stands for no inode");
        debug_assert_eq!(mode & libc::S_IFMT, s.kind.mode_bits());
        for (at, w) in b[48..].chunks_exact_mut(4).zip(halves) {
            at.copy_from_slice(&w.to_ne_bytes());
        }
        self.put(&b)
    }

    /// Adds a `struct fuse_attr_out`: attributes, and how long they hold.
    pub fn attr_out(&mut self, s: &Stat, ttl: Duration) -> Result<(), Errno> {
        let before = self.len;
        self.u64(ttl.as_secs())?;
        self.u32(ttl.subsec_nanos())?;
        self.u32(0)?;
        self.attr(s)?;
        debug_assert_eq!(self.len - before, 104);
        Ok(())
    }

    /// Adds a `struct fuse_entry_out`: a name's inode. The kernel knows the inode once more when it
    /// has taken this.
    pub fn entry_out(&mut self, s: &Stat, ttl: Duration, attr_ttl: Duration) -> Result<(), Errno> {
        debug_assert!(self.entered.is_empty(), "only a listing names several inodes");
        self.entered.push(s.ino);
        self.entry(s, ttl, attr_ttl)
    }

    /// Adds an entry: its name holds for `ttl`, its attributes for `attr_ttl`.
    fn entry(&mut self, s: &Stat, ttl: Duration, attr_ttl: Duration) -> Result<(), Errno> {
        let before = self.len;
        for w in [s.ino.0, u64::from(s.generation), ttl.as_secs(), attr_ttl.as_secs()] {
            self.u64(w)?;
        }
        self.u32(ttl.subsec_nanos())?;
        self.u32(attr_ttl.subsec_nanos())?;
        self.attr(s)?;
        debug_assert_eq!(self.len - before, ENTRY_OUT);
        Ok(())
    }

    /// Adds the answer "no such name", which the kernel may believe.
    pub fn no_entry(&mut self, ttl: Duration) -> Result<(), Errno> {
        let before = self.len;
        for w in [0, 0, ttl.as_secs(), 0] {
            self.u64(w)?;
        }
        self.u32(ttl.subsec_nanos())?;
        self.u32(0)?;
        self.put(&[0; 88])?;
        debug_assert_eq!(self.len - before, ENTRY_OUT, "as long as the entry of a name that there is");
        debug_assert!(self.entered.is_empty(), "no inode is named");
        Ok(())
    }

    /// Adds a `struct fuse_open_out`. The kernel releases the handle if it has taken this.
    pub fn open_out(&mut self, handle: u64, flags: u32) -> Result<(), Errno> {
        debug_assert!(self.opened.is_none(), "a request opens one file");
        self.opened = Some(handle);
        self.u64(handle)?;
        self.u32(flags)?;
        self.u32(0)
    }

    /// Adds a `struct fuse_statx_out`.
    pub fn statx_out(&mut self, s: &Stat, ttl: Duration) -> Result<(), Errno> {
        const BASIC: u32 = 0x7ff;
        const BTIME: u32 = 0x800;
        let before = self.len;
        self.u64(ttl.as_secs())?;
        self.u32(ttl.subsec_nanos())?;
        self.u32(0)?;
        self.put(&[0; 16])?;
        self.u32(BASIC | BTIME)?;
        self.u32(4096)?;
        self.u64(0)?; // attributes
        for w in [s.nlink, s.uid, s.gid] {
            self.u32(w)?;
        }
        let mode = s.kind.mode_bits() | s.mode & 0o7777;
        self.put(&(mode as u16).to_ne_bytes())?;
        self.put(&[0; 2])?;
        for w in [s.ino.0, s.size, s.blocks, 0] {
            self.u64(w)?;
        }
        for t in [s.atime, s.btime, s.ctime, s.mtime] {
            let (sec, ns) = times::parts(t);
            self.u64(sec as u64)?;
            self.u32(ns)?;
            self.u32(0)?;
        }
        for w in [libc::major(s.rdev), libc::minor(s.rdev), 0, 0] {
            self.u32(w)?;
        }
        self.put(&[0; 112])?;
        debug_assert_eq!(self.len - before, 32 + 256, "the times, and a struct statx");
        Ok(())
    }

    /// Adds an entry of a listing of at most `limit` bytes; false if it does not fit any more.
    pub fn dirent(&mut self, limit: usize, ino: Ino, cookie: u64, kind: FileKind, name: &[u8]) -> bool {
        debug_assert!(self.len().is_multiple_of(8), "entries of a listing are aligned");
        let size = (24 + name.len()).next_multiple_of(8);
        if self.len() + size > limit {
            return false;
        }
        let Ok(space) = self.space(size) else { return false };
        space[..8].copy_from_slice(&ino.0.to_ne_bytes());
        space[8..16].copy_from_slice(&cookie.to_ne_bytes());
        space[16..20].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        space[20..24].copy_from_slice(&(kind.mode_bits() >> 12).to_ne_bytes());
        space[24..24 + name.len()].copy_from_slice(name);
        space[24 + name.len()..].fill(0);
        self.keep(size);
        debug_assert!(self.len() <= limit && self.len().is_multiple_of(8));
        true
    }

    /// Adds an entry of a listing with its attributes. Without these the kernel looks the name up
    /// when it needs it.
    pub fn dirent_plus(
        &mut self,
        limit: usize,
        (ino, cookie, kind, name): (Ino, u64, FileKind, &[u8]),
        stat: Option<&(Stat, Duration)>,
        ttl: Duration,
    ) -> bool {
        if self.len() + ENTRY_OUT + (24 + name.len()).next_multiple_of(8) > limit {
            return false;
        }
        let entry = match stat {
            Some((stat, holds)) => self.entry(stat, ttl, *holds),
            None => self.put(&[0; ENTRY_OUT]),
        };
        entry.is_ok() && self.dirent(limit, ino, cookie, kind, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat() -> Stat {
        Stat {
            ino: Ino(5),
            generation: 3,
            kind: FileKind::Dir,
            mode: libc::S_IFDIR | 0o1755,
            nlink: 2,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 77,
            blocks: 8,
            atime: -1_200_000_000,
            mtime: 1,
            ctime: 2_000_000_003,
            btime: 4,
        }
    }

    #[test]
    fn a_device_can_read_into_an_answer() {
        for most in [64, 4096, 1 << 20] {
            let mut buffer = ReplyBuffer::new(most);
            let bytes = buffer.bytes();
            assert!(bytes.len() >= OUT_HEADER + most);
            assert_eq!(Reply::over(bytes).space(most).unwrap().as_ptr().addr() % 4096, 0);
        }
    }

    #[test]
    fn sizes_are_the_kernels() {
        let ttl = Duration::from_millis(1500);
        let size = |f: &dyn Fn(&mut Reply)| {
            let mut bytes = ReplyBuffer::new(4096);
            let mut r = Reply::over(bytes.bytes());
            f(&mut r);
            r.len()
        };
        assert_eq!(size(&|r| r.attr_out(&stat(), ttl).unwrap()), 104);
        assert_eq!(size(&|r| r.entry_out(&stat(), ttl, ttl).unwrap()), 128);
        assert_eq!(size(&|r| r.no_entry(ttl).unwrap()), 128);
        assert_eq!(size(&|r| r.open_out(1, 0).unwrap()), 16);
        assert_eq!(size(&|r| r.statx_out(&stat(), ttl).unwrap()), 32 + 256);
        assert_eq!(size(&|r| assert!(r.dirent(4096, Ino(1), 2, FileKind::File, b"12345678"))), 32);
        assert_eq!(
            size(&|r| assert!(r.dirent_plus(4096, (Ino(1), 2, FileKind::File, b"1"), None, ttl))),
            160
        );
    }

    #[test]
    fn attributes_stand_where_the_kernel_looks() {
        let mut bytes = ReplyBuffer::new(4096);
        let mut r = Reply::over(bytes.bytes());
        r.attr_out(&stat(), Duration::from_secs(9)).unwrap();
        let bytes = r.finish(0x1122, Ok(())).to_vec();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((u32_at(0), u32_at(4), u64_at(8)), (120, 0, 0x1122));
        assert_eq!(u64_at(16), 9);
        assert_eq!((u64_at(32), u64_at(40), u64_at(48)), (5, 77, 8));
        assert_eq!((u64_at(56) as i64, u32_at(80)), (-2, 800_000_000));
        assert_eq!((u64_at(72), u32_at(88)), (2, 3));
        assert_eq!((u32_at(92), u32_at(96)), (libc::S_IFDIR | 0o1755, 2));
    }

    #[test]
    fn a_listing_ends_where_it_must_and_an_error_leaves_nothing() {
        let mut bytes = ReplyBuffer::new(256);
        let mut r = Reply::over(bytes.bytes());
        let mut n = 0;
        while r.dirent(100, Ino(1), n, FileKind::File, b"name") {
            n += 1;
        }
        assert_eq!((n, r.len()), (3, 96));
        assert!(!r.dirent(1 << 20, Ino(1), 9, FileKind::File, &[b'n'; 255]), "the buffer is full");
        assert_eq!(r.put(&[0; 1000]).unwrap_err().0, libc::EINVAL);
        assert_eq!(r.finish(1, Err(Errno(libc::ENOENT))).len(), 16);
    }
}
