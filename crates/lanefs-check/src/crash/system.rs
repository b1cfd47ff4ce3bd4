//! What the simulator crashes: something that formats devices, opens (and so recovers) them, and answers calls.

use crate::op::{Op, Outcome, Who};
use crate::target::Target;
use crate::target::volume::VolumeTarget;
use lanefs::{MountOptions, Volume};
use lanefs_store::device::Device;
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;

/// An open volume that can be stopped without another write.
pub trait Live: Target {
    /// Stops it as a crash would.
    fn kill(self: Box<Self>);
}

/// A file system on devices.
pub trait System: Sync {
    /// Makes an empty volume.
    fn format(&self, devices: &[Arc<dyn Device>]) -> Result<(), String>;
    /// Opens the volume, recovering it if it was not closed.
    fn open(&self, devices: Vec<Arc<dyn Device>>) -> Result<Box<dyn Live>, String>;
}

/// LaneFS without background threads.
#[derive(Clone, Debug)]
pub struct LaneFs {
    /// How volumes are made.
    pub format: FormatOptions,
    /// How they are opened.
    pub mount: MountOptions,
}

impl Default for LaneFs {
    fn default() -> Self {
        LaneFs {
            format: FormatOptions {
                segment_blocks: 16,
                mlogs: 2,
                uuid: Some([7; 16]),
                hash_key: Some([1, 2]),
                time: Some(1_000_000_000_000_000_000),
                force: true,
                ..FormatOptions::default()
            },
            mount: MountOptions {
                cache_size: 4 << 20,
                background: false,
                lanes: 4,
                ..MountOptions::default()
            },
        }
    }
}

struct LiveVolume {
    target: VolumeTarget,
}

impl Target for LiveVolume {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        self.target.call(who, op)
    }
}

impl Live for LiveVolume {
    fn kill(self: Box<Self>) {
        if let Ok(v) = self.target.volume() {
            v.shutdown();
        }
    }
}

impl System for LaneFs {
    fn format(&self, devices: &[Arc<dyn Device>]) -> Result<(), String> {
        Store::format(devices, &self.format).map_err(|e| e.to_string())
    }

    fn open(&self, devices: Vec<Arc<dyn Device>>) -> Result<Box<dyn Live>, String> {
        let volume = Volume::open_devices(devices.clone(), &self.mount).map_err(|e| e.to_string())?;
        let mount = self.mount.clone();
        let remount = move |v: Volume| {
            v.close()?;
            drop(v);
            Volume::open_devices(devices.clone(), &mount)
        };
        Ok(Box::new(LiveVolume { target: VolumeTarget::new(volume, Some(Box::new(remount))) }))
    }
}
