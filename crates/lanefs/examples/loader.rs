//! Many threads load a tree of files, as a build or an unpacking does, and read it again.
//!
//!     cargo run --release -p lanefs --example loader -- [THREADS [FILES]]
//!
//! Each thread has folders of its own, so their operations commute: no two of them write a common
//! cache line.

use lanefs::{Fs, OpenOptions, Result, Volume};
use std::time::Instant;

fn content(thread: usize, n: usize) -> Vec<u8> {
    format!("{thread}/{n}\n").repeat(1 + n % 200).into_bytes()
}

fn load(fs: &Fs, thread: usize, files: usize) -> Result<()> {
    for n in 0..files {
        let dir = format!("/part{thread}/group{}", n / 100);
        if n % 100 == 0 {
            fs.mkdir_all(&dir, 0o755)?;
        }
        let file =
            fs.open(format!("{dir}/file{n}"), OpenOptions::new().write(true).create_new(true).mode(0o644))?;
        file.write_all_at(&content(thread, n), 0)?;
    }
    Ok(())
}

fn check(fs: &Fs, thread: usize, files: usize) -> Result<usize> {
    let mut right = 0;
    for n in 0..files {
        let path = format!("/part{thread}/group{}/file{n}", n / 100);
        right += usize::from(fs.read(&path)? == content(thread, n));
    }
    Ok(right)
}

/// Loads `files` files with each of `threads` threads; returns how many were read again as they
/// were written.
pub fn run(volume: &Volume, threads: usize, files: usize) -> Result<usize> {
    let each = |work: &(dyn Fn(&Fs, usize) -> Result<usize> + Sync)| -> Result<usize> {
        std::thread::scope(|s| {
            let all: Vec<_> = (0..threads)
                .map(|t| {
                    let fs = volume.fs();
                    s.spawn(move || work(&fs, t))
                })
                .collect();
            all.into_iter().map(|t| t.join().expect("a thread panicked")).sum()
        })
    };
    each(&|fs, t| load(fs, t, files).map(|()| 0))?;
    volume.sync()?; // all of it is durable now
    each(&|fs, t| check(fs, t, files))
}

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let threads =
        numbers.next().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let files = numbers.next().unwrap_or(20_000);
    let volume = Volume::in_memory(2 << 30)?;
    let start = Instant::now();
    let right = run(&volume, threads, files)?;
    println!(
        "{threads} threads, {right} files written and read again in {:.2} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
