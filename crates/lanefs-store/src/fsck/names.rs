//! The name space: every entry lies where its name belongs ([`places`](super::places)) and leads to
//! an inode of its kind, link counts equal names, every directory has one name, in the directory it
//! calls its parent, and reaches the root. What does not fit becomes a list of fixes.
//!
//! The atomics here are Relaxed: they hand out work and count, and the threads that add to them are
//! joined before anybody goes by the sums.

use super::entry::{Fix, Name, for_each_entry};
use super::places::Places;
use super::walk::{InodeInfo, Walk};
use super::{FsckReport, OnProgress, Phase, Place, Progress};
use crate::error::Result;
use crate::log::io::Io;
use crate::tree::inode_table::InodeTable;
use lanefs_format::{FileKind, Ino, ROOT_INO};
use lanefs_sync::lock::Mutex;
use lanefs_sync::parallel::in_parallel;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The findings of a walk, and the way to read the rest.
#[derive(Clone, Copy)]
pub(super) struct Walked<'a> {
    pub walk: &'a Walk,
    pub table: &'a InodeTable,
    pub io: &'a Io,
}

struct Found {
    fixes: Vec<Fix>,
    /// Names of directories, by the directory named.
    dir_names: HashMap<Ino, Vec<Name>>,
    lost_found: Option<Ino>,
}

/// The findings of a look at all names.
pub(super) struct Names {
    pub fixes: Vec<Fix>,
    /// The directory for what has no name.
    pub lost_found: Option<Ino>,
}

pub(super) const LOST_FOUND: &[u8] = b"lost+found";

/// Looks at all names. `orphans` are inodes known to be without one.
pub(super) fn check(
    Walked { walk, table, io }: Walked<'_>,
    orphans: &BTreeSet<Ino>,
    key: [u64; 2],
    threads: usize,
    progress: OnProgress<'_>,
    report: &mut FsckReport,
) -> Names {
    let inodes = &walk.inodes;
    let dirs: Vec<Ino> = inodes.iter().filter(|(_, i)| i.kind == FileKind::Dir).map(|(n, _)| *n).collect();
    let found =
        Mutex::new((Found { fixes: Vec::new(), dir_names: HashMap::new(), lost_found: None }, &mut *report));
    let (done, names) = (AtomicU64::new(0), AtomicU64::new(0));
    in_parallel(threads, dirs.len(), |n| {
        let dir = dirs[n];
        let Seen { read, count, own, places } = see(Walked { walk, table, io }, dir, key);
        names.fetch_add(count, Relaxed);
        let mut guard = found.lock();
        let (found, report) = &mut *guard;
        if let Err(e) = read {
            report.add(Place::of_directory(dir), &e, "its readable part is kept", true);
        }
        for (name, kind, lost_found) in own {
            if lost_found {
                found.lost_found = Some(name.ino);
            }
            judge_entry(name, kind, inodes, found, report);
        }
        // A directory that cannot be read was reported above.
        if let Ok(fixes) = places.judge(table, io, |ino| inodes.get(&ino).map(|i| i.kind), report) {
            found.fixes.extend(fixes);
        }
        let done = done.fetch_add(1, Relaxed) + 1;
        if done.is_multiple_of(256) {
            progress(Progress { phase: Phase::Names, done, total: dirs.len() as u64 });
        }
    });
    debug_assert_eq!(done.into_inner(), dirs.len() as u64, "each directory is looked at once");
    let (mut found, report) = found.into_inner();
    report.inodes = inodes.len() as u64;
    report.directories = dirs.len() as u64;
    report.names = names.into_inner();
    let parents = directories(inodes, &dirs, &mut found, report);
    unreachable(inodes, &parents, &mut found, report);
    link_counts(inodes, orphans, &mut found, report);
    // The kind of an entry that goes away does not matter; records of both would cancel each other
    // out.
    let gone: BTreeSet<Name> = found
        .fixes
        .iter()
        .filter_map(|f| match f {
            Fix::Remove(n, _) | Fix::Move(n, ..) => Some(n.clone()),
            _ => None,
        })
        .collect();
    found.fixes.retain(|f| !matches!(f, Fix::Kind(n, _) if gone.contains(n)));
    debug_assert!(found.dir_names.is_empty(), "names of a directory that was not judged");
    debug_assert!(
        found.lost_found.is_none_or(|ino| inodes.get(&ino).is_some_and(|i| i.kind == FileKind::Dir)),
        "lost+found is no directory"
    );
    Names { fixes: found.fixes, lost_found: found.lost_found }
}

/// The entries of one directory.
struct Seen {
    /// The error of reading them, if there was one.
    read: Result<()>,
    count: u64,
    /// Those that have to be judged, with the kind that each names, and whether it is lost+found.
    own: Vec<(Name, FileKind, bool)>,
    places: Places,
}

/// Reads a directory, and counts its entries as names of their inodes.
fn see(Walked { walk, table, io }: Walked<'_>, dir: Ino, key: [u64; 2]) -> Seen {
    let (mut own, mut count, mut places) = (Vec::new(), 0u64, Places::new(key, dir));
    let read = for_each_entry(dir, table, io, &mut |e| {
        count += 1;
        places.see(&e);
        let target = walk.inodes.get(&e.ino);
        if let Some(t) = target {
            t.names.fetch_add(1, Relaxed);
        }
        let named = || Name { dir, cookie: e.cookie, name: e.name.into(), ino: e.ino };
        let is_dir = target.is_some_and(|t| t.kind == FileKind::Dir);
        let lost_found = dir == ROOT_INO && is_dir && e.name == LOST_FOUND;
        if target.is_none_or(|t| t.kind != e.kind) || is_dir || lost_found {
            own.push((named(), e.kind, lost_found));
        }
    });
    debug_assert!(own.len() as u64 <= count, "{} of {count} entries are judged", own.len());
    Seen { read, count, own, places }
}

fn judge_entry(
    name: Name,
    kind: FileKind,
    inodes: &BTreeMap<Ino, InodeInfo>,
    found: &mut Found,
    report: &mut FsckReport,
) {
    let at = Place::of_entry(name.dir, &name.name);
    match inodes.get(&name.ino) {
        None => {
            report.add(at, format!("names inode {}, which does not exist", name.ino), "it is removed", true);
            found.fixes.push(Fix::Remove(name, kind));
        }
        Some(t) => {
            if t.kind != kind {
                let what = format!("says {kind:?}, but inode {} is {:?}", name.ino, t.kind);
                report.add(at, what, "the entry is set to the inode's kind", true);
                found.fixes.push(Fix::Kind(name.clone(), t.kind));
            }
            if t.kind == FileKind::Dir {
                found.dir_names.entry(name.ino).or_default().push(name);
            }
        }
    }
}

/// Checks that every directory but the root has one name, in the directory that it calls its
/// parent. Returns the name of each.
fn directories(
    inodes: &BTreeMap<Ino, InodeInfo>,
    dirs: &[Ino],
    found: &mut Found,
    report: &mut FsckReport,
) -> HashMap<Ino, Name> {
    let mut parents = HashMap::new();
    for &ino in dirs {
        let Some(info) = inodes.get(&ino) else { continue };
        let mut names = found.dir_names.remove(&ino).unwrap_or_default();
        names.sort_unstable();
        if ino == ROOT_INO {
            for n in names {
                let at = Place::of_entry(n.dir, &n.name);
                report.add(at, "names the root directory", "it is removed", true);
                info.names.fetch_sub(1, Relaxed);
                found.fixes.push(Fix::Remove(n, FileKind::Dir));
            }
            continue;
        }
        let keep = names.iter().position(|n| n.dir == info.parent).unwrap_or(0);
        for (i, n) in names.into_iter().enumerate() {
            if i != keep {
                let at = Place::of_entry(n.dir, &n.name);
                report.add(at, format!("is another name of directory {ino}"), "it is removed", true);
                found.fixes.push(Fix::Remove(n, FileKind::Dir));
                continue;
            }
            if n.dir != info.parent {
                let what = format!("calls {} its parent, but lies in {}", info.parent, n.dir);
                report.add(Place::of_directory(ino), what, "its parent is set to where it lies", true);
                found.fixes.push(Fix::Parent(ino, n.dir));
            }
            let before = parents.insert(ino, n);
            debug_assert!(before.is_none(), "directory {ino} keeps two names");
        }
    }
    debug_assert!(!parents.contains_key(&ROOT_INO), "the root keeps a name");
    parents
}

/// Looks for directories that are in a circle, and so do not reach the root: one of each circle
/// goes to lost+found.
fn unreachable(
    inodes: &BTreeMap<Ino, InodeInfo>,
    parents: &HashMap<Ino, Name>,
    found: &mut Found,
    report: &mut FsckReport,
) {
    // The last walk that came by; walks are numbered from 1.
    let mut seen: HashMap<Ino, usize> = HashMap::new();
    let mut starts: Vec<Ino> = parents.keys().copied().collect();
    starts.sort_unstable();
    for (n, start) in starts.into_iter().enumerate() {
        let mut at = start;
        while let Some(name) = parents.get(&at) {
            match seen.insert(at, n + 1) {
                None => at = name.dir,
                Some(walk) if walk == n + 1 => {
                    report.add(
                        Place::of_directory(at),
                        "contains itself: it does not lead to the root",
                        "it is moved to /lost+found",
                        true,
                    );
                    found.fixes.push(Fix::Remove(name.clone(), FileKind::Dir));
                    if inodes.contains_key(&at) {
                        found.fixes.push(Fix::Reconnect(at, FileKind::Dir));
                    }
                    break;
                }
                Some(_) => break,
            }
        }
    }
}

fn link_counts(
    inodes: &BTreeMap<Ino, InodeInfo>,
    orphans: &BTreeSet<Ino>,
    found: &mut Found,
    report: &mut FsckReport,
) {
    for (&ino, i) in inodes {
        let names = i.names.load(Relaxed) + u32::from(ino == ROOT_INO);
        let at = || Place { ino, text: format!("inode {ino}") };
        // What the block of an orphan counts is not asked: it may be older than the removal.
        if names != i.nlink && !(names == 0 && orphans.contains(&ino)) {
            let what = format!("counts {} names, and has {names}", i.nlink);
            report.add(at(), what, "the count is set to the number of names", true);
            found.fixes.push(Fix::Names(ino, names));
        }
        if names > 0 || orphans.contains(&ino) {
            continue;
        }
        debug_assert!(ino != ROOT_INO, "the root directory counts as one that has a name");
        if i.nlink > 0 {
            report.add(at(), "has no name", "it is given one in /lost+found", true);
            found.fixes.push(Fix::Reconnect(ino, i.kind));
        } else {
            report.add(at(), "was unlinked, but is not on the orphan list", "it is freed", true);
            found.fixes.push(Fix::Free(ino, i.generation));
        }
    }
}
