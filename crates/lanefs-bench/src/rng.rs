//! Random numbers of workloads: no time must be spent in them, and runs must repeat.

use lanefs_sync::random;

/// The generator of the workspace, with the distributions that workloads ask for.
#[derive(Clone, Debug)]
pub struct Rng(random::Rng);

impl Rng {
    /// Makes a generator with this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(random::Rng::at(random::spread(seed).wrapping_add(0x1234_5678_9abc_def1)))
    }
    /// Draws the next 64 bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0.bits()
    }
    /// Draws a number below `n` (at least 1).
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0, "no number is below 0");
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }
    /// Draws a number uniformly in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
    /// Draws a number, gamma distributed with shape 1.5 and this mean: filebench's default for file
    /// and append sizes.
    pub fn gamma(&mut self, mean: f64) -> f64 {
        debug_assert!(mean > 0.0);
        let exponential = -self.unit().ln();
        let normal = (-2.0 * self.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos();
        debug_assert!(exponential >= 0.0 && normal.is_finite(), "the logarithm of 0 was taken");
        (exponential + normal * normal / 2.0) * mean / 1.5
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn gamma_has_its_mean() {
        let mut r = Rng::new(1);
        let n = 100_000;
        let mean = (0..n).map(|_| r.gamma(16.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 16.0).abs() < 0.3, "{mean}");
    }

    #[test]
    fn below_reaches_everything() {
        let mut r = Rng::new(2);
        let mut seen = vec![false; 32768];
        for _ in 0..1_000_000 {
            seen[r.below(32768) as usize] = true;
        }
        assert!(seen.iter().all(|&s| s));
    }
}
