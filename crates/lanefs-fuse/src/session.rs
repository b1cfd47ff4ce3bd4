//! A mounted volume, from mount to the closed image.

use crate::MountConfig;
use crate::adaptor::Adaptor;
use crate::mount::{Attached, attach};
use crate::readers;
use crate::wire::shake_hands;
use lanefs::Volume;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

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
    let (device, attached) = attach(mountpoint, config)?;
    let serving = shake_hands(&device, config.max_write, config.writeback).and_then(|agreed| {
        let device = Arc::new(device);
        let adaptor = Adaptor::new(volume.clone(), config, agreed, Arc::clone(&device));
        readers::start(adaptor, device, config)
    });
    let serving = serving.inspect_err(|_| {
        let _ = attached.detach();
    })?;
    attached.tune(config);
    Ok(Session { volume, attached: Arc::new(attached), serving: Some(serving) })
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
