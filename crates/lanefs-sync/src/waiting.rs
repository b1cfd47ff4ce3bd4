//! A thread that is about to wait for a device reports it to whoever lent it.
//!
//! A front end serves requests with few threads, so that requests answered from memory wake few;
//! when one of these threads has to wait, another must stand in. Nobody above a device can know
//! beforehand which call will wait. So the places that wait call [`about_to_wait`], and the
//! thread's owner learns of it through a hook of the thread. Without a hook it costs the load of a
//! thread-local.
//!
//! A caller may not want to wait for what nobody may ever do, such as making space on a full host:
//! its thread has a bounded *patience* then ([`set_patience`]), which whoever waits so asks for.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static HOOK: Cell<Option<fn()>> = const { Cell::new(None) };
    static PATIENCE: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Sets what this thread's waits call first; `None` for nothing. Called once per wait, possibly
/// with locks held: it must not call back into the library, and not wait.
pub fn on_wait(hook: Option<fn()>) {
    HOOK.with(|h| h.set(hook));
}

/// Reports that the thread is about to wait for a device, a flush or free memory.
#[inline]
pub fn about_to_wait() {
    // A thread that is being torn down has no owner any more.
    if let Ok(Some(hook)) = HOOK.try_with(Cell::get) {
        hook();
    }
}

/// Sets how long a call of this thread waits for what others have to do before it fails; `None`, as
/// it is at first: for ever. Returns what it was.
pub fn set_patience(long: Option<Duration>) -> Option<Duration> {
    PATIENCE.replace(long)
}

/// Returns how long a call of this thread waits for what others have to do.
pub fn patience() -> Option<Duration> {
    // A thread that is being torn down has no owner any more.
    PATIENCE.try_with(Cell::get).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn a_thread_hears_of_its_own_waits_alone() {
        static HEARD: AtomicU32 = AtomicU32::new(0);
        on_wait(Some(|| {
            HEARD.fetch_add(1, Relaxed);
        }));
        about_to_wait();
        std::thread::spawn(about_to_wait).join().unwrap();
        assert_eq!(HEARD.load(Relaxed), 1);
        on_wait(None);
        about_to_wait();
        assert_eq!(HEARD.load(Relaxed), 1);
    }
}
