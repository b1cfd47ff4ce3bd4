use super::entry::range_of;
use super::tidy::Tidied;
use super::*;
use crossbeam_epoch::pin;
use lanefs_sync::random::Rng;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

const KEY: [u64; 2] = [1, 2];

fn add(d: &Dir, name: &[u8], ino: u64, epoch: u64, g: &Guard) -> bool {
    add_in(d, name, ino, || epoch, g)
}

/// Adds a name in the epoch that `epoch` returns when the leaf is locked.
fn add_in(d: &Dir, name: &[u8], ino: u64, epoch: impl Fn() -> u64, g: &Guard) -> bool {
    let h = hash_name(KEY, name);
    let l = d.lock(h, g).make_space(h, || 0);
    let epoch = epoch();
    if let Some(e) = l.find(h, name) {
        if e.target().is_some() {
            return false;
        }
        e.touch(epoch, 0);
        e.set_target(Some((Ino(ino), FileKind::File)));
    } else {
        let mut e = Entry::new(0, name, Ino(ino), FileKind::File, epoch, epoch, 1);
        e.cookie = l.place(h, name).1.unwrap();
        l.insert(e);
    }
    l.stamp(epoch, 1);
    true
}

fn del(d: &Dir, name: &[u8], epoch: u64, g: &Guard) -> bool {
    del_in(d, name, || epoch, g)
}

/// Removes a name in the epoch that `epoch` returns when the leaf is locked.
fn del_in(d: &Dir, name: &[u8], epoch: impl Fn() -> u64, g: &Guard) -> bool {
    let h = hash_name(KEY, name);
    let l = d.lock(h, g);
    let epoch = epoch();
    match l.find(h, name).filter(|e| e.target().is_some()) {
        Some(e) => {
            l.remove(e, epoch, 0);
            l.stamp(epoch, 1);
            true
        }
        None => false,
    }
}

fn get(d: &Dir, name: &[u8], g: &Guard) -> Option<u64> {
    match d.lookup(hash_name(KEY, name), name, g) {
        Found::Name(i, _) => Some(i.0),
        Found::Absent => None,
        Found::NotLoaded => panic!("nothing was evicted"),
    }
}

/// Checks every leaf of the directory; nobody else may use it.
fn check(d: &Dir, _guard: &Guard) {
    let mut next = 0;
    d.each_leaf(&mut |leaf, base, level| {
        assert_eq!(base, next, "the leaves cover all cookies, each once");
        next = range_of(base, level).1 + 1;
        assert!(!matches!(leaf.head(), Head::Gone), "a table was taken out, and is found");
        assert_eq!(leaf.multi_key.load(Relaxed), 0);
        let _l = leaf.lock.guard();
        leaf.check_invariants(level);
        let Head::Chain(p) = leaf.head() else { return true };
        // SAFETY: the leaf is locked, and the caller is pinned.
        assert!(unsafe { p.as_ref() }.is_none_or(|e| range_of(e.cookie, level).0 == base));
        true
    });
    assert!(next == 1 << 63 || d.root().is_none());
}

fn list(d: &Dir, g: &Guard) -> Vec<(u64, Vec<u8>)> {
    let (mut at, mut all, mut out) = (2, Vec::new(), Vec::new());
    loop {
        match d.list_leaf(at, &mut out, g) {
            Step::End => return all,
            Step::NotLoaded(_) => panic!("nothing was evicted"),
            Step::Next(n) => {
                all.extend(out.iter().map(|e| (e.0, e.3.to_vec())));
                at = n;
                if n >= (1 << 63) - 1 {
                    return all;
                }
            }
        }
    }
}

#[test]
fn behaves_like_a_map_through_splits_and_tombstones() {
    let d = Dir::new(true);
    let g = pin();
    let mut model = BTreeMap::new();
    let mut rng = Rng::new(7);
    for i in 0..20_000u64 {
        let x = rng.bits();
        let name = format!("n{}", (x >> 33) % 3000).into_bytes();
        let epoch = 1 + i / 1000;
        if x >> 20 & 1 == 0 {
            assert_eq!(add(&d, &name, i + 20, epoch, &g), !model.contains_key(&name));
            model.entry(name).or_insert(i + 20);
        } else {
            assert_eq!(del(&d, &name, epoch, &g), model.remove(&name).is_some());
        }
    }
    for n in 0..3000 {
        let name = format!("n{n}").into_bytes();
        assert_eq!(get(&d, &name, &g), model.get(&name).copied());
    }
    let l = list(&d, &g);
    assert!(l.is_sorted_by(|a, b| a.0 < b.0), "cookies ascend and differ");
    let mut names: Vec<_> = l.into_iter().map(|e| e.1).collect();
    names.sort();
    assert_eq!(names, model.into_keys().collect::<Vec<_>>());
    check(&d, &g);
}

#[test]
fn evicted_leaves_are_not_loaded_and_come_back_unless_something_was_evicted_meanwhile() {
    let d = Dir::new(true);
    let g = pin();
    for i in 0..100u64 {
        add(&d, format!("f{i}").as_bytes(), 20 + i, 1, &g);
    }
    assert_eq!(d.evict_clean(0, &g), 0, "dirty entries stay");
    let stored = list(&d, &g);
    add(&d, b"late", 999, 2, &g);
    let stamp = d.load_stamp();
    assert!(d.evict_clean(1, &g) > 0);
    let h = hash_name(KEY, b"f1");
    let entries: Vec<_> = stored.iter().map(|(c, n)| (*c, Ino(5), FileKind::File, n.as_slice())).collect();
    let b = Bucket { lowest: 0, highest: (1 << 63) - 1, entries: &entries };
    assert_eq!(d.install(h, &b, stamp, &g), (false, 0), "read before the eviction");
    while let Found::NotLoaded = d.lookup(h, b"f1", &g) {
        assert!(d.install(h, &b, d.load_stamp(), &g).0);
    }
    assert_eq!(get(&d, b"f1", &g), Some(5));
    assert_eq!(get(&d, b"late", &g), Some(999), "what the store does not know stayed");
    check(&d, &g);
}

/// A bucket is read while the reclaimer goes over a large directory, whose other leaves it evicts
/// one after the other: that must not keep it out.
#[test]
fn what_is_evicted_elsewhere_does_not_keep_a_bucket_out() {
    let d = Dir::new(true);
    let g = pin();
    for i in 0..1000u64 {
        add(&d, format!("f{i}").as_bytes(), 20 + i, 1, &g);
    }
    let stored = list(&d, &g);
    let entries: Vec<_> = stored.iter().map(|(c, n)| (*c, Ino(5), FileKind::File, n.as_slice())).collect();
    let half = 1 << 62;
    let (low, high): (Vec<_>, Vec<_>) = entries.iter().copied().partition(|e| e.0 < half);
    let low = Bucket { lowest: 0, highest: half - 1, entries: &low };
    let high = Bucket { lowest: half, highest: (1 << 63) - 1, entries: &high };
    assert!(d.evict_clean(1, &g) > 0);
    let wanted = low.entries[0].0;
    // In memory, and evicted between the look at the store and what is brought from there.
    assert!(d.install(half, &high, d.load_stamp(), &g).0);
    let stamp = d.load_stamp();
    assert!(d.evict_clean(1, &g) > 0);
    let (whole, bytes) = d.install(wanted, &low, stamp, &g);
    assert!(whole, "other leaves were evicted");
    assert_eq!(bytes, low.entries.iter().map(|e| Entry::bytes(e.3.len())).sum::<usize>());
    assert_eq!(d.install(half, &high, stamp, &g), (false, 0), "these were");
    // One leaf of those that a bucket fills was evicted meanwhile: the rest comes in, and what came
    // is told.
    let stamp = d.load_stamp();
    let first = high.entries[0].0;
    assert!(d.install(first, &high, d.load_stamp(), &g).0);
    d.lock(first, &g).evict(1);
    let (whole, bytes) = d.install(first, &high, stamp, &g);
    assert!(!whole && bytes == 0, "all others are in memory");
    assert!(d.install(first, &high, d.load_stamp(), &g).0);
    let mut names: Vec<_> = list(&d, &g);
    names.sort();
    let mut all = stored;
    all.sort();
    assert_eq!(names, all);
}

/// Tables below the root.
fn tables(d: &Dir) -> usize {
    fn below(t: &Table) -> usize {
        let tables = t.leaves.iter().filter_map(|l| match l.head() {
            // SAFETY: nobody else uses the directory.
            Head::Table(t) => Some(1 + below(unsafe { &*t })),
            _ => None,
        });
        tables.sum()
    }
    d.root().map_or(0, below)
}

/// A directory kept the names of all files that were removed from it until that was folded, which
/// all who looked for another name went over; and for ever the tables that these had needed.
#[test]
fn what_is_removed_leaves_memory_and_its_tables_when_that_is_folded() {
    let d = Dir::new(true);
    let g = pin();
    let name = |i: u64| format!("f{i}").into_bytes();
    for i in 0..20_000u64 {
        add(&d, &name(i), 20 + i, 1, &g);
    }
    let tables_before = tables(&d);
    (0..19_000).for_each(|i| assert!(del(&d, &name(i), 2, &g)));
    (19_000..19_100).for_each(|i| assert!(del(&d, &name(i), 3, &g)));
    assert_eq!(d.name_bytes(), Entry::bytes(0) * 900, "the names are gone");
    let none = d.tidy(1, &g);
    assert!(none.freed == 0 && none.left > 1000, "nothing of it is folded: {none:?}");
    assert_eq!(tables(&d), tables_before);
    let Tidied { left, in_use, looked_at, .. } = d.tidy(2, &g);
    assert!(in_use > 100 && in_use <= 1000 && looked_at > 1000, "{in_use} of {looked_at}");
    assert!((1..=100).contains(&left), "what the third epoch removed is not folded: {left}");
    for i in 0..20_000 {
        assert_eq!(get(&d, &name(i), &g), (i >= 19_100).then_some(20 + i));
    }
    check(&d, &g);
    assert_eq!(d.tidy(3, &g).left, 0);
    (19_100..20_000).for_each(|i| assert!(del(&d, &name(i), 4, &g)));
    assert!(d.tidy(3, &g).left > 0 && tables(&d) > 0);
    assert_eq!(d.tidy(4, &g).left, 0);
    assert_eq!((d.name_bytes(), tables(&d)), (0, 0), "{tables_before} tables before");
    // All of it is known to be gone still.
    assert_eq!(get(&d, &name(7), &g), None);
    assert!(add(&d, &name(7), 27, 5, &g));
    assert_eq!(get(&d, &name(7), &g), Some(27));
}

/// A name that the store has is removed, and the store is asked before it knows.
#[test]
fn the_store_brings_no_name_back_that_is_removed() {
    // All in one leaf.
    let names = (0..).map(|i| format!("f{i}").into_bytes()).filter(|n| hash_name(KEY, n) >> 59 == 0);
    let names: Vec<_> = names.take(10).collect();
    let mut stored: Vec<_> = names.iter().map(|n| (hash_name(KEY, n), n)).collect();
    stored.sort();
    let entries: Vec<_> = stored.iter().map(|(c, n)| (*c, Ino(7), FileKind::File, n.as_slice())).collect();
    let bucket = Bucket { lowest: 0, highest: (1 << 63) - 1, entries: &entries };
    // Names of a complete leaf leave nothing behind, those of another one do.
    for complete in [true, false] {
        let d = Dir::new(false);
        let g = pin();
        let stamp = d.load_stamp();
        let h = hash_name(KEY, &names[0]);
        match complete {
            true => assert!(d.install(h, &bucket, stamp, &g).0),
            false => names.iter().for_each(|n| assert!(add(&d, n, 7, 1, &g))),
        }
        names[..5].iter().for_each(|n| assert!(del(&d, n, 2, &g)));
        assert_eq!(d.name_bytes(), Entry::bytes(0) * if complete { 5 } else { 10 });
        assert_eq!(d.evict_clean(1, &g), 0, "the leaf changed behind the fold");
        assert!(d.install(h, &bucket, stamp, &g).0 && d.install(h, &bucket, d.load_stamp(), &g).0);
        for (i, n) in names.iter().enumerate() {
            assert_eq!(get(&d, n, &g), (i >= 5).then_some(7));
        }
        check(&d, &g);
    }
}

#[test]
fn what_is_evicted_takes_its_tables_along() {
    let d = Dir::new(true);
    let g = pin();
    for i in 0..20_000u64 {
        add(&d, format!("f{i}").as_bytes(), 20 + i, 1, &g);
    }
    let before = tables(&d);
    assert!(before > 250, "{before}");
    // In parts, as of a directory in use; a name of a later epoch keeps the tables it lies in.
    add(&d, b"late", 999, 2, &g);
    let all = d.name_bytes();
    let mut freed = 0;
    for part in 1.. {
        let now = d.evict_some(all / 8, 1, &g);
        freed += now;
        assert!(part <= 10, "{freed} of {all} bytes freed");
        if now < all / 16 {
            break;
        }
    }
    assert!(freed >= all - 2000, "{freed} of {all}");
    assert!(d.evict_clean(1, &g) < 2000);
    assert_eq!(get(&d, b"late", &g), Some(999));
    assert!(tables(&d) <= 5, "{} of {before} tables", tables(&d));
    d.evict_clean(2, &g);
    assert_eq!(tables(&d), 0);
    assert!(matches!(d.lookup(hash_name(KEY, b"late"), b"late", &g), Found::NotLoaded));
}

/// Names that the store has come and go with the reclaimer, beside names that it does not have yet.
#[test]
fn names_are_found_while_tables_come_and_go() {
    let d = Dir::new(false);
    let done = AtomicBool::new(false);
    let mut stored: Vec<(u64, Vec<u8>)> =
        (0..3000).map(|i| format!("stay{i}").into_bytes()).map(|n| (hash_name(KEY, &n), n)).collect();
    stored.sort();
    let stored = &stored;
    // As the layer above does: what is not in memory is read, 64 buckets in all.
    let find = |d: &Dir, name: &[u8]| {
        let (hash, g) = (hash_name(KEY, name), pin());
        loop {
            match d.lookup(hash, name, &g) {
                Found::Name(i, _) => return Some(i.0),
                Found::Absent => return None,
                Found::NotLoaded => {}
            }
            let stamp = d.load_stamp();
            let (lowest, highest) = range_of(hash, 1);
            let of = |e: &&(u64, Vec<u8>)| (lowest..=highest).contains(&e.0);
            let entries: Vec<_> =
                stored.iter().filter(of).map(|(c, n)| (*c, Ino(7), FileKind::File, n.as_slice())).collect();
            d.install(hash, &Bucket { lowest, highest, entries: &entries }, stamp, &g);
        }
    };
    std::thread::scope(|s| {
        for t in 0..2u64 {
            let (d, done, find) = (&d, &done, &find);
            s.spawn(move || {
                for turn in 0..30 {
                    for i in 0..300 {
                        add(d, format!("t{t}-{i}").as_bytes(), 100 + turn, 2, &pin());
                    }
                    for i in 0..300 {
                        let name = format!("t{t}-{i}").into_bytes();
                        assert_eq!(find(d, &name), Some(100 + turn));
                        del(d, &name, 2, &pin());
                        assert_eq!(find(d, &name), None);
                    }
                }
                done.store(true, SeqCst);
            });
        }
        s.spawn(|| {
            while !done.load(SeqCst) {
                for (_, name) in stored.iter().step_by(7) {
                    assert_eq!(find(&d, name), Some(7));
                }
                assert_eq!(find(&d, b"nobody"), None);
            }
        });
        s.spawn(|| {
            while !done.load(SeqCst) {
                d.evict_some(20_000, 1, &pin());
                d.evict_clean(1, &pin());
            }
        });
    });
    check(&d, &pin());
    d.evict_clean(2, &pin());
    assert_eq!(tables(&d), 0);
    check(&d, &pin());
}

#[test]
fn readers_never_miss_a_name_that_stays_while_leaves_split() {
    let d = Dir::new(true);
    let (done, turns) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    for i in 0..50u64 {
        add(&d, format!("stay{i}").as_bytes(), 20 + i, 1, &pin());
    }
    std::thread::scope(|s| {
        for t in 0..2 {
            let (d, done, turns) = (&d, &done, &turns);
            let epoch = || 1 + turns.fetch_add(1, SeqCst) / 1000;
            s.spawn(move || {
                for i in 0..20_000u64 {
                    let name = format!("t{t}-{}", i % 5000);
                    add_in(d, name.as_bytes(), 100 + i, epoch, &pin());
                    if i % 3 == 0 {
                        del_in(d, name.as_bytes(), epoch, &pin());
                    }
                }
                done.store(true, SeqCst);
            });
        }
        s.spawn(|| {
            while !done.load(SeqCst) {
                for i in 0..50u64 {
                    assert_eq!(get(&d, format!("stay{i}").as_bytes(), &pin()), Some(20 + i));
                }
                let l = list(&d, &pin());
                assert_eq!(l.iter().filter(|e| e.1.starts_with(b"stay")).count(), 50);
            }
        });
    });
    check(&d, &pin());
}

#[test]
fn a_pair_hides_its_change_until_it_is_whole() {
    // A name moves between two directories for ever; a reader that looks at both, twice, never sees
    // it in both or in neither.
    let (a, b) = (Dir::new(true), Dir::new(true));
    let (ha, hb) = (hash_name(KEY, b"a"), hash_name(KEY, b"b"));
    add(&a, b"a", 50, 1, &pin());
    let turns = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..20_000u64 {
                let g = pin();
                let mut p = LockedPair::lock((Ino(1), &a, ha), (Ino(2), &b, hb), &g);
                assert!(p.has_space(|| 0));
                p.raise();
                turns.fetch_add(1, SeqCst);
                let (from, to, hf, ht, nf, nt) = if i % 2 == 0 {
                    (p.a(), p.b(), ha, hb, b"a", b"b")
                } else {
                    (p.b(), p.a(), hb, ha, b"b", b"a")
                };
                match to.find(ht, nt) {
                    Some(e) => e.set_target(Some((Ino(50), FileKind::File))),
                    None => {
                        let mut e = Entry::new(0, nt, Ino(50), FileKind::File, 1, 2, 1);
                        e.cookie = to.place(ht, nt).1.unwrap();
                        to.insert(e);
                    }
                }
                let e = from.find(hf, nf).unwrap();
                from.remove(e, 3, 0);
                p.a().stamp(3, 1);
                p.b().stamp(3, 1);
                turns.fetch_add(1, SeqCst);
                drop(p);
            }
            turns.store(u64::MAX, SeqCst);
        });
        s.spawn(|| {
            let mut judged = 0u64;
            while turns.load(SeqCst) != u64::MAX {
                let g = pin();
                let before = turns.load(SeqCst);
                let (x, y) = (get(&a, b"a", &g), get(&b, b"b", &g));
                if turns.load(SeqCst) == before {
                    assert!(x.is_some() != y.is_some(), "{x:?} {y:?}");
                    judged += 1;
                }
            }
            let _ = judged;
        });
    });
}

/// A split leaves the sequence of its leaf where the next taking of the directory would leave it: a
/// reader that looked in between took both for one.
#[test]
fn a_leaf_gets_another_sequence_when_its_table_is_taken_out() {
    let d = Dir::new(true);
    let g = pin();
    let names: Vec<_> = (0..400).map(|n| format!("n{n}").into_bytes()).collect();
    names.iter().for_each(|name| assert!(add(&d, name, 20, 1, &g)));
    let root = d.root().unwrap();
    let split: Vec<_> = root.leaves.iter().map(|l| l.split_seq.load(Relaxed)).collect();
    assert!(root.leaves.iter().all(|l| matches!(l.head(), Head::Table(_))));
    // Names of the running epoch: nothing is taken that the store may remember.
    names.iter().for_each(|name| assert!(del(&d, name, 1, &g)));
    assert_eq!(d.generation.load(Relaxed), 0);
    d.tidy(1, &g);
    for (leaf, split) in root.leaves.iter().zip(split) {
        assert!(matches!(leaf.head(), Head::Chain(_)));
        assert_ne!(leaf.split_seq.load(Relaxed), split);
    }
    check(&d, &g);
}

/// A reader that had looked at the chain before a bucket came into memory, and at the mark of
/// completeness behind it, took names that exist for absent and left them out of listings: the load
/// changes no sequence.
#[test]
fn no_name_is_missed_while_its_bucket_comes_into_memory() {
    const ROUNDS: usize = 5000;
    // All in one leaf: eleven that are in memory, which a reader walks over, and one that the store
    // has.
    let mut names = (0..).map(|i| format!("n{i}").into_bytes()).filter(|n| hash_name(KEY, n) >> 59 == 0);
    let early: Vec<_> = names.by_ref().take(11).collect();
    let late = names.next().unwrap();
    let hash = hash_name(KEY, &late);
    let bucket = Bucket {
        lowest: 0,
        highest: (1 << 59) - 1,
        entries: &[(hash, Ino(7), FileKind::File, late.as_slice())],
    };
    let dirs: Vec<Dir> = (0..ROUNDS).map(|_| Dir::new(false)).collect();
    for d in &dirs {
        early.iter().for_each(|n| assert!(add(d, n, 20, 1, &pin())));
    }
    // What each of the two has come to.
    let rounds = [AtomicU32::new(0), AtomicU32::new(0)];
    let meet = |me: usize, round: usize| {
        rounds[me].store(round as u32 + 1, SeqCst);
        let mut turn = 0;
        while rounds[1 - me].load(SeqCst) <= round as u32 {
            relax(&mut turn);
        }
    };
    let mut missed = [0, 0];
    std::thread::scope(|s| {
        s.spawn(|| {
            for (i, d) in dirs.iter().enumerate() {
                meet(0, i);
                let g = pin();
                // Readers are at it by now.
                (0..i % 64).for_each(|_| schedule::spin_loop());
                d.install(hash, &bucket, d.load_stamp(), &g);
            }
        });
        for (i, d) in dirs.iter().enumerate() {
            meet(1, i);
            let g = pin();
            let mut turn = 0;
            let found = loop {
                let found = if i % 2 == 0 {
                    match d.lookup(hash, &late, &g) {
                        Found::NotLoaded => None,
                        found => Some(matches!(found, Found::Name(..))),
                    }
                } else {
                    let mut out = Vec::new();
                    match d.list_leaf(2, &mut out, &g) {
                        Step::NotLoaded(_) => None,
                        _ => Some(out.len() == 12),
                    }
                };
                match found {
                    Some(found) => break found,
                    None => turn += 1,
                }
                if turn > 10_000 {
                    schedule::yield_now();
                }
            };
            missed[i % 2] += u32::from(!found);
        }
    });
    assert_eq!(missed, [0, 0], "lookups and listings that missed a name");
}

/// A filter that never says no would be slow, and one that says no of a name that is there would
/// have the name made twice.
#[test]
fn a_filter_never_lacks_a_name_that_is_there_and_mostly_one_that_is_not() {
    let d = Dir::new(true);
    let g = &crossbeam_epoch::pin();
    let name = |n: u64| format!("name{n}").into_bytes();
    let lacks = |n: u64| d.lacks(hash_name(KEY, &name(n)), g);
    // Names come and go, so that filters are made anew, and leaves split meanwhile.
    for n in 0..20_000 {
        assert!(add_in(&d, &name(n), n + 1, || 1, g));
        if n % 4 != 0 && n > 100 {
            assert!(del(&d, &name(n - 100), 1, g) || (n - 100) % 4 == 0);
        }
    }
    let there: Vec<bool> = (0..20_000).map(|n| get(&d, &name(n), g).is_some()).collect();
    assert!((4_000..12_000).contains(&there.iter().filter(|t| **t).count()));
    assert!((0..20_000).all(|n| !(there[n as usize] && lacks(n))), "a name that is there");
    let said = (20_000..40_000).filter(|n| lacks(*n)).count();
    assert!(said > 10_000, "of 20,000 names that are not there {said} were known to be missing");
}
