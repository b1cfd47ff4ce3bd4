//! What the kernel shows of a mount is what the server has: random histories of calls, with each
//! set of options that changes what the kernel may keep.
//!
//! Every answer is compared with the reference model. After each call all names that a history may
//! use are looked at twice, as the kernel remembers them and as the server tells them when the
//! kernel must ask (`AT_STATX_FORCE_SYNC`); in every second history only at the end, because a
//! question corrects what the kernel believed. At the end all that is shown is compared with what a
//! new mount shows, of which the kernel remembers nothing.
//!
//! More: `LANEFS_RUNS=500 cargo test -p lanefs-cli --test it -- mount_belief`; with `LANEFS_SEED=N`
//! that seed alone, as often.

use crate::common::Mount;
use lanefs_lab_model::generate::{Generator, Profile, shrink};
use lanefs_lab_model::op::{Op, Outcome, Step, Who};
use lanefs_lab_model::target::directory::{Directory, kernel_quirks};
use lanefs_lab_model::target::{Pair, Target, run_on};
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

on_each_transport!(the_kernel_shows_what_the_server_has);

/// What changes what the kernel may keep, or when the server hears of a write.
const OPTIONS: &[&str] = &[
    "writeback",
    "nowriteback",
    "writeback,ttl=0",
    "nowriteback,ttl=0",
    "writeback,noatime,dirsync",
    "nowriteback,sync",
    "writeback,order=relaxed",
    "profile=stateless",
    "profile=stateless,ttl=0",
];

/// What is shown of a name: its attributes, or why there are none.
type Shown = Result<[u64; 9], i32>;

/// Where the number of blocks stands in it.
const BLOCKS: usize = 6;

fn look(path: &Path, how: AtFlags) -> Shown {
    fields(path, how, StatxFlags::BASIC_STATS)
}

/// What the kernel remembers. Each field is asked for by itself: to ask for one that it does not
/// believe any more would bring all of them anew.
fn remembered(path: &Path) -> Shown {
    use StatxFlags as F;
    let each = [F::INO, F::MODE, F::NLINK, F::UID, F::GID, F::SIZE, F::BLOCKS, F::MTIME, F::CTIME];
    let mut all = [0; 9];
    for (i, field) in each.into_iter().enumerate() {
        all[i] = fields(path, AtFlags::empty(), field)?[i];
    }
    Ok(all)
}

fn fields(path: &Path, how: AtFlags, wanted: StatxFlags) -> Shown {
    let s: Statx = statx(CWD, path, how | AtFlags::SYMLINK_NOFOLLOW, wanted).map_err(|e| e.raw_os_error())?;
    // Reads that the kernel answers are not seen by the server, so access times may differ.
    let time = |t: rustix::fs::StatxTimestamp| t.tv_sec as u64 * 1_000_000_000 + u64::from(t.tv_nsec);
    Ok([
        s.stx_ino,
        s.stx_mode.into(),
        s.stx_nlink.into(),
        s.stx_uid.into(),
        s.stx_gid.into(),
        s.stx_size,
        s.stx_blocks,
        time(s.stx_mtime),
        time(s.stx_ctime),
    ])
}

/// All names that a history may use, deepest first: looking at a name tells the kernel of the
/// directories above it.
fn names(root: &Path) -> Vec<PathBuf> {
    let dirs = ["d/f", "e", "d", "."];
    let leaves = ["a", "b", "c", "d", "f"];
    let below = |d: &str| leaves.map(|l| root.join(d).join(l));
    dirs.iter().flat_map(|d| below(d)).collect()
}

/// A directory of a mount, looked at behind each call.
struct Believed {
    inner: Directory,
    root: PathBuf,
    wrong: Rc<RefCell<Option<String>>>,
    always: bool,
}

impl Target for Believed {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        // syncfs begins to write back what the kernel holds of files, and does not wait: what the
        // server has changes behind it.
        if *op == Op::Sync {
            return Outcome::Done;
        }
        let answer = self.inner.call(who, op);
        let changes = !matches!(op, Op::Stat { .. } | Op::Lstat { .. } | Op::Readdir { .. });
        if self.always && changes && self.wrong.borrow().is_none() {
            for path in names(&self.root) {
                let (shown, has) = (remembered(&path), look(&path, AtFlags::STATX_FORCE_SYNC));
                // The kernel may write a file back at any moment: its blocks are compared at the
                // end.
                let but_blocks = |s: Shown| s.map(|s| [&s[..BLOCKS], &s[BLOCKS + 1..]].concat());
                if but_blocks(shown) != but_blocks(has) {
                    let name = path.strip_prefix(&self.root).unwrap_or(&path).display();
                    *self.wrong.borrow_mut() =
                        Some(format!("after {op:?}: {name} is shown as {shown:?}, the server has {has:?}"));
                    break;
                }
            }
        }
        answer
    }
}

/// Everything that is shown: listings, attributes, content, targets of links.
fn everything(root: &Path) -> BTreeMap<PathBuf, (Shown, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).expect("list") {
            let entry = entry.expect("entry");
            let (path, kind) = (entry.path(), entry.file_type().expect("kind"));
            let content = if kind.is_file() {
                let mut file = std::fs::OpenOptions::new();
                let mut file = file.read(true).custom_flags(libc::O_NOATIME).open(&path).expect("open");
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut file, &mut bytes).expect("read");
                bytes
            } else if kind.is_symlink() {
                std::fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes()
            } else {
                vec![u8::from(kind.is_fifo()), u8::from(kind.is_socket())]
            };
            all.insert(path.clone(), (look(&path, AtFlags::empty()), content));
            if kind.is_dir() {
                todo.push(path);
            }
        }
    }
    for path in names(root) {
        let shown = look(&path, AtFlags::empty());
        all.entry(path).or_insert((shown, Vec::new()));
    }
    all
}

/// A history in a new directory of a mount, which is mounted anew in the end.
fn run(mount: &mut Mount, options: &str, n: u64, steps: &[Step], always: bool) -> Result<(), String> {
    let root = mount.path(&format!("{n}"));
    std::fs::create_dir(&root).map_err(|e| e.to_string())?;
    let wrong = Rc::new(RefCell::new(None));
    let inner = Directory::new(&root).map_err(|e| e.to_string())?;
    let target = Believed { inner, root: root.clone(), wrong: wrong.clone(), always };
    let mut pair = Pair::new(target);
    pair.model.quirks = kernel_quirks();
    let agreed = run_on(&mut pair, steps);
    let fds: Vec<u8> = pair.model.handles.keys().copied().collect();
    for fd in fds {
        pair.target.call(Who::Root, &Op::Close { fd });
    }
    let wrong = wrong.borrow().clone();
    drop(pair);
    agreed?;
    wrong.map_or(Ok(()), Err)?;
    // The kernel releases a file behind the answer of close; until then it counts as open for
    // writing.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let shown = everything(&root);
    mount.umount();
    mount.mount(&["-o", options]);
    let has = everything(&root);
    let differs = |p: &&PathBuf| shown.get(*p) != has.get(*p);
    match shown.keys().chain(has.keys()).find(differs) {
        None => std::fs::remove_dir_all(&root).map_err(|e| e.to_string()),
        Some(path) => {
            let brief = |all: &BTreeMap<PathBuf, (Shown, Vec<u8>)>| {
                all.get(path).map(|(s, c)| (*s, c.len(), c.iter().map(|b| u64::from(*b)).sum::<u64>()))
            };
            let name = path.strip_prefix(&root).unwrap_or(path).display();
            Err(format!("{name} was shown as {:?}, a new mount has {:?}", brief(&shown), brief(&has)))
        }
    }
}

fn the_kernel_shows_what_the_server_has() {
    if !Directory::possible() {
        eprintln!("skipped: needs root");
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let (runs, only) = (number("LANEFS_RUNS").unwrap_or(10), number("LANEFS_SEED"));
    let profile = Profile { odd_paths: false, sparse: false, ..Profile::POSIX };
    for (i, options) in OPTIONS.iter().enumerate() {
        let mut mount = Mount::new(&["-o", options]);
        let mut count = 0;
        for n in 0..runs {
            let seed = only.unwrap_or(i as u64 * 1_000_000 + n);
            let n = seed % 1_000_000;
            let steps = Generator::new(seed, profile).history(60);
            let always = n % 2 == 0;
            let mut tried = |t: &[Step]| {
                count += 1;
                run(&mut mount, options, count, t, always)
            };
            if let Err(first) = tried(&steps) {
                let least = shrink(&steps, |t| tried(t).is_err());
                let why = tried(&least).err().unwrap_or(first);
                let list: Vec<String> = least.iter().map(|s| format!("{s:?}")).collect();
                panic!("{options}, seed {seed}: {why}\n{}", list.join("\n"));
            }
        }
        mount.umount();
        mount.fsck();
    }
}
