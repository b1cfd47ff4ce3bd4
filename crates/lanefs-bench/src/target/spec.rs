//! How a target is named on the command line.

use super::{DirTarget, OpenTarget, VolumeTarget};
use crate::ablation::{self, Off};
use crate::error::{Failure, Res};
use lanefs::{MountOptions, Order};
use std::path::PathBuf;

/// A target as it was named: `DIR`, `IMAGE`, `IMAGE,order=relaxed`, or
/// `mem:[SIZE][,lanes=N][,mlogs=N][,cache=SIZE][,order=relaxed][,background=no][,written=yes]
/// [,copies=2]`, and with the feature `ablation` what [`ablation::KEYS`] lists.
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
    /// It.
    pub target: OpenTarget,
    /// Techniques of LaneFS that are off in it.
    pub without: Vec<String>,
}

/// A volume in memory and what of it is not as usual: with one lane or one mlog it shows what these
/// are worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the device.
    pub bytes: u64,
    /// Lanes; 0 for the default.
    pub lanes: usize,
    /// mlogs; 0 for the default.
    pub mlogs: usize,
    /// Bytes of cache; 0 for the default.
    pub cache: u64,
    /// In which order names become durable.
    pub order: Order,
    /// The volume's own threads run.
    pub background: bool,
    /// All of the device was written before, and it takes no discards.
    pub written: bool,
    /// How often all but file data lies on the device.
    pub copies: u32,
    /// Techniques that are off.
    pub off: Off,
}

impl Memory {
    /// A volume of this size, otherwise as usual.
    pub fn new(bytes: u64) -> Memory {
        Memory {
            bytes,
            lanes: 0,
            mlogs: 0,
            cache: 0,
            order: Order::default(),
            background: true,
            written: false,
            copies: 1,
            off: Off::default(),
        }
    }

    fn parse(text: &str) -> Res<Memory> {
        let mut parts = text.split(',');
        let size = parts.next().unwrap_or_default();
        let mut memory = Memory::new(if size.is_empty() { 4 << 30 } else { parse_size(size)? });
        for part in parts {
            let bad = || {
                Failure::new(format!(
                    "`{part}`: after mem:SIZE come lanes=N, mlogs=N, cache=SIZE, order=relaxed, background=no, written=yes, copies=2{}",
                    ablation::keys()
                ))
            };
            let (key, value) = part.split_once('=').ok_or_else(bad)?;
            match key {
                "lanes" => memory.lanes = value.parse().map_err(|_| bad())?,
                "mlogs" => memory.mlogs = value.parse().map_err(|_| bad())?,
                "cache" => memory.cache = parse_size(value)?,
                "order" => {
                    memory.order = match value {
                        "ordered" => Order::Ordered,
                        "relaxed" => Order::Relaxed,
                        _ => return Err(bad()),
                    }
                }
                "background" => memory.background = yes(value).ok_or_else(bad)?,
                "written" => memory.written = yes(value).ok_or_else(bad)?,
                "copies" => {
                    memory.copies = match value {
                        "1" => 1,
                        "2" => 2,
                        _ => return Err(bad()),
                    }
                }
                _ if memory.off.add(part)? => {}
                _ => return Err(bad()),
            }
        }
        Ok(memory)
    }

    /// How such a volume is opened.
    pub fn options(&self) -> MountOptions {
        MountOptions {
            lanes: self.lanes,
            mlogs: self.mlogs,
            cache_size: self.cache,
            background: self.background,
            order: self.order,
            ..MountOptions::default()
        }
    }
}

fn yes(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
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
