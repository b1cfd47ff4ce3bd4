//! An open volume: what all have in common who use it, and how one user sees it.

use crate::answer::{Failure, Outcome, outside, refuse_children};
use lanefs::{Cred, Fs, MountOptions, Volume};
use lanefs_fuse::{ServedMount, serve_mount};
use lanefs_sync::fork;
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// An open volume, closed at the latest with the last view of it.
pub(crate) struct Shared {
    pub(crate) volume: Volume,
    pub(crate) read_only: bool,
    /// The number by which `st_dev` tells this volume from others.
    pub(crate) device: u64,
    /// Relaxed: calls that come too late are refused by the library.
    closed: AtomicBool,
    /// A mount of it, served by this process.
    mount: Mutex<Option<ServedMount>>,
}

/// The volumes that are closed when the process ends.
static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Closes what is still open. For the end of the interpreter, when nothing in Python runs any more.
pub(crate) extern "C" fn close_all() {
    if fork::is_child() {
        return;
    }
    let all: Vec<_> = std::mem::take(&mut *ALL.lock());
    for shared in all.iter().filter_map(Weak::upgrade) {
        if let Err(e) = shared.close() {
            eprintln!("lanefs: closing a volume at the end of the process: {e}");
        }
    }
}

impl Shared {
    /// Opens a volume: of `memory` bytes, or in images.
    pub(crate) fn open(
        py: Python<'_>,
        images: &[PathBuf],
        named: &[(String, Option<String>)],
        memory: Option<u64>,
    ) -> Outcome<Arc<Shared>> {
        let mut options = MountOptions::default();
        for (name, value) in named {
            if !options.set(name, value.as_deref())? {
                return Err(Failure::invalid(&format!("option {name}: not known")));
            }
        }
        let volume = outside(py, || match memory {
            Some(bytes) => Volume::in_memory(bytes),
            None => Volume::open(images, &options),
        })?;
        let id = volume.info().uuid;
        // As much of the identity as `st_dev` has bits everywhere.
        let device = u64::from(u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
        let shared = Arc::new(Shared {
            volume,
            read_only: options.read_only,
            device,
            closed: AtomicBool::new(false),
            mount: Mutex::new(None),
        });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(shared)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Unmounts and closes the volume for all who have it. Not an error if it is closed.
    pub(crate) fn close(&self) -> lanefs::Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        drop(self.mount.lock().take());
        self.volume.close()
    }

    /// Serves a mount of it.
    pub(crate) fn serve_mount(&self, dir: &Path) -> Outcome<()> {
        let mut mount = self.mount.lock();
        if let Some(mount) = &*mount {
            let text = format!("it is mounted at {} already", mount.mountpoint().display());
            return Err(Failure::Errno(libc::EBUSY, text));
        }
        *mount = Some(serve_mount(&self.volume, dir)?);
        Ok(())
    }

    /// Unmounts it.
    pub(crate) fn unmount(&self) -> Outcome<()> {
        let mount = self.mount.lock().take();
        Ok(mount.ok_or_else(|| Failure::invalid("the volume is not mounted"))?.unmount()?)
    }
}

/// An open volume as one user sees it. Files that were opened by it keep it.
pub(crate) struct View {
    /// Left alone in the child of a fork.
    parts: ManuallyDrop<(Fs, Arc<Shared>)>,
    /// This view was closed. Relaxed: closing is ordered with other calls by whoever closes, as
    /// with any file.
    closed: AtomicBool,
}

impl Drop for View {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // SAFETY: taken once, here.
        let mut parts = Some(unsafe { ManuallyDrop::take(&mut self.parts) });
        // The last one closes the volume, which takes its time: other threads go on meanwhile.
        if Python::try_attach(|py| py.detach(|| drop(parts.take()))).is_none() {
            drop(parts);
        }
    }
}

impl View {
    /// Makes the view of a user (uid, gid, groups; default: who runs the process).
    pub(crate) fn new(shared: Arc<Shared>, user: Option<(u32, u32, Vec<u32>)>, umask: u32) -> View {
        let cred = user.map_or_else(Cred::current, |(uid, gid, groups)| Cred::user(uid, gid, &groups));
        let fs = shared.volume.as_user(cred).with_umask(umask);
        View { parts: ManuallyDrop::new((fs, shared)), closed: AtomicBool::new(false) }
    }

    /// Calls the library, for the user of this view.
    #[inline]
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Fs) -> lanefs::Result<R> + Send,
    ) -> Outcome<R> {
        refuse_children()?;
        if self.is_closed() {
            return Err(Failure::Closed("I/O operation on closed volume"));
        }
        let fs: &Fs = &self.parts.0;
        outside(py, || call(fs))
    }

    /// Closes this view; returns whether it was open.
    pub(crate) fn end(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.shared().is_closed()
    }

    /// Returns what all views of the volume have in common.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.parts.1
    }

    /// Returns the number by which `st_dev` tells this volume from others.
    pub(crate) fn device(&self) -> u64 {
        self.shared().device
    }

    /// Returns the user.
    pub(crate) fn cred(&self) -> &Cred {
        self.parts.0.cred()
    }

    /// Returns the permission bits that are taken from the mode of what is made.
    pub(crate) fn umask(&self) -> u32 {
        self.parts.0.umask()
    }
}
