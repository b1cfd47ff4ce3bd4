//! Names of targets on the command line.

use super::{DirTarget, Memory, OpenTarget, VolumeTarget};
use crate::error::{Failure, Res};
use lanefs::{MountOptions, Order};
use std::path::PathBuf;

/// A target as it was named: `DIR`, `IMAGE`, `IMAGE,order=relaxed`, or
/// `mem:[SIZE][,lanes=N][,mlogs=N][,cache=SIZE][,order=relaxed][,background=no][,written=yes]
/// [,copies=2]`, and with the feature `ablation` what [`crate::ablation::KEYS`] lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// A directory of a mounted file system.
    Dir(PathBuf),
    /// A LaneFS volume in an image file or on a device.
    Image(PathBuf, Order),
    /// A new LaneFS volume in memory.
    Memory(Memory),
}

/// A target with the name it has in the results.
pub struct Named {
    /// Its name.
    pub name: String,
    /// The target itself.
    pub target: OpenTarget,
    /// Techniques of LaneFS that are off in it.
    pub without: Vec<String>,
}

impl TargetSpec {
    /// Reads a target's name.
    pub fn parse(text: &str) -> Res<TargetSpec> {
        if let Some(rest) = text.strip_prefix("mem:") {
            return Memory::parse(rest).map(TargetSpec::Memory);
        }
        let (text, order) = match text.strip_suffix(",order=relaxed") {
            Some(image) => (image, Order::Relaxed),
            None => (text, Order::Ordered),
        };
        let path = PathBuf::from(text);
        match std::fs::metadata(&path) {
            Ok(m) if m.is_dir() => Ok(TargetSpec::Dir(path)),
            Ok(_) => Ok(TargetSpec::Image(path, order)),
            Err(e) => Err(Failure::new(format!(
                "target `{text}`: {e}; name a directory, a LaneFS image, or mem:[SIZE]"
            ))),
        }
    }

    /// Opens it under a name.
    pub fn named(&self, name: &str, direct: bool) -> Res<Named> {
        let without = match self {
            TargetSpec::Memory(memory) => memory.off.names(),
            _ => Vec::new(),
        };
        Ok(Named { name: name.to_string(), target: self.open(direct)?, without })
    }

    /// Opens it. `direct`: data files bypass the page cache.
    pub fn open(&self, direct: bool) -> Res<OpenTarget> {
        Ok(match self {
            TargetSpec::Dir(path) => OpenTarget::Dir(DirTarget::new(path, direct)?),
            TargetSpec::Image(path, order) => {
                let options = MountOptions { order: *order, ..MountOptions::default() };
                OpenTarget::Volume(VolumeTarget::image(path, &options, direct)?)
            }
            TargetSpec::Memory(memory) => OpenTarget::Volume(VolumeTarget::memory(memory, direct)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        assert_eq!(TargetSpec::parse("mem:").unwrap(), TargetSpec::Memory(Memory::new(4 << 30)));
        assert!(
            matches!(TargetSpec::parse("mem:1M,background=no,written=yes").unwrap(), TargetSpec::Memory(m) if !m.background && m.written)
        );
        let one = Memory { lanes: 1, mlogs: 1, ..Memory::new(1 << 20) };
        assert_eq!(TargetSpec::parse("mem:1M,lanes=1,mlogs=1").unwrap(), TargetSpec::Memory(one));
        #[cfg(feature = "ablation")]
        assert!(
            matches!(TargetSpec::parse("mem:1M,counter=one,rps=shared").unwrap(), TargetSpec::Memory(m) if m.off.names() == ["counter", "rps"])
        );
        #[cfg(not(feature = "ablation"))]
        assert!(TargetSpec::parse("mem:1M,rps=shared").is_err());
        for bad in ["mem:x", "mem:1M,lanes", "mem:1M,lanes=x", "mem:1M,speed=1", "mem:1M,written=maybe"] {
            assert!(TargetSpec::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(TargetSpec::parse("/").unwrap(), TargetSpec::Dir("/".into()));
        assert!(TargetSpec::parse("/no/such/place").is_err());
    }
}
