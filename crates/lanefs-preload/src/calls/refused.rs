//! What cannot be served: refused below the prefix, and never asked of the host there.

use crate::hook::{Real, answer, hook};
use crate::report::Call;
use crate::route::{Route, route};
use crate::table::is_ours;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

/// Returns whether a path is not the host's as it stands.
///
/// # Safety
/// It is NULL or ends in a NUL.
unsafe fn is_below(dirfd: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && !matches!(route(dirfd, unsafe { CStr::from_ptr(path) }), Route::Host)
}

/// Returns whether an address is that of a socket with a name below the prefix.
///
/// # Safety
/// That of bind(2).
unsafe fn is_socket_below(address: *const libc::sockaddr_un, len: u32) -> bool {
    if address.is_null() || len <= 2 {
        return false;
    }
    // SAFETY: the caller's promise: so many bytes may be read.
    unsafe {
        if i32::from((*address).sun_family) != libc::AF_UNIX {
            return false;
        }
        let bytes =
            std::slice::from_raw_parts((&raw const (*address).sun_path).cast::<u8>(), len as usize - 2);
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        end > 0 && std::ffi::CString::new(&bytes[..end]).is_ok_and(|p| is_below(libc::AT_FDCWD, p.as_ptr()))
    }
}

hook! {
    /// Gives a socket a name.
    fn bind(fd: c_int, address: *const libc::sockaddr_un, len: u32) -> c_int {
        if is_socket_below(address, len) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
        real(fd, address, len)
    }
    /// Calls a socket by its name.
    fn connect(fd: c_int, address: *const libc::sockaddr_un, len: u32) -> c_int {
        if is_socket_below(address, len) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
        real(fd, address, len)
    }
    /// Watches names.
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
        if is_below(libc::AT_FDCWD, path) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
        real(fd, path, mask)
    }
    /// Watches names.
    fn fanotify_mark(fd: c_int, flags: u32, mask: u64, dirfd: c_int, path: *const c_char) -> c_int {
        if is_below(dirfd, path) || is_ours(dirfd) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
        real(fd, flags, mask, dirfd, path)
    }
    /// Changes the root.
    fn chroot(path: *const c_char) -> c_int {
        if is_below(libc::AT_FDCWD, path) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
        real(path)
    }
    /// Mounts.
    fn mount(source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int {
        if is_below(libc::AT_FDCWD, source) || is_below(libc::AT_FDCWD, target) {
            return answer(Err(CALL.refuse(libc::EOPNOTSUPP)));
        }
        real(source, target, kind, flags, data)
    }
    /// Unmounts.
    fn umount2(target: *const c_char, flags: c_int) -> c_int {
        if is_below(libc::AT_FDCWD, target) { return answer(Err(CALL.refuse(libc::EINVAL))); }
        real(target, flags)
    }
    /// Makes a handle of a name.
    fn name_to_handle_at(dirfd: c_int, path: *const c_char, handle: *mut c_void, id: *mut c_int, flags: c_int) -> c_int {
        if is_below(dirfd, path) || is_ours(dirfd) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
        real(dirfd, path, handle, id, flags)
    }
    /// Walks trees; programs that bring their own walk are served.
    fn fts_open(paths: *const *const c_char, options: c_int, compare: *const c_void) -> *mut c_void {
        let mut at = paths;
        while !at.is_null() && !(*at).is_null() {
            if is_below(libc::AT_FDCWD, *at) { return answer(Err(CALL.refuse(libc::EOPNOTSUPP))); }
            at = at.add(1);
        }
        real(paths, options, compare)
    }
    /// Walks trees.
    fn fts64_open(paths: *const *const c_char, options: c_int, compare: *const c_void) -> *mut c_void {
        fts_open(paths, options, compare)
    }
}

/// Returns the address of the function that goes on with dlopen(3).
///
/// # Safety
/// The path is NULL or ends in a NUL.
unsafe extern "C" fn loader(path: *const c_char) -> usize {
    static CALL: Call = Call::new("dlopen");
    static REAL: Real = Real::new(c"dlopen");
    // SAFETY: the caller's promise. A name without a slash is looked for by the loader.
    let below = unsafe {
        !path.is_null() && CStr::from_ptr(path).to_bytes().contains(&b'/') && is_below(libc::AT_FDCWD, path)
    };
    if below {
        CALL.refuse(libc::EOPNOTSUPP);
        return load_nothing as *const () as usize;
    }
    REAL.get()
}

/// Fails to load, with a message that dlerror(3) gives.
extern "C" fn load_nothing(_: *const c_char, flags: c_int) -> *mut c_void {
    static REAL: Real = Real::new(c"dlopen");
    // SAFETY: the C library's function of this name has this signature; the name ends in a NUL.
    unsafe {
        let real: extern "C" fn(*const c_char, c_int) -> *mut c_void = std::mem::transmute(REAL.get());
        real(c"/proc/self/fd/-1: libraries are not loaded from a volume, mount it instead".as_ptr(), flags)
    }
}

/// Loads a library. The loader looks who calls it, so it must be the caller who does.
///
/// # Safety
/// That of dlopen(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {loader}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        loader = sym loader,
    )
}
