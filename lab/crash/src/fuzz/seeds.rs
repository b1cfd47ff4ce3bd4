//! Valid images to begin with: fresh, closed with a full tree, left open with a log to be rolled
//! forward, on several devices.

use crate::crash::system::{LaneFs, System};
use lanefs::{Cred, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_sync::clock::Clock;
use std::sync::{Arc, OnceLock};

/// The key of the directory hash in all of them.
pub const HASH_KEY: [u64; 2] = [1, 2];

/// A valid image.
pub struct Seed {
    /// Its name.
    pub name: &'static str,
    /// The bytes of each device.
    pub devices: Vec<Vec<u8>>,
}

/// Blocks of each device.
const BLOCKS: u64 = 1024;

/// Returns the options with which volumes are opened here: no background thread, one clock that
/// only counts.
pub fn mount(read_only: bool) -> MountOptions {
    MountOptions {
        cache_size: 4 << 20,
        background: false,
        lanes: 4,
        read_only,
        clock: Some(Arc::new(Clock::lamport())),
        ..MountOptions::default()
    }
}

/// All of them, made once.
pub fn all() -> Result<&'static [Seed], String> {
    static MADE: OnceLock<Result<Vec<Seed>, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        Ok(vec![
            make("fresh", 1, 1, |_| Ok(()), true)?,
            make("full tree, closed", 1, 1, tree, true)?,
            make("full tree, log", 1, 1, |v| tree(v).and_then(|()| log(v)), false)?,
            make("log only", 1, 1, log, false)?,
            make("two devices, closed", 2, 1, tree, true)?,
            make("two devices, log", 2, 1, |v| tree(v).and_then(|()| log(v)), false)?,
            make("two copies, closed", 1, 2, tree, true)?,
            make("two copies, log", 2, 2, |v| tree(v).and_then(|()| log(v)), false)?,
        ])
    });
    made.as_deref().map_err(Clone::clone)
}

fn make(
    name: &'static str,
    devices: usize,
    copies: u32,
    fill: impl Fn(&Volume) -> lanefs::Result<()>,
    close: bool,
) -> Result<Seed, String> {
    let say = |e: &dyn std::fmt::Display| format!("{name}: {e}");
    let mut memory = Vec::new();
    for _ in 0..devices {
        memory.push(Arc::new(MemoryDevice::new(BLOCKS * 4096).map_err(|e| say(&e))?));
    }
    let all: Vec<Arc<dyn Device>> = memory.iter().map(|m| m.clone() as Arc<dyn Device>).collect();
    let mut system = LaneFs::default();
    system.format.metadata_copies = copies;
    system.format(&all)?;
    let volume = Volume::open_devices(all, &mount(false)).map_err(|e| say(&e))?;
    fill(&volume).map_err(|e| say(&e))?;
    if close {
        volume.close().map_err(|e| say(&e))?;
    } else {
        volume.shutdown();
    }
    drop(volume);
    Ok(Seed { name, devices: memory.iter().map(|m| m.to_vec()).collect() })
}

/// Files of every form: inline, with a map of one and two levels, sparse, with attributes in the
/// inode and beside it, hard and symbolic links, a directory of several buckets, and unlinked files
/// that are open.
fn tree(v: &Volume) -> lanefs::Result<()> {
    let fs = v.as_user(Cred::root());
    fs.mkdir("/d", 0o755)?;
    fs.mkdir("/d/e", 0o700)?;
    fs.mkdir("/many", 0o755)?;
    for i in 0..180 {
        fs.write(format!("/many/a-file-with-a-long-name-{i:03}").as_str(), [i as u8; 40])?;
    }
    fs.write("/small", b"inline")?;
    fs.write("/d/pages", vec![7; 30_000])?;
    fs.write("/d/e/big", vec![9; 400_000])?;
    let sparse = fs.create("/d/sparse")?;
    for at in [0u64, 3 << 20, 1 << 33, 1 << 45] {
        sparse.write_all_at(&[1; 5000], at)?;
    }
    fs.link("/small", "/d/hard")?;
    fs.symlink(b"d/pages".as_slice(), "/link")?;
    fs.symlink(vec![b'x'; 3900].as_slice(), "/d/long-link")?;
    fs.mknod("/pipe", libc::S_IFIFO | 0o600, 0)?;
    fs.setxattr("/small", b"user.a", &[1; 50], 0)?;
    fs.setxattr("/d/pages", b"user.big", &[2; 9000], 0)?;
    v.sync()?;
    let unlinked = fs.create("/gone")?;
    unlinked.write_all_at(&[3; 6000], 0)?;
    fs.unlink("/gone")?;
    v.checkpoint()?;
    fs.rename("/d/e", "/e")?;
    fs.unlink("/many/a-file-with-a-long-name-007")?;
    v.checkpoint()
}

/// Makes changes that only the log knows: fsyncs, an epoch commit, and a rename over a file.
fn log(v: &Volume) -> lanefs::Result<()> {
    let fs = v.as_user(Cred::root());
    fs.mkdir("/l", 0o755)?;
    for i in 0..12 {
        let f =
            fs.open(format!("/l/f{i}").as_str(), OpenOptions::new().read(true).write(true).create(true))?;
        f.write_all_at(&vec![i as u8; 1000 + 3000 * i as usize], 100 * i)?;
        f.sync_all()?;
    }
    fs.setxattr("/l/f3", b"user.x", &[5; 200], 0)?;
    fs.rename("/l/f1", "/l/f2")?;
    fs.unlink("/l/f4")?;
    fs.symlink(b"f5".as_slice(), "/l/s")?;
    v.sync()?;
    fs.mkdir("/l/late", 0o700)?;
    let f = fs.create("/l/late/file")?;
    f.write_all_at(&[6; 9000], 0)?;
    f.set_len(5000)?;
    f.sync_all()
}
