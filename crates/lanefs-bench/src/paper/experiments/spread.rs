//! Many volumes as one target: each worker's private directory lies on a volume of its own.

use crate::cost::Traffic;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::processors::Helpers;
use crate::target::Target;
use std::path::PathBuf;

/// Targets that share the workers among them. A path begins with the number of the worker it
/// belongs to; one that does not belongs to the first target.
pub struct Spread<T> {
    targets: Vec<T>,
    none: Name,
}

impl<T: Target> Spread<T> {
    /// Makes one target of some, at least one.
    pub fn new(targets: Vec<T>) -> Spread<T> {
        assert!(!targets.is_empty(), "a spread over nothing");
        Spread { targets, none: Name::new("") }
    }

    /// Returns the targets.
    pub fn into_inner(self) -> Vec<T> {
        self.targets
    }

    fn of(&self, path: &Name) -> &T {
        let digits = path.bytes().iter().take_while(|b| b.is_ascii_digit());
        let worker = digits.fold(0usize, |n, b| (n * 10 + usize::from(b - b'0')) % 1_000_000);
        &self.targets[worker % self.targets.len()]
    }
}

impl<T: Target> Target for Spread<T> {
    type File = T::File;

    fn prefix(&self) -> &Name {
        &self.none
    }
    #[inline]
    fn open(&self, path: &Name, flags: i32) -> Op<T::File> {
        self.of(path).open(path, flags)
    }
    #[inline]
    fn stat(&self, path: &Name) -> Op<u64> {
        self.of(path).stat(path)
    }
    fn mkdir(&self, path: &Name) -> Op<()> {
        self.of(path).mkdir(path)
    }
    #[inline]
    fn unlink(&self, path: &Name) -> Op<()> {
        self.of(path).unlink(path)
    }
    fn rmdir(&self, path: &Name) -> Op<()> {
        self.of(path).rmdir(path)
    }
    fn rename(&self, old: &Name, new: &Name) -> Op<()> {
        self.of(old).rename(old, new)
    }
    fn read_dir(&self, path: &Name, f: impl FnMut(&[u8], bool)) -> Op<u64> {
        self.of(path).read_dir(path, f)
    }
    fn sync_dir(&self, path: &Name) -> Op<()> {
        self.of(path).sync_dir(path)
    }
    fn statfs(&self) -> Op<u64> {
        self.targets[0].statfs()
    }
    fn set_times_now(&self, path: &Name) -> Op<()> {
        self.of(path).set_times_now(path)
    }
    fn traffic(&self) -> Option<Traffic> {
        None
    }
    fn processes(&self) -> bool {
        false
    }
    fn place(&self) -> Option<PathBuf> {
        None
    }
    fn quiesce(&self) -> Res<()> {
        self.targets.iter().try_for_each(Target::quiesce)
    }
    fn helpers(&self) -> Helpers {
        self.targets[0].helpers()
    }
    fn enter(&mut self) -> Res<()> {
        for target in &mut self.targets {
            target.enter()?;
            debug_assert!(target.prefix().is_empty(), "a volume of the spread is not empty");
        }
        Ok(())
    }
    fn leave(&mut self) -> Res<()> {
        let left: Vec<Res<()>> = self.targets.iter_mut().map(Target::leave).collect();
        left.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{DirTarget, flags};

    #[test]
    fn each_workers_files_are_on_its_own_volume() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let targets = dirs.iter().map(|d| DirTarget::new(d.path(), false).unwrap()).collect();
        let mut spread = Spread::new(targets);
        spread.enter().unwrap();
        for worker in 0..3 {
            spread.mkdir(&Name::new(&worker.to_string())).unwrap();
            spread.open(&Name::new(&format!("{worker}/data")), flags::NEW).unwrap();
        }
        let names = |i: usize| {
            let cell = std::fs::read_dir(dirs[i].path()).unwrap().next().unwrap().unwrap().path();
            let mut names: Vec<_> = std::fs::read_dir(cell)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!((names(0), names(1)), (vec!["0".to_string(), "2".into()], vec!["1".to_string()]));
        spread.leave().unwrap();
        assert!(dirs.iter().all(|d| std::fs::read_dir(d.path()).unwrap().next().is_none()));
    }
}
