//! Numbers that look random: the same for the same seed, everywhere and for ever, so that a seed
//! that a test names stays a test. Not for secrets.

/// 2^64 over the golden ratio: the step of SplitMix64's counter.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads numbers that lie close together over 64 bits, of which the upper ones are the best.
#[inline]
pub const fn spread(n: u64) -> u64 {
    n.wrapping_mul(GOLDEN)
}

/// Lets every bit of the answer depend on every bit of `n` (the end of SplitMix64).
#[inline]
pub const fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// A small generator: SplitMix64 (Steele, Lea, Flood, OOPSLA'14).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Makes the generator for a seed.
    pub const fn new(seed: u64) -> Rng {
        Rng((seed ^ GOLDEN).wrapping_add(GOLDEN))
    }

    /// Makes the generator whose counter stands here.
    pub const fn at(counter: u64) -> Rng {
        Rng(counter)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of a list.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        debug_assert!(!of.is_empty(), "there is nothing to pick");
        &of[self.below(of.len() as u64) as usize]
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.bits().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the reference implementation (Vigna, splitmix64.c) for the counter 0. Seeds
    /// that are written down somewhere mean these.
    #[test]
    fn the_sequence_never_changes() {
        let mut rng = Rng::at(0);
        let first = [rng.bits(), rng.bits(), rng.bits()];
        assert_eq!(first, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
        assert_eq!(Rng::new(0).bits(), first[2], "a seed is two steps ahead of its counter");
    }

    #[test]
    fn a_buffer_is_filled_to_its_end() {
        let mut buffer = [0; 13];
        Rng::new(1).fill(&mut buffer);
        assert_eq!(buffer[8..], Rng::at(Rng::new(1).0.wrapping_add(GOLDEN)).bits().to_le_bytes()[..5]);
    }
}
