//! The store's own costs, on devices of memory:
//! `cargo run --release -p lanefs-store --example store_figures`.

mod births;

use births::{AnyResult, birth};
use lanefs_store::device::{Device, MemoryDevice, Recorder};
use lanefs_store::*;
use std::sync::Arc;
use std::time::Instant;

fn attrs(size: u64) -> Attrs {
    Attrs { mode: libc::S_IFREG | 0o644, size, ..Attrs::default() }
}

fn write(ino: u64, page: u64, pages: u64, block: &Block) -> InodeUpdate {
    let pages = (page..page + pages).map(|p| (p, Box::new(block.clone()).into())).collect();
    InodeUpdate {
        ino: Ino(ino),
        attrs: attrs(1 << 40),
        rights_logged: false,
        size_only: false,
        xattrs: None,
        pages,
        reserved: 0,
        more: false,
        life: Default::default(),
    }
}

/// CPU time of the process: on a busy machine it says more than the clock.
fn cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn make(bytes: u64) -> AnyResult<Arc<dyn Device>> {
    let d: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes)?);
    Store::format(std::slice::from_ref(&d), &FormatOptions { mlogs: 2, ..Default::default() })?;
    Ok(d)
}

/// Makes so many files, from number 1000 on.
fn births(s: &Store, n: u64) -> AnyResult<()> {
    births::births(s, 1000..1000 + n)
}

fn main() -> AnyResult<()> {
    let block = Block::zeroed();

    // One durable 4 KiB overwrite, alone and in two threads on files of their own.
    let d = make(2 << 30)?;
    let (s, _) = Store::open(vec![d.clone()], &OpenOptions::default())?;
    births(&s, 8)?;
    for threads in [1u64, 2] {
        let n = 50_000;
        let (began, cpu) = (Instant::now(), cpu_ns());
        std::thread::scope(|scope| {
            for t in 0..threads {
                let (s, block) = (&s, &block);
                scope.spawn(move || {
                    for i in 0..n {
                        let inodes = vec![write(1000 + t, i % 256, 1, block)];
                        let tx =
                            Transaction { lane: t as usize, durable: true, inodes, ..Transaction::default() };
                        if let Err(e) = s.submit(tx) {
                            panic!("{e}");
                        }
                    }
                });
            }
        });
        let ns = began.elapsed().as_nanos() as u64 / (n * threads);
        let cpu = (cpu_ns() - cpu) / (n * threads);
        println!("durable 4 KiB write, {threads} threads: {ns} ns each, {cpu} ns of CPU");
    }
    drop(s);

    // What it costs the device.
    let recorder = Recorder::new();
    let image = MemoryDevice::new(256 << 20)?;
    let d: Arc<dyn Device> = Arc::new(recorder.wrap(image));
    Store::format(std::slice::from_ref(&d), &FormatOptions { mlogs: 1, ..Default::default() })?;
    let (s, _) = Store::open(vec![d], &OpenOptions::default())?;
    births(&s, 8)?;
    for (what, groups, pages) in [
        ("4 KiB overwrite + fsync", Vec::new(), 1),
        ("create + 4 KiB + fsync", birth(9, 5000), 1),
        ("64 KiB overwrite + fsync", Vec::new(), 16),
    ] {
        let ino = if groups.is_empty() { 1001 } else { 5000 };
        let tx = |g| {
            let inodes = vec![write(ino, 0, pages, &block)];
            Transaction { durable: true, groups: g, inodes, ..Transaction::default() }
        };
        s.submit(tx(Vec::new()))?;
        let before = recorder.counters();
        s.submit(tx(groups))?;
        let c = recorder.counters();
        println!(
            "{what}: {} bytes, {} trips, {} flushes",
            c.bytes_written - before.bytes_written,
            c.trips - before.trips,
            c.flushes - before.flushes
        );
    }
    drop(s);

    // Names: fold and checkpoint of 100 000 creates.
    let d = make(2 << 30)?;
    let (s, _) = Store::open(vec![d.clone()], &OpenOptions::default())?;
    let (began, cpu) = (Instant::now(), cpu_ns());
    births(&s, 100_000)?;
    let cpu = (cpu_ns() - cpu) / 1_000_000;
    println!("100 000 creates: commit, fold and checkpoint in {:?}, {cpu} ms of CPU", began.elapsed());
    drop(s);
    let (s, _) = Store::open(vec![d], &OpenOptions::default())?;
    let began = Instant::now();
    for i in 0..10_000 {
        s.load_inode(Ino(1000 + i))?;
    }
    println!("cold inode load: {} ns each", began.elapsed().as_nanos() / 10_000);
    drop(s);

    // Recovery of 1 GiB of log: 128 Ki durable writes of one page each, and 1 GiB in writes of 128
    // KiB.
    for (what, n, pages) in [("4 KiB", 131_072u64, 1u64), ("128 KiB", 8192, 32)] {
        let d = make(3 << 30)?;
        let (s, _) = Store::open(vec![d.clone()], &OpenOptions::default())?;
        births(&s, 64)?;
        for i in 0..n {
            let inodes = vec![write(1000 + i % 64, i / 64 * pages, pages, &block)];
            s.submit(Transaction { lane: i as usize, durable: true, inodes, ..Transaction::default() })?;
        }
        drop(s);
        let (began, cpu) = (Instant::now(), cpu_ns());
        let (s, r) = Store::open(vec![d], &OpenOptions::default())?;
        println!(
            "recovery of {n} durable writes of {what}: {:?}, {} ms of CPU ({} log blocks, {} updates)",
            began.elapsed(),
            (cpu_ns() - cpu) / 1_000_000,
            r.blocks_scanned,
            r.inode_updates
        );
        let began = Instant::now();
        let mut b = vec![Block::clone(&block); 256];
        let mut read = 0u64;
        for ino in 1000..1064 {
            for first in (0..n / 64 * pages).step_by(256) {
                let mut p: Vec<PageRead<'_>> =
                    b.iter_mut().map(|block| PageRead { block, hole: false }).collect();
                s.read_pages(Ino(ino), first, &mut p)?;
                read += p.iter().filter(|p| !p.hole).count() as u64;
            }
        }
        let rate = (read * 4096) as f64 / began.elapsed().as_secs_f64() / 1e9;
        println!("reading it back, verified: {rate:.2} GB/s");
    }
    Ok(())
}
