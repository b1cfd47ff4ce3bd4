//! Memory of closed files for the next ones: a file takes whole cache lines, and the C library's
//! allocator takes longer for memory that is aligned so than an open takes for all else.

use crate::lanefs_file;
use std::cell::RefCell;
use std::mem::MaybeUninit;

type Place = Box<MaybeUninit<lanefs_file>>;

/// How many a thread keeps.
const MOST: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// Returns memory for a file.
pub(crate) fn take() -> Place {
    let kept = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    kept.unwrap_or_else(Box::new_uninit)
}

/// Keeps memory of a file that was closed.
pub(crate) fn keep(place: Place) {
    // Where the thread is about to end it is given back.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < MOST {
            spare.push(place);
        }
    });
}
