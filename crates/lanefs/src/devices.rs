//! Which device of a volume a name means, and what the store needs from above to change them.

use crate::error::Error;
use crate::persist::{Persist, checkpoint, free, host};
use lanefs_store::StoreError;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Returns which of the devices of these names an image is.
pub(crate) fn place_of(image: &Path, names: &[String]) -> Option<usize> {
    let identity = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        let is_device = meta.file_type().is_block_device();
        Some(if is_device { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) })
    };
    let wanted = identity(image);
    debug_assert!(!names.is_empty(), "a volume lies on a device");
    debug_assert!(names.iter().all(|name| !name.is_empty()), "a device without a name: {names:?}");
    names
        .iter()
        .position(|name| Path::new(name) == image || wanted.is_some() && wanted == identity(Path::new(name)))
}

/// Returns which of the devices of these names an image is, or the error for one that is none.
pub(crate) fn must_be_of(image: &Path, names: &[String]) -> Result<usize, Error> {
    debug_assert!(!names.is_empty(), "a volume lies on a device");
    place_of(image, names).ok_or_else(|| none_of(image, names))
}

/// Returns the error for an image that is no device of the volume.
fn none_of(image: &Path, names: &[String]) -> Error {
    let (image, all) = (image.display(), names.join(", "));
    debug_assert!(!all.is_empty(), "a volume without devices");
    Error::from(StoreError::Invalid(format!("{image}: is no device of the volume; these are: {all}")))
}

/// Returns the error for an image that is not the last of the devices, which alone can do that.
pub(crate) fn not_the_last(path: &Path, names: &[String], what: &str) -> Error {
    let (image, all) = (path.display(), names.join(", "));
    let instead = match what {
        "be removed" => ". Remove that one, and put it in the place of the other: `lanefs device replace`",
        _ => "",
    };
    let last = names.last().map_or("", String::as_str);
    debug_assert!(!what.is_empty(), "it is refused to do nothing");
    match place_of(path, names) {
        Some(_) => Error::from(StoreError::Invalid(format!(
            "{image}: only the last device of a volume can {what}, {last}; the places of blocks are counted \
             device after device ({all}){instead}"
        ))),
        None => none_of(path, names),
    }
}

/// Frees what was removed until now, before a volume is to have less space: it would be moved, or
/// count as what does not fit.
pub(crate) fn before_less(persist: &Persist) {
    // What stands in its way stands in the way of the change as well, whose error says so.
    if let Err(e) = free::free_all(persist) {
        tracing::debug!("freeing what was removed: {e}");
    }
}

/// Returns what makes a checkpoint that folds, for the store.
pub(crate) fn fold(persist: &Persist) -> impl Fn() -> lanefs_store::Result<()> + '_ {
    debug_assert!(!persist.options.read_only, "a volume is changed that is only read");
    || match host::when_there_is_space(persist, || checkpoint::checkpoint(persist)) {
        Ok(_) => Ok(()),
        Err(Error::Store(e)) => Err(e),
        Err(e) if e.errno() == libc::ENOSPC => Err(StoreError::NoSpace),
        Err(e) => Err(StoreError::Invalid(e.to_string())),
    }
}
