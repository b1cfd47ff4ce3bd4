//! `lanefs ls`

use crate::failure::{About, Failure, Outcome, written};
use crate::image::Place;
use crate::names;
use lanefs::{FileKind, Fs, Stat};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// List a directory of an unmounted image
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Show mode, links, owner, size and time too
    #[arg(short)]
    pub long: bool,
    /// Show names that begin with a dot too
    #[arg(short)]
    pub all: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// What to list, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<Place>,
}

/// One name and what it names.
pub struct Named {
    /// The name.
    pub name: OsString,
    /// Its attributes.
    pub stat: Stat,
}

/// Lists.
pub fn run(args: &Args) -> Outcome {
    let on_terminal = std::io::stdout().is_terminal();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut listed = Vec::new();
    for (i, place) in args.places.iter().enumerate() {
        let (_volume, fs) = place.open_to_read()?;
        let stat = fs.lstat(place.path.as_path()).about(place.show())?;
        let mut entries = match stat.kind {
            FileKind::Dir => entries(&fs, place)?,
            _ => vec![Named { name: place.path.clone().into(), stat }],
        };
        entries.retain(|e| args.all || args.json || !e.name.as_encoded_bytes().starts_with(b"."));
        if args.json {
            listed.extend(entries.iter().map(|e| json(&fs, place, e)));
            continue;
        }
        if args.places.len() > 1 {
            let gap = if i > 0 { "\n" } else { "" };
            written(write!(out, "{gap}"))?;
            written(out.write_all(&names::told(place.show().as_ref(), on_terminal)))?;
            written(writeln!(out, ":"))?;
        }
        for e in &entries {
            if args.long {
                written(write!(out, "{}", long(&e.stat)))?;
            }
            written(out.write_all(&names::told(&e.name, on_terminal)))?;
            if args.long && e.stat.kind == FileKind::Symlink {
                written(write!(out, " -> "))?;
                written(out.write_all(&names::told(&link(&fs, place, e), on_terminal)))?;
            }
            written(writeln!(out))?;
        }
    }
    if args.json {
        written(writeln!(out, "{:#}", serde_json::Value::Array(listed)))?;
    }
    written(out.flush())?;
    Ok(0)
}

/// Returns a directory's entries by name, without `.` and `..`.
pub fn entries(fs: &Fs, place: &Place) -> Result<Vec<Named>, Failure> {
    let mut names: Vec<OsString> = Vec::new();
    fs.read_dir_from(place.path.as_path(), 0, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push(OsString::from_vec(e.name.to_vec()));
        }
        true
    })
    .about(place.show())?;
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let path = place.path.join(&name);
            let stat = fs.lstat(path.as_path()).about(place.at(&path).show())?;
            Ok(Named { name, stat })
        })
        .collect()
}

/// Returns the target of a symbolic link.
fn link(fs: &Fs, place: &Place, e: &Named) -> OsString {
    let path = if place.path.as_os_str() == e.name { place.path.clone() } else { place.path.join(&e.name) };
    OsString::from_vec(fs.readlink(path.as_path()).unwrap_or_default())
}

/// Returns the word for a kind, as in find(1)'s long names.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Char => "char",
        FileKind::BlockDev => "block",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

fn json(fs: &Fs, place: &Place, e: &Named) -> serde_json::Value {
    let s = &e.stat;
    let target = (s.kind == FileKind::Symlink).then(|| link(fs, place, e).to_string_lossy().into_owned());
    serde_json::json!({
        "name": e.name.to_string_lossy(), "ino": s.ino.0, "generation": s.generation, "kind": kind_name(s.kind),
        "mode": format!("{:04o}", s.mode & 0o7777), "nlink": s.nlink, "uid": s.uid, "gid": s.gid, "rdev": s.rdev,
        "size": s.size, "blocks": s.blocks, "atime_ns": s.atime, "mtime_ns": s.mtime, "ctime_ns": s.ctime,
        "btime_ns": s.btime, "target": target,
    })
}

/// Formats what stands before a name in a long listing.
fn long(s: &Stat) -> String {
    let when = date(s.mtime);
    format!("{} {:>3} {:>5} {:>5} {:>10} {when} ", mode(s), s.nlink, s.uid, s.gid, s.size)
}

/// Formats the ten letters of `ls -l`.
pub fn mode(s: &Stat) -> String {
    let kind = match s.kind {
        FileKind::File => '-',
        FileKind::Dir => 'd',
        FileKind::Symlink => 'l',
        FileKind::Char => 'c',
        FileKind::BlockDev => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut out = String::from(kind);
    for (shift, special, letter) in
        [(6, libc::S_ISUID, 's'), (3, libc::S_ISGID, 's'), (0, libc::S_ISVTX, 't')]
    {
        let bits = s.mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (s.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    debug_assert_eq!(out.len(), 10);
    out
}

/// Formats a time as `2026-01-31 23:59:59` UTC.
pub fn date(ns: i64) -> String {
    let (seconds, _) = lanefs::times::parts(ns);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a date of the Gregorian calendar, in years that begin in March.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    debug_assert!((1..=12).contains(&month) && (1..=31).contains(&day), "{ns}: {month}-{day}");
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Returns whether a path ends in a slash, and so must be a directory.
pub fn wants_dir(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_on_both_sides_of_1970() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(-1), "1969-12-31 23:59:59");
        assert_eq!(date(951_827_696_000_000_000), "2000-02-29 12:34:56");
        assert_eq!(date(1_709_164_800_000_000_000), "2024-02-29 00:00:00");
    }
}
