//! The library as programs see it.

mod ahead;
mod attrs;
mod beside;
mod data;
mod durability;
mod examples;
mod flags;
mod forks;
mod full;
mod growth;
mod history;
mod instants;
mod lives;
mod locks;
mod memory;
mod midway;
mod names;
mod prealloc;
mod report;
mod signals;
mod stamps;
mod std_dirs;
mod std_files;
mod std_names;
mod threads;
mod whiteout;

use lanefs::{Cred, Fs, MountOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, MemoryImage};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;

/// A fresh volume on a memory device, without background threads, and the device.
pub fn volume(mib: u64) -> (Volume, Arc<MemoryDevice>) {
    volume_with(mib, 1)
}

/// The same with so many copies of its tree.
pub fn volume_with(mib: u64, metadata_copies: u32) -> (Volume, Arc<MemoryDevice>) {
    volume_as(mib, FormatOptions { metadata_copies, ..Default::default() })
}

/// The same with other options of one's own.
pub fn volume_as(mib: u64, o: FormatOptions) -> (Volume, Arc<MemoryDevice>) {
    let dev = Arc::new(MemoryDevice::new(mib << 20).unwrap());
    let d: Arc<dyn Device> = dev.clone();
    Store::format(std::slice::from_ref(&d), &FormatOptions { segment_blocks: 64, mlogs: 2, ..o }).unwrap();
    (Volume::open_devices(vec![d], &options()).unwrap(), dev)
}

pub fn options() -> MountOptions {
    MountOptions { background: false, cache_size: 64 << 20, ..Default::default() }
}

/// The volume as root sees it, and the device.
pub fn root(mib: u64) -> (Fs, Arc<MemoryDevice>) {
    let (v, d) = volume(mib);
    (v.as_user(Cred::root()), d)
}

/// What a machine would find after the power went now: everything the device was given (a memory
/// device keeps no volatile cache).
pub fn after_crash(dev: &MemoryDevice) -> Fs {
    let image = MemoryImage::capture(dev).unwrap();
    let d: Arc<dyn Device> = Arc::new(image.fork().unwrap());
    Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root())
}

/// Closes cleanly and opens again.
pub fn reopen(fs: Fs, dev: &Arc<MemoryDevice>) -> Fs {
    fs.volume().close().unwrap();
    drop(fs);
    let d: Arc<dyn Device> = dev.clone();
    Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root())
}

/// The names in a directory, sorted, without the dots.
pub fn ls(fs: &Fs, path: &str) -> Vec<String> {
    let mut v = Vec::new();
    fs.read_dir_from(path, 0, &mut |e| {
        v.push(String::from_utf8_lossy(e.name).into_owned());
        true
    })
    .unwrap();
    v.retain(|n| n != "." && n != "..");
    v.sort();
    v
}

/// The errno of a failure.
pub fn errno<T: std::fmt::Debug>(r: lanefs::Result<T>) -> i32 {
    r.expect_err("this call must fail").errno()
}
