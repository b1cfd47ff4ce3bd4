//! A mounted volume, from mount to the closed image.

use crate::MountConfig;
use crate::adaptor::Adaptor;
use crate::mount::{Attached, attach};
use crate::options::IoUring;
use crate::readers::{self, most};
use crate::rings::{Rings, ended};
use crate::wire::{Device, Offer, ring, shake_hands};
use lanefs::Volume;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A volume mounted in the name space. Dropping it unmounts, waits for the users of the mount, and closes the volume.
pub struct Session {
    volume: Volume,
    attached: Arc<Attached>,
    serving: Option<JoinHandle<io::Result<()>>>,
}

/// Takes a mount down; may be used from any thread.
#[derive(Clone)]
pub struct Unmounter {
    attached: Arc<Attached>,
}

/// Tells the kernel that this thread, and all it starts later, serve a file system: they are not made to wait for
/// the writeback of pages that only they can write. Best effort; only root may.
pub fn serve_as_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: this prctl takes plain numbers and sets a flag of the calling thread.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Mounts `volume` at the directory `mountpoint`. When this returns, the mount answers.
///
/// # Errors
/// EBUSY, EPERM, ENOTDIR and what else mount(2) says; the message of fusermount3 for an ordinary user.
pub fn mount(volume: Volume, mountpoint: &Path, config: &MountConfig) -> io::Result<Session> {
    let rings = rings_wanted(config)?;
    let (device, attached) = attach(mountpoint, config)?;
    let serving = serve(&volume, device, config, rings).inspect_err(|_| {
        let _ = attached.detach();
    })?;
    attached.tune(config);
    Ok(Session { volume, attached: Arc::new(attached), serving: Some(serving) })
}

/// Where the kernel keeps its switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How long a FORGET may lie when requests come over rings.
const FORGETTING: Duration = Duration::from_millis(2);

fn refused(why: &str) -> io::Error {
    let what = format!("{why}; or mount with -o io_uring=auto, which does without");
    io::Error::new(io::ErrorKind::Unsupported, what)
}

/// Whether to ask the kernel for rings.
fn rings_wanted(config: &MountConfig) -> io::Result<bool> {
    if config.io_uring == IoUring::Off {
        return Ok(false);
    }
    match ring::probe() {
        Ok(()) => Ok(true),
        Err(e) if config.io_uring == IoUring::On => Err(refused(&format!(
            "io_uring=on, but this process may not use io_uring ({}); look at /proc/sys/kernel/io_uring_disabled and at what a \
             container or its seccomp filter forbids",
            e.kind()
        ))),
        Err(e) => {
            tracing::debug!("no io_uring here: {e}");
            Ok(false)
        }
    }
}

/// Shakes hands with the kernel and starts who serves it. The thread returned ends when the connection has ended, with the first
/// error of any.
fn serve(
    volume: &Volume,
    device: Device,
    config: &MountConfig,
    rings: bool,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let offer = Offer { max_write: config.max_write, writeback: config.writeback, rings };
    let agreed = shake_hands(&device, offer)?;
    let only = config.io_uring == IoUring::On;
    if only && !agreed.rings {
        return Err(refused(&match std::fs::read_to_string(SWITCH) {
            Ok(_) => format!("io_uring=on, but the kernel has it switched off; as root: echo Y > {SWITCH}"),
            Err(_) => "io_uring=on, but this kernel cannot (Linux 6.14 with CONFIG_FUSE_IO_URING can)".into(),
        }));
    }
    let device = Arc::new(device);
    let adaptor = Arc::new(Adaptor::new(volume.clone(), config, agreed, Arc::clone(&device)));
    let mut rings = None;
    let mut over_rings = false;
    if agreed.rings {
        let (started, result) = Rings::start(&adaptor, &device, most(config.max_write), config.team());
        match result {
            Ok(()) => over_rings = true,
            Err(e) if only => return Err(refused(&format!("io_uring=on, but a ring was refused: {e}"))),
            Err(e) => tracing::warn!("the mount does without io_uring: {e}"),
        }
        rings = Some(started);
    }
    // Over /dev/fuse comes little but FORGET then, which nobody waits for: not worth waking a thread for each.
    let (threads, nap) = match over_rings {
        true => ((2, 1), Some(FORGETTING)),
        false => ((config.threads(), config.readers()), None),
    };
    let readers = readers::start(&adaptor, &device, config.max_write, threads, nap)?;
    Builder::new().name("lanefs-fuse".into()).spawn(move || {
        let mut result = readers.into_iter().map(ended).fold(Ok(()), io::Result::and);
        if let Some(rings) = rings {
            result = result.and(rings.wait());
        }
        adaptor.end();
        result
    })
}

impl Session {
    /// Where the volume is mounted.
    pub fn mountpoint(&self) -> &Path {
        self.attached.mountpoint()
    }

    /// What takes the mount down while another thread is in [`Session::join`].
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { attached: Arc::clone(&self.attached) }
    }

    /// Waits until the mount is gone: the volume has no user left, and [`Session::join`] only closes it then.
    ///
    /// # Errors
    /// Of the connection.
    pub fn wait_for_end(&mut self) -> io::Result<()> {
        self.wait()
    }

    /// Waits until the mount is gone, then closes the volume.
    ///
    /// # Errors
    /// Of the connection, or of the final checkpoint.
    pub fn join(mut self) -> io::Result<()> {
        let served = self.wait();
        let closed = self.volume.close().map_err(io::Error::from);
        served.and(closed)
    }

    /// Unmounts, whoever uses the mount (see [`Unmounter::stop`]), and closes the volume.
    ///
    /// # Errors
    /// As [`Session::join`].
    pub fn unmount(self) -> io::Result<()> {
        self.unmounter().stop();
        self.join()
    }

    fn wait(&mut self) -> io::Result<()> {
        match self.serving.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("a reader thread of the mount panicked")),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.attached.detach();
            let _ = self.wait();
            if let Err(e) = self.volume.close() {
                tracing::error!("{e}");
            }
        }
    }
}

impl Unmounter {
    /// Unmounts if nobody uses the mount.
    ///
    /// # Errors
    /// EBUSY if somebody does.
    pub fn unmount(&self) -> io::Result<()> {
        self.attached.detach_if_idle()
    }

    /// Unmounts whoever uses the mount: what the kernel has gathered is written back, then the connection is cut.
    /// Open files of the mount fail with ENOTCONN or EIO from here on; the volume loses nothing.
    pub fn stop(&self) {
        if self.attached.detach_if_idle().is_ok() {
            return;
        }
        if let Ok(dir) = std::fs::File::open(self.attached.mountpoint()) {
            let _ = rustix::fs::syncfs(&dir);
        }
        self.attached.abort();
        let _ = self.attached.detach();
    }
}
