//! What was served and what was not, by the name of the call (`LANEFS_REPORT=1`).

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Whether calls are counted. Written once, before the program's first call. Relaxed.
static ON: AtomicBool = AtomicBool::new(false);
/// The calls that were counted, the last one first.
static FIRST: AtomicPtr<Call> = AtomicPtr::new(std::ptr::null_mut());

/// The counts of one call. Relaxed: they order nothing.
pub struct Call {
    name: &'static str,
    served: AtomicU64,
    refused: AtomicU64,
    listed: AtomicBool,
    /// The next one in the list. Written before the call is published there.
    next: AtomicPtr<Call>,
}

impl Call {
    /// Names a call.
    pub const fn new(name: &'static str) -> Call {
        Call {
            name,
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Counts a call that the volume answered.
    #[inline]
    pub fn served(&'static self) {
        if ON.load(Ordering::Relaxed) {
            self.list();
            self.served.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a call that could not be served, and returns its errno.
    pub fn refuse(&'static self, errno: i32) -> i32 {
        if ON.load(Ordering::Relaxed) {
            self.list();
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        errno
    }

    /// Puts the call into the list, once.
    fn list(&'static self) {
        if self.listed.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = std::ptr::from_ref(self).cast_mut();
        let mut first = FIRST.load(Ordering::Relaxed);
        loop {
            self.next.store(first, Ordering::Relaxed);
            // Release: pairs with the Acquire of `print`, which reads `next`.
            match FIRST.compare_exchange_weak(first, this, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Begins to count.
pub fn begin() {
    ON.store(true, Ordering::Relaxed);
}

/// Returns the report, if one was asked for.
pub fn text() -> Option<String> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    let mut rows = Vec::new();
    let mut at = FIRST.load(Ordering::Acquire);
    // SAFETY: what is in the list is static.
    while let Some(call) = unsafe { at.as_ref() } {
        rows.push((call.name, call.served.load(Ordering::Relaxed), call.refused.load(Ordering::Relaxed)));
        at = call.next.load(Ordering::Relaxed);
    }
    rows.sort_unstable();
    let mut out = format!("lanefs run: {:<28} {:>12} {:>12}\n", "call", "served", "not served");
    for (name, served, refused) in rows {
        // Writing to a string does not fail.
        let _ = writeln!(out, "lanefs run: {name:<28} {served:>12} {refused:>12}");
    }
    Some(out)
}
