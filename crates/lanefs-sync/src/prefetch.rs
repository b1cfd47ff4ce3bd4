//! Asking for memory before it is read: whoever goes through many things that lie anywhere waits
//! for one cache line at a time, unless the next are on their way.

/// Asks for the first cache line of `at`, where the processor has a way to do so.
#[inline]
pub fn prefetch<T: ?Sized>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads nothing that the program would see and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
