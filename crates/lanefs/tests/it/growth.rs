//! Files that grow and are cut by several threads while others make them durable: at any instant of
//! that the machine may stop, and what is found then has no zeros in place of what was appended
//! (SEMANTICS F9).

use crate::instants::{Recorded, read};
use lanefs::{File, Fs, OpenOptions};
use lanefs_sync::random::Rng;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The last one is handed over as by a kernel, in any order.
const FILES: usize = 3;
const PIECES: [usize; 5] = [150_000, 5_000, 70_000, 300_000, 20_000];

fn path(n: usize) -> String {
    format!("/log{n}")
}

/// No byte is zero.
fn bytes(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|i| (i % 255) as u8 + 1).collect()
}

fn write_back(file: &File, bytes: &[u8], at: u64) {
    let mut done = 0;
    while done < bytes.len() {
        done += file.write_back_at(&bytes[done..], at + done as u64).unwrap();
    }
}

/// Appends `turns` pieces, and cuts the file when it has become long.
fn grow(fs: &Fs, n: usize, turns: usize, on_its_way: &Mutex<()>) {
    let mut rng = Rng::at(n as u64);
    let file = fs.open(path(n), OpenOptions::new().write(true).create(true)).unwrap();
    let mut size = 0;
    for _ in 0..turns {
        if size > [3 << 20, 400_000, 1 << 20][n] {
            file.set_len(0).unwrap();
            size = 0;
        }
        let len = PIECES[(rng.bits() % PIECES.len() as u64) as usize];
        let piece = bytes(size, len);
        if n < FILES - 1 {
            file.write_all_at(&piece, size).unwrap();
        } else {
            // The second half before the first, as two threads do that serve a kernel.
            let (first, second) = piece.split_at(len / 2);
            let _first = on_its_way.lock().unwrap();
            write_back(&file, second, size + first.len() as u64);
            std::thread::yield_now();
            write_back(&file, first, size);
        }
        size += len as u64;
    }
}

/// Makes one file after the other durable, and names, until nobody grows any more.
fn sync(fs: &Fs, growing: &AtomicUsize) {
    let mut turn = 0;
    while growing.load(Ordering::Relaxed) > 0 {
        turn += 1;
        fs.create(format!("/other{}", turn % 9)).unwrap();
        match turn % 5 {
            4 => fs.volume().sync().unwrap(),
            n => {
                let file = fs.open(path(n % FILES), OpenOptions::new().write(true));
                file.map_or(Ok(()), |f| if n == 3 { f.sync_data() } else { f.sync_all() }).unwrap();
            }
        }
    }
}

fn files_grow_and_are_found(turns: usize, instants: u64, seed: u64) {
    let recorded = Recorded::new(64, |_| {});
    let (fs, on_its_way) = (&recorded.fs, Arc::new(Mutex::new(())));
    let way = Arc::clone(&on_its_way);
    fs.volume().await_handed_over(Some(Arc::new(move |_, _| drop(way.lock().unwrap()))));
    let growing = AtomicUsize::new(FILES);
    std::thread::scope(|s| {
        for n in 0..FILES {
            let (growing, way) = (&growing, &on_its_way);
            s.spawn(move || {
                grow(fs, n, turns, way);
                growing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        s.spawn(|| sync(fs, &growing));
        s.spawn(|| sync(fs, &growing));
    });
    fs.volume().await_handed_over(None);
    recorded.look(instants, seed, |found, _| {
        for n in 0..FILES {
            let Some(content) = read(found, &path(n))? else { continue };
            let wrong = content.iter().zip(bytes(0, content.len())).position(|(a, b)| *a != b);
            if let Some(at) = wrong {
                return Err(format!("byte {at} of {} of {}", content.len(), path(n)));
            }
        }
        Ok(())
    });
}

#[test]
fn files_that_grow_and_are_cut_are_found_without_zeros_at_any_instant() {
    for seed in 0..5 {
        files_grow_and_are_found(150, 60, seed);
    }
}

#[test]
#[ignore = "minutes: see docs/TESTING.md"]
fn files_that_grow_and_are_cut_are_found_without_zeros_for_long() {
    for seed in 5..200 {
        files_grow_and_are_found(150, 60, seed);
    }
}
