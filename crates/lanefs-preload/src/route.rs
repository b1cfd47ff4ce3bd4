//! Whose a path is: the volume's or the host's, and what it is called there.
//!
//! R1 A path is taken as it is written: `..` takes the name before it away, until the path is below
//!    the prefix. From there the volume walks it, with its symbolic links, unless `..` leads out.
//!    From an open directory of the volume it leads out when it goes up further than that directory
//!    lies deep now, wherever it was opened and whether its path can be told.
//! R2 Symbolic links of the host are not looked at: one that leads below the prefix leads to what
//!    the host has there.
//! R3 A symbolic link of the volume with an absolute target is followed as the program means it:
//!    below the prefix into the volume, else to the host (`links`).
//! R4 Where a mount is served at the prefix, a child of the process asks the host for all of that,
//!    which has the mount there.

use crate::itself;
use crate::raw::sys;
use crate::settings::{Settings, below, settings};
use crate::table::{self, Description};
use crate::upwards;
use crate::volume;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Where the volume's working directory is, and the directory itself once it was needed.
pub struct WorkingDir {
    /// An absolute path of the volume.
    pub path: Vec<u8>,
    /// The open directory.
    pub dir: Option<Arc<Description>>,
}

/// The working directory, while it is one of the volume. Written by chdir and fchdir.
static CWD: RwLock<Option<WorkingDir>> = RwLock::new(None);
/// Whether there is one. Relaxed: who changes it while others use relative paths has to expect
/// either.
static IN_VOLUME: AtomicBool = AtomicBool::new(false);

/// Takes over the working directory that the program begins in.
pub fn begin(settings: &Settings) {
    if let Some(path) = &settings.cwd {
        set_cwd(Some(WorkingDir { path: path.clone(), dir: None }));
    }
}

/// Has the working directory be one of the volume, or of the host.
pub fn set_cwd(dir: Option<WorkingDir>) {
    let mut cwd = CWD.write().unwrap_or_else(PoisonError::into_inner);
    IN_VOLUME.store(dir.is_some(), Ordering::Relaxed);
    *cwd = dir;
}

/// Returns whether the working directory is one of the volume.
#[inline]
pub fn cwd_is_ours() -> bool {
    IN_VOLUME.load(Ordering::Relaxed) && !volume::is_mounts()
}

/// Returns what follows the link of the working directory in /proc, if that is in the volume:
/// nothing, or a `/` and more. The kernel's own leads to a directory that was removed.
#[inline]
fn below_cwd(path: &[u8]) -> Option<&[u8]> {
    // Most paths are others.
    if !path.starts_with(b"/proc/") {
        return None;
    }
    let rest = itself::in_proc(path)?.strip_prefix(b"/cwd")?;
    let is_link = rest.is_empty() || rest.starts_with(b"/");
    (is_link && cwd_is_ours()).then_some(rest)
}

/// Returns whether a path is that link.
#[inline]
pub fn is_cwd(path: &[u8]) -> bool {
    below_cwd(path).is_some_and(<[u8]>::is_empty)
}

/// Returns the path of the working directory in the volume, as it was when it was entered.
pub fn cwd_path() -> Option<Vec<u8>> {
    CWD.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|c| c.path.clone())
}

/// Returns the working directory of the volume, if it was opened.
pub fn cwd_open() -> Option<Arc<Description>> {
    CWD.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.dir.clone()
}

/// Returns where a directory lies, that paths begin in: an absolute path of the volume, as it was
/// when it was opened; an empty one if it was too long.
pub fn path_of_start(start: &Start) -> Option<Vec<u8>> {
    match start {
        Start::Root => Some(Vec::new()),
        Start::Cwd => cwd_path(),
        Start::Dir(fd) => table::get(*fd).map(|d| d.path.clone()),
    }
}

/// Where a path of the volume begins.
#[derive(Clone, PartialEq)]
pub enum Start {
    /// At the root.
    Root,
    /// In the working directory.
    Cwd,
    /// In an open directory.
    Dir(c_int),
}

/// A place in the volume.
#[derive(Clone)]
pub struct Spot<'p> {
    /// Where the path begins.
    pub start: Start,
    /// The path; empty for the start itself.
    pub path: Cow<'p, [u8]>,
}

/// Whose a path is.
pub enum Route<'p> {
    /// The host's, as it was given.
    Host,
    /// The host's, by another name.
    HostPath(CString),
    /// The volume's.
    Ours(Spot<'p>),
}

/// Returns whether a piece of text occurs in another.
fn contains(text: &[u8], piece: &[u8]) -> bool {
    // SAFETY: the pointers and lengths are those of the slices.
    !unsafe { libc::memmem(text.as_ptr().cast(), text.len(), piece.as_ptr().cast(), piece.len()) }.is_null()
}

/// Returns whose a path is that begins at a descriptor, or AT_FDCWD.
#[inline]
pub fn route(dirfd: c_int, path: &CStr) -> Route<'_> {
    match as_served(dirfd, path) {
        Route::Ours(Spot { start: Start::Root, .. }) if volume::is_mounts() => Route::Host,
        route => route,
    }
}

/// Returns whose a path is, for a process that has the volume or could have it.
#[inline]
fn as_served(dirfd: c_int, path: &CStr) -> Route<'_> {
    let Some(settings) = settings() else { return Route::Host };
    let path = path.to_bytes();
    if path.first() == Some(&b'/') {
        if let Some(rest) = below(&settings.prefix, path)
            && !contains(rest, b"/..")
        {
            return Route::Ours(Spot { start: Start::Root, path: at_root(rest) });
        }
        // By the link of an open directory in /proc, or that of the working directory.
        let link = itself::split(path).map(|(fd, rest)| (Start::Dir(fd), rest));
        if let Some((start, rest)) = link.or_else(|| Some((Start::Cwd, below_cwd(path)?)))
            && let Some(rest) = rest.strip_prefix(b"/")
        {
            let rest = if rest.is_empty() { b"." } else { rest };
            return match contains(rest, b"..") {
                false => Route::Ours(Spot { start, path: rest.into() }),
                true => from_ours(settings, start, rest),
            };
        }
        // A path that leads below the prefix names its last component.
        return match contains(path, &settings.last) {
            true => by_text(settings, path, true),
            false => Route::Host,
        };
    }
    let start = match dirfd {
        libc::AT_FDCWD if cwd_is_ours() => Some(Start::Cwd),
        libc::AT_FDCWD => None,
        fd if table::is_ours(fd) => Some(Start::Dir(fd)),
        _ => None,
    };
    match start {
        None if contains(path, &settings.last) => from_host(settings, dirfd, path),
        None => Route::Host,
        Some(start) if !contains(path, b"..") => Route::Ours(Spot { start, path: path.into() }),
        Some(start) => from_ours(settings, start, path),
    }
}

fn at_root(rest: &[u8]) -> Cow<'_, [u8]> {
    if rest.is_empty() { Cow::Borrowed(b"/") } else { Cow::Borrowed(rest) }
}

/// Returns whose a relative path is that begins in a directory of the host.
#[cold]
fn from_host<'p>(settings: &Settings, dirfd: c_int, path: &[u8]) -> Route<'p> {
    let mut from = vec![0u8; 4096];
    // SAFETY: the kernel writes at most so many bytes.
    let n = unsafe {
        if dirfd == libc::AT_FDCWD {
            sys!(libc::SYS_getcwd, from.as_mut_ptr(), from.len()) - 1
        } else {
            let link = format!("/proc/self/fd/{dirfd}\0");
            sys!(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), from.as_mut_ptr(), from.len())
        }
    };
    from.truncate(usize::try_from(n).unwrap_or(0));
    if !from.starts_with(b"/") {
        return Route::Host;
    }
    from.push(b'/');
    from.extend_from_slice(path);
    match by_text(settings, &from, false) {
        Route::Ours(spot) => Route::Ours(Spot { start: spot.start, path: spot.path.into_owned().into() }),
        _ => Route::Host,
    }
}

/// Returns whose a relative path with `..` is that begins in a directory of the volume.
#[cold]
fn from_ours<'p>(settings: &Settings, start: Start, path: &'p [u8]) -> Route<'p> {
    let up = goes_up(path);
    // It stays within, or nobody can tell: the volume walks it, or refuses it.
    let Some(depth) = depth_of(&start).filter(|depth| *depth < up) else {
        return Route::Ours(Spot { start, path: path.into() });
    };
    // What the directories above are called makes no difference: all are left.
    let mut from = settings.prefix.clone();
    (0..depth).for_each(|_| from.extend_from_slice(b"/d"));
    from.push(b'/');
    from.extend_from_slice(path);
    match by_text(settings, &from, true) {
        // Out, and in again.
        Route::Ours(spot) => Route::Ours(Spot { start: spot.start, path: spot.path.into_owned().into() }),
        Route::HostPath(to) => Route::HostPath(to),
        Route::Host => Route::HostPath(c_string(from)),
    }
}

/// Returns how far above its start a relative path comes, taken as it is written.
fn goes_up(path: &[u8]) -> usize {
    let (mut up, mut most) = (0isize, 0);
    for part in path.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".") {
        up += if part == b".." { 1 } else { -1 };
        most = most.max(up);
    }
    most.unsigned_abs()
}

/// Returns how many directories of the volume lie above one that paths begin in, where it is now;
/// `None` if that cannot be told.
fn depth_of(start: &Start) -> Option<usize> {
    let (dir, path) = match start {
        Start::Root => return Some(0),
        Start::Cwd => (cwd_open(), cwd_path()?),
        Start::Dir(fd) => {
            let dir = table::get(*fd)?;
            (Some(dir.clone()), dir.path.clone())
        }
    };
    if let Some(dir) = dir
        && let Some(depth) = volume::glance(|volume| upwards::depth_of(volume, &dir))
    {
        return depth;
    }
    // In a child of the volume's owner, or where nobody has opened it: as it is written.
    (!path.is_empty()).then(|| path.split(|b| *b == b'/').filter(|p| !p.is_empty()).count())
}

fn c_string(bytes: Vec<u8>) -> CString {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// Returns whose an absolute path is, taken as it is written (R1). `leaves`: a path that was below
/// the prefix and is not any more is given to the host without the detour.
pub fn by_text<'p>(settings: &Settings, path: &[u8], leaves: bool) -> Route<'p> {
    let mut host: Vec<&[u8]> = Vec::new();
    let prefix: Vec<&[u8]> = settings.prefix[1..].split(|b| *b == b'/').collect();
    let mut inside: Option<(Vec<u8>, usize)> = None;
    let mut left = false;
    for part in path.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".") {
        match &mut inside {
            Some((rest, depth)) => {
                if part == b".." {
                    if *depth == 0 {
                        inside = None;
                        left = true;
                        host.pop();
                        continue;
                    }
                    *depth -= 1;
                } else {
                    *depth += 1;
                }
                rest.push(b'/');
                rest.extend_from_slice(part);
            }
            None => {
                if part == b".." {
                    host.pop();
                } else {
                    host.push(part);
                }
                if host == prefix {
                    inside = Some((Vec::new(), 0));
                }
            }
        }
    }
    match inside {
        Some((mut rest, _)) => {
            // What ends so must be a directory.
            if rest.is_empty() || path.ends_with(b"/") || path.ends_with(b"/.") {
                rest.push(b'/');
            }
            Route::Ours(Spot { start: Start::Root, path: rest.into() })
        }
        None if left && leaves => {
            let mut to: Vec<u8> = host.iter().flat_map(|p| [b"/", *p].concat()).collect();
            if to.is_empty() || path.ends_with(b"/") {
                to.push(b'/');
            }
            Route::HostPath(c_string(to))
        }
        None => Route::Host,
    }
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// The call follows it.
    Follow,
    /// The call is about the link itself, or about the name.
    Keep,
}
