//! The systems that the simulator crashes. A system formats devices, opens (and so recovers) them,
//! and answers calls.

use lanefs::{MountOptions, Order, Volume};
use lanefs_lab_model::op::{Op, Outcome, Who};
use lanefs_lab_model::target::Target;
use lanefs_lab_model::target::volume::VolumeTarget;
use lanefs_store::device::Device;
use lanefs_store::fsck::{self, FsckOptions};
use lanefs_store::{FormatOptions, Store};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks of a segment of the volumes that are crashed.
pub(crate) const SEGMENT: usize = 16;

/// An open volume that can be stopped without another write.
pub trait Live: Target {
    /// Stops it as a crash would.
    fn kill(self: Box<Self>);
    /// Segments that its cleaner emptied since it was opened.
    fn cleaned(&self) -> u64 {
        0
    }
    /// The volume, of which the devices may be changed.
    fn volume(&self) -> Option<&Volume> {
        None
    }
    /// Takes note of the devices that it has now, with which it is opened again.
    fn has_devices(&mut self, _devices: Vec<Arc<dyn Device>>) {}
}

/// A file system on devices.
pub trait System: Sync {
    /// Makes an empty volume.
    fn format(&self, devices: &[Arc<dyn Device>]) -> Result<(), String>;
    /// Opens the volume, recovering it if it was not closed.
    fn open(&self, devices: Vec<Arc<dyn Device>>) -> Result<Box<dyn Live>, String>;
    /// In which order names become durable on it.
    fn order(&self) -> Order {
        Order::Relaxed
    }
    /// Checks a volume that nobody has open without writing to it: what is wrong with it. `None` if
    /// it has no checker.
    fn fsck(&self, _devices: Vec<Arc<dyn Device>>) -> Option<Result<(), String>> {
        None
    }
}

/// LaneFS without background threads.
#[derive(Clone, Debug)]
pub struct LaneFs {
    /// The options with which volumes are made.
    pub format: FormatOptions,
    /// The options with which they are opened.
    pub mount: MountOptions,
    /// Threads that make the calls by turns, so that one history lies in the logs of several lanes;
    /// 0: the caller makes them.
    pub threads: usize,
}

impl Default for LaneFs {
    fn default() -> Self {
        LaneFs {
            format: FormatOptions {
                segment_blocks: SEGMENT as u32,
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
            threads: 0,
        }
    }
}

struct LiveVolume {
    target: VolumeTarget,
    /// With what it is opened again.
    devices: Arc<Mutex<Vec<Arc<dyn Device>>>>,
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
    fn cleaned(&self) -> u64 {
        self.target.volume().map_or(0, |v| v.cleaned().segments)
    }
    fn volume(&self) -> Option<&Volume> {
        self.target.volume().ok()
    }
    fn has_devices(&mut self, devices: Vec<Arc<dyn Device>>) {
        *self.devices.lock().unwrap_or_else(PoisonError::into_inner) = devices;
    }
}

/// The channel by which a thread gets its calls, and the one by which its answers come.
type Worker = (Sender<(Who, Op)>, Receiver<Outcome>);

/// A volume whose calls are made by several threads by turns, each with a lane of its own.
struct Turns {
    target: Arc<Mutex<VolumeTarget>>,
    workers: Vec<Worker>,
    chance: u64,
}

impl Turns {
    fn new(target: VolumeTarget, threads: usize) -> Turns {
        let target = Arc::new(Mutex::new(target));
        let worker = |_| {
            let (calls, todo) = channel::<(Who, Op)>();
            let (done, answers) = channel();
            let target = target.clone();
            let fault = lanefs_lab_faults::planted_now();
            std::thread::spawn(move || {
                lanefs_lab_faults::plant(fault);
                for (who, op) in todo {
                    let work = || target.lock().unwrap_or_else(PoisonError::into_inner).call(who, &op);
                    // A panic ends the thread, and shows to the caller as an answer that does not
                    // come.
                    if done.send(work()).is_err() {
                        return;
                    }
                }
            });
            (calls, answers)
        };
        let workers = (0..threads).map(worker).collect();
        Turns { target, workers, chance: 1 }
    }
}

impl Target for Turns {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        // Not strictly by turns: of two calls that always come in a pair one would always make the
        // changes.
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (calls, answers) = &self.workers[(self.chance >> 33) as usize % self.workers.len()];
        let _ = calls.send((who, op.clone()));
        answers.recv().unwrap_or_else(|_| panic!("{op:?} panicked"))
    }
}

impl Live for Turns {
    fn kill(self: Box<Self>) {
        if let Ok(v) = self.target.lock().unwrap_or_else(PoisonError::into_inner).volume() {
            v.shutdown();
        }
    }
    fn cleaned(&self) -> u64 {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.volume().map_or(0, |v| v.cleaned().segments)
    }
}

impl System for LaneFs {
    fn order(&self) -> Order {
        self.mount.order
    }

    fn format(&self, devices: &[Arc<dyn Device>]) -> Result<(), String> {
        Store::format(devices, &self.format).map_err(|e| e.to_string())
    }

    fn open(&self, devices: Vec<Arc<dyn Device>>) -> Result<Box<dyn Live>, String> {
        let volume = Volume::open_devices(devices.clone(), &self.mount).map_err(|e| e.to_string())?;
        let mount = self.mount.clone();
        let devices = Arc::new(Mutex::new(devices));
        let now = devices.clone();
        let remount = move |v: Volume| {
            v.close()?;
            drop(v);
            let devices = now.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Volume::open_devices(devices, &mount)
        };
        let target = VolumeTarget::new(volume, Some(Box::new(remount)));
        Ok(if self.threads > 0 {
            Box::new(Turns::new(target, self.threads))
        } else {
            Box::new(LiveVolume { target, devices })
        })
    }

    fn fsck(&self, devices: Vec<Arc<dyn Device>>) -> Option<Result<(), String>> {
        let options = FsckOptions { threads: 1, ..FsckOptions::default() };
        Some(match fsck::check(devices, &options, &|_| ()) {
            Err(e) => Err(e.to_string()),
            Ok(r) if r.is_clean() => Ok(()),
            Ok(r) => {
                let all: Vec<String> =
                    r.problems.iter().map(|p| format!("{}: {}", p.structure, p.what)).collect();
                Err(all.join("; "))
            }
        })
    }
}
