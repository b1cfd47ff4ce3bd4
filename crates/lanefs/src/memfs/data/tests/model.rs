//! Random calls on a file, checked against a vector of bytes.

use super::super::*;
use super::fake::{INO, NO_CUT, World};
use lanefs_format::Block;
use lanefs_sync::random::Rng;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Bytes of which none is 0.
fn bytes(rng: &mut Rng, n: usize) -> Vec<u8> {
    let mut all = vec![0; n];
    rng.fill(&mut all);
    all.iter_mut().for_each(|b| *b |= 1);
    all
}

fn set(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if model.len() < at + bytes.len() {
        model.resize(at + bytes.len(), 0);
    }
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

fn compare(world: &World, ra: &ReadAhead, model: &[u8], at: u64, len: usize) {
    let mut blocks = vec![Block([0xAA; 4096]); len.div_ceil(4096)];
    let whole = at.is_multiple_of(4096) && len.is_multiple_of(4096);
    let buf = &mut blocks.as_mut_bytes()[..len];
    let n = if whole && (at >> 12).is_multiple_of(2) {
        world.files[0].read_uncached(&world.ctx(0, 0), at, buf, ra).unwrap()
    } else {
        world.files[0].read(&world.ctx(0, 0), at, buf, ra).unwrap()
    };
    let from = (at as usize).min(model.len());
    let to = (at as usize + len).min(model.len());
    assert_eq!(n, to - from, "length of a read at {at}, size {}", model.len());
    if let Some(bad) = (0..n).find(|&i| buf[i] != model[from + i]) {
        panic!("byte {} of {}: {} instead of {}", from + bad, model.len(), buf[bad], model[from + bad]);
    }
}

fn run(seed: u64, steps: usize, span: u64, frames: usize) {
    let mut rng = Rng::new(seed);
    let world = World::new(frames, 1, 1 << 20);
    let data = &world.files[0];
    let ctx = world.ctx(0, 0);
    let ra = ReadAhead::new();
    let fails = seed.is_multiple_of(2);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..steps {
        let mut at = rng.below(span);
        let mut len = 1 + if rng.below(3) == 0 { rng.below(30_000) } else { rng.below(5000) };
        if rng.below(3) == 0 {
            at &= !4095;
            len = len.next_multiple_of(4096);
        }
        match rng.below(24) {
            0..=6 => {
                let bytes = bytes(&mut rng, len as usize);
                let done = data.write(&ctx, at, &bytes).unwrap();
                assert_eq!(done.bytes, bytes.len());
                set(&mut model, at as usize, &bytes);
            }
            7..=8 => {
                let bytes = bytes(&mut rng, len as usize % 6000 + 1);
                let (start, done) = data.append(&ctx, &bytes, false).unwrap();
                assert_eq!((start, done.bytes), (model.len() as u64, bytes.len()));
                model.extend(bytes);
            }
            9..=12 => compare(&world, &ra, &model, at, len as usize),
            13..=14 => {
                let size =
                    if rng.below(4) == 0 { model.len() as u64 + rng.below(9000) } else { rng.below(span) };
                data.truncate(&ctx, size, None).unwrap();
                model.resize(size as usize, 0);
            }
            15 => {
                data.punch_hole(&ctx, at, len, None).unwrap();
                let to = model.len().min((at + len) as usize);
                let from = to.min(at as usize);
                model[from..to].fill(0);
            }
            16 => {
                let keep = rng.below(2) == 0;
                data.zero_range(&ctx, at, len, keep, &NO_CUT, &|| {}).unwrap();
                let end = (at + len) as usize;
                if !keep && model.len() < end {
                    model.resize(end, 0);
                }
                let to = model.len().min(end);
                let from = to.min(at as usize);
                model[from..to].fill(0);
            }
            17 => {
                let keep = rng.below(3) == 0;
                data.allocate(&ctx, at, len, keep, &NO_CUT, &|| {}).unwrap();
                let pages = at / 4096..(at + len).div_ceil(4096);
                let space = world.store.space_in(INO, pages.clone()).unwrap();
                assert_eq!(space, pages.end - pages.start);
                if !keep && model.len() < (at + len) as usize {
                    model.resize((at + len) as usize, 0);
                }
            }
            18 => {
                data.evict_clean(&ctx);
            }
            19 => {
                world.pool.evict(0, 1 + rng.below(40) as usize);
            }
            20 | 21 => {
                let fail = fails && rng.below(4) == 0;
                world.fail_submit.store(fail, Ordering::SeqCst);
                world.write_back(0, 1 + rng.below(60) as usize, true);
                world.fail_submit.store(false, Ordering::SeqCst);
            }
            22 => seeks(&world, &model, rng.below(span)),
            _ => compare(&world, &ra, &model, 0, span as usize * 2),
        }
        assert_eq!(data.size(), model.len() as u64, "step {step}");
        world.check();
    }
    // What the store has after a full writeback is the file.
    while world.write_back(0, usize::MAX, true) != Some(0) {}
    assert!(!data.has_dirty() && data.dirty_pages() == 0);
    let space = world.store.space_in(INO, 0..u64::MAX).unwrap();
    // A page whose write-back failed is counted on when it becomes a hole before it is stored.
    assert!(data.blocks() == space || fails, "{} blocks, {space} stored or kept", data.blocks());
    data.drop_all(&ctx);
    world.check();
    compare(&world, &ra, &model, 0, model.len() + 10);
    let stored = world.store.pages.lock();
    for ((ino, page), block) in stored.iter() {
        assert_eq!(*ino, INO.0);
        let from = *page as usize * 4096;
        assert!(from < model.len(), "a page behind the end is stored");
        let inside = (model.len() - from).min(4096);
        assert_eq!(block.0[..inside], model[from..from + inside]);
        assert!(block.0[inside..].iter().all(|&b| b == 0), "stale bytes behind the end are stored");
    }
}

fn seeks(world: &World, model: &[u8], at: u64) {
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    let (mut hole, mut next) = (data.seek_hole(&ctx, at), data.seek_data(&ctx, at));
    if at >= model.len() as u64 {
        assert!(hole.is_err() && next.is_err());
        return;
    }
    // Whatever lies between a hole and the next data is zeros, and the two alternate.
    let mut from = at;
    for _ in 0..50 {
        let start = hole.clone().unwrap();
        assert!(start >= from && start <= model.len() as u64);
        if start == model.len() as u64 {
            break;
        }
        next = data.seek_data(&ctx, start);
        let end = next.clone().unwrap_or(model.len() as u64);
        assert!(end > start && end <= model.len() as u64);
        assert!(model[start as usize..end as usize].iter().all(|&b| b == 0), "data in a hole");
        if end == model.len() as u64 {
            break;
        }
        from = end;
        hole = data.seek_hole(&ctx, end);
        assert!(hole.clone().unwrap() > end);
    }
    let _ = next;
}

#[test]
fn random_calls_agree_with_a_vector() {
    for seed in 1..40 {
        run(seed, 400, 60_000, 256);
    }
}

#[test]
fn random_calls_in_tight_memory() {
    for seed in 100..120 {
        run(seed, 300, 300_000, 64);
    }
}

#[test]
fn random_calls_on_a_one_page_file() {
    for seed in 200..240 {
        run(seed, 300, 4000, 64);
    }
}

#[test]
fn random_calls_on_a_wide_file() {
    for seed in 300..304 {
        run(seed, 250, 3_000_000, 1024);
    }
}

#[test]
fn offsets_up_to_the_largest() {
    let world = World::new(128, 1, 1000);
    let (data, ctx, ra) = (&world.files[0], world.ctx(0, 0), ReadAhead::new());
    let last = i64::MAX as u64 - 100;
    assert_eq!(data.write(&ctx, last, &[7; 300]).unwrap().bytes, 100);
    assert_eq!(data.write(&ctx, i64::MAX as u64, &[7]).unwrap_err().errno(), libc::EFBIG);
    assert_eq!(data.append(&ctx, &[7], false).unwrap_err().errno(), libc::EFBIG);
    for shift in [0, 12, 18, 24, 30, 36, 42, 48, 54, 60] {
        data.write(&ctx, 1 << shift, &[shift as u8; 3]).unwrap();
    }
    while world.write_back(0, 3, true) != Some(0) {}
    assert!(!data.has_dirty());
    data.evict_clean(&ctx);
    let mut buf = [0; 3];
    for shift in [0, 12, 18, 24, 30, 36, 42, 48, 54, 60] {
        assert_eq!(data.read(&ctx, 1 << shift, &mut buf, &ra).unwrap(), 3);
        assert_eq!(buf, [shift as u8; 3]);
    }
    assert_eq!(data.read(&ctx, last + 98, &mut buf, &ra).unwrap(), 2);
    assert_eq!(data.seek_data(&ctx, (1 << 60) + 4096).unwrap(), last & !4095);
    data.truncate(&ctx, 1, None).unwrap();
    assert_eq!(data.read(&ctx, 0, &mut buf, &ra).unwrap(), 1);
    assert_eq!(data.blocks(), 1);
}

#[test]
fn blocks_are_counted() {
    let world = World::new(128, 1, 1000);
    let (data, ctx) = (&world.files[0], world.ctx(0, 0));
    data.write(&ctx, 0, &[1; 40960]).unwrap();
    assert_eq!(data.blocks(), 10);
    world.write_back(0, 5, true);
    data.punch_hole(&ctx, 4096 * 3, 4096 * 4, None).unwrap();
    assert_eq!(data.blocks(), 6);
    data.write(&ctx, 4096 * 4, &[1; 10]).unwrap();
    assert_eq!(data.blocks(), 7);
    data.truncate(&ctx, 4096, None).unwrap();
    assert_eq!(data.blocks(), 1);
}

#[test]
fn a_full_volume_says_so_and_keeps_what_fits() {
    let world = World::new(128, 1, 3);
    let (data, ctx, ra) = (&world.files[0], world.ctx(0, 0), ReadAhead::new());
    assert_eq!(data.write(&ctx, 0, &[1; 4096 * 5]).unwrap().bytes, 4096 * 3);
    assert_eq!(data.size(), 4096 * 3);
    assert_eq!(data.write(&ctx, 4096 * 3, &[1; 10]).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(data.append(&ctx, &[1; 10], false).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(data.write(&ctx, 0, &[2; 4096]).unwrap().bytes, 4096, "a dirty page needs no more space");
    let mut buf = [0; 4096];
    data.read(&ctx, 4096, &mut buf, &ra).unwrap();
    assert_eq!(buf, [1; 4096]);
    world.check();
    data.truncate(&ctx, 0, None).unwrap();
    assert_eq!(world.store.free.load(Ordering::SeqCst), 3);
    assert_eq!(data.append(&ctx, &[1; 10], false).unwrap().1.bytes, 10);
}

#[test]
fn a_failed_read_leaves_nothing_behind() {
    let world = World::new(128, 1, 100);
    let (data, ctx, ra) = (&world.files[0], world.ctx(0, 0), ReadAhead::new());
    data.write(&ctx, 0, &[1; 20_000]).unwrap();
    world.write_back(0, 100, true);
    data.evict_clean(&ctx);
    world.store.fail_reads.store(true, Ordering::SeqCst);
    let mut buf = [0; 100];
    assert_eq!(data.read(&ctx, 0, &mut buf, &ra).unwrap_err().errno(), libc::EUCLEAN);
    assert!(data.write(&ctx, 10, &[1]).is_err());
    assert!(data.truncate(&ctx, 10, None).is_err());
    assert_eq!(data.write(&ctx, 4096, &[2; 4096]).unwrap().bytes, 4096, "a whole page needs no read");
    world.store.fail_reads.store(false, Ordering::SeqCst);
    world.check();
    assert_eq!(data.read(&ctx, 4090, &mut buf, &ra).unwrap(), 100);
    assert_eq!((buf[5], buf[6]), (1, 2));
}
