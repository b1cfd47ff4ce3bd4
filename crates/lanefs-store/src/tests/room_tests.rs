//! Commits, checkpoints and fsyncs that find little room or none: what they do, and what they leave
//! behind.

use crate::api::{FoldInput, FormatOptions, OpenOptions, Transaction};
use crate::device::{Device, MemoryDevice, WriteReq};
use crate::error::StoreError;
use crate::log::heat::Heat;
use crate::log::mlog::place_of;
use crate::log::segment::{SegId, State};
use crate::log::space::PARTS_OF_BLOCK;
use crate::store::Store;
use crate::testing::{file, first_byte, named, page, update};
use lanefs_format::orphans::ORPHANS_PER_BLOCK;
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::{Block, FileKind, Ino, ROOT_INO, Version};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn store(mlogs: u32) -> (Arc<Store>, Arc<dyn Device>) {
    store_of(mlogs, true)
}

fn store_of(mlogs: u32, packed_inodes: bool) -> (Arc<Store>, Arc<dyn Device>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(16 << 20).unwrap());
    let format = FormatOptions { segment_blocks: 16, mlogs, packed_inodes, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &format).unwrap();
    let (s, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    assert_eq!(s.engine.log.mlogs.len(), mlogs as usize);
    (s, device)
}

/// The group that makes symbolic link number `n`; a long target makes it large.
fn link(epoch: u64, n: u64, target: &[u8]) -> Vec<u8> {
    let (ino, parent, generation) = (Ino(1000 + n), ROOT_INO, 0);
    let (mode, uid, gid, rdev, time) = (libc::S_IFLNK, 0, 0, 0, 1);
    let name = format!("l{n}");
    let mut out = Vec::new();
    encode_group(
        &mut out,
        Version { epoch, ts: n + 1, lane: 0 },
        &[
            Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged: false },
            Effect::Set {
                dir: parent,
                cookie: 1000 + n,
                name: name.as_bytes(),
                ino,
                old: Ino::NONE,
                kind: FileKind::Symlink,
            },
        ],
    );
    out
}

/// Takes free segments until `left` are left.
fn claim(s: &Store, left: u32) -> Vec<SegId> {
    let mut claimed = Vec::new();
    while s.engine.log.segments.free_count() > left
        && let Some(seg) = s.engine.log.segments.claim(0, State::Chain, 0)
    {
        claimed.push(seg);
    }
    claimed
}

#[test]
fn what_a_failed_checkpoint_carried_is_known_to_be_durable() {
    let (s, _) = store(1);
    let e = s.info().last_epoch;
    s.commit_epoch(e + 1, vec![(0, link(e + 1, 1, b"x"))]).unwrap();
    {
        let mut m = s.engine.maintenance.lock();
        // A list of orphans that no block can be found for.
        m.orphans_changed = m.orphans.insert(Ino(99));
        let claimed = claim(&s, 0);
        for heat in [Heat::Bucket, Heat::Warm, Heat::Cold, Heat::Node] {
            while s.engine.log.mlogs[0]
                .alloc(&s.engine.log.segments, heat, 1, 1, true, &mut Vec::new())
                .is_ok()
            {}
        }
        let p = s.engine.log.mlogs[0].position(&s.engine.log.segments);
        assert!(matches!(s.engine.checkpoints().in_place(&mut m), Err(StoreError::NoSpace)));
        assert_ne!(s.engine.log.mlogs[0].position(&s.engine.log.segments), p, "the epoch was carried over");
        m.orphans.clear();
        claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
    }
    let p = s.engine.log.mlogs[0].position(&s.engine.log.segments);
    s.submit(Transaction { durable: true, groups: link(e + 2, 2, b"x"), ..Transaction::default() }).unwrap();
    assert_eq!(s.engine.log.mlogs[0].acked(), place_of(p.seq, p.used));
}

#[test]
fn what_a_failed_checkpoint_folded_is_not_folded_again_with_what_took_it_back() {
    let (s, device) = store(1);
    let e = s.info().last_epoch;
    let made = link(e + 1, 1, b"x");
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    // Room for the fold, but not for a list of so many orphans.
    let claimed = claim(&s, 2);
    {
        let mut m = s.engine.maintenance.lock();
        m.orphans.extend((0..64 * ORPHANS_PER_BLOCK as u64).map(|n| Ino(1 << 30 | n)));
        m.orphans_changed = true;
    }
    let failed = s.checkpoint(|| Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] }));
    assert!(matches!(failed, Err(StoreError::NoSpace)));
    assert_eq!(s.folded_epoch(), e + 1);
    {
        let mut m = s.engine.maintenance.lock();
        m.orphans.clear();
        claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
        s.engine.checkpoints().in_place(&mut m).unwrap();
    }
    let (dir, name, old) = (ROOT_INO, &b"l1"[..], Ino(1001));
    let clr = Effect::Clr { dir, cookie: 1001, name, old, kind: FileKind::Symlink };
    let mut removed = Vec::new();
    let version = Version { epoch: e + 2, ts: 9, lane: 0 };
    encode_group(&mut removed, version, &[clr, Effect::Dead { ino: old, generation: 0 }]);
    s.commit_epoch(e + 2, vec![(0, removed)]).unwrap();
    drop(s);
    let (s, r) = Store::open(vec![device], &OpenOptions::default()).unwrap();
    assert_eq!((r.epoch, s.space().inodes), (e + 2, 1), "only the root is left");
    assert!(s.load_bucket(ROOT_INO, 0).unwrap().entries.is_empty());
}

#[test]
fn an_epoch_without_room_is_placed_whole_or_not_at_all() {
    let (s, device) = store(2);
    let e = s.info().last_epoch;
    // More than is kept back for commits, as everything else is in use.
    let claimed = claim(&s, s.engine.log.segments.reserved_segments() / 2 + 1);
    let many = u64::from(s.engine.log.segments.free_count() + 2) * 15;
    let parts = || {
        let large: Vec<u8> = (0..many).flat_map(|n| link(e + 1, n, &[b'x'; 4000])).collect();
        vec![(0, link(e + 1, many, b"x")), (1, large)]
    };
    let positions =
        || s.engine.log.mlogs.iter().map(|l| l.position(&s.engine.log.segments)).collect::<Vec<_>>();
    let before = (positions(), s.engine.log.segments.free_count());
    assert!(matches!(s.commit_epoch(e + 1, parts()), Err(StoreError::NoSpace)));
    s.healthy().unwrap();
    assert_eq!((positions(), s.engine.log.segments.free_count()), before);
    assert!(s.engine.log.mlogs.iter().all(|l| l.unfolded() == 0), "room is kept back for nothing");
    claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
    s.commit_epoch(e + 1, parts()).unwrap();
    drop(s);
    let (s, r) = Store::open(vec![device], &OpenOptions::default()).unwrap();
    assert_eq!((r.epoch, r.groups), (e + 1, many + 1));
    assert_eq!(s.space().inodes, many + 2);
}

#[test]
fn a_commit_does_not_wait_for_the_checkpoint_that_waits_for_it() {
    let (s, _) = store(1);
    let e = s.info().last_epoch;
    s.engine.log.segments.set_reserved_segments(2 * s.engine.log.segments.len()); // Room is short.
    let (go, gone) = mpsc::channel();
    let (did, done) = mpsc::channel();
    std::thread::scope(|scope| {
        let (store, group) = (&s, link(e + 1, 1, b"x"));
        scope.spawn(move || {
            gone.recv().unwrap();
            store.commit_epoch(e + 1, vec![(0, group)]).unwrap();
            did.send(()).unwrap();
        });
        // As the seal of the layer above waits for who commits.
        s.checkpoint(|| {
            go.send(()).unwrap();
            done.recv_timeout(Duration::from_secs(5)).expect("the commit waits for this checkpoint");
            Ok(FoldInput { epoch: e, groups: Vec::new() })
        })
        .unwrap();
    });
}

/// The fold has no other room than free segments, and recovery cannot clean: the next call may want
/// the last of them for data.
#[test]
fn a_commit_keeps_back_room_for_the_inodes_that_it_makes() {
    let (s, _) = store_of(2, false);
    let e = s.info().last_epoch;
    let before = s.engine.log.segments.reserved_segments();
    let part = |first: u64| (first..first + 40).flat_map(|ino| file(e + 1, ino)).collect();
    s.commit_epoch(e + 1, vec![(0, part(100)), (1, part(200))]).unwrap();
    assert_eq!(
        (s.engine.log.segments.reserved_for_unfolded(), s.engine.log.segments.reserved_segments()),
        (5, before + 5)
    );
    // Where small inodes share blocks, sixteen at least.
    let (s, _) = store(2);
    let before = s.engine.log.segments.reserved_segments();
    let part = |first: u64| (first..first + 256).flat_map(|ino| file(e + 1, ino)).collect();
    s.commit_epoch(e + 1, vec![(0, part(1000)), (1, part(2000))]).unwrap();
    assert_eq!(s.engine.log.segments.reserved_segments(), before + 2);
}

/// Whoever folds what made them folds their end: no room is kept back for them, and none is missing
/// for those that stay.
#[test]
fn no_room_is_kept_back_for_inodes_that_ended_before_they_were_folded() {
    let (s, _) = store_of(2, false);
    let e = s.info().last_epoch;
    let before = s.engine.log.segments.reserved_segments();
    let made: Vec<u8> = (100..180).flat_map(|ino| file(e + 1, ino)).collect();
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    let mut ended = Vec::new();
    for ino in 100..164 {
        let name = format!("f{ino}");
        let Effect::Set { dir, cookie, name, kind, .. } = named(ino, name.as_bytes()) else { unreachable!() };
        let clr = Effect::Clr { dir, cookie, name, old: Ino(ino), kind };
        let dead = Effect::Dead { ino: Ino(ino), generation: 0 };
        encode_group(&mut ended, Version { epoch: e + 2, ts: 1000 + ino, lane: 0 }, &[clr, dead]);
    }
    s.commit_epoch(e + 2, vec![(1, ended.clone())]).unwrap();
    assert_eq!(s.engine.log.segments.reserved_segments(), before + 5);
    s.cancel_unfolded(e + 1, 64 * PARTS_OF_BLOCK);
    assert_eq!(s.engine.log.segments.reserved_segments(), before + 1);
    let more: Vec<u8> = (200..232).flat_map(|ino| file(e + 3, ino)).collect();
    s.commit_epoch(e + 3, vec![(0, more.clone())]).unwrap();
    assert_eq!(s.engine.log.segments.reserved_segments(), before + 3);
    s.checkpoint(|| Ok(FoldInput { epoch: e + 2, groups: vec![made.into(), ended.into()] })).unwrap();
    assert_eq!(
        (s.engine.log.segments.reserved_for_unfolded(), s.engine.unfolded.cancelled.load(Ordering::SeqCst)),
        (2, 0)
    );
    assert_eq!(s.load_bucket(ROOT_INO, 0).unwrap().entries.len(), 16);
    s.checkpoint(|| Ok(FoldInput { epoch: e + 3, groups: vec![more.into()] })).unwrap();
    assert_eq!(
        (s.engine.log.segments.reserved_for_unfolded(), s.engine.unfolded.cancelled.load(Ordering::SeqCst)),
        (0, 0)
    );
}

#[test]
fn what_needs_no_new_segment_is_not_refused_where_fewer_are_free_than_kept_back() {
    let (s, _) = store(1);
    let e = s.info().last_epoch;
    let fsync = |groups: Vec<u8>, n: u64| {
        let inodes = vec![update(20, 4, vec![(n, page(1))])];
        s.submit(Transaction { durable: true, groups, inodes, ..Transaction::default() })
    };
    fsync(file(e + 1, 20), 0).unwrap();
    // Opens a segment for data, where an fsync's goes that finds few free.
    s.submit(Transaction { inodes: vec![update(20, 4, vec![(2, page(1))])], ..Transaction::default() })
        .unwrap();
    s.engine.log.segments.set_reserved_segments(2 * s.engine.log.segments.len());
    let before = (s.engine.log.checkpoint_number.load(Ordering::SeqCst), s.engine.log.segments.free_count());
    fsync(Vec::new(), 1).unwrap();
    s.submit(Transaction { durable: true, inodes: vec![update(20, 4, vec![])], ..Transaction::default() })
        .unwrap();
    let after = (s.engine.log.checkpoint_number.load(Ordering::SeqCst), s.engine.log.segments.free_count());
    assert_eq!(after, before, "room was made in vain");
}

#[test]
fn what_an_fsync_without_room_was_to_carry_goes_with_the_next() {
    let (s, device) = store(1);
    let e = s.info().last_epoch;
    let made = file(e + 1, 20);
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] })).unwrap();
    let write = |durable, pages: &[u64], xattrs| {
        let mut u = update(20, 4, pages.iter().map(|p| (*p, page(*p as u8 + 1))).collect());
        u.attrs.size += 100; // The rest of the last page is kept with the inode.
        u.xattrs = xattrs;
        s.submit(Transaction { durable, inodes: vec![u], ..Transaction::default() })
    };
    // In a seal no room is made, and what changes there is left to the next checkpoint.
    s.checkpoint(|| {
        write(false, &[0, 4], Some(b"said".to_vec()))?;
        let claimed = claim(&s, 0);
        let mut n = 0;
        let fill = |n| Transaction { durable: true, groups: link(e + 3, n, b"x"), ..Transaction::default() };
        while s.submit(fill(n)).is_ok() {
            n += 1;
        }
        assert!(matches!(write(true, &[1], None), Err(StoreError::NoSpace)));
        claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
        write(true, &[2], None)?;
        Ok(FoldInput { epoch: e + 2, groups: Vec::new() })
    })
    .unwrap();
    drop(s);
    let (s, _) = Store::open(vec![device], &OpenOptions::default()).unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(|p| first_byte(&s, 20, p)), [Some(1), Some(2), Some(3), None, Some(5)]);
    assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().xattrs, b"said");
}

/// Else the room would count as free that its caller keeps for the next attempt.
#[test]
fn a_submission_without_room_for_its_batch_has_its_promise_still() {
    let (s, _) = store(1);
    let e = s.info().last_epoch;
    let made = file(e + 1, 20);
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    let write = || {
        let mut u = update(20, 2, vec![(0, page(1)), (1, page(2))]);
        u.reserved = 2;
        s.submit(Transaction { durable: true, inodes: vec![u], ..Transaction::default() })
    };
    // In a seal no room is made.
    s.checkpoint(|| {
        s.submit(Transaction { inodes: vec![update(20, 2, vec![(0, page(3))])], ..Transaction::default() })?;
        let claimed = claim(&s, 0);
        let mut n = 0;
        let fill = |n| Transaction { durable: true, groups: link(e + 3, n, b"x"), ..Transaction::default() };
        while s.submit(fill(n)).is_ok() {
            n += 1;
        }
        assert!(s.reserve(0, 2));
        assert!(matches!(write(), Err(StoreError::NoSpace)));
        assert_eq!(s.space().reserved, 2);
        claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
        write()?;
        assert_eq!(s.space().reserved, 0);
        Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] })
    })
    .unwrap();
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// Also one that was written before the checkpoint began, and whose blocks were given up before it
/// ended: recovery may have to read the batch.
#[test]
fn a_segment_that_a_batch_names_is_not_free_before_the_next_checkpoint() {
    const PAGES: u64 = 64;
    let (s, device) = store(1);
    let e = s.info().last_epoch;
    let submit = |durable, groups, byte: Option<u8>| {
        let pages = byte.map_or(Vec::new(), |b| (0..PAGES).map(|p| (p, page(b))).collect());
        s.submit(Transaction {
            durable,
            groups,
            inodes: vec![update(20, PAGES, pages)],
            ..Transaction::default()
        })
    };
    submit(false, Vec::new(), Some(1)).unwrap();
    s.checkpoint(|| {
        submit(true, file(e + 2, 20), None)?;
        submit(false, Vec::new(), Some(2))?;
        Ok(FoldInput { epoch: e + 1, groups: Vec::new() })
    })
    .unwrap();
    // What is free may be written over by anybody.
    let other = Block::zeroed();
    for seg in claim(&s, 0) {
        for i in 0..s.engine.log.segments.geometry.segment_blocks {
            let offset = s.engine.log.segments.geometry.addr(seg, i).offset();
            device.write(&[WriteReq { offset, data: &other.0 }]).unwrap();
        }
    }
    drop(s);
    let (s, r) = Store::open(vec![device], &OpenOptions::default()).unwrap();
    assert_eq!((r.batches, r.batches_dropped), (1, 0));
    assert!((0..PAGES).all(|p| first_byte(&s, 20, p) == Some(1)));
}
