//! Single interleavings that once could have gone wrong, step by step.

use super::super::pool::Hand;
use super::super::*;
use super::after_reading_size;
use super::fake::World;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

#[test]
fn an_extension_under_way_is_not_stored_past_the_size() {
    let world = World::new(64, 1, 100);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 0, &[1; 100]).unwrap();
    let wb = data.lock_writeback();
    let size = data.size();
    data.write(&ctx, 100, &[2; 8000]).unwrap(); // between reading the size and the capture
    let captured = data.capture(&ctx, &wb, 10, 0..10, size);
    assert_eq!(captured.pages.len(), 1);
    assert!(captured.pages[0].1.0[100..].iter().all(|&b| b == 0));
    assert_eq!(data.dirty_pages(), 2, "the rest is still to be written");
    let taken = world.store.submit(ctx.ino, captured);
    data.finish(&ctx, &wb, taken, true);
    drop(wb);
    world.check();
    assert_eq!(world.write_back(0, 10, true), Some(2));
    data.evict_clean(&ctx);
    let mut buf = [0; 8100];
    data.read(&ctx, 0, &mut buf, &ReadAhead::new()).unwrap();
    assert!(buf[..100] == [1; 100] && buf[100..] == [2; 8000]);
}

#[test]
fn a_page_written_during_its_writeback_stays_dirty() {
    let world = World::new(64, 1, 100);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    for failed in [false, true] {
        data.write(&ctx, 0, &[1; 8192]).unwrap();
        let wb = data.lock_writeback();
        let captured = data.capture(&ctx, &wb, 10, 0..10, data.size());
        assert!(!data.has_dirty());
        assert_eq!(data.evict_clean(&ctx), 0, "a page in writeback is not evicted");
        data.write(&ctx, 0, &[3; 1]).unwrap();
        assert!(data.has_dirty());
        assert!(data.capture(&ctx, &wb, 10, 0..10, data.size()).pages.is_empty(), "no second image");
        assert!(data.has_dirty());
        let taken = if failed { captured.give_up() } else { world.store.submit(ctx.ino, captured) };
        data.finish(&ctx, &wb, taken, !failed);
        drop(wb);
        assert_eq!(data.dirty_pages(), if failed { 2 } else { 1 });
        world.check();
    }
}

#[test]
fn growing_from_one_page_keeps_its_state() {
    let world = World::new(64, 1, 100);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 10, &[1; 10]).unwrap();
    data.write(&ctx, 4096 * 70, &[2; 10]).unwrap();
    data.write(&ctx, 4096 * 5000, &[3; 10]).unwrap();
    assert_eq!(data.dirty_pages(), 3);
    assert_eq!(world.write_back(0, 1, true), Some(1));
    assert_eq!(world.write_back(0, 10, true), Some(2));
    assert!(!data.has_dirty());
    assert_eq!(data.evict_clean(&ctx), 3);
    world.check();
    let mut buf = [0; 1];
    for (at, byte) in [(10, 1), (4096 * 70, 2), (4096 * 5000, 3), (5, 0)] {
        data.read(&ctx, at, &mut buf, &ReadAhead::new()).unwrap();
        assert_eq!(buf[0], byte);
    }
}

#[test]
fn shrinking_inside_a_page_writes_zeros_only_if_needed() {
    let world = World::new(64, 1, 4);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 0, &[9; 4096]).unwrap();
    world.write_back(0, 10, true);
    data.truncate(&ctx, 2000, None).unwrap();
    assert_eq!(data.dirty_pages(), 1);
    world.write_back(0, 10, true);
    data.truncate(&ctx, 9000, None).unwrap();
    assert_eq!(data.dirty_pages(), 0);
    data.truncate(&ctx, 2000, None).unwrap();
    assert_eq!(data.dirty_pages(), 0, "the rest is zero already");
    world.check();
}

/// A file of `size` bytes, clean, and so much dirty elsewhere that the next write is throttled;
/// then `meanwhile` happens.
fn throttled(
    size: usize,
    evicted: bool,
    meanwhile: impl FnOnce(&World) + Send + 'static,
) -> std::sync::Arc<World> {
    let world = World::new(64, 2, 1000);
    world.files[0].write(&world.ctx(0, 0), 0, &vec![1; size]).unwrap();
    world.write_back(0, 100, true);
    if evicted {
        world.files[0].evict_clean(&world.ctx(0, 0));
    }
    world.files[1].write(&world.ctx(1, 0), 0, &[1; 27 * 4096]).unwrap();
    assert!(world.pool.dirty_frames() > 64 * 2 / 5);
    *world.meanwhile.lock() = Some(Box::new(meanwhile));
    world
}

#[test]
fn a_write_that_a_truncate_overtakes_extends_the_file_again() {
    // Over a page's border, and inside one page.
    for len in [2000, 500] {
        for (evicted, size) in [(false, 100), (false, 0), (true, 100), (true, 0), (false, 4096), (true, 4096)]
        {
            let world = throttled(8192, evicted, move |w| {
                w.files[0].truncate(&w.ctx(0, 1), size as u64, None).unwrap();
            });
            let (data, ctx) = (&world.files[0], world.ctx(0, 0));
            // Inside the file when the writer looks at its size.
            assert_eq!(data.write(&ctx, 3000, &vec![2; len]).unwrap().bytes, len);
            assert!(world.meanwhile.lock().is_none(), "the truncate came in between");
            let end = size.max(3000 + len);
            assert_eq!(data.size(), end as u64, "shrunk to {size}, evicted: {evicted}");
            let mut wanted = vec![0; end];
            wanted[..size].fill(1);
            wanted[3000..3000 + len].fill(2);
            let mut buf = vec![9; 8192];
            assert_eq!(data.read(&ctx, 0, &mut buf, &ReadAhead::new()).unwrap(), end);
            assert!(buf[..end] == wanted);
            data.truncate(&ctx, 8192, None).unwrap();
            assert_eq!(data.read(&ctx, 0, &mut buf, &ReadAhead::new()).unwrap(), 8192);
            assert!(buf[..end] == wanted && buf[end..].iter().all(|&b| b == 0), "stale bytes behind the end");
            world.check();
        }
    }
}

#[test]
fn an_append_that_another_overtakes_goes_behind_it() {
    let world = throttled(5000, true, |w| {
        w.files[0].append(&w.ctx(0, 1), &[3; 5000], false).unwrap();
    });
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    assert_eq!(data.append(&ctx, &[4; 5000], false).unwrap().0, 10_000);
    let mut buf = vec![9; 15_000];
    data.read(&ctx, 0, &mut buf, &ReadAhead::new()).unwrap();
    assert!(buf[..5000] == [1; 5000] && buf[5000..10_000] == [3; 5000] && buf[10_000..] == [4; 5000]);
    world.check();
}

#[test]
fn a_page_that_cannot_be_read_while_memory_is_full_leaves_what_was_read_before_it() {
    let world = World::new(64, 1, 100);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 0, &[1; 8192]).unwrap();
    world.write_back(0, 100, true);
    data.evict_clean(&ctx);
    data.write(&ctx, 0, &[2; 4096]).unwrap(); // dirty, so it stays
    let mut all = Hand::new();
    while let Some(frame) = world.pool.try_take(0) {
        all.push(frame);
    }
    world.store.fail_reads.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut buf = [0; 8192];
    assert_eq!(data.read(&ctx, 0, &mut buf, &ReadAhead::new()).unwrap(), 4096);
    assert!(buf[..4096] == [2; 4096]);
    assert!(data.read(&ctx, 4096, &mut buf, &ReadAhead::new()).is_err());
    world.pool.give_all(0, &mut all);
    world.check();
}

#[test]
fn a_hole_that_an_extension_overtakes_leaves_nothing_of_what_it_covers() {
    for readings in 1..=3 {
        let world = World::new(64, 1, 100);
        let (data, ctx) = (&world.files[0], world.ctx(0, 0));
        data.write(&ctx, 0, &[1; 100]).unwrap();
        let other = Arc::clone(&world);
        let wrote = Rc::new(Cell::new(false));
        let writes = Rc::clone(&wrote);
        after_reading_size(readings, move || {
            let data = &other.files[0];
            // Not while the hole keeps extensions out.
            if data.size_lock.try_lock().is_some() {
                data.write(&other.ctx(0, 1), 100, &[2; 3996]).unwrap();
                writes.set(true);
            }
        });
        // It takes the last page as a whole if the file ends in the hole, and else blanks part of
        // it.
        data.punch_hole(&ctx, 0, 4000, None).unwrap();
        assert!(wrote.get() || readings > 1);
        let mut buf = [9; 4096];
        let n = data.read(&ctx, 0, &mut buf, &ReadAhead::new()).unwrap();
        assert_eq!(n, if wrote.get() { 4096 } else { 100 });
        assert!(buf[..n.min(4000)].iter().all(|b| *b == 0), "after {readings} readings");
        assert!(buf[n.min(4000)..n].iter().all(|b| *b == 2));
        world.check();
    }
}
