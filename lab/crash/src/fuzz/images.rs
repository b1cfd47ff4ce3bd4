//! This module does with a damaged image everything that a program or an administrator would do.

use super::mutate::{Mutant, Target, targets};
use super::seeds::{self, Seed};
use super::{meter, tell};
use lanefs::{Cred, FileKind, Fs, Ino, NodeEntry, OpenOptions, Volume};
use lanefs_lab_model::generate::Rng;
use lanefs_store::Store;
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::fsck::{self, FsckOptions, FsckReport};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The most time of a processor that one use of an image of 4 MiB a device may take. Usually it is
/// milliseconds.
pub const TIME: Duration = Duration::from_secs(5);
/// The most that one use of such an image may take from the heap, in bytes: page cache, block
/// cache, tables.
pub const MEMORY: i64 = 96 << 20;

/// A seed and what can be changed in it.
pub type Entry = (&'static Seed, Vec<Target>);

/// All of them.
pub fn corpus() -> Result<&'static [Entry], String> {
    static CORPUS: OnceLock<Result<Vec<Entry>, String>> = OnceLock::new();
    let c = CORPUS.get_or_init(|| Ok(seeds::all()?.iter().map(|s| (s, targets(s))).collect()));
    c.as_deref().map_err(Clone::clone)
}

/// A damaged image.
pub fn mutant(rng: &mut Rng) -> Result<Vec<Vec<u8>>, String> {
    let (seed, targets) = rng.pick(corpus()?);
    tell(format_args!("\"{}\"", seed.name));
    let mut m = Mutant::new(seed, targets.clone());
    for _ in 0..1 + rng.below(4) {
        m.change(rng);
    }
    Ok(m.devices)
}

fn devices(bytes: &[Vec<u8>]) -> Result<Vec<Arc<dyn Device>>, String> {
    let one = |b: &Vec<u8>| {
        MemoryDevice::from_bytes(b).map(|d| Arc::new(d) as Arc<dyn Device>).map_err(|e| e.to_string())
    };
    bytes.iter().map(one).collect()
}

/// Runs `f` within the limits.
fn bounded<T>(what: &str, f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let (began, before) = (meter::cpu_time(), meter::restart());
    let done = f();
    let (took, peak) = (meter::cpu_time().saturating_sub(began), meter::peak().saturating_sub(before));
    if took > TIME {
        return Err(format!("{what} took {} s", took.as_secs()));
    }
    if peak > MEMORY {
        return Err(format!("{what} took {} MiB", peak >> 20));
    }
    done
}

/// One damaged image, used in one way.
pub fn case(rng: &mut Rng) -> Result<(), String> {
    let image = mutant(rng)?;
    match rng.below(6) {
        0 | 1 => bounded("opening and using it", || {
            use_it(devices(&image)?, rng);
            Ok(())
        }),
        2 => bounded("reading it", || {
            if let Ok(v) = Volume::open_devices(devices(&image)?, &seeds::mount(true)) {
                read_all(&v.as_user(Cred::root()));
                v.shutdown();
            }
            info(devices(&image)?);
            Ok(())
        }),
        3 => bounded("fsck", || fsck_it(devices(&image)?, false, rng).map(drop)),
        _ => {
            let all = devices(&image)?;
            match bounded("fsck --repair", || fsck_it(all.clone(), true, rng))? {
                Some(_) => after_repair(all, rng),
                None => Ok(()),
            }
        }
    }
}

/// A repaired volume: nothing is left that could be repaired, and it can be used.
fn after_repair(all: Vec<Arc<dyn Device>>, rng: &mut Rng) -> Result<(), String> {
    let again = bounded("fsck after fsck --repair", || fsck_it(all.clone(), false, rng))?;
    let again = again.ok_or("a repaired volume cannot be checked")?;
    if let Some(p) = again.problems.iter().find(|p| p.repairable) {
        return Err(format!("a repair left {}: {}", p.structure, p.what));
    }
    bounded("using the repaired volume", || match use_it(all, rng) {
        true => Ok(()),
        false => Err("a repaired volume does not open".into()),
    })
}

/// `None` if it is no volume.
fn fsck_it(all: Vec<Arc<dyn Device>>, repair: bool, rng: &mut Rng) -> Result<Option<FsckReport>, String> {
    let o = FsckOptions { repair, read_data: rng.one_in(2), threads: 1, ..FsckOptions::default() };
    tell(format_args!("fsck {o:?}"));
    match fsck::check(all, &o, &|_| ()) {
        Ok(report) => Ok(Some(report)),
        Err(e) => {
            tell(e);
            Ok(None)
        }
    }
}

fn info(all: Vec<Arc<dyn Device>>) {
    let o = lanefs_store::OpenOptions { read_only: true, ..lanefs_store::OpenOptions::default() };
    if let Ok((s, _)) = Store::open(all, &o) {
        let _ = (s.info(), s.space());
        for ino in (0..300).chain([u64::MAX, u64::MAX >> 1, 1 << 55]) {
            let _ = s.load_inode(Ino(ino));
            let _ = s.next_data(Ino(ino), 0);
        }
        s.shutdown();
    }
}

/// Opens, reads all, writes, makes durable, closes. Whether it opened.
fn use_it(all: Vec<Arc<dyn Device>>, rng: &mut Rng) -> bool {
    let v = match Volume::open_devices(all, &seeds::mount(false)) {
        Ok(v) => v,
        Err(e) => {
            tell(format_args!("open: {e}"));
            return false;
        }
    };
    let fs = v.as_user(Cred::root());
    let seen = read_all(&fs);
    by_number(&v, rng);
    change(&fs, &seen, rng);
    let _ = v.sync();
    let _ = v.tick();
    let _ = fs.write("/after the sync", [1; 10_000]);
    let _ = v.checkpoint();
    let _ = v.statfs();
    if let Err(e) = v.close() {
        tell(format_args!("close: {e}"));
    }
    true
}

/// Looks at no more than so many names, none deeper than so many directories: the image may hold
/// circles.
const NAMES: usize = 600;
const DEPTH: usize = 12;

fn read_all(fs: &Fs) -> Vec<PathBuf> {
    let mut seen: Vec<PathBuf> = vec!["/".into()];
    let mut at = 0;
    while at < seen.len() {
        let path = seen[at].clone();
        at += 1;
        let Ok(stat) = fs.lstat(&path) else { continue };
        let p = path.as_path();
        for name in fs.listxattr(p).unwrap_or_default() {
            let _ = fs.getxattr(p, &name);
        }
        match stat.kind {
            FileKind::Dir => {
                let room =
                    if path.components().count() < DEPTH { NAMES.saturating_sub(seen.len()) } else { 0 };
                list(fs, &path, room, &mut seen);
            }
            FileKind::Symlink => {
                let _ = (fs.readlink(p), fs.stat(p));
            }
            FileKind::File => read_file(fs, p, stat.size),
            _ => {}
        }
    }
    seen
}

fn list(fs: &Fs, path: &Path, room: usize, seen: &mut Vec<PathBuf>) {
    let mut names = Vec::new();
    let mut entries = 0;
    let _ = fs.read_dir_from(path, 0, &mut |e: NodeEntry<'_>| {
        entries += 1;
        assert!(!e.name.is_empty() && !e.name.contains(&b'/') && !e.name.contains(&0), "a name {:?}", e.name);
        if e.name != b"." && e.name != b".." && names.len() < room {
            names.push(OsString::from_vec(e.name.to_vec()));
        }
        entries < 100_000
    });
    assert!(entries < 100_000, "a directory without end");
    seen.extend(names.into_iter().map(|n| path.join(n)));
}

fn read_file(fs: &Fs, path: &Path, size: u64) {
    let Ok(f) = fs.open(path, OpenOptions::new().read(true)) else { return };
    let mut buffer = vec![0; 64 << 10];
    for at in [0, 3000, size / 2, size.saturating_sub(5000), size, u64::MAX >> 1, u64::MAX - 10] {
        let _ = f.read_at(&mut buffer, at);
    }
    let mut at = 0i64;
    for _ in 0..40 {
        let Ok(data) = f.lseek(at, libc::SEEK_DATA) else { break };
        let _ = f.read_at(&mut buffer, data);
        let Ok(hole) = f.lseek(data as i64, libc::SEEK_HOLE) else { break };
        at = hole as i64;
    }
}

fn by_number(v: &Volume, rng: &mut Rng) {
    let root = Cred::root();
    for n in 0..60 {
        let ino = Ino(if n < 40 { n } else { rng.bits() >> rng.below(64) });
        let _ = (v.node_stat(ino), v.node_readlink(ino), v.node_listxattr(&root, ino));
        let _ = v.node_lookup(&root, ino, b"a");
        let mut n = 0;
        let _ = v.node_readdir(ino, rng.bits(), &mut |_| {
            n += 1;
            n < 1000
        });
    }
}

/// Changes some of what is there, and adds to it.
fn change(fs: &Fs, seen: &[PathBuf], rng: &mut Rng) {
    let _ = fs.mkdir("/new", 0o755);
    let _ = fs.write("/new/file", [8; 20_000]);
    for n in 0..25 {
        let (a, b) = (rng.pick(seen).clone(), rng.pick(seen).clone());
        let (p, q) = (a.as_path(), b.as_path());
        let fresh = q.join(format!("n{n}"));
        let rw = OpenOptions { flags: libc::O_RDWR, mode: 0 };
        let _ = match rng.below(12) {
            0 => fs.unlink(p),
            1 => fs.rename(p, q),
            2 => fs.rename(p, fresh.as_path()),
            3 => fs.link(p, fresh.as_path()),
            4 => fs.mkdir(fresh.as_path(), 0o700),
            5 => fs.symlink(p.as_os_str().as_bytes(), fresh.as_path()),
            6 => fs.truncate(p, rng.bits() >> (1 + rng.below(63))),
            7 => fs.setxattr(p, b"user.fuzz", &vec![1; rng.below(3000) as usize], 0),
            8 => fs.rmdir(p),
            9 => fs.open(p, &rw).and_then(|f| f.allocate(0, rng.below(1 << 20), rng.below(1 << 18) + 1)),
            10 => fs.open(p, &rw).and_then(|f| f.sync_all()),
            _ => fs.open(p, &rw).and_then(|f| {
                let size = f.stat()?.size;
                let at = *rng.pick(&[0, size, size / 2, 70_000]);
                f.write_all_at(&vec![4; 1 + rng.below(9000) as usize], at)?;
                if rng.one_in(2) { f.sync_all() } else { Ok(()) }
            }),
        };
    }
}
