//! Starts of threads, some of which fail when `oom` says so.

use lanefs_lab_crash::oom::faults::no_thread;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> libc::c_int;

/// Stands in for the C library's, in this program: a thread that is not to be started is one for
/// which there is no memory.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> libc::c_int {
    /// Found once; whoever finds it finds the same. Relaxed: nothing else goes with it.
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if no_thread() {
        return libc::EAGAIN;
    }
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        // SAFETY: the name is a string that ends with zero.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
        if real.is_null() {
            return libc::ENOSYS;
        }
        REAL.store(real, Relaxed);
    }
    // SAFETY: not null, so the next definition of pthread_create, whose type this is.
    let real = unsafe { std::mem::transmute::<*mut c_void, Create>(real) };
    // SAFETY: the caller's obligations are the same.
    unsafe { real(thread, attributes, start, argument) }
}
