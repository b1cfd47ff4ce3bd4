//! `lanefs tree`

use super::ls::{entries, kind_name};
use crate::failure::{About, Failure, Outcome, written};
use crate::image::Place;
use crate::names;
use lanefs::{FileKind, Fs};
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

/// Show a directory of an unmounted image and all below it
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Go down at most this many levels
    #[arg(short = 'L', value_name = "LEVELS")]
    pub levels: Option<usize>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Where to begin, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    pub place: Place,
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let (_volume, fs) = args.place.open_to_read()?;
    let on_terminal = std::io::stdout().is_terminal();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let levels = args.levels.unwrap_or(usize::MAX);
    if args.json {
        let tree = json(&fs, &args.place, levels)?;
        written(writeln!(out, "{tree:#}"))?;
    } else {
        let mut counts = (0u64, 0u64);
        written(out.write_all(&names::told(args.place.show().as_ref(), on_terminal)))?;
        written(writeln!(out))?;
        let mut to = Told { out: &mut out, on_terminal };
        text(&fs, &args.place, "", levels, &mut counts, &mut to)?;
        written(writeln!(out, "\n{} directories, {} files", counts.0, counts.1))?;
    }
    written(out.flush())?;
    Ok(0)
}

/// Where the names go.
struct Told<'a, W> {
    out: &'a mut W,
    on_terminal: bool,
}

fn text(
    fs: &Fs,
    place: &Place,
    indent: &str,
    levels: usize,
    counts: &mut (u64, u64),
    to: &mut Told<'_, impl Write>,
) -> Result<(), Failure> {
    if levels == 0 {
        return Ok(());
    }
    let list = entries(fs, place)?;
    for (i, e) in list.iter().enumerate() {
        let (branch, below) = if i + 1 == list.len() { ("`-- ", "    ") } else { ("|-- ", "|   ") };
        let inner = place.at(place.path.join(&e.name));
        debug_assert_eq!(branch.len(), below.len(), "the lines below stand under the name");
        written(write!(to.out, "{indent}{branch}"))?;
        written(to.out.write_all(&names::told(&e.name, to.on_terminal)))?;
        if e.stat.kind == FileKind::Symlink {
            let target = fs.readlink(inner.path.as_path()).about(inner.show())?;
            written(write!(to.out, " -> "))?;
            written(to.out.write_all(&names::told(OsStr::from_bytes(&target), to.on_terminal)))?;
        }
        written(writeln!(to.out))?;
        match e.stat.kind {
            FileKind::Dir => {
                counts.0 += 1;
                text(fs, &inner, &format!("{indent}{below}"), levels - 1, counts, to)?;
            }
            _ => counts.1 += 1,
        }
    }
    Ok(())
}

fn json(fs: &Fs, place: &Place, levels: usize) -> Result<serde_json::Value, Failure> {
    if levels == 0 {
        return Ok(serde_json::Value::Array(Vec::new()));
    }
    let mut list = Vec::new();
    for e in entries(fs, place)? {
        let mut node = serde_json::json!({
            "name": e.name.to_string_lossy(), "kind": kind_name(e.stat.kind), "size": e.stat.size, "ino": e.stat.ino.0,
        });
        if e.stat.kind == FileKind::Dir {
            node["entries"] = json(fs, &place.at(place.path.join(&e.name)), levels - 1)?;
        }
        list.push(node);
    }
    Ok(serde_json::Value::Array(list))
}
