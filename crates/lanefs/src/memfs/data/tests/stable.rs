//! Frames that are images of their pages (`stable.rs`).

use super::super::frame::{STABLE, WRITEBACK};
use super::super::*;
use super::fake::{NO_CUT, World};
use super::threads::Stops;
use crossbeam_epoch as epoch;
use lanefs_sync::random::Rng;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the bytes of a file.
fn read(world: &World, pages: usize) -> Vec<u8> {
    let mut back = vec![0; pages * PAGE];
    let n = world.files[0].read(&world.ctx(0, 0), 0, &mut back, &ReadAhead::new()).unwrap();
    back.truncate(n);
    back
}

/// Returns how many frames are images, attached or not.
fn stable(world: &World) -> usize {
    (0..world.pool.frames()).filter(|f| world.pool.desc(*f as u32).state() & STABLE != 0).count()
}

fn all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|b| *b == byte)
}

/// Whatever changes a page beside its image, the image stays, readers see the change, and nothing
/// of it is lost, whether the store takes the image or not.
#[test]
fn an_image_stays_as_it_is_whatever_becomes_of_its_page() {
    type Change = fn(&FileData, &DataCtx<'_>);
    type IsChanged = fn(&[u8]) -> bool;
    let changes: [(Change, IsChanged); 5] = [
        (
            |f, ctx| {
                f.write(ctx, 10, &[2; 100]).unwrap();
            },
            |b| all(&b[10..110], 2) && all(&b[..10], 1) && all(&b[110..], 1),
        ),
        (
            |f, ctx| {
                f.write(ctx, 0, &[2; PAGE]).unwrap();
            },
            |b| all(&b[..PAGE], 2) && all(&b[PAGE..], 1),
        ),
        // A run of whole pages, and a part of the last one.
        (
            |f, ctx| {
                f.write(ctx, 5, &vec![2; 7 * PAGE]).unwrap();
            },
            |b| all(&b[5..7 * PAGE + 5], 2) && all(&b[..5], 1) && all(&b[7 * PAGE + 5..], 1),
        ),
        (
            |f, ctx| {
                f.write(ctx, 0, &vec![2; 8 * PAGE]).unwrap();
            },
            |b| all(b, 2),
        ),
        // The edges of a hole within one page.
        (
            |f, ctx| f.punch_hole(ctx, 100, 200, Some(&NO_CUT)).unwrap(),
            |b| all(&b[100..300], 0) && all(&b[..100], 1) && all(&b[300..], 1),
        ),
    ];
    for (n, (change, is_changed)) in changes.into_iter().enumerate() {
        for ok in [true, false] {
            let world = World::new(64, 1, 1000);
            let (file, ctx) = (&world.files[0], world.ctx(0, 0));
            file.write(&ctx, 0, &vec![1; 8 * PAGE]).unwrap();
            let wb = file.lock_writeback();
            let captured = file.capture(&ctx, &wb, 100, 0..100, file.size());
            assert_eq!((captured.pages.len(), stable(&world)), (8, 8));
            for _ in 0..2 {
                change(file, &ctx);
                assert!(captured.pages.iter().all(|(_, image)| all(&image.0, 1)), "change {n}");
                assert!(is_changed(&read(&world, 8)), "change {n}");
            }
            assert_eq!(stable(&world), 8, "each image is a frame still");
            let taken = if ok { world.store.submit(ctx.ino, captured) } else { captured.give_up() };
            file.finish(&ctx, &wb, taken, ok);
            drop(wb);
            assert_eq!(stable(&world), 0);
            assert_eq!(world.pool.attached_frames(), 8, "the others are free again");
            world.check();
            assert!(is_changed(&read(&world, 8)), "change {n}");
            world.write_back(0, 100, true);
            file.evict_clean(&ctx);
            assert!(is_changed(&read(&world, 8)), "change {n}, from the store");
        }
    }
}

/// A file of one page has its frame in the root, and grows while its image is on the way.
#[test]
fn the_only_page_of_a_file_is_displaced_too() {
    let world = World::new(64, 1, 1000);
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    for grown_first in [false, true] {
        file.truncate(&ctx, 0, None).unwrap();
        file.write(&ctx, 0, &[1; PAGE]).unwrap();
        let wb = file.lock_writeback();
        let captured = file.capture(&ctx, &wb, 100, 0..100, file.size());
        if grown_first {
            file.write(&ctx, 3 * PAGE as u64, &[3; PAGE]).unwrap();
        }
        file.write(&ctx, 7, &[2; 1]).unwrap();
        file.write(&ctx, 3 * PAGE as u64, &[3; PAGE]).unwrap();
        assert!(all(&captured.pages[0].1.0, 1));
        let taken = world.store.submit(ctx.ino, captured);
        file.finish(&ctx, &wb, taken, true);
        drop(wb);
        world.check();
        let back = read(&world, 4);
        assert!(back[7] == 2 && back[8] == 1 && all(&back[PAGE..3 * PAGE], 0) && all(&back[3 * PAGE..], 3));
        world.write_back(0, 100, true);
    }
}

/// A page in which the file ends is copied: another size may go with the next image.
#[test]
fn the_last_page_in_part_is_a_copy() {
    let world = World::new(64, 1, 1000);
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    file.write(&ctx, 0, &[1; PAGE + 10]).unwrap();
    let wb = file.lock_writeback();
    let captured = file.capture(&ctx, &wb, 100, 0..100, file.size());
    assert_eq!((captured.pages.len(), stable(&world)), (2, 1));
    file.write(&ctx, PAGE as u64 + 10, &[2; 10]).unwrap();
    assert!(all(&captured.pages[1].1.0[..10], 1) && all(&captured.pages[1].1.0[10..], 0));
    let taken = world.store.submit(ctx.ino, captured);
    file.finish(&ctx, &wb, taken, true);
    drop(wb);
    world.check();
}

/// Where all memory is images a writer waits for a frame without a page lock, and gets one when
/// the writeback ends.
#[test]
fn a_writer_waits_for_a_frame_with_nothing_held() {
    let world = World::new(16, 1, 1000);
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    for n in 0..16 {
        file.write(&ctx, n * PAGE as u64, &[1; PAGE]).unwrap();
    }
    let wb = file.lock_writeback();
    let captured = file.capture(&ctx, &wb, 100, 0..100, file.size());
    let images = captured.pages.len();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let ctx = world.ctx(0, 1);
            file.write(&ctx, 3 * PAGE as u64 + 1, &[2; 1]).unwrap();
            file.write(&ctx, 0, &vec![2; 8 * PAGE]).unwrap();
        });
        // All pages can be had meanwhile.
        let pin = epoch::pin();
        for page in 0..16 {
            if let Some(guard) = file.lock_page(ctx.ino, page, &pin) {
                guard.unchanged();
            }
        }
        drop(pin);
        assert!(captured.pages.iter().all(|(_, image)| all(&image.0, 1)));
        let taken = world.store.submit(ctx.ino, captured);
        file.finish(&ctx, &wb, taken, true);
        drop(wb);
        writer.join().unwrap();
    });
    assert!(images > 4 && stable(&world) == 0);
    world.check();
    let back = read(&world, 16);
    assert!(all(&back[..8 * PAGE], 2) && all(&back[8 * PAGE..], 1));
}

/// Writers, readers and writebacks at a time: each image is of one moment of its page, and none
/// changes.
#[test]
fn images_are_whole_beside_writers() {
    const PAGES: u64 = 24;
    let world = World::new(96, 1, 1000);
    let done = AtomicBool::new(false);
    let file = &world.files[0];
    file.write(&world.ctx(0, 0), 0, &vec![1; PAGES as usize * PAGE]).unwrap();
    std::thread::scope(|s| {
        for lane in 1..4u64 {
            let (world, done) = (&world, &done);
            s.spawn(move || {
                let (ctx, mut rng) = (world.ctx(0, lane as usize), Rng::at(lane));
                while !done.load(Ordering::Relaxed) {
                    let byte = rng.below(256) as u8;
                    // Each lane has eight pages of its own, and writes some as a whole.
                    let page = (lane - 1) * 8 + rng.below(6);
                    let whole = vec![byte; PAGE * (1 + rng.below(3) as usize)];
                    file.write(&ctx, page * PAGE as u64, &whole).unwrap();
                    let mut back = vec![0; whole.len()];
                    file.read(&ctx, page * PAGE as u64, &mut back, &ReadAhead::new()).unwrap();
                    assert!(back == whole, "page {page}");
                }
            });
        }
        // Also where an image has changed.
        let stop = Stops(&done);
        let ctx = world.ctx(0, 0);
        for _ in 0..300 {
            let wb = file.lock_writeback();
            let captured = file.capture(&ctx, &wb, 100, 0..100, file.size());
            let before: Vec<u8> = captured.pages.iter().map(|(_, image)| image.0[0]).collect();
            std::thread::yield_now();
            for ((page, image), byte) in captured.pages.iter().zip(before) {
                assert!(all(&image.0, byte), "the image of page {page} has changed");
            }
            let taken = world.store.submit(ctx.ino, captured);
            file.finish(&ctx, &wb, taken, true);
        }
        drop(stop);
    });
    assert_eq!(stable(&world), 0);
    let pin = epoch::pin();
    assert!((0..PAGES).all(|p| file.find(p, &pin).is_none_or(|d| d.state() & WRITEBACK == 0)));
    drop(pin);
    world.check();
}

/// A thread that panics with images in its hands leaves nobody who knows when they are gone.
#[test]
fn a_frame_whose_image_nobody_finishes_is_not_given_out_again() {
    let world = World::new(32, 1, 1000);
    let (file, ctx) = (&world.files[0], world.ctx(0, 0));
    file.write(&ctx, 0, &[1; 4 * PAGE]).unwrap();
    let wb = file.lock_writeback();
    let captured = file.capture(&ctx, &wb, 3, 0..100, file.size());
    drop(wb);
    file.drop_all(&ctx);
    file.truncate(&ctx, 0, None).unwrap();
    for n in 0..28 {
        file.write(&ctx, n * PAGE as u64, &[2; PAGE]).unwrap();
        if n % 8 == 7 {
            world.write_back(0, 100, true);
        }
    }
    assert_eq!((captured.pages.len(), stable(&world)), (3, 3));
    assert!(captured.pages.iter().all(|(_, image)| all(&image.0, 1)));
}
