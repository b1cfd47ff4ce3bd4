//! Tests of file data over a store in memory.

mod bench;
mod budget;
mod fake;
mod lent;
mod model;
mod races;
mod stable;
mod threads;

use std::cell::RefCell;

type Due = (u32, Box<dyn FnOnce()>);

thread_local! {
    /// What this thread does after it has read a size so many times more.
    static MEANWHILE: RefCell<Option<Due>> = const { RefCell::new(None) };
}

/// Has `f` done right after this thread has read a file's size for the `n`th time from now on.
pub(crate) fn after_reading_size(n: u32, f: impl FnOnce() + 'static) {
    MEANWHILE.set(Some((n, Box::new(f))));
}

/// A file's size was read.
pub(super) fn size_was_read() {
    let due = MEANWHILE.with_borrow_mut(|m| {
        if let Some((left, _)) = m {
            *left -= 1;
        }
        m.take_if(|(left, _)| *left == 0)
    });
    if let Some((_, f)) = due {
        f();
    }
}
