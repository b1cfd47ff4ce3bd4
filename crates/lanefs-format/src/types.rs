//! Names shared by all structures on disk, by the store and by the file system above it.

use std::fmt;

/// Bytes in a block, the unit of every address, checksum and page.
pub const BLOCK_SIZE: usize = 4096;
/// log2 of [`BLOCK_SIZE`].
pub const BLOCK_SHIFT: u32 = 12;
/// The root directory's inode number.
pub const ROOT_INO: Ino = Ino(1);
/// The first inode number given to a user's file; 1..16 are reserved.
pub const FIRST_INO: Ino = Ino(16);
/// Inode numbers described by one block of the inode table.
pub const INOS_PER_CHUNK: u64 = 128;
/// The largest number of bytes of a file's tail kept inside its inode block.
pub const INLINE_MAX: usize = 3400;
/// The longest file name, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest symbolic link target, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// The end of all counters that only grow (epochs, timestamps, mounts, versions, sequences): one
/// every nanosecond would take 146 years. A larger number on a medium is damage, so adding to one
/// that was read never overflows.
pub const COUNTER_END: u64 = 1 << 62;
/// The largest file offset plus one: 8 EiB - 1.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;
/// Pages of a file have numbers below this.
pub const PAGES_END: u64 = (MAX_FILE_SIZE >> BLOCK_SHIFT) + 1;
/// The most links one inode may have (EMLINK beyond).
pub const LINK_MAX: u32 = 65_000;
/// The most bytes all extended attributes of one inode may take, encoded (ENOSPC beyond).
pub const XATTR_BLOB_MAX: usize = 128 * 1024;

const _: () = assert!(BLOCK_SIZE == 1 << BLOCK_SHIFT);
const _: () = assert!(ROOT_INO.0 < FIRST_INO.0 && FIRST_INO.chunk() == 0, "reserved numbers share a chunk");
const _: () = assert!(INLINE_MAX < BLOCK_SIZE, "a tail is less than a page");
const _: () = assert!(SYMLINK_MAX < BLOCK_SIZE, "a link's target is one page at most");
const _: () = assert!(NAME_MAX <= u8::MAX as usize, "an entry's name has a length of one byte");
const _: () = assert!(COUNTER_END <= u64::MAX / 3, "two counters and a step can be added");
const _: () = assert!((PAGES_END - 1) << BLOCK_SHIFT <= MAX_FILE_SIZE, "every page begins within a file");

/// One 4 KiB block of bytes at an address aligned for direct I/O.
#[repr(C, align(4096))]
#[derive(Clone, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
pub struct Block(pub [u8; BLOCK_SIZE]);

impl Block {
    /// Returns a block of zeros on the heap.
    pub fn zeroed() -> Box<Block> {
        Box::new(Block([0; BLOCK_SIZE]))
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Block(4096 bytes)")
    }
}

/// An inode number. Zero means none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// No inode.
    pub const NONE: Ino = Ino(0);
    /// Returns the chunk of the inode table that this number belongs to.
    #[inline]
    pub const fn chunk(self) -> u64 {
        self.0 / INOS_PER_CHUNK
    }
    /// Returns the slot within that chunk.
    #[inline]
    pub const fn slot(self) -> usize {
        (self.0 % INOS_PER_CHUNK) as usize
    }
    /// Returns whether this is [`Ino::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A device address in blocks: device index in the top 8 bits, block number below. Zero means none
/// (block 0 of device 0 is a superblock, so no data ever lives there).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct BlockAddr(pub u64);

impl BlockAddr {
    /// No block: a hole.
    pub const NONE: BlockAddr = BlockAddr(0);
    /// Returns the address of block `block` of device `device`.
    #[inline]
    pub const fn new(device: u8, block: u64) -> BlockAddr {
        debug_assert!(block >> 56 == 0, "a block number that runs into the device's index");
        BlockAddr((device as u64) << 56 | block)
    }
    /// Returns the index of the device in the volume.
    #[inline]
    pub const fn device(self) -> usize {
        (self.0 >> 56) as usize
    }
    /// Returns the block number on that device.
    #[inline]
    pub const fn block(self) -> u64 {
        self.0 & ((1 << 56) - 1)
    }
    /// Returns the byte offset on that device; one that no device has for a block number (from a
    /// damaged image) whose offset does not fit.
    #[inline]
    pub const fn offset(self) -> u64 {
        match self.block() {
            block if block >> (64 - BLOCK_SHIFT) == 0 => block << BLOCK_SHIFT,
            _ => u64::MAX << BLOCK_SHIFT,
        }
    }
    /// Returns whether this is [`BlockAddr::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
    /// Returns the address `n` blocks further on the same device.
    #[must_use]
    #[inline]
    pub const fn plus(self, n: u64) -> BlockAddr {
        BlockAddr(self.0 + n)
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device(), self.block())
    }
}

/// A reference to a block: its place, and the sum that its bytes must have. Every parent holds one
/// of these for every child, so a flipped bit, a lost write, a misdirected write and a stale block
/// all show as a mismatch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockRef {
    /// Its address; none for a hole.
    pub addr: BlockAddr,
    /// CRC32C of its bytes, seeded with the address (see [`crate::checksum`]).
    pub crc: u32,
}

impl BlockRef {
    /// A hole.
    pub const NONE: BlockRef = BlockRef { addr: BlockAddr::NONE, crc: 0 };
    /// Returns whether this is a hole.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.addr.is_none()
    }
}

/// The order of everything durable within one mount generation (DESIGN 1): compared field by field.
/// The mount generation is carried once per batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Version {
    /// The epoch the operation belongs to.
    pub epoch: u64,
    /// Its timestamp: above every timestamp of the keys it read or wrote. Unique within a lane.
    pub ts: u64,
    /// Its lane.
    pub lane: u16,
}

/// The kind of file that an inode is, in the encoding of directory entries on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Dir = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Character device.
    Char = 4,
    /// Block device.
    BlockDev = 5,
    /// Named pipe.
    Fifo = 6,
    /// Socket.
    Socket = 7,
}

impl FileKind {
    /// Returns whether it is a directory.
    #[inline]
    pub const fn is_dir(self) -> bool {
        matches!(self, FileKind::Dir)
    }
    /// Returns whether it is a regular file.
    #[inline]
    pub const fn is_file(self) -> bool {
        matches!(self, FileKind::File)
    }
    /// Returns whether it is a symbolic link.
    #[inline]
    pub const fn is_symlink(self) -> bool {
        matches!(self, FileKind::Symlink)
    }
    /// Returns the kind that the byte on disk stands for.
    #[inline]
    pub const fn from_u8(v: u8) -> Option<FileKind> {
        Some(match v {
            1 => FileKind::File,
            2 => FileKind::Dir,
            3 => FileKind::Symlink,
            4 => FileKind::Char,
            5 => FileKind::BlockDev,
            6 => FileKind::Fifo,
            7 => FileKind::Socket,
            _ => return None,
        })
    }
    /// Returns the kind that the type bits of a mode name; `None` if they name none.
    #[inline]
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::File,
            libc::S_IFDIR => FileKind::Dir,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFCHR => FileKind::Char,
            libc::S_IFBLK => FileKind::BlockDev,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            _ => return None,
        })
    }
    /// Returns the type bits of a mode.
    #[inline]
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => libc::S_IFREG,
            FileKind::Dir => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Char => libc::S_IFCHR,
            FileKind::BlockDev => libc::S_IFBLK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
        }
    }
}

/// Flags of an inode, with the numbers of `FS_IOC_GETFLAGS`. The layer above decides what they
/// mean.
pub mod inode_flags {
    /// Nothing of the inode may be changed, nor its names.
    pub const IMMUTABLE: u32 = 0x10;
    /// Of a file the content only grows; of a directory no name goes.
    pub const APPEND: u32 = 0x20;
    /// Programs that make backups are to leave it out.
    pub const NODUMP: u32 = 0x40;
    /// The time of the last access stays as it is.
    pub const NOATIME: u32 = 0x80;
    /// All there are.
    pub const ALL: u32 = IMMUTABLE | APPEND | NODUMP | NOATIME;

    const _: () = assert!(ALL.count_ones() == 4, "each flag is a bit of its own");
}

/// The attributes of an inode that are captured whole when it is written back. `nlink` is not among
/// them: link counts follow from namespace records.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Attrs {
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of [`inode_flags`].
    pub flags: u32,
    /// Device number of a device node, as in `st_rdev`.
    pub rdev: u64,
    /// Bytes. For directories always 0 on disk.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub atime: i64,
    /// Nanoseconds since 1970.
    pub mtime: i64,
    /// Nanoseconds since 1970.
    pub ctime: i64,
    /// Nanoseconds since 1970: when the inode was made.
    pub btime: i64,
    /// Distinguishes uses of one inode number (NFS, FUSE).
    pub generation: u32,
}

impl Attrs {
    /// Returns the file's kind, if the mode names one.
    #[inline]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
}

/// One entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketEntry {
    /// Its place in hash order.
    pub cookie: u64,
    /// The inode it names.
    pub ino: Ino,
    /// The kind of that inode.
    pub kind: FileKind,
    /// Its name.
    pub name: Box<[u8]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block number out of a damaged image must not turn into the offset of another block.
    #[test]
    fn offsets_that_do_not_fit_lie_beyond_every_device() {
        for n in [1 << 52, (1 << 52) + 7, (1 << 56) - 1] {
            assert!(BlockAddr::new(3, n).offset() > i64::MAX as u64, "block {n:#x}");
        }
        assert_eq!(BlockAddr::new(3, (1 << 52) - 1).offset(), ((1 << 52) - 1) << 12);
    }
}
