//! The places of segments on their devices.

use lanefs_format::BlockAddr;
use lanefs_format::superblock::{Layout, MAX_SEGMENT_BLOCKS, MIN_SEGMENT_BLOCKS};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A segment's number, counted through all devices.
pub(crate) type SegId = u32;

#[derive(Debug)]
struct DeviceSpan {
    first: SegId,
    /// The number of segments of the device. Grows with the last device (invariant 5 of `segment`):
    /// written by [`Geometry::grow`] alone, Release, whose partner is the Acquire in
    /// [`DeviceSpan::segments`]: who sees the count finds the figures.
    segments: AtomicU32,
}

impl DeviceSpan {
    /// Returns the number of segments of the device.
    fn segments(&self) -> u32 {
        self.segments.load(Acquire)
    }
}

impl Clone for DeviceSpan {
    fn clone(&self) -> DeviceSpan {
        DeviceSpan { first: self.first, segments: AtomicU32::new(self.segments()) }
    }
}

/// The places of all segments on their devices.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub segment_blocks: u32,
    pub reserved: u32,
    /// The number of times that the tree lies on the devices: once or twice.
    pub copies: u32,
    spans: Vec<DeviceSpan>,
}

impl Geometry {
    pub fn new(layout: &Layout, device_blocks: &[u64]) -> Geometry {
        let mut first = 0u32;
        let spans = device_blocks
            .iter()
            .map(|&b| {
                let segments = layout.segments(b).min(u64::from(u32::MAX - first)) as u32;
                let span = DeviceSpan { first, segments: AtomicU32::new(segments) };
                first += segments;
                span
            })
            .collect();
        let (segment_blocks, reserved) = (layout.segment_blocks, layout.reserved_segments);
        debug_assert!(segment_blocks.is_power_of_two(), "segments of {segment_blocks} blocks");
        debug_assert!((MIN_SEGMENT_BLOCKS..=MAX_SEGMENT_BLOCKS).contains(&segment_blocks));
        let geometry = Geometry { segment_blocks, reserved, copies: 1, spans };
        geometry.check_invariants();
        geometry
    }
    /// Checks, in debug builds, that the devices' segments are numbered one device behind the
    /// other. A few devices at the most: it is called where one comes or grows.
    fn check_invariants(&self) {
        let ends = self.spans.iter().map(|s| u64::from(s.first) + u64::from(s.segments()));
        debug_assert!(ends.clone().all(|end| end <= u64::from(u32::MAX)), "more segments than numbers");
        let firsts = self.spans.iter().skip(1).map(|s| u64::from(s.first));
        debug_assert!(ends.zip(firsts).all(|(end, first)| end == first), "a gap between {:?}", self.spans);
    }
    /// Returns the number of devices.
    pub fn devices(&self) -> usize {
        self.spans.len()
    }
    /// Returns the segments that come with the last device's being so many blocks long.
    pub fn larger(&self, blocks: u64) -> Option<Range<SegId>> {
        let span = self.spans.last()?;
        let end = (blocks / u64::from(self.segment_blocks)).min(u64::from(u32::MAX - span.first));
        debug_assert!(end >= u64::from(span.segments()), "the last device would lose segments");
        Some(self.total()..span.first + end as u32)
    }
    /// Lets the last device have the segments up to `end`. One thread at a time; all that others
    /// ask of the new ones is there.
    pub fn grow(&self, end: SegId) {
        if let Some(span) = self.spans.last() {
            // Release, with the Acquire in `segments`.
            span.segments.store(end - span.first, Release);
        }
        self.check_invariants();
    }
    /// Returns the same with so many copies of the tree.
    pub fn with_copies(self, copies: u32) -> Geometry {
        debug_assert!((1..=2).contains(&copies), "{copies} copies of the tree");
        Geometry { copies, ..self }
    }
    /// Returns the number of blocks between a block of a paired segment and its copy.
    pub fn half(&self) -> u32 {
        self.segment_blocks / 2
    }
    /// Returns the number of segments of all devices.
    pub fn total(&self) -> u32 {
        self.spans.iter().map(DeviceSpan::segments).sum()
    }
    /// Returns the number of segments that can hold the log.
    pub fn usable(&self) -> u32 {
        self.spans.iter().map(|s| s.segments().saturating_sub(self.reserved)).sum()
    }
    /// Returns the segment and the place in it; `None` for an address that no log block has.
    pub fn locate(&self, addr: BlockAddr) -> Option<(SegId, u32)> {
        let span = self.spans.get(addr.device())?;
        let n = u64::from(self.segment_blocks);
        let seg = addr.block() / n;
        let found = (seg >= u64::from(self.reserved) && seg < u64::from(span.segments()))
            .then(|| (span.first + seg as u32, (addr.block() % n) as u32));
        debug_assert!(found.is_none_or(|(seg, i)| self.addr(seg, i) == addr), "{addr} is not {found:?}");
        debug_assert!(found.is_none_or(|(seg, _)| !self.is_reserved(seg)), "{addr} holds no log");
        found
    }
    /// Returns the address of block `index` of a segment.
    pub fn addr(&self, seg: SegId, index: u32) -> BlockAddr {
        debug_assert!(seg < self.total(), "segment {seg} of {}", self.total());
        let d = self.device(seg);
        let local = u64::from(seg - self.spans[d].first);
        BlockAddr::new(d as u8, local * u64::from(self.segment_blocks) + u64::from(index))
    }
    /// Returns the device that a segment lies on.
    pub fn device(&self, seg: SegId) -> usize {
        self.spans.iter().rposition(|s| s.first <= seg && s.segments() > 0).unwrap_or(0)
    }
    /// Returns the segments of a device that can hold the log.
    pub fn log_segments(&self, device: usize) -> Range<SegId> {
        let span = &self.spans[device];
        let all = span.segments();
        debug_assert!(span.first.checked_add(all).is_some(), "more segments than numbers");
        span.first + self.reserved.min(all)..span.first + all
    }
    /// Returns whether a segment holds superblocks and slots.
    pub fn is_reserved(&self, seg: SegId) -> bool {
        seg - self.spans[self.device(seg)].first < self.reserved
    }
}
