//! The allocator of the command, and how soon it gives memory back to the system.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's `mi_option_purge_delay`, in milliseconds: it has a number only, the same in its versions 2 and 3.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// For who serves for days within a budget: what is free goes back after 10 ms, not after a second. Making 200,000 files with a budget of 128 MiB
/// took at most 105 MiB then, else 150, in the same time but for a twentieth.
pub fn give_back_soon() {
    // SAFETY: it stores a number that the allocator reads; it is called before there is a second thread, as it asks.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 10) };
}
