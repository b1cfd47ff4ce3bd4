//! `lanefs dump`: a structure as it lies on disk, without opening (and recovering) the volume.
//!
//! Each structure is decoded into JSON; what people read is the same, indented.

mod log;
mod reader;
mod structures;

use crate::failure::{Failure, Outcome, written};
use lanefs::Ino;
use lanefs_format::BlockAddr;
use reader::Reader;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

/// Show a structure of an image as it is on disk
///
/// Nothing is recovered or repaired: what is shown is what the last checkpoint wrote, and behind it
/// the log.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// superblock, slots, table, usage, orphans, log, inode:N, map:N, dir:N or block:DEVICE:BLOCK
    pub structure: Structure,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// A structure that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Each device's superblock and its copy.
    Superblock,
    /// Both checkpoint slots.
    Slots,
    /// The inode numbers in use.
    Table,
    /// The segments.
    Usage,
    /// Inodes without names that were in use.
    Orphans,
    /// The batches behind the last checkpoint.
    Log,
    /// An inode.
    Inode(Ino),
    /// An inode's pages.
    Map(Ino),
    /// A directory's folded entries.
    Dir(Ino),
    /// Any block.
    Block(BlockAddr),
}

impl FromStr for Structure {
    type Err = String;

    fn from_str(text: &str) -> Result<Structure, String> {
        let number = |t: &str| t.parse::<u64>().map_err(|_| format!("{t:?} is not a number"));
        Ok(match text.split(':').collect::<Vec<_>>()[..] {
            ["superblock"] => Structure::Superblock,
            ["slots"] => Structure::Slots,
            ["table"] => Structure::Table,
            ["usage"] => Structure::Usage,
            ["orphans"] => Structure::Orphans,
            ["log"] => Structure::Log,
            ["inode", n] => Structure::Inode(Ino(number(n)?)),
            ["map", n] => Structure::Map(Ino(number(n)?)),
            ["dir", n] => Structure::Dir(Ino(number(n)?)),
            ["block", device, block] => {
                let device =
                    device.parse().map_err(|_| format!("{device:?} is not the number of a device"))?;
                Structure::Block(BlockAddr::new(device, number(block)? & ((1 << 56) - 1)))
            }
            _ => {
                return Err("name superblock, slots, table, usage, orphans, log, inode:N, map:N, dir:N or \
                            block:DEVICE:BLOCK"
                    .into());
            }
        })
    }
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let reader = Reader::open(&args.images)?;
    let value = match args.structure {
        Structure::Superblock => structures::superblocks(&reader)?,
        Structure::Slots => structures::slots(&reader)?,
        Structure::Table => structures::table(&reader)?,
        Structure::Usage => structures::usage(&reader)?,
        Structure::Orphans => structures::orphans(&reader)?,
        Structure::Log => log::log(&reader)?,
        Structure::Inode(ino) => structures::inode(&reader, ino)?,
        Structure::Map(ino) => structures::map(&reader, ino)?,
        Structure::Dir(ino) => structures::dir(&reader, ino)?,
        Structure::Block(addr) => structures::block(&reader, addr)?,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    written(match args.json {
        true => writeln!(out, "{value:#}"),
        false => indented(&mut out, &value, 0),
    })?;
    written(out.flush())?;
    Ok(0)
}

/// Formats a value that fits into a line; `None` if it does not.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Object(o) if o.values().all(|v| !v.is_object() && !v.is_array()) => {
            let fields: Vec<_> =
                o.iter().map(|(k, v)| format!("{k} {}", scalar(v).unwrap_or_default())).collect();
            Some(fields.join(", "))
        }
        Value::Object(_) => None,
        Value::Array(a) if a.is_empty() => Some("none".into()),
        Value::Array(_) => None,
        Value::Null => Some("none".into()),
        v => Some(v.to_string()),
    }
}

/// Writes JSON without its punctuation: a line per field or element.
fn indented(out: &mut impl Write, value: &Value, depth: usize) -> std::io::Result<()> {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, v) in fields {
                let name = name.replace('_', " ");
                match v {
                    Value::Object(_) => {
                        writeln!(out, "{pad}{name}:")?;
                        indented(out, v, depth + 1)?;
                    }
                    _ => match scalar(v) {
                        Some(text) => writeln!(out, "{pad}{name}: {text}")?,
                        None => {
                            writeln!(out, "{pad}{name}:")?;
                            indented(out, v, depth + 1)?;
                        }
                    },
                }
            }
        }
        Value::Array(items) => {
            for v in items {
                match scalar(v) {
                    Some(text) => writeln!(out, "{pad}- {text}")?,
                    None => {
                        writeln!(out, "{pad}-")?;
                        indented(out, v, depth + 1)?;
                    }
                }
            }
        }
        v => writeln!(out, "{pad}{}", scalar(v).unwrap_or_default())?,
    }
    Ok(())
}

/// Makes the failure of a structure that is not there.
fn none(what: impl std::fmt::Display) -> Failure {
    Failure::new(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_named() {
        assert_eq!("inode:17".parse(), Ok(Structure::Inode(Ino(17))));
        assert_eq!("block:1:99".parse(), Ok(Structure::Block(BlockAddr::new(1, 99))));
        for text in ["inode", "inode:x", "block:1", "block:300:1", "everything", ""] {
            assert!(text.parse::<Structure>().is_err(), "{text}");
        }
    }
}
