//! What a call returns: 0 or a count, or a negative errno; and the last failure in words.

use lanefs::Error;
use libc::{c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
pub(crate) enum Failure {
    /// As the library told it.
    Library(Error),
    /// An argument that cannot be, and what it would have to be.
    Argument(c_int, &'static str),
    /// As it was told by others.
    Told(c_int, String),
    /// A panic: a fault of LaneFS.
    Panic,
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Library(e)
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::Told(Error::errno_of(&e).unwrap_or(libc::EIO), e.to_string())
    }
}

impl Failure {
    /// Returns the errno.
    fn errno(&self) -> c_int {
        match self {
            Failure::Library(e) => e.errno(),
            Failure::Argument(errno, _) | Failure::Told(errno, _) => *errno,
            Failure::Panic => libc::EIO,
        }
    }

    /// Returns the text for people.
    fn text(&self) -> String {
        match self {
            Failure::Library(e) => e.to_string(),
            Failure::Argument(_, what) => (*what).to_string(),
            Failure::Told(_, what) => what.clone(),
            Failure::Panic => "LaneFS itself failed; standard error has where. Close the volume: what was synced is found when it is opened again".into(),
        }
    }
}

/// A result of what is done for a call.
pub(crate) type Outcome<T> = Result<T, Failure>;

thread_local! {
    /// The last failure of this thread, and its text once somebody has asked.
    static LAST: RefCell<(Option<Failure>, Option<CString>)> = const { RefCell::new((None, None)) };
}

/// Keeps a failure for `lanefs_last_error`, and returns the negative errno.
#[cold]
fn failed(failure: Failure) -> c_int {
    let errno = failure.errno();
    debug_assert!(errno > 0, "a failure without an errno");
    // Not where the thread is about to end.
    let _ = LAST.try_with(|last| last.borrow_mut().0 = Some(failure));
    -errno
}

/// Refuses a call of the child of a fork: EIO.
#[inline]
fn refuse_children() -> Outcome<()> {
    match lanefs_sync::fork::is_child() {
        false => Ok(()),
        true => Err(Failure::Argument(
            libc::EIO,
            "a volume is not usable after fork: it is its parent's; use it there, or start another program",
        )),
    }
}

/// Does what a call asks for, and returns its count or the negative errno. A panic ends here.
pub(crate) fn count(call: impl FnOnce() -> Outcome<u64>) -> i64 {
    let guarded = || {
        refuse_children()?;
        call()
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(Ok(n)) => i64::try_from(n).unwrap_or(i64::MAX),
        Ok(Err(failure)) => failed(failure).into(),
        Err(_) => failed(Failure::Panic).into(),
    }
}

/// Does what a call asks for that has nothing to count: 0 or the negative errno.
pub(crate) fn status(call: impl FnOnce() -> Outcome<()>) -> c_int {
    let guarded = || {
        refuse_children()?;
        call()
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failed(failure),
        Err(_) => failed(Failure::Panic),
    }
}

/// Returns the last failure of a call of this thread in words, with what to do about it where
/// something can be done; "" if none has failed. The text is this thread's, and valid until its
/// next call of this function. A call that succeeds changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if let Some(failure) = last.0.take() {
            let bytes: Vec<u8> = failure.text().into_bytes().into_iter().filter(|b| *b != 0).collect();
            last.1 = CString::new(bytes).ok();
        }
        last.1.as_ref().map_or(c"".as_ptr(), |text| text.as_ptr())
    });
    text.unwrap_or(c"the thread is ending".as_ptr())
}

/// Returns the version of the library: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: a text of this thread, copied before the next call.
        unsafe { CStr::from_ptr(lanefs_last_error()) }.to_str().unwrap().to_string()
    }

    /// The message is of the thread whose call failed, and stays until another fails.
    #[test]
    fn failures_are_told_in_words_to_the_thread_that_had_them() {
        assert_eq!(last(), "");
        assert_eq!(status(|| Err(Error::Posix(libc::ENOENT).into())), -libc::ENOENT);
        assert_eq!((last(), last()), (last(), "No such file or directory (errno 2)".to_string()));
        assert_eq!(count(|| Ok(7)), 7);
        assert!(last().starts_with("No such file"));
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(count(|| panic!("planted")), -i64::from(libc::EIO));
        assert!(last().contains("LaneFS itself failed"));
    }
}
