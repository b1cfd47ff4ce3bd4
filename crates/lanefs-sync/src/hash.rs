//! Maps and sets of words, with a hash that costs one multiplication.

use crate::random::spread;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Spreads a word with one multiplication.
#[derive(Default, Clone)]
pub struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, v: u64) {
        let x = spread(self.0 ^ v);
        self.0 = x ^ (x >> 32);
    }
}

/// A map whose keys are words.
pub type WordMap<V> = HashMap<u64, V, BuildHasherDefault<WordHasher>>;
/// A set of words.
pub type WordSet = HashSet<u64, BuildHasherDefault<WordHasher>>;
