//! On a full volume one mlog takes the blocks of all lanes (see `log::one_log`).

use crate::api::{FoldInput, FormatOptions, OpenOptions, PageRead, Transaction};
use crate::device::{Device, MemoryDevice};
use crate::fsck::{FsckOptions, check};
use crate::store::Store;
use crate::testing::{file, page, update};
use lanefs_format::{BLOCK_SIZE, Block, Ino};
use lanefs_sync::random::Rng;
use std::sync::Arc;

const LANES: usize = 4;
/// The last one takes all blocks.
const LAST: usize = LANES - 1;
const FILE: u64 = 50;
/// Pages that are written at once.
const AT_ONCE: u64 = 8;

/// A volume with an mlog and a file for each lane.
struct Lanes {
    devices: Vec<Arc<dyn Device>>,
    store: Option<Arc<Store>>,
    /// Of each page of each lane's file the number of the last write.
    written: [Vec<u64>; LANES],
    n: u64,
    rng: Rng,
}

impl Lanes {
    fn new(devices: usize) -> Lanes {
        let bytes = (48 << 20) / devices as u64;
        let device = |_| Arc::new(MemoryDevice::new(bytes).unwrap()) as Arc<dyn Device>;
        let devices: Vec<_> = (0..devices).map(device).collect();
        let format = FormatOptions { segment_blocks: 16, mlogs: LANES as u32, ..FormatOptions::default() };
        Store::format(&devices, &format).unwrap();
        let (s, _) = Store::open(devices.clone(), &OpenOptions::default()).unwrap();
        assert_eq!(s.engine.log.mlogs.len(), LANES);
        let e = s.info().last_epoch + 1;
        let groups: Vec<u8> = (0..LANES as u64).flat_map(|lane| file(e, FILE + lane)).collect();
        s.commit_epoch(e, vec![(0, groups.clone())]).unwrap();
        s.checkpoint(|| Ok(FoldInput { epoch: e, groups: vec![groups.into()] })).unwrap();
        Lanes { devices, store: Some(s), written: Default::default(), n: 0, rng: Rng::at(11) }
    }

    fn store(&self) -> &Store {
        self.store.as_deref().expect("it is open but for a moment")
    }

    fn checkpoint(&self) {
        let epoch = self.store().folded_epoch();
        self.store().checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() })).unwrap();
    }

    /// Lane `lane` writes these pages of its file, of which it may be that none is new.
    fn write(&mut self, lane: usize, pages: std::ops::Range<u64>, durable: bool) {
        self.n += 1;
        let (n, k) = (self.n, pages.end - pages.start);
        let s = self.store();
        assert!(s.reserve(lane, k) || k == 1 && s.reserve_rewrite(lane), "{:?}", s.pressure());
        let content = |p: u64| {
            let mut b = page(lane as u8);
            b.0[..8].copy_from_slice(&p.to_le_bytes());
            b.0[8..16].copy_from_slice(&n.to_le_bytes());
            b
        };
        let size = pages.end.max(self.written[lane].len() as u64);
        let mut u = update(FILE + lane as u64, size, pages.clone().map(|p| (p, content(p))).collect());
        u.reserved = k as u32;
        let tx = Transaction { lane, durable, inodes: vec![u], ..Transaction::default() };
        s.submit(tx).unwrap_or_else(|e| panic!("write {n} of {k} pages: {e}, {:?}", s.pressure()));
        let written = &mut self.written[lane];
        written.resize(size as usize, 0);
        pages.for_each(|p| written[p as usize] = n);
    }

    /// The lanes' files grow by turns until so many of a thousand blocks are in use.
    fn fill(&mut self, mille: u64) {
        for lane in (0..LANES).cycle() {
            let space = self.store().space();
            if space.free * 1000 <= space.total * (1000 - mille) {
                break;
            }
            let from = self.written[lane].len() as u64;
            self.write(lane, from..from + AT_ONCE, false);
        }
        self.checkpoint();
    }

    /// Each lane writes pages of its file over, `times` of them. Returns how many blocks of data
    /// went to each mlog.
    fn overwrite(&mut self, times: u64, durable_every: u64) -> [u64; LANES] {
        let written = |v: &Lanes| v.store().report().mlogs.iter().map(|m| m.data_bytes >> 12).collect();
        let before: Vec<u64> = written(self);
        for i in 0..times {
            for lane in 0..LANES {
                let p = self.rng.bits() % self.written[lane].len() as u64;
                self.write(lane, p..p + 1, durable_every > 0 && i % durable_every == 0);
            }
        }
        let after: Vec<u64> = written(self);
        std::array::from_fn(|m| after[m] - before[m])
    }

    /// Cuts the files to a share of their pages.
    fn cut(&mut self, percent: u64) {
        for lane in 0..LANES {
            let keep = self.written[lane].len() as u64 * percent / 100;
            let ino = Ino(FILE + lane as u64);
            self.store().unmap(lane, ino, keep..1 << 20, None).unwrap();
            self.written[lane].truncate(keep as usize);
        }
        self.checkpoint();
    }

    /// Opens it anew, as after a crash in which everything that was written arrived.
    fn crash(&mut self) {
        self.store = None;
        self.store = Some(Store::open(self.devices.clone(), &OpenOptions::default()).unwrap().0);
    }

    /// Returns the number of the write that a page has, if it is of that page at all.
    fn read(&self, lane: usize, p: u64) -> u64 {
        let mut block = Block::zeroed();
        let mut reads = [PageRead { block: &mut block, hole: false }];
        self.store().read_pages(Ino(FILE + lane as u64), p, &mut reads).unwrap();
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| block.0[i + b]));
        assert!(word(0) == p && block.0[BLOCK_SIZE - 1] == lane as u8, "page {p} has another's content");
        word(8)
    }

    /// Every page has what was last written to it; or, after a crash, something that was.
    fn all_is_there(&mut self, exactly: bool) {
        for lane in 0..LANES {
            for p in 0..self.written[lane].len() {
                let n = self.read(lane, p as u64);
                let want = self.written[lane][p];
                assert!(n == want || n < want && !exactly, "page {p} of lane {lane}: {n}, not {want}");
                self.written[lane][p] = n;
            }
        }
    }

    fn close_and_check(&mut self) {
        self.store().close().unwrap();
        self.store = None;
        let r = check(self.devices.clone(), &FsckOptions::default(), &|_| ()).unwrap();
        // The name lies where `testing::named` puts it.
        let bad: Vec<_> = r.problems.iter().filter(|p| !p.what.starts_with("lies at cookie")).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    /// Returns the segments that each mlog has open, those of its chain left out.
    fn open_segments(&self) -> [usize; LANES] {
        let mlogs = &self.store().engine.log.mlogs;
        std::array::from_fn(|m| mlogs[m].open_segments() - 2)
    }
}

/// Every mlog kept segments open for the heads of its lanes on a full volume too.
#[test]
fn on_a_full_volume_one_log_takes_the_blocks_of_all_lanes_until_there_is_space() {
    for devices in [1, 2] {
        let mut v = Lanes::new(devices);
        v.fill(700);
        assert_eq!(v.overwrite(30, 7), [30; LANES], "each to its own");
        assert!(v.open_segments()[..LAST].iter().all(|n| *n > 0));

        v.fill(970);
        let all = |times: u64| std::array::from_fn(|m| if m == LAST { times * LANES as u64 } else { 0 });
        assert_eq!(v.overwrite(400, 7), all(400));
        assert_eq!(v.open_segments()[..LAST], [0; LAST], "segments are open for nobody");
        assert!(v.open_segments()[LAST] <= 5, "what was taken over is not filled: {:?}", v.open_segments());
        v.all_is_there(true);

        // What is not durable may be gone, and what comes back is a write to that page.
        v.crash();
        v.all_is_there(false);
        assert_eq!(v.overwrite(100, 3), all(100), "after a crash");
        assert_eq!(v.open_segments()[..LAST], [0; LAST]);
        v.checkpoint();

        v.cut(60);
        assert_eq!(v.overwrite(60, 7), [60; LANES], "there is space again");
        v.crash();
        v.all_is_there(false);
        assert_eq!(v.overwrite(30, 0), [30; LANES]);
        v.fill(970);
        assert_eq!(v.overwrite(200, 9), all(200), "it is full again");
        v.all_is_there(true);
        v.close_and_check();
    }
}

/// Each time it set in and ended again the last mlog had more segments open, until they were all
/// that was free.
#[test]
fn what_is_open_does_not_grow_when_the_rule_comes_and_goes() {
    let mut v = Lanes::new(1);
    v.fill(930);
    let mut most = 0;
    // Nobody cleans, so not for ever.
    for round in 0..30 {
        let log = &v.store().engine.log;
        let blocks = log.space.total() / 25;
        log.space.charge(0, blocks);
        v.checkpoint();
        let log = &v.store().engine.log;
        assert!(log.one_log.is_in_force(), "round {round}");
        log.space.credit(0, blocks);
        v.checkpoint();
        assert!(!v.store().engine.log.one_log.is_in_force(), "round {round}");
        v.overwrite(1, 0);
        let open = v.open_segments();
        most = most.max(open.iter().sum());
        assert!(most <= 3 * LANES, "round {round}: {open:?}");
    }
    assert!(most > LANES, "{most}: this shows nothing");
    v.all_is_there(true);
    v.close_and_check();
}

/// What is written while a checkpoint is, that one has no summaries of. They were taken for
/// written: slack was given out that the next checkpoint had no space for the summaries of, or the
/// cleaner took it, and without a checkpoint no segment is freed.
#[test]
fn the_summaries_of_what_is_written_during_a_checkpoint_have_space_in_the_next() {
    let mut v = Lanes::new(1);
    v.fill(930);
    let (s, sizes) = (v.store.clone().unwrap(), v.written.each_ref().map(|w| w.len() as u64));
    let (t, epoch) = (&s.engine.log.segments, s.folded_epoch());
    let mut most = 0;
    for round in 0..40 {
        v.overwrite(100, 0);
        v.checkpoint();
        let before = t.claimed();
        let mut meanwhile = 0;
        s.checkpoint(|| {
            // Behind its position. Whoever finds no space would wait for this checkpoint.
            for p in (round..sizes[0]).step_by(7) {
                let lane = p as usize % LANES;
                let is_short = t.slack.blocks() < 8 || t.free_count() < t.least_for_slack() + 1;
                if is_short || p >= sizes[lane] || !s.reserve(lane, 1) {
                    break;
                }
                let mut u = update(FILE + lane as u64, sizes[lane], vec![(p, page(lane as u8))]);
                u.reserved = 1;
                s.submit(Transaction { lane, inodes: vec![u], ..Transaction::default() })?;
            }
            meanwhile = t.claimed() - before;
            Ok(FoldInput { epoch, groups: Vec::new() })
        })
        .unwrap_or_else(|e| panic!("round {round}: {e}, {:?}", s.pressure()));
        assert!(t.claimed() >= meanwhile, "round {round}: {meanwhile} were claimed, {} are", t.claimed());
        most = most.max(meanwhile);
        s.clean(u64::from(t.free_count()) + 40).unwrap();
        v.checkpoint();
    }
    assert!(most > 100, "{most}: this shows nothing");
    drop(s);
    v.close_and_check();
}

/// Tells threads that it is over.
struct Over<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// At a checkpoint lanes may be in the middle of a write: none opens a segment in a log whose heads
/// the rule has taken.
#[test]
fn lanes_that_write_while_the_rule_sets_in_and_ends_open_nothing_behind_it() {
    let mut v = Lanes::new(1);
    v.fill(930);
    let sizes = v.written.each_ref().map(|w| w.len() as u64);
    let s = v.store();
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..LANES)
            .map(|lane| {
                scope.spawn(move || {
                    let mut rng = Rng::at(lane as u64 + 1);
                    let mut times = 0;
                    while !is_over() || times < 100 {
                        times += 1;
                        let p = rng.bits() % sizes[lane];
                        if !s.reserve(lane, 1) && !s.reserve_rewrite(lane) {
                            continue;
                        }
                        let mut u = update(FILE + lane as u64, sizes[lane], vec![(p, page(lane as u8))]);
                        u.reserved = 1;
                        let tx = Transaction { lane, inodes: vec![u], ..Transaction::default() };
                        s.submit(tx).unwrap();
                    }
                })
            })
            .collect();
        // Also where an assertion fails: the scope waits for them.
        let ends = Over(&over);
        let log = &s.engine.log;
        let mut seen = [0, 0];
        for round in 0..40 {
            // As if so much more were in use.
            let blocks = log.space.total() / 25;
            if round % 2 == 0 {
                log.space.charge(0, blocks);
            }
            v.checkpoint();
            let m = s.engine.maintenance.lock();
            let in_force = log.one_log.is_in_force();
            seen[usize::from(in_force)] += 1;
            let open = v.open_segments();
            assert!(!in_force || open[..LAST] == [0; LAST], "round {round}: {open:?}");
            drop(m);
            if round % 2 == 0 {
                log.space.credit(0, blocks);
            }
        }
        assert!(seen[0] > 10 && seen[1] > 10, "off and on: {seen:?}");
        drop(ends);
        writers.into_iter().for_each(|w| w.join().unwrap());
    });
    for (lane, &size) in sizes.iter().enumerate() {
        for p in (0..size).step_by(13) {
            let mut block = Block::zeroed();
            let mut reads = [PageRead { block: &mut block, hole: false }];
            s.read_pages(Ino(FILE + lane as u64), p, &mut reads).unwrap();
            assert_eq!(block.0[BLOCK_SIZE - 1], lane as u8, "page {p} has another's content");
        }
    }
    v.close_and_check();
}
