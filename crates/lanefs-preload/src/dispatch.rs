//! From a call of the program to the volume or the host.

use crate::hook::{Answer, answer};
use crate::report::Call;
use crate::route::{Last, Route, Spot, Start, is_cwd, route};
use crate::table::{self, Description};
use crate::{links, volume};
use lanefs::{Fs, Volume};
use std::ffi::{CStr, c_char, c_int};

/// How often a call by path is begun anew whose file goes away in the middle of it.
const TURNS: usize = 100;

/// Performs a call by path. Between finding the inode and acting on it the file may be removed or
/// replaced, and the library says ESTALE of the number. A path leads elsewhere then, or nowhere:
/// the call is begun anew, since nothing was done. A program that asks by path never sees ESTALE.
pub fn by_name<T>(mut call: impl FnMut() -> Result<T, c_int>) -> Result<T, c_int> {
    for _ in 0..TURNS {
        match call() {
            Err(libc::ESTALE) => {}
            result => return result,
        }
    }
    Err(libc::ENOENT)
}

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
        Route::Host if last == Last::Follow && is_cwd(text.to_bytes()) => {
            Spot { start: Start::Cwd, path: b"."[..].into() }
        }
        Route::Host => return host(dirfd, path),
        Route::HostPath(to) => return host(libc::AT_FDCWD, to.as_ptr()),
        Route::Ours(spot) => spot,
    };
    let mut out = None;
    let result = volume::serve(call, |volume| {
        let result = by_name(|| ours(volume, &spot));
        match result {
            // An absolute link may have been taken for one of the volume's (R3).
            Err(libc::ENOENT | libc::ENOTDIR) => match links::through(volume, &spot, last) {
                Some(Route::Ours(there)) => by_name(|| ours(volume, &there)),
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

/// Performs a call on a descriptor of the volume, which is EBADF if it was opened with O_PATH.
pub fn by_fd<T: Answer>(
    call: &'static Call,
    fd: c_int,
    f: impl FnOnce(&Volume, &Description) -> Result<T, c_int>,
) -> T {
    by_any_fd(call, fd, |volume, d| if d.path_only() { Err(libc::EBADF) } else { f(volume, d) })
}

/// Does the same, also where O_PATH was asked for: for calls that only need to know which file.
pub fn by_any_fd<T: Answer>(
    call: &'static Call,
    fd: c_int,
    f: impl FnOnce(&Volume, &Description) -> Result<T, c_int>,
) -> T {
    answer(volume::serve(call, |volume| f(volume, &*table::get(fd).ok_or(libc::EBADF)?)))
}

/// Returns whether a descriptor of the volume was opened with O_PATH; false where nothing can be
/// known of it, as in a child of the process that has the volume.
pub fn is_path_only(call: &'static Call, fd: c_int) -> bool {
    volume::is_owner()
        && !volume::is_inside()
        && volume::serve(call, |_| Ok(table::get(fd).is_some_and(|d| d.path_only()))) == Ok(true)
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
            match by_name(|| links::with(a, volume, |fs, old| ours(fs, old, &b.path))) {
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
        by_name(|| ours(volume::view(volume), &absolute(a, last)?, &absolute(b, Last::Keep)?))
    });
    answer(result.map(|()| 0))
}

#[cfg(test)]
mod tests {
    use super::by_name;
    use crate::attributes::errno;
    use lanefs::{Cred, SetAttr, Volume};
    use std::cell::Cell;

    /// Waits until a file that was removed has ended, which somebody has to ask for.
    fn has_ended(volume: &Volume, ino: lanefs::Ino) -> bool {
        (0..1000).any(|_| {
            volume.sync().unwrap();
            volume.statfs().unwrap();
            volume.node_stat(ino).is_err()
        })
    }

    /// The answer was ESTALE, which no call by path has.
    #[test]
    fn a_file_that_goes_away_in_the_middle_of_a_call_by_its_path_is_not_found_or_is_another() {
        let volume = Volume::in_memory(64 << 20).unwrap();
        let fs = volume.fs();
        for is_replaced in [false, true] {
            fs.write("/f", b"1").unwrap();
            if is_replaced {
                fs.write("/other", b"22").unwrap();
            }
            volume.sync().unwrap();
            let (turns, set) = (Cell::new(0), SetAttr { mode: Some(0o640), ..SetAttr::default() });
            let result = by_name(|| {
                let ino = fs.stat("/f").map_err(errno)?.ino;
                if turns.replace(turns.get() + 1) == 0 {
                    match is_replaced {
                        true => fs.rename("/other", "/f").unwrap(),
                        false => fs.unlink("/f").unwrap(),
                    }
                    assert!(has_ended(&volume, ino));
                    let direct = volume.node_setattr(&Cred::root(), ino, &set).map(drop).map_err(errno);
                    assert_eq!(direct, Err(libc::ESTALE));
                }
                volume.node_setattr(&Cred::root(), ino, &set).map(|s| (s.size, s.mode & 0o777)).map_err(errno)
            });
            assert_eq!(result, if is_replaced { Ok((2, 0o640)) } else { Err(libc::ENOENT) });
        }
        // What is never found by its number comes to an end.
        assert_eq!(by_name(|| Err::<(), _>(libc::ESTALE)), Err(libc::ENOENT));
        assert_eq!(by_name(|| Err::<(), _>(libc::EACCES)), Err(libc::EACCES));
    }
}
