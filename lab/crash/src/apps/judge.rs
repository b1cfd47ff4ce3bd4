//! This module judges whether a content of the medium keeps what was promised: it is recovered,
//! read, and shown to the applications.

use super::App;
use super::record::Recording;
use super::states::{Plan, State};
use super::worker::{Judge, Promised, Scratch};
use crate::crash::image::{CowDevice, Image};
use lanefs::{Fs, MountOptions, Volume};
use lanefs_format::FileKind;
use lanefs_store::device::Device;
use lanefs_store::fsck::{self, FsckOptions};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// The file, directory or link at a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A directory.
    Dir,
    /// A file, with its permissions.
    File(u32, Vec<u8>),
    /// A symbolic link.
    Link(Vec<u8>),
}

/// All below a directory, by path.
pub type Tree = BTreeMap<String, Entry>;

/// The findings of the judges.
#[derive(Debug, Default)]
pub struct Findings {
    /// States that were recovered.
    pub states: u64,
    /// States that an application looked at, by application: those whose tree or promise was new.
    pub looked: BTreeMap<&'static str, u64>,
    /// The broken promises, by application; "volume" for those that are no application's.
    pub wrong: BTreeMap<&'static str, Vec<Wrong>>,
}

/// One broken promise.
#[derive(Debug)]
pub struct Wrong {
    /// In which state.
    pub state: String,
    /// The reason why it is wrong.
    pub why: String,
    /// The content of the medium.
    pub image: Image,
}

impl Findings {
    /// Adds what another one found.
    pub fn add(&mut self, other: Findings) {
        self.states += other.states;
        for (app, n) in other.looked {
            *self.looked.entry(app).or_default() += n;
        }
        for (app, wrong) in other.wrong {
            self.wrong.entry(app).or_default().extend(wrong);
        }
    }
}

/// Judges the states of a plan with so many threads.
pub fn judge(recording: &Recording, apps: &[&App], plan: &Plan, jobs: usize) -> Result<Findings, String> {
    let parts = std::thread::scope(|s| {
        let all: Vec<_> =
            (0..jobs).map(|n| s.spawn(move || part(recording, apps, plan, (n, jobs)))).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Findings, String>>| {
            t.join().map_err(|_| "judging panicked".to_string())?
        };
        all.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    })?;
    let mut all = Findings::default();
    parts.into_iter().for_each(|p| all.add(p));
    Ok(all)
}

/// An application's judge, and what it said of what it saw.
struct Bench {
    app: &'static str,
    judge: Judge,
    scratch: Scratch,
    known: HashMap<u64, Option<String>>,
}

fn part(
    recording: &Recording,
    apps: &[&App],
    plan: &Plan,
    share: (usize, usize),
) -> Result<Findings, String> {
    let bench = |app: &&App| -> Result<Bench, String> {
        let scratch = Scratch::new(app.name)?;
        let judge = Judge::start(app.name, &scratch.dir("for")?)?;
        Ok(Bench { app: app.name, judge, scratch, known: HashMap::new() })
    };
    let mut benches = apps.iter().map(bench).collect::<Result<Vec<_>, _>>()?;
    let mut findings = Findings::default();
    let mut failed = None;
    plan.visit(recording, share, &mut |state| {
        failed = look(recording, &state, &mut benches, &mut findings).err();
        failed.is_none()
    });
    failed.map_or(Ok(findings), Err)
}

/// Judges one state.
fn look(
    recording: &Recording,
    state: &State,
    benches: &mut [Bench],
    findings: &mut Findings,
) -> Result<(), String> {
    findings.states += 1;
    let wrong = |findings: &mut Findings, app, why| {
        let said = format!("instant {}, {}", state.at, state.how);
        let one = Wrong { state: said, why, image: state.image.clone() };
        findings.wrong.entry(app).or_default().push(one);
    };
    let every = |n: u64| findings.states.is_multiple_of(n);
    if every(8)
        && let Err(why) = fsck(&state.image)
    {
        wrong(findings, "volume", format!("fsck before recovery: {why}"));
    }
    let tree = match recovered(&state.image, findings.states.is_multiple_of(8)) {
        Ok(tree) => tree,
        Err(why) => {
            wrong(findings, "volume", why);
            return Ok(());
        }
    };
    for bench in benches {
        let promised = promised(recording, bench.app, state.at)?;
        if !promised.ready {
            continue;
        }
        let prefix = format!("{}/", bench.app);
        let own: Vec<(&str, &Entry)> =
            tree.iter().filter_map(|(path, e)| Some((path.strip_prefix(&prefix)?, e))).collect();
        let mut hasher = DefaultHasher::new();
        (&promised, &own).hash(&mut hasher);
        let key = hasher.finish();
        let verdict = match bench.known.get(&key) {
            Some(known) => known.clone(),
            None => {
                *findings.looked.entry(bench.app).or_default() += 1;
                let dir = bench.scratch.path().join("tree");
                write_tree(&dir, &own).map_err(|e| format!("{}: {e}", dir.display()))?;
                let said = bench.judge.ask(&dir, &promised)?.err();
                bench.known.insert(key, said.clone());
                said
            }
        };
        if let Some(why) = verdict {
            wrong(findings, bench.app, why);
        }
    }
    Ok(())
}

/// Returns the promises that an application had before an instant.
fn promised(recording: &Recording, app: &str, at: u64) -> Result<Promised, String> {
    let mut promised = Promised::default();
    for (_, mark) in recording.log.marks.iter().take_while(|(m, _)| *m < at) {
        if let Some(line) = mark.strip_prefix(app).and_then(|m| m.strip_prefix(' ')) {
            promised.hear(line)?;
        }
    }
    Ok(promised)
}

/// `fsck` of a content: what it complains about.
fn fsck(image: &Image) -> Result<(), String> {
    let device: Arc<dyn Device> = Arc::new(CowDevice::new(image.clone()));
    let options = FsckOptions { threads: 1, ..FsckOptions::default() };
    match fsck::check(vec![device], &options, &|_| ()) {
        Err(e) => Err(e.to_string()),
        Ok(r) if r.is_clean() => Ok(()),
        Ok(r) => {
            let all: Vec<String> =
                r.problems.iter().take(5).map(|p| format!("{}: {}", p.structure, p.what)).collect();
            Err(all.join("; "))
        }
    }
}

/// Opens a content as a mount does and reads all of it. If it has to be `thorough`, it is closed
/// too, must then be clean, and hold the same when it is opened again.
fn recovered(image: &Image, thorough: bool) -> Result<Tree, String> {
    let device = Arc::new(CowDevice::new(image.clone()));
    let open = || -> Result<Volume, String> {
        let options =
            MountOptions { cache_size: 16 << 20, background: false, lanes: 4, ..MountOptions::default() };
        let device: Arc<dyn Device> = device.clone();
        Volume::open_devices(vec![device], &options).map_err(|e| format!("recovery: {e}"))
    };
    let volume = open()?;
    let tree = read_tree(&volume.fs())?;
    if !thorough {
        volume.shutdown();
        return Ok(tree);
    }
    volume.close().map_err(|e| format!("closing what was recovered: {e}"))?;
    drop(volume);
    fsck(&device.image()).map_err(|why| format!("fsck after recovery: {why}"))?;
    let again = open()?;
    let same = read_tree(&again.fs())? == tree;
    again.shutdown();
    if same { Ok(tree) } else { Err("closed after recovery and opened again it holds something else".into()) }
}

/// All that a volume holds.
pub fn read_tree(fs: &Fs) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let mut names: Vec<(String, FileKind)> = Vec::new();
        let list = |e: lanefs::NodeEntry<'_>| {
            if e.name != b"." && e.name != b".." {
                names.push((String::from_utf8_lossy(e.name).into_owned(), e.kind));
            }
            true
        };
        fs.read_dir_from(format!("/{folder}"), 0, &mut { list })
            .map_err(|e| format!("listing /{folder}: {e}"))?;
        for (name, kind) in names {
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let wrong = |e: lanefs::Error| format!("/{path} cannot be read: {e}");
            let full = format!("/{path}");
            let entry = match kind {
                FileKind::Dir => {
                    folders.push(path.clone());
                    Entry::Dir
                }
                FileKind::Symlink => Entry::Link(fs.readlink(&full).map_err(wrong)?),
                _ => {
                    let mode = fs.lstat(&full).map_err(wrong)?.mode & 0o7777;
                    Entry::File(mode, fs.read(&full).map_err(wrong)?)
                }
            };
            tree.insert(path, entry);
        }
    }
    Ok(tree)
}

/// Writes a tree where an application can read it, in place of what was there.
fn write_tree(dir: &Path, tree: &[(&str, &Entry)]) -> std::io::Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    std::fs::create_dir(dir)?;
    // In order of their paths directories come before what is in them.
    for (path, entry) in tree {
        let path = dir.join(path);
        match entry {
            Entry::Dir => std::fs::create_dir(&path)?,
            Entry::Link(target) => {
                use std::os::unix::ffi::OsStrExt;
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), &path)?;
            }
            Entry::File(mode, bytes) => {
                std::fs::write(&path, bytes)?;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode))?;
            }
        }
    }
    Ok(())
}
