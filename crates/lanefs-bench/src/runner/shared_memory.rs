//! Memory that forked workers share with their parent.

use crate::error::{Context, Res};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ops::Deref;
use std::ptr::NonNull;

/// One `T` in anonymous memory that stays shared across `fork`.
pub struct Shared<T: Sync> {
    at: NonNull<T>,
}

impl<T: Sync> Shared<T> {
    /// Puts `value` into such memory.
    pub fn new(value: T) -> Res<Shared<T>> {
        assert!(align_of::<T>() <= 4096, "a mapping is aligned to a page");
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choosing disturbs
        // nothing.
        let raw = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                size_of::<T>().max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }
        .at("mapping the workers' shared page")?;
        let at = NonNull::new(raw.cast::<T>())
            .ok_or_else(|| crate::Failure::new("the kernel mapped the workers' shared page at 0"))?;
        // SAFETY: `at` points to a writable mapping, large and aligned enough for a `T` (asserted
        // above).
        unsafe { at.write(value) };
        Ok(Shared { at })
    }
}

impl<T: Sync> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mapping lives until drop, was initialised by `new`, and only `&T` is ever
        // handed out.
        unsafe { self.at.as_ref() }
    }
}

// SAFETY: `Shared` gives out `&T` only, as an `Arc` would, and `T` is Sync; the value is never
// moved out.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T: Sync> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size and no reference outlives `self`.
        // `T` holds atomics only (see control.rs), so nothing needs dropping.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), size_of::<T>().max(1)) };
    }
}
