//! What it brings to have data lie together that dies together, counted in blocks, on a device of
//! memory: `cargo run --release -p lanefs-store --example write_lives`.
//!
//! One thread does everything, and checkpoints come by what was written, not by the clock: two runs
//! differ by some 0.01 at most.

mod births;

use births::{AnyResult, births};
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of the volume.
const VOLUME: u64 = 512 << 20;
/// Pages that are written between two checkpoints.
const BETWEEN: u64 = 4096;

/// A volume that is written to.
struct Volume {
    store: Arc<Store>,
    block: Block,
    /// Pages since the last checkpoint.
    since: u64,
}

impl Volume {
    /// Makes one with so many files, the first of which has the number [`FIRST`].
    fn new(files: u64) -> AnyResult<Volume> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(VOLUME)?);
        let format = FormatOptions { mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format)?;
        let (store, _) = Store::open(vec![device], &OpenOptions::default())?;
        births(&store, FIRST..FIRST + files)?;
        Ok(Volume { store, block: *Block::zeroed(), since: 0 })
    }

    /// Does what the thread of a mounted volume does between two writes.
    fn look_after(&mut self) -> AnyResult<()> {
        let p = self.store.pressure();
        if p.free_segments + p.pending_segments < p.clean_below {
            self.store.clean(p.clean_to)?;
        }
        if self.since >= BETWEEN || p.free_segments < p.checkpoint_below {
            let epoch = self.store.folded_epoch();
            self.store.checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() }))?;
            self.since = 0;
        }
        Ok(())
    }

    fn write(&mut self, ino: u64, pages: std::ops::Range<u64>, life: Life, durable: bool) -> AnyResult<()> {
        self.look_after()?;
        let n = pages.end - pages.start;
        self.since += n;
        if !self.store.reserve(0, n) {
            return Err(format!("no space is promised for {n} pages").into());
        }
        let pages = pages.map(|p| (p, Box::new(self.block.clone()).into())).collect();
        let attrs = Attrs { mode: libc::S_IFREG | 0o644, size: 1 << 40, ..Attrs::default() };
        let (ino, size_only, xattrs, reserved, more) = (Ino(ino), false, None, n as u32, false);
        let rights_logged = false;
        let update =
            InodeUpdate { ino, attrs, rights_logged, size_only, xattrs, pages, reserved, more, life };
        Ok(self.store.submit(Transaction { durable, inodes: vec![update], ..Transaction::default() })?)
    }

    /// Gives back all that a file has.
    fn cut(&self, ino: u64) -> AnyResult<()> {
        Ok(self.store.unmap(0, Ino(ino), 0..1 << 20, None)?)
    }

    /// Does something and tells what was written for it.
    fn counted(&mut self, what: &str, f: impl FnOnce(&mut Volume) -> AnyResult<()>) -> AnyResult<()> {
        let before = self.store.report();
        f(self)?;
        let after = self.store.report();
        let (was, is) = (before.written, after.written);
        let blocks = |a: u64, b: u64| (b - a) >> BLOCK_SHIFT;
        let (data, all) = (blocks(was.data_bytes, is.data_bytes), blocks(was.total_bytes, is.total_bytes));
        let amplification = all as f64 / data as f64;
        println!(
            "{what}: {data} blocks of data, {} moved, {} segments cleaned, {all} written: {amplification:.2}",
            blocks(was.moved_bytes, is.moved_bytes),
            after.cleaner.segments - before.cleaner.segments,
        );
        Ok(())
    }
}

const BLOCK_SHIFT: u32 = BLOCK_SIZE.trailing_zeros();
const FIRST: u64 = 1000;

/// Half of what is written dies soon, in files of `few` pages each of which is made durable; the
/// other half stays, in files of `many` pages. The volume is as full as asked.
fn lives(percent: u64, (few, many): (u64, u64), hints: bool) -> AnyResult<()> {
    /// Pages of all short-lived files: two per cent of the volume.
    const SHORT: u64 = 2560;
    let (shorts, longs) = (SHORT / few, (VOLUME >> BLOCK_SHIFT) / many);
    let mut v = Volume::new(shorts + longs)?;
    let (short_life, long_life) = if hints { (Life::Short, Life::Long) } else { (Life::Usual, Life::Usual) };
    let mut short: VecDeque<u64> = (FIRST..FIRST + shorts).collect();
    for ino in &short {
        v.write(*ino, 0..few, short_life, true)?;
    }
    let total = v.store.space().total;
    let mut kept = 0;
    while v.store.space().free > total * (100 - percent) / 100 {
        v.write(FIRST + shorts + kept, 0..many, long_life, true)?;
        kept += 1;
    }
    let mut rng = Rng::at(7);
    let mut churn = |v: &mut Volume, turns: u64| -> AnyResult<()> {
        for turn in 1..=turns {
            let Some(oldest) = short.pop_front() else { return Ok(()) };
            v.cut(oldest)?;
            v.write(oldest, 0..few, short_life, true)?;
            short.push_back(oldest);
            if turn % (many / few) == 0 {
                let any = FIRST + shorts + rng.below(kept);
                v.cut(any)?;
                v.write(any, 0..many, long_life, true)?;
            }
        }
        Ok(())
    };
    let turns = (VOLUME >> BLOCK_SHIFT) / (2 * few);
    churn(&mut v, turns)?;
    let said = if hints { "said" } else { "not said" };
    v.counted(&format!("lives {said}, files of {few} and {many} pages, {percent} % full"), |v| {
        churn(v, 3 * turns)
    })
}

/// Of a file that fills the volume nine of ten writes go to a tenth of the pages.
fn skewed(percent: u64) -> AnyResult<()> {
    let mut v = Volume::new(1)?;
    let pages = v.store.space().total * percent / 100 / 100 * 100;
    for first in (0..pages).step_by(100) {
        v.write(FIRST, first..first + 100, Life::Usual, false)?;
    }
    let mut rng = Rng::at(9);
    let mut overwrite = |v: &mut Volume, times: u64| -> AnyResult<()> {
        for _ in 0..times {
            let hundred = rng.below(pages / 100) * 100;
            let page = hundred + if rng.one_in(10) { 10 + rng.below(90) } else { rng.below(10) };
            v.write(FIRST, page..page + 1, Life::Usual, false)?;
        }
        Ok(())
    };
    overwrite(&mut v, 2 * pages)?;
    v.counted(&format!("skewed, {percent} % full"), |v| overwrite(v, 4 * pages))
}

fn main() -> AnyResult<()> {
    for files in [(16, 16), (4, 256)] {
        for percent in [50, 70, 85, 90] {
            for hints in [false, true] {
                lives(percent, files, hints)?;
            }
        }
    }
    for percent in [50, 70, 85, 90] {
        skewed(percent)?;
    }
    Ok(())
}
