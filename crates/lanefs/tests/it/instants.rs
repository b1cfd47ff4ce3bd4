//! A volume on a recorded device with its background, used by several threads; and what is found
//! where the machine stopped at some instant of that.

use crate::options;
use lanefs::{Cred, Fs, MountOptions, Volume};
use lanefs_store::device::{Crash, Device, MemoryDevice, MemoryImage, RecordingDevice};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::random::Rng;
use std::sync::Arc;
use std::time::Duration;

pub struct Recorded {
    pub fs: Fs,
    pub device: Arc<RecordingDevice<MemoryDevice>>,
    base: [Arc<MemoryImage>; 1],
}

impl Recorded {
    /// A new volume, whose background commits and writes back often. All that `begins` makes is
    /// durable, and the record begins behind it.
    pub fn new(mib: u64, begins: impl FnOnce(&Fs)) -> Recorded {
        let device = Arc::new(RecordingDevice::new(MemoryDevice::new(mib << 20).unwrap()));
        let d: Arc<dyn Device> = device.clone();
        let format = FormatOptions { segment_blocks: 64, ..Default::default() };
        Store::format(std::slice::from_ref(&d), &format).unwrap();
        let (commit_interval, dirty_expire) = (Duration::from_millis(30), Duration::from_millis(10));
        let options = MountOptions { background: true, commit_interval, dirty_expire, ..options() };
        let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
        begins(&fs);
        fs.volume().sync().unwrap();
        fs.volume().checkpoint().unwrap();
        let base = MemoryImage::capture(device.inner()).unwrap();
        device.recorder().take_log();
        Recorded { fs, device, base: [base] }
    }

    /// Ends the record, stops the volume, and looks at what is found at random instants, where the
    /// process was killed and where the power went.
    pub fn look(self, instants: u64, seed: u64, check: impl Fn(&Fs, &Crash<'_>) -> Result<(), String>) {
        let log = self.device.recorder().take_log();
        self.fs.volume().shutdown();
        let mut rng = Rng::at(seed);
        for _ in 0..instants {
            let at = rng.bits() % (log.now + 1);
            let crash = Crash::new(&log, at);
            let whole = vec![true; crash.pending().len()];
            let killed = crash.build_subset(&self.base, &whole).unwrap();
            let cut_off = crash.build_random(&self.base, rng.bits()).unwrap();
            for (what, devices) in [("killed", killed), ("cut off", cut_off)] {
                let devices = devices.into_iter().map(|d| Arc::new(d) as Arc<dyn Device>).collect();
                let found = Volume::open_devices(devices, &options()).unwrap().as_user(Cred::root());
                if let Err(e) = check(&found, &crash) {
                    panic!("seed {seed}, {what} at {at} of {}: {e}", log.now);
                }
            }
        }
    }
}

/// Reads a file, if there is one.
pub fn read(fs: &Fs, path: &str) -> Result<Option<Vec<u8>>, String> {
    match fs.read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.errno() == libc::ENOENT => Ok(None),
        Err(e) => Err(format!("{path}: {e}")),
    }
}
