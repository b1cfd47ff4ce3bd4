//! The recording runtime (`trace/runtime.c`), seen from here. It is linked in only by
//! `cargo xtask conflicts`, which also compiles everything with the instrumentation that calls it.

/// One access of instrumented code.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The first byte.
    pub addr: usize,
    /// Behind the call of the runtime.
    pub pc: usize,
    /// The address to which the function of `pc` returns.
    pub caller: usize,
    /// Bytes.
    pub size: u32,
    /// [`WRITE`], [`ATOMIC`].
    pub kind: u16,
    unused: u16,
    stack: u64,
}

impl Access {
    /// An access that somebody else saw.
    pub fn seen(addr: usize, pc: usize, size: u32, kind: u16) -> Access {
        Access { addr, pc, caller: 0, size, kind, unused: 0, stack: 0 }
    }
}

#[cfg(test)]
impl Access {
    /// An access of 8 bytes, for tests.
    pub fn example(addr: usize, kind: u16) -> Access {
        Access { addr, pc: 1, caller: 0, size: 8, kind, unused: 0, stack: 0 }
    }
}

/// The access writes.
pub const WRITE: u16 = 1;
/// The access is atomic.
pub const ATOMIC: u16 = 2;
#[cfg(lanefs_trace)]
const KEPT: usize = 32;

/// The accesses that one thread made while it recorded.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// In order.
    pub accesses: Vec<Access>,
    stacks: Vec<usize>,
    /// Accesses that found the buffer full.
    pub lost: u64,
}

impl Recording {
    /// Returns the callers, innermost first; the access alone if stacks were not kept.
    #[must_use]
    pub fn callers(&self, a: &Access) -> Vec<usize> {
        #[cfg(lanefs_trace)]
        if a.stack > 0 {
            let at = a.stack as usize * KEPT;
            return self.stacks[at..at + KEPT].iter().copied().take_while(|p| *p != 0).collect();
        }
        let _ = (&self.stacks, a.stack, a.unused);
        vec![a.pc, a.caller]
    }
}

#[cfg(lanefs_trace)]
mod runtime {
    use super::Access;
    unsafe extern "C" {
        pub fn lanefs_trace_setup(capacity: usize, stacks: usize) -> i32;
        pub fn lanefs_trace_start(with_stacks: i32);
        pub fn lanefs_trace_forget();
        pub fn lanefs_trace_resume();
        pub fn lanefs_trace_pause();
        pub fn lanefs_trace_stop(
            count: *mut usize,
            stacks: *mut *const usize,
            lost: *mut u64,
        ) -> *const Access;
        pub fn lanefs_trace_stop_clock(stop: i32);
        pub fn lanefs_trace_callers(out: *mut usize, max: usize) -> usize;
    }
}

/// Accesses a thread can record.
#[cfg(lanefs_trace)]
const CAPACITY: usize = 1 << 20;
#[cfg(lanefs_trace)]
const STACKS: usize = 1 << 16;

/// Returns whether this program was built to record.
pub const fn is_built_in() -> bool {
    cfg!(lanefs_trace)
}

/// Prepares the calling thread.
pub fn setup() -> Result<(), String> {
    setup_for(1)
}

/// Prepares the calling thread to record `times` as much as others.
pub fn setup_for(times: usize) -> Result<(), String> {
    let _ = times;
    #[cfg(lanefs_trace)]
    {
        // SAFETY: allocates for the calling thread only.
        match unsafe { runtime::lanefs_trace_setup(CAPACITY * times, STACKS) } {
            0 => Ok(()),
            _ => Err("the recorder has no memory, or this thread's locals lie outside its stack".into()),
        }
    }
    #[cfg(not(lanefs_trace))]
    Err("this program was built without instrumentation; run `cargo xtask conflicts`".into())
}

/// Stops the coarse clock, by which files are stamped, or lets it run again; for all threads.
pub fn stop_clock(stop: bool) {
    #[cfg(lanefs_trace)]
    // SAFETY: sets one word of the runtime.
    unsafe {
        runtime::lanefs_trace_stop_clock(i32::from(stop));
    }
    let _ = stop;
}

/// Forgets what the calling thread recorded and records from here on.
pub fn start(with_stacks: bool) {
    #[cfg(lanefs_trace)]
    // SAFETY: touches the calling thread's recorder only.
    unsafe {
        runtime::lanefs_trace_start(i32::from(with_stacks));
        runtime::lanefs_trace_pause();
    }
    let _ = with_stacks;
}

/// Forgets what the calling thread recorded and records from here on, with stacks if it did so
/// before.
pub fn start_anew() {
    #[cfg(lanefs_trace)]
    // SAFETY: touches the calling thread's recorder only.
    unsafe {
        runtime::lanefs_trace_forget();
        runtime::lanefs_trace_resume();
    }
}

/// Records what `f` does.
#[inline]
pub fn during<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(lanefs_trace)]
    // SAFETY: touches the calling thread's recorder only.
    unsafe {
        runtime::lanefs_trace_resume();
    }
    let r = f();
    #[cfg(lanefs_trace)]
    // SAFETY: as above.
    unsafe {
        runtime::lanefs_trace_pause();
    }
    r
}

/// Records, or stops recording, in the middle of something.
pub fn set_recording(on: bool) {
    #[cfg(lanefs_trace)]
    // SAFETY: touches the calling thread's recorder only.
    unsafe {
        if on { runtime::lanefs_trace_resume() } else { runtime::lanefs_trace_pause() }
    }
    let _ = on;
}

/// Ends the recording and returns it.
pub fn stop() -> Recording {
    #[cfg(lanefs_trace)]
    {
        let (mut n, mut stacks, mut lost) = (0, std::ptr::null(), 0);
        // SAFETY: the runtime answers a buffer of `n` records, which nobody writes before the next
        // `start` of this thread, and one of stacks that is as long as the highest number in a
        // record says.
        unsafe {
            let p = runtime::lanefs_trace_stop(&mut n, &mut stacks, &mut lost);
            if p.is_null() {
                return Recording::default();
            }
            let accesses = std::slice::from_raw_parts(p, n).to_vec();
            let kept = accesses.iter().map(|a| a.stack as usize).max().unwrap_or(0);
            let stacks = if kept == 0 {
                vec![]
            } else {
                std::slice::from_raw_parts(stacks, (kept + 1) * KEPT).to_vec()
            };
            Recording { accesses, stacks, lost }
        }
    }
    #[cfg(not(lanefs_trace))]
    Recording::default()
}

/// The callers of the running function, innermost first.
pub fn callers(out: &mut [usize]) -> usize {
    #[cfg(lanefs_trace)]
    // SAFETY: writes at most `out.len()` words at `out`.
    unsafe {
        runtime::lanefs_trace_callers(out.as_mut_ptr(), out.len())
    }
    #[cfg(not(lanefs_trace))]
    {
        let _ = out;
        0
    }
}
