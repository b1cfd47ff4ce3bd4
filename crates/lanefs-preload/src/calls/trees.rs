//! Functions of the C library that list and walk: it does that past the hooks, so they are done
//! here by means of those.

use super::directories::{closedir, fdopendir, opendir, readdir};
use super::open::openat;
use super::status::{lstat, stat};
use crate::hook::{answer, errno, hook, set_errno};
use crate::report::Call;
use crate::route::{Route, cwd_is_ours, route};
use crate::settings::settings;
use crate::table::is_ours;
use libc::{DIR, dirent, stat as Stat};
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Returns whether a path is the volume's.
///
/// # Safety
/// It is NULL or ends in a NUL.
unsafe fn ours(dirfd: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && matches!(route(dirfd, unsafe { CStr::from_ptr(path) }), Route::Ours(_))
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

/// Lists a directory into memory for the caller to free.
///
/// # Safety
/// That of scandir(3).
unsafe fn list(dir: *mut DIR, to: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
    if dir.is_null() {
        return -1;
    }
    let mut found: Vec<*mut dirent> = Vec::new();
    // SAFETY: the caller's promise; an entry is as long as it says.
    unsafe {
        loop {
            set_errno(0);
            let entry = readdir(dir);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|f| f(entry) == 0) {
                continue;
            }
            let len = usize::from((*entry).d_reclen);
            let copy = libc::malloc(len);
            if copy.is_null() {
                set_errno(libc::ENOMEM);
                break;
            }
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), len);
            found.push(copy.cast());
        }
        let failed = errno();
        closedir(dir);
        let list: *mut *mut dirent = libc::malloc((found.len().max(1)) * size_of::<*mut dirent>()).cast();
        if failed != 0 || list.is_null() {
            found.iter().for_each(|e| libc::free((*e).cast()));
            libc::free(list.cast());
            return answer(Err(if failed != 0 { failed } else { libc::ENOMEM }));
        }
        std::ptr::copy_nonoverlapping(found.as_ptr(), list, found.len());
        if let Some(compare) = compare {
            type Any = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;
            let any: Any = std::mem::transmute(compare);
            libc::qsort(list.cast(), found.len(), size_of::<*mut dirent>(), Some(any));
        }
        *to = list;
    }
    found.len() as c_int
}

/// What a walk tells with each name.
#[repr(C)]
pub struct Place {
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const Stat, c_int, *mut Place) -> c_int;

const FTW_PHYS: c_int = 1;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;
const FTW_F: c_int = 0;
const FTW_D: c_int = 1;
const FTW_DNR: c_int = 2;
const FTW_NS: c_int = 3;
const FTW_SL: c_int = 4;
const FTW_DP: c_int = 5;
const FTW_SLN: c_int = 6;
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

struct Walk {
    visit: Visit,
    flags: c_int,
    /// It is ftw(3), which knows fewer kinds.
    plain: bool,
    /// Directories that were entered, where links are followed.
    seen: HashSet<(u64, u64)>,
}

impl Walk {
    /// Visits a path and what is below. Anything but 0 ends the walk.
    ///
    /// # Safety
    /// The function may be called as nftw(3) calls it.
    unsafe fn go(&mut self, path: &[u8], level: c_int) -> c_int {
        let Ok(name) = CString::new(path) else { return answer(Err(libc::EINVAL)) };
        let base = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1) as c_int;
        let mut place = Place { base, level };
        // SAFETY: the string ends in a NUL; all fields of a stat are integers; the caller's
        // promise.
        unsafe {
            let mut s: Stat = std::mem::zeroed();
            let follows = self.flags & FTW_PHYS == 0;
            let mut found =
                if follows { stat(name.as_ptr(), &raw mut s) } else { lstat(name.as_ptr(), &raw mut s) };
            let mut dangles = false;
            if found != 0 && follows && lstat(name.as_ptr(), &raw mut s) == 0 {
                (found, dangles) = (0, true);
            }
            let kind = match s.st_mode & libc::S_IFMT {
                _ if found != 0 && level == 0 => return -1,
                _ if found != 0 => FTW_NS,
                libc::S_IFLNK if self.plain => FTW_NS,
                libc::S_IFLNK if dangles => FTW_SLN,
                libc::S_IFLNK => FTW_SL,
                libc::S_IFDIR => FTW_D,
                _ => FTW_F,
            };
            if kind != FTW_D {
                return (self.visit)(name.as_ptr(), &raw const s, kind, &raw mut place);
            }
            if follows && !self.seen.insert((s.st_dev, s.st_ino)) {
                return 0;
            }
            let dir = opendir(name.as_ptr());
            if dir.is_null() {
                return (self.visit)(name.as_ptr(), &raw const s, FTW_DNR, &raw mut place);
            }
            let mut names = Vec::new();
            loop {
                let entry = readdir(dir);
                if entry.is_null() {
                    break;
                }
                let entry = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes();
                if entry != b"." && entry != b".." {
                    names.push(entry.to_vec());
                }
            }
            closedir(dir);
            let depth = self.flags & FTW_DEPTH != 0;
            if !depth {
                let result = (self.visit)(name.as_ptr(), &raw const s, FTW_D, &raw mut place);
                let acts = self.flags & FTW_ACTIONRETVAL != 0;
                match result {
                    0 => {}
                    SKIP_SUBTREE if acts => return 0,
                    _ => return result,
                }
            }
            for entry in names {
                let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
                match self.go(&[path, slash, &entry].concat(), level + 1) {
                    0 => {}
                    SKIP_SIBLINGS if self.flags & FTW_ACTIONRETVAL != 0 => break,
                    result => return result,
                }
            }
            if depth {
                return (self.visit)(name.as_ptr(), &raw const s, FTW_DP, &raw mut place);
            }
            0
        }
    }
}

/// Walks below a path of the volume.
///
/// # Safety
/// That of nftw(3).
unsafe fn walk(call: &'static Call, path: *const c_char, visit: Visit, flags: c_int, plain: bool) -> c_int {
    if flags & FTW_CHDIR != 0 {
        return answer(Err(call.refuse(libc::EOPNOTSUPP)));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut top = CStr::from_ptr(path).to_bytes();
        while top.len() > 1 && top.ends_with(b"/") {
            top = &top[..top.len() - 1];
        }
        Walk { visit, flags, plain, seen: HashSet::new() }.go(top, 0)
    }
}

/// What glob(3) fills, of which its caller may give the functions that list.
#[repr(C)]
struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: unsafe extern "C" fn(*mut DIR) -> c_int,
    readdir: unsafe extern "C" fn(*mut DIR) -> *mut dirent,
    opendir: unsafe extern "C" fn(*const c_char) -> *mut DIR,
    lstat: unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int,
    stat: unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

unsafe extern "C" fn close_dir(dir: *mut DIR) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { closedir(dir) }
}

/// Returns the flags with which glob(3) lists by the hooks, if a pattern may be the volume's.
///
/// # Safety
/// That of glob(3).
unsafe fn listed_by_hooks(pattern: *const c_char, flags: c_int, to: *mut Glob) -> c_int {
    let Some(settings) = settings() else { return flags };
    if pattern.is_null() || to.is_null() || flags & GLOB_ALTDIRFUNC != 0 {
        return flags;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let text = CStr::from_ptr(pattern).to_bytes();
        let names = text.windows(settings.last.len()).any(|w| w == settings.last);
        if !names && !cwd_is_ours() {
            return flags;
        }
        (*to).closedir = close_dir;
        (*to).readdir = readdir;
        (*to).opendir = opendir;
        (*to).lstat = lstat;
        (*to).stat = stat;
    }
    flags | GLOB_ALTDIRFUNC
}

hook! {
    /// Lists a directory.
    fn scandir(path: *const c_char, to: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
        if ours(libc::AT_FDCWD, path) { list(opendir(path), to, filter, compare) } else { real(path, to, filter, compare) }
    }
    /// Lists a directory.
    fn scandir64(path: *const c_char, to: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
        scandir(path, to, filter, compare)
    }
    /// Lists a directory beginning at a directory.
    fn scandirat(dirfd: c_int, path: *const c_char, to: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
        if !ours(dirfd, path) { return real(dirfd, path, to, filter, compare); }
        let fd = openat(dirfd, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0);
        if fd < 0 { return -1; }
        list(if is_ours(fd) { fdopendir(fd) } else { libc::fdopendir(fd) }, to, filter, compare)
    }
    /// Lists a directory beginning at a directory.
    fn scandirat64(dirfd: c_int, path: *const c_char, to: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
        scandirat(dirfd, path, to, filter, compare)
    }
    /// Walks a tree.
    fn nftw(path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int) -> c_int {
        if ours(libc::AT_FDCWD, path) { walk(&CALL, path, visit, flags, false) } else { real(path, visit, descriptors, flags) }
    }
    /// Walks a tree.
    fn nftw64(path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int) -> c_int {
        nftw(path, visit, descriptors, flags)
    }
    /// Walks a tree, following links.
    fn ftw(path: *const c_char, visit: Visit, descriptors: c_int) -> c_int {
        if ours(libc::AT_FDCWD, path) { walk(&CALL, path, visit, 0, true) } else { real(path, visit, descriptors) }
    }
    /// Walks a tree, following links.
    fn ftw64(path: *const c_char, visit: Visit, descriptors: c_int) -> c_int {
        ftw(path, visit, descriptors)
    }
    /// Finds names by a pattern.
    fn glob(pattern: *const c_char, flags: c_int, failed: *const c_void, to: *mut c_void) -> c_int {
        real(pattern, listed_by_hooks(pattern, flags, to.cast()), failed, to)
    }
    /// Finds names by a pattern.
    fn glob64(pattern: *const c_char, flags: c_int, failed: *const c_void, to: *mut c_void) -> c_int {
        real(pattern, listed_by_hooks(pattern, flags, to.cast()), failed, to)
    }
}
