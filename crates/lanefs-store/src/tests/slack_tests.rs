//! Volumes that are nearly full and written over at random: data goes to slack (see `log::slack`).

use crate::api::{FoldInput, FormatOptions, OpenOptions, PageRead, Transaction};
use crate::device::{Device, MemoryDevice};
use crate::engine::pressure::Need;
use crate::fsck::{FsckOptions, check};
use crate::store::Store;
use crate::testing::{file, page, update};
use lanefs_format::{BLOCK_SIZE, Block, Ino};
use lanefs_sync::random::Rng;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const FILE: u64 = 50;

/// A volume with one file that takes nearly all there is.
struct Full {
    device: Arc<dyn Device>,
    store: Option<Arc<Store>>,
    /// Of each page the number of the last write.
    written: Vec<u64>,
    /// Writes so far.
    n: u64,
    rng: Rng,
}

/// Returns what write number `n` writes to a page.
fn content(p: u64, n: u64) -> Box<Block> {
    let mut b = page(n as u8);
    b.0[..8].copy_from_slice(&p.to_le_bytes());
    b.0[8..16].copy_from_slice(&n.to_le_bytes());
    b
}

impl Full {
    /// Fills a volume of so many MiB, up to so many of a thousand blocks that users can fill.
    fn new(mib: u64, segment_blocks: u32, mille: u64) -> Full {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib << 20).unwrap());
        let format = FormatOptions { segment_blocks, mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let (s, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
        let e = s.info().last_epoch + 1;
        s.commit_epoch(e, vec![(0, file(e, FILE))]).unwrap();
        s.checkpoint(|| Ok(FoldInput { epoch: e, groups: vec![file(e, FILE).into()] })).unwrap();
        let pages = s.space().total * mille / 1000;
        let rng = Rng::at(7);
        let mut full = Full { device, store: Some(s), written: vec![0; pages as usize], n: 0, rng };
        for first in (0..pages).step_by(32) {
            full.write(first..(first + 32).min(pages), false);
        }
        full.checkpoint();
        full
    }

    fn store(&self) -> &Store {
        self.store.as_deref().expect("it is open but for a moment")
    }

    fn checkpoint(&self) {
        let epoch = self.store().folded_epoch();
        self.store().checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() })).unwrap();
    }

    fn write(&mut self, pages: std::ops::Range<u64>, durable: bool) {
        self.n += 1;
        let (n, k) = (self.n, pages.end - pages.start);
        let s = self.store();
        assert!(
            s.reserve(0, k) || k == 1 && s.reserve_rewrite(0),
            "no space is promised: {:?}",
            s.pressure()
        );
        let size = self.written.len() as u64;
        let mut u = update(FILE, size, pages.clone().map(|p| (p, content(p, n))).collect());
        u.reserved = k as u32;
        let tx = Transaction { durable, inodes: vec![u], ..Transaction::default() };
        s.submit(tx).unwrap_or_else(|e| panic!("write {n} of {k} pages: {e}, {:?}", s.pressure()));
        pages.for_each(|p| self.written[p as usize] = n);
    }

    /// Writes so many pages over, one at a time.
    fn overwrite(&mut self, times: u64, durable_every: u64) {
        for i in 1..=times {
            let p = self.rng.bits() % self.written.len() as u64;
            self.write(p..p + 1, durable_every > 0 && i % durable_every == 0);
        }
    }

    /// Returns the number of the write that a page has.
    fn read(&self, p: u64) -> u64 {
        let mut block = Block::zeroed();
        let mut reads = [PageRead { block: &mut block, hole: false }];
        let r = self.store().read_pages(Ino(FILE), p, &mut reads);
        r.unwrap_or_else(|e| panic!("page {p}: {e}"));
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| block.0[i + b]));
        assert!(word(0) == p && block.0[BLOCK_SIZE - 1] == word(8) as u8, "page {p} has another's content");
        word(8)
    }

    fn all_is_there(&self) {
        (0..self.written.len() as u64).for_each(|p| assert_eq!(self.read(p), self.written[p as usize]));
    }

    /// Opens it anew, as after a crash in which everything that was written arrived.
    fn crash(&mut self) {
        self.store = None;
        self.store = Some(Store::open(vec![self.device.clone()], &OpenOptions::default()).unwrap().0);
    }

    fn close_and_check(&mut self) {
        self.store().close().unwrap();
        self.store = None;
        let r = check(vec![self.device.clone()], &FsckOptions::default(), &|_| ()).unwrap();
        // The name lies where `testing::named` puts it.
        let bad: Vec<_> = r.problems.iter().filter(|p| !p.what.starts_with("lies at cookie")).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    fn slack_is_used(&self) -> bool {
        let log = &self.store().engine.log;
        log.segments.slack.blocks() + log.mlogs[0].slack() > 0
    }
}

/// Without slack 22 blocks are written for each, since the cleaner moves what lives beside the dead
/// ones; with it 2, of which one is the tree's: segments of 64 blocks have many summaries.
#[test]
fn a_full_volume_is_written_over_without_moving_what_lives() {
    let mut v = Full::new(64, 64, 975);
    let pages = v.written.len() as u64;
    v.overwrite(pages / 4, 0); // Until there is slack.
    let before = v.store().report();
    v.overwrite(3 * pages, 0);
    let after = v.store().report();
    let data = after.written.data_bytes - before.written.data_bytes;
    let total = after.written.total_bytes - before.written.total_bytes;
    println!("{total} bytes for {data}: {:.2}", total as f64 / data as f64);
    assert!(v.slack_is_used() && data >> 12 == 3 * pages);
    assert!(total < 4 * data, "{total} bytes were written for {data}");
    v.all_is_there();
    v.close_and_check();
}

/// What is written over without a sync may be what a crash leads back to: the tree of the last
/// checkpoint has it, and every page is that of some write to it.
#[test]
fn what_died_without_a_sync_is_there_after_a_crash() {
    let mut v = Full::new(12, 16, 960);
    let (mut used, mut older) = (0, 0);
    for round in 0..24 {
        // Every third round syncs now and then.
        let (times, durable) = (200 + v.rng.bits() % 900, if round % 3 == 0 { 40 } else { 0 });
        v.checkpoint();
        v.overwrite(times, durable);
        used += u32::from(v.slack_is_used());
        v.crash();
        for p in 0..v.written.len() as u64 {
            let n = v.read(p);
            assert!(n <= v.written[p as usize], "page {p} has write {n}, which never was");
            older += u32::from(n < v.written[p as usize]);
            v.written[p as usize] = n;
        }
    }
    assert!(used > 12 && older > 500, "slack was used in {used} rounds, {older} pages went back");
    v.close_and_check();
}

/// A volume of which segments were free at the last checkpoint, and are not any more, has no list
/// yet: the cleaner moved what lives up to twice the low water, ahead of the checkpoint that makes
/// the list.
#[test]
fn nothing_is_moved_ahead_of_the_checkpoint_that_lists_slack() {
    let mut v = Full::new(64, 64, 700);
    let pressure = |v: &Full| v.store().pressure();
    assert!(pressure(&v).free_segments > pressure(&v).low_water && !v.slack_is_used());
    while pressure(&v).free_segments >= pressure(&v).low_water {
        v.overwrite(16, 0);
    }
    let p = pressure(&v);
    assert_eq!(p.checkpoint_below, p.low_water, "the checkpoint is due: {p:?}");
    assert!(p.free_segments + p.pending_segments >= p.clean_below, "the cleaner would come first: {p:?}");
    v.checkpoint();
    let p = pressure(&v);
    assert!(v.slack_is_used() && p.checkpoint_below < p.low_water, "{p:?}");
    let pages = v.written.len() as u64;
    v.overwrite(pages, 0);
    let moved = v.store().report().cleaner.blocks_moved;
    assert_eq!(moved, 0, "blocks were moved");
    // Who finds no space gets what the cleaner can make.
    v.store().engine.log.segments.slack.give_way();
    let p = pressure(&v);
    assert_eq!((p.checkpoint_below, p.clean_below, p.clean_to), (p.low_water, p.low_water, 2 * p.low_water));
    v.all_is_there();
    v.close_and_check();
}

/// Writers that found no space at the same time made a checkpoint each, one behind the other.
#[test]
fn writers_that_find_no_space_together_share_a_checkpoint() {
    let mut v = Full::new(24, 64, 975);
    let pages = v.written.len() as u64;
    v.overwrite(pages, 0);
    let s = v.store();
    let made = || s.report().checkpoints.in_place;
    let (seen, before) = (s.engine.log.slot_in_force.load(Ordering::Relaxed), made());
    let free = |blocks| s.engine.free_space_since(seen, Need::Data(blocks), false).unwrap();
    assert!(free(8) && v.slack_is_used());
    let first = made();
    assert!(first > before);
    assert!(!free(8) && !free(1), "the checkpoint of the first does for the others");
    assert_eq!(made(), first);
    // What others have taken meanwhile is not there for this one.
    let listed = s.engine.log.segments.slack.blocks();
    assert!(free(listed + 1) && made() > first);
}

/// The commit of an epoch asked for segments, was told that slack would do, and the checkpoint
/// behind it found too few.
#[test]
fn slack_does_for_data_and_not_for_batches() {
    let mut v = Full::new(24, 64, 975);
    let pages = v.written.len() as u64;
    v.overwrite(pages, 0);
    let s = v.store();
    let t = &s.engine.log.segments;
    let have = |need| {
        let seen = s.engine.log.slot_in_force.load(Ordering::Relaxed);
        s.engine.free_space_since(seen, need, true).unwrap();
        t.free_count()
    };
    let free = have(Need::Data(8));
    assert!(v.slack_is_used() && free > t.least_for_slack());
    assert!(free <= t.reserved_segments(), "{free} are enough for both: this shows nothing");
    let free = have(Need::Segments(8));
    assert!(free > t.reserved_segments(), "{free} of {}", t.reserved_segments());
    v.close_and_check();
}

/// What waits for slack does not wait for ever: without a list there are the segments that data
/// otherwise leaves alone.
#[test]
fn who_finds_no_slack_gets_a_segment() {
    let mut v = Full::new(24, 64, 950);
    let pages = v.written.len() as u64;
    v.overwrite(pages, 0);
    for _ in 0..40 {
        // As if others had taken it all behind each checkpoint.
        v.store().engine.log.segments.slack.give_way();
        v.store().engine.log.let_go_of_slack();
        v.overwrite(200, 7);
    }
    v.all_is_there();
    v.close_and_check();
}
