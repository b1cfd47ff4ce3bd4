//! Reading everything on the medium, and finding which files are damaged.

use crate::error::Result;
use crate::persist::checkpoint;
use crate::persist::writeback;
use crate::volume::Volume;
use lanefs_format::{FileKind, Ino, ROOT_INO};
use lanefs_store::{ScrubCursor, ScrubDamage, ScrubStep};
use std::collections::{HashMap, HashSet};

/// Blocks compared between two looks at the clock.
const STEP: u64 = 4096;
/// No path is followed deeper: a damaged volume may hold circles.
const DEPTH: usize = 1 << 12;

/// A damaged block, and a name of the file it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// A path of the file or directory; `None` if it has none, or if the block belongs to no file.
    pub path: Option<Vec<u8>>,
    /// The block, and what is wrong with it.
    pub damage: ScrubDamage,
    /// It was written again from its copy.
    pub repaired: bool,
}

/// The counts of a scrub so far, in blocks of 4096 bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ScrubReport {
    /// Blocks of file data compared with their sums.
    pub data_blocks: u64,
    /// Blocks of everything else.
    pub node_blocks: u64,
    /// The blocks that are damaged, or were and are repaired.
    pub damaged: Vec<Damaged>,
}

impl Volume {
    /// Reads everything that the volume keeps on its devices, past all caches, and compares it with
    /// the checksums. Other calls go on meanwhile. `pace` is called after each 16 MiB or so with
    /// what was read; it may sleep, and ends the scrub by returning false. What was written before
    /// this call is covered, what is written during it may be.
    ///
    /// # Errors
    /// EIO if the volume was closed or stopped. Damage is no error.
    pub fn scrub(&self, pace: &mut dyn FnMut(&ScrubReport) -> bool) -> Result<ScrubReport> {
        let (mut report, mut at) = (ScrubReport::default(), ScrubCursor::default());
        loop {
            let (step, damaged) = self.scrub_step(at, STEP)?;
            report.data_blocks += step.data_blocks;
            report.node_blocks += step.node_blocks;
            report.damaged.extend(damaged);
            let go_on = pace(&report);
            match step.next {
                Some(next) if go_on => at = next,
                _ => return Ok(report),
            }
        }
    }

    /// Does one step of a scrub: about `budget` blocks of 4096 bytes from `at` on. The first syncs
    /// and makes a checkpoint, so that all that was written is covered.
    ///
    /// # Errors
    /// As [`Volume::scrub`].
    pub fn scrub_step(&self, at: ScrubCursor, budget: u64) -> Result<(ScrubStep, Vec<Damaged>)> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        // A volume that cannot be written any more is read all the same.
        if at == ScrubCursor::default() && persist.writable().is_ok() {
            let _ = writeback::sync_all(persist);
            let _ = checkpoint::checkpoint(persist);
        }
        let mut step = persist.store.scrub(at, budget)?;
        let all = || step.damage.iter().chain(&step.repaired);
        let inos: HashSet<Ino> = all().map(|d| d.ino).filter(|i| !i.is_none()).collect();
        let paths = self.paths_of(inos);
        let (bad, repaired) = (std::mem::take(&mut step.damage), std::mem::take(&mut step.repaired));
        let damaged = (bad.into_iter().map(|d| (d, false)))
            .chain(repaired.into_iter().map(|d| (d, true)))
            .map(|(damage, repaired)| Damaged { path: paths.get(&damage.ino).cloned(), damage, repaired })
            .collect();
        Ok((step, damaged))
    }

    /// Finds a path of each of these inodes, as far as directories that can be read lead to them.
    /// Looks at the whole tree until all are found.
    fn paths_of(&self, mut wanted: HashSet<Ino>) -> HashMap<Ino, Vec<u8>> {
        debug_assert!(!wanted.contains(&Ino::NONE), "blocks of no file have no path");
        let most = wanted.len();
        let mut found = HashMap::new();
        if wanted.remove(&ROOT_INO) {
            found.insert(ROOT_INO, b"/".to_vec());
        }
        let mut todo = vec![(ROOT_INO, Vec::new(), 0)];
        let mut seen = HashSet::from([ROOT_INO]);
        while let Some((dir, path, depth)) = todo.pop() {
            if wanted.is_empty() {
                break;
            }
            // What cannot be read is among the damage.
            let _ = self.node_readdir(dir, 0, &mut |e| {
                if e.name == b"." || e.name == b".." {
                    return true;
                }
                let full = || [path.as_slice(), b"/", e.name].concat();
                if wanted.remove(&e.ino) {
                    found.insert(e.ino, full());
                }
                if e.kind == FileKind::Dir && depth < DEPTH && seen.insert(e.ino) {
                    todo.push((e.ino, full(), depth + 1));
                }
                true
            });
        }
        debug_assert_eq!(found.len() + wanted.len(), most, "a path was found for an inode nobody wants");
        found
    }
}
