//! Making, opening, writing, committing, folding and reopening, one thing at a time.

use crate::common::*;
use lanefs_format::record::Effect;
use lanefs_store::*;
use std::sync::Arc;

const SMALL: u64 = 4 << 20;

/// A make that was killed leaves such an image, and mounting it told of a repair alone.
#[test]
fn of_an_empty_image_it_is_told_that_it_holds_no_volume_yet() {
    let said = |bytes: &[u8]| {
        let device: Dev = Arc::new(lanefs_store::device::MemoryDevice::from_bytes(bytes).unwrap());
        assert!(!Store::may_be_on(&*device), "no volume was ever there");
        let e = Store::open(vec![device], &OpenOptions::default()).map(|_| ()).unwrap_err();
        assert!(matches!(e, StoreError::NotAVolume { .. }), "{e}");
        e.to_string()
    };
    let mut bytes = vec![0; SMALL as usize];
    let empty = said(&bytes);
    assert!(empty.contains("beginning is empty") && empty.contains("`lanefs mkfs` makes one"), "{empty}");
    bytes[77] = 1;
    let other = said(&bytes);
    assert!(other.contains("no magic number") && !other.contains("mkfs"), "{other}");
    // With a superblock anywhere it may be one.
    let d = fresh(SMALL);
    assert!(Store::may_be_on(&*d));
    d.write(&[lanefs_store::device::WriteReq { offset: 0, data: &[0; 4096] }]).unwrap();
    assert!(Store::may_be_on(&*d));
}

#[test]
fn a_new_volume_opens_clean_and_has_a_root() {
    let d = fresh(SMALL);
    assert!(matches!(
        Store::format(std::slice::from_ref(&d), &format_options()),
        Err(StoreError::NotAVolume { .. })
    ));
    for round in 1..4 {
        let (s, r) = open(&d);
        assert!(r.clean, "{r:?}");
        let root = s.load_inode(ROOT_INO).unwrap().unwrap();
        assert_eq!((root.attrs.mode, root.nlink, root.parent), (libc::S_IFDIR | 0o755, 2, ROOT_INO));
        assert_eq!(s.info().mount_generation, round);
        assert!(s.load_bucket(ROOT_INO, 5).unwrap().entries.is_empty());
        assert_eq!(s.space().inodes, 1);
        s.close().unwrap();
        assert!(s.submit(tx(true, vec![], vec![])).is_err());
    }
}

#[test]
fn what_was_submitted_durably_survives() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    let pages = vec![(0, page(1)), (1, page(2)), (7, page(3))];
    let mut u = update(20, 8 * 4096, pages);
    u.xattrs = Some(b"user.k=v".to_vec());
    s.submit(tx(true, g, vec![u])).unwrap();
    s.submit(tx(true, vec![], vec![update(20, 8 * 4096, vec![(1, page(9))])])).unwrap();
    // Not durable, and gone after the crash.
    s.submit(tx(false, vec![], vec![update(20, 8 * 4096, vec![(2, page(10))])])).unwrap();
    assert_eq!(read(&s, 20, 2).unwrap().0, page(10).0);
    drop(s);
    for again in [false, true] {
        let (s, r) = open(&d);
        assert_eq!(
            (r.clean, r.batches, r.inode_updates, r.groups),
            if again { (false, 0, 0, 0) } else { (false, 2, 2, 1) }
        );
        assert_eq!(lookup(&s, b"a"), Some(Ino(20)));
        let i = s.load_inode(Ino(20)).unwrap().unwrap();
        assert_eq!((i.nlink, i.attrs.size, &i.xattrs[..]), (1, 8 * 4096, &b"user.k=v"[..]));
        assert_eq!(read(&s, 20, 0).unwrap().0, page(1).0);
        assert_eq!(read(&s, 20, 1).unwrap().0, page(9).0);
        assert_eq!(read(&s, 20, 7).unwrap().0, page(3).0);
        assert!(read(&s, 20, 2).is_none());
        assert_eq!(s.next_data(Ino(20), 2).unwrap(), Some(7));
        assert_eq!(s.next_hole(Ino(20), 0).unwrap(), Some(2));
        assert!(s.info().last_epoch >= 1 && s.info().last_ts >= 1);
    }
}

#[test]
fn tails_live_in_the_inode_and_move_out_when_the_file_grows() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    let mut p = page(1);
    p.0[100..].fill(0);
    s.submit(tx(true, g, vec![update(20, 100, vec![(0, p.clone())])])).unwrap();
    drop(s);
    let (s, _) = open(&d);
    assert_eq!(read(&s, 20, 0).unwrap().0, p.0);
    assert_eq!(s.next_data(Ino(20), 0).unwrap(), Some(0));
    // Grown far beyond without touching the old tail: it becomes a block when another tail comes.
    let mut q = page(2);
    q.0[50..].fill(0);
    s.submit(tx(true, vec![], vec![update(20, 5 * 4096 + 50, vec![(5, q.clone())])])).unwrap();
    drop(s);
    let (s, _) = open(&d);
    assert_eq!(read(&s, 20, 0).unwrap().0, p.0);
    assert_eq!(read(&s, 20, 5).unwrap().0, q.0);
    fold(&s, s.info().last_epoch + 1, vec![]);
    // Truncated.
    s.unmap(0, Ino(20), 1..u64::MAX, Some(&Cut { size: Some(40), time: None, attrs: &|| attrs(40) }))
        .unwrap();
    s.submit(tx(true, vec![], vec![update(20, 40, vec![])])).unwrap();
    drop(s);
    let (s, _) = open(&d);
    assert!(read(&s, 20, 5).is_none());
    assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().attrs.size, 40);
    s.close().unwrap();
    let (s, r) = open(&d);
    assert!(r.clean);
    assert!(read(&s, 20, 5).is_none());
    assert_eq!(read(&s, 20, 0).unwrap().0[..40], p.0[..40]);
}

#[test]
fn a_block_whose_page_becomes_the_tail_is_given_up() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g.clone(), vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    fold(&s, 1, vec![g]);
    let free = s.space().free;
    let mut p = page(2);
    p.0[100..].fill(0);
    s.submit(tx(true, vec![], vec![update(20, 100, vec![(0, p.clone())])])).unwrap();
    assert_eq!(read(&s, 20, 0).unwrap().0, p.0);
    fold(&s, 2, vec![]);
    assert_eq!(s.space().free, free + 1);
    assert_eq!(s.audit().unwrap().problems, Vec::<String>::new());
}

#[test]
fn committed_epochs_are_recovered_as_a_prefix_and_fsyncs_beyond() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    s.commit_epoch(e + 1, vec![(0, group(e + 1, 1, &[new_file(20), set(b"a", 20, 0)]))]).unwrap();
    s.commit_epoch(e + 2, vec![(0, vec![])]).unwrap();
    s.commit_epoch(e + 4, vec![(3, group(e + 4, 2, &[set(b"b", 20, 0)]))]).unwrap();
    let late = group(e + 5, 3, &[new_file(21), set(b"c", 21, 0), clr(b"a", 20)]);
    s.submit(tx(true, late, vec![update(21, 0, vec![])])).unwrap();
    drop(s);
    let (s, r) = open(&d);
    assert_eq!(r.epoch, e + 4);
    assert_eq!(r.groups, 3);
    assert_eq!((lookup(&s, b"a"), lookup(&s, b"b"), lookup(&s, b"c")), (None, Some(Ino(20)), Some(Ino(21))));
    assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().nlink, 1);
    assert!(s.info().last_epoch >= e + 5);
    assert_eq!(s.space().inodes, 3);
    let u = s.chunk_usage(0).unwrap();
    assert_eq!(u.used, 1 << 1 | 1 << 20 | 1 << 21);
}

#[test]
fn a_fold_frees_the_dead_and_lists_orphans() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let free = s.space().free;
    let e = s.info().last_epoch;
    let a = group(e + 1, 1, &[new_file(20), set(b"a", 20, 0)]);
    let b = group(e + 1, 2, &[new_file(21), set(b"b", 21, 0)]);
    s.submit(tx(false, vec![], vec![update(20, 4096 * 40, (0..40).map(|p| (p, page(p))).collect())]))
        .unwrap();
    s.submit(tx(false, vec![], vec![update(21, 4096, vec![(0, page(4))])])).unwrap();
    s.commit_epoch(e + 1, vec![(0, [a.clone(), b.clone()].concat())]).unwrap();
    let done = fold(&s, e + 1, vec![b, a]);
    assert!(done.freed.is_empty() && done.orphans == 0);
    assert!(s.space().free < free - 40);
    let c = group(e + 2, 3, &[clr(b"a", 20), clr(b"b", 21)]);
    let dead = group(e + 2, 4, &[Effect::Dead { ino: Ino(20), generation: 0 }]);
    s.commit_epoch(e + 2, vec![(0, [c.clone(), dead.clone()].concat())]).unwrap();
    let done = fold(&s, e + 2, vec![c, dead]);
    assert_eq!(done.freed, [(Ino(20), 1)]);
    assert_eq!(done.orphans, 1);
    assert!(s.load_inode(Ino(20)).unwrap().is_none());
    assert!(s.submit(tx(true, vec![], vec![update(20, 0, vec![])])).is_ok()); // A new inode's, for all we know.
    drop(s);
    let (s, r) = open(&d);
    assert_eq!(r.orphans_freed, 1);
    assert!(s.load_inode(Ino(21)).unwrap().is_none());
    assert_eq!(s.chunk_usage(0).unwrap().generations[20..22], [1, 1]);
    // All is given back but what the tables take.
    assert!(s.space().free >= free - 8, "{} of {free}", s.space().free);
    assert_eq!(s.space().inodes, 1);
}

/// A list of more blocks than one: each says which it is and where the next lies.
#[test]
fn a_list_of_orphans_of_several_blocks_is_read_and_freed() {
    let d = fresh(24 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let free = s.space().free;
    let n = 2 * 502 + 100;
    let groups: Vec<Vec<u8>> = (0..n).map(|i| group(e + 1, i + 1, &[new_file(20 + i)])).collect();
    s.commit_epoch(e + 1, vec![(0, groups.concat())]).unwrap();
    assert_eq!(fold(&s, e + 1, groups).orphans, n);
    drop(s);
    let (s, r) = open(&d);
    assert_eq!(r.orphans_freed, n);
    assert_eq!(s.space().inodes, 1);
    assert!(s.load_inode(Ino(20)).unwrap().is_none() && s.load_inode(Ino(20 + n - 1)).unwrap().is_none());
    drop(s);
    let (s, r) = open(&d);
    assert_eq!(r.orphans_freed, 0, "the list is still there");
    // But for the generations of the numbers, which the table keeps.
    assert!(s.space().free + 40 >= free, "{} of {free}", s.space().free);
}

#[test]
fn closing_with_names_that_were_never_folded_loses_none() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    s.close().unwrap();
    let (s, r) = open(&d);
    assert!(!r.clean);
    assert_eq!(lookup(&s, b"a"), Some(Ino(20)));
    assert_eq!(read(&s, 20, 0).unwrap().0, page(1).0);
}

#[test]
fn symlinks_and_subdirectories_come_from_records() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    static LONG: [u8; 4000] = [b'x'; 4000];
    let e = s.info().last_epoch + 1;
    let dir = |name: &'static [u8], ino| Effect::Set {
        dir: ROOT_INO,
        cookie: cookie(name),
        name,
        ino: Ino(ino),
        old: Ino::NONE,
        kind: FileKind::Dir,
    };
    let g = [
        group(e, 1, &[new_kind(30, libc::S_IFLNK | 0o777, b"over/there"), set(b"l", 30, 0)]),
        group(e, 2, &[new_kind(31, libc::S_IFLNK | 0o777, &LONG), set(b"m", 31, 0)]),
        group(e, 3, &[new_kind(32, libc::S_IFDIR | 0o755, b""), dir(b"d", 32)]),
    ]
    .concat();
    s.commit_epoch(e, vec![(0, g.clone())]).unwrap();
    fold(&s, e, vec![g]);
    s.close().unwrap();
    let (s, _) = open(&d);
    assert_eq!(read(&s, 30, 0).unwrap().0[..10], *b"over/there");
    assert_eq!(read(&s, 31, 0).unwrap().0[..4000], LONG);
    assert_eq!(s.load_inode(Ino(31)).unwrap().unwrap().attrs.size, 4000);
    assert_eq!(s.load_inode(Ino(32)).unwrap().unwrap().nlink, 2);
    assert_eq!(s.load_inode(ROOT_INO).unwrap().unwrap().nlink, 3);
}

#[test]
fn a_thousand_names_fold_and_are_found() {
    let d = fresh(16 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch + 1;
    let names: Vec<Vec<u8>> = (0..1000).map(|i| format!("name-{i}").into_bytes()).collect();
    let mut g = Vec::new();
    for (i, n) in names.iter().enumerate() {
        g.extend(group(e, i as u64 + 1, &[new_file(100 + i as u64), set(n, 100 + i as u64, 0)]));
    }
    s.commit_epoch(e, vec![(0, g.clone())]).unwrap();
    drop(s); // Committed but not folded.
    let (s, r) = open(&d);
    assert_eq!(r.groups, 1000);
    for (i, n) in names.iter().enumerate() {
        assert_eq!(lookup(&s, n), Some(Ino(100 + i as u64)));
    }
    assert_eq!(s.info().next_chunk, 1099 / 128 + 1);
    assert_eq!(s.space().inodes, 1001);
}

#[test]
fn a_volume_opened_for_reading_is_recovered_in_memory_only() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    drop(s);
    let mut before = vec![0u8; SMALL as usize];
    d.read(&mut [device::ReadReq { offset: 0, data: &mut before }]).unwrap();
    let o = OpenOptions { read_only: true, ..Default::default() };
    let (s, _) = Store::open(vec![d.clone()], &o).unwrap();
    assert_eq!(lookup(&s, b"a"), Some(Ino(20)));
    assert_eq!(read(&s, 20, 0).unwrap().0, page(1).0);
    assert!(s.submit(tx(true, vec![], vec![])).is_err());
    s.close().unwrap();
    let mut after = vec![0u8; SMALL as usize];
    d.read(&mut [device::ReadReq { offset: 0, data: &mut after }]).unwrap();
    assert!(before == after);
}

#[test]
fn several_devices_and_mlogs_work_together_and_may_change_in_number() {
    let devices: Vec<Dev> = (0..3).map(|_| memory(8 << 20)).collect();
    let o = FormatOptions { mlogs: 4, ..format_options() };
    Store::format(&devices, &o).unwrap();
    for (round, mlogs) in [4usize, 2, 7, 1].into_iter().enumerate() {
        let mut shuffled = devices.clone();
        shuffled.rotate_left(round % 3);
        let (s, _) = Store::open(shuffled, &OpenOptions { mlogs, ..Default::default() }).unwrap();
        let e = s.info().last_epoch;
        for lane in 0..6u64 {
            let ino = 100 + round as u64 * 10 + lane;
            let name = format!("f{ino}").into_bytes();
            let g = group(e + 1, 1 + lane, &[new_file(ino), set(&name, ino, 0)]);
            let mut t =
                tx(true, g, vec![update(ino, 3 * 4096, (0..3).map(|p| (p, page(ino + p))).collect())]);
            t.lane = lane as usize;
            s.submit(t).unwrap();
        }
        drop(s);
        let (s, r) = open_all(&devices);
        assert_eq!(r.groups, 6);
        for ino in (0..=round as u64).flat_map(|r| 100 + r * 10..106 + r * 10) {
            assert_eq!(lookup(&s, format!("f{ino}").as_bytes()), Some(Ino(ino)));
            for p in 0..3 {
                assert_eq!(read(&s, ino, p).unwrap().0, page(ino + p).0);
            }
        }
    }
    assert!(Store::open(devices[..2].to_vec(), &OpenOptions::default()).is_err());
}

#[test]
fn threads_submit_while_checkpoints_run() {
    let d = fresh(64 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let births: Vec<Vec<u8>> = (0..4u64)
        .map(|t| group(e + 1, t + 1, &[new_file(50 + t), set(format!("t{t}").as_bytes(), 50 + t, 0)]))
        .collect();
    s.commit_epoch(e + 1, vec![(0, births.concat())]).unwrap();
    fold(&s, e + 1, births);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let s = &s;
            scope.spawn(move || {
                for i in 0..150u64 {
                    let p = i % 37;
                    let mut x =
                        tx(i % 3 != 0, vec![], vec![update(50 + t, 40 * 4096, vec![(p, page(t << 32 | i))])]);
                    x.lane = t as usize;
                    s.submit(x).unwrap();
                    assert_eq!(read(s, 50 + t, p).unwrap().0, page(t << 32 | i).0);
                }
            });
        }
        for n in 0..20 {
            fold(&s, e + 2 + n, vec![]);
        }
    });
    drop(s);
    let (s, _) = open(&d);
    for t in 0..4u64 {
        for p in 0..37u64 {
            // The last durable write of each page, or a later one.
            let got = read(&s, 50 + t, p).unwrap();
            let fits = (0..150).filter(|i| i % 37 == p).any(|i| got.0 == page(t << 32 | i).0);
            assert!(fits, "thread {t} page {p}");
        }
    }
}

#[test]
fn an_update_of_the_size_alone_leaves_the_other_attributes() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    let attrs = Attrs { mode: libc::S_IFREG, size: 2 * 4096 + 10, ..Attrs::default() };
    let pages = vec![(2, page(3).into())];
    let u = InodeUpdate { size_only: true, attrs, pages, ..update(20, 0, Vec::new()) };
    s.submit(tx(true, vec![], vec![u])).unwrap();
    drop(s);
    let (s, _) = open(&d);
    assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().attrs, crate::common::attrs(2 * 4096 + 10));
    assert_eq!(read(&s, 20, 2).unwrap().0[..10], page(3).0[..10]);
}

/// The size tells of no page that is to come, unless it is told so; and a cut comes at once.
#[test]
fn an_update_of_which_pages_are_to_come_makes_a_file_as_long_as_those_that_are_there() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    let some = |size, pages: &[u64]| InodeUpdate {
        more: true,
        ..update(20, size, pages.iter().map(|p| (*p, page(*p))).collect())
    };
    let size_now = || s.load_inode(Ino(20)).unwrap().unwrap().attrs.size;
    s.submit(tx(true, g, vec![some(5 * 4096 + 10, &[])])).unwrap();
    assert_eq!(size_now(), 0);
    s.submit(tx(true, vec![], vec![some(5 * 4096 + 10, &[0, 2])])).unwrap();
    assert_eq!(size_now(), 3 * 4096);
    s.submit(tx(true, vec![], vec![some(5 * 4096 + 10, &[1])])).unwrap();
    assert_eq!(size_now(), 3 * 4096);
    s.submit(tx(true, vec![], vec![some(5 * 4096 + 10, &[4, 5])])).unwrap();
    assert_eq!(size_now(), 5 * 4096 + 10);
    s.submit(tx(true, vec![], vec![some(9000, &[0])])).unwrap();
    assert_eq!(size_now(), 9000);
    let begun = std::cell::Cell::new(0);
    let whole = update(20, 7 * 4096, vec![(6, page(6))]);
    s.submit_and(tx(true, vec![], vec![whole]), || begun.set(begun.get() + 1)).unwrap();
    assert_eq!((size_now(), begun.get()), (7 * 4096, 1));
    drop(s);
    let (s, _) = open(&d);
    assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().attrs.size, 7 * 4096);
    assert_eq!(read(&s, 20, 6).unwrap().0, page(6).0);
}

#[test]
fn what_changes_behind_the_position_of_a_checkpoint_is_left_to_the_next() {
    for last in [false, true] {
        let d = fresh(SMALL);
        let (s, _) = open(&d);
        let g = group(1, 1, &[new_file(20), set(b"a", 20, 0), new_file(21), set(b"b", 21, 0)]);
        let both = vec![update(20, 4096, vec![(0, page(1))]), update(21, 4096, vec![(0, page(2))])];
        s.submit(tx(true, g.clone(), both)).unwrap();
        s.checkpoint(|| Ok(FoldInput { epoch: 1, groups: vec![g.into()] })).unwrap();
        assert_eq!(s.dirty_memory(), 0);
        let change = || {
            s.submit(tx(true, vec![], vec![update(21, 4096, vec![(0, page(9))])]))?;
            s.unmap(0, Ino(20), 0..1, None)?;
            Ok(FoldInput { epoch: 1, groups: vec![] })
        };
        s.checkpoint(change).unwrap();
        assert!(s.dirty_memory() > 0, "captured, though nothing asked for it");
        if last {
            s.checkpoint(|| Ok(FoldInput { epoch: 1, groups: vec![] })).unwrap();
            assert_eq!(s.dirty_memory(), 0);
        }
        drop(s);
        let (s, r) = open(&d);
        // What was acknowledged lies in a batch behind the position, or in the tree.
        assert_eq!(r.inode_updates, u64::from(!last));
        assert_eq!(read(&s, 21, 0).unwrap().0, page(9).0);
        assert_eq!(read(&s, 20, 0).is_none(), last);
    }
}

/// What makes a volume unlike all others is drawn, and what does not fit is refused.
#[test]
fn volumes_differ_and_labels_have_an_end() {
    let made = |label: &str| {
        let d = memory(SMALL);
        let o = FormatOptions { uuid: None, hash_key: None, label: label.into(), ..format_options() };
        Store::format(std::slice::from_ref(&d), &o).map(|()| open(&d).0.info())
    };
    let (a, b) = (made("one").unwrap(), made(&"x".repeat(64)).unwrap());
    assert_ne!(a.uuid, b.uuid);
    assert_ne!(a.hash_key, b.hash_key);
    assert_eq!((&*a.label, b.label.len()), ("one", 64));
    assert!(matches!(made(&"x".repeat(65)), Err(StoreError::Invalid(_))));
}

#[test]
fn the_smallest_device_that_is_said_to_do_does() {
    let whole = |kib: u64| Store::format(&[memory(kib << 10)], &format_options());
    let Err(StoreError::Invalid(why)) = whole(64) else { panic!("64 KiB are a volume") };
    let least: u64 = why.split_whitespace().find_map(|w| w.parse().ok()).unwrap();
    whole(least).unwrap();
    assert!(whole(least - 4).is_err());
}

#[test]
fn a_transaction_names_each_inode_once() {
    let (s, _) = open(&fresh(SMALL));
    let u = |ino| update(ino, 4096, vec![(0, page(ino))]);
    assert!(matches!(s.submit(tx(true, vec![], vec![u(20), u(21), u(20)])), Err(StoreError::Invalid(_))));
}

#[test]
fn what_is_only_read_is_not_committed_to() {
    let d = fresh(SMALL);
    open(&d).0.close().unwrap();
    let o = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![d], &o).unwrap();
    let groups = group(9, 9, &[new_file(20), set(b"a", 20, 0)]);
    assert!(s.commit_epoch(9, vec![(0, groups)]).is_err());
    assert!(s.submit(tx(true, vec![], vec![update(20, 0, vec![])])).is_err());
}

/// Nor is it changed in memory alone: what is refused is told, and what can be read is what is
/// there.
#[test]
fn what_is_only_read_is_not_changed() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    s.close().unwrap();
    let content = || {
        let mut bytes = vec![0u8; SMALL as usize];
        d.read(&mut [device::ReadReq { offset: 0, data: &mut bytes }]).unwrap();
        bytes
    };
    let before = content();
    let o = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (only_read, _) = Store::open(vec![d.clone()], &o).unwrap();
    for s in [s, only_read] {
        let written = s.submit(tx(false, vec![], vec![update(20, 4096, vec![(0, page(2))])]));
        let cut = s.unmap(0, Ino(20), 0..1, Some(&Cut { size: Some(0), time: None, attrs: &|| attrs(0) }));
        for answer in [written, cut] {
            assert!(matches!(answer, Err(StoreError::OpenedReadOnly | StoreError::Closed)), "{answer:?}");
        }
        assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().attrs.size, 4096);
        assert_eq!(read(&s, 20, 0).unwrap().0, page(1).0);
    }
    assert!(content() == before);
}

/// Only a batch carries groups, and only what is durable has one: they would be gone.
#[test]
fn groups_are_refused_where_nothing_makes_them_durable() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let groups = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    let refused = s.submit(tx(false, groups.clone(), vec![update(20, 4096, vec![(0, page(1))])]));
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    assert!(s.load_inode(Ino(20)).unwrap().is_none());
    s.submit(tx(true, groups, vec![])).unwrap();
}

#[test]
fn epochs_are_committed_once_and_in_order() {
    let d = fresh(SMALL);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let commit = |epoch, name: &[u8], ino| {
        s.commit_epoch(epoch, vec![(0, group(epoch, ino, &[new_file(ino), set(name, ino, 0)]))])
    };
    commit(e + 2, b"a", 20).unwrap();
    for epoch in [e + 1, e + 2] {
        let again = commit(epoch, b"b", 21);
        assert!(matches!(again, Err(StoreError::Invalid(_))), "{again:?}");
    }
    commit(e + 3, b"c", 22).unwrap();
    drop(s);
    let (s, r) = open(&d);
    assert_eq!((r.epoch, r.groups, lookup(&s, b"b")), (e + 3, 2, None));
}

/// The log to be recovered grows with what is written, and a checkpoint ends it.
#[test]
fn the_log_is_measured_from_the_last_checkpoint() {
    let (s, _) = open(&fresh(SMALL));
    let before = s.pressure().log_bytes;
    for n in 0..3 {
        let pages = (0..10).map(|p| (p, page(n * 10 + p))).collect();
        let g = if n == 0 { group(1, 1, &[new_file(20), set(b"a", 20, 0)]) } else { Vec::new() };
        s.submit(tx(true, g, vec![update(20, 10 * 4096, pages)])).unwrap();
    }
    // A batch each: data is not read again by recovery.
    assert!(s.pressure().log_bytes >= before + 3 * 4096, "{before}, then {}", s.pressure().log_bytes);
    fold(&s, 1, vec![]);
    assert_eq!(s.pressure().log_bytes, 0);
}
