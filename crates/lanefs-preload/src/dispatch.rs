//! From a call of the program to the volume or the host.

use crate::hook::{Answer, answer};
use crate::report::Call;
use crate::route::{Last, Route, Spot, route};
use crate::table::{self, Description};
use crate::{links, volume};
use lanefs::{Fs, Volume};
use std::ffi::{CStr, c_char, c_int};

/// Performs a call that has one path: on the volume by `ours`, or on the host by `host`.
///
/// # Safety
/// The path is NULL or ends in a NUL.
pub unsafe fn by_path<T: Answer>(
    call: &'static Call,
    at: (c_int, *const c_char),
    last: Last,
    ours: impl Fn(&Fs, &[u8]) -> Result<T, c_int>,
    host: impl Fn(c_int, *const c_char) -> T,
) -> T {
    // SAFETY: the caller's promise.
    unsafe { by_spot(call, at, last, |volume, spot| links::with(spot, volume, &ours), host) }
}

/// Does the same where `ours` has to know where the path begins.
///
/// # Safety
/// The path is NULL or ends in a NUL.
pub unsafe fn by_spot<T: Answer>(
    call: &'static Call,
    (dirfd, path): (c_int, *const c_char),
    last: Last,
    ours: impl Fn(&Volume, &Spot<'_>) -> Result<T, c_int>,
    host: impl Fn(c_int, *const c_char) -> T,
) -> T {
    if path.is_null() {
        return host(dirfd, path);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(path) };
    let spot = match route(dirfd, text) {
        Route::Host => return host(dirfd, path),
        Route::HostPath(to) => return host(libc::AT_FDCWD, to.as_ptr()),
        Route::Ours(spot) => spot,
    };
    let mut out = None;
    let result = volume::serve(call, |volume| {
        let result = ours(volume, &spot);
        match result {
            // An absolute link may have been taken for one of the volume's (R3).
            Err(libc::ENOENT | libc::ENOTDIR) => match links::through(volume, &spot, last) {
                Some(Route::Ours(there)) => ours(volume, &there),
                Some(Route::HostPath(there)) => {
                    out = Some(there);
                    result
                }
                _ => result,
            },
            result => result,
        }
    });
    match out {
        Some(there) => host(libc::AT_FDCWD, there.as_ptr()),
        None => answer(result),
    }
}

/// Performs a call on a descriptor of the volume.
pub fn by_fd<T: Answer>(
    call: &'static Call,
    fd: c_int,
    f: impl FnOnce(&Volume, &Description) -> Result<T, c_int>,
) -> T {
    answer(volume::serve(call, |volume| f(volume, &*table::get(fd).ok_or(libc::EBADF)?)))
}

/// Performs a call that has two paths: on the volume by `ours`, or on the host by `host`; EXDEV if
/// they lie on both sides.
///
/// # Safety
/// The paths are NULL or end in a NUL.
pub unsafe fn by_two_paths(
    call: &'static Call,
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    last: Last,
    ours: impl Fn(&Fs, &[u8], &[u8]) -> Result<(), c_int>,
    host: impl Fn((c_int, *const c_char), (c_int, *const c_char)) -> c_int,
) -> c_int {
    if from.is_null() || to.is_null() {
        return host((from_dir, from), (to_dir, to));
    }
    // SAFETY: the caller's promise.
    let routes = unsafe { (route(from_dir, CStr::from_ptr(from)), route(to_dir, CStr::from_ptr(to))) };
    let (a, b) = match &routes {
        (Route::Ours(a), Route::Ours(b)) => (a, b),
        (Route::Ours(_), _) | (_, Route::Ours(_)) => return answer(Err(call.refuse(libc::EXDEV))),
        (a, b) => {
            let place = |r: &Route<'_>, dir, given| match r {
                Route::HostPath(p) => (libc::AT_FDCWD, p.as_ptr()),
                _ => (dir, given),
            };
            return host(place(a, from_dir, from), place(b, to_dir, to));
        }
    };
    let result = volume::serve(call, |volume| {
        // Where both begin in one place, one view serves both.
        if a.start == b.start {
            match links::with(a, volume, |fs, old| ours(fs, old, &b.path)) {
                Err(libc::ENOENT | libc::ENOTDIR) => {}
                result => return result,
            }
        }
        let absolute = |spot: &Spot<'_>, last| -> Result<Vec<u8>, c_int> {
            match links::through(volume, spot, last) {
                Some(Route::Ours(there)) => Ok(there.path.into_owned()),
                Some(_) => Err(call.refuse(libc::EXDEV)),
                None => links::absolute(volume, spot),
            }
        };
        ours(volume::view(volume), &absolute(a, last)?, &absolute(b, Last::Keep)?)
    });
    answer(result.map(|()| 0))
}
