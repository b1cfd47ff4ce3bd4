//! The program that asks for promises:
//! `xtask killtest-writer DIR PREFIX LEDGERS THREADS SEED [small|synced]`, with few and short files
//! for a small volume; or with no fsync at all, but many changes of many files and one syncfs(2)
//! behind them, over and over. It works until the first error, which is the end of the mount.

use super::ledger::{BLOCK, State, content};
use lanefs_sync::random::Rng;
use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file as it was acknowledged.
struct Kept {
    id: u64,
    path: String,
    version: u64,
    len: u64,
}

/// Changes of a batch, at the most.
const BATCH: u64 = 400;

struct Writer {
    mnt: PathBuf,
    /// Below the volume's root; all of this thread's files are in it.
    prefix: String,
    ledger: File,
    random: Rng,
    next: u64,
    kept: Vec<Kept>,
    /// The number of files to keep.
    most: usize,
    /// The files that were changed and that the next syncfs is to make durable. `None`: each change
    /// is made durable by itself.
    batch: Option<Vec<u64>>,
}

/// The command. Ends with the first error of each thread.
pub fn main(arguments: &[&str]) -> std::result::Result<(), String> {
    let &[mnt, prefix, ledgers, threads, seed, ref how @ ..] = arguments else {
        return Err("usage: killtest-writer MOUNTPOINT PREFIX LEDGERS THREADS SEED [small|synced]".into());
    };
    let (most, is_synced) = match how {
        [] => (400, false),
        ["small"] => (40, false),
        ["synced"] => (1000, true),
        _ => return Err(format!("killtest-writer: {how:?}: neither small nor synced")),
    };
    let threads: u64 = threads.parse().map_err(|_| "THREADS must be a number")?;
    let seed: u64 = seed.parse().map_err(|_| "SEED must be a number")?;
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads)
            .map(|t| {
                s.spawn(move || {
                    let mut writer = Writer::new(Path::new(mnt), prefix, Path::new(ledgers), t, seed)?;
                    writer.most = most;
                    writer.batch = is_synced.then(Vec::new);
                    loop {
                        if is_synced { writer.batch() } else { writer.step() }?;
                    }
                })
            })
            .collect();
        for t in all {
            let ended: std::thread::Result<Result<()>> = t.join();
            match ended {
                Ok(Err(e)) => eprintln!("writer: {e}"),
                _ => eprintln!("writer: panicked"),
            }
        }
    });
    Err("the writer's threads ended".into())
}

impl Writer {
    fn new(mnt: &Path, prefix: &str, ledgers: &Path, thread: u64, seed: u64) -> Result<Writer> {
        let prefix = format!("{prefix}/w{thread}");
        std::fs::create_dir_all(mnt.join(&prefix))?;
        let ledger = OpenOptions::new()
            .create(true)
            .append(true)
            .open(ledgers.join(format!("ledger-{}", prefix.replace('/', "-"))))?;
        let first = (seed << 32) + (thread << 24);
        Ok(Writer {
            mnt: mnt.to_path_buf(),
            prefix,
            ledger,
            random: Rng::at(seed ^ thread << 50),
            next: first,
            kept: Vec::new(),
            most: 400,
            batch: None,
        })
    }

    fn full(&self, path: &str) -> PathBuf {
        self.mnt.join(path)
    }

    /// One write call, so that the line is whole or missing.
    fn begin(&mut self, id: u64, state: &State) -> Result<()> {
        self.ledger.write_all(format!("B {id} {state}\n").as_bytes())
    }
    /// A change that was made durable; or one of a batch, which is to be.
    fn end(&mut self, id: u64) -> Result<()> {
        if let Some(batch) = &mut self.batch {
            batch.push(id);
            return Ok(());
        }
        self.ledger.write_all(format!("E {id}\n").as_bytes())
    }

    fn sync(&self, file: &File) -> Result<()> {
        if self.batch.is_some() { Ok(()) } else { file.sync_all() }
    }

    fn sync_data(&self, file: &File) -> Result<()> {
        if self.batch.is_some() { Ok(()) } else { file.sync_data() }
    }

    fn sync_dir(&self, path: &str) -> Result<()> {
        let full = self.full(path);
        self.sync(&File::open(full.parent().unwrap_or(&full))?)
    }

    fn fill(&self, file: &File, id: u64, version: u64, from: u64, to: u64) -> Result<()> {
        let mut bytes = vec![0; BLOCK];
        let mut at = from - from % BLOCK as u64;
        while at < to {
            content(id, version, at / BLOCK as u64, &mut bytes);
            let skip = from.saturating_sub(at) as usize;
            let end = (to - at).min(BLOCK as u64) as usize;
            file.write_all_at(&bytes[skip..end], at + skip as u64)?;
            at += BLOCK as u64;
        }
        Ok(())
    }

    fn length(&mut self) -> u64 {
        match self.random.below(10) {
            0 => 0,
            1..=5 => self.random.below(4000),
            6..=8 => self.random.below(40_000),
            _ if self.most != 400 => self.random.below(80_000),
            _ => self.random.below(600_000),
        }
    }

    fn step(&mut self) -> Result<()> {
        let kind = self.random.below(100);
        if self.kept.is_empty() || kind < 30 && self.kept.len() < self.most {
            return self.create();
        }
        let i = self.random.below(self.kept.len() as u64) as usize;
        // Of two changes the check would not know which one is there.
        if self.batch.as_ref().is_some_and(|batch| batch.contains(&self.kept[i].id)) {
            return Ok(());
        }
        // Many at once would fill the volume in the long run.
        if self.kept.len() > 2 * self.most {
            return self.remove(i);
        }
        match kind {
            0..=44 => self.rename(i),
            45..=59 => self.replace(i),
            60..=72 => self.overwrite(i),
            73..=82 => self.append(i),
            83..=89 => self.remove(i),
            90..=91 => self.many(),
            _ => self.noise(),
        }
    }

    /// Many changes, each of another file, and one syncfs of the mount, which makes all of them
    /// durable (of a mount of a block device: docs/MOUNT.md).
    fn batch(&mut self) -> Result<()> {
        for _ in 0..1 + self.random.below(BATCH) {
            self.step()?;
        }
        rustix::fs::syncfs(File::open(&self.mnt)?)?;
        let done = self.batch.iter_mut().flat_map(|batch| batch.drain(..));
        let done: String = done.map(|id| format!("E {id}\n")).collect();
        self.ledger.write_all(done.as_bytes())
    }

    /// A new file, now and then in new folders; only the file is fsynced.
    fn create(&mut self) -> Result<()> {
        let id = self.id();
        let path = match self.random.below(4) {
            0 => format!("{}/d{id}/e/new", self.prefix),
            _ => format!("{}/new-{id}", self.prefix),
        };
        let len = self.length();
        self.begin(id, &State::There { path: path.clone(), version: 1, len })?;
        let full = self.full(&path);
        if let Some(dir) = full.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let file = File::create_new(full)?;
        self.fill(&file, id, 1, 0, len)?;
        self.sync(&file)?;
        self.end(id)?;
        self.kept.push(Kept { id, path, version: 1, len });
        Ok(())
    }

    /// A new name; the folder or the file is fsynced.
    fn rename(&mut self, i: usize) -> Result<()> {
        let (id, old, version, len) = self.look(i);
        let k = self.id();
        let dir_too = self.random.one_in(2);
        let path = match old.rsplit_once('/') {
            Some((dir, _)) if dir_too => format!("{dir}/renamed-{k}"),
            _ => format!("{}/moved-{k}", self.prefix),
        };
        self.begin(id, &State::There { path: path.clone(), version, len })?;
        std::fs::rename(self.full(&old), self.full(&path))?;
        if dir_too {
            self.sync_dir(&path)?;
        } else {
            self.sync(&File::open(self.full(&path))?)?;
        }
        self.end(id)?;
        self.kept[i].path = path;
        Ok(())
    }

    /// A new version beside it, moved over it: the way of editors.
    fn replace(&mut self, i: usize) -> Result<()> {
        let (id, path, version, _) = self.look(i);
        let (version, len) = (version + 1, self.length());
        self.begin(id, &State::There { path: path.clone(), version, len })?;
        let fresh = self.full(&format!("{path}.tmp"));
        let file = File::create(&fresh)?;
        self.fill(&file, id, version, 0, len)?;
        self.sync(&file)?;
        std::fs::rename(&fresh, self.full(&path))?;
        self.sync_dir(&path)?;
        self.end(id)?;
        (self.kept[i].version, self.kept[i].len) = (version, len);
        Ok(())
    }

    /// A new version in place.
    fn overwrite(&mut self, i: usize) -> Result<()> {
        let (id, path, version, len) = self.look(i);
        let version = version + 1;
        self.begin(id, &State::There { path: path.clone(), version, len })?;
        let file = OpenOptions::new().write(true).open(self.full(&path))?;
        self.fill(&file, id, version, 0, len)?;
        self.sync_data(&file)?;
        self.end(id)?;
        self.kept[i].version = version;
        Ok(())
    }

    fn append(&mut self, i: usize) -> Result<()> {
        let (id, path, version, len) = self.look(i);
        let to = len + 1 + self.random.below(20_000);
        self.begin(id, &State::There { path: path.clone(), version, len: to })?;
        let file = OpenOptions::new().write(true).open(self.full(&path))?;
        self.fill(&file, id, version, len, to)?;
        self.sync_data(&file)?;
        self.end(id)?;
        self.kept[i].len = to;
        Ok(())
    }

    fn remove(&mut self, i: usize) -> Result<()> {
        let (id, path, ..) = self.look(i);
        self.begin(id, &State::Gone { path: path.clone() })?;
        std::fs::remove_file(self.full(&path))?;
        self.sync_dir(&path)?;
        self.end(id)?;
        self.kept.swap_remove(i);
        Ok(())
    }

    /// Many files at once, then made durable one by one.
    fn many(&mut self) -> Result<()> {
        let mut fresh = Vec::new();
        for _ in 0..20 {
            let id = self.id();
            let path = format!("{}/many-{id}", self.prefix);
            let len = self.random.below(9000);
            self.begin(id, &State::There { path: path.clone(), version: 1, len })?;
            let file = File::create_new(self.full(&path))?;
            self.fill(&file, id, 1, 0, len)?;
            fresh.push(Kept { id, path, version: 1, len });
        }
        // The last made is the first fsynced.
        for file in fresh.into_iter().rev() {
            self.sync(&File::open(self.full(&file.path))?)?;
            self.end(file.id)?;
            self.kept.push(file);
        }
        Ok(())
    }

    /// Things nobody fsyncs.
    fn noise(&mut self) -> Result<()> {
        let k = self.id();
        let dir = self.full(&format!("{}/noise-{k}", self.prefix));
        std::fs::create_dir(&dir)?;
        for n in 0..5 {
            std::fs::write(dir.join(format!("{n}")), vec![n; 1000 * usize::from(n)])?;
        }
        std::fs::rename(dir.join("0"), dir.join("moved"))?;
        std::fs::remove_file(dir.join("1"))?;
        std::os::unix::fs::symlink("2", dir.join("link"))?;
        std::fs::hard_link(dir.join("3"), dir.join("hard"))?;
        if self.random.one_in(2) { std::fs::remove_dir_all(&dir) } else { Ok(()) }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn look(&self, i: usize) -> (u64, String, u64, u64) {
        let k = &self.kept[i];
        (k.id, k.path.clone(), k.version, k.len)
    }
}
