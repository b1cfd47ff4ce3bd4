//! One device's flushes, shared by all who need one. The protocol is in `gate.rs`.

use std::sync::Arc;

use super::gate::Gate;
use super::{Device, io_error};
use crate::error::{Result, StoreError};

/// Makes the flushes of one device and shares each among all callers whose writes were answered
/// before it was issued.
///
/// A failed flush fails its callers and all later ones, for good: see [`FlushGate::failed`].
pub struct FlushGate {
    device: Arc<dyn Device>,
    gate: Gate<StoreError>,
}

impl FlushGate {
    /// Returns a gate for `device`. All flushes of the device go through it.
    pub fn new(device: Arc<dyn Device>) -> FlushGate {
        FlushGate { device, gate: Gate::new() }
    }

    /// Returns when everything that the device answered before this call is durable.
    ///
    /// On a device without a cache this touches nothing shared.
    pub fn flush(&self) -> Result<()> {
        lanefs_sync::about_to_wait();
        if !self.device.needs_flush() {
            return Ok(());
        }
        self.gate.run(
            || self.device.flush(),
            || io_error(self.device.name(), "flush", 0, libc::EIO, "the flushing thread panicked"),
        )
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    /// Returns the error of the first flush that failed.
    pub fn failed(&self) -> Option<StoreError> {
        self.gate.failed()
    }
    /// Returns how many flushes were asked for.
    pub fn asked(&self) -> u64 {
        self.gate.asked()
    }
    /// Returns how many flushes the device was given.
    pub fn issued(&self) -> u64 {
        self.gate.issued()
    }
}

impl std::fmt::Debug for FlushGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlushGate({}: {} of {})", self.device.name(), self.issued(), self.asked())
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
