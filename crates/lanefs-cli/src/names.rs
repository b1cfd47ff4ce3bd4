//! The names of a volume's images.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Splits `a,b` into two images, unless there is a file named `a,b`.
pub fn images(text: &OsStr) -> Vec<PathBuf> {
    if Path::new(text).exists() {
        return vec![PathBuf::from(text)];
    }
    text.as_bytes()
        .split(|b| *b == b',')
        .filter(|p| !p.is_empty())
        .map(|p| OsStr::from_bytes(p).into())
        .collect()
}

/// Splits each of several names, which may be `a,b` too.
pub fn all(given: &[PathBuf]) -> Vec<PathBuf> {
    given.iter().flat_map(|name| images(name.as_os_str())).collect()
}

/// Returns the image behind a loop device that goes when it is not used any more; anything else
/// stands for itself.
pub fn behind(device: &Path) -> PathBuf {
    let image = || {
        let name = device.strip_prefix("/dev").ok()?.to_str().filter(|n| n.starts_with("loop"))?;
        let about = |what: &str| std::fs::read_to_string(format!("/sys/block/{name}/loop/{what}")).ok();
        let goes = about("autoclear")?.trim_end() == "1";
        let image = PathBuf::from(about("backing_file")?.trim_end_matches('\n'));
        (goes && image.exists()).then_some(image)
    };
    image().unwrap_or_else(|| device.to_path_buf())
}
