//! Large files on their way to the device: how often it is flushed for them, and what goes there
//! before anybody asks.

use crate::options;
use lanefs::{Cred, Fs, MountOptions, OpenOptions, Volume};
use lanefs_format::Block;
use lanefs_store::device::{Device, MemoryDevice, Payload, RecordingDevice, WriteReq};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::random::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;
const SIZE: u64 = 256 << 20;

pub fn recorded(options: &MountOptions) -> (Fs, Arc<RecordingDevice<MemoryDevice>>) {
    recorded_with(options, FormatOptions { segment_blocks: 64, ..Default::default() })
}

fn recorded_with(options: &MountOptions, format: FormatOptions) -> (Fs, Arc<RecordingDevice<MemoryDevice>>) {
    let dev = Arc::new(RecordingDevice::new(MemoryDevice::new(SIZE).unwrap()));
    let d: Arc<dyn Device> = dev.clone();
    Store::format(std::slice::from_ref(&d), &format).unwrap();
    (Volume::open_devices(vec![d], options).unwrap().as_user(Cred::root()), dev)
}

/// A piece that is unlike its neighbours.
fn piece(n: usize) -> Vec<u8> {
    (0..MIB).map(|i| (i / 4096 * 7 + n * 13) as u8).collect()
}

/// The content is there when the power goes now and the device loses all that no flush was answered
/// for.
fn found(dev: &RecordingDevice<MemoryDevice>, pieces: usize) {
    let log = dev.recorder().log();
    let flushed = log.flushes.iter().filter(|f| f.completed.is_some()).map(|f| f.issued).max().unwrap();
    let left = MemoryDevice::new(SIZE).unwrap();
    for w in log.writes.iter().filter(|w| w.completed.is_some_and(|at| at < flushed)) {
        if let Payload::Bytes(bytes) = &w.payload {
            for (n, data) in bytes.chunks(4096).enumerate() {
                let mut block = Block([0; 4096]); // aligned as the device wants it
                block.0.copy_from_slice(data);
                left.write(&[WriteReq { offset: w.offset + n as u64 * 4096, data: &block.0 }]).unwrap();
            }
        }
    }
    let d: Arc<dyn Device> = Arc::new(left);
    let fs = Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root());
    let content = fs.read("/f").unwrap();
    assert_eq!(content.len(), pieces * MIB);
    for (n, c) in content.chunks(MIB).enumerate() {
        assert!(c == piece(n), "piece {n} is not what was written");
    }
}

/// Each round of pages had a batch and a flush of its own, one after the other.
#[test]
fn an_fsync_of_many_rounds_of_pages_flushes_once() {
    let (fs, dev) = recorded(&options());
    let f = fs.create("/f").unwrap();
    for n in 0..12 {
        f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
    }
    let before = dev.recorder().counters().flushes;
    f.sync_all().unwrap();
    assert_eq!(dev.recorder().counters().flushes - before, 1);
    found(&dev, 12);
    // Nothing is owed any more: neither this nor a sync has anything to write.
    let before = dev.recorder().counters();
    f.sync_all().unwrap();
    assert_eq!(dev.recorder().counters().bytes_written, before.bytes_written);
}

#[test]
fn a_file_that_grows_goes_to_the_device_while_it_grows_and_is_durable_when_asked() {
    // Nothing else would write: the pages are young, few beside the frames there are, and no epoch
    // is due.
    let options = MountOptions {
        background: true,
        cache_size: 1 << 30,
        commit_interval: Duration::from_secs(3600),
        dirty_expire: Duration::from_secs(3600),
        ..options()
    };
    for sync in [false, true] {
        let (fs, dev) = recorded(&options);
        let hot = fs.create("/hot").unwrap();
        let before = dev.recorder().counters().bytes_written;
        for _ in 0..64 {
            hot.write_all_at(&piece(0), 0).unwrap();
        }
        let f = fs.create("/f").unwrap();
        for n in 0..32 {
            f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
        }
        let start = Instant::now();
        // The last piece may have come when the thread had just looked.
        while dev.recorder().counters().bytes_written - before < (27 * MIB) as u64 {
            assert!(start.elapsed() < Duration::from_secs(30), "it is not written ahead");
            std::thread::sleep(Duration::from_millis(2));
        }
        if sync {
            fs.volume().sync().unwrap()
        } else {
            f.sync_all().unwrap()
        }
        // No page was written twice, and what was written over and over at most once.
        let written = dev.recorder().counters().bytes_written - before;
        assert!(written < (34 * MIB) as u64, "{written} bytes for 33 MiB");
        found(&dev, 32);
    }
}

/// The log of a database grows, is synced now and then, or is removed: a file that lives for a
/// short time goes to the device when that is asked for, and else not at all.
#[test]
fn what_lives_for_a_short_time_is_not_written_ahead_and_is_durable_when_asked() {
    let options = MountOptions { background: true, cache_size: 1 << 30, ..options() };
    let (fs, dev) = recorded(&options);
    let written = || dev.recorder().counters().bytes_written;
    let (log, f) = (fs.create("/log").unwrap(), fs.create("/f").unwrap());
    log.set_write_ahead(false);
    let before = written();
    for n in 0..32 {
        log.write_all_at(&piece(n + 100), (n * MIB) as u64).unwrap();
    }
    // It would have been written before this one, which is.
    for n in 0..32 {
        f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
    }
    let start = Instant::now();
    while written() - before < (28 * MIB) as u64 {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing is written ahead");
        std::thread::sleep(Duration::from_millis(2));
    }
    f.sync_all().unwrap();
    let told = written() - before;
    assert!(told < (34 * MIB) as u64, "{told} bytes for the 32 MiB that live longer");
    log.sync_data().unwrap();
    assert!(written() - before > (64 * MIB) as u64, "the log was synced and not written");
    // What is said last counts.
    log.set_write_ahead(true);
    for n in 32..64 {
        log.write_all_at(&piece(n + 100), (n * MIB) as u64).unwrap();
    }
    let start = Instant::now();
    while written() - before < (90 * MIB) as u64 {
        assert!(start.elapsed() < Duration::from_secs(30), "it is not written ahead any more");
        std::thread::sleep(Duration::from_millis(2));
    }
    found(&dev, 32);
}

/// A kernel that empties its cache brings much at once, from several threads and not in order; it
/// waits for what is behind, and all of it is there.
#[test]
fn a_cache_that_is_handed_over_at_once_is_written_and_leaves_memory() {
    const PIECES: usize = 96;
    let options = MountOptions { background: true, cache_size: 1 << 30, ..options() };
    let (fs, dev) = recorded(&options);
    let f = fs.create("/f").unwrap();
    std::thread::scope(|s| {
        for t in 0..3 {
            let f = &f;
            s.spawn(move || {
                for n in (t..PIECES).step_by(3) {
                    let (piece, mut done) = (piece(n), 0);
                    while done < MIB {
                        done += f.write_back_at(&piece[done..], (n * MIB + done) as u64).unwrap();
                    }
                }
            });
        }
    });
    f.sync_all().unwrap();
    found(&dev, PIECES);
    let mut back = vec![0; MIB];
    for n in 0..PIECES {
        f.read_exact_at(&mut back, (n * MIB) as u64).unwrap();
        assert!(back == piece(n), "piece {n}");
    }
}

/// With O_DIRECT whole pages are read from the device and leave memory when they are written; all
/// else is as without it.
#[test]
fn o_direct_leaves_nothing_in_memory() {
    const PIECES: usize = 24;
    let (fs, dev) = recorded(&MountOptions { background: true, cache_size: 1 << 30, ..options() });
    let direct = |flags: i32| {
        fs.open("/f", OpenOptions::new().read(true).write(true).create(true).custom_flags(flags)).unwrap()
    };
    let f = direct(libc::O_DIRECT);
    let mut blocks = vec![Block([0; 4096]); MIB / 4096];
    // Written twice: what is there already is handed to the device too.
    for pass in 0..2 {
        for n in 0..PIECES {
            blocks.as_mut_bytes().copy_from_slice(&piece(n + (1 - pass) * 100));
            f.write_all_at(blocks.as_bytes(), (n * MIB) as u64).unwrap();
        }
    }
    f.sync_all().unwrap();
    found(&dev, PIECES);
    for _ in 0..2 {
        let before = dev.recorder().counters().bytes_read;
        for n in 0..PIECES {
            f.read_exact_at(blocks.as_mut_bytes(), (n * MIB) as u64).unwrap();
            assert!(blocks.as_bytes() == piece(n), "piece {n}");
        }
        let read = dev.recorder().counters().bytes_read - before;
        assert!(read >= (PIECES * MIB) as u64, "{read} bytes read of the device: some were in memory");
    }
    // Parts of pages, and a buffer at any address.
    let (plain, mut part) = (direct(0), vec![0; 10_001]);
    f.write_all_at(&[9; 5000], 100).unwrap();
    for file in [&f, &plain] {
        file.read_exact_at(&mut part[1..], 3).unwrap();
        let all = piece(0);
        assert!(
            part[1..98] == all[3..100] && part[98..5098] == [9; 5000] && part[5098..] == all[5100..10_003]
        );
    }
    let end = (PIECES * MIB) as u64;
    f.write_all_at(&[7; 100], end).unwrap();
    assert_eq!(f.read_at(blocks.as_mut_bytes(), end - 4096).unwrap(), 4196);
    assert!(blocks.as_bytes()[4096..4196] == [7; 100]);
}

/// With segments as they are by default, so that threads help, and nothing written before the
/// fsync.
fn streaming() -> (MountOptions, FormatOptions) {
    let hour = Duration::from_secs(3600);
    let o = MountOptions {
        background: true,
        cache_size: 1 << 30,
        commit_interval: hour,
        dirty_expire: hour,
        ..options()
    };
    (o, FormatOptions::default())
}

/// Several threads hand the pages over, in any order; still one flush makes all of them durable,
/// and nothing is owed.
#[test]
fn an_fsync_of_a_large_file_hands_over_several_pieces_at_a_time() {
    let (options, format) = streaming();
    let (fs, dev) = recorded_with(&options, format);
    let f = fs.create("/f").unwrap();
    fs.setxattr("/f", b"user.a", b"1", 0).unwrap();
    for n in 0..40 {
        f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
    }
    let before = dev.recorder().counters().flushes;
    f.sync_all().unwrap();
    assert_eq!(dev.recorder().counters().flushes - before, 1);
    found(&dev, 40);
    // Overwritten: what the store knows already, content alone.
    for n in 0..40 {
        f.write_all_at(&piece(n + 1), (n * MIB) as u64).unwrap();
    }
    for n in 0..40 {
        f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
    }
    f.sync_data().unwrap();
    found(&dev, 40);
    assert_eq!(fs.getxattr("/f", b"user.a").unwrap(), b"1");
}

/// A device that can be copied as it is at one moment while others write. A copy into which they
/// write has blocks of several moments, as no crash leaves: those of a checkpoint, and what was
/// written over them since.
#[derive(Debug)]
struct Still {
    inner: MemoryDevice,
    moment: std::sync::RwLock<()>,
}

impl Still {
    fn left(&self) -> Arc<lanefs_store::device::MemoryImage> {
        let _moment = self.moment.write().unwrap();
        lanefs_store::device::MemoryImage::capture(&self.inner).unwrap()
    }
}

impl Device for Still {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [lanefs_store::device::ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        let _moment = self.moment.read().unwrap();
        self.inner.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_store::Result<()> {
        let _moment = self.moment.read().unwrap();
        self.inner.discard(offset, len)
    }
}

/// Ends a thread that runs until it is told, also when the test fails.
struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Pages written again while their pieces are under way, and a file that grows meanwhile.
#[test]
fn what_is_written_while_pieces_are_under_way_is_not_lost() {
    let (options, format) = streaming();
    let dev = Arc::new(Still { inner: MemoryDevice::new(SIZE).unwrap(), moment: Default::default() });
    let d: Arc<dyn Device> = dev.clone();
    Store::format(std::slice::from_ref(&d), &format).unwrap();
    let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
    let f = fs.create("/f").unwrap();
    let page = |tag: u64, at: u64| {
        let mut p = vec![0_u8; 4096];
        p[..8].copy_from_slice(&tag.to_le_bytes());
        p[8..16].copy_from_slice(&at.to_le_bytes());
        p
    };
    const PAGES: u64 = 4096;
    for at in 0..PAGES {
        f.write_all_at(&page(0, at), at * 4096).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written: Vec<std::sync::atomic::AtomicU64> = (0..2 * PAGES).map(|_| Default::default()).collect();
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|s| {
        // Also when what is found is wrong: else the writer would go on, and the test with it.
        let _stop = Stop(&stop);
        s.spawn(|| {
            let (mut rng, mut end) = (Rng::new(1), PAGES);
            for tag in 1.. {
                if stop.load(order) {
                    return;
                }
                let x = rng.bits();
                let at = if x >> 60 == 0 && end < 2 * PAGES { end } else { (x >> 33) % end };
                end = end.max(at + 1);
                f.write_all_at(&page(tag, at), at * 4096).unwrap();
                written[at as usize].store(tag, order);
            }
        });
        for _ in 0..6 {
            let least: Vec<u64> = written.iter().map(|w| w.load(order)).collect();
            f.sync_all().unwrap();
            let d: Arc<dyn Device> = Arc::new(dev.left().fork().unwrap());
            let crashed = Volume::open_devices(vec![d], &crate::options()).unwrap().as_user(Cred::root());
            let content = crashed.read("/f").unwrap();
            for (at, p) in content.chunks(4096).enumerate() {
                let word = |n: usize| u64::from_le_bytes(p[n..n + 8].try_into().unwrap());
                assert!(word(0) >= least[at], "page {at}: {} is older than {}", word(0), least[at]);
                assert!(word(8) == at as u64 || word(0) == 0, "page {at} has the content of {}", word(8));
            }
            let pages = content.len() / 4096;
            assert!(least[pages..].iter().all(|t| *t == 0), "pages behind {pages} are gone");
        }
    });
}

/// The power goes at any moment of an fsync whose pieces are under way together, and takes any part
/// of what no flush covers: each page is what it was or what was written, never another's, and
/// after the fsync what was written.
#[test]
fn any_crash_while_pieces_are_under_way_leaves_old_pages_or_new_ones() {
    use lanefs_store::device::{Crash, MemoryImage};
    let (options, format) = streaming();
    let base = MemoryImage::capture(&MemoryDevice::new(SIZE).unwrap()).unwrap();
    let (fs, dev) = recorded_with(&options, format);
    let f = fs.create("/f").unwrap();
    let (old, new) = (6, 9);
    for n in 0..old {
        f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
    }
    f.sync_all().unwrap();
    let first = dev.recorder().log().now;
    for n in 0..new {
        f.write_all_at(&piece(n + 100), (n * MIB) as u64).unwrap();
    }
    f.sync_all().unwrap();
    let log = dev.recorder().log();
    let mut seen = [0; 2];
    for seed in 0..60 {
        // The last state is that after all of it.
        let at = if seed == 59 { log.now } else { first + seed * (log.now - first) / 59 };
        let left = Crash::new(&log, at).build_random(std::slice::from_ref(&base), seed).unwrap();
        let d: Vec<Arc<dyn Device>> = left.into_iter().map(|d| Arc::new(d) as Arc<dyn Device>).collect();
        let crashed = Volume::open_devices(d, &crate::options()).unwrap().as_user(Cred::root());
        let content = crashed.read("/f").unwrap();
        assert!(content.len() >= old * MIB && content.len() <= new * MIB, "{} bytes at {at}", content.len());
        for (n, c) in content.chunks(MIB).enumerate() {
            let (was, is) = (piece(n), piece(n + 100));
            for (page, c) in c.chunks(4096).enumerate() {
                let of = |p: &[u8]| *c == p[page * 4096..page * 4096 + c.len()];
                let before = if n < old { of(&was) } else { c.iter().all(|b| *b == 0) };
                assert!(before || of(&is), "page {page} of piece {n} at {at} is neither");
                seen[usize::from(of(&is))] += 1;
                assert!(at < log.now || of(&is), "page {page} of piece {n} was durable");
            }
        }
    }
    assert!(seen.iter().all(|n| *n > 1000), "{seen:?} pages were old and new");
}

/// An error of any of the writes is the fsync's; after it nothing is said to be durable.
#[test]
fn an_error_of_one_piece_is_the_error_of_the_fsync() {
    use lanefs_store::device::{Fault, FaultyDevice, Kind, Plan};
    let (options, format) = streaming();
    for nth in (0..2048).step_by(177) {
        let dev = Arc::new(FaultyDevice::new(MemoryDevice::new(SIZE).unwrap(), Plan::none()));
        let d: Arc<dyn Device> = dev.clone();
        Store::format(std::slice::from_ref(&d), &format).unwrap();
        let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
        let f = fs.create("/f").unwrap();
        // The second time nothing grows, so nothing new is handed over to be written ahead.
        for _ in 0..2 {
            f.sync_all().unwrap();
            for n in 0..8 {
                f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
            }
        }
        dev.set_plan(Plan::none().nth(Kind::Write, nth, Fault::Error(libc::EIO)));
        match f.sync_all() {
            // Something was written ahead after all, on a slow machine.
            Ok(()) => assert!(nth > 0 && dev.fired().is_empty(), "write {nth} failed, and the fsync did not"),
            Err(e) => {
                assert_eq!(e.errno(), libc::EIO, "write {nth}");
                assert!(f.sync_all().is_err(), "an fsync was retried into a success");
            }
        }
    }
}

/// A device that lets somebody else work whenever it is written to.
struct Busy {
    inner: MemoryDevice,
    meanwhile: std::sync::Mutex<Option<Box<dyn FnMut() + Send>>>,
}

impl std::fmt::Debug for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for Busy {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [lanefs_store::device::ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        if let Some(f) = &mut *self.meanwhile.lock().unwrap() {
            f();
        }
        self.inner.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_store::Result<()> {
        self.inner.discard(offset, len)
    }
}

/// Whoever writes to all of a file faster than the device takes it does not keep an fsync from its
/// end.
#[test]
fn an_fsync_ends_though_others_write_faster_than_the_device() {
    use std::sync::mpsc::channel;
    for background in [false, true] {
        let (options, format) = streaming();
        let dev = Arc::new(Busy { inner: MemoryDevice::new(SIZE).unwrap(), meanwhile: Default::default() });
        let d: Arc<dyn Device> = dev.clone();
        Store::format(std::slice::from_ref(&d), &format).unwrap();
        let options = MountOptions { background, ..options };
        let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
        let f = fs.create("/f").unwrap();
        for n in 0..16 {
            f.write_all_at(&piece(n), (n * MIB) as u64).unwrap();
        }
        let (go, asked) = channel::<()>();
        let (done, answers) = channel::<()>();
        let mut writes = 0;
        let meanwhile = move || {
            writes += 1;
            // Far more than the file needs; without an end the test would have none.
            if writes < 100 && go.send(()).is_ok() {
                let _ = answers.recv();
            }
        };
        let rounds = std::thread::scope(|s| {
            let other = s.spawn(|| {
                let mut rounds = 0;
                for () in asked {
                    rounds += 1;
                    for n in 0..16 {
                        f.write_all_at(&piece(n + rounds), (n * MIB) as u64).unwrap();
                    }
                    done.send(()).unwrap();
                }
                rounds
            });
            *dev.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
            f.sync_all().unwrap();
            *dev.meanwhile.lock().unwrap() = None;
            other.join().unwrap()
        });
        assert!(rounds < 40, "background {background}: {rounds} device writes for one fsync");
        // What was written meanwhile is still owed.
        f.sync_all().unwrap();
        let image = lanefs_store::device::MemoryImage::capture(&dev.inner).unwrap();
        let d: Arc<dyn Device> = Arc::new(image.fork().unwrap());
        let crashed = Volume::open_devices(vec![d], &crate::options()).unwrap().as_user(Cred::root());
        for (n, c) in crashed.read("/f").unwrap().chunks(MIB).enumerate() {
            assert!(c == piece(n + rounds), "piece {n} is not the one written last");
        }
    }
}

/// Who finds nothing dirty because another thread is writing it waits for that one: an fsync of the
/// same file, and a sync.
#[test]
fn nobody_is_told_of_durability_while_another_is_still_writing() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    for sync in [false, true] {
        let dev = Arc::new(Busy { inner: MemoryDevice::new(SIZE).unwrap(), meanwhile: Default::default() });
        let d: Arc<dyn Device> = dev.clone();
        Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
        let fs = Volume::open_devices(vec![d], &options()).unwrap().as_user(Cred::root());
        let f = fs.create("/f").unwrap();
        f.sync_all().unwrap();
        fs.volume().sync().unwrap();
        f.write_all_at(&piece(1), 0).unwrap();
        let (reached, here) = channel();
        let (go, gate) = channel::<()>();
        let mut first = true;
        *dev.meanwhile.lock().unwrap() = Some(Box::new(move || {
            if std::mem::take(&mut first) {
                reached.send(()).unwrap();
                let _ = gate.recv();
            }
        }));
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| f.sync_data().unwrap());
            here.recv().unwrap();
            s.spawn(|| {
                if sync {
                    fs.volume().sync().unwrap();
                } else {
                    f.sync_data().unwrap();
                }
                over.store(true, SeqCst);
            });
            std::thread::sleep(Duration::from_millis(100));
            let early = over.load(SeqCst);
            go.send(()).unwrap();
            assert!(!early, "sync {sync}: told before it was written");
        });
        assert!(over.load(SeqCst));
    }
}
