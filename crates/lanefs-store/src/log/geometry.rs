//! The places of segments on their devices.

use lanefs_format::BlockAddr;
use lanefs_format::superblock::{Layout, MAX_DEVICES, MAX_SEGMENT_BLOCKS, MIN_SEGMENT_BLOCKS};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// A segment's number, counted through all devices.
pub(crate) type SegId = u32;

/// The segments of a device; none of one that is not there.
#[derive(Debug, Default)]
struct DeviceSpan {
    /// Written before the device is there ([`Geometry::add`]).
    first: AtomicU32,
    /// The number of segments of the device. That of the last one changes (invariant 5 of
    /// `segment`): written by [`Geometry::set_end`] and [`Geometry::add`], Release, whose partner
    /// is the Acquire in [`DeviceSpan::segments`]: who sees the count finds the figures.
    segments: AtomicU32,
}

impl DeviceSpan {
    /// Returns the number of its first segment.
    fn first(&self) -> SegId {
        self.first.load(Acquire)
    }
    /// Returns the number of segments of the device.
    fn segments(&self) -> u32 {
        self.segments.load(Acquire)
    }
}

impl Clone for DeviceSpan {
    fn clone(&self) -> DeviceSpan {
        let (first, segments) = (self.first().into(), self.segments().into());
        DeviceSpan { first, segments }
    }
}

/// The places of all segments on their devices.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub segment_blocks: u32,
    pub reserved: u32,
    /// The number of times that the tree lies on the devices: once or twice.
    pub copies: u32,
    /// As many as a volume can have.
    spans: Box<[DeviceSpan]>,
    /// The number of devices. Written by [`Geometry::add`] and [`Geometry::remove`], Release, whose
    /// partner is the Acquire in [`Geometry::devices`]: who sees the count finds the spans.
    devices: AtomicUsize,
}

impl Clone for Geometry {
    fn clone(&self) -> Geometry {
        let Geometry { segment_blocks, reserved, copies, .. } = *self;
        let (spans, devices) = (self.spans.clone(), self.devices().into());
        Geometry { segment_blocks, reserved, copies, spans, devices }
    }
}

impl Geometry {
    pub fn new(layout: &Layout, device_blocks: &[u64]) -> Geometry {
        let (segment_blocks, reserved) = (layout.segment_blocks, layout.reserved_segments);
        debug_assert!(segment_blocks.is_power_of_two(), "segments of {segment_blocks} blocks");
        debug_assert!((MIN_SEGMENT_BLOCKS..=MAX_SEGMENT_BLOCKS).contains(&segment_blocks));
        let spans = (0..MAX_DEVICES).map(|_| DeviceSpan::default()).collect();
        let geometry = Geometry { segment_blocks, reserved, copies: 1, spans, devices: 0.into() };
        device_blocks.iter().for_each(|&b| geometry.add(b));
        geometry
    }
    /// Checks, in debug builds, that the devices' segments are numbered one device behind the
    /// other. A few devices at the most: it is called where one comes, goes or changes.
    fn check_invariants(&self) {
        let spans = self.spans();
        let ends = spans.iter().map(|s| u64::from(s.first()) + u64::from(s.segments()));
        debug_assert!(ends.clone().all(|end| end <= u64::from(u32::MAX)), "more segments than numbers");
        let firsts = spans.iter().skip(1).map(|s| u64::from(s.first()));
        debug_assert!(ends.zip(firsts).all(|(end, first)| end == first), "a gap between {spans:?}");
    }
    /// Returns the number of devices.
    pub fn devices(&self) -> usize {
        self.devices.load(Acquire)
    }
    /// Returns the devices that are there.
    fn spans(&self) -> &[DeviceSpan] {
        &self.spans[..self.devices()]
    }
    /// Returns the end of the segments that a device has which begins with the segment `first` and
    /// is so many blocks long.
    fn end_of(&self, first: SegId, blocks: u64) -> SegId {
        first + (blocks / u64::from(self.segment_blocks)).min(u64::from(u32::MAX - first)) as u32
    }
    /// Returns the end of the segments if the last device were so many blocks long.
    pub fn end_with(&self, blocks: u64) -> SegId {
        self.spans().last().map_or(0, |span| self.end_of(span.first(), blocks))
    }
    /// Returns the end of the segments if there were one more device, so many blocks long.
    pub fn end_with_another(&self, blocks: u64) -> SegId {
        self.end_of(self.total(), blocks)
    }
    /// Lets the last device have the segments up to `end`. One thread at a time; all that others
    /// ask of new ones is there, and nobody asks anything of those that go.
    pub fn set_end(&self, end: SegId) {
        if let Some(span) = self.spans().last() {
            debug_assert!(span.first() <= end, "segment {end} lies on another device");
            // Release, with the Acquire in `segments`.
            span.segments.store(end - span.first(), Release);
        }
        self.check_invariants();
    }
    /// Adds a device of so many blocks behind the others, as [`Geometry::set_end`] does segments.
    pub fn add(&self, blocks: u64) {
        let (n, first) = (self.devices(), self.total());
        // Who makes a volume of more is refused when its superblock is encoded.
        let Some(span) = self.spans.get(n) else { return };
        debug_assert_eq!(span.segments(), 0, "device {n} is there already");
        span.first.store(first, Release);
        span.segments.store(self.end_of(first, blocks) - first, Release);
        // Release, with the Acquire in `devices`.
        self.devices.store(n + 1, Release);
        self.check_invariants();
    }
    /// Takes the last device away, of which nobody asks anything any more.
    pub fn remove(&self) {
        let n = self.devices().saturating_sub(1);
        debug_assert!(n > 0, "a volume lies on a device");
        self.spans[n].segments.store(0, Release);
        self.devices.store(n, Release);
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
        self.spans().last().map_or(0, |last| last.first() + last.segments())
    }
    /// Returns the number of segments that can hold the log.
    pub fn usable(&self) -> u32 {
        self.spans().iter().map(|s| s.segments().saturating_sub(self.reserved)).sum()
    }
    /// Returns the segment and the place in it; `None` for an address that no log block has.
    pub fn locate(&self, addr: BlockAddr) -> Option<(SegId, u32)> {
        let span = self.spans.get(addr.device())?;
        let n = u64::from(self.segment_blocks);
        let seg = addr.block() / n;
        let found = (seg >= u64::from(self.reserved) && seg < u64::from(span.segments()))
            .then(|| (span.first() + seg as u32, (addr.block() % n) as u32));
        debug_assert!(found.is_none_or(|(seg, i)| self.addr(seg, i) == addr), "{addr} is not {found:?}");
        debug_assert!(found.is_none_or(|(seg, _)| !self.is_reserved(seg)), "{addr} holds no log");
        found
    }
    /// Returns the address of block `index` of a segment.
    pub fn addr(&self, seg: SegId, index: u32) -> BlockAddr {
        debug_assert!(seg < self.total(), "segment {seg} of {}", self.total());
        let d = self.device(seg);
        let local = u64::from(seg - self.spans[d].first());
        BlockAddr::new(d as u8, local * u64::from(self.segment_blocks) + u64::from(index))
    }
    /// Returns the device that a segment lies on.
    pub fn device(&self, seg: SegId) -> usize {
        self.spans().iter().rposition(|s| s.first() <= seg && s.segments() > 0).unwrap_or(0)
    }
    /// Returns the segments of a device that can hold the log.
    pub fn log_segments(&self, device: usize) -> Range<SegId> {
        let span = &self.spans[device];
        let all = span.segments();
        debug_assert!(span.first().checked_add(all).is_some(), "more segments than numbers");
        span.first() + self.reserved.min(all)..span.first() + all
    }
    /// Returns whether a segment holds superblocks and slots.
    pub fn is_reserved(&self, seg: SegId) -> bool {
        seg - self.spans[self.device(seg)].first() < self.reserved
    }
}
