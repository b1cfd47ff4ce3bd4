//! A hook that a serving thread calls when it is about to wait, so that another thread takes the
//! next request.

use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The kinds of waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// For the device, a flush, or memory: it ends by itself.
    Device,
    /// For requests that the kernel will send: it ends only if others serve these.
    Requests,
    /// The same, of a thread that has announced to wait for the device.
    RequestsToo,
}

/// How long a request waits for space on the file system that holds an image (SEMANTICS E7): the
/// kernel holds the caller's locks meanwhile, for which others wait who would make some.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

type Hook = Box<dyn Fn(Wait)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    /// The kind with which this thread has called the hook since [`has_waited`] was last called.
    static WAITED: Cell<Option<Wait>> = const { Cell::new(None) };
}

/// Has `hook` be called when this thread is about to wait: once for each request, and once more
/// when it waits for requests after all.
pub(crate) fn set(hook: impl Fn(Wait) + 'static) {
    debug_assert!(HOOK.with_borrow(|h| h.is_none()), "a thread serves in one place only");
    debug_assert!(WAITED.get().is_none(), "it waited before anybody could hear of it");
    HOOK.set(Some(Box::new(hook)));
    lanefs::on_wait(Some(about_to_wait));
    lanefs::set_patience(Some(PATIENCE));
}

/// Announces that this thread is about to wait for the device.
pub(crate) fn about_to_wait() {
    go(Wait::Device);
}

/// Announces that this thread is about to wait for requests: its own cannot be answered before.
pub(crate) fn about_to_wait_for_requests() {
    go(Wait::Requests);
}

/// Calls the hook, where it has not been told as much.
fn go(wait: Wait) {
    let wait = match (WAITED.get(), wait) {
        (None, wait) => wait,
        (Some(Wait::Device), Wait::Requests) => Wait::RequestsToo,
        (Some(_), _) => return,
    };
    WAITED.set(Some(wait));
    HOOK.with_borrow(|hook| {
        if let Some(hook) = hook {
            hook(wait);
        }
    });
}

/// Returns whether a request made this thread wait. Called once after each request.
pub(crate) fn has_waited() -> bool {
    WAITED.replace(None).is_some()
}
