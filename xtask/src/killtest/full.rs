//! `cargo xtask killtest full [--minutes N] [--seed S]`: a mixed load on a volume that is 90 % full
//! of cold data, within 96 MiB of memory, with crashes and remounts in between, for as long as is
//! asked.
//!
//! Nine tenths of a volume of 1 GiB are cold files, of which pages are written over at random, so
//! that space comes from the cleaner and from dead blocks. Beside that the writer of the kill test
//! makes, renames, replaces and removes small files and has every step acknowledged. A round ends
//! with `kill -9` of the serving process, or, one in three, with a clean unmount. Then `lanefs
//! fsck` must find nothing, each page of the cold files must have what was last acknowledged of it
//! or something later, and all else be as acknowledged. Nobody may be told ENOSPC. What the
//! serving process has resident is looked at every second: as much in the last third of the time
//! as in the first, and no more than what the mount was given, with an eighth for what is not
//! counted.

use super::ledger::{BLOCK, content};
use super::{Totals, child, start};
use crate::programs::volume::{self, Volume};
use lanefs_sync::random::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Percent of the volume that are in use.
const FILL: u64 = 90;
/// Bytes of memory that the mount is given.
const MEMORY: u64 = 96 << 20;
/// Blocks of a cold file.
const BLOCKS: usize = 256;

/// What is known of a page.
#[derive(Clone, Copy, Default)]
struct Page {
    /// The version that was written last, of this mount or found by it.
    written: u32,
    /// The last one that must be there.
    acknowledged: u32,
    /// Why it must.
    why: &'static str,
    /// When it was written.
    at: Option<Instant>,
}

impl Page {
    fn must_be(&mut self, version: u32, why: &'static str) {
        if version > self.acknowledged {
            (self.acknowledged, self.why) = (version, why);
        }
    }
}

/// A file of pages that tell which version they are.
struct Cold {
    id: u64,
    pages: Vec<Page>,
    /// When it was synced last.
    synced: Option<Instant>,
    /// All of it was written and synced once.
    is_whole: bool,
}

impl Cold {
    fn path(&self, mnt: &Path) -> PathBuf {
        mnt.join(format!("cold/{}", self.id))
    }

    fn page(&self, block: usize, version: u32) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        content(self.id, version.into(), block as u64, &mut bytes);
        bytes[..4].copy_from_slice(&version.to_le_bytes());
        bytes
    }

    /// Makes the file anew, as another one.
    fn make(&mut self, mnt: &Path, id: u64) -> std::io::Result<()> {
        self.is_whole = false;
        let _ = std::fs::remove_file(self.path(mnt));
        (self.id, self.pages) = (id, vec![Page::default(); BLOCKS]);
        let file = File::create(self.path(mnt))?;
        for block in 0..BLOCKS {
            file.write_all_at(&self.page(block, 0), (block * BLOCK) as u64)?;
        }
        file.sync_all()?;
        File::open(mnt.join("cold"))?.sync_all()?;
        self.is_whole = true;
        Ok(())
    }

    /// Writes some pages over, and syncs them now and then.
    fn overwrite(&mut self, mnt: &Path, random: &mut Rng) -> std::io::Result<u64> {
        let file = OpenOptions::new().write(true).open(self.path(mnt))?;
        let n = 1 + random.below(16);
        for _ in 0..n {
            let block = random.below(BLOCKS as u64) as usize;
            let version = self.pages[block].written + 1;
            // Noted first: a write that fails may have been done.
            (self.pages[block].written, self.pages[block].at) = (version, Some(Instant::now()));
            file.write_all_at(&self.page(block, version), (block * BLOCK) as u64)?;
        }
        if random.one_in(3) {
            file.sync_data()?;
            self.synced = Some(Instant::now());
            self.pages.iter_mut().for_each(|p| p.must_be(p.written, "fsync"));
        }
        Ok(n)
    }

    /// Compares the file with what is known of it, and says in words what is wrong. What is found
    /// must be there from now on: it is behind a recovery.
    fn check(&mut self, mnt: &Path) -> Vec<String> {
        let path = self.path(mnt);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) if bytes.len() == BLOCKS * BLOCK => bytes,
            Ok(bytes) => return vec![format!("{} has {} bytes", path.display(), bytes.len())],
            Err(e) => return vec![format!("{}: {e}", path.display())],
        };
        let mut wrong = Vec::new();
        for block in 0..BLOCKS {
            let found = &bytes[block * BLOCK..(block + 1) * BLOCK];
            let version = u32::from_le_bytes([found[0], found[1], found[2], found[3]]);
            let Page { written, acknowledged, why, at } = self.pages[block];
            if !(acknowledged..=written).contains(&version) || found != self.page(block, version) {
                let ago = |at: Option<Instant>| at.map_or(0, |at| at.elapsed().as_millis());
                wrong.push(format!(
                    "cold/{}: block {block} has version {version}, or none; {acknowledged} must be there ({why}), \
                     {written} was written {} ms ago, the file synced {} ms ago",
                    self.id,
                    ago(at),
                    ago(self.synced)
                ));
                continue;
            }
            self.pages[block].must_be(version, "found before");
            // What the kernel had of it and the server not is gone for good.
            self.pages[block].written = version;
        }
        wrong
    }
}

/// What the serving process had resident, by seconds since the beginning.
#[derive(Default)]
struct Resident(Mutex<Vec<(u64, u64)>>);

impl Resident {
    fn look(&self, pid: u32, since: Instant) {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/statm")) else { return };
        let Some(pages) = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()) else { return };
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        all.push((since.elapsed().as_secs(), pages * 4096));
    }

    /// Returns the most of each third of the time.
    fn thirds(&self, seconds: u64) -> [u64; 3] {
        let all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut most = [0; 3];
        for &(at, bytes) in all.iter() {
            let third = &mut most[(at * 3 / seconds.max(1)).min(2) as usize];
            *third = bytes.max(*third);
        }
        most
    }
}

/// Returns the percent of a file system that are in use.
fn used(mnt: &Path) -> Result<u64, String> {
    let mut df = Command::new("df");
    df.args(["--block-size=4096", "--output=size,avail"]).arg(mnt);
    let out = df.output().map_err(|e| format!("df: {e}"))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut numbers = said.split_whitespace().filter_map(|w| w.parse::<u64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(size), Some(free)) if size > 0 => Ok((size - free) * 100 / size),
        _ => Err(format!("df {}: {said} {}", mnt.display(), String::from_utf8_lossy(&out.stderr))),
    }
}

/// The command.
pub fn main(minutes: u64, seed: u64) -> Result<(), String> {
    crate::run::need(&[("fusermount3", "fuse3")])?;
    let lanefs = volume::build()?;
    let options = format!("cache_size={}M,commit=1,dirty_expire=1", MEMORY >> 20);
    let mut v = Volume::make(&lanefs, "1G", &["-o", &options])?;
    v.mount()?;
    let (since, mut random, mut totals) = (Instant::now(), Rng::at(seed), Totals::default());
    let (resident, mut cold, mut next) = (Resident::default(), Vec::new(), 0);
    let pid = AtomicU32::new(v.pid().unwrap_or(0));
    let over = AtomicBool::new(false);
    let time = Duration::from_secs(minutes * 60);
    let mut overwritten = 0;
    let (mut kills, mut remounts) = (0, 0);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                resident.look(pid.load(Ordering::Acquire), since);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let mut work = || -> Result<(), String> {
            std::fs::create_dir(v.mnt().join("cold")).map_err(|e| e.to_string())?;
            let mut n = 0;
            while since.elapsed() < time || n == 0 {
                fill(&v.mnt(), &mut cold, &mut next)?;
                let is_kill = n % 3 != 2;
                let (mnt, outside) = (v.mnt(), v.outside());
                let left = time.saturating_sub(since.elapsed()).as_millis() as u64;
                let long = Duration::from_millis((10_000 + random.below(40_000)).min(left.max(2_000)));
                overwritten += round(&mut v, n, long, is_kill, &mut cold, &mut next, &mut random)?;
                // What the writer was told is compared in here, behind `fsck` and the mount.
                totals.recover(&mut v, &mut random, n)?;
                pid.store(v.pid().unwrap_or(0), Ordering::Release);
                let whole = cold.iter_mut().filter(|c| c.is_whole);
                let wrong: Vec<String> = whole.flat_map(|c| c.check(&mnt)).collect();
                if !wrong.is_empty() {
                    return Err(format!(
                        "{} pages are lost:\n{}",
                        wrong.len(),
                        wrong[..wrong.len().min(20)].join("\n")
                    ));
                }
                if n > 0 {
                    let before = mnt.join(format!("round{}", n - 1));
                    std::fs::remove_dir_all(&before).map_err(|e| format!("{}: {e}", before.display()))?;
                    let _ = std::fs::remove_dir_all(outside.join(format!("round{}", n - 1)));
                }
                *(if is_kill { &mut kills } else { &mut remounts }) += 1;
                n += 1;
                println!(
                    "round {n:>3}  {:>4} s  {} % used  {overwritten} pages written over  {} acknowledged  {:?} MiB resident",
                    since.elapsed().as_secs(),
                    used(&mnt)?,
                    totals.acknowledged,
                    resident.thirds(time.as_secs()).map(|b| b >> 20),
                );
            }
            v.umount()?;
            v.fsck()
        };
        let done = work();
        over.store(true, Ordering::Release);
        done
    });
    done.map_err(|e| {
        let kept = std::env::temp_dir().join(format!("lanefs-killtest-full-{seed}.lane"));
        let _ = v.kill();
        let copied = std::fs::copy(v.image(), &kept);
        format!("seed {seed}: {e}\nimage kept: {} ({copied:?})\n{}", kept.display(), v.messages())
    })?;
    let most = resident.thirds(since.elapsed().as_secs());
    println!(
        "{} minutes, {kills} kills, {remounts} remounts, fsck clean each time; {overwritten} pages of {} cold files written over; \
         {} acknowledgements kept ({} files found, {} removals); slowest mount {:.0} ms; at most {:?} MiB resident in each third",
        since.elapsed().as_secs() / 60,
        cold.len(),
        totals.acknowledged,
        totals.checked.files,
        totals.checked.removed,
        totals.slowest_mount.as_secs_f64() * 1e3,
        most.map(|b| b >> 20),
    );
    if most[2] > most[0] + most[0] / 8 {
        return Err(format!("what is resident grows: {most:?} bytes"));
    }
    if most.iter().any(|b| *b > MEMORY + MEMORY / 8) {
        return Err(format!("more than {MEMORY} bytes are resident: {most:?}"));
    }
    Ok(())
}

/// Makes cold files until the volume is as full as it is to be.
fn fill(mnt: &Path, cold: &mut Vec<Cold>, next: &mut u64) -> Result<(), String> {
    let io = |e: std::io::Error| format!("filling up to {FILL} %: {e}");
    for file in cold.iter_mut().filter(|c| !c.is_whole) {
        *next += 1;
        file.make(mnt, *next).map_err(io)?;
    }
    while used(mnt)? < FILL {
        *next += 1;
        let mut file = Cold { id: *next, pages: Vec::new(), synced: None, is_whole: false };
        file.make(mnt, *next).map_err(io)?;
        cold.push(file);
    }
    Ok(())
}

/// Removes what the writer leaves and nobody asked to be durable, or it would fill the volume. The
/// newest of it may be in the making.
fn tidy(place: &Path) -> Result<(), String> {
    let io = |e: std::io::Error| format!("{}: {e}", place.display());
    for folder in std::fs::read_dir(place).map_err(io)? {
        let folder = folder.map_err(io)?.path();
        let mut noise: Vec<(u64, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let number = name.strip_prefix("noise-").and_then(|n| n.parse().ok());
            noise.extend(number.map(|n| (n, path)));
        }
        noise.sort_unstable();
        for (_, path) in noise.iter().rev().skip(8) {
            match std::fs::remove_dir_all(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Works on the volume for so long, and ends the mount: as by a crash, or cleanly. Returns the
/// number of pages written over.
fn round(
    v: &mut Volume,
    n: u64,
    long: Duration,
    is_kill: bool,
    cold: &mut [Cold],
    next: &mut u64,
    random: &mut Rng,
) -> Result<u64, String> {
    let io = |e: std::io::Error| e.to_string();
    let (mnt, outside) = (v.mnt(), v.outside().join(format!("round{n}")));
    std::fs::create_dir_all(&outside).map_err(io)?;
    let (prefix, seed) = (format!("round{n}"), (random.bits() >> 40).to_string());
    let log = outside.join("writer.log");
    let mut writer = start(
        &["killtest-writer"],
        &[&mnt, Path::new(&prefix), &outside, Path::new("3"), Path::new(&seed), Path::new("small")],
        &log,
    )?;
    let (over, mut pages) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| -> Result<(), String> {
        let mut choice = Rng::at(random.bits());
        let (over, pages, at, files) = (&over, &mut pages, mnt.clone(), &mut *cold);
        let worker = scope.spawn(move || -> std::io::Result<()> {
            while !over.load(Ordering::Acquire) {
                let i = choice.below(files.len() as u64) as usize;
                let file = &mut files[i];
                if !file.is_whole || choice.one_in(300) {
                    *next += 1;
                    file.make(&at, *next)?;
                } else {
                    *pages += file.overwrite(&at, &mut choice)?;
                }
                std::thread::sleep(Duration::from_millis(choice.below(3)));
            }
            Ok(())
        });
        let began = Instant::now();
        let mut tidied = Ok(());
        while began.elapsed() < long && tidied.is_ok() {
            std::thread::sleep(Duration::from_millis(500).min(long));
            tidied = tidy(&mnt.join(format!("round{n}")));
        }
        let early = writer.0.try_wait().map_err(io)?.is_some() || worker.is_finished();
        let ended = if is_kill && !early { v.kill_server() } else { Ok(()) };
        over.store(true, Ordering::Release);
        let worked = worker.join().map_err(|_| "the thread that writes over panicked")?;
        tidied?;
        if early || !is_kill && worked.is_err() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("work ended before the mount did: {worked:?}, {said}"));
        }
        ended
    })?;
    if !is_kill {
        child::end_tree(&mut writer.0);
        drop(writer);
        v.umount()?;
        // A volume that was unmounted has all that was written.
        for page in cold.iter_mut().filter(|c| c.is_whole).flat_map(|c| &mut c.pages) {
            page.must_be(page.written, "unmounted");
        }
        return Ok(pages);
    }
    if child::wait(&mut writer.0, Duration::from_secs(30)).map_err(io)?.is_none() {
        return Err(format!("the writer still runs 30 s after the kill\n{}", child::end_tree(&mut writer.0)));
    }
    drop(writer);
    v.kill()?;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check tells what was lost, what is torn, and another file's page from what may be.
    #[test]
    fn a_cold_file_with_anything_else_in_it_is_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("cold")).unwrap();
        let mut file = Cold { id: 0, pages: Vec::new(), synced: None, is_whole: false };
        file.make(dir.path(), 7).unwrap();
        file.pages[3].written = 2;
        let put = |block: usize, bytes: &[u8]| {
            let f = OpenOptions::new().write(true).open(dir.path().join("cold/7")).unwrap();
            f.write_all_at(bytes, (block * BLOCK) as u64).unwrap();
        };
        for (version, is_good) in [(0, true), (2, true), (1, false), (3, false)] {
            file.pages[3].written = 2;
            put(3, &file.page(3, version));
            assert_eq!(file.check(dir.path()).is_empty(), is_good, "version {version}");
        }
        let mut torn = file.page(3, 2);
        torn[BLOCK - 1] ^= 1;
        put(3, &torn);
        assert!(!file.check(dir.path()).is_empty());
        put(3, &file.page(4, 0));
        assert!(!file.check(dir.path()).is_empty());
        put(3, &file.page(3, 2));
        assert!(file.check(dir.path()).is_empty());
    }
}
