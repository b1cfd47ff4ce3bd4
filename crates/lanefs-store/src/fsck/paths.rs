//! The paths of files and directories that something is wrong with: people know paths, not inode
//! numbers.

use super::FsckReport;
use super::entry::for_each_entry;
use super::names::Walked;
use lanefs_format::{FileKind, Ino, ROOT_INO};
use std::collections::{HashMap, HashSet};

/// No path is followed deeper: a damaged volume may hold circles.
const DEPTH: usize = 1 << 12;

/// Gives the problems of inodes a path, as far as directories that can be read lead to them. Reads
/// all directories if there is one without.
pub(super) fn name_problems(Walked { walk, table, io }: Walked<'_>, report: &mut FsckReport) {
    let nameless = report.problems.iter().filter(|p| p.path.is_none());
    let wanted: HashSet<Ino> = nameless.map(|p| Ino(p.inode)).filter(|i| !i.is_none()).collect();
    if wanted.is_empty() {
        return;
    }
    let mut named: HashMap<Ino, (Ino, Box<[u8]>)> = HashMap::new();
    for (dir, _) in walk.inodes.iter().filter(|(_, i)| i.kind == FileKind::Dir) {
        // What cannot be read was reported.
        let _ = for_each_entry(*dir, table, io, &mut |e| {
            if e.kind == FileKind::Dir || wanted.contains(&e.ino) {
                named.entry(e.ino).or_insert_with(|| (*dir, e.name.into()));
            }
        });
    }
    let path = |ino: Ino| -> Option<String> {
        let (mut at, mut parts) = (ino, Vec::new());
        while at != ROOT_INO {
            let (dir, name) = named.get(&at).filter(|_| parts.len() < DEPTH)?;
            parts.push(name.escape_ascii().to_string());
            at = *dir;
        }
        debug_assert!(parts.len() <= DEPTH, "a path of {} names", parts.len());
        parts.push(String::new());
        parts.reverse();
        Some(if parts.len() == 1 { "/".into() } else { parts.join("/") })
    };
    let nameless = report.problems.iter_mut().filter(|p| p.path.is_none() && p.inode != 0);
    nameless.for_each(|p| p.path = path(Ino(p.inode)));
}
