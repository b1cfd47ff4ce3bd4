//! How a target is named on the command line.

use super::{DirTarget, OpenTarget, VolumeTarget};
use crate::error::{Failure, Res};
use lanefs::MountOptions;
use std::path::PathBuf;

/// A target as it was named: `DIR`, `IMAGE`, or `mem:[SIZE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// A directory of a mounted file system.
    Dir(PathBuf),
    /// A LaneFS volume in an image file or on a device.
    Image(PathBuf),
    /// A new LaneFS volume of this many bytes in memory.
    Memory(u64),
}

/// Reads a size such as `4G`, `512M` or `1048576`.
pub fn parse_size(text: &str) -> Res<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().trim_end_matches(['b', 'i']) {
        "" => 1,
        "k" => 1u64 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(Failure::new(format!("`{text}` is not a size; say for example 4G or 512M"))),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| Failure::new(format!("`{text}` is not a size; say for example 4G or 512M")))
}

impl TargetSpec {
    /// Reads a target's name.
    pub fn parse(text: &str) -> Res<TargetSpec> {
        if let Some(size) = text.strip_prefix("mem:") {
            return Ok(TargetSpec::Memory(if size.is_empty() { 4 << 30 } else { parse_size(size)? }));
        }
        let path = PathBuf::from(text);
        match std::fs::metadata(&path) {
            Ok(m) if m.is_dir() => Ok(TargetSpec::Dir(path)),
            Ok(_) => Ok(TargetSpec::Image(path)),
            Err(e) => Err(Failure::new(format!(
                "target `{text}`: {e}; name a directory, a LaneFS image, or mem:[SIZE]"
            ))),
        }
    }

    /// Opens it. `direct`: data files bypass the page cache.
    pub fn open(&self, direct: bool) -> Res<OpenTarget> {
        Ok(match self {
            TargetSpec::Dir(path) => OpenTarget::Dir(DirTarget::new(path, direct)?),
            TargetSpec::Image(path) => {
                OpenTarget::Volume(VolumeTarget::image(path, &MountOptions::default(), direct)?)
            }
            TargetSpec::Memory(bytes) => OpenTarget::Volume(VolumeTarget::memory(*bytes, direct)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4G").unwrap(), 4 << 30);
        assert_eq!(parse_size("512MiB").unwrap(), 512 << 20);
        assert_eq!(parse_size("17").unwrap(), 17);
        for bad in ["", "G", "4X", "-1", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn targets() {
        assert_eq!(TargetSpec::parse("mem:").unwrap(), TargetSpec::Memory(4 << 30));
        assert_eq!(TargetSpec::parse("mem:1M").unwrap(), TargetSpec::Memory(1 << 20));
        assert_eq!(TargetSpec::parse("/").unwrap(), TargetSpec::Dir("/".into()));
        assert!(TargetSpec::parse("/no/such/place").is_err());
    }
}
