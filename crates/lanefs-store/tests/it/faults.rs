//! Devices that fail once while a call is under way: the call says so, and nothing that was there
//! before is gone.

use crate::common::*;
use lanefs_store::device::{Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan};
use lanefs_store::*;
use std::sync::Arc;

/// A read that fails while a new tail displaces the old one must not take the old one along.
#[test]
fn a_displaced_tail_survives_a_map_node_that_cannot_be_read() {
    const TAIL: u64 = 600;
    let d = fresh(16 << 20);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    // Enough pages for a map of several nodes.
    let mut pages: Vec<_> = (0..150).chain(520..530).map(|p| (p, page(p))).collect();
    let mut tail = Block::zeroed();
    tail.0[..100].copy_from_slice(&page(7).0[..100]);
    pages.push((TAIL, tail.clone()));
    s.submit(tx(true, g.clone(), vec![update(20, TAIL * 4096 + 100, pages)])).unwrap();
    fold(&s, 1, vec![g]);
    s.close().unwrap();
    drop(s);
    let image = MemoryImage::capture(&*d).unwrap();
    let mut failed = 0;
    for nth in 0.. {
        let faulty = Arc::new(FaultyDevice::<MemoryDevice>::new(image.fork().unwrap(), Plan::none()));
        let d: Dev = faulty.clone();
        let (s, _) = open(&d);
        faulty.set_plan(Plan::none().nth(Kind::Read, nth, Fault::Error(libc::EIO)));
        let extend = || {
            let mut b = Block::zeroed();
            b.0[..50].fill(9);
            tx(true, vec![], vec![update(20, 1000 * 4096 + 50, vec![(1000, b)])])
        };
        let first = s.submit(extend());
        if faulty.fired().is_empty() {
            first.unwrap();
            break;
        }
        assert!(matches!(first, Err(StoreError::Io { .. })), "read {nth}: {first:?}");
        failed += 1;
        assert!(read(&s, 20, TAIL).is_some_and(|b| b.0 == tail.0), "read {nth}: the tail is gone");
        s.submit(extend()).unwrap();
        assert!(read(&s, 20, TAIL).is_some_and(|b| b.0 == tail.0), "read {nth}: the tail is gone");
        drop(s);
        let (s, _) = open(&d);
        assert!(read(&s, 20, TAIL).is_some_and(|b| b.0 == tail.0), "read {nth}: the tail is gone for good");
        assert_eq!(read(&s, 20, 1000).unwrap().0[..51], *[&[9; 50][..], &[0]].concat());
    }
    assert!(failed >= 3, "{failed}");
}
