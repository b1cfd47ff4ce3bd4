//! Other programs and the end of this one.
//!
//! A program that is started gets the library and its settings too, whatever environment it is
//! given: it sees "in use" below the prefix for as long as this process has the volume, and never
//! the host's files.

use super::standard;
use crate::attributes::errno;
use crate::hook::{answer, hook};
use crate::report::Call;
use crate::route::{self, Route, route};
use crate::settings::settings;
use crate::table::{self, Description, is_ours};
use crate::{opening, placeholder, volume};
use lanefs::Ino;
use std::arch::naked_asm;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// An environment with the library and its settings.
struct Environment {
    /// What the pointers below refer to.
    own: Vec<CString>,
    all: Vec<*const c_char>,
}

/// Returns the strings of a list that ends in NULL.
///
/// # Safety
/// It is NULL or such a list.
unsafe fn strings<'a>(list: Strings) -> Vec<&'a CStr> {
    let mut out = Vec::new();
    if list.is_null() {
        return out;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = list;
        while !(*at).is_null() {
            out.push(CStr::from_ptr(*at));
            at = at.add(1);
        }
    }
    out
}

/// Adds the library and its settings to an environment.
///
/// # Safety
/// It is NULL or a list of strings that ends in NULL.
unsafe fn with_library(environment: Strings) -> Option<Environment> {
    let settings = settings()?;
    let mut own: Vec<CString> = Vec::new();
    let mut set = |name: &str, value: &[u8]| {
        own.extend(CString::new([name.as_bytes(), b"=", value].concat()));
    };
    let mut all = Vec::new();
    let mut preload = settings.preload.clone();
    // SAFETY: the caller's promise.
    for entry in unsafe { strings(environment) } {
        let text = entry.to_bytes();
        if let Some(others) = text.strip_prefix(b"LD_PRELOAD=") {
            let has = |o: &[u8]| o.windows(preload.len()).any(|w| w == preload);
            if !preload.is_empty() && !others.is_empty() && !has(others) {
                preload.push(b':');
                preload.extend_from_slice(others);
            } else if has(others) {
                preload = others.to_vec();
            }
        } else if !text.starts_with(b"LANEFS_PREFIX=")
            && !text.starts_with(b"LANEFS_IMAGES=")
            && !text.starts_with(b"LANEFS_CWD=")
            && !text.starts_with(b"LANEFS_CACHE=")
            && !text.starts_with(b"LANEFS_FDS=")
        {
            all.push(entry.as_ptr());
        }
    }
    let images: Vec<&[u8]> = settings.images.iter().map(|i| i.as_os_str().as_encoded_bytes()).collect();
    set("LD_PRELOAD", &preload);
    set("LANEFS_PREFIX", &settings.prefix);
    set("LANEFS_IMAGES", &images.join(&b"\n"[..]));
    if settings.cache > 0 {
        set("LANEFS_CACHE", settings.cache.to_string().as_bytes());
    }
    if let Some(dir) = route::cwd_path() {
        set("LANEFS_CWD", &[settings.prefix.as_slice(), &dir].concat());
    }
    all.extend(own.iter().map(|s| s.as_ptr()));
    all.push(std::ptr::null());
    Some(Environment { own, all })
}

/// Returns whether a program lies in the volume, from where the kernel cannot start it.
///
/// # Safety
/// The path is NULL or ends in a NUL.
unsafe fn is_in_volume(dirfd: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && !matches!(route(dirfd, unsafe { CStr::from_ptr(path) }), Route::Host)
}

/// Starts another program in place of this one.
///
/// # Safety
/// That of execve(2).
unsafe fn replace(
    call: &'static Call,
    (dirfd, path): (c_int, *const c_char),
    environment: Strings,
    real: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if is_in_volume(dirfd, path) {
            return answer(Err(call.refuse(libc::EACCES)));
        }
        volume::before_exec();
        match with_library(environment) {
            Some(mut with) => {
                if let Some(handed) = handed_on().and_then(|h| CString::new(h).ok()) {
                    with.all.insert(0, handed.as_ptr());
                    with.own.push(handed);
                }
                real(with.all.as_ptr())
            }
            None => real(environment),
        }
    }
}

/// Describes the volume's descriptors that stay open when another program takes the place of this
/// one, which has the volume then: a line for each with its number, the open file that it shares
/// with others, the inode, flags and position.
fn handed_on() -> Option<String> {
    if !volume::is_open() || !volume::is_owner() {
        return None;
    }
    let mut out = String::from("LANEFS_FDS=");
    for fd in table::in_range(0, u32::MAX) {
        // SAFETY: F_GETFD takes any number.
        let flags = unsafe { crate::raw::sys!(libc::SYS_fcntl, fd, libc::F_GETFD) };
        let Some(d) = table::get(fd).filter(|_| flags == 0) else { continue };
        let at = d.file.lseek(0, libc::SEEK_CUR).unwrap_or(0);
        let (shared, flags) = (Arc::as_ptr(&d) as usize, d.flags.load(Ordering::Relaxed));
        out += &format!("{fd} {shared} {} {flags} {at}\n", d.file.ino().0);
    }
    Some(out)
}

/// Takes over the descriptors that the program before this one has handed on.
pub fn take_over(handed: &str) {
    static CALL: Call = Call::new("exec");
    let mut open: HashMap<u64, Arc<Description>> = HashMap::new();
    for line in handed.lines() {
        let numbers: Vec<u64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [fd, shared, ino, flags, at] = numbers[..] else { continue };
        let (fd, flags) = (fd as c_int, flags as c_int);
        if !placeholder::is_one(fd) {
            continue;
        }
        let found = volume::serve(&CALL, |v| match open.get(&shared) {
            Some(d) => Ok(d.clone()),
            None => {
                let access = flags & (libc::O_ACCMODE | libc::O_SYNC);
                let file = v.node_open(volume::view(v).cred(), Ino(ino), access).map_err(errno)?;
                file.lseek(at as i64, libc::SEEK_SET).map_err(errno)?;
                Ok(Arc::new(opening::description(file, flags)?))
            }
        });
        // What is gone meanwhile stays a descriptor that has nothing to give.
        let Ok(description) = found else { continue };
        open.insert(shared, description.clone());
        if table::set(fd, description).is_ok() {
            standard::redirected(fd);
        }
    }
}

hook! {
    /// Starts another program.
    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        replace(&CALL, (libc::AT_FDCWD, path), environment, |e| real(path, arguments, e))
    }
    /// Starts another program.
    fn execv(path: *const c_char, arguments: Strings) -> c_int {
        execve(path, arguments, environ)
    }
    /// Starts another program that is looked for.
    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        let has_slash = !file.is_null() && CStr::from_ptr(file).to_bytes().contains(&b'/');
        let place = if has_slash { file } else { std::ptr::null() };
        replace(&CALL, (libc::AT_FDCWD, place), environment, |e| real(file, arguments, e))
    }
    /// Starts another program that is looked for.
    fn execvp(file: *const c_char, arguments: Strings) -> c_int {
        execvpe(file, arguments, environ)
    }
    /// Starts another program by its descriptor.
    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
        if is_ours(fd) { return answer(Err(CALL.refuse(libc::EACCES))); }
        replace(&CALL, (fd, std::ptr::null()), environment, |e| real(fd, arguments, e))
    }
    /// Starts another program beginning at a directory.
    fn execveat(dirfd: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int {
        if is_ours(dirfd) { return answer(Err(CALL.refuse(libc::EACCES))); }
        replace(&CALL, (dirfd, path), environment, |e| real(dirfd, path, arguments, e, flags))
    }
    /// Starts another program beside this one; answers the errno itself.
    fn posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings) -> c_int {
        if is_in_volume(libc::AT_FDCWD, path) { return CALL.refuse(libc::EACCES); }
        match with_library(environment) {
            Some(with) => real(pid, path, actions, attributes, arguments, with.all.as_ptr()),
            None => real(pid, path, actions, attributes, arguments, environment),
        }
    }
    /// Starts another program that is looked for; answers the errno itself.
    fn posix_spawnp(pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings) -> c_int {
        let has_slash = !file.is_null() && CStr::from_ptr(file).to_bytes().contains(&b'/');
        if has_slash && is_in_volume(libc::AT_FDCWD, file) { return CALL.refuse(libc::EACCES); }
        match with_library(environment) {
            Some(with) => real(pid, file, actions, attributes, arguments, with.all.as_ptr()),
            None => real(pid, file, actions, attributes, arguments, environment),
        }
    }
    /// Has a program that will be started open a file: none of the volume, which is another
    /// process's then.
    fn posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
        if is_in_volume(libc::AT_FDCWD, path) { return CALL.refuse(libc::EBUSY); }
        real(actions, fd, path, flags, mode)
    }
    /// Has a program that will be started begin in a directory.
    fn posix_spawn_file_actions_addchdir_np(actions: *mut c_void, path: *const c_char) -> c_int {
        if is_in_volume(libc::AT_FDCWD, path) { return CALL.refuse(libc::EBUSY); }
        real(actions, path)
    }
    /// Forks: the child would use the parent's memory, and with it the volume.
    fn vfork() -> libc::pid_t {
        libc::fork()
    }
    /// Goes on in a child, which does not have the volume; this process ends past its handlers.
    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
        volume::before_exec();
        real(no_chdir, no_close)
    }
    /// Ends the process.
    fn _exit(code: c_int) -> () {
        volume::close();
        real(code)
    }
    /// Ends the process.
    fn _Exit(code: c_int) -> () {
        volume::close();
        real(code)
    }
}

/// Takes the arguments of execl and its kind: five in registers, the others on the stack.
///
/// # Safety
/// `registers` are five, and the list of both ends in NULL.
unsafe fn gathered(registers: Strings, stack: Strings) -> (Vec<*const c_char>, Strings) {
    let mut all = Vec::new();
    // SAFETY: the caller's promise: what is read lies before the NULL, or is it, or, for execle,
    // what follows it.
    unsafe {
        let at = |i: usize| if i < 5 { *registers.add(i) } else { *stack.add(i - 5) };
        let mut i = 0;
        loop {
            let next = at(i);
            all.push(next);
            i += 1;
            if next.is_null() {
                return (all, if i < 5 { registers.add(i) } else { stack.add(i - 5) });
            }
        }
    }
}

/// # Safety
/// Called by `execl` alone.
unsafe extern "C" fn execl_with(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, gathered(registers, stack).0.as_ptr(), environ) }
}

/// # Safety
/// Called by `execlp` alone.
unsafe extern "C" fn execlp_with(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, gathered(registers, stack).0.as_ptr(), environ) }
}

/// # Safety
/// Called by `execle` alone.
unsafe extern "C" fn execle_with(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's promise: the environment follows the NULL.
    unsafe {
        let (arguments, rest) = gathered(registers, stack);
        execve(path, arguments.as_ptr(), (*rest).cast())
    }
}

/// Defines a function with any number of arguments, whose registers are put where the second
/// argument of `$to` points, and whose stack where the third does.
macro_rules! listed {
    ($($(#[$about:meta])* $name:ident => $to:ident)*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// That of the C library's function of the same name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {to}",
                "add rsp, 40",
                "ret",
                to = sym $to,
            )
        }
    )*};
}

listed! {
    /// Starts another program with the arguments of the call.
    execl => execl_with
    /// Starts another program that is looked for.
    execlp => execlp_with
    /// Starts another program with an environment.
    execle => execle_with
}

/// Formats onto a descriptor.
///
/// # Safety
/// That of dprintf(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dprintf() {
    naked_asm!(
        "sub rsp, 216",
        "mov [rsp + 48], rdx",
        "mov [rsp + 56], rcx",
        "mov [rsp + 64], r8",
        "mov [rsp + 72], r9",
        "test al, al",
        "je 2f",
        "movaps [rsp + 80], xmm0",
        "movaps [rsp + 96], xmm1",
        "movaps [rsp + 112], xmm2",
        "movaps [rsp + 128], xmm3",
        "movaps [rsp + 144], xmm4",
        "movaps [rsp + 160], xmm5",
        "movaps [rsp + 176], xmm6",
        "movaps [rsp + 192], xmm7",
        "2:",
        "mov dword ptr [rsp], 16",
        "mov dword ptr [rsp + 4], 48",
        "lea rax, [rsp + 224]",
        "mov [rsp + 8], rax",
        "lea rax, [rsp + 32]",
        "mov [rsp + 16], rax",
        "mov rdx, rsp",
        "call {to}",
        "add rsp, 216",
        "ret",
        to = sym super::streams::vdprintf,
    )
}

/// Formats onto a descriptor, with the check of fortified programs.
///
/// # Safety
/// That of dprintf(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __dprintf_chk() {
    naked_asm!(
        "sub rsp, 216",
        "mov [rsp + 56], rcx",
        "mov [rsp + 64], r8",
        "mov [rsp + 72], r9",
        "test al, al",
        "je 2f",
        "movaps [rsp + 80], xmm0",
        "movaps [rsp + 96], xmm1",
        "movaps [rsp + 112], xmm2",
        "movaps [rsp + 128], xmm3",
        "movaps [rsp + 144], xmm4",
        "movaps [rsp + 160], xmm5",
        "movaps [rsp + 176], xmm6",
        "movaps [rsp + 192], xmm7",
        "2:",
        "mov dword ptr [rsp], 24",
        "mov dword ptr [rsp + 4], 48",
        "lea rax, [rsp + 224]",
        "mov [rsp + 8], rax",
        "lea rax, [rsp + 32]",
        "mov [rsp + 16], rax",
        "mov rcx, rsp",
        "call {to}",
        "add rsp, 216",
        "ret",
        to = sym super::streams::__vdprintf_chk,
    )
}
