//! Several segments emptied at once, and what that asks of the device.

use crate::device::{Device, MemoryDevice, Recorder};
use crate::testing::{file, first_byte, page, update};
use crate::{FoldInput, FormatOptions, OpenOptions, Store, Transaction};
use lanefs_format::BLOCK_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Files, and pages of each.
const FILES: u64 = 4;
const PAGES: u64 = 400;

/// Returns a volume of two logs in segments of 64 blocks, with files, and what records its device.
fn volume(threads: usize) -> (Arc<Store>, Arc<dyn Device>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let memory = MemoryDevice::new(16_384 * BLOCK_SIZE as u64).unwrap();
    let device: Arc<dyn Device> = Arc::new(recorder.wrap(Arc::new(memory)));
    let o = FormatOptions { segment_blocks: 64, mlogs: 2, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &o).unwrap();
    let o = OpenOptions { threads, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![device.clone()], &o).unwrap();
    assert_eq!(s.engine.log.mlogs.len(), 2);
    let e = s.info().last_epoch;
    let made: Vec<u8> = (0..FILES).flat_map(|n| file(e + 1, 20 + n)).collect();
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] })).unwrap();
    (s, device, recorder)
}

/// Writes a page of a file, in a lane of its own.
fn write(s: &Store, file: u64, p: u64, byte: u8, durable: bool) {
    let inodes = vec![update(20 + file, PAGES, vec![(p, page(byte))])];
    s.submit(Transaction { lane: file as usize, durable, inodes, ..Transaction::default() }).unwrap();
}

fn checkpoint(s: &Store) {
    let epoch = s.info().last_epoch;
    s.checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() })).unwrap();
}

/// Fills segments with pages of all files, of which four of five die.
fn fill(s: &Store) {
    let all = || (0..PAGES).flat_map(|p| (0..FILES).map(move |f| (f, p)));
    all().for_each(|(f, p)| write(s, f, p, p as u8, false));
    checkpoint(s);
    all().filter(|a| a.1 % 5 > 0).for_each(|(f, p)| write(s, f, p, p as u8, false));
    checkpoint(s);
}

/// Each block that lived was a request, one after the other.
#[test]
fn what_lives_in_a_segment_is_read_by_one_submission_and_moved_by_a_thread_each() {
    for threads in [1, 2] {
        let (s, device, recorder) = volume(threads);
        fill(&s);
        let free = u64::from(s.engine.log.segments.free_count());
        let t = &s.engine.log.segments;
        let left = || s.engine.log.mlogs.iter().map(|m| m.figures(t).capacity).collect::<Vec<_>>();
        let (before, had) = (recorder.log(), left());
        let cleaned = s.clean(free + u64::from(s.engine.log.segments.pending_free()) + 6).unwrap();
        assert!(cleaned.segments >= 6 && cleaned.moved >= 40, "{cleaned:?}");
        let after = recorder.log();
        let submissions = |log: &crate::device::Log| {
            let mut all: Vec<_> = log.reads.iter().map(|r| r.issued).collect();
            all.dedup();
            all.len() as u64
        };
        let (reads, writes) =
            (submissions(&after) - submissions(&before), after.writes.len() - before.writes.len());
        assert!(reads <= 3 * cleaned.segments, "{reads} submissions for {cleaned:?}");
        assert!(writes as u64 >= cleaned.moved, "{writes} blocks written for {cleaned:?}");
        let used = left().iter().zip(&had).filter(|(now, had)| now != had).count();
        assert!(used >= threads, "{used} logs were used by {threads} threads");
        checkpoint(&s);
        drop(s);
        let (s, _) = Store::open(vec![device], &OpenOptions::default()).unwrap();
        for f in 0..FILES {
            (0..PAGES).for_each(|p| assert_eq!(first_byte(&s, 20 + f, p), Some(p as u8), "{f} {p}"));
        }
        assert!(s.audit().unwrap().problems.is_empty());
    }
}

/// Writers write over what is moved, in files that lie in all segments that are emptied.
#[test]
fn what_is_written_over_while_it_is_moved_stays() {
    let (s, device, _) = volume(2);
    fill(&s);
    let written: Vec<AtomicU8> = (0..FILES * PAGES).map(|n| AtomicU8::new((n % PAGES) as u8)).collect();
    let over = AtomicBool::new(false);
    let mut moved = 0;
    std::thread::scope(|scope| {
        for f in 0..FILES {
            let (s, written, over) = (&s, &written, &over);
            scope.spawn(move || {
                for n in 0..3 * PAGES {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let (p, byte) = (n * 7 % PAGES, 100 + (n / PAGES) as u8);
                    write(s, f, p, byte, n % 16 == 0);
                    written[(f * PAGES + p) as usize].store(byte, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..20 {
            let ready = s.engine.log.segments.free_count() + s.engine.log.segments.pending_free();
            moved += s.clean(u64::from(ready) + 4).unwrap().moved;
            checkpoint(&s);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(moved > 0, "nothing lived");
    checkpoint(&s);
    drop(s);
    let (s, _) = Store::open(vec![device], &OpenOptions::default()).unwrap();
    for f in 0..FILES {
        for p in 0..PAGES {
            let want = written[(f * PAGES + p) as usize].load(Ordering::Relaxed);
            assert_eq!(first_byte(&s, 20 + f, p), Some(want), "page {p} of file {f}");
        }
    }
    assert!(s.audit().unwrap().problems.is_empty());
}
