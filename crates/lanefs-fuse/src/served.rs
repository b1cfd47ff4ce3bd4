//! A mount of a volume that the same process uses by itself: `ls`, backup and monitoring work
//! beside an engine that has its files in process.
//!
//! The two see each other at once, in both directions, because the kernel keeps nothing:
//!
//! S1 Names, names that do not exist, attributes and ACLs hold for no time (TTL 0), listings and
//!    targets of links are not kept: each call on a path asks.
//! S2 Files are opened for direct I/O: each read and write comes here. `MAP_SHARED` is refused
//!    (ENODEV); a private map has the content of the time when its pages were first touched.
//! S3 A write by O_APPEND goes to the end as it is then, wherever the kernel believes it.
//! S4 No watchdog ([`crate::watchdog`]): the process has threads and memory of its own, and what is
//!    forked of it would keep that. The kernel has nothing to write back, so a thread waits for the
//!    mount only where the kernel is to drop a page that is being read, or a name that is being
//!    changed.

use crate::mount::helper;
use crate::{IoUring, MountConfig, Session, mount, remove_dead_mounts};
use lanefs::Volume;
use std::io;
use std::path::Path;

/// A mount that is served beside what the process itself does with the volume. Dropping it
/// unmounts, whoever uses the mount; the volume stays open.
pub struct ServedMount(Option<Session>);

/// The most threads that serve such a mount.
const MOST_THREADS: usize = 8;

/// Mounts `volume` at the directory `mountpoint`, and serves the mount from threads of this
/// process. Until it is unmounted the process may do all that it does with the volume, and either
/// sees what the other does as soon as it is done. One mount of a volume at a time.
///
/// It is to be unmounted before the volume is closed: calls through a mount of a closed volume fail
/// with EIO. Where fusermount3 is installed the mount also goes when the process is killed; else it
/// answers ENOTCONN then, until somebody unmounts it, or serves a mount there again. Its threads
/// take no signals, and no child of this process stays. Advisory locks that are taken through the
/// mount are the kernel's, and keep nobody in this process out.
///
/// # Errors
/// Those of [`mount`].
pub fn serve_mount(volume: &Volume, mountpoint: &Path) -> io::Result<ServedMount> {
    if remove_dead_mounts(mountpoint)? > 0 {
        tracing::warn!("{}: the mount of a process that has ended was removed", mountpoint.display());
    }
    // No more than few callers need: the process has its own work.
    let config = MountConfig {
        shared: true,
        auto_unmount: helper().is_some(),
        io_uring: IoUring::Off,
        threads: MountConfig::default().threads().min(MOST_THREADS),
        ..MountConfig::default()
    };
    debug_assert!(config.believes_for().is_zero() && !config.gathers() && !config.stateless());
    Ok(ServedMount(Some(mount(volume.clone(), mountpoint, &config)?)))
}

impl ServedMount {
    /// Returns the directory of the mount.
    pub fn mountpoint(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), Session::mountpoint)
    }

    /// Unmounts, whoever uses the mount: files that others have open fail from then on. Does not
    /// close the volume.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn unmount(mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), Session::unmount)
    }
}

impl Drop for ServedMount {
    fn drop(&mut self) {
        if let Some(session) = self.0.take()
            && let Err(e) = session.unmount()
        {
            tracing::error!("{e}");
        }
    }
}
