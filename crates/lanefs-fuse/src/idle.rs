//! Has idle processors poll while calls come thick, in a small virtual machine.
//!
//! A call of a program puts the processor of the caller to sleep and wakes it again. In a virtual
//! machine a processor that sleeps has been given back to the host, and to wake it takes longer
//! than most requests. The kernel can have idle processors look for work instead: whoever holds
//! /dev/cpu_dma_latency open and has written 0 to it asks for that (PM QoS). It concerns all
//! processors of the machine, and takes their time from the host, though from no thread here.
//!
//! I1 It is asked for only while a thread serves [`STRIDE`] requests within [`THICK`], and
//!    withdrawn when for [`LULL`] no thread has: a burst costs two interrupts of each idle
//!    processor, and up to twice that time of polling behind it.
//! I2 The kernel withdraws it when the process ends, however it does.
//! I3 By itself a mount asks for it only in a virtual machine of few processors ([`FEW`]): with
//!    two, the one is the caller's and the other the server's, and none polls for nothing.

use crate::options::{Idle, MountConfig};
use lanefs_sync::{CachePadded, SignalsBlocked};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Where the kernel is asked. A number of 32 bits: the latency of waking that is allowed, in
/// microseconds.
const LATENCY: &str = "/dev/cpu_dma_latency";
/// What stands for any latency (PM_QOS_CPU_LATENCY_DEFAULT_VALUE).
const ANY: i32 = 2_000_000_000;

/// Requests of a thread between two looks at the clock.
const STRIDE: u32 = 64;
/// The time within which so many come thick: those of a program that syncs each of its writes to a
/// fast disk do, which threads serve by turns.
const THICK: Duration = Duration::from_micros(25_600);
/// The time without that ends it.
const LULL: Duration = Duration::from_millis(32);

const _: () = assert!(THICK.as_nanos() < LULL.as_nanos(), "it would end between two looks");

/// The most processors of a machine all of which poll for one mount, unless that was asked for.
const FEW: usize = 4;

/// The pace of the requests that one thread serves. It has this for itself.
pub(crate) struct Pace {
    served: u32,
    since: Instant,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { served: 0, since: Instant::now() }
    }
}

/// What the mount asks of idle processors.
pub(crate) struct IdlePolling {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

/// What serving threads and the keeper share.
struct Shared {
    asked: Mutex<Asked>,
    /// Notified when it is asked for, and at the end.
    changed: Condvar,
    /// When requests last came thick, in nanoseconds since `made`; 0: it is not asked for. Stored
    /// by serving threads, once for [`STRIDE`] requests that came thick, and under the lock of
    /// `asked` where that changes. Relaxed: it is a time.
    thick: CachePadded<AtomicU64>,
    made: Instant,
}

/// What was asked of the kernel.
struct Asked {
    file: File,
    polls: bool,
    ended: bool,
}

impl IdlePolling {
    /// Prepares it, where `config` has it: `None` where it is not wanted, or not to be had and not
    /// demanded either.
    pub(crate) fn new(config: &MountConfig) -> io::Result<Option<IdlePolling>> {
        let demanded = config.idle == Idle::Poll;
        let wanted = match config.idle {
            Idle::Poll => true,
            Idle::Halt => false,
            Idle::Auto => !config.shared && is_small_virtual_machine(&read("/proc/cpuinfo")),
        };
        if !wanted {
            return Ok(None);
        }
        // Without a driver processors halt, whatever is asked.
        let drives = !matches!(read("/sys/devices/system/cpu/cpuidle/current_driver").trim(), "" | "none");
        let opened = match drives {
            true => OpenOptions::new().write(true).open(LATENCY),
            false => Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no driver for idling")),
        };
        match opened.and_then(IdlePolling::over) {
            Ok(polling) => Ok(Some(polling)),
            Err(e) if demanded => Err(io::Error::new(
                e.kind(),
                format!(
                    "idle=poll, which needs to write to {LATENCY}: {e}; or mount with -o idle=auto, which does without"
                ),
            )),
            Err(e) => {
                tracing::debug!("{LATENCY}: {e}");
                Ok(None)
            }
        }
    }

    /// Asks by `file`.
    fn over(file: File) -> io::Result<IdlePolling> {
        let shared = Arc::new(Shared {
            asked: Mutex::new(Asked { file, polls: false, ended: false }),
            changed: Condvar::new(),
            thick: CachePadded::default(),
            made: Instant::now(),
        });
        let keeps = Arc::clone(&shared);
        let _blocked = SignalsBlocked::new();
        let keeper = Builder::new().name("lanefs-idle".into()).spawn(move || keeps.keep())?;
        Ok(IdlePolling { shared, keeper: Some(keeper) })
    }

    /// Takes note of a request that a thread has served, and may ask for it (I1).
    #[inline]
    pub(crate) fn served(&self, pace: &mut Pace) {
        debug_assert!(pace.served < STRIDE, "it was looked at");
        pace.served += 1;
        if pace.served == STRIDE {
            self.shared.look(pace);
        }
        debug_assert!(pace.served < STRIDE);
    }
}

impl Drop for IdlePolling {
    fn drop(&mut self) {
        debug_assert!(!self.shared.asked().ended, "it is dropped once");
        self.shared.asked().ended = true;
        self.shared.changed.notify_one();
        // It cannot panic; nothing is owed to it if it did.
        self.keeper.take().map(JoinHandle::join);
    }
}

impl Shared {
    /// Locks what was asked.
    fn asked(&self) -> MutexGuard<'_, Asked> {
        // What a panic left says what was asked last.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time, in nanoseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Looks at the clock after [`STRIDE`] requests of a thread.
    #[cold]
    fn look(&self, pace: &mut Pace) {
        debug_assert_eq!(pace.served, STRIDE);
        let (now, since) = (Instant::now(), pace.since);
        *pace = Pace { served: 0, since: now };
        if now - since > THICK {
            return;
        }
        if self.thick.swap(self.now(), Relaxed) == 0 {
            let mut asked = self.asked();
            if !asked.ended {
                asked.ask(true);
                self.changed.notify_one();
            }
        }
    }

    /// Withdraws what is asked for when requests do not come thick any more; runs until the end.
    fn keep(&self) {
        let mut asked = self.asked();
        while !asked.ended {
            if !asked.polls {
                asked = self.changed.wait(asked).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            asked = (self.changed.wait_timeout(asked, LULL)).unwrap_or_else(PoisonError::into_inner).0;
            let thick = self.thick.load(Relaxed);
            debug_assert!(thick != 0 || asked.ended, "it was withdrawn by somebody else");
            let lull = self.now().saturating_sub(thick);
            // Who finds a zero asks again: behind this, since it takes the lock.
            if u128::from(lull) > LULL.as_nanos()
                && self.thick.compare_exchange(thick, 0, Relaxed, Relaxed).is_ok()
            {
                asked.ask(false);
            }
        }
        asked.ask(false);
        debug_assert!(asked.ended && !asked.polls, "it would poll without a mount");
    }
}

impl Asked {
    /// Asks the kernel to have idle processors poll, or to do as it likes.
    fn ask(&mut self, polls: bool) {
        if self.polls == polls {
            return;
        }
        debug_assert!(!polls || !self.ended, "nobody would withdraw it");
        let value = if polls { 0 } else { ANY };
        // A kernel that refuses has calls take longer.
        if let Err(e) = self.file.write_all(&value.to_ne_bytes()) {
            tracing::debug!("{LATENCY}: {e}");
        }
        self.polls = polls;
        debug_assert_ne!(self.polls, value == ANY);
    }
}

/// Returns what a file of the kernel says; nothing if it cannot be read.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns whether this is the /proc/cpuinfo of a virtual machine with few processors, but not one.
fn is_small_virtual_machine(cpuinfo: &str) -> bool {
    let field = |name: &'static str| {
        cpuinfo.lines().filter_map(|l| l.split_once(':')).filter(move |l| l.0.trim() == name)
    };
    let is_virtual = field("flags").any(|(_, flags)| flags.split(' ').any(|f| f == "hypervisor"));
    is_virtual && (2..=FEW).contains(&field("processor").count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom};

    /// The numbers that were written so far.
    fn written(file: &mut File) -> Vec<i32> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes.chunks(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    #[test]
    fn processors_poll_while_requests_come_thick_and_halt_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latency");
        let mut reads = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        let polling = IdlePolling::over(reads.try_clone().unwrap()).unwrap();
        let mut asked = Vec::new();
        for _ in 0..3 {
            // As many as it takes: a busy machine may make any pace a slow one.
            let begun = Instant::now();
            let mut pace = Pace::default();
            while polling.shared.thick.load(Relaxed) == 0 {
                assert!(begun.elapsed() < Duration::from_secs(60), "they never came thick");
                polling.served(&mut pace);
            }
            while polling.shared.thick.load(Relaxed) != 0 {
                assert!(begun.elapsed() < Duration::from_secs(60), "it was never withdrawn");
                std::thread::sleep(Duration::from_millis(1));
            }
            while polling.shared.asked().polls {}
            asked.extend([0, ANY]);
            assert_eq!(written(&mut reads), asked);
        }
        let mut pace = Pace::default();
        while polling.shared.thick.load(Relaxed) == 0 {
            polling.served(&mut pace);
        }
        drop(polling);
        assert_eq!(written(&mut reads).last(), Some(&ANY), "it is withdrawn with the mount");
    }

    #[test]
    fn requests_that_come_slowly_ask_for_nothing() {
        let mut reads = tempfile::tempfile().unwrap();
        let polling = IdlePolling::over(reads.try_clone().unwrap()).unwrap();
        let mut pace = Pace::default();
        for _ in 0..4 {
            (1..STRIDE).for_each(|_| polling.served(&mut pace));
            std::thread::sleep(THICK * 2);
            polling.served(&mut pace);
        }
        drop(polling);
        assert!(written(&mut reads).is_empty());
    }

    #[test]
    fn a_small_virtual_machine_is_told_from_others() {
        let of = |processors: usize, flags: &str| {
            let one = |n| format!("processor\t: {n}\nflags\t\t: fpu {flags} sse\n\n");
            is_small_virtual_machine(&(0..processors).map(one).collect::<String>())
        };
        assert!(of(2, "hypervisor") && of(4, "hypervisor"));
        assert!(!of(1, "hypervisor") && !of(5, "hypervisor") && !of(2, "vme"));
        assert!(!is_small_virtual_machine(""));
    }
}
