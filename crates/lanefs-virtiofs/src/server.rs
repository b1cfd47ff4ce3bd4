//! One virtual machine's session: from the socket that it connects to, to the closed volume.

use crate::device::{Device, MOST_QUEUES, Tag};
use crate::line::Memory;
use lanefs::Volume;
use lanefs_fuse::MountConfig;
use lanefs_fuse::guest::Guest;
use lanefs_fuse::report::Reporter;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::{Error as VhostError, Listener};
use vhost_user_backend::{Error as DaemonError, ShutdownHandle, VhostUserDaemon};
use vm_memory::GuestMemoryMmap;

/// What a virtual machine gets.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tag, for virtual machines that ask for it; to others, which have their own way to name
    /// it, it is better not offered.
    pub tag: Option<Tag>,
    /// The most queues for requests that a virtual machine may use: 1 to [`MOST_QUEUES`].
    pub queues: usize,
    /// The most threads of each queue.
    pub threads: usize,
}

impl Options {
    /// Returns the memory that its buffers may take, in bytes: of the volume's budget, so that the
    /// whole stays within it.
    pub fn buffers(&self, config: &MountConfig) -> u64 {
        // A request and an answer.
        let thread = 2 * (u64::from(config.max_write.max(1 << 17)) + 8192);
        thread * (self.queues * self.threads + 1) as u64
    }
}

/// A volume that waits for a virtual machine, and then is served to it.
pub struct Server {
    volume: Volume,
    guest: Arc<Guest>,
    device: Arc<Device>,
    memory: Memory,
    listener: Arc<UnixListener>,
    stop: Arc<Stop>,
}

/// How far a session is on its way to the end.
#[derive(Default)]
struct Stop {
    /// Whether somebody has asked for the end. SeqCst, once for a session: stored before the
    /// connection is looked for, and loaded when there is one; one of the two finds the other.
    asked: AtomicBool,
    connection: Mutex<Option<ShutdownHandle>>,
}

/// Ends a session from any thread.
#[derive(Clone)]
pub struct Stopper {
    volume: Volume,
    listener: Arc<UnixListener>,
    stop: Arc<Stop>,
}

impl Stopper {
    /// Cuts the virtual machine off. What it was answered is in the volume, and
    /// [`Server::close`] closes that; what its kernel has only in memory is lost, as when its power
    /// fails. Called once more while the volume waits for space on the host of an image, it has the
    /// volume give up: then what was synced is safe, and the rest is lost.
    pub fn stop(&self) {
        if self.stop.asked.swap(true, Ordering::SeqCst) && self.volume.waits_for_host() {
            self.volume.shutdown();
        }
        // Ends the wait for a connection.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(connection) = &*self.stop.connection() {
            connection.shutdown();
        }
    }
}

impl Stop {
    fn connection(&self) -> std::sync::MutexGuard<'_, Option<ShutdownHandle>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Makes an error of one of the vhost crates.
fn failed(what: &str, e: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{what}: {e}"))
}

impl Server {
    /// Makes what serves `volume` to whoever connects to `listener` first.
    ///
    /// # Errors
    /// EINVAL for a number of queues or threads that cannot be; EMFILE.
    pub fn new(
        volume: Volume,
        config: &MountConfig,
        options: &Options,
        listener: UnixListener,
    ) -> io::Result<Server> {
        if !(1..=MOST_QUEUES).contains(&options.queues) || options.threads == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let memory = Memory::new(GuestMemoryMmap::new());
        let guest = Guest::new(volume.clone(), config);
        let device = Device::new(&guest, &memory, options.tag.as_ref(), options.queues, options.threads)?;
        Ok(Server {
            volume,
            guest,
            device: Arc::new(device),
            memory,
            listener: Arc::new(listener),
            stop: Arc::default(),
        })
    }

    /// Returns what ends the session from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            volume: self.volume.clone(),
            listener: Arc::clone(&self.listener),
            stop: Arc::clone(&self.stop),
        }
    }

    /// Returns what tells of the requests and of the volume from any thread, for as long as the
    /// volume is open.
    pub fn reporter(&self) -> Reporter {
        self.guest.reporter()
    }

    /// Closes the volume: all that the virtual machine was answered is durable then.
    ///
    /// # Errors
    /// Of the final checkpoint.
    pub fn close(self) -> io::Result<()> {
        self.guest.close()
    }

    /// Waits for a virtual machine, and serves it until it disconnects or [`Stopper::stop`] is
    /// called.
    ///
    /// # Errors
    /// Of the connection, or of what is said over it.
    pub fn serve(&self) -> io::Result<()> {
        let device = Arc::clone(&self.device);
        let daemon = VhostUserDaemon::new("lanefs-vhost".into(), device, self.memory.clone());
        let mut daemon = daemon.map_err(|e| failed("threads for the queues", e))?;
        let mut listener = Listener::from(self.listener.try_clone()?);
        let connected = daemon.start(&mut listener);
        // Another would wait for ever.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let served = match connected {
            Err(_) if self.stop.is_asked() => Ok(()),
            Err(e) => Err(failed("no virtual machine could connect", e)),
            Ok(()) => {
                *self.stop.connection() = daemon.shutdown_handle();
                if self.stop.is_asked() {
                    daemon.request_shutdown();
                }
                match daemon.wait() {
                    // How a virtual machine ends.
                    Err(DaemonError::HandleRequest(
                        VhostError::Disconnected | VhostError::PartialMessage | VhostError::SocketBroken(_),
                    ))
                    | Ok(()) => Ok(()),
                    Err(_) if self.stop.is_asked() => Ok(()),
                    Err(e) => Err(failed("the virtual machine said what cannot be", e)),
                }
            }
        };
        self.device.stop();
        // Waits for the first thread of each queue.
        drop(daemon);
        self.device.end();
        served
    }
}
