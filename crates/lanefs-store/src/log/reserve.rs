//! Free segments that have blocks of the host below them, for when the host is full: see the essay
//! of `device::host`.
//!
//! 1. Of each sparse device a few free segments are kept backed ([`kept`]): old content is not
//!    discarded below that number, and what is missing is allocated on the host when the volume is
//!    opened, and after each checkpoint. Others are used before them (see `pool`).
//! 2. While the host is short they are used before others: what is written there is not refused. A
//!    request that is refused has its place already, so one of them, or what an earlier mount
//!    left, is discarded for it, which gives the host as much as many requests want
//!    ([`Io::give_back`]).
//! 3. The host is short until they are whole again, it has given one segment more, and there is
//!    enough for what is admitted then ([`Io::look_for_space`], `admission`).

use crate::device::{PAUSE, io_error, longer};
use crate::error::{Result, StoreError};
use crate::log::discard::DISCARDS;
use crate::log::geometry::SegId;
use crate::log::io::Io;
use crate::log::segment::{SegmentTable, State};
use lanefs_format::BLOCK_SHIFT;
use std::sync::Arc;
use std::time::Instant;

/// So many segments are the space on the host below which a checkpoint gives back what it freed.
const LOW: u64 = 64;
/// The most segments that a round writes.
const ROUND: u64 = 2;

/// Returns how many segments are kept of a volume with so many, on each sparse device.
fn kept(usable: u32) -> usize {
    let kept = (usable as usize / 64).clamp(2, 8).min(usable as usize / 8).max(1);
    debug_assert!(kept <= usable.max(1) as usize, "{kept} of {usable} segments");
    kept
}

impl SegmentTable {
    /// Notes that the volume is open, and that so many segments of a device are to be kept.
    fn keep(&self, device: usize, kept: usize) {
        debug_assert!(kept <= self.len() as usize, "{kept} segments of {} are kept", self.len());
        self.pools()[device].lock().opened(kept);
    }

    /// Returns how many backed segments a device is short of.
    fn missing(&self, device: usize) -> usize {
        debug_assert!(device < self.devices(), "device {device} has no pool");
        self.pools()[device].lock().missing()
    }

    /// Returns how many of a device's free segments are backed, and how many of them are to be
    /// kept.
    fn backed(&self, device: usize) -> (usize, usize) {
        debug_assert!(device < self.devices(), "device {device} has no pool");
        self.pools()[device].lock().backed()
    }

    /// Takes a segment without content out of a device's pool, to be backed; `put_backed` returns
    /// it, or [`SegmentTable::put_back`] if it is not.
    fn take_to_back(&self, device: usize) -> Option<SegId> {
        let seg = self.pools()[device].lock().take_to_back()?;
        debug_assert_eq!(self.info(seg).state, State::Free, "segment {seg} was in a pool");
        self.count_taken(1);
        Some(seg)
    }

    /// Returns a segment with blocks of the host below it to its pool.
    fn put_backed(&self, device: usize, seg: SegId) {
        debug_assert_eq!(self.geometry.device(seg), device, "segment {seg} is another's");
        // As if it had been freed by the first checkpoint: the oldest is discarded first.
        self.put_back_as(device, vec![seg], 1);
    }

    /// Takes what is to be discarded for the host's sake: see `Pool::take_for_host`.
    fn take_for_host(&self, device: usize, most: usize) -> Vec<SegId> {
        let taken = self.pools()[device].lock().take_for_host(most);
        debug_assert!(taken.len() <= most, "{taken:?} of at most {most} segments");
        debug_assert!(taken.iter().all(|s| self.info(*s).state == State::Free), "{taken:?}");
        self.count_taken(taken.len());
        taken
    }
}

impl Io {
    /// Returns the segments, if a volume is open that can be written.
    fn table(&self) -> Option<&Arc<SegmentTable>> {
        self.segments.as_ref().filter(|_| !self.read_only)
    }

    /// Returns the bytes of a segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segments.as_ref().map_or(0, |t| u64::from(t.geometry.segment_blocks) << BLOCK_SHIFT)
    }

    /// Returns the bytes that the hosts have to give before the volume goes on.
    pub(super) fn wanted(&self) -> u64 {
        let usable = self.segments.as_ref().map_or(0, |t| t.geometry.usable());
        (kept(usable) as u64 + 1) * self.segment_bytes() + self.margin() + self.round()
    }

    /// Returns the bytes that a host has to have left beside what is admitted (`admission`, 3).
    pub(super) fn margin(&self) -> u64 {
        let usable = self.segments.as_ref().map_or(0, |t| t.geometry.usable());
        kept(usable) as u64 * self.segment_bytes()
    }

    /// Returns the most bytes of a round.
    pub(super) fn round(&self) -> u64 {
        debug_assert!(!self.read_only, "nothing is written");
        ROUND * self.segment_bytes()
    }

    /// Returns the bytes that may be under way to a host without plenty (`admission`, 5).
    pub(super) fn share(&self) -> u64 {
        debug_assert!(!self.read_only, "nothing is written");
        self.margin() / 4
    }

    /// Returns whether a volume is open that is written, and a host is under a device of it.
    pub(super) fn is_on_host(&self) -> bool {
        debug_assert!(!self.devices().is_empty(), "a volume lies on a device");
        self.table().is_some() && self.devices().iter().any(|d| d.host().is_some())
    }

    /// Returns the bytes of free segments of a device that have blocks of the host below them
    /// beside those that are kept.
    pub(super) fn surplus(&self, device: usize) -> u64 {
        let Some(table) = self.table() else { return 0 };
        let (backed, kept) = table.backed(device);
        debug_assert!(backed <= table.len() as usize, "{backed} segments are backed");
        backed.saturating_sub(kept) as u64 * self.segment_bytes()
    }

    /// Returns the bytes of the reserve that may be used for what a seal waits for (`admission`,
    /// 4): what is there beside the half that removals need.
    pub(super) fn reserve_for_seals(&self) -> u64 {
        debug_assert!(!self.read_only, "nothing is written");
        let Some(table) = self.table() else { return 0 };
        let hosts = (0..self.devices().len()).filter(|&d| self.devices()[d].host().is_some());
        let least =
            hosts.map(|d| table.backed(d)).map(|(backed, kept)| backed.saturating_sub(kept.div_ceil(2)));
        least.min().unwrap_or(0) as u64 * self.segment_bytes()
    }

    /// Returns an error unless all hosts have their reserve, and those of the first `devices` have
    /// so many blocks more between them: for who writes much with a lock held for which nobody
    /// should wait as long as for a host.
    pub fn must_have(&self, devices: usize, blocks: u64) -> Result<()> {
        debug_assert!((1..=self.devices().len()).contains(&devices), "{devices} devices");
        let Some(table) = self.table().filter(|_| self.is_on_host()) else { return Ok(()) };
        let each = blocks.div_ceil(devices as u64) << BLOCK_SHIFT;
        for (d, device) in self.devices().iter().enumerate() {
            let Some(free) = self.free_on_host(d) else { continue };
            let (backed, kept) = table.backed(d);
            let reserve = kept.saturating_sub(backed) as u64 * self.segment_bytes();
            let wanted = reserve + if d < devices { each } else { 0 };
            let has = free + self.surplus(d);
            if has < wanted {
                let host = device.host().and_then(|h| h.place());
                return Err(StoreError::HostFull(format!(
                    "{}: {} has {} MiB free, and this may take {} there; free some",
                    device.name(),
                    host.as_deref().unwrap_or("the file system that holds it"),
                    has >> 20,
                    wanted.div_ceil(1 << 20)
                )));
            }
        }
        Ok(())
    }

    /// Begins to keep segments (1), of those that are free now; and has requests be waited for
    /// that a host refuses. Called once, when the volume is open.
    pub fn keep_reserve(&self) {
        let Some(table) = self.table() else { return };
        debug_assert_eq!(table.devices(), self.devices().len(), "the table is of other devices");
        debug_assert!(!self.host.is_short(), "nothing was waited for yet");
        for (d, device) in self.devices().iter().enumerate() {
            let kept = if device.host().is_some() { kept(table.geometry.usable()) } else { 0 };
            table.keep(d, kept);
        }
        // Where that fails it is tried again after each checkpoint.
        let _ = self.fill_reserve();
        self.look_at_hosts();
        self.begin_to_wait();
    }

    /// Begins to keep segments of a device that was added, the last one.
    pub fn keep_reserve_of_last(&self) {
        let (Some(table), Some(device)) = (self.table(), self.devices().last()) else { return };
        let kept = if device.host().is_some() { kept(table.geometry.usable()) } else { 0 };
        debug_assert_eq!(table.devices(), self.devices().len(), "the table is of other devices");
        table.pools()[table.devices() - 1].lock().joined(kept, self.host.is_short());
        let _ = self.fill_reserve(); // As in `keep_reserve`.
    }

    /// Begins to keep segments of a device that has taken another one's place.
    pub fn keep_reserve_of(&self, device: usize) {
        let Some(table) = self.table() else { return };
        let is_on_host = self.devices()[device].host().is_some();
        let kept = if is_on_host { kept(table.geometry.usable()) } else { 0 };
        table.pools()[device].lock().moved(kept);
        debug_assert_eq!(table.backed(device).0, 0, "nothing is known to be backed");
        let _ = self.fill_reserve(); // As in `keep_reserve`.
    }

    /// Takes a segment that has no content and lets the host allocate it. False if there is none,
    /// or if that is not possible there.
    fn back_one(&self, table: &SegmentTable, device: usize) -> Result<bool> {
        let Some(seg) = table.take_to_back(device) else { return Ok(false) };
        let addr = table.geometry.addr(seg, 0);
        debug_assert_eq!(addr.device(), device, "segment {seg} was in another's pool");
        let Some(host) = self.devices()[device].host() else {
            table.put_back(device, vec![seg]);
            return Ok(false);
        };
        let bytes = self.segment_bytes();
        // To ask for more than there is would take the last that others write to for a moment.
        let backed = match host.free().is_some_and(|free| free < bytes) {
            true => Err(io_error(
                self.devices()[device].name(),
                "allocation",
                addr.offset(),
                libc::ENOSPC,
                "full",
            )),
            false => host.back(addr.offset(), bytes),
        };
        match backed {
            Ok(()) => {
                table.put_backed(device, seg);
                Ok(true)
            }
            Err(e) => {
                // A file system may have allocated a part of it.
                self.discard_all(table, &[seg]);
                table.put_back(device, vec![seg]);
                if e.is_of_full_host() { Err(e) } else { Ok(false) }
            }
        }
    }

    /// Returns the blocks of the reserve of the device that has the fewest; of what is on no host
    /// any number.
    pub fn reserve_blocks(&self) -> u64 {
        debug_assert!(!self.read_only, "nothing is written");
        let Some(table) = self.table() else { return u64::MAX };
        let hosts = (0..self.devices().len()).filter(|&d| self.devices()[d].host().is_some());
        let least = hosts.map(|d| table.backed(d).0).min();
        least.map_or(u64::MAX, |n| n as u64 * u64::from(table.geometry.segment_blocks))
    }

    /// Fills the reserve of each device (1). An error if a host has no space for it.
    pub fn fill_reserve(&self) -> Result<()> {
        let Some(table) = self.table() else { return Ok(()) };
        for d in (0..self.devices().len()).filter(|&d| self.devices()[d].host().is_some()) {
            while table.missing(d) > 0 && self.back_one(table, d)? {}
        }
        Ok(())
    }

    /// Fills the reserve behind a checkpoint, which may have freed what it was short of (1, 3).
    pub fn keep_reserve_full(&self) {
        if self.host.is_short() {
            self.look_for_space();
        } else if let Err(e) = self.fill_reserve() {
            tracing::debug!("no space for the reserve: {e}");
        }
    }

    /// Has the pools hand out what is kept first, or keep it (2).
    pub(super) fn set_short(&self, short: bool) {
        let Some(table) = self.table() else { return };
        debug_assert!(!self.read_only, "nothing is written that a host could refuse");
        table.pools().iter().for_each(|pool| pool.lock().set_short(short));
    }

    /// Discards free segments of a device, so that its host has some space (2); false if nothing
    /// was found. They are in no pool meanwhile, so nobody writes to them.
    pub(super) fn give_back(&self, device: usize) -> bool {
        let Some(table) = self.table().filter(|_| self.devices()[device].host().is_some()) else {
            return false;
        };
        let segments = table.take_for_host(device, DISCARDS);
        let any = !segments.is_empty();
        debug_assert!(segments.len() <= DISCARDS, "{} segments at once", segments.len());
        self.discard_all(table, &segments);
        table.put_back(device, segments);
        any
    }

    fn discard_all(&self, table: &SegmentTable, segments: &[SegId]) {
        for &seg in segments {
            debug_assert_eq!(table.info(seg).state, State::Free, "segment {seg} is in use");
            let addr = table.geometry.addr(seg, 0);
            if let Err(e) = self.devices()[addr.device()].discard(addr.offset(), self.segment_bytes()) {
                tracing::debug!("discard of segment {seg}: {e}");
            }
        }
    }

    /// Returns the bytes that are free on the host of a device.
    pub(super) fn free_on_host(&self, device: usize) -> Option<u64> {
        debug_assert!(device < self.devices().len(), "there is no device {device}");
        self.devices()[device].host().and_then(|h| h.free())
    }

    /// Returns whether the host of a device is short, or nearly: what is freed goes back at once.
    pub fn is_host_low(&self, device: usize) -> bool {
        debug_assert!(device < self.devices().len(), "there is no device {device}");
        self.host.is_short()
            || self.free_on_host(device).is_some_and(|free| free < LOW * self.segment_bytes())
    }

    /// Does what [`Io::look_for_space`] does, unless that was done a moment ago.
    pub fn look_now_and_then(&self) -> bool {
        if !self.host.is_short() {
            return true;
        }
        debug_assert!(!self.read_only, "nothing is written that a host could refuse");
        let Some(mut last) = self.looked.try_lock() else { return false };
        if last.is_some_and(|at| at.elapsed() < *PAUSE.end()) {
            return false;
        }
        let has_space = self.look_for_space();
        *last = Some(Instant::now());
        has_space
    }

    /// Waits until no host is short, or that moment has come: then it is an error. So it is if the
    /// store is stopped meanwhile.
    pub fn wait_for_space(&self, until: Option<Instant>) -> Result<()> {
        let mut pause = *PAUSE.start();
        while !self.look_now_and_then() {
            self.check()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(StoreError::HostFull(self.host.message().unwrap_or_default()));
            }
            lanefs_sync::about_to_wait();
            lanefs_sync::schedule::sleep(pause);
            pause = longer(pause);
            debug_assert!(PAUSE.contains(&pause), "a pause of {pause:?}");
        }
        self.check()
    }

    /// Looks whether hosts that were short have space again (3). Returns whether they have.
    pub fn look_for_space(&self) -> bool {
        if !self.host.is_short() {
            return true;
        }
        if self.host.waiting() > 0 || self.fill_reserve().is_err() {
            return false;
        }
        if let Some(table) = self.table() {
            for d in (0..self.devices().len()).filter(|&d| self.devices()[d].host().is_some()) {
                // All that is free may be backed; or the host cannot allocate, and is believed.
                if self.surplus(d) == 0 && self.back_one(table, d).is_err() {
                    return false;
                }
            }
        }
        if !self.can_go_on() {
            return false;
        }
        let has_space = self.host.has_space_again();
        if has_space {
            self.set_short(false);
        }
        has_space
    }
}
