//! A volume in memory, as it is described on the command line.

use crate::ablation::{self, Off};
use crate::error::{Failure, Res};
use crate::units::parse_size;
use lanefs::{MountOptions, Order};

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
    /// Whether the volume's own threads run.
    pub background: bool,
    /// Whether all of the device was written before, and takes no discards.
    pub written: bool,
    /// The number of copies of all but file data on the device.
    pub copies: u32,
    /// Techniques that are off.
    pub off: Off,
    /// The key by which names are hashed; else a random one.
    pub hash_key: Option<[u64; 2]>,
}

/// The key of volumes on which things are counted. Where names lie decides how many buckets a
/// directory has, and with that what a listing costs: in one of some dozens of runs 3 % more.
const COUNTED_KEY: [u64; 2] = [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321];

impl Memory {
    /// Describes a volume of this size, otherwise as usual.
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
            hash_key: None,
        }
    }

    /// Describes the same with names that are hashed as in every other volume of this kind, so that
    /// counts can be compared.
    pub fn counted(self) -> Memory {
        Memory { hash_key: Some(COUNTED_KEY), ..self }
    }

    /// Reads what follows `mem:` in a target's name.
    pub(super) fn parse(text: &str) -> Res<Memory> {
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
        debug_assert!((1..=2).contains(&memory.copies));
        Ok(memory)
    }

    /// Returns the options that such a volume is opened with.
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

/// Reads `yes` or `no`.
fn yes(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}
