//! The locks of a database between the connections of this process, which are all there are: one
//! process owns a volume. Levels and their order are SQLite's (lockingv3): any number of readers
//! and one that intends to write (RESERVED); who waits for the readers to go keeps new ones out
//! (PENDING); who writes is alone (EXCLUSIVE).
//!
//! K1. A holder is in `readers` once it has any lock, and in at most one of the others.
//! K2. EXCLUSIVE is given only when its holder is the only reader.

use libc::c_int;

pub const NONE: c_int = 0;
pub const SHARED: c_int = 1;
#[cfg(test)]
pub const RESERVED: c_int = 2;
pub const PENDING: c_int = 3;
pub const EXCLUSIVE: c_int = 4;

/// The locks on one database.
#[derive(Debug, Default)]
pub struct Locks {
    readers: usize,
    /// The one connection with more than SHARED, and its level.
    above: Option<(u64, c_int)>,
}

impl Locks {
    /// Raises the lock of connection `who` from `level` to `wanted`. Returns the level it has then,
    /// which is lower if somebody else is in the way.
    pub fn raise(&mut self, who: u64, level: c_int, wanted: c_int) -> c_int {
        if wanted <= level {
            return level;
        }
        if level == NONE {
            // SQLite asks for nothing but SHARED then.
            return match self.above {
                Some((_, other)) if other >= PENDING => NONE,
                _ => {
                    self.readers += 1;
                    SHARED
                }
            };
        }
        match self.above {
            Some((other, _)) if other != who => level,
            _ => {
                let reached = match wanted {
                    EXCLUSIVE if self.readers > 1 => PENDING,
                    other => other,
                };
                self.above = Some((who, reached));
                debug_assert!(reached < EXCLUSIVE || self.readers == 1, "K2");
                reached
            }
        }
    }

    /// Lowers the lock of connection `who` from `level` to `wanted`: SHARED or NONE.
    pub fn lower(&mut self, who: u64, level: c_int, wanted: c_int) {
        if wanted >= level {
            return;
        }
        if self.above.is_some_and(|(holder, _)| holder == who) {
            self.above = None;
        }
        if wanted == NONE {
            debug_assert!(self.readers > 0, "K1: it was a reader");
            self.readers = self.readers.saturating_sub(1);
        }
    }

    /// Returns whether somebody intends to write.
    pub fn is_reserved(&self) -> bool {
        self.above.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writes_when_the_readers_have_gone() {
        let mut l = Locks::default();
        assert_eq!(l.raise(1, NONE, SHARED), SHARED);
        assert_eq!(l.raise(2, NONE, SHARED), SHARED);
        assert!(!l.is_reserved());
        assert_eq!(l.raise(1, SHARED, RESERVED), RESERVED);
        assert_eq!(l.raise(2, SHARED, RESERVED), SHARED, "one at a time");
        assert_eq!(l.raise(3, NONE, SHARED), SHARED, "RESERVED lets readers in");
        assert_eq!(l.raise(1, RESERVED, EXCLUSIVE), PENDING);
        assert_eq!(l.raise(4, NONE, SHARED), NONE, "PENDING does not");
        l.lower(2, SHARED, NONE);
        l.lower(3, SHARED, NONE);
        assert_eq!(l.raise(1, PENDING, EXCLUSIVE), EXCLUSIVE);
        assert_eq!(l.raise(2, NONE, SHARED), NONE);
        l.lower(1, EXCLUSIVE, SHARED);
        assert_eq!(l.raise(2, NONE, SHARED), SHARED);
        // Who finds a hot journal goes from SHARED to EXCLUSIVE.
        assert_eq!(l.raise(2, SHARED, EXCLUSIVE), PENDING);
        l.lower(1, SHARED, NONE);
        assert_eq!(l.raise(2, PENDING, EXCLUSIVE), EXCLUSIVE);
        l.lower(2, EXCLUSIVE, NONE);
        assert!(!l.is_reserved() && l.raise(3, NONE, SHARED) == SHARED);
    }
}
