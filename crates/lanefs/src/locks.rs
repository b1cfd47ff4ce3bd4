//! Advisory locks on whole files, as `flock(2)`: they stop nobody but each other. Gone when the volume is closed.

use crate::error::{Error, Result};
use lanefs_store::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Kinds of advisory lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Any number of holders.
    Shared,
    /// One holder.
    Exclusive,
}

#[derive(Default)]
struct Holders {
    exclusive: Option<u64>,
    shared: Vec<u64>,
}

impl Holders {
    /// Whether `owner` can have it, given what others hold.
    fn allows(&self, owner: u64, kind: Lock) -> bool {
        self.exclusive.is_none_or(|o| o == owner)
            && (kind == Lock::Shared || self.shared.iter().all(|o| *o == owner))
    }

    fn release(&mut self, owner: u64) {
        self.shared.retain(|o| *o != owner);
        if self.exclusive == Some(owner) {
            self.exclusive = None;
        }
    }
}

/// The advisory locks of a volume.
#[derive(Default)]
pub(crate) struct LockTable {
    files: Mutex<HashMap<Ino, Holders>>,
    released: Condvar,
    /// Files with a lock; 0 lets every close pass by.
    count: AtomicUsize,
}

impl LockTable {
    /// Whether any lock is held at all.
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Takes a lock, or turns the owner's into another kind (which, as with flock, lets go first).
    pub fn lock(&self, ino: Ino, owner: u64, kind: Lock, wait: bool) -> Result<()> {
        let mut files = self.files.lock();
        if let Some(h) = files.get_mut(&ino) {
            h.release(owner);
            self.released.notify_all();
        }
        loop {
            let h = files.entry(ino).or_default();
            if h.allows(owner, kind) {
                match kind {
                    Lock::Shared => h.shared.push(owner),
                    Lock::Exclusive => h.exclusive = Some(owner),
                }
                self.count.store(files.len(), Relaxed);
                return Ok(());
            }
            if !wait {
                return Err(Error::Posix(libc::EWOULDBLOCK));
            }
            self.released.wait(&mut files);
        }
    }

    /// Gives the owner's lock back, if it has one.
    pub fn unlock(&self, ino: Ino, owner: u64) {
        let mut files = self.files.lock();
        if let Some(h) = files.get_mut(&ino) {
            h.release(owner);
            if h.exclusive.is_none() && h.shared.is_empty() {
                files.remove(&ino);
            }
            self.count.store(files.len(), Relaxed);
            self.released.notify_all();
        }
    }
}
