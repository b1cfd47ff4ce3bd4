//! Pages that are dirty without a promise (D7).

use super::super::*;
use super::fake::{NO_CUT, World};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const PAGES: u64 = 8;

/// Returns a world with a file of some stored pages, and so many blocks free that a page which has
/// one is written over without a promise.
fn stored() -> Arc<World> {
    let world = World::new(64, 1, PAGES as i64 + 4);
    let ctx = world.ctx(0, 0);
    world.files[0].write(&ctx, 0, &vec![1; PAGES as usize * 4096]).unwrap();
    world.write_back(0, 100, true);
    assert_eq!(world.store.free.load(SeqCst), 4);
    assert!(world.store.lends());
    world.check();
    world
}

fn lent(world: &World) -> (i64, i64) {
    (world.pool.lent_frames(), world.store.reserved.load(SeqCst))
}

#[test]
fn a_page_with_a_block_takes_nothing_of_what_is_free() {
    let world = stored();
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    file.write(&ctx, 100, &[2; 4]).unwrap();
    file.write(&ctx, 4096, &[2; 3 * 4096]).unwrap();
    assert_eq!(lent(&world), (4, 0));
    assert_eq!(file.stored_pages(), (0..PAGES).collect::<Vec<_>>());
    // Behind the end there is no block.
    file.write(&ctx, PAGES * 4096, &[3; 4096]).unwrap();
    assert_eq!(lent(&world), (4, 1));
    world.check();
    world.write_back(0, 2, true);
    assert_eq!(lent(&world), (2, 1));
    world.write_back(0, 100, true);
    assert_eq!((lent(&world), world.store.free.load(SeqCst)), ((0, 0), 3));
    world.check();
    // Nor is one lent in which the file ends.
    file.truncate(&ctx, PAGES * 4096 + 100, None).unwrap();
    world.write_back(0, 100, true);
    file.write(&ctx, PAGES * 4096, &[4; 100]).unwrap();
    assert_eq!(lent(&world), (0, 1));
    world.check();
}

/// The image of a page has no promise, and the page that is written over meanwhile has one: whether
/// the store takes the image or not.
#[test]
fn a_page_is_written_over_beside_its_image() {
    for ok in [true, false] {
        let world = stored();
        let (file, ctx) = (&world.files[0], world.ctx(0, 0));
        file.write(&ctx, 0, &[2; 2 * 4096]).unwrap();
        let writeback = file.lock_writeback();
        let captured = file.capture(&ctx, &writeback, 100, 0..PAGES, file.size());
        assert_eq!((captured.lent, captured.promises()), (2, 0));
        file.write(&ctx, 0, &[3; 4096]).unwrap();
        assert_eq!(lent(&world), (2, 1));
        let taken = if ok { world.store.submit(ctx.ino, captured) } else { captured.give_up() };
        file.finish(&ctx, &writeback, taken, ok);
        drop(writeback);
        assert_eq!(lent(&world), (i64::from(!ok), 1));
        world.check();
        file.drop_all(&ctx);
        assert_eq!(lent(&world), (0, 0));
    }
}

/// A run of pages is cut where there is no space for all of them.
#[test]
fn a_run_that_begins_with_a_hole_is_cut_in_front_of_what_has_a_block() {
    let world = stored();
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    file.punch_hole(&ctx, 0, 4096, None).unwrap();
    world.store.free.store(0, SeqCst);
    assert!(world.store.lends());
    let refused = file.write(&ctx, 0, &[2; 2 * 4096]).map(|w| w.bytes);
    assert_eq!(refused.unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(lent(&world), (0, 0));
    assert_eq!(file.write(&ctx, 4096, &[2; 2 * 4096]).unwrap().bytes, 2 * 4096);
    assert_eq!(lent(&world), (2, 0));
    world.check();
}

/// Nothing is given back that was not promised when the rest of a page cannot be read.
#[test]
fn a_page_that_cannot_be_read_is_not_written() {
    let world = stored();
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    file.evict_clean(&ctx);
    world.store.fail_reads.store(true, SeqCst);
    assert!(file.write(&ctx, 0, &[2; 10]).is_err());
    world.store.fail_reads.store(false, SeqCst);
    assert_eq!(lent(&world), (0, 0));
    world.check();
}

/// Returns the promises of dirty pages, and how many pages have none since a block is kept.
fn kept(world: &World) -> (i64, usize) {
    (world.store.reserved.load(SeqCst), world.files[0].kept_pages())
}

/// Space that is kept for a page was promised to it again: for as long as it was dirty it took two
/// blocks, and a volume that was half full refused what was new.
#[test]
fn a_preallocated_page_takes_the_block_that_is_kept_for_it() {
    for keep_size in [true, false] {
        let world = World::new(64, 1, 40);
        let (file, ctx) = (&world.files[0], world.ctx(0, 0));
        file.allocate(&ctx, 0, PAGES * 4096, keep_size, &NO_CUT, &|| {}).unwrap();
        assert_eq!(world.store.free.load(SeqCst), 40 - PAGES as i64);
        file.write(&ctx, 0, &vec![1; 4 * 4096]).unwrap();
        assert_eq!(kept(&world), (0, 4), "as a whole, {keep_size}");
        // Bit by bit: a page that the file ends in has a promise until it is full.
        file.write(&ctx, 4 * 4096, &[2; 4000]).unwrap();
        assert_eq!(kept(&world), if keep_size { (1, 4) } else { (0, 5) });
        file.write(&ctx, 4 * 4096 + 4000, &[2; 96]).unwrap();
        assert_eq!(kept(&world), (0, 5), "bit by bit, {keep_size}");
        // Behind what is kept.
        file.write(&ctx, PAGES * 4096, &vec![3; 4096]).unwrap();
        assert_eq!(kept(&world), (1, 5));
        world.check();
        // An image that does not arrive leaves all as it was.
        world.fail_submit.store(true, SeqCst);
        world.write_back(0, 100, true);
        assert_eq!(kept(&world), (1, 5));
        world.fail_submit.store(false, SeqCst);
        world.write_back(0, 100, true);
        assert_eq!((kept(&world), world.store.free.load(SeqCst)), ((0, 0), 40 - PAGES as i64 - 1));
        world.check();
    }
}

/// Nothing is free but what is kept.
#[test]
fn what_was_preallocated_is_written_on_a_full_volume() {
    let world = World::new(64, 1, PAGES as i64 + 1);
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    file.allocate(&ctx, 0, PAGES * 4096, false, &NO_CUT, &|| {}).unwrap();
    world.store.free.store(0, SeqCst);
    file.write(&ctx, 0, &vec![1; PAGES as usize * 4096]).unwrap();
    assert_eq!(kept(&world), (0, PAGES as usize));
    let writeback = file.lock_writeback();
    let captured = file.capture(&ctx, &writeback, 2, 0..PAGES, file.size());
    assert_eq!(captured.promises(), 0);
    // Written over beside its image it takes a promise, which a full volume lends.
    file.write(&ctx, 0, &[2; 4096]).unwrap();
    assert_eq!(world.store.reserved.load(SeqCst), 1);
    let taken = world.store.submit(ctx.ino, captured);
    file.finish(&ctx, &writeback, taken, true);
    drop(writeback);
    world.check();
    // A page that the file comes to end in may go into the inode: it has a promise.
    file.truncate(&ctx, 3 * 4096 + 100, None).unwrap();
    assert_eq!(kept(&world), (2, 1));
    file.punch_hole(&ctx, 2 * 4096, 4096, None).unwrap();
    assert_eq!(kept(&world), (2, 0));
    world.check();
    file.drop_all(&ctx);
    world.check();
}
