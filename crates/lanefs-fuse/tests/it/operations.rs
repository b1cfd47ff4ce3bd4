//! The operations whose requests are counted, each as a program does it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the files that are made.
const SMALL: usize = 3000;
/// Files of a tree, and how many of them lie in a directory.
const TREE: usize = 2000;
const LEAVES: usize = 20;

/// An operation in a directory of its own.
pub struct Operation {
    pub name: &'static str,
    /// How often it is done.
    pub times: usize,
    /// Makes what it needs. Its requests do not count.
    pub prepare: fn(&Path) -> Result<()>,
    /// Does it once, the so many-th time.
    pub act: fn(&Path, usize) -> Result<()>,
    /// Whether the volume is mounted anew before, so that the kernel knows nothing.
    pub cold: bool,
}

const fn warm(
    name: &'static str,
    times: usize,
    prepare: fn(&Path) -> Result<()>,
    act: fn(&Path, usize) -> Result<()>,
) -> Operation {
    Operation { name, times, prepare, act, cold: false }
}

const fn cold(
    name: &'static str,
    times: usize,
    prepare: fn(&Path) -> Result<()>,
    act: fn(&Path, usize) -> Result<()>,
) -> Operation {
    Operation { name, times, prepare, act, cold: true }
}

/// Of small operations so many are counted together.
const MANY: usize = 100;

pub const OPERATIONS: &[Operation] = &[
    warm("create, close", MANY, nothing, |dir, n| File::create_new(file(dir, n)).map(drop)),
    warm("create, write, close", MANY, nothing, |dir, n| {
        File::create_new(file(dir, n))?.write_all(&[7; SMALL])
    }),
    warm("open, read, close (cached)", MANY, read_files, |dir, n| read(&file(dir, n))),
    cold("open, read, close (not cached)", MANY, files, |dir, n| read(&file(dir, n))),
    warm("append to a file", MANY, read_files, |dir, n| {
        OpenOptions::new().append(true).open(file(dir, n))?.write_all(&[8; 100])
    }),
    warm("overwrite a page", MANY, pages, |dir, n| {
        OpenOptions::new().write(true).open(file(dir, n))?.write_all_at(&[8; 4096], 0)
    }),
    warm("truncate and write", MANY, read_files, |dir, n| File::create(file(dir, n))?.write_all(&[9; SMALL])),
    warm("write, fsync, close", MANY, read_files, |dir, n| {
        let file = OpenOptions::new().write(true).open(file(dir, n))?;
        file.write_all_at(&[8; 100], 0)?;
        file.sync_all()
    }),
    warm("unlink", MANY, files, |dir, n| fs::remove_file(file(dir, n))),
    warm("mkdir", MANY, nothing, |dir, n| fs::create_dir(file(dir, n))),
    warm("rmdir", MANY, directories, |dir, n| fs::remove_dir(file(dir, n))),
    warm("rename", MANY, files, |dir, n| fs::rename(file(dir, n), dir.join(format!("other{n}")))),
    warm("rename over a file", MANY, pairs, |dir, n| fs::rename(dir.join(format!("new{n}")), file(dir, n))),
    warm("stat after create", MANY, empty_files, |dir, n| stat(&file(dir, n)).map(drop)),
    warm("stat after write", MANY, files, |dir, n| stat(&file(dir, n)).map(drop)),
    warm("stat again", MANY, seen_files, |dir, n| stat(&file(dir, n)).map(drop)),
    cold("stat (not cached)", MANY, files, |dir, n| stat(&file(dir, n)).map(drop)),
    cold("list 100 names and stat each", 1, files, |dir, _| list(dir)),
    warm("list 100 names again and stat each", 1, seen_files, |dir, _| list(dir)),
    warm("check out 2000 files", 1, nothing, check_out),
    cold("pack 2000 files", 1, |dir| check_out(dir, 0), |dir, _| pack(dir)),
    warm("unpack 2000 files", 1, nothing, unpack),
    warm("remove 2000 files", 1, |dir| check_out(dir, 0), |dir, _| fs::remove_dir_all(dir.join("tree0"))),
];

fn file(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("file{n}"))
}

fn nothing(_: &Path) -> Result<()> {
    Ok(())
}

fn empty_files(dir: &Path) -> Result<()> {
    (0..MANY).try_for_each(|n| File::create_new(file(dir, n)).map(drop))
}

fn files(dir: &Path) -> Result<()> {
    (0..MANY).try_for_each(|n| fs::write(file(dir, n), [7; SMALL]))
}

fn pages(dir: &Path) -> Result<()> {
    (0..MANY).try_for_each(|n| fs::write(file(dir, n), [7; 4096]))?;
    list(dir)
}

fn pairs(dir: &Path) -> Result<()> {
    files(dir)?;
    (0..MANY).try_for_each(|n| fs::write(dir.join(format!("new{n}")), [7; SMALL]))
}

fn directories(dir: &Path) -> Result<()> {
    (0..MANY).try_for_each(|n| fs::create_dir(file(dir, n)))
}

fn seen_files(dir: &Path) -> Result<()> {
    files(dir)?;
    list(dir)
}

fn read_files(dir: &Path) -> Result<()> {
    files(dir)?;
    (0..MANY).try_for_each(|n| read(&file(dir, n)))
}

/// Reads all of a file into a buffer that there is, without asking for its size.
fn read(path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path)?;
    let mut buffer = [0; 16 << 10];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Looks at a file as stat(2) does. (That of Rust's library also asks when the file was made, which
/// the kernel does not keep of what it only looked up.)
fn stat(path: &Path) -> Result<rustix::fs::Stat> {
    Ok(rustix::fs::lstat(path)?)
}

fn list(dir: &Path) -> Result<()> {
    let mut names = fs::read_dir(dir)?.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>>>()?;
    names.sort();
    names.iter().try_for_each(|path| stat(path).map(drop))
}

/// Makes a tree as git does: directories as they are needed, each file new, looked at when it is
/// there.
fn check_out(dir: &Path, n: usize) -> Result<()> {
    let top = dir.join(format!("tree{n}"));
    fs::create_dir(&top)?;
    for n in 0..TREE {
        let below = top.join(format!("{}", n / LEAVES));
        if n % LEAVES == 0 {
            fs::create_dir(&below)?;
        }
        let mut made = File::create_new(file(&below, n))?;
        made.write_all(&[n as u8; SMALL])?;
        drop(made);
        stat(&file(&below, n))?;
    }
    Ok(())
}

/// Reads a tree as tar does.
fn pack(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let stat = stat(&path)?;
        if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
            pack(&path)?;
        } else {
            assert_eq!(stat.st_size, SMALL as i64);
            read(&path)?;
        }
    }
    Ok(())
}

/// Makes a tree as tar does: with the owner, mode and time of each file as the archive has them.
fn unpack(dir: &Path, n: usize) -> Result<()> {
    let top = dir.join(format!("tree{n}"));
    fs::create_dir(&top)?;
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for n in 0..TREE {
        let below = top.join(format!("{}", n / LEAVES));
        if n % LEAVES == 0 {
            fs::create_dir(&below)?;
        }
        let mut made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file(&below, n))?;
        made.write_all(&[n as u8; SMALL])?;
        made.set_modified(time)?;
        std::os::unix::fs::fchown(&made, Some(0), Some(0))?;
        made.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    }
    Ok(())
}
