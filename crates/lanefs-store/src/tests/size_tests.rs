//! What a volume costs does not grow with its size: what nobody ever used is not looked at.

use crate::api::{FoldInput, FormatOptions, OpenOptions, Transaction};
use crate::device::{Device, MemoryDevice, Recorder};
use crate::log::figures::asked;
use crate::log::segment::{Geometry, SegmentTable, State};
use crate::store::Store;
use crate::testing::{file, page, update};
use lanefs_format::superblock::Layout;
use std::ops::Range;
use std::sync::Arc;

const FILE: u64 = 50;

/// What a step cost: how often somebody asked for the figures of a segment, requests to the device
/// and their bytes.
#[derive(PartialEq, Eq, Debug)]
struct Cost {
    step: &'static str,
    asked: u64,
    reads: u64,
    bytes_read: u64,
    bytes_written: u64,
}

struct Measured {
    recorder: Arc<Recorder>,
    steps: Vec<Cost>,
}

impl Measured {
    /// Does a step, all of it in this thread, and notes what it cost.
    fn step<T>(&mut self, step: &'static str, does: impl FnOnce() -> T) -> T {
        let (before, asked_before) = (self.recorder.counters(), asked());
        let result = does();
        let (now, asked) = (self.recorder.counters(), asked() - asked_before);
        self.steps.push(Cost {
            step,
            asked,
            reads: now.reads - before.reads,
            bytes_read: now.bytes_read - before.bytes_read,
            bytes_written: now.bytes_written - before.bytes_written,
        });
        result
    }
}

fn checkpoint(s: &Store) {
    let epoch = s.folded_epoch();
    s.checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() })).unwrap();
}

/// Writes pages of the file, 32 at a time.
fn write(s: &Store, pages: Range<u64>, every: usize) {
    let all: Vec<u64> = pages.step_by(every).collect();
    for some in all.chunks(32) {
        assert!(s.reserve(0, some.len() as u64));
        let mut u = update(FILE, 4096, some.iter().map(|p| (*p, page(*p as u8))).collect());
        u.reserved = some.len() as u32;
        s.submit(Transaction { inodes: vec![u], ..Transaction::default() }).unwrap();
    }
}

/// Returns what the same few things cost on volumes whose devices have so many GiB, and what memory
/// holds of them in between.
fn costs(gib: &[u64]) -> (Vec<Cost>, Vec<(usize, usize)>) {
    let recorder = Recorder::new();
    let wrap = |gib: &u64| Arc::new(recorder.wrap(MemoryDevice::new(gib << 30).unwrap())) as Arc<dyn Device>;
    let devices: Vec<_> = gib.iter().map(wrap).collect();
    let mut m = Measured { recorder: recorder.clone(), steps: Vec::new() };
    let format = FormatOptions { mlogs: 2, ..FormatOptions::default() };
    m.step("format", || Store::format(&devices, &format).unwrap());
    let options = OpenOptions { threads: 1, ..OpenOptions::default() };
    let open = || Store::open(devices.clone(), &options).unwrap().0;
    let s = m.step("open", open);
    let held = |s: &Store| s.engine.log.segments.held();
    let mut memory = vec![held(&s)];
    m.step("ten looks", || {
        for _ in 0..10 {
            let p = s.pressure();
            assert!(p.free_segments > p.checkpoint_below && s.look_for_host_space());
            s.mark_quiet_logs().unwrap();
        }
    });
    let r = m.step("report", || s.report()).segments;
    let all = r.free + r.pending + r.open + r.chain + r.by_utilisation.iter().sum::<u64>();
    assert_eq!((r.total, all), (s.pressure().segments, r.total), "{r:?}");
    let epoch = s.info().last_epoch + 1;
    s.commit_epoch(epoch, vec![(0, file(epoch, FILE))]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch, groups: vec![file(epoch, FILE).into()] })).unwrap();
    m.step("write", || write(&s, 0..1, 1));
    m.step("checkpoint", || checkpoint(&s));
    // Four segments, three of them full, and of these every second block dies.
    write(&s, 0..2048, 1);
    checkpoint(&s);
    write(&s, 0..2048, 2);
    checkpoint(&s);
    let cleaned = m.step("clean", || s.clean(s.pressure().segments).unwrap());
    assert!(cleaned.segments > 0, "{cleaned:?}");
    m.step("checkpoint that frees", || checkpoint(&s));
    m.step("report of some", || s.report());
    memory.push(held(&s));
    m.step("close", || s.close().unwrap());
    drop(s);
    let s = m.step("open again", open);
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
    write(&s, 0..7, 1);
    s.shutdown();
    drop(s);
    let s = m.step("recover", open);
    memory.push(held(&s));
    m.step("close again", || s.close().unwrap());
    (m.steps, memory)
}

/// A volume of 1 TiB that held nothing took 128 MiB of memory and 66 ms to be opened, a hundred
/// times what one of 10 GiB took: each segment had its figures, and all were looked at.
#[test]
fn a_volume_of_a_tebibyte_costs_what_one_of_ten_gibibytes_does() {
    assert_eq!(costs(&[10]), costs(&[1024]));
}

#[test]
fn a_second_device_costs_the_same_whatever_its_size() {
    assert_eq!(costs(&[10, 10]), costs(&[10, 1024]));
}

/// Who adds a tebibyte looks at none of it.
#[test]
fn to_grow_costs_the_same_whatever_is_added() {
    let cost = |added: u64| {
        let layout = Layout::new(512, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[512 * 100]));
        t.fill_pools(|_| false);
        let before = asked();
        t.grow(512 * (100 + added));
        assert_eq!((u64::from(t.free_count()), t.held()), (99 + added, (0, 1)));
        let seg = t.claim(0, State::Open, 1).unwrap();
        assert_eq!((seg, t.held()), (1, (100, 1)));
        asked() - before
    };
    assert_eq!(cost(100), cost(1 << 19));
}
