//! References to memory that another owns and does not change until they are gone, without a
//! lifetime: for what is handed to other threads, and comes back whenever they are done.
//!
//! [`Hold`] is the owner's side: it gives out [`Stable`] references, and tells when the last of
//! them is gone. Their count lies in memory of the hold's own, so that two who hand out references
//! at a time share nothing.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// The right of an owner to its memory again, once all references are gone that it gave out.
#[derive(Debug, Default)]
pub struct Hold {
    /// Each reference has a share of it, and the hold one. Made when the first is given out.
    count: Option<Arc<()>>,
}

/// A reference to memory that does not change; see [`Hold`].
#[derive(Debug)]
pub struct Stable<T> {
    what: NonNull<T>,
    _share: Arc<()>,
}

// SAFETY: it gives access to `&T` alone, from whatever thread.
unsafe impl<T: Sync> Send for Stable<T> {}
// SAFETY: likewise.
unsafe impl<T: Sync> Sync for Stable<T> {}

impl Hold {
    /// Gives out a reference.
    ///
    /// # Safety
    /// `what` is a valid `T`, and stays in its place and as it is until [`Hold::is_over`] has
    /// returned true; for good, if it never does.
    pub unsafe fn give_out<T>(&mut self, what: NonNull<T>) -> Stable<T> {
        debug_assert!(what.is_aligned(), "a reference to half of two");
        Stable { what, _share: Arc::clone(self.count.get_or_insert_default()) }
    }

    /// Returns whether no reference is left: what others read by one happened before.
    pub fn is_over(&mut self) -> bool {
        // Acquire, in `get_mut`: its partner is the Release by which a reference is dropped.
        self.count.as_mut().is_none_or(|count| Arc::get_mut(count).is_some())
    }
}

impl<T> Deref for Stable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the promise of who called `give_out`; the hold is not over while this lives.
        unsafe { self.what.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_over_when_the_last_reference_is_gone() {
        let (mut hold, number) = (Hold::default(), 7u64);
        assert!(hold.is_over());
        // SAFETY: the number outlives the references, and nobody changes it.
        let give_out = |hold: &mut Hold| unsafe { hold.give_out(NonNull::from(&number)) };
        let (first, second) = (give_out(&mut hold), give_out(&mut hold));
        assert_eq!((*first, hold.is_over()), (7, false));
        drop(first);
        assert!(!hold.is_over());
        std::thread::spawn(move || assert_eq!(*second, 7)).join().unwrap();
        assert!(hold.is_over());
        let third = give_out(&mut hold);
        assert!(!hold.is_over());
        drop(third);
        assert!(hold.is_over());
    }
}
