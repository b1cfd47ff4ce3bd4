//! The control: the same workers and judges on a file system of the kernel, on a loop device,
//! stopped by its shutdown ioctl.
//!
//! The ioctl with NOLOGFLUSH leaves on the device what had reached it: what the journal holds in
//! memory alone is lost, writes are not reordered. So one run has one state, and a failure there
//! says that a promise is none that this file system gives.

use super::App;
use super::worker::{Judge, Promised, Scratch, work};
use lanefs_lab_model::generate::Rng;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The file systems, and how each is made.
pub const PEERS: &[(&str, &[&str])] =
    &[("ext4", &["mkfs.ext4", "-q", "-F"]), ("xfs", &["mkfs.xfs", "-q", "-f"])];

/// `EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Without a flush of the journal.
const NOLOGFLUSH: u32 = 2;

/// A mounted file system, unmounted when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Path, at: &Path) -> Result<Mounted, String> {
        succeed(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at))?;
        Ok(Mounted(at.to_path_buf()))
    }

    fn shutdown(&self) -> std::io::Result<()> {
        let dir = std::fs::File::open(&self.0)?;
        // SAFETY: the ioctl reads one u32, which lives through the call.
        let r = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &NOLOGFLUSH) };
        if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmount = || succeed(Command::new("umount").arg(&self.0));
        // Something of the worker may still hold it for a moment.
        let done = (0..50).any(|_| {
            unmount().is_ok() || {
                std::thread::sleep(Duration::from_millis(100));
                false
            }
        });
        if !done {
            let _ = succeed(Command::new("umount").arg("-l").arg(&self.0));
        }
    }
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim())),
    }
}

/// One run of an application on a file system: what it found wrong afterwards.
pub fn round(app: &App, peer: &(&str, &[&str]), seed: u64) -> Result<Option<String>, String> {
    let scratch = Scratch::new("peer")?;
    let (image, mountpoint) = (scratch.path().join("image"), scratch.dir("mnt")?);
    let file = std::fs::File::create(&image).map_err(|e| e.to_string())?;
    file.set_len(320 << 20).map_err(|e| e.to_string())?;
    let [program, options @ ..] = peer.1 else { return Err("no mkfs".into()) };
    succeed(Command::new(program).args(options).arg(&image))?;
    let mut rng = Rng::new(seed);
    let mut promised = Promised::default();
    let dir = mountpoint.join(app.name);
    {
        let mounted = Mounted::new(&image, &mountpoint)?;
        std::fs::create_dir(&dir).map_err(|e| e.to_string())?;
        // Somewhere within a step: after a wait that begins with it.
        let last = 1 + rng.below(app.steps);
        let wait = Duration::from_micros(rng.below(30_000));
        let mut wrong = None;
        std::thread::scope(|s| {
            let mut note = |line: &str| {
                wrong = wrong.take().or(promised.hear(line).err());
                if line == format!("begin {last}") {
                    let mounted = &mounted;
                    s.spawn(move || {
                        std::thread::sleep(wait);
                        if let Err(e) = mounted.shutdown() {
                            eprintln!("shutdown: {e}");
                        }
                    });
                }
            };
            // It ends with an error, unless it was done before.
            let _ =
                work(app.name, &dir, &scratch.dir("for").unwrap_or_default(), (app.steps, seed), &mut note);
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if !promised.ready {
            return Err(format!("{} never got ready on {}", app.name, peer.0));
        }
    }
    let _mounted = Mounted::new(&image, &mountpoint)?;
    let mut judge = Judge::start(app.name, &scratch.dir("judge")?)?;
    Ok(judge.ask(&dir, &promised)?.err())
}
