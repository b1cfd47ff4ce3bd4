//! Advisory locks: whole files, ranges, waiting.

use crate::{errno, root};
use lanefs::locks::Lock::{self, Exclusive, Shared};
use lanefs::locks::RangeLock;
use lanefs::{File, Fs, OpenOptions};
use std::sync::mpsc::channel;
use std::time::Duration;

fn open(fs: &Fs, path: &str) -> File {
    fs.open(path, OpenOptions::new().read(true).write(true).create(true)).unwrap()
}

fn held(range: std::ops::Range<u64>, kind: Lock) -> Option<RangeLock> {
    Some(RangeLock { range, kind })
}

#[test]
fn whole_files_are_locked_by_handle() {
    let (fs, _dev) = root(16);
    let (a, b) = (open(&fs, "/f"), open(&fs, "/f"));
    a.lock(Shared, false).unwrap();
    b.lock(Shared, false).unwrap();
    assert_eq!(errno(a.lock(Exclusive, false)), libc::EWOULDBLOCK);
    // Turning a lock into another kind lets go of it first, as flock does: a has none now.
    b.lock(Exclusive, false).unwrap();
    assert_eq!(errno(a.lock(Shared, false)), libc::EWOULDBLOCK);
    drop(b);
    a.lock(Exclusive, false).unwrap();
    // Ranges are another matter.
    open(&fs, "/f").lock_range(0..10, Exclusive, false).unwrap();
}

#[test]
fn ranges_exclude_split_and_join() {
    let (fs, _dev) = root(16);
    let (a, b) = (open(&fs, "/f"), open(&fs, "/f"));
    a.lock_range(100..200, Exclusive, false).unwrap();
    assert_eq!(errno(b.lock_range(199..300, Shared, false)), libc::EAGAIN);
    b.lock_range(200..300, Shared, false).unwrap();
    b.lock_range(0..100, Exclusive, false).unwrap();
    assert_eq!(b.test_range(0..u64::MAX, Shared), held(100..200, Exclusive));
    assert_eq!(a.test_range(0..u64::MAX, Shared), held(0..100, Exclusive));
    assert_eq!(a.test_range(250..260, Shared), None, "shared ones do not mind each other");
    assert_eq!(a.test_range(250..260, Exclusive), held(200..300, Shared));
    // A hole in the middle, and one half turned into the other kind.
    a.unlock_range(140..160);
    b.lock_range(140..160, Exclusive, false).unwrap();
    a.lock_range(100..140, Shared, false).unwrap();
    assert_eq!(b.test_range(0..u64::MAX, Exclusive), held(100..140, Shared));
    assert_eq!(b.test_range(140..u64::MAX, Exclusive), held(160..200, Exclusive));
    // Neighbours become one.
    b.unlock_range(0..u64::MAX);
    a.lock_range(140..160, Shared, false).unwrap();
    a.lock_range(160..200, Shared, false).unwrap();
    assert_eq!(b.test_range(0..u64::MAX, Exclusive), held(100..200, Shared));
    drop(a);
    assert_eq!(b.test_range(0..u64::MAX, Exclusive), None, "they go with the handle");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (fs, _dev) = root(16);
    drop(open(&fs, "/f"));
    let reader = fs.open("/f", OpenOptions::new().read(true)).unwrap();
    let writer = fs.open("/f", OpenOptions::new().write(true).read(false)).unwrap();
    assert_eq!(errno(reader.lock_range(0..1, Exclusive, false)), libc::EBADF);
    assert_eq!(errno(writer.lock_range(0..1, Shared, false)), libc::EBADF);
    assert_eq!(errno(writer.lock_range(5..5, Exclusive, false)), libc::EINVAL);
    reader.lock_range(0..1, Shared, false).unwrap();
    writer.lock_range(1..2, Exclusive, false).unwrap();
    // Other files are other files.
    open(&fs, "/g").lock_range(0..10, Exclusive, false).unwrap();
}

#[test]
fn a_waiter_gets_it_when_it_is_given_back() {
    let (fs, _dev) = root(16);
    let (a, b, c) = (open(&fs, "/f"), open(&fs, "/f"), open(&fs, "/f"));
    a.lock_range(0..100, Exclusive, true).unwrap();
    let (told, got) = channel();
    std::thread::scope(|s| {
        for (n, file) in [(1, &b), (2, &c)] {
            let told = told.clone();
            s.spawn(move || {
                file.lock_range(50 * (n - 1)..50 * n, Exclusive, true).unwrap();
                told.send(n).unwrap();
            });
        }
        assert!(got.recv_timeout(Duration::from_millis(50)).is_err(), "somebody got what a holds");
        a.unlock_range(50..100);
        assert_eq!(got.recv(), Ok(2));
        assert!(got.recv_timeout(Duration::from_millis(50)).is_err());
        a.lock_range(0..50, Shared, false).unwrap();
        drop(a);
        assert_eq!(got.recv(), Ok(1));
    });
}

#[test]
fn waiting_in_a_circle_is_refused() {
    let (fs, _dev) = root(16);
    // a wants what b holds, b what c holds, c what a holds.
    let (a, b, c) = (&open(&fs, "/f"), &open(&fs, "/f"), &open(&fs, "/f"));
    a.lock_range(0..1, Exclusive, false).unwrap();
    b.lock_range(1..2, Exclusive, false).unwrap();
    c.lock_range(2..3, Exclusive, false).unwrap();
    // Whoever closes the circle is refused; who that is depends on the order they come in. When it
    // lets go, the others come through.
    let refused = std::thread::scope(|s| {
        let waits = [(a, 1..2), (b, 2..3), (c, 0..1)].map(|(file, range)| {
            s.spawn(move || {
                let got = file.lock_range(range, Exclusive, true);
                file.unlock_range(0..u64::MAX);
                got.map_err(|e| e.errno())
            })
        });
        waits.map(|w| w.join().unwrap()).into_iter().filter_map(Result::err).collect::<Vec<_>>()
    });
    assert_eq!(refused, [libc::EDEADLK]);
}

#[test]
fn many_threads_count_under_a_range_lock() {
    let (fs, _dev) = root(16);
    open(&fs, "/f").write_all_at(&0_u64.to_le_bytes(), 8).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let file = open(&fs, "/f");
                for _ in 0..500 {
                    file.lock_range(8..16, Exclusive, true).unwrap();
                    let mut n = [0; 8];
                    file.read_exact_at(&mut n, 8).unwrap();
                    file.write_all_at(&(u64::from_le_bytes(n) + 1).to_le_bytes(), 8).unwrap();
                    file.unlock_range(8..16);
                }
            });
        }
    });
    let mut n = [0; 8];
    open(&fs, "/f").read_exact_at(&mut n, 8).unwrap();
    assert_eq!(u64::from_le_bytes(n), 2000);
}
