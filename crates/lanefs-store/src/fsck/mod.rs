//! Checking a volume, and repairing what can be.
//!
//! ```text
//! superblocks -> newest slot whose inode table can be read   (none: a scan of all blocks for inodes)
//! walk        every node below it: checksums, owners, double references                   [`walk`]
//! up          recovery as at any open, on marks counted by the walk; damaged inodes are replaced by what could
//!             be read of them                                                                [`repair`]
//! walk        once more, on what recovery made, with the data of files
//! names       entries, link counts, parents, cycles, orphans                                 [`names`]
//! fixes       as record groups and marks, folded by a checkpoint; then names again, until nothing is left
//! close
//! ```
//!
//! 1. A check is a repair whose writes go to memory (`overlay`): the same code judges and repairs,
//!    and what it would do is what it reports. Without `repair` the devices are not written.
//! 2. Nothing is allocated before the walk has marked every block that anything refers to, whatever
//!    the usage table has.
//! 3. What the device refuses to read is not damage: it may be well, and the device or a cable bad.
//!    After such a place nothing is written (`careful.rs`); a check names it and ends. Only who
//!    asks for it ([`FsckOptions::give_up_unreadable`]) has it taken for damage. File data alone is
//!    different, since nothing is done about it anyway.
//! 4. What is judged is what a mount would show: what recovery makes of the checkpoint and the log
//!    together. So data that only the log refers to is read too, and data of the checkpoint that
//!    the log has replaced is not.
//! 5. What is damaged is dropped only where keeping it would make other things unreadable: an entry
//!    that leads nowhere, a part of a map. A data block with a wrong checksum stays, and reading it
//!    stays an error.

pub(crate) mod audit;
mod careful;
mod copies;
mod entry;
mod live;
mod mapped;
mod marks;
mod names;
mod overlay;
#[cfg(test)]
mod pack_tests;
mod paths;
mod places;
mod repair;
mod salvage;
mod scan;
pub(crate) mod scrub;
#[cfg(test)]
mod tests;
mod usage;
mod walk;

use mapped::{after, next_mapped};

use crate::device::Device;
use crate::error::{Result, StoreError};
use lanefs_format::{FormatError, Ino};
use std::sync::Arc;

/// Options for a check: its extent, and what is done about problems.
#[derive(Clone, Debug)]
pub struct FsckOptions {
    /// Repair what can be repaired. Without, nothing is written.
    pub repair: bool,
    /// Read and verify file data too, not only what describes it.
    pub read_data: bool,
    /// Take what the devices refuse to read for damaged: it is given up. Otherwise that ends a
    /// repair before it writes.
    pub give_up_unreadable: bool,
    /// Threads that read; 0 for one per CPU.
    pub threads: usize,
}

impl Default for FsckOptions {
    fn default() -> Self {
        FsckOptions { repair: false, read_data: true, give_up_unreadable: false, threads: 0 }
    }
}

/// A phase of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Looking at every block for inodes, because no checkpoint can be used.
    Scan,
    /// Reading inodes, maps and data.
    Inodes,
    /// Replaying the log.
    Recovery,
    /// Reading directories and comparing.
    Names,
    /// Writing repairs.
    Repair,
}

/// The progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase.
    pub phase: Phase,
    /// Things done of it.
    pub done: u64,
    /// Things there are; 0 if unknown.
    pub total: u64,
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Problem {
    /// The file or directory it belongs to; 0 for structures of the volume.
    pub inode: u64,
    /// The path of that, as far as directories that can be read lead to it.
    pub path: Option<String>,
    /// The structure.
    pub structure: String,
    /// The problem with it.
    pub what: String,
    /// The remedy: what a repair does, or what else can be done.
    pub remedy: String,
    /// A repair can put it right.
    pub repairable: bool,
    /// It has been repaired.
    pub repaired: bool,
}

/// The findings of a check.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FsckReport {
    /// All that is wrong, in the order found.
    pub problems: Vec<Problem>,
    /// The number of copies of the tree's blocks on the devices.
    pub metadata_copies: u32,
    /// The volume had been closed; else its log was replayed first.
    pub was_closed: bool,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Directory entries.
    pub names: u64,
    /// Blocks of file data verified.
    pub data_blocks: u64,
    /// Blocks of everything else verified.
    pub node_blocks: u64,
    /// Messages at the end of the log that recovery leaves out, since their data is not there. It
    /// had not arrived, or, which cannot be distinguished, was damaged since.
    pub not_arrived: u64,
    /// Blocks that cannot be read are given up.
    #[cfg_attr(feature = "serde", serde(skip))]
    give_up_unreadable: bool,
}

/// Returns what is wrong with a number of preallocated pages without a block.
fn miscounted(counted: u64, there_are: u64) -> String {
    format!("{counted} preallocated pages without a block are counted; there are {there_are}")
}

/// The place of a problem: a structure, of an inode or of the volume.
#[derive(Clone, Debug)]
struct Place {
    ino: Ino,
    text: String,
}

impl Place {
    fn of_inode(ino: Ino, part: impl std::fmt::Display) -> Place {
        Place { ino, text: format!("inode {ino}: {part}") }
    }
    fn of_entry(dir: Ino, name: &[u8]) -> Place {
        Place { ino: dir, text: format!("directory {dir}: entry {}", entry::quoted(name)) }
    }
    fn of_directory(ino: Ino) -> Place {
        Place { ino, text: format!("directory {ino}") }
    }
}

impl From<String> for Place {
    fn from(text: String) -> Place {
        Place { ino: Ino::NONE, text }
    }
}

impl From<&str> for Place {
    fn from(text: &str) -> Place {
        Place { ino: Ino::NONE, text: text.into() }
    }
}

/// A problem, and whether it is only that the device could not read.
#[derive(Clone, Debug)]
struct What {
    text: String,
    unreadable: bool,
}

impl From<String> for What {
    fn from(text: String) -> What {
        What { text, unreadable: false }
    }
}

impl From<&str> for What {
    fn from(text: &str) -> What {
        What { text: text.into(), unreadable: false }
    }
}

impl From<&FormatError> for What {
    fn from(e: &FormatError) -> What {
        What { text: e.to_string(), unreadable: false }
    }
}

impl From<&StoreError> for What {
    fn from(e: &StoreError) -> What {
        What { text: e.without_advice(), unreadable: e.is_of_device() }
    }
}

impl What {
    /// Returns the error of a part.
    fn of(part: impl std::fmt::Display, e: &StoreError) -> What {
        What { text: format!("{part}: {}", e.without_advice()), ..What::from(e) }
    }
}

const UNREADABLE: &str = "nothing is done about what the device cannot read: repair or copy the device and check again, or give it up with --give-up-unreadable";

impl FsckReport {
    /// Returns whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
    /// Returns the number of problems that are still there.
    pub fn left(&self) -> usize {
        self.problems.iter().filter(|p| !p.repaired).count()
    }

    fn add(&mut self, place: impl Into<Place>, what: impl Into<What>, remedy: &str, repairable: bool) {
        let (place, what) = (place.into(), what.into());
        let (remedy, repairable) = match what.unreadable && !self.give_up_unreadable {
            true => (UNREADABLE, false),
            false => (remedy, repairable),
        };
        let p = Problem {
            inode: place.ino.0,
            path: None,
            structure: place.text,
            what: what.text,
            remedy: remedy.into(),
            repairable,
            repaired: false,
        };
        if !self.problems.iter().any(|q| (&q.structure, &q.what) == (&p.structure, &p.what)) {
            tracing::warn!("{}: {} ({})", p.structure, p.what, p.remedy);
            self.problems.push(p);
        }
    }
}

/// A function that is called now and then with the progress of a check, from several threads.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

/// Checks the volume on `devices`, in any order, and repairs it if the options ask for that.
/// Nothing else may have it open.
///
/// # Errors
/// If the check cannot be made: the devices are no volume of this kind, or fail; and for a repair,
/// if something cannot be read that it needs. What is wrong with a volume is no error but part of
/// the report.
pub fn check(
    devices: Vec<Arc<dyn Device>>,
    options: &FsckOptions,
    progress: OnProgress<'_>,
) -> Result<FsckReport> {
    let mut report = FsckReport { give_up_unreadable: options.give_up_unreadable, ..FsckReport::default() };
    match repair::run(devices, options, progress, live::ROUNDS, &mut report) {
        // A check ends here too: all the rest would be about what is missing because of it.
        Err(e) if e.is_of_device() && !options.repair => {
            if report.problems.iter().all(|p| p.remedy != UNREADABLE) {
                report.add("device", &e, UNREADABLE, false);
            }
        }
        other => other?,
    }
    for p in &mut report.problems {
        p.repaired = options.repair && p.repairable;
    }
    Ok(report)
}
