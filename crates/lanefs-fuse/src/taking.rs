//! Space for requests that take some past the kernel's cache (R8 of [`crate::space`]).
//!
//! Where little is free what the kernel has gathered is called in first. That waits for requests,
//! so it is not done by who serves this one: the request is given back, and is done from its
//! beginning once more when it is known whether there is space. It must have done nothing before
//! it asks.

use crate::adaptor::Adaptor;
use crate::wire::{Answer, Errno, Reply};
use lanefs::File;
use std::cell::Cell;

thread_local! {
    /// Of a request that is done once more: whether there is space for it.
    static FOUND: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Has a request done once more by `again`, now that it is known whether there is space for it.
pub(crate) fn with_found<T>(found: bool, again: impl FnOnce() -> T) -> T {
    debug_assert!(FOUND.get().is_none(), "a request within a request");
    FOUND.set(Some(found));
    let done = again();
    FOUND.set(None);
    done
}

/// Returns whether a request may take so many bytes; an error, and [`Answer::Again`], if that is
/// not known yet: the caller returns it at once.
pub(crate) fn has_space(adaptor: &Adaptor, reply: &mut Reply, bytes: u64) -> Result<bool, Errno> {
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    if adaptor.space.has_beside(bytes) {
        return Ok(true);
    }
    debug_assert_eq!((reply.len(), reply.answer), (0, Answer::Now), "something was done before");
    reply.answer = Answer::Again(bytes);
    Err(Errno(libc::EAGAIN))
}

/// Does the same, and makes ENOSPC of it where there is no space.
pub(crate) fn needs_space(adaptor: &Adaptor, reply: &mut Reply, bytes: u64) -> Result<(), Errno> {
    if has_space(adaptor, reply, bytes)? { Ok(()) } else { Err(Errno(libc::ENOSPC)) }
}

/// Does the same for what a range of a file is to be written, or preallocated, with.
pub(crate) fn needs_space_for(
    adaptor: &Adaptor,
    reply: &mut Reply,
    file: &File,
    (offset, len): (u64, u64),
) -> Result<(), Errno> {
    debug_assert!(!adaptor.guest || adaptor.space.has_beside(len), "a guest gathers nothing");
    if FOUND.get().is_none() && adaptor.space.has_beside(len) {
        return Ok(());
    }
    match file.without_space(offset, len)? {
        0 => Ok(()),
        bytes => needs_space(adaptor, reply, bytes),
    }
}
