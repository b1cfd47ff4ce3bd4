//! Where objects lie, and who may change one now.

use crate::error::{generic, of};
use lanefs::Fs;
use object_store::path::{DELIMITER, Path};
use object_store::{Error, Result};
use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The directory of the store in which files get their first name, before they replace another. No
/// location has it.
pub const STAGING: &str = ".lanefs-object-store";

/// The place of a store in a volume.
#[derive(Debug)]
pub struct Place {
    /// The volume.
    pub fs: Fs,
    /// The directory below which objects lie: empty, or without a slash at its end.
    pub root: String,
}

impl Place {
    /// Returns the path of an object, or of the directory of a prefix.
    pub fn path(&self, location: &Path) -> String {
        format!("{}/{location}", self.root)
    }

    /// Returns the path of an object.
    ///
    /// # Errors
    /// The location is none, or the store's own.
    pub fn object(&self, location: &Path) -> Result<String> {
        if location.as_ref().is_empty() {
            return Err(generic("the empty location is no object's"));
        }
        if location.parts().any(|part| part.as_ref() == STAGING) {
            return Err(generic(format!("{location}: {STAGING} is the store's own")));
        }
        Ok(self.path(location))
    }

    /// Returns the directory of a path.
    pub fn parent<'p>(&self, path: &'p str) -> &'p str {
        let end = path.rfind(DELIMITER).unwrap_or(0);
        if end == 0 { "/" } else { &path[..end] }
    }

    /// Does what needs the directory of a path, which is made if it is missing: also if somebody
    /// removes it meanwhile, with the last object of it.
    pub fn in_directory(
        &self,
        location: &Path,
        path: &str,
        f: impl Fn() -> lanefs::Result<()>,
    ) -> Result<()> {
        let mut turns = 0;
        loop {
            match f() {
                Err(e) if e.errno() == libc::ENOENT && turns < 1000 => {
                    turns += 1;
                    match self.fs.create_dir_all(self.parent(path)) {
                        // One that was made, or was there, has gone again; or it is an object,
                        // which `f` tells.
                        Err(e) if matches!(e.errno(), libc::ENOENT | libc::EEXIST) => {}
                        made => made.map_err(|e| below_an_object(location, e))?,
                    }
                }
                result => return result.map_err(|e| below_an_object(location, e)),
            }
        }
    }

    /// Removes the directories of a path that have become empty, up to the store's own.
    pub fn clean(&self, path: &str) {
        let mut at = self.parent(path);
        while at.len() > self.root.len() + 1 && self.fs.remove_dir(at).is_ok() {
            at = self.parent(at);
        }
    }
}

/// Returns the error of a name that cannot be given: an object lies where a directory would have
/// to, or the other way round.
fn below_an_object(location: &Path, e: lanefs::Error) -> Error {
    match e.errno() {
        libc::ENOTDIR => generic(format!("{location}: a part of it is an object, which has none below it")),
        libc::EISDIR | libc::ENOTEMPTY => generic(format!("{location}: there are objects below it: {e}")),
        _ => of(location, e),
    }
}

/// The locks of locations, for all stores of the process.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn lock_of(path: &str) -> usize {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    (KEYS.hash_one(path) % LOCKS.len() as u64) as usize
}

/// Keeps others from changing an object.
pub fn lock(path: &str) -> MutexGuard<'static, ()> {
    LOCKS[lock_of(path)].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps others from changing two objects.
pub fn lock_both(a: &str, b: &str) -> (MutexGuard<'static, ()>, Option<MutexGuard<'static, ()>>) {
    let (a, b) = (lock_of(a), lock_of(b));
    let take = |i: usize| LOCKS[i].lock().unwrap_or_else(PoisonError::into_inner);
    // In one order, so that two never wait for each other.
    (take(a.min(b)), (a != b).then(|| take(a.max(b))))
}
