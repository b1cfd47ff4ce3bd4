//! How a function of the C library is replaced, and how the replaced one is called.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The function that a hook replaces: the next of its name behind this library, found when it is
/// first called.
pub struct Real {
    name: &'static CStr,
    /// Its address; 0 until it is found. Relaxed: every thread finds the same one.
    at: AtomicUsize,
}

impl Real {
    /// Names a function.
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, at: AtomicUsize::new(0) }
    }

    /// Returns the address of the function.
    #[inline]
    pub fn get(&self) -> usize {
        match self.at.load(Ordering::Relaxed) {
            0 => self.find(),
            at => at,
        }
    }

    #[cold]
    fn find(&self) -> usize {
        // SAFETY: the name ends in a NUL, and RTLD_NEXT is a handle that dlsym takes.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        // An older C library lacks some; who calls them gets what its kernel would say.
        let at = if found == 0 { missing as *const () as usize } else { found };
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// Stands for a function that the C library does not have.
extern "C" fn missing() -> isize {
    set_errno(libc::ENOSYS);
    -1
}

/// Sets the caller's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library's errno of this thread is always there to be written.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the caller's errno.
pub fn errno() -> c_int {
    // SAFETY: the C library's errno of this thread is always there to be read.
    unsafe { *libc::__errno_location() }
}

/// Types that C functions answer with, and the value that stands for an error.
pub trait Answer: Copy {
    /// What is returned with an errno.
    const FAILED: Self;
}
impl Answer for c_int {
    const FAILED: c_int = -1;
}
impl Answer for isize {
    const FAILED: isize = -1;
}
impl Answer for i64 {
    const FAILED: i64 = -1;
}
impl<T> Answer for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Returns a result as C does: the value, or that of failure with errno set.
#[inline]
pub fn answer<T: Answer>(result: Result<T, c_int>) -> T {
    match result {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            T::FAILED
        }
    }
}

/// Defines functions that stand in place of the C library's of the same name. In a body `real`
/// calls the replaced one, and `CALL` counts for the report.
macro_rules! hook {
    ($($(#[$about:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// That of the C library's function of the same name.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, unused_variables)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            #[allow(dead_code)]
            static CALL: $crate::report::Call = $crate::report::Call::new(stringify!($name));
            #[allow(dead_code, clippy::too_many_arguments)]
            unsafe fn real($($arg: $ty),*) -> $ret {
                static REAL: $crate::hook::Real = $crate::hook::Real::new(
                    // The name of a C function has no NUL, and this puts one behind it.
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    },
                );
                // SAFETY: the C library's function of this name has this signature, and the caller
                // has its pointers from a caller of that function.
                unsafe {
                    let real: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(REAL.get());
                    real($($arg),*)
                }
            }
            // SAFETY: who calls this calls the C library's function of the same name, and keeps to
            // its contract; the body uses the pointers as that one does.
            unsafe { $body }
        }
    )*};
}
pub(crate) use hook;
