//! A mount over a recorded device, and the applications at work on it.

use super::App;
use super::worker::{Scratch, work};
use crate::crash::image::{BLOCK, Image};
use lanefs::{MountOptions, Order, Volume};
use lanefs_fuse::{MountConfig, Session};
use lanefs_store::device::{Device, Log, MemoryDevice, Recorder};
use lanefs_store::{FormatOptions, Store};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The options with which the volume is made and mounted.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Bytes of the device.
    pub size: u64,
    /// The time after which names are committed without being asked, and the age that a dirty page
    /// may reach.
    pub interval: Duration,
    /// Whether the kernel gathers writes.
    pub writeback: bool,
    /// In which order names become durable.
    pub order: Order,
}

/// The result of a recording.
#[derive(Debug)]
pub struct Recording {
    /// The content of the device before.
    pub base: Image,
    /// The writes and flushes of the device, with a mark for each line of a worker: its application
    /// and the line.
    pub log: Log,
}

/// Mounts a new volume, lets the applications work in it side by side, and unmounts it.
pub fn record(apps: &[&App], setting: &Setting, seed: u64) -> Result<Recording, String> {
    let scratch = Scratch::new("record")?;
    let mountpoint = scratch.dir("mnt")?;
    let device = MemoryDevice::new(setting.size).map_err(|e| e.to_string())?;
    let device = Arc::new(device);
    let plain: Arc<dyn Device> = device.clone();
    let format = FormatOptions { force: true, ..FormatOptions::default() };
    Store::format(&[plain], &format).map_err(|e| format!("mkfs: {e}"))?;
    let base = image_of(&device)?;
    let recorder = Recorder::new();
    let recorded: Arc<dyn Device> = Arc::new(recorder.wrap(device));
    let session = mounted(recorded, &mountpoint, setting)?;
    let worked = std::thread::scope(|s| {
        let mut all = Vec::new();
        for &app in apps {
            let (recorder, scratch, mountpoint) = (&recorder, &scratch, &mountpoint);
            all.push(s.spawn(move || -> Result<(), String> {
                let dir = mountpoint.join(app.name);
                std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
                let place = scratch.dir(&format!("for-{}", app.name))?;
                let mut note = |line: &str| {
                    recorder.mark(format!("{} {line}", app.name));
                };
                work(app.name, &dir, &place, (app.steps, seed), &mut note)
            }));
        }
        all.into_iter().try_for_each(|t| t.join().map_err(|_| "a worker's thread panicked".to_string())?)
    });
    session.unmount().map_err(|e| format!("unmount: {e}"))?;
    worked?;
    Ok(Recording { base, log: recorder.take_log() })
}

/// Mounts from a thread of its own: what it says to the kernel of itself must not hold for the
/// workers.
fn mounted(device: Arc<dyn Device>, mountpoint: &Path, setting: &Setting) -> Result<Session, String> {
    let options = MountOptions {
        cache_size: 128 << 20,
        commit_interval: setting.interval,
        dirty_expire: setting.interval,
        order: setting.order,
        ..MountOptions::default()
    };
    // With auto_unmount the mount goes even if this process is killed.
    let config = MountConfig { auto_unmount: true, writeback: setting.writeback, ..MountConfig::default() };
    let mount = || -> Result<Session, String> {
        lanefs_fuse::serve_as_flusher();
        let volume = Volume::open_devices(vec![device], &options).map_err(|e| format!("open: {e}"))?;
        lanefs_fuse::mount(volume, mountpoint, &config).map_err(|e| format!("mount: {e}"))
    };
    std::thread::scope(|s| s.spawn(mount).join().map_err(|_| "mounting panicked".to_string())?)
}

/// Copies the content of a device.
fn image_of(device: &MemoryDevice) -> Result<Image, String> {
    let blocks = device.size() as usize / BLOCK;
    let mut image = Image::zeros(blocks);
    let mut bytes = [0; BLOCK];
    for block in 0..blocks {
        device.peek((block * BLOCK) as u64, &mut bytes).map_err(|e| e.to_string())?;
        if bytes != [0; BLOCK] {
            image.put(block, &bytes, 0xff);
        }
    }
    Ok(image)
}
