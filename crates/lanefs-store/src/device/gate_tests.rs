use super::*;
use crate::device::{MemoryDevice, ReadReq, WriteReq};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A device whose flush makes durable exactly what was answered when it was issued.
#[derive(Debug)]
struct Cached {
    inner: MemoryDevice,
    answered: AtomicU64,
    durable: AtomicU64,
    pause: Duration,
    out: AtomicBool,
    fail: Mutex<Option<&'static str>>,
}

impl Cached {
    fn new(pause: Duration) -> Arc<Cached> {
        Arc::new(Cached {
            inner: MemoryDevice::new(4096).unwrap(),
            answered: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            pause,
            out: AtomicBool::new(false),
            fail: Mutex::new(None),
        })
    }
}

impl Device for Cached {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        "cached"
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.inner.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        assert!(!self.out.swap(true, SeqCst), "two flushes at once");
        let covered = self.answered.load(SeqCst);
        std::thread::sleep(self.pause);
        let fail = *self.fail.lock().unwrap();
        self.out.store(false, SeqCst);
        match fail {
            Some("panic") => panic!("as asked"),
            Some(why) => Err(io_error("cached", "flush", 0, libc::EIO, why)),
            None => {
                self.durable.fetch_max(covered, SeqCst);
                Ok(())
            }
        }
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

#[test]
fn each_caller_is_covered_and_flushes_are_shared() {
    for pause in [0, 20, 300] {
        let d = Cached::new(Duration::from_micros(pause));
        let gate = FlushGate::new(d.clone());
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..200 {
                        let mine = d.answered.fetch_add(1, SeqCst) + 1;
                        gate.flush().unwrap();
                        assert!(d.durable.load(SeqCst) >= mine, "released by a flush begun before it asked");
                    }
                });
            }
        });
        assert_eq!(gate.asked(), 1600);
        assert!(gate.issued() <= 1600);
        if pause == 300 {
            assert!(gate.issued() < 800, "{} flushes", gate.issued());
        }
    }
}

#[test]
fn one_caller_pays_one_flush() {
    let gate = FlushGate::new(Cached::new(Duration::ZERO));
    for _ in 0..10 {
        gate.flush().unwrap();
    }
    assert_eq!((gate.asked(), gate.issued()), (10, 10));
}

#[test]
fn a_failure_reaches_all_it_covers_and_stays() {
    let d = Cached::new(Duration::from_millis(5));
    let gate = FlushGate::new(d.clone());
    gate.flush().unwrap();
    *d.fail.lock().unwrap() = Some("broken");
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| assert!(gate.flush().unwrap_err().to_string().contains("broken")));
        }
    });
    *d.fail.lock().unwrap() = None;
    let issued = gate.issued();
    assert!(gate.flush().is_err());
    assert!(gate.failed().is_some());
    assert_eq!(gate.issued(), issued, "a flush after a failed one");
}

#[test]
fn a_leader_that_panics_leaves_nobody_waiting() {
    let d = Cached::new(Duration::from_millis(5));
    let gate = FlushGate::new(d.clone());
    *d.fail.lock().unwrap() = Some("panic");
    let panicked = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.flush()));
                match r {
                    Ok(r) => assert!(r.unwrap_err().to_string().contains("panicked")),
                    Err(_) => {
                        panicked.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(panicked.load(SeqCst), 1);
    assert!(gate.flush().is_err());
}

#[test]
fn a_device_without_a_cache_is_not_flushed() {
    let gate = FlushGate::new(Arc::new(MemoryDevice::new(4096).unwrap()));
    gate.flush().unwrap();
    assert_eq!((gate.asked(), gate.issued()), (0, 0));
}
