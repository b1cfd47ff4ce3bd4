//! Whatever is made must go: a list of what to undo, acted on when it is dropped, and kept on disk
//! so that the next run finds what a killed one left.
//!
//! 1. A step is recorded *before* the thing it undoes is made; undoing what was never made is
//!    harmless.
//! 2. Steps are undone last first.
//! 3. The record lies in a directory only this user can write, and nothing in it removes more than
//!    an unmount, one file or one empty directory could.

use crate::error::{Context, Res};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One thing to undo.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Step {
    Unmount(PathBuf),
    RemoveFile(PathBuf),
    RemoveDir(PathBuf),
}

/// The records of this process. Held while others are looked through.
static MINE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// The number of the next record of this process. Relaxed: each gets another one; it orders
/// nothing.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Everything to undo.
pub struct Undo {
    record: PathBuf,
    steps: Vec<Step>,
}

/// Returns the place for this user's records. Without a directory of the user's own for such things
/// it is one that all may write to, so the name is the user's.
fn place(runtime: Option<PathBuf>, uid: u32) -> PathBuf {
    match runtime.filter(|p| p.is_dir()) {
        Some(base) => base.join("lanefs-bench"),
        None if uid == 0 => PathBuf::from("/run/lanefs-bench"),
        None => std::env::temp_dir().join(format!("lanefs-bench.{uid}")),
    }
}

/// Returns the directory of this user's records, where nobody else can write.
fn records() -> Res<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = place(runtime, rustix::process::geteuid().as_raw());
    match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(e).at(format!("mkdir {}", dir.display()));
        }
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&dir).at(dir.display())?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return Err(format!("{} must be a directory only you can write", dir.display()).into());
    }
    Ok(dir)
}

impl Undo {
    /// Makes an empty list. Undoes first what earlier runs left that are no longer alive.
    pub fn new() -> Res<Undo> {
        let dir = records()?;
        let mut mine = MINE.lock().unwrap_or_else(PoisonError::into_inner);
        sweep(&dir, &mine);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let record = dir.join(format!("{}.{number}.json", std::process::id()));
        mine.push(record.clone());
        Ok(Undo { record, steps: Vec::new() })
    }

    /// Records a step.
    fn note(&mut self, step: Step) -> Res<()> {
        let (Step::Unmount(path) | Step::RemoveFile(path) | Step::RemoveDir(path)) = &step;
        debug_assert!(path.is_absolute(), "the next run may begin elsewhere");
        self.steps.push(step);
        let text = serde_json::to_vec(&self.steps).at("encoding the undo list")?;
        std::fs::write(&self.record, text).at(self.record.display())
    }

    /// Takes note that something will be mounted on `path`.
    pub fn mount(&mut self, path: &Path) -> Res<()> {
        self.note(Step::Unmount(path.to_path_buf()))
    }

    /// Takes note that the file `path` will be made.
    pub fn file(&mut self, path: &Path) -> Res<()> {
        self.note(Step::RemoveFile(path.to_path_buf()))
    }

    /// Makes the directory `path`, which must not exist.
    pub fn make_dir(&mut self, path: &Path) -> Res<()> {
        self.note(Step::RemoveDir(path.to_path_buf()))?;
        std::fs::DirBuilder::new().mode(0o755).create(path).at(format!("mkdir {}", path.display()))
    }

    /// Undoes everything now; returns what did not work.
    pub fn all(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        while let Some(step) = self.steps.pop() {
            if let Err(e) = perform(&step) {
                complaints.push(e);
            }
        }
        let _ = std::fs::remove_file(&self.record);
        debug_assert!(self.steps.is_empty(), "all were tried");
        complaints
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for complaint in self.all() {
            eprintln!("lanefs-bench: {complaint}");
        }
        MINE.lock().unwrap_or_else(PoisonError::into_inner).retain(|record| *record != self.record);
    }
}

/// Returns whether something is mounted on a path.
fn is_mounted(path: &Path) -> bool {
    let wanted = path.to_string_lossy().replace(' ', "\\040");
    std::fs::read_to_string("/proc/mounts")
        .is_ok_and(|text| text.lines().any(|l| l.split(' ').nth(1) == Some(wanted.as_str())))
}

/// Undoes a step.
fn perform(step: &Step) -> Result<(), String> {
    let gone = |e: std::io::Error, what: &Path| match e.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(format!("removing {}: {e}", what.display())),
    };
    match step {
        Step::Unmount(path) => {
            let patience = Instant::now() + Duration::from_secs(5);
            while is_mounted(path) {
                let late = Instant::now() > patience;
                let how = if late { UnmountFlags::DETACH } else { UnmountFlags::empty() };
                match unmount(path, how) {
                    Ok(()) => {}
                    Err(e) if late => return Err(format!("unmounting {}: {e}", path.display())),
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
            Ok(())
        }
        Step::RemoveFile(path) => std::fs::remove_file(path).or_else(|e| gone(e, path)),
        Step::RemoveDir(path) => std::fs::remove_dir(path).or_else(|e| gone(e, path)),
    }
}

/// Undoes what dead runs recorded, and nothing of `mine`, which this process has recorded. What
/// else has its number is an earlier process's.
fn sweep(dir: &Path, mine: &[PathBuf]) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()).filter(|p| !mine.contains(p)) {
        let name = path.file_name().and_then(|n| n.to_str()).filter(|n| n.ends_with(".json"));
        let pid = name.and_then(|n| n.split('.').next()?.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        if pid != std::process::id() && Path::new(&format!("/proc/{pid}")).exists() {
            continue;
        }
        let steps = std::fs::read(&path).ok().and_then(|t| serde_json::from_slice::<Vec<Step>>(&t).ok());
        for step in steps.unwrap_or_default().iter().rev() {
            if let Err(e) = perform(step) {
                eprintln!("lanefs-bench: left by an earlier run: {e}");
            }
        }
        let _ = std::fs::remove_file(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoes_last_first_and_tolerates_what_was_never_made() {
        let base = tempfile::tempdir().unwrap();
        let record = base.path().join("record.json");
        let mut undo = Undo { record: record.clone(), steps: Vec::new() };
        let dir = base.path().join("d");
        undo.make_dir(&dir).unwrap();
        undo.file(&dir.join("made")).unwrap();
        undo.file(&dir.join("never")).unwrap();
        undo.mount(&dir).unwrap();
        std::fs::write(dir.join("made"), b"x").unwrap();
        assert!(record.exists());
        drop(undo);
        assert!(!dir.exists() && !record.exists());
    }

    /// Tests of one process each have one: the second undid what the first had recorded, as if an
    /// earlier process of the same number had left it.
    #[test]
    fn one_process_has_several_at_once() {
        let base = tempfile::tempdir().unwrap();
        let mut first = Undo::new().unwrap();
        first.make_dir(&base.path().join("first")).unwrap();
        let mut second = Undo::new().unwrap();
        assert!(base.path().join("first").exists(), "the second has undone the first's");
        second.make_dir(&base.path().join("second")).unwrap();
        assert!(first.record.exists() && second.record.exists() && first.record != second.record);
        drop(second);
        assert!(base.path().join("first").exists() && !base.path().join("second").exists());
        assert!(first.record.exists(), "a later run would not know of it");
        drop(first);
        assert!(!base.path().join("first").exists());
    }

    #[test]
    fn every_user_has_records_of_its_own() {
        assert_eq!(place(None, 0), Path::new("/run/lanefs-bench"));
        let (a, b) = (place(None, 1000), place(Some("/no/such/place".into()), 1001));
        assert!(a != b && a.parent() == Some(&*std::env::temp_dir()), "{a:?} {b:?}");
        assert_eq!(place(Some("/run".into()), 1000), Path::new("/run/lanefs-bench"));
    }

    #[test]
    fn a_dead_run_is_cleaned_up() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("left");
        std::fs::create_dir(&dir).unwrap();
        // The largest process id there can be: nobody.
        let record = base.path().join("4194304.2.json");
        std::fs::write(&record, serde_json::to_vec(&vec![Step::RemoveDir(dir.clone())]).unwrap()).unwrap();
        sweep(base.path(), &[]);
        assert!(!dir.exists() && !record.exists());
    }
}
