//! What is under way to hosts with little space: the account of `admission`.

use lanefs_sync::CachePadded;
use lanefs_sync::lock::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// So long is believed what the system has said of the free space.
const FRESH: Duration = Duration::from_millis(20);

/// The account of what is under way to hosts with little space.
#[derive(Default)]
pub(crate) struct Admission {
    /// Something is counted. Stored under `account`, loaded by whoever writes back; on a line
    /// of its own. Relaxed: who finds it a moment late has written as a moment earlier.
    pub(super) counts: CachePadded<AtomicBool>,
    pub(super) account: Mutex<Account>,
    /// Held by who gives free segments back to a host for a request that it refuses.
    pub(super) giving: Mutex<()>,
}

/// See the head of the file. In bytes.
#[derive(Default)]
pub(super) struct Account {
    pub looked: Option<Instant>,
    /// What the hosts could take then, less what was admitted and not written, less what was
    /// admitted since.
    pub left: u64,
    /// What was admitted and is not written.
    pub under_way: u64,
}

impl Account {
    /// Returns whether the system was not asked for a while.
    pub fn is_old(&self) -> bool {
        debug_assert!(self.looked.is_some() || self.under_way == 0, "nobody has looked");
        self.looked.is_none_or(|at| at.elapsed() > FRESH)
    }
}
