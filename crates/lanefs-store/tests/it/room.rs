//! Room for what is acknowledged and not yet folded.

use crate::common::*;
use lanefs_store::*;

/// A volume whose live blocks are spread over all segments: every second page of what filled it was
/// given up.
fn scattered() -> (Dev, std::sync::Arc<Store>) {
    let d = memory(32 << 20);
    let options = FormatOptions { segment_blocks: 128, ..format_options() };
    Store::format(std::slice::from_ref(&d), &options).unwrap();
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(50), set(b"f", 50, 0)]);
    s.commit_epoch(1, vec![(0, g.clone())]).unwrap();
    fold(&s, 1, vec![g]);
    let mut p = 0;
    while s.reserve(0, 8) {
        let pages = (p..p + 8).map(|p| (p, page(p))).collect();
        p += 8;
        let mut u = update(50, p * 4096, pages);
        u.reserved = 8;
        s.submit(tx(false, vec![], vec![u])).unwrap();
    }
    fold(&s, 2, vec![]);
    for q in (0..p).step_by(2) {
        s.unmap(0, Ino(50), q..q + 1, None).unwrap();
    }
    s.submit(tx(true, vec![], vec![update(50, p * 4096, vec![])])).unwrap();
    fold(&s, 3, vec![]);
    (d, s)
}

/// The groups of at most so many new names, for which room is promised, and how many there are.
fn names(s: &Store, most: u64) -> (Vec<u8>, u64) {
    let mut groups = Vec::new();
    let mut n = 0;
    while n < most && s.reserve(0, 1) {
        let name = format!("name-{n}");
        groups.extend(group(5, 10 + n, &[new_file(1000 + n), set(name.as_bytes(), 1000 + n, 0)]));
        n += 1;
    }
    (groups, n)
}

#[test]
fn acknowledged_names_open_again_where_free_segments_are_few() {
    let (d, s) = scattered();
    let before = s.pressure();
    let (groups, n) = names(&s, 3000);
    s.free_space_for_epoch(groups.len() as u64, false).unwrap();
    let answer = s.commit_epoch(5, vec![(0, groups)]);
    println!("{n} names, {:?} before, {:?} after, {answer:?}", before, s.pressure());
    answer.unwrap();
    drop(s);
    for _ in 0..2 {
        let opened = Store::open(vec![d.clone()], &OpenOptions::default());
        let (s, _) = opened.unwrap_or_else(|e| panic!("{n} acknowledged names: {e}"));
        for i in 0..n {
            assert_eq!(lookup(&s, format!("name-{i}").as_bytes()), Some(Ino(1000 + i)), "{i}");
        }
    }
}

/// What is committed has to be folded by a recovery that has free segments only: data does not take
/// them, however much is written.
#[test]
fn data_leaves_the_room_that_recovery_needs_for_committed_names() {
    let (d, s) = scattered();
    let (groups, n) = names(&s, 2000);
    s.free_space_for_epoch(groups.len() as u64, false).unwrap();
    s.commit_epoch(5, vec![(0, groups)]).unwrap();
    let first = 1 << 20;
    let mut p = first;
    while s.reserve(0, 64) {
        let mut u = update(50, (p + 64) * 4096, (p..p + 64).map(|p| (p, page(p))).collect());
        u.reserved = 64;
        s.submit(tx(true, vec![], vec![u])).unwrap();
        p += 64;
    }
    let full = format!("{n} names, {} pages, {:?}", p - first, s.pressure());
    drop(s);
    let opened = Store::open(vec![d], &OpenOptions::default());
    let (s, _) = opened.unwrap_or_else(|e| panic!("{full}: {e}"));
    for i in 0..n {
        assert_eq!(lookup(&s, format!("name-{i}").as_bytes()), Some(Ino(1000 + i)), "{i}");
    }
    for q in (first..p).step_by(7) {
        assert_eq!(read(&s, 50, q).unwrap().0, page(q).0);
    }
}

/// Each block that is moved changes nodes of its file's map, which the next checkpoint writes; and
/// what was cleaned is free only behind that.
#[test]
fn cleaning_leaves_room_for_the_checkpoint_that_frees_what_was_cleaned() {
    const FILES: std::ops::Range<u64> = 1000..1012;
    const PAGES: u64 = 60;
    /// Two nodes of a map lead to no other page.
    const FAR: u64 = 1 << 16;
    let d = memory(32 << 20);
    let options = FormatOptions { segment_blocks: 64, ..format_options() };
    Store::format(std::slice::from_ref(&d), &options).unwrap();
    let (s, _) = open(&d);
    let made: Vec<_> =
        FILES.map(|n| group(1, n, &[new_file(n), set(format!("{n}").as_bytes(), n, 0)])).collect();
    s.commit_epoch(1, vec![(0, made.concat())]).unwrap();
    fold(&s, 1, made);
    let size = PAGES * FAR * 4096;
    // Of two pages that were written one after the other one goes.
    for p in 0..PAGES {
        for n in FILES {
            let pages = vec![(p * FAR, page(n * PAGES + p)), (p * FAR + 1, page(p))];
            s.submit(tx(false, vec![], vec![update(n, size, pages)])).unwrap();
        }
    }
    fold(&s, 1, vec![]);
    for n in FILES {
        (0..PAGES).for_each(|p| s.unmap(0, Ino(n), p * FAR + 1..p * FAR + 2, None).unwrap());
        s.submit(tx(false, vec![], vec![update(n, size, vec![])])).unwrap();
    }
    fold(&s, 1, vec![]);
    // The log takes segments, as it does between two checkpoints.
    let mut round = 0;
    while s.pressure().free_segments > s.pressure().low_water {
        s.submit(tx(true, vec![], vec![update(1000, size, vec![(0, page(round))])])).unwrap();
        round += 1;
    }
    let before = s.pressure();
    let report = s.clean(before.segments).unwrap();
    println!("{before:?}, {report:?}, {:?}", s.pressure());
    assert!(report.segments > 0);
    let none = FoldInput { epoch: s.folded_epoch(), groups: Vec::new() };
    s.checkpoint(|| Ok(none)).unwrap_or_else(|e| panic!("{before:?}, {report:?}: {e}"));
    assert!(s.pressure().free_segments > before.free_segments);
    for (n, p) in FILES.flat_map(|n| (1..PAGES).map(move |p| (n, p))) {
        assert_eq!(read(&s, n, p * FAR).unwrap().0, page(n * PAGES + p).0);
    }
}
