//! Volumes that are nearly full, and overwritten for ever.

use crate::common::*;
use lanefs_store::*;

/// Fills to `percent` and overwrites at random until 20 times the capacity has gone through.
fn endless(bytes: u64, copies: u32, percent: u64, durable_every: u64, rounds: u64) {
    let d = fresh_with(bytes, copies);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let births: Vec<Vec<u8>> = (0..8u64)
        .map(|t| group(e + 1, t + 1, &[new_file(50 + t), set(format!("t{t}").as_bytes(), 50 + t, 0)]))
        .collect();
    s.commit_epoch(e + 1, vec![(0, births.concat())]).unwrap();
    fold(&s, e + 1, births);
    let total = s.space().total;
    let per_file = total * percent / 100 / 8;
    let mut model = std::collections::BTreeMap::new();
    let mut x = 99u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let (mut written, mut n) = (0, 0u64);
    while written < total * rounds {
        n += 1;
        let ino = 50 + random() % 8;
        let first = if written < total { n * 4 % per_file } else { random() % per_file };
        let pages: Vec<u64> = (first..(first + 4).min(per_file)).collect();
        let k = pages.len() as u64;
        if !s.reserve(0, k) {
            panic!("no room after {written} of {total} blocks: {:?} {:?}", s.space(), s.pressure());
        }
        let mut u = update(ino, per_file * 4096, pages.iter().map(|&p| (p, page(n * 1000 + p))).collect());
        u.reserved = k as u32;
        s.submit(tx(n % durable_every == 0, vec![], vec![u])).unwrap();
        pages.iter().for_each(|&p| {
            model.insert((ino, p), n * 1000 + p);
        });
        written += k;
    }
    for (&(ino, p), &seed) in &model {
        assert_eq!(read(&s, ino, p).unwrap().0, page(seed).0, "inode {ino} page {p}");
    }
    assert_eq!(s.space().reserved, 0);
    s.close().unwrap();
    drop(s);
    let (s, r) = open(&d);
    assert!(r.clean);
    for (&(ino, p), &seed) in &model {
        assert_eq!(read(&s, ino, p).unwrap().0, page(seed).0, "inode {ino} page {p} after reopening");
    }
}

#[test]
fn overwriting_goes_on_for_ever_at_80_percent() {
    endless(4 << 20, 1, 80, 3, 20);
}

#[test]
fn overwriting_goes_on_for_ever_with_two_copies_of_the_tree() {
    endless(4 << 20, 2, 75, 3, 20);
    endless(6 << 20, 2, 70, 1, 12);
}

#[test]
fn overwriting_durably_goes_on_too() {
    endless(6 << 20, 1, 70, 1, 12);
}

#[test]
fn reserve_says_when_it_is_full_and_what_it_promised_can_be_written() {
    let d = fresh(4 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let g = group(e + 1, 1, &[new_file(50), set(b"f", 50, 0)]);
    s.commit_epoch(e + 1, vec![(0, g.clone())]).unwrap();
    fold(&s, e + 1, vec![g]);
    let mut p = 0;
    while s.reserve(0, 1) {
        let mut u = update(50, (p + 1) * 4096, vec![(p, page(p))]);
        u.reserved = 1;
        s.submit(tx(true, vec![], vec![u])).unwrap();
        p += 1;
    }
    assert!(p > s.space().total * 9 / 10, "{p} of {}", s.space().total);
    for q in 0..p {
        assert_eq!(read(&s, 50, q).unwrap().0, page(q).0);
    }
    // Truncating gives it back, when a checkpoint has made it durable.
    s.unmap(0, Ino(50), 0..u64::MAX, Some(&Cut { size: Some(0), time: None, attrs: &|| attrs(0) })).unwrap();
    s.submit(tx(true, vec![], vec![update(50, 0, vec![])])).unwrap();
    assert!(!s.reserve(0, 1), "a crash may bring back what was cut off");
    assert!(s.space().later >= p - 1 && s.space().free >= p - 1, "{:?}", s.space());
    fold(&s, e + 2, vec![]);
    assert!(s.reserve(0, p / 2) && s.space().later == 0);
    s.unreserve(0, p / 2);
}

#[test]
fn pending_names_survive_the_stores_own_checkpoints() {
    let d = fresh(4 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    // Durable, but neither committed nor folded; and one epoch committed and not folded.
    s.commit_epoch(e + 1, vec![(0, group(e + 1, 1, &[new_file(50), set(b"c", 50, 0)]))]).unwrap();
    let g = group(e + 2, 2, &[new_file(51), set(b"f", 51, 0)]);
    s.submit(tx(true, g, vec![update(51, 2 * 4096, vec![(0, page(1)), (1, page(2))])])).unwrap();
    let mounts = s.info().mount_generation;
    // Far more than fits: the store has to make checkpoints by itself.
    for n in 0..s.space().total * 3 {
        s.submit(tx(n % 2 == 0, vec![], vec![update(50, 64 * 4096, vec![(n % 64, page(n))])])).unwrap();
    }
    drop(s);
    let (s, r) = open(&d);
    assert_eq!((r.epoch, r.groups), (e + 1, 2));
    assert_eq!(s.info().mount_generation, mounts + 1);
    assert_eq!((lookup(&s, b"c"), lookup(&s, b"f")), (Some(Ino(50)), Some(Ino(51))));
    assert_eq!(read(&s, 51, 0).unwrap().0, page(1).0);
    assert_eq!(read(&s, 51, 1).unwrap().0, page(2).0);
}

#[test]
fn blocks_that_a_batch_names_are_not_reused_before_the_next_checkpoint() {
    let d = fresh(4 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let g = group(e + 1, 1, &[new_file(50), set(b"old", 50, 0)]);
    s.commit_epoch(e + 1, vec![(0, g.clone())]).unwrap();
    fold(&s, e + 1, vec![g]);
    let many = 16 * 10;
    let pages = |seed: u64| (0..many).map(|p| (p, page(seed + p))).collect::<Vec<_>>();
    s.checkpoint(|| {
        // Behind the position, before the slot: a new file, and all of it written twice.
        let g = group(e + 3, 2, &[new_file(51), set(b"new", 51, 0)]);
        s.submit(tx(true, g, vec![update(51, many * 4096, pages(1000))]))?;
        s.submit(tx(true, vec![], vec![update(51, many * 4096, pages(2000))]))?;
        Ok(FoldInput { epoch: e + 2, groups: vec![] })
    })
    .unwrap();
    // Take every free segment that may be taken.
    let before = s.pressure();
    for p in 0.. {
        let now = s.pressure();
        assert!(now.free_segments <= before.free_segments, "a checkpoint came between");
        if now.free_segments <= now.low_water / 2 + 1 {
            break;
        }
        s.submit(tx(false, vec![], vec![update(50, 4096 * 1000, vec![(p, page(p))])])).unwrap();
    }
    drop(s);
    let (s, r) = open(&d);
    assert_eq!((r.batches_dropped, lookup(&s, b"new")), (0, Some(Ino(51))));
    for p in 0..many {
        assert_eq!(read(&s, 51, p).unwrap().0, page(2000 + p).0);
    }
}

#[test]
fn threads_share_the_last_room_without_losing_any() {
    let d = fresh(8 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let g: Vec<Vec<u8>> = (0..4u64)
        .map(|t| group(e + 1, t + 1, &[new_file(50 + t), set(format!("t{t}").as_bytes(), 50 + t, 0)]))
        .collect();
    s.commit_epoch(e + 1, vec![(0, g.concat())]).unwrap();
    fold(&s, e + 1, g);
    let per_file = s.space().total * 85 / 100 / 4;
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let s = &s;
            scope.spawn(move || {
                for n in 0..per_file * 6 {
                    let p = if n < per_file { n } else { n * 7919 % per_file };
                    while !s.reserve(t as usize, 1) {
                        std::thread::yield_now();
                    }
                    let mut u = update(50 + t, per_file * 4096, vec![(p, page(t << 32 | n))]);
                    u.reserved = 1;
                    let mut x = tx(n % 3 == 0, vec![], vec![u]);
                    x.lane = t as usize;
                    s.submit(x).unwrap();
                }
            });
        }
    });
    for t in 0..4u64 {
        let mut last = std::collections::BTreeMap::new();
        for n in 0..per_file * 6 {
            last.insert(if n < per_file { n } else { n * 7919 % per_file }, n);
        }
        for (p, n) in last {
            assert_eq!(read(&s, 50 + t, p).unwrap().0, page(t << 32 | n).0, "thread {t} page {p}");
        }
    }
    let a = s.audit().unwrap();
    assert!(a.problems.is_empty(), "{:#?}", a.problems);
}

#[test]
fn many_unfolded_inodes_are_carried_over() {
    let d = fresh(8 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    // Some fsynced, some committed, none folded, on a volume so small that the store has to help
    // itself.
    for n in 0..300u64 {
        let name = format!("f{n}").into_bytes();
        let g = group(e + 1, n + 1, &[new_file(100 + n), set(&name, 100 + n, 0)]);
        let mut b = page(n);
        b.0[200..].fill(0);
        s.submit(tx(true, g, vec![update(100 + n, 200, vec![(0, b)])])).unwrap();
    }
    for n in 0..s.space().total * 2 {
        s.submit(tx(false, vec![], vec![update(100, 64 * 4096, vec![(n % 64, page(n))])])).unwrap();
    }
    s.submit(tx(true, vec![], vec![update(100, 64 * 4096, vec![])])).unwrap();
    drop(s);
    let (s, r) = open(&d);
    assert_eq!(r.groups, 300);
    for n in 1..300u64 {
        assert_eq!(lookup(&s, format!("f{n}").as_bytes()), Some(Ino(100 + n)));
        assert_eq!(read(&s, 100 + n, 0).unwrap().0[..200], page(n).0[..200]);
    }
    let a = s.audit().unwrap();
    assert!(a.problems.is_empty(), "{:#?}", a.problems);
}

#[test]
fn overwriting_goes_on_through_crash_after_crash() {
    crash_after_crash(4 << 20, 80);
}

/// Where half of what the chains hold is data, until there is too little space for that.
#[test]
fn overwriting_beside_the_batches_goes_on_through_crash_after_crash() {
    for percent in [50, 80, 95] {
        crash_after_crash(8 << 20, percent);
    }
}

/// Fills a volume to `percent`, page by page, and writes as much over, with a crash each time.
fn crash_after_crash(bytes: u64, percent: u64) {
    let d = fresh(bytes);
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let g = group(e + 1, 1, &[new_file(50), set(b"f", 50, 0)]);
    s.commit_epoch(e + 1, vec![(0, g.clone())]).unwrap();
    fold(&s, e + 1, vec![g]);
    let n = s.space().total * percent / 100;
    drop(s);
    let mut x = 7u64;
    for round in 0..12u64 {
        // Blocks written before a crash must be movable after it, else the room they are in is
        // lost.
        let (s, _) = open(&d);
        let a = s.audit().unwrap();
        assert!(a.problems.is_empty(), "{:#?}", a.problems);
        for i in 0..n {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let p = if round == 0 { i } else { (x >> 33) % n };
            assert!(s.reserve(0, 1), "round {round} write {i}: {:?} {:?}", s.space(), s.pressure());
            let mut u = update(50, n * 4096, vec![(p, page(p))]);
            u.reserved = 1;
            s.submit(tx(true, vec![], vec![u])).unwrap();
        }
    }
    let (s, _) = open(&d);
    for p in 0..n {
        assert_eq!(read(&s, 50, p).unwrap().0, page(p).0);
    }
}
