//! Record groups where they lie: in the buffers that lanes filled, which the epoch that is being
//! written, the one that waits for its fold, and the fold itself have in common.

use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Record groups, encoded one behind the other: a part of a buffer that others may have, too.
/// A clone copies no bytes.
#[derive(Clone)]
pub struct Groups {
    buffer: Arc<Vec<u8>>,
    range: Range<usize>,
}

/// A share of an epoch: the groups that go to one mlog.
pub(crate) type Share = SmallVec<[Groups; 1]>;

impl Groups {
    /// Returns the buffer where they lie.
    pub fn buffer(&self) -> &Arc<Vec<u8>> {
        &self.buffer
    }

    /// Returns a part of these: the range ends where groups end.
    pub fn part(&self, range: Range<usize>) -> Groups {
        debug_assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        let first = self.range.start;
        Groups { buffer: self.buffer.clone(), range: first + range.start..first + range.end }
    }

    /// Returns whether they are half of their buffer or more: it is worth keeping for them.
    fn fills_buffer(&self) -> bool {
        self.len() >= self.buffer.capacity() / 2
    }

    /// Returns groups that are to be kept together, in their order. Those that fill their buffers
    /// stay there, others are copied: so at most twice the memory is kept that they need.
    pub(crate) fn gathered<'g>(all: impl Iterator<Item = &'g Groups>) -> Share {
        let mut share = Share::new();
        let mut small: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for groups in all.filter(|g| !g.is_empty()) {
            if groups.fills_buffer() {
                share.extend(copied(&small));
                small.clear();
                share.push(groups.clone());
            } else {
                small.push(groups);
            }
        }
        share.extend(copied(&small));
        debug_assert!(share.iter().all(Groups::fills_buffer), "a buffer is kept for a little");
        share
    }
}

/// Returns a copy of groups in a buffer of their own; `None` of none.
fn copied(parts: &[&[u8]]) -> Option<Groups> {
    debug_assert!(parts.iter().all(|p| !p.is_empty()), "a part of nothing");
    if parts.is_empty() { None } else { Some(parts.concat().into()) }
}

impl Deref for Groups {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl From<Arc<Vec<u8>>> for Groups {
    fn from(buffer: Arc<Vec<u8>>) -> Groups {
        Groups { range: 0..buffer.len(), buffer }
    }
}

impl From<Vec<u8>> for Groups {
    fn from(bytes: Vec<u8>) -> Groups {
        Arc::new(bytes).into()
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of groups", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_capacity(bytes: &[u8], capacity: usize) -> Groups {
        let mut buffer = Vec::with_capacity(capacity);
        buffer.extend_from_slice(bytes);
        buffer.into()
    }

    /// A lane's chunk of 256 KiB would be kept for its first hundred bytes.
    #[test]
    fn what_fills_its_buffer_stays_there_and_a_little_is_copied_in_its_order() {
        let full = with_capacity(&[1; 700], 1000);
        let all = [
            with_capacity(&[0; 10], 1000),
            full.part(0..100),
            full.part(100..700),
            with_capacity(&[2; 20], 1000),
            with_capacity(&[], 1000),
            with_capacity(&[3; 30], 1000),
        ];
        let share = Groups::gathered(all.iter());
        assert_eq!(share.iter().map(|g| g.len()).collect::<Vec<_>>(), [110, 600, 50]);
        assert!(Arc::ptr_eq(&share[1].buffer, &full.buffer));
        assert!([0, 2].iter().all(|n| share[*n].buffer.capacity() == share[*n].len()));
        let bytes: Vec<u8> = share.iter().flat_map(|g| g.iter().copied()).collect();
        assert_eq!(bytes, all.iter().flat_map(|g| g.iter().copied()).collect::<Vec<_>>());
        assert!(Groups::gathered(all[4..5].iter()).is_empty());
    }
}
