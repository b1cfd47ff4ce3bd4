//! Reports of a check on blocks that have copies, of which one is bad: see `crate::engine::copies`.

use super::{FsckReport, Place, What};
use crate::log::io::Io;
use lanefs_format::BlockRef;

pub(super) const AGAIN: &str = "it is written again from the other";

/// Returns what is wrong with one of the copies of a block that was read. That it may only be
/// unreadable keeps nobody from writing: nothing is missing for it.
pub(super) fn bad_copy(io: &Io, r: BlockRef) -> Option<What> {
    let (at, e) = io.bad_copy(r, "copy")?;
    Some(What { unreadable: false, ..What::of(format_args!("one of two copies, in block {at}"), &e) })
}

/// Reports such a copy, of a block of the volume.
pub(super) fn report_copy(io: &Io, place: Place, r: BlockRef, report: &mut FsckReport) {
    if let Some(what) = bad_copy(io, r) {
        report.add(place, what, AGAIN, true);
    }
}
