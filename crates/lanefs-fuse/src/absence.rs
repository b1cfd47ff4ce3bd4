//! A serving thread says that it is about to wait, so that those it serves with can see to it that somebody is there for the next request.

use std::cell::{Cell, RefCell};

/// What a thread is about to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The device, a flush, room in memory: it ends by itself.
    Device,
    /// Requests that the kernel will send: it ends only if others serve these.
    Requests,
}

type Told = Box<dyn Fn(Wait)>;

thread_local! {
    static TOLD: RefCell<Option<Told>> = const { RefCell::new(None) };
    /// This thread has said that it waits since it was last asked.
    static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Has `told` be called when this thread is about to wait, once for each request.
pub(crate) fn tell(told: impl Fn(Wait) + 'static) {
    TOLD.set(Some(Box::new(told)));
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
    if !AWAY.replace(true) {
        TOLD.with_borrow(|told| {
            if let Some(told) = told {
                told(wait);
            }
        });
    }
}

/// To be called after each request: whether it made the thread wait.
pub(crate) fn is_back() -> bool {
    AWAY.replace(false)
}
