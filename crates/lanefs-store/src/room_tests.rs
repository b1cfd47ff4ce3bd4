//! Commits and checkpoints that find no room: what they leave behind.

use crate::api::{FoldInput, FormatOptions, OpenOptions, Transaction};
use crate::device::{Device, MemoryDevice};
use crate::error::StoreError;
use crate::format::orphans::ORPHANS_PER_BLOCK;
use crate::format::record::{Effect, encode_group};
use crate::mlog::{Heat, place_of};
use crate::segment::{SegId, State};
use crate::store::Store;
use crate::types::{FileKind, Ino, ROOT_INO, Version};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn store(mlogs: u32) -> (Arc<Store>, Arc<dyn Device>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(16 << 20).unwrap());
    let format = FormatOptions { segment_blocks: 16, mlogs, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &format).unwrap();
    let (s, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    assert_eq!(s.mlogs.len(), mlogs as usize);
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
            Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target },
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
    while s.segments.free_count() > left
        && let Some(seg) = s.segments.claim(0, State::Chain, 0)
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
        let mut m = s.maintenance.lock();
        // A list of orphans that no block can be found for.
        m.orphans_changed = m.orphans.insert(Ino(99));
        let claimed = claim(&s, 0);
        for heat in [Heat::Hot, Heat::Warm, Heat::Cold, Heat::Node] {
            while s.mlogs[0].alloc(&s.segments, heat, 1, 1, true, &mut Vec::new()).is_ok() {}
        }
        let p = s.mlogs[0].position(&s.segments);
        assert!(matches!(s.checkpoint_in_place(&mut m), Err(StoreError::NoSpace)));
        assert_ne!(s.mlogs[0].position(&s.segments), p, "the epoch was carried over");
        m.orphans.clear();
        claimed.into_iter().for_each(|seg| s.segments.release(seg));
    }
    let p = s.mlogs[0].position(&s.segments);
    s.submit(Transaction { durable: true, groups: link(e + 2, 2, b"x"), ..Transaction::default() }).unwrap();
    assert_eq!(s.mlogs[0].acked(), place_of(p.seq, p.used));
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
        let mut m = s.maintenance.lock();
        m.orphans.extend((0..64 * ORPHANS_PER_BLOCK as u64).map(|n| Ino(1 << 30 | n)));
        m.orphans_changed = true;
    }
    let failed = s.checkpoint(|| Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] }));
    assert!(matches!(failed, Err(StoreError::NoSpace)));
    assert_eq!(s.folded_epoch(), e + 1);
    {
        let mut m = s.maintenance.lock();
        m.orphans.clear();
        claimed.into_iter().for_each(|seg| s.segments.release(seg));
        s.checkpoint_in_place(&mut m).unwrap();
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
    let claimed = claim(&s, s.segments.kept_back() / 2 + 1);
    let many = u64::from(s.segments.free_count() + 2) * 15;
    let parts = || {
        let large: Vec<u8> = (0..many).flat_map(|n| link(e + 1, n, &[b'x'; 4000])).collect();
        vec![(0, link(e + 1, many, b"x")), (1, large)]
    };
    let positions = || s.mlogs.iter().map(|l| l.position(&s.segments)).collect::<Vec<_>>();
    let before = (positions(), s.segments.free_count());
    assert!(matches!(s.commit_epoch(e + 1, parts()), Err(StoreError::NoSpace)));
    s.healthy().unwrap();
    assert_eq!((positions(), s.segments.free_count()), before);
    claimed.into_iter().for_each(|seg| s.segments.release(seg));
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
    s.segments.keep_back(2 * s.segments.len()); // Room is short.
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
