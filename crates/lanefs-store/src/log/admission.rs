//! What is let through to a host that has little space left: see the essay of `device::host`.
//!
//! A write that a host refuses is bound to its place, and waits in the middle of its way, with the
//! locks that its caller holds. So whoever is about to write users' data asks before it begins
//! ([`Io::admit`]), while it can still let go of all locks and wait without.
//!
//! 1. A host with [`PLENTY`] is not asked about: one flag is loaded, and nothing is counted. The
//!    background looks at the host in each of its rounds ([`Io::look_at_hosts`]).
//! 2. Below that, what is admitted is counted from then until it is written. The system is asked
//!    how much is free when that was long ago (`FRESH`), or when too little was left then.
//! 3. A host that has less than the *margin* beside all that counts as short, before it refuses
//!    anything. The margin is as large as the reserve (`reserve`): it is for what nobody asks about
//!    (epochs, checkpoints) and for what others take between two looks.
//! 4. While a host is short nothing is admitted. The exceptions are who has found it short, once,
//!    and what a seal waits for: with it removals become durable, and these give the host its
//!    space. It may take half of the reserve, and all of it has to fit; the other half is for the
//!    removals.
//! 5. Others may fill the host at any moment. What was admitted then is refused by the host and
//!    waits with its locks; it has the reserve, given back to the host for it. So that the removals
//!    have some of it left, what is counted and under way at a time is a *share*, a quarter of it,
//!    and a round is half of that. Who comes when it is used up waits for a moment, and for nothing
//!    that others free. (From plenty to nothing between two looks is further than this goes.)
//! 6. What is free in the volume and has blocks of the host below it counts as free on the host,
//!    but for the reserve: it is written to first.

use crate::log::account::Account;
use crate::log::io::Io;
use lanefs_format::BLOCK_SHIFT;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A host with so many bytes free is not watched (1).
const PLENTY: u64 = 1 << 30;
/// A round of fewer blocks is not worth beginning, if more are dirty.
const LEAST: u64 = 16;
/// Blocks of a round beside its pages: its batch.
const BATCH: u64 = 1;

/// Something that was admitted; it is under way as long as this lives.
#[must_use = "what is dropped is not under way any more"]
pub struct Admitted<'s> {
    io: Option<&'s Io>,
    blocks: u64,
}

impl Admitted<'_> {
    /// Returns so many pages, which are not counted: for what writes nothing.
    pub fn freely(blocks: u64) -> Self {
        debug_assert!(blocks < u64::MAX, "as many are never written");
        Admitted { io: None, blocks }
    }

    /// Returns how many pages may be written.
    pub fn pages(&self) -> usize {
        usize::try_from(self.blocks).unwrap_or(usize::MAX)
    }
}

impl std::fmt::Debug for Admitted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(io) = self.io {
            let mut account = io.admission.account.lock();
            let bytes = (self.blocks + BATCH) << BLOCK_SHIFT;
            debug_assert!(account.under_way >= bytes, "{bytes} bytes were never under way");
            account.under_way = account.under_way.saturating_sub(bytes);
        }
    }
}

impl Io {
    /// Returns whether what is written has to be asked about ([`Io::admit`]).
    #[inline]
    pub fn counts_admissions(&self) -> bool {
        self.admission.counts.load(Ordering::Relaxed) // Relaxed: see the field.
    }

    /// Asks whether so many pages may be written now: they, or fewer of them, are under way as long
    /// as the answer lives. `None`: not now. `in_seal`: a seal waits for all of them (4).
    pub fn admit(&self, pages: u64, in_seal: bool) -> Option<Admitted<'_>> {
        if !self.counts_admissions() {
            return Some(Admitted::freely(pages));
        }
        let mut account = self.admission.account.lock();
        let bytes = |pages: u64| (pages + BATCH) << BLOCK_SHIFT;
        let least = bytes(pages.min(LEAST));
        let margin = self.margin();
        if account.is_old() || account.left < margin + bytes(pages) {
            self.look(&mut account);
        }
        let found = !self.host.is_short() && account.left < margin + least;
        if found {
            self.found_short();
        }
        let granted = if self.host.is_short() {
            let fits = (in_seal || found) && account.under_way + bytes(pages) <= self.reserve_for_seals();
            fits.then_some(pages)?
        } else {
            let share = self.share().max(least);
            let rest = share.saturating_sub(account.under_way);
            if rest < least {
                return None;
            }
            let most = rest.min((share / 2).max(least)).min(account.left - margin);
            pages.min((most >> BLOCK_SHIFT).saturating_sub(BATCH))
        };
        debug_assert!(granted <= pages && (granted > 0 || pages == 0), "{granted} of {pages} pages");
        account.left = account.left.saturating_sub(bytes(granted));
        account.under_way += bytes(granted);
        Some(Admitted { io: Some(self), blocks: granted })
    }

    /// Looks how much the hosts have left, and whether that has to be counted (1).
    pub fn look_at_hosts(&self) {
        if self.is_on_host() {
            let mut account = self.admission.account.lock();
            if account.is_old() {
                self.look(&mut account);
            }
        }
    }

    /// Has all that is written be asked about: a host has refused a write.
    pub(super) fn count_admissions(&self) {
        let _account = self.admission.account.lock();
        self.admission.counts.store(true, Ordering::Relaxed); // Relaxed: see the field.
    }

    /// Returns whether hosts that were short could take so much more that it is worth going on: a
    /// round beside the margin.
    pub(super) fn can_go_on(&self) -> bool {
        let mut account = self.admission.account.lock();
        self.look(&mut account);
        debug_assert!(account.looked.is_some(), "nobody has looked");
        account.left >= self.margin() + self.round()
    }

    /// Asks the system how much is free (2, 6).
    fn look(&self, account: &mut Account) {
        let left = (0..self.devices().len()).filter_map(|d| Some(self.free_on_host(d)? + self.surplus(d)));
        let left = left.min().unwrap_or(u64::MAX);
        debug_assert!(self.is_on_host() || left == u64::MAX, "{left} bytes are left of no host");
        account.left = left.saturating_sub(account.under_way);
        account.looked = Some(Instant::now());
        // Relaxed: see the field.
        self.admission.counts.store(left < PLENTY || self.host.is_short(), Ordering::Relaxed);
    }

    /// Takes note that hosts are short which refused nothing yet (3).
    #[cold]
    fn found_short(&self) {
        let free = |d: &usize| self.free_on_host(*d).map_or(u64::MAX, |free| free + self.surplus(*d));
        debug_assert!(!self.host.is_short(), "it is known");
        let Some(d) = (0..self.devices().len()).min_by_key(free) else { return };
        self.host.found_short(&*self.devices()[d], self.wanted());
        self.set_short(true);
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_SHIFT, PLENTY};
    use crate::api::{FormatOptions, OpenOptions};
    use crate::device::{Device, MemoryDevice, ThinDevice};
    use crate::store::Store;
    use crate::testing::until;
    use std::sync::Arc;

    /// A volume of 256 segments of 16 blocks on a host that has so many blocks when it is open.
    fn volume(left: u64) -> (Arc<Store>, Arc<ThinDevice<MemoryDevice>>) {
        let thin = Arc::new(ThinDevice::new(MemoryDevice::new(16 << 20).unwrap(), 1 << 20));
        let device: Arc<dyn Device> = thin.clone();
        let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let store = Store::open(vec![device], &OpenOptions::default()).unwrap().0;
        thin.fill();
        thin.give(left);
        until("the host is looked at", || {
            store.look_for_host_space();
            store.counts_admissions() == (left < PLENTY >> BLOCK_SHIFT)
        });
        (store, thin)
    }

    #[test]
    fn nothing_is_counted_where_there_is_plenty() {
        let (s, _thin) = volume(1 << 19);
        let all = s.admit(1 << 18, false).unwrap();
        assert_eq!(all.pages(), 1 << 18);
        assert!(s.admit(1 << 19, false).is_some() && !s.is_host_short());
        let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(16 << 20).unwrap());
        Store::format(std::slice::from_ref(&memory), &FormatOptions::default()).unwrap();
        let s = Store::open(vec![memory], &OpenOptions::default()).unwrap().0;
        assert_eq!(s.admit(u64::MAX >> 20, false).unwrap().pages() as u64, u64::MAX >> 20);
    }

    /// It was short when it refused the first write.
    #[test]
    fn a_host_is_short_before_it_refuses() {
        let (s, thin) = volume(3000);
        assert_eq!(s.admit(10, false).unwrap().pages(), 10);
        thin.fill();
        thin.give(20);
        until("it is seen", || s.admit(100, false).is_none());
        assert!(s.is_host_short() && thin.refused() == 0 && !s.reserve(0, 1));
        let trouble = s.report().devices.trouble.unwrap();
        assert!(trouble.contains("memory: waiting for space on the host"), "{trouble}");
        assert_eq!(s.report().devices.waiting_for_host, 0);
        assert!(!s.look_for_host_space(), "nobody has freed anything");
        thin.give(3000);
        until("it goes on", || s.look_for_host_space());
        assert!(!s.is_host_short() && s.admit(100, false).is_some());
    }

    #[test]
    fn where_little_is_left_a_share_is_under_way() {
        let (s, _thin) = volume(9000);
        let first = s.admit(1000, false).unwrap();
        assert_eq!(first.pages(), 16, "{first:?}");
        assert!(s.admit(1, false).is_none() && !s.is_host_short(), "it waits for the first alone");
        drop(first);
        assert!(s.admit(1, false).is_some());
    }

    #[test]
    fn what_a_seal_waits_for_may_take_half_of_the_reserve() {
        let (s, _thin) = volume(20);
        // Three segments of 16 blocks are kept, and two of them for removals.
        let first = s.admit(15, false).unwrap();
        assert!(first.pages() == 15 && s.is_host_short(), "it has found that");
        drop(first);
        assert!(s.admit(1, false).is_none() && s.admit(16, true).is_none());
        let some = s.admit(10, true).unwrap();
        assert_eq!(some.pages(), 10);
        assert!(s.admit(10, true).is_none(), "the rest is for removals");
        drop(some);
        assert!(s.admit(10, true).is_some());
    }
}
