//! A program's signal handlers run on its own threads, never on one of the library's.

use crate::options;
use lanefs::{Cred, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, ReadReq, WriteReq};
use lanefs_store::{FormatOptions, Result, Store};
use std::sync::{Arc, Mutex};

/// A thread that used the device: its number, its name, and whether it could be interrupted.
type Seen = (i32, String, bool);

/// Notes which threads use the device, and whether SIGUSR1 could interrupt them.
#[derive(Debug)]
struct Watched(MemoryDevice, Arc<Mutex<Vec<Seen>>>);

impl Watched {
    fn note(&self) {
        // SAFETY: gettid takes nothing; the set is written by pthread_sigmask alone, and then read.
        let (thread, open) = unsafe {
            let mut now = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now);
            (libc::gettid(), libc::sigismember(&raw const now, libc::SIGUSR1) == 0)
        };
        let name = std::thread::current().name().unwrap_or_default().to_string();
        self.1.lock().unwrap().push((thread, name, open));
    }
}

impl Device for Watched {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.note();
        self.0.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.note();
        self.0.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        self.note();
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn the_librarys_threads_take_no_signals() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let device = || Watched(MemoryDevice::new(128 << 20).unwrap(), seen.clone());
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device()), Arc::new(device())];
    let format = FormatOptions { segment_blocks: 64, mlogs: 2, ..Default::default() };
    Store::format(&devices, &format).unwrap();
    let options = MountOptions { background: true, ..options() };
    let volume = Volume::open_devices(devices.clone(), &options).unwrap();
    let fs = volume.as_user(Cred::root());
    // Much at once, on both devices: what a thread of the library writes, and one that was started
    // for it alone.
    let file = fs.open("large", OpenOptions::new().write(true).create(true)).unwrap();
    for i in 0..24 {
        file.write_all_at(&vec![i as u8; 1 << 20], i << 20).unwrap();
    }
    file.sync_all().unwrap();
    for i in 0..200 {
        fs.write(format!("small-{i}").as_str(), "content").unwrap();
    }
    volume.checkpoint().unwrap();
    volume.shutdown();
    drop((file, fs, volume));
    // What recovery and fsck start, too.
    drop(Volume::open_devices(devices, &options).unwrap().close());
    // SAFETY: gettid takes nothing.
    let here = unsafe { libc::gettid() };
    let seen = seen.lock().unwrap();
    let (mine, others): (Vec<&Seen>, Vec<&Seen>) = seen.iter().partition(|s| s.0 == here);
    assert!(mine.iter().all(|s| s.2), "this thread's mask is as it was");
    assert_eq!(others.iter().find(|s| s.2), None, "a thread of the library could be interrupted");
    assert!(others.iter().any(|s| s.1.is_empty()), "one that writes to the second device: {others:?}");
    assert!(others.iter().any(|s| s.1.starts_with("lanefs")), "one that stays: {others:?}");
}
