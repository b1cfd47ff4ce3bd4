//! The devices of a volume that is open: which there are, and how they come and go.

use crate::device::{Device, FlushGate};
use crate::error::{Result, StoreError};
use lanefs_format::BlockAddr;
use lanefs_format::superblock::MAX_DEVICES;
use std::sync::{Arc, OnceLock};

/// The devices of a volume from one change of them to the next. Whoever has an address finds its
/// device here: it was given to others behind the change. So nobody waits for a change, and what
/// was there before stays till the volume is closed.
pub(super) struct Members {
    pub devices: Vec<Arc<dyn Device>>,
    pub gates: Vec<Arc<FlushGate>>,
    /// Flushes of devices that are gone: asked for, and given to them.
    pub flushes: (u64, u64),
    /// How often each was replaced by another for good, which had all of it and was flushed: what
    /// was before is let go of.
    pub replaced: Vec<u32>,
    /// What took its place. Set once, by the holder of the maintenance lock. The cell orders that.
    later: OnceLock<Box<Members>>,
}

impl Members {
    /// Makes the first ones.
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Members {
        debug_assert!(!devices.is_empty(), "a volume lies on a device");
        let gates = devices.iter().map(|d| Arc::new(FlushGate::new(d.clone()))).collect();
        let replaced = vec![0; devices.len()];
        Members { devices, gates, flushes: (0, 0), replaced, later: OnceLock::new() }
    }

    /// Returns the device of an address.
    pub fn device(&self, addr: BlockAddr, what: &'static str) -> Result<&Arc<dyn Device>> {
        self.devices.get(addr.device()).ok_or_else(|| StoreError::Corrupt {
            addr,
            what,
            why: format!("there is no device {}", addr.device()),
        })
    }

    /// Returns an empty list for each.
    pub fn lists<T>(&self) -> Vec<Vec<T>> {
        self.devices.iter().map(|_| Vec::new()).collect()
    }

    /// Returns the devices as they are now: `self` are those at the beginning.
    pub fn now(&self) -> &Members {
        let mut now = self;
        while let Some(later) = now.later.get() {
            now = later;
        }
        debug_assert_eq!(now.devices.len(), now.gates.len(), "a device without a gate");
        now
    }

    /// Puts others in their place. One thread at a time.
    fn change(&self, change: impl FnOnce(&mut Members)) {
        let now = self.now();
        let (devices, gates, flushes) = (now.devices.clone(), now.gates.clone(), now.flushes);
        let mut new =
            Members { devices, gates, flushes, replaced: now.replaced.clone(), later: OnceLock::new() };
        change(&mut new);
        debug_assert!((1..=MAX_DEVICES).contains(&new.devices.len()), "{} devices", new.devices.len());
        debug_assert_eq!(new.devices.len(), new.gates.len(), "a device without a gate");
        let set = now.later.set(Box::new(new));
        debug_assert!(set.is_ok(), "two change the devices at once");
    }

    /// Adds a device behind the others.
    pub fn add(&self, device: Arc<dyn Device>) {
        let before = self.now().devices.len();
        self.change(|m| {
            m.gates.push(Arc::new(FlushGate::new(device.clone())));
            m.devices.push(device);
            m.replaced.push(0);
        });
        debug_assert_eq!(self.now().devices.len(), before + 1, "one device more");
    }

    /// Returns these devices as they are now, if number `n` was replaced for good since.
    pub fn after_replacement(&self, n: usize) -> Option<&Members> {
        let now = self.now();
        let replaced = |m: &Members| m.replaced.get(n).copied();
        (now.devices.len() > n && replaced(now) != replaced(self)).then_some(now)
    }

    /// Puts another one in the place of one. `for_good`: what was before is let go of.
    pub fn replace(&self, n: usize, device: Arc<dyn Device>, for_good: bool) {
        debug_assert!(n < self.now().devices.len(), "there is no device {n}");
        self.change(|m| {
            let gate = std::mem::replace(&mut m.gates[n], Arc::new(FlushGate::new(device.clone())));
            m.flushes.0 += gate.asked();
            m.flushes.1 += gate.issued();
            m.devices[n] = device;
            m.replaced[n] += u32::from(for_good);
        });
    }

    /// Takes the last one away, to which nothing refers any more.
    pub fn remove(&self) {
        let before = self.now().devices.len();
        self.change(|m| {
            m.devices.pop();
            m.replaced.pop();
            if let Some(gate) = m.gates.pop() {
                m.flushes.0 += gate.asked();
                m.flushes.1 += gate.issued();
            }
        });
        debug_assert_eq!(self.now().devices.len() + 1, before, "one device less");
    }
}
