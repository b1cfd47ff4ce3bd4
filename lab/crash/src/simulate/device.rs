//! A device with a volatile cache that breaks by chance, from a seed.
//!
//! # The fault model
//!
//! 1. A read, a write or a flush may fail with EIO. A failed write may have reached the cache in
//!    part. With a failed flush the device forgets a part of its cache, at once: what was read back
//!    before is not there any more (the lesson of fsync on Linux).
//! 2. A power cut may come between any two requests, and within a submission between two blocks:
//!    nothing after it is done. Of the cache any blocks survive, in any order, and one of them torn
//!    at any sectors. A death of the process keeps the cache.
//! 3. The blocks of a submission are done in any order, and a write or a flush may be answered up
//!    to two minutes late by the simulated clock. One thread waits for each answer; other threads
//!    run meanwhile in `schedule` only.
//! 4. A read may say that it succeeded and return another block of this device, or the right one
//!    with a bit flipped. The medium holds what it should, and the next read of the block is right:
//!    nothing may be lost by it.
//! 5. Only with `lies`: a write is answered and lost, goes to a neighbouring block, arrives torn,
//!    or with a bit flipped; a read returns the wrong thing as in 4, or from then on always another
//!    block of this device, until the block is written again.

use crate::crash::image::{BLOCK, Image, Shared};
use lanefs_format::superblock::SUPERBLOCK_MAGIC;
use lanefs_lab_model::generate::Rng;
use lanefs_store::device::{Device, ReadReq, WriteReq};
use lanefs_store::{Result, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The rates at which things go wrong: once in so many requests; 0 for never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rates {
    /// EIO of a read.
    pub read: u64,
    /// EIO of a write.
    pub write: u64,
    /// EIO of a flush.
    pub flush: u64,
    /// A block read wrong once (4).
    pub misread: u64,
    /// A late answer (3).
    pub slow: u64,
    /// A lie (5).
    pub lies: u64,
    /// Requests until the power goes; 0 for never.
    pub cut: u64,
}

#[derive(Debug)]
struct State {
    durable: Image,
    /// The content that a read sees.
    view: Image,
    /// Volatile writes, in order.
    cache: Vec<(usize, Arc<Shared>)>,
    rng: Rng,
    rates: Rates,
    dead: bool,
    counts: BTreeMap<&'static str, u64>,
    /// Blocks of which the last read was wrong: the next is not.
    wrong: BTreeSet<usize>,
    /// Blocks in whose place another is read, until they are written.
    astray: BTreeMap<usize, usize>,
    /// By how many nanoseconds answers were late, together.
    late: u64,
    /// The lies that it told, in words.
    lies: Vec<String>,
    trace: u64,
}

/// Describes a block in words: by the magic and the kind of a node block.
fn kind_of(block: usize, bytes: &[u8; BLOCK]) -> String {
    let word = |at: usize| bytes[at..at + 8].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("block {block}, which begins with {} {}", word(0), word(8))
}

/// The device.
#[derive(Debug)]
pub struct SimDevice {
    name: String,
    blocks: usize,
    state: Mutex<State>,
}

impl State {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
        self.note(what.len() as u64);
    }
    fn note(&mut self, word: u64) {
        self.trace = lanefs_sync::random::spread(self.trace.rotate_left(9) ^ word);
    }
    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }
    /// Counts one more request, and returns whether the power is off.
    fn off(&mut self) -> bool {
        if self.rates.cut > 0 {
            self.rates.cut -= 1;
            if self.rates.cut == 0 {
                self.dead = true;
                self.count("power cut within a call");
            }
        }
        self.dead
    }
    /// Another block than this one, of other content: half of the time a neighbour.
    fn other(&mut self, at: usize, blocks: usize) -> Option<usize> {
        let near = self.rng.one_in(2);
        let by = if near { 1 + self.rng.below(8) } else { self.rng.bits() } as usize % blocks;
        let other = if self.rng.one_in(2) { (at + by) % blocks } else { (at + blocks - by) % blocks };
        (self.view.block(other) != self.view.block(at)).then_some(other)
    }
    /// Reads this block into `to`, perhaps wrong.
    fn read(&mut self, at: usize, blocks: usize, to: &mut [u8]) {
        let from = self.astray.get(&at).copied().unwrap_or(at);
        to.copy_from_slice(self.view.block(from));
        let (misread, lies) = (self.rates.misread, self.rates.lies * 16);
        let told = if self.wrong.remove(&at) {
            None
        } else if self.happens(misread) {
            let kind = self.rng.below(2);
            self.wrong.insert(at);
            self.misread(at, blocks, kind, to)
        } else if self.happens(lies) {
            let kind = self.rng.below(3);
            self.misread(at, blocks, kind, to)
        } else {
            None
        };
        self.lies.extend(told);
    }
    /// Spoils what was read: with a bit flipped (0), with another block (1), with another block
    /// from now on (2). In words, what was done.
    fn misread(&mut self, at: usize, blocks: usize, kind: u64, to: &mut [u8]) -> Option<String> {
        if kind == 0 {
            self.count("bit flipped in a read");
            let bit = self.rng.below(BLOCK as u64 * 8) as usize;
            to[bit / 8] ^= 1 << (bit % 8);
            return Some(format!("bit {bit} flipped in a read of block {at}"));
        }
        let other = self.other(at, blocks)?;
        to.copy_from_slice(self.view.block(other));
        let what = kind_of(other, self.view.block(other));
        if kind == 1 {
            self.count("read misdirected once");
            return Some(format!("a read of block {at} returned {what}"));
        }
        self.count("reads misdirected for good");
        self.astray.insert(at, other);
        Some(format!("every read of block {at} returns {what}"))
    }
    /// Returns the block and the bytes that are written in place of these bytes to this block;
    /// `None` for nothing.
    fn lie(&mut self, at: usize, blocks: usize, b: &[u8; BLOCK]) -> Option<(usize, [u8; BLOCK])> {
        let mut bytes = *b;
        let (what, told, to) = match self.rng.below(4) {
            0 => ("write lost", "lost".into(), None),
            1 => {
                let to = (at + 1 + self.rng.below(3) as usize) % blocks;
                ("write misdirected", format!("misdirected to {to}"), Some(to))
            }
            2 => {
                let keep = self.rng.below(8) as usize * 512;
                bytes[keep..].copy_from_slice(&self.view.block(at)[keep..]);
                ("write torn", format!("torn after {keep} bytes"), Some(at))
            }
            _ => {
                let bit = self.rng.below(BLOCK as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                ("bit flipped in a write", format!("bit {bit} flipped"), Some(at))
            }
        };
        self.count(what);
        self.lies.push(format!("{told}: {}", kind_of(at, b)));
        to.map(|to| (to, bytes))
    }
    /// A write or a flush that may be answered late.
    fn answer(&mut self) {
        let slow = self.rates.slow;
        if self.happens(slow) {
            self.count("answered late");
            self.late += self.rng.below(120_000_000_000);
        }
    }
    fn put(&mut self, block: usize, bytes: Arc<Shared>) {
        self.astray.remove(&block);
        self.view.put_shared(block, bytes.clone());
        self.cache.push((block, bytes));
    }
    /// Lets a random part of the cache become durable and forgets the rest.
    fn write_back_some(&mut self) {
        let mut cache = std::mem::take(&mut self.cache);
        if cache.len() > 1 && self.rng.one_in(2) {
            self.count("writes reordered");
            for i in (1..cache.len()).rev() {
                cache.swap(i, self.rng.below(i as u64 + 1) as usize);
            }
        }
        let keep = self.rng.below(5);
        let torn =
            (!cache.is_empty() && self.rng.one_in(2)).then(|| self.rng.below(cache.len() as u64) as usize);
        for (i, (block, bytes)) in cache.into_iter().enumerate() {
            if torn == Some(i) {
                let sectors = self.rng.bits() as u8;
                self.durable.put(block, bytes.bytes(), sectors);
                self.count("write torn by a crash");
            } else if keep == 4 || self.rng.below(4) < keep {
                self.durable.put_shared(block, bytes);
            }
        }
        self.view = self.durable.clone();
    }
}

fn eio(what: &'static str, offset: u64) -> StoreError {
    StoreError::Io { device: "simulated".into(), what, offset, message: "planned".into(), errno: libc::EIO }
}

impl SimDevice {
    /// Device number `n`, which holds `image`.
    pub fn new(image: Image, blocks: usize, seed: u64, n: usize) -> SimDevice {
        let state = State {
            durable: image.clone(),
            view: image,
            cache: Vec::new(),
            rng: Rng::new(seed),
            rates: Rates::default(),
            dead: false,
            counts: BTreeMap::new(),
            wrong: BTreeSet::new(),
            astray: BTreeMap::new(),
            late: 0,
            lies: Vec::new(),
            trace: seed,
        };
        SimDevice { name: format!("simulated {n}"), blocks, state: Mutex::new(state) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on things go wrong like this; a power cut is over.
    pub fn set_rates(&self, rates: Rates) {
        let mut s = self.lock();
        (s.rates, s.dead) = (rates, false);
    }

    /// The process died: nothing is lost of what the device has.
    pub fn process_death(&self) {
        let mut s = self.lock();
        let what = if s.dead { "process death within a call" } else { "process death" };
        s.count(what);
    }

    /// The power went: the cache is lost but for a part.
    pub fn power_loss(&self) {
        let mut s = self.lock();
        s.count("power loss");
        s.write_back_some();
    }

    /// Errors of writes and flushes so far.
    pub fn errors(&self) -> u64 {
        let s = self.lock();
        ["EIO on write", "EIO on flush", "power cut within a call"]
            .iter()
            .filter_map(|k| s.counts.get(k))
            .sum()
    }

    /// From now on one to three of the blocks that hold something are read from elsewhere.
    pub fn lead_astray(&self) {
        let mut s = self.lock();
        for _ in 0..=s.rng.below(3) {
            let written: Vec<usize> =
                (0..self.blocks).filter(|b| s.view.block(*b).iter().any(|x| *x != 0)).collect();
            if written.is_empty() {
                return;
            }
            let at = *s.rng.pick(&written);
            let told = s.misread(at, self.blocks, 2, &mut [0; BLOCK]);
            s.lies.extend(told);
        }
    }

    /// By how many nanoseconds its answers were late so far.
    pub fn late(&self) -> u64 {
        self.lock().late
    }

    /// Returns the lies that it told, in words and in order.
    pub fn lies(&self) -> Vec<String> {
        self.lock().lies.clone()
    }

    /// Returns the counts of all that happened, and a fingerprint of every request.
    pub fn report(&self) -> (BTreeMap<&'static str, u64>, u64) {
        let s = self.lock();
        (s.counts.clone(), s.trace)
    }
}

impl Device for SimDevice {
    fn size(&self) -> u64 {
        (self.blocks * BLOCK) as u64
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        let mut s = self.lock();
        for r in reqs {
            let first = r.offset as usize / BLOCK;
            if first + r.data.len() / BLOCK > self.blocks {
                return Err(eio("read beyond the end", r.offset));
            }
            if s.off() {
                return Err(eio("read", r.offset));
            }
            let rate = s.rates.read;
            if s.happens(rate) {
                s.count("EIO on read");
                return Err(eio("read", r.offset));
            }
            for (i, b) in r.data.chunks_mut(BLOCK).enumerate() {
                s.read(first + i, self.blocks, b);
            }
            s.note(r.offset);
        }
        Ok(())
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let mut s = self.lock();
        let mut todo = Vec::new();
        for r in reqs {
            let first = r.offset as usize / BLOCK;
            if first + r.data.len() / BLOCK > self.blocks {
                return Err(eio("write beyond the end", r.offset));
            }
            todo.extend(r.data.as_chunks::<BLOCK>().0.iter().enumerate().map(|(i, b)| (first + i, b)));
        }
        if todo.len() > 1 && s.rng.one_in(2) {
            s.count("blocks of a submission reordered");
            for i in (1..todo.len()).rev() {
                todo.swap(i, s.rng.below(i as u64 + 1) as usize);
            }
        }
        for (at, b) in todo {
            let offset = (at * BLOCK) as u64;
            if s.off() {
                return Err(eio("write", offset));
            }
            let rate = s.rates.write;
            if s.happens(rate) {
                s.count("EIO on write");
                return Err(eio("write", offset));
            }
            let lies = s.rates.lies;
            let done = if s.happens(lies) { s.lie(at, self.blocks, b) } else { Some((at, *b)) };
            let Some((at, bytes)) = done else { continue };
            let shared = Shared::new(bytes);
            let hash = shared.hash();
            // The identity of a device that comes later is drawn by chance.
            s.note(at as u64 ^ if bytes[..8] == SUPERBLOCK_MAGIC { 0 } else { hash });
            s.put(at, shared);
        }
        s.answer();
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        let mut s = self.lock();
        if s.off() {
            return Err(eio("flush", 0));
        }
        let rate = s.rates.flush;
        if s.happens(rate) {
            s.count("EIO on flush");
            s.write_back_some();
            return Err(eio("flush", 0));
        }
        s.note(1);
        s.answer();
        s.cache.clear();
        s.durable = s.view.clone();
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut s = self.lock();
        let zero = Shared::new([0; BLOCK]);
        for i in 0..len as usize / BLOCK {
            let at = offset as usize / BLOCK + i;
            if at < self.blocks && !s.dead {
                s.put(at, zero.clone());
            }
        }
        s.note(offset ^ len);
        Ok(())
    }
}
