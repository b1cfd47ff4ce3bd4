//! Discarding, on the devices, what is not needed any more.

use crate::error::Result;
use crate::log::Log;
use crate::log::segment::State;
use std::collections::HashSet;
use std::ops::Range;

/// The most segments of a device discarded after one checkpoint.
pub(crate) const DISCARDS: usize = 32;

impl Log {
    /// Tells the device that a segment's content is not needed; only a hint, so errors do not
    /// matter. Returns how many bytes these are.
    pub fn discard(&self, seg: u32) -> u64 {
        let a = self.segments.geometry.addr(seg, 0);
        let (len, _) = self.segment_bytes();
        debug_assert_eq!(self.segments.info(seg).state, State::Free, "segment {seg} is in use");
        match self.io.devices().get(a.device()).map(|d| d.discard(a.offset(), len)) {
            Some(Ok(())) => len,
            Some(Err(e)) => {
                tracing::debug!("discard of segment {seg}: {e}");
                0
            }
            None => 0,
        }
    }

    /// Tells the devices of all free segments in a range, whose bytes are counted through all
    /// devices in order, that their content is not needed, and how many bytes these are; `None` if
    /// no device can take notice. Free is what the last checkpoint does not reach: anybody may
    /// write there. Segments under way are in no pool, so nobody takes one before the device has
    /// been asked.
    pub fn trim_free(&self, range: Range<u64>) -> Result<Option<u64>> {
        if !self.io.devices().iter().any(|d| d.discards()) {
            return Ok(None);
        }
        let (len, _) = self.segment_bytes();
        let inside = |seg: &u32| {
            let first = u64::from(*seg).saturating_mul(len);
            range.start <= first && first.saturating_add(len) <= range.end
        };
        let mut discarded = 0;
        for device in 0..self.segments.devices() {
            if !self.io.devices().get(device).is_some_and(|d| d.discards()) {
                continue;
            }
            let mut done = HashSet::new();
            loop {
                self.check_writable()?;
                let idle = self.segments.take_idle(device, DISCARDS, &done);
                if idle.is_empty() {
                    break;
                }
                debug_assert!(idle.len() <= DISCARDS, "{} segments at once", idle.len());
                lanefs_sync::about_to_wait();
                discarded += idle.iter().filter(|s| inside(s)).map(|s| self.discard(*s)).sum::<u64>();
                done.extend(idle.iter().copied());
                self.segments.put_back(device, idle);
            }
        }
        debug_assert!(discarded.is_multiple_of(len), "a segment is discarded whole or not at all");
        Ok(Some(discarded))
    }
}
