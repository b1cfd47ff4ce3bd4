//! What happens while another call waits for a page from the device, or finds it broken.

use crate::{after_crash, options, root};
use lanefs::{Cred, File, Fs, OpenOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, ReadReq, WriteReq};
use lanefs_store::{Result, StoreError};
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A device during whose next read something else is done, once, and of which no more than so many
/// reads succeed.
struct Midway {
    inner: Arc<MemoryDevice>,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    sound: AtomicI64,
}

impl std::fmt::Debug for Midway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Midway")
    }
}

impl Device for Midway {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if self.sound.fetch_sub(1, SeqCst) <= 0 {
            return Err(StoreError::Io {
                device: "midway".into(),
                what: "read",
                offset: reqs[0].offset,
                message: "told to fail".into(),
                errno: libc::EIO,
            });
        }
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.inner.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
}

impl Midway {
    fn meanwhile(&self, f: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(f));
    }
    fn is_done(&self) -> bool {
        self.meanwhile.lock().unwrap().is_none()
    }
}

/// A volume with the file /f of so many bytes 7, none of them in memory but those of the last page,
/// and the file open for both.
fn cold(size: usize) -> (Fs, Arc<Midway>, Arc<File>) {
    let (fs, dev) = root(64);
    fs.write("/f", vec![7; size]).unwrap();
    fs.volume().close().unwrap();
    drop(fs);
    let midway =
        Arc::new(Midway { inner: dev, meanwhile: Mutex::new(None), sound: AtomicI64::new(i64::MAX) });
    let d: Arc<dyn Device> = midway.clone();
    let fs = Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root());
    let f = fs.open("/f", OpenOptions::new().read(true).write(true)).unwrap();
    // Now the store knows the inode: what it reads from here on are pages.
    f.read_exact_at(&mut [0], size as u64 - 1).unwrap();
    (fs, midway, Arc::new(f))
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// The size and the last bytes, which lie in the inode block, are what an fsync told in the middle
/// of the punch.
#[test]
fn a_hole_takes_nothing_of_what_was_written_behind_the_end_meanwhile() {
    for mode in [PUNCH, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE] {
        let (_fs, midway, f) = cold(32_768);
        let g = Arc::clone(&f);
        midway.meanwhile(move || {
            std::thread::spawn(move || {
                g.write_all_at(&[9; 100], 65_536).unwrap();
                g.sync_all().unwrap();
            })
            .join()
            .unwrap();
        });
        f.allocate(mode, 100, 9000).unwrap();
        assert!(midway.is_done());
        f.sync_all().unwrap();
        let found = after_crash(&midway.inner).read("/f").unwrap();
        assert_eq!(found.len(), 65_636);
        assert!(found[..100].iter().all(|b| *b == 7) && found[9100..32_768].iter().all(|b| *b == 7));
        assert!(found[100..9100].iter().chain(&found[32_768..65_536]).all(|b| *b == 0));
        assert!(found[65_536..].iter().all(|b| *b == 9), "{:?}", &found[65_536..]);
    }
}

/// The time of a change is that of its end: no later stat tells an earlier one.
#[test]
fn times_do_not_go_back_after_a_change_that_took_long() {
    let truncate: fn(&File) = |f| f.set_len(100).unwrap();
    let changes: [fn(&File); 3] = [
        truncate,
        |f| f.allocate(PUNCH, 100, 200).unwrap(),
        |f| f.allocate(libc::FALLOC_FL_ZERO_RANGE, 100, 200).unwrap(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let (_fs, midway, f) = cold(3 * 4096);
        let (g, told) = (Arc::clone(&f), Arc::new(Mutex::new((0, 0))));
        let telling = Arc::clone(&told);
        // On the lane that loaded the file, whose times nobody else stores.
        midway.meanwhile(move || {
            std::thread::sleep(Duration::from_millis(30));
            g.write_all_at(&[1; 100], 4096).unwrap();
            let s = g.stat().unwrap();
            *telling.lock().unwrap() = (s.mtime, s.ctime);
        });
        change(&f);
        assert!(midway.is_done());
        let (mtime, ctime) = *told.lock().unwrap();
        let s = f.stat().unwrap();
        assert!(s.ctime >= ctime, "change {n}: {} before {ctime}", s.ctime);
        assert!(s.mtime >= mtime, "change {n}: {} before {mtime}", s.mtime);
    }
}

/// What was copied or read before a page that cannot be read counts; the error is told to who comes
/// back for the rest.
#[test]
fn a_broken_page_does_not_take_back_what_was_done_before_it() {
    let (fs, midway, f) = cold(3 << 20);
    let to = fs.create("/to").unwrap();
    midway.sound.store(3, SeqCst);
    let n = f.copy_range_to(0, &to, 0, 3 << 20).unwrap();
    assert!(n > 0 && n < 3 << 20 && to.stat().unwrap().size == n, "{n}");
    assert_eq!(f.copy_range_to(n, &to, n, 1).unwrap_err().errno(), libc::EIO);
    let (_fs, midway, f) = cold(1 << 20);
    midway.sound.store(1, SeqCst);
    let (mut a, mut b) = ([0; 4096], [0; 4096]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(f.read_vectored_at(&mut bufs, 0).unwrap(), 4096);
    assert_eq!(f.read_vectored_at(&mut bufs, 4096).unwrap_err().errno(), libc::EIO);
}
