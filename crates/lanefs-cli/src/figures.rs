//! The figures of a volume, mounted or not, as `lanefs stat` and `lanefs top` show them.

use crate::failure::Failure;
use crate::{image, mounted};
use lanefs::report::Report;
use lanefs::{MountOptions, OpenReport};
use lanefs_fuse::report::{MountReport, RequestReport};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The version of the form in which figures are written as JSON.
const FORMAT: u32 = 1;

/// The figures of a volume.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// See [`FORMAT`].
    format: u32,
    /// What was asked for.
    pub images: Vec<String>,
    /// Where it is mounted.
    pub mounted: Option<String>,
    /// The mount.
    pub mount: Option<Served>,
    /// What recovery found, of an image that is not mounted.
    pub recovery: Option<Recovery>,
    /// The volume.
    pub volume: Report,
}

/// The figures of a mount.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// Seconds since it was made.
    pub mounted_seconds: f64,
    /// Whether requests are timed.
    pub is_timed: bool,
    /// The requests by kind.
    pub requests: Vec<RequestReport>,
}

/// What opening an image found; nothing of it is written.
#[derive(Clone, Debug, Serialize)]
pub struct Recovery {
    /// It was closed: there is nothing to recover.
    pub clean: bool,
    /// Batches of the log that count.
    pub batches: u64,
    /// Batches whose data did not arrive.
    pub batches_dropped: u64,
    /// Blocks of the log that were looked at, in bytes.
    pub scanned_bytes: u64,
    /// Operations on names found in the log.
    pub groups: u64,
    /// Changes of inodes found in the log.
    pub inode_updates: u64,
}

impl From<&OpenReport> for Recovery {
    fn from(r: &OpenReport) -> Recovery {
        Recovery {
            clean: r.clean,
            batches: r.batches,
            batches_dropped: r.batches_dropped,
            scanned_bytes: r.blocks_scanned << lanefs_format::BLOCK_SHIFT,
            groups: r.groups,
            inode_updates: r.inode_updates,
        }
    }
}

impl Figures {
    /// Makes the figures of a mount.
    pub fn of_mount(images: &[PathBuf], dir: &Path, report: MountReport) -> Figures {
        let MountReport { mounted_seconds, is_timed, requests, volume } = report;
        Figures {
            format: FORMAT,
            images: shown(images),
            mounted: Some(dir.canonicalize().unwrap_or_else(|_| dir.into()).display().to_string()),
            mount: Some(Served { mounted_seconds, is_timed, requests }),
            recovery: None,
            volume,
        }
    }

    /// Looks at images that are not mounted, without writing to them.
    pub fn of_images(images: &[PathBuf]) -> Result<Figures, Failure> {
        let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
        let volume = image::open_with(images, &options)?;
        Ok(Figures {
            format: FORMAT,
            images: shown(images),
            mounted: None,
            mount: None,
            recovery: Some(volume.open_report().into()),
            volume: volume.report()?,
        })
    }
}

fn shown(images: &[PathBuf]) -> Vec<String> {
    images.iter().map(|i| i.display().to_string()).collect()
}

/// Returns the directory where the volume is mounted that is meant, if it is.
pub fn dir_of(images: &[PathBuf]) -> Result<Option<PathBuf>, Failure> {
    mounted::either(images, |dir| Ok(Some(dir.to_path_buf())), |_| Ok(None))
}
