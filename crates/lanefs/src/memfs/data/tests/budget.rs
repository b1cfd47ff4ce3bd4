//! Memory stays within its budget, whatever is written and read.

use super::super::*;
use super::fake::World;
use std::sync::Arc;

#[test]
fn a_file_larger_than_memory() {
    let world = World::new(64, 2, 1 << 20);
    let ra = ReadAhead::new();
    for file in 0..2 {
        let ctx = world.ctx(file, 0);
        for i in 0..1000u64 {
            let block = [(i % 251) as u8 + file as u8; 4096];
            assert_eq!(world.files[file].write(&ctx, i * 4096, &block).unwrap().bytes, 4096);
        }
        assert!(world.pool.dirty_frames() <= world.pool.frames());
    }
    for file in 0..2 {
        let mut buf = [0; 4096];
        for i in 0..1000u64 {
            world.files[file].read(&world.ctx(file, 0), i * 4096, &mut buf, &ra).unwrap();
            assert_eq!(buf, [(i % 251) as u8 + file as u8; 4096]);
        }
    }
    world.check();
    assert!(world.store.reads.load(std::sync::atomic::Ordering::SeqCst) < 700, "streams are read ahead");
}

/// The kernel keeps what it hands over from its cache; keeping it here too only takes frames from
/// others.
#[test]
fn pages_written_once_leave_memory_when_they_are_clean() {
    let world = World::new(256, 2, 1 << 20);
    let (data, ctx) = (&world.files[1], world.ctx(1, 0));
    assert!(ctx.once);
    let used = |world: &World| {
        let pin = crossbeam_epoch::pin();
        (0..100).filter(|p| world.files[1].find(*p, &pin).is_some()).count()
    };
    data.write(&ctx, 0, &vec![7; 100 * 4096]).unwrap();
    assert_eq!(used(&world), 100);
    // One is written again while its image is on the way, and stays until that is written back too.
    let round = data.lock_writeback();
    let captured = data.capture(&ctx, &round, 60, 0..u64::MAX, data.size());
    data.write(&ctx, 5 * 4096, &[8; 4096]).unwrap();
    let taken = world.store.submit(ctx.ino, captured);
    data.finish(&ctx, &round, taken, true);
    drop(round);
    assert_eq!(used(&world), 41);
    world.write_back(1, 100, true);
    assert_eq!(used(&world), 0);
    let mut back = vec![0; 100 * 4096];
    assert_eq!(data.read(&ctx, 0, &mut back, &ReadAhead::new()).unwrap(), back.len());
    assert!((0..100).all(|p| back[p * 4096..][..4096] == [if p == 5 { 8 } else { 7 }; 4096]));
    // What a read brought in stays, also when it is overwritten.
    data.write(&ctx, 0, &[9; 4096]).unwrap();
    world.write_back(1, 100, true);
    assert_eq!(used(&world), 100);
    world.check();
}

#[test]
fn one_write_larger_than_memory() {
    let world = World::new(64, 1, 1 << 20);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    let bytes: Vec<u8> = (0..600_000u32).map(|i| (i / 7) as u8).collect();
    assert_eq!(data.write(&ctx, 123, &bytes).unwrap().bytes, bytes.len());
    let mut buf = vec![0; bytes.len()];
    assert_eq!(data.read(&ctx, 123, &mut buf, &ReadAhead::new()).unwrap(), bytes.len());
    assert!(buf == bytes);
    let (_, done) = data.append(&ctx, &bytes, false).unwrap();
    assert!(done.bytes > 0);
    assert_eq!(data.size(), 123 + bytes.len() as u64 + done.bytes as u64);
    world.check();
}

#[test]
fn reads_go_on_when_all_memory_is_dirty() {
    let world = World::new(64, 1, 1 << 20);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 0, &vec![5; 4096 * 10]).unwrap();
    world.write_back(0, 100, true);
    data.evict_clean(&ctx);
    // No writeback makes progress from here on.
    let wb = data.lock_writeback();
    let size_lock = data.size_lock.lock();
    for page in 10..74 {
        let frame = world.pool.try_take(0).unwrap();
        let guard = world.pool.desc(frame).lock();
        data.attach(&ctx, page, &guard, true, None).unwrap();
        data.set_dirty(&ctx, &guard);
        assert!(PageStore::reserve(&world.store, 0, 1));
    }
    drop(size_lock);
    assert!(world.pool.try_take(0).is_none());
    let mut buf = [0; 8192];
    assert_eq!(data.read(&ctx, 100, &mut buf, &ReadAhead::new()).unwrap(), 8192);
    assert_eq!(buf, [5; 8192]);
    drop(wb);
    world.files[0].drop_all(&ctx);
    world.check();
}

#[test]
fn writers_in_tight_memory_do_not_deadlock() {
    let world = World::new(64, 4, 1 << 20);
    std::thread::scope(|scope| {
        for t in 0..6usize {
            let world = Arc::clone(&world);
            scope.spawn(move || {
                let file = t % 4;
                let ctx = world.ctx(file, t);
                for i in 0..300u64 {
                    let at = (i * 7 % 60) * 4096 + t as u64;
                    assert!(world.files[file].write(&ctx, at, &[t as u8; 20_000]).unwrap().bytes > 0);
                    if i % 50 == 0 {
                        world.files[file].truncate(&ctx, at, None).unwrap();
                    }
                }
            });
        }
    });
    world.check();
}

#[test]
fn reclaim_keeps_frames_free() {
    let world = World::new(256, 1, 1 << 20);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 0, &vec![5; 4096 * 90]).unwrap();
    world.write_back(0, 1000, true);
    for at in 0..20 {
        data.write(&ctx, 4096 * (200 + at), &[6; 4096]).unwrap();
    }
    world.pool.reclaim(0, 256);
    assert_eq!(data.dirty_pages(), 20);
    assert!(world.pool.free_frames() > 200, "only dirty pages stay: {}", world.pool.free_frames());
}

#[test]
fn a_dropped_file_gives_its_frames_back() {
    let world = World::new(64, 1, 1 << 20);
    let ctx = world.ctx(0, 0);
    for _ in 0..5 {
        // SAFETY: boxed.
        let file = Box::new(unsafe { FileData::new(0, 0, 0) });
        for i in 0..4 {
            file.write(&ctx, i * 4096, &[1; 4096]).unwrap();
        }
        let wb = file.lock_writeback();
        let done = file.capture(&ctx, &wb, 1, 0..100, file.size());
        let taken = world.store.submit(ctx.ino, done);
        file.finish(&ctx, &wb, taken, true);
        // One written back, two in writeback for ever, one dirty.
        let unfinished = file.capture(&ctx, &wb, 2, 0..100, file.size());
        assert_eq!(unfinished.pages.len(), 2);
        drop(wb);
    }
    let mut taken = Vec::new();
    while let Some(frame) = world.pool.try_take(0) {
        taken.push(frame);
    }
    // Somebody may look at the images that nobody has finished.
    assert_eq!(taken.len(), 64 - 5 * 2);
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 54, "no frame twice");
    assert_eq!(world.pool.dirty_frames(), 0);
    taken.into_iter().for_each(|f| world.pool.give(0, f));
}
