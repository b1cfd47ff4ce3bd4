//! A device with a volatile cache that breaks by chance, from a seed.
//!
//! # The fault model
//!
//! 1. A read, a write or a flush may fail with EIO. A failed write may have reached the cache in part. With a failed flush the device
//!    forgets a part of its cache, at once: what was read back before is not there any more (the lesson of fsync on Linux).
//! 2. A power cut may come between any two requests, and within a submission between two blocks: nothing after it is done. Of the cache
//!    any blocks survive, in any order, and one of them torn at any sectors. A death of the process keeps the cache.
//! 3. Only with `lies`: a write is answered and lost, goes to a neighbouring block, arrives torn, or with a bit flipped; a read comes back
//!    with a bit flipped.

use crate::crash::image::{BLOCK, Image, Shared};
use crate::generate::Rng;
use lanefs_store::device::{Device, ReadReq, WriteReq};
use lanefs_store::{Result, StoreError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How often something goes wrong: once in so many requests; 0 for never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rates {
    /// EIO of a read.
    pub read: u64,
    /// EIO of a write.
    pub write: u64,
    /// EIO of a flush.
    pub flush: u64,
    /// A lie (3).
    pub lies: u64,
    /// Requests until the power goes; 0 for never.
    pub cut: u64,
}

#[derive(Debug)]
struct State {
    durable: Image,
    /// What a read sees.
    view: Image,
    /// Volatile writes, in order.
    cache: Vec<(usize, Arc<Shared>)>,
    rng: Rng,
    rates: Rates,
    dead: bool,
    counts: BTreeMap<&'static str, u64>,
    /// What it lied about, in words.
    lies: Vec<String>,
    trace: u64,
}

/// What a block is: the magic and the kind of a node block, in words.
fn kind_of(block: usize, bytes: &[u8; BLOCK]) -> String {
    let word = |at: usize| bytes[at..at + 8].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("block {block}, which begins with {} {}", word(0), word(8))
}

/// The device.
#[derive(Debug)]
pub struct SimDevice {
    blocks: usize,
    state: Mutex<State>,
}

impl State {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
        self.note(what.len() as u64);
    }
    fn note(&mut self, word: u64) {
        self.trace = (self.trace.rotate_left(9) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }
    /// Whether the power is off, after one more request.
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
    fn put(&mut self, block: usize, bytes: Arc<Shared>) {
        self.view.put_shared(block, bytes.clone());
        self.cache.push((block, bytes));
    }
    /// Lets a random part of the cache become durable and forgets the rest.
    fn settle_cache(&mut self) {
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
    /// A device that holds `image`.
    pub fn new(image: Image, blocks: usize, seed: u64) -> SimDevice {
        let state = State {
            durable: image.clone(),
            view: image,
            cache: Vec::new(),
            rng: Rng::new(seed),
            rates: Rates::default(),
            dead: false,
            counts: BTreeMap::new(),
            lies: Vec::new(),
            trace: seed,
        };
        SimDevice { blocks, state: Mutex::new(state) }
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
        self.lock().count("process death");
    }

    /// The power went: the cache is lost but for a part.
    pub fn power_loss(&self) {
        let mut s = self.lock();
        s.count("power loss");
        s.settle_cache();
    }

    /// Errors of writes and flushes so far.
    pub fn errors(&self) -> u64 {
        let s = self.lock();
        ["EIO on write", "EIO on flush", "power cut within a call"]
            .iter()
            .filter_map(|k| s.counts.get(k))
            .sum()
    }

    /// What it lied about, in words and in order.
    pub fn lies(&self) -> Vec<String> {
        self.lock().lies.clone()
    }

    /// What happened, and a fingerprint of every request.
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
        "simulated"
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
                b.copy_from_slice(s.view.block(first + i));
            }
            let lies = s.rates.lies * 4;
            if s.happens(lies) {
                s.count("bit flipped in a read");
                let bit = s.rng.below(r.data.len() as u64 * 8) as usize;
                r.data[bit / 8] ^= 1 << (bit % 8);
                s.lies.push(format!("bit {bit} flipped in a read of block {first}"));
            }
            s.note(r.offset);
        }
        Ok(())
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let mut s = self.lock();
        for r in reqs {
            let first = r.offset as usize / BLOCK;
            if first + r.data.len() / BLOCK > self.blocks {
                return Err(eio("write beyond the end", r.offset));
            }
            for (i, b) in r.data.as_chunks::<BLOCK>().0.iter().enumerate() {
                if s.off() {
                    return Err(eio("write", r.offset));
                }
                let rate = s.rates.write;
                if s.happens(rate) {
                    s.count("EIO on write");
                    return Err(eio("write", r.offset));
                }
                let mut at = first + i;
                let lies = s.rates.lies;
                let mut bytes = *b;
                if s.happens(lies) {
                    match s.rng.below(4) {
                        0 => {
                            s.count("write lost");
                            s.lies.push(format!("lost: {}", kind_of(at, b)));
                            continue;
                        }
                        1 => {
                            s.count("write misdirected");
                            let wanted = at;
                            at = (at + 1 + s.rng.below(3) as usize) % self.blocks;
                            s.lies.push(format!("misdirected to {at}: {}", kind_of(wanted, b)));
                        }
                        2 => {
                            s.count("write torn");
                            let keep = s.rng.below(8) as usize * 512;
                            let old = *s.view.block(at);
                            bytes[keep..].copy_from_slice(&old[keep..]);
                            s.lies.push(format!("torn after {keep} bytes: {}", kind_of(at, b)));
                        }
                        _ => {
                            s.count("bit flipped in a write");
                            let bit = s.rng.below(BLOCK as u64 * 8) as usize;
                            bytes[bit / 8] ^= 1 << (bit % 8);
                            s.lies.push(format!("bit {bit} flipped: {}", kind_of(at, b)));
                        }
                    }
                }
                let shared = Shared::new(bytes);
                let hash = shared.hash();
                s.note(at as u64 ^ hash);
                s.put(at, shared);
            }
        }
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
            s.settle_cache();
            return Err(eio("flush", 0));
        }
        s.note(1);
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
