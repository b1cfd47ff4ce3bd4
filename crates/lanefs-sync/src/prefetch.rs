//! Asking for memory before it is read: whoever goes through many things that lie anywhere waits
//! for one cache line at a time, unless the next are on their way.

/// Asks for the first cache line of `at`, where the processor has a way to do so.
#[inline]
pub fn prefetch<T: ?Sized>(at: &T) {
    prefetch_at(std::ptr::from_ref(at).cast());
}

/// Asks for the cache line at an address, whatever is there.
#[inline]
pub fn prefetch_at(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads nothing that the program would see and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
