//! Calls beside a close: what is acknowledged is found again, and what comes too late is refused.

use crate::common::*;
use lanefs_store::device::{HookedDevice, Kind, MemoryDevice};
use lanefs_store::*;
use std::sync::{Arc, mpsc};

type Hooked = HookedDevice<MemoryDevice>;

fn hooked() -> Arc<Hooked> {
    Arc::new(Hooked::new(MemoryDevice::new(4 << 20).unwrap()))
}

/// A volume with the files 20 and 21, of which the store has nothing in memory. Each lies in a
/// block of its own: the one is not read with the other.
fn two_files() -> (Dev, Arc<Hooked>, Arc<Store>) {
    let hooks = hooked();
    let d: Dev = hooks.clone();
    let o = FormatOptions { packed_inodes: false, ..format_options() };
    Store::format(std::slice::from_ref(&d), &o).unwrap();
    let (s, _) = open(&d);
    let g = [group(1, 1, &[new_file(20), set(b"a", 20, 0)]), group(1, 2, &[new_file(21), set(b"b", 21, 0)])];
    let files = (20..22).map(|ino| update(ino, 4096, vec![(0, page(ino))])).collect();
    s.submit(tx(true, g.concat(), files)).unwrap();
    fold(&s, 1, g.to_vec());
    s.close().unwrap();
    drop(s);
    let (s, _) = open(&d);
    (d, hooks, s)
}

/// What the durable write of page 0 of file 20 answered must be what a new open finds.
fn judge(d: &Dev, s: Arc<Store>, answer: Result<()>) {
    drop(s);
    let (s, _) = open(d);
    let found = read(&s, 20, 0).unwrap();
    match answer {
        Ok(()) => assert!(found.0 == page(5).0, "acknowledged beside a close, and lost"),
        Err(e) => assert!(e.errno() == libc::EIO && found.0 == page(20).0),
    }
}

fn rewrite(s: &Store) -> Result<()> {
    s.submit(tx(true, vec![], vec![update(20, 4096, vec![(0, page(5))])]))
}

#[test]
fn a_write_that_began_before_a_close_and_ends_behind_it_is_refused_or_found() {
    let (d, hooks, s) = two_files();
    let closer = s.clone();
    hooks.before(Kind::Read, move || closer.close());
    let answer = rewrite(&s);
    assert!(hooks.is_done(Kind::Read), "nothing was read");
    judge(&d, s, answer);
}

#[test]
fn a_write_that_ends_between_the_position_and_the_slot_of_a_close_is_refused_or_found() {
    let (d, hooks, s) = two_files();
    // Something for the close to write.
    s.submit(tx(false, vec![], vec![update(21, 4096, vec![(0, page(6))])])).unwrap();
    let (inside, is_inside) = mpsc::channel();
    let (closing, is_closing) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel::<()>();
    hooks.before(Kind::Read, move || {
        inside.send(()).unwrap();
        is_closing.recv().unwrap();
        Ok(())
    });
    let answer = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let r = rewrite(&s);
            drop(done);
            r
        });
        is_inside.recv().unwrap();
        // The first write of a close is behind its position. It waits for the other call's end.
        hooks.before(Kind::Write, move || {
            closing.send(()).unwrap();
            is_done.recv().unwrap_err();
            Ok(())
        });
        s.close().unwrap();
        writer.join().unwrap()
    });
    judge(&d, s, answer);
}

/// What another thread writes of the inode, not durably, is part of what an fsync promises.
#[test]
fn an_fsync_waits_for_what_another_thread_writes_of_the_inode() {
    let hooks = hooked();
    let d: Dev = hooks.clone();
    Store::format(std::slice::from_ref(&d), &format_options()).unwrap();
    let (s, _) = open(&d);
    let g = group(s.info().last_epoch + 1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    let (go, gate) = mpsc::channel::<()>();
    let (reached, here) = mpsc::channel();
    hooks.before(Kind::Write, move || {
        reached.send(()).unwrap();
        let _ = gate.recv();
        Ok(())
    });
    let over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|t| {
        t.spawn(|| {
            let u = update(20, 2 * 4096, vec![(1, page(2))]);
            s.submit(Transaction { lane: 1, ..tx(false, Vec::new(), vec![u]) }).unwrap();
        });
        here.recv().unwrap();
        t.spawn(|| {
            s.submit(tx(true, Vec::new(), vec![update(20, 3 * 4096, vec![(2, page(3))])])).unwrap();
            over.store(true, order);
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        let early = over.load(order);
        go.send(()).unwrap();
        assert!(!early, "page 1 is not on the device");
    });
    assert!(over.load(order));
}
