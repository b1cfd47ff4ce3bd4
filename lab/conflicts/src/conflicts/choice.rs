//! Choices made when they are first needed: a depth-first walk over a tree that nobody has drawn.
//!
//! A run of the explored function asks for choices; the walk replays all but the last of them and
//! takes the next alternative there. So each leaf is visited once, and what was not asked for is
//! not chosen.

/// One run's choices.
#[derive(Debug, Default)]
pub struct Choices {
    script: Vec<u32>,
    trail: Vec<(u32, u32)>,
}

impl Choices {
    /// One of `0..n`.
    pub fn choose(&mut self, n: u32) -> u32 {
        let c = self.script.get(self.trail.len()).copied().unwrap_or(0);
        debug_assert!(c < n, "the explored function asks for other choices when it is run again");
        self.trail.push((c, n));
        c
    }

    /// Moves on to the next leaf; false after the last.
    pub fn advance(&mut self) -> bool {
        while let Some((c, n)) = self.trail.pop() {
            if c + 1 < n {
                self.script = self.trail.drain(..).map(|t| t.0).collect();
                self.script.push(c + 1);
                return true;
            }
        }
        false
    }

    /// The choices of this run.
    pub fn taken(&self) -> Vec<u32> {
        self.trail.iter().map(|t| t.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_comes_once() {
        let mut c = Choices::default();
        let mut seen = Vec::new();
        loop {
            let a = c.choose(3);
            let b = if a == 1 { c.choose(2) } else { 9 };
            seen.push((a, b));
            if !c.advance() {
                break;
            }
        }
        assert_eq!(seen, [(0, 9), (1, 0), (1, 1), (2, 9)]);
    }
}
