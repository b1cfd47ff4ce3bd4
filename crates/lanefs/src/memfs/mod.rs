//! The file system in memory: inodes, directories, pages, and where paths lead. Nothing here knows
//! a disk address.

pub(crate) mod data;
pub(crate) mod dir;
pub(crate) mod inode;
pub(crate) mod marks;
mod owner;
pub(crate) mod paths;
pub(crate) mod stamps;
pub(crate) mod table;
pub(crate) mod trails;
pub(crate) mod xattr;

pub(crate) use inode::{Body, Inode};

use crate::Result;
use crate::memfs::data::FramePool;
use crate::memfs::paths::Paths;
use crate::memfs::stamps::Stamps;
use crate::memfs::table::InodeTable;
use crate::memfs::trails::Trails;
use crossbeam_utils::CachePadded;
use lanefs_sync::hash::WordSet;
use lanefs_sync::lock::Mutex;
use std::sync::Arc;

/// Locks of which a load of an inode takes one.
const LOAD_LOCKS: usize = 64;

/// The part of a volume that is in memory.
pub(crate) struct MemFs {
    pub inodes: InodeTable,
    /// Changes by lanes to inodes of which they are not the home.
    pub stamps: Box<Stamps>,
    pub frames: Arc<FramePool>,
    /// Where the paths lead that lanes walked.
    pub paths: Paths,
    /// Where in memory these paths lie.
    pub trails: Trails,
    /// The secret that names are hashed with.
    pub hash_key: [u64; 2],
    /// Held while a directory changes parents.
    pub move_lock: CachePadded<Mutex<()>>,
    /// One loader of an inode at a time (by inode number), and no eviction meanwhile.
    pub load_locks: Box<[Mutex<()>]>,
    /// Inodes freed whose end has not been folded: the store still knows them, nobody else may.
    pub dead: CachePadded<Mutex<WordSet>>,
}

impl MemFs {
    /// Makes an empty one for so many lanes, with frames for `page_bytes` bytes of pages. ENOMEM:
    /// no address space for them.
    pub fn new(lanes: usize, page_bytes: u64, hash_key: [u64; 2]) -> Result<MemFs> {
        Ok(MemFs {
            inodes: InodeTable::new(),
            stamps: Box::new(Stamps::new()),
            frames: Arc::new(FramePool::new(page_bytes)?),
            paths: Paths::new(lanes, page_bytes * 2),
            trails: Trails::new(lanes, page_bytes * 2),
            hash_key,
            move_lock: CachePadded::new(Mutex::new(())),
            load_locks: (0..LOAD_LOCKS).map(|_| Mutex::new(())).collect(),
            dead: Default::default(),
        })
    }
}
