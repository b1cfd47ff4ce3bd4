//! What a serving thread calls when it is about to wait, so that another thread takes the next
//! request.

use std::cell::{Cell, RefCell};

/// What a thread is about to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The device, a flush, room in memory: it ends by itself.
    Device,
    /// Requests that the kernel will send: it ends only if others serve these.
    Requests,
}

type Hook = Box<dyn Fn(Wait)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    /// This thread has said that it waits since it was last asked.
    static WAITED: Cell<bool> = const { Cell::new(false) };
}

/// Has `hook` be called when this thread is about to wait, once for each request.
pub(crate) fn set(hook: impl Fn(Wait) + 'static) {
    HOOK.set(Some(Box::new(hook)));
    lanefs::on_wait(Some(about_to_wait));
}

/// For a request that is known to wait. Only the first wait of a request counts.
pub(crate) fn about_to_wait() {
    go(Wait::Device);
}

/// For a request that cannot be answered before others have been.
pub(crate) fn about_to_wait_for_requests() {
    go(Wait::Requests);
}

fn go(wait: Wait) {
    if !WAITED.replace(true) {
        HOOK.with_borrow(|hook| {
            if let Some(hook) = hook {
                hook(wait);
            }
        });
    }
}

/// To be called after each request: whether it made the thread wait.
pub(crate) fn has_waited() -> bool {
    WAITED.replace(false)
}
