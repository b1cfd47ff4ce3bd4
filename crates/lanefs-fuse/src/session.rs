//! A mounted volume, from mount to the closed image.

use crate::MountConfig;
use crate::adaptor::Adaptor;
use crate::closing::Closing;
use crate::counts::{Counts, Requests};
use crate::idle::IdlePolling;
use crate::mount::{Attached, attach};
use crate::options::IoUring;
use crate::readers::{self, Waits};
use crate::report::Reporter;
use crate::rings::{Rings, ended};
use crate::summary::{SWITCH, Switch, summary};
use crate::watchdog::Watchdog;
use crate::wire::{Device, Offer, request_bytes, ring, shake_hands};
use lanefs::Volume;
use lanefs_sync::SignalsBlocked;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A volume mounted in the name space. Dropping it unmounts, waits for the users of the mount, and
/// closes the volume.
pub struct Session {
    volume: Volume,
    unmounter: Unmounter,
    closing: Arc<Closing>,
    counts: Arc<Counts>,
    serving: Option<JoinHandle<io::Result<()>>>,
    over: Receiver<Over>,
    summary: String,
    /// The process that cuts the connection if this one is killed and cannot end.
    watchdog: Option<Watchdog>,
}

/// The reason why there is nothing to wait for any more.
enum Over {
    /// The connection has ended.
    Ended,
    /// It cannot be ended: another mount lies on top of ours, or ours is out of the name space and
    /// in use. It ends with the process.
    GivenUp,
}

/// Reports the end when it is dropped.
struct Ending(Sender<Over>);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.send(Over::Ended);
    }
}

/// Takes a mount down; may be used from any thread.
#[derive(Clone)]
pub struct Unmounter {
    attached: Arc<Attached>,
    adaptor: Weak<Adaptor>,
    over: Sender<Over>,
    /// Held by who takes the mount down, until it is out of the name space: the process must not
    /// end in the middle and leave a mount behind that nobody serves.
    stopping: Arc<Mutex<()>>,
}

/// Declares to the kernel that this thread, and all it starts later, serve a file system: they are
/// not made to wait for the writeback of pages that only they can write. Best effort; only root
/// may.
pub fn serve_as_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: this prctl takes plain numbers and sets a flag of the calling thread.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Mounts `volume` at the directory `mountpoint`. When this returns, the mount answers.
///
/// # Errors
/// EBUSY, EPERM, ENOTDIR and others of mount(2); the message of fusermount3 for an ordinary
/// user.
pub fn mount(volume: Volume, mountpoint: &Path, config: &MountConfig) -> io::Result<Session> {
    mount_watched(volume, mountpoint, config, None)
}

/// As [`mount`], and has `watchdog` cut the connection if this process is killed and cannot end.
/// Where that cannot be had the mount is made without: whoever mounts has to be able to reach the
/// connection's directory in fusectl.
///
/// # Errors
/// As [`mount`].
pub fn mount_watched(
    volume: Volume,
    mountpoint: &Path,
    config: &MountConfig,
    watchdog: Option<Watchdog>,
) -> io::Result<Session> {
    debug_assert!(watchdog.is_none() || !config.shared, "S4 of `served`");
    let rings = rings_wanted(config)?;
    let idle = IdlePolling::new(config)?;
    let (device, attached) = attach(mountpoint, config)?;
    // Before anything is served: from then on a thread may wait for the mount.
    let watchdog = watchdog.filter(|watchdog| {
        let (abort, held) = (attached.abort_file(), attached.held());
        let watched = match (abort, held) {
            (Err(e), None) => Err(e),
            (abort, held) => watchdog.watch(abort.as_ref().ok(), held),
        };
        if let Err(e) = &watched {
            tracing::info!("{}: no watchdog: {e}", mountpoint.display());
        }
        watched.is_ok()
    });
    // While rings are taken down fusermount3 does not see that a mount is dead: somebody has to
    // hold it back.
    let held_back = !config.auto_unmount || watchdog.is_some();
    let rings = rings && (held_back || config.io_uring == IoUring::On);
    let (ends, over) = channel();
    let (adaptor, serving, over_rings) = serve(&volume, device, config, (rings, idle), Ending(ends.clone()))
        .inspect_err(|_| {
            // Cut first: nobody is left to answer what the kernel may ask for at the end.
            attached.abort();
            let _ = attached.detach();
        })?;
    attached.tune(config);
    let summary = summary(config, over_rings, adaptor.idle.is_some(), Switch::now());
    if let Some(knobs) = attached.knobs() {
        adaptor.space.begin(knobs);
    }
    let attached = Arc::new(attached);
    let unmounter = Unmounter {
        attached: Arc::clone(&attached),
        adaptor: Arc::downgrade(&adaptor),
        over: ends,
        stopping: Arc::default(),
    };
    // A reader of requests that failed takes the mount with it: calls are to fail, not to wait for
    // ever.
    let cut = unmounter.clone();
    adaptor.when_serving_fails(Box::new(move || cut.cut()));
    let (closing, counts) = (Arc::clone(&adaptor.closing), Arc::clone(&adaptor.counts));
    Ok(Session { volume, unmounter, closing, counts, serving: Some(serving), over, summary, watchdog })
}

/// The time that a FORGET may lie when requests come over rings.
const FORGETTING: Duration = Duration::from_millis(2);

/// Makes the error of a mount that was to use rings and cannot.
fn refused(why: &str) -> io::Error {
    let what = format!("{why}; or mount with -o io_uring=auto, which does without");
    io::Error::new(io::ErrorKind::Unsupported, what)
}

/// Returns whether to ask the kernel for rings.
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

/// Shakes hands with the kernel and starts who serves it. The thread returned ends when the
/// connection has ended, with the first error of any. Also returned: whether requests come over
/// rings.
fn serve(
    volume: &Volume,
    device: Device,
    config: &MountConfig,
    (rings, idle): (bool, Option<IdlePolling>),
    ending: Ending,
) -> io::Result<(Arc<Adaptor>, JoinHandle<io::Result<()>>, bool)> {
    let offer = Offer {
        max_write: config.max_write,
        writeback: config.gathers(),
        stateless: config.stateless(),
        rings,
        shared: config.shared,
        unchecked: config.is_unchecked(),
        handles: config.handles(),
        // Who enters has to be known of every request then.
        idmap: !config.allow_root && !config.is_unchecked(),
        guest: false,
    };
    let agreed = shake_hands(&device, offer)?;
    let only = config.io_uring == IoUring::On;
    if only && !agreed.rings {
        return Err(refused(&match Switch::now() {
            Switch::On | Switch::Off => {
                format!("io_uring=on, but the kernel has it switched off; as root: echo Y > {SWITCH}")
            }
            Switch::Missing => {
                "io_uring=on, but this kernel cannot (Linux 6.14 with CONFIG_FUSE_IO_URING can)".into()
            }
        }));
    }
    let device = Arc::new(device);
    let counts = Arc::new(Counts::new());
    let told = Some(Arc::clone(&device));
    let mut adaptor = Adaptor::new(volume.clone(), config, agreed, told, counts);
    adaptor.idle = idle;
    let adaptor = Arc::new(adaptor);
    let mut rings = None;
    let mut over_rings = false;
    if agreed.rings {
        let (started, result) =
            Rings::start(&adaptor, &device, request_bytes(config.max_write), config.ring_threads());
        match result {
            Ok(()) => over_rings = true,
            Err(e) if only => return Err(refused(&format!("io_uring=on, but a ring was refused: {e}"))),
            Err(e) => tracing::warn!("the mount does without io_uring: {e}"),
        }
        rings = Some(started);
    }
    // Over /dev/fuse comes little but FORGET then, which nobody waits for: not worth waking a
    // thread for each.
    let (threads, waits) = match over_rings {
        true => ((2, 1), Waits { nap: Some(FORGETTING), looks: None }),
        false => ((config.threads(), config.readers()), Waits { nap: None, looks: config.looks() }),
    };
    debug_assert!(over_rings || !only, "a mount that must use rings was refused");
    debug_assert!(threads.1 <= threads.0, "more would read than there are");
    let readers = readers::start(&adaptor, &device, config.max_write, threads, waits)?;
    let served = Arc::clone(&adaptor);
    let _blocked = SignalsBlocked::new();
    let serving = Builder::new().name("lanefs-fuse".into()).spawn(move || {
        let _ending = ending;
        let mut result = readers.into_iter().map(ended).fold(Ok(()), io::Result::and);
        if let Some(rings) = rings {
            result = result.and(rings.wait());
        }
        adaptor.end();
        result
    })?;
    Ok((served, serving, over_rings))
}

impl Session {
    /// Returns, in a line, how requests come, what the kernel keeps of files, who checks
    /// permissions, and what root could switch on.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Returns the directory where the volume is mounted.
    pub fn mountpoint(&self) -> &Path {
        self.unmounter.attached.mountpoint()
    }

    /// Returns what takes the mount down while another thread is in [`Session::join`].
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Returns the requests that the mount has served so far. What is under way may be missing.
    pub fn requests(&self) -> Requests {
        self.counts.all()
    }

    /// Returns what tells of the mount and its volume from any thread, for as long as the volume is
    /// open.
    pub fn reporter(&self) -> Reporter {
        Reporter::new(self.volume.clone(), Arc::clone(&self.counts))
    }

    /// Returns what ends, from any thread, a wait for space on the host of an image that keeps the
    /// volume from being closed: what was synced is safe, as after a crash, and the rest is lost.
    /// It does nothing, and returns false, while the mount is not ending, or waits for nothing.
    /// `is_asked`: somebody has asked for the end of the mount before.
    pub fn giver_up(&self) -> impl Fn(bool) -> bool + Send + use<> {
        let (volume, closing) = (self.volume.clone(), Arc::clone(&self.closing));
        move |is_asked| {
            let gives_up = (is_asked || closing.closes()) && volume.waits_for_host();
            debug_assert!(is_asked || !gives_up || closing.closes(), "nobody wants the mount to end");
            if gives_up {
                volume.shutdown();
            }
            gives_up
        }
    }

    /// Waits until the mount is gone: the volume has no user left, and [`Session::join`] only
    /// closes it then.
    ///
    /// # Errors
    /// Of the connection.
    pub fn wait_for_end(&mut self) -> io::Result<()> {
        self.wait()
    }

    /// Waits until the mount is gone, then closes the volume.
    ///
    /// # Errors
    /// Of the connection, or of the final checkpoint; or something that programs had written could
    /// not be written back when the mount ended.
    pub fn join(mut self) -> io::Result<()> {
        let served = self.wait();
        let closed = self.closing.end(&self.volume).map_err(io::Error::from);
        let lost = self.closing.has_lost();
        served.and(closed).and(match lost {
            false => Ok(()),
            true => Err(io::Error::other(
                "not all that programs had written could be written back when the mount ended",
            )),
        })
    }

    /// Unmounts, whoever uses the mount (see [`Unmounter::stop`]), and closes the volume.
    ///
    /// # Errors
    /// As [`Session::join`].
    pub fn unmount(self) -> io::Result<()> {
        self.unmounter.stop();
        self.join()
    }

    /// Waits until the mount is gone and out of the name space.
    fn wait(&mut self) -> io::Result<()> {
        let result = self.wait_for_serving();
        // Who cut the connection may not have taken the mount out of the name space yet.
        drop(self.unmounter.stopping.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }

    /// Waits until nobody serves requests any more, or the mount was given up.
    fn wait_for_serving(&mut self) -> io::Result<()> {
        let Some(serving) = self.serving.take() else { return Ok(()) };
        if matches!(self.over.recv(), Ok(Over::GivenUp)) {
            // The connection lives on, and threads may wait for it when the process ends.
            self.watchdog.take().into_iter().for_each(Watchdog::keep);
            return Ok(());
        }
        let result = match serving.join() {
            Ok(result) => result,
            Err(_) => Err(io::Error::other("a reader thread of the mount panicked")),
        };
        self.watchdog = None;
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.unmounter.attached.detach();
            let _ = self.wait();
            if let Err(e) = self.closing.end(&self.volume) {
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

    /// Unmounts whoever uses the mount: what the kernel has gathered is written back until it holds
    /// nothing, then the connection is cut. Open files of the mount fail with ENOTCONN or EIO from
    /// here on; the volume loses nothing that was accepted, or [`Session::join`] reports it. A
    /// mount that lies on top of this one is left alone: then the connection ends with the process.
    pub fn stop(&self) {
        let _stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        if self.attached.detach_if_idle().is_ok() {
            return;
        }
        // It brings the times that the kernel keeps; pages it only begins to write.
        let root = self.attached.root();
        let sync = || root.as_ref().map(rustix::fs::syncfs);
        sync();
        if let Some(adaptor) = self.adaptor.upgrade() {
            adaptor.closing.begin(|| adaptor.may_be_held(), &adaptor.aside);
        }
        sync();
        drop(root);
        self.cut();
        let _ = self.attached.detach();
    }

    /// Cuts the connection, or gives it up.
    fn cut(&self) {
        if !self.attached.abort() {
            let _ = self.over.send(Over::GivenUp);
        }
    }
}
