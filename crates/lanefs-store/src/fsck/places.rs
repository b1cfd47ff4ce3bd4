//! The places of a directory's entries: at a cookie of their name's hash, each name once. One that
//! lies elsewhere is listed, and never found by its name; of two with one name the first alone is.

use super::entry::{Fix, Name, for_each_entry};
use super::{FsckReport, Place};
use crate::error::Result;
use crate::log::io::Io;
use crate::tree::inode_table::InodeTable;
use lanefs_format::dir_bucket::{COLLISION_BITS, EntryRef};
use lanefs_format::name_hash::name_hash;
use lanefs_format::{FileKind, Ino};
use std::collections::{HashMap, HashSet};

/// The entries of one directory that a first look found odd.
pub(super) struct Places {
    key: [u64; 2],
    dir: Ino,
    /// Entries at cookies of another hash.
    misplaced: Vec<(Name, FileKind)>,
    /// Hashes of their names, and those that several names may have: a second look is for these
    /// alone.
    hashes: HashSet<u64>,
}

impl Places {
    pub fn new(key: [u64; 2], dir: Ino) -> Places {
        Places { key, dir, misplaced: Vec::new(), hashes: HashSet::new() }
    }

    fn is_in_place(cookie: u64, hash: u64) -> bool {
        cookie >> COLLISION_BITS == hash >> COLLISION_BITS
    }

    pub fn see(&mut self, e: &EntryRef<'_>) {
        let hash = name_hash(self.key, e.name);
        if !Places::is_in_place(e.cookie, hash) {
            let name = Name { dir: self.dir, cookie: e.cookie, name: e.name.into(), ino: e.ino };
            self.misplaced.push((name, e.kind));
            self.hashes.insert(hash);
        } else if e.cookie != hash {
            self.hashes.insert(hash);
        }
    }

    /// Returns what has to change; `kind_of` knows the inodes there are.
    pub fn judge(
        self,
        table: &InodeTable,
        io: &Io,
        kind_of: impl Fn(Ino) -> Option<FileKind>,
        report: &mut FsckReport,
    ) -> Result<Vec<Fix>> {
        debug_assert!(
            !self.hashes.is_empty() || self.misplaced.is_empty(),
            "names at wrong places of directory {} are not looked at",
            self.dir
        );
        let mut fixes = Vec::new();
        if self.hashes.is_empty() {
            return Ok(fixes);
        }
        let mut there: HashMap<Box<[u8]>, Vec<(Name, FileKind)>> = HashMap::new();
        let mut taken: HashMap<u64, u32> = HashMap::new();
        for_each_entry(self.dir, table, io, &mut |e| {
            let hash = name_hash(self.key, e.name);
            if self.hashes.contains(&hash) && Places::is_in_place(e.cookie, hash) {
                let name = Name { dir: self.dir, cookie: e.cookie, name: e.name.into(), ino: e.ino };
                there.entry(e.name.into()).or_default().push((name, e.kind));
                *taken.entry(hash).or_default() += 1;
            }
        })?;
        let at = |n: &Name| Place::of_entry(n.dir, &n.name);
        let mut twice: Vec<_> = there.values_mut().filter(|v| v.len() > 1).collect();
        twice.iter_mut().for_each(|v| v.sort_unstable_by_key(|e| e.0.cookie));
        twice.sort_unstable_by_key(|v| v[0].0.cookie);
        for v in twice {
            // A fold that takes a name away takes the first of its hash: so the last stays.
            let last = v.len() - 1;
            for (name, kind) in v.drain(..last) {
                report.add(at(&name), "has the name of another one", "it is removed", true);
                fixes.push(Fix::Remove(name, kind));
            }
        }
        for (name, kind) in self.misplaced {
            // What names no inode is removed for that.
            let Some(real) = kind_of(name.ino) else { continue };
            let hash = name_hash(self.key, &name.name);
            let what = format!("lies at cookie {:#x}, its name belongs at {hash:#x}", name.cookie);
            let taken = taken.entry(hash).or_default();
            if there.contains_key(&name.name) || *taken >> COLLISION_BITS > 0 {
                report.add(at(&name), what, "it is removed: its place is taken", true);
                fixes.push(Fix::Remove(name, kind));
            } else {
                report.add(at(&name), what, "it is moved there", true);
                *taken += 1;
                there.insert(name.name.clone(), Vec::new());
                fixes.push(Fix::Move(name, kind, hash, real));
            }
        }
        Ok(fixes)
    }
}
