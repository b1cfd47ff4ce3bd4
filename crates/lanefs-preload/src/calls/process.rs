//! Other programs and the end of this one.
//!
//! A program that is started gets the library and its settings too, whatever environment it is
//! given: it sees "in use" below the prefix for as long as this process has the volume, and never
//! the host's files.

use super::standard;
use crate::attributes::errno;
use crate::environment::{self, Strings, environ, strings};
use crate::hook::{answer, hook};
use crate::raw::sys;
use crate::report::Call;
use crate::route::{self, Route, route};
use crate::settings::{Mount, Settings, settings};
use crate::table::{self, Description, is_ours};
use crate::{handing, links, opening, placeholder, served, volume};
use lanefs::Ino;
use std::arch::naked_asm;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An environment with the library and its settings.
struct Environment {
    /// What the pointers below refer to.
    own: Vec<CString>,
    all: Vec<*const c_char>,
}

/// Returns what the library's own settings have in LD_PRELOAD: what else stands there is in the
/// program's environment too, where that was restored.
fn own_preload(settings: &Settings) -> &[u8] {
    let restored = settings.mount.as_ref().is_some_and(|m| m.at_prefix);
    let end = settings.preload.iter().position(|b| *b == b':').filter(|_| restored);
    &settings.preload[..end.unwrap_or(settings.preload.len())]
}

/// Has the environment be that of a program whose children have a mount: without the library, if
/// the mount is at the prefix, and else with the place of the mount. Called before the program
/// begins. What main(3) has as its third argument is changed with it.
pub fn tell_children(settings: &Settings, mount: &Mount) {
    environment::set("LANEFS_MOUNT", None);
    if !mount.at_prefix {
        environment::set("LANEFS_MOUNTED", Some(&mount.dir));
        return;
    }
    for name in ["LANEFS_PREFIX", "LANEFS_IMAGES", "LANEFS_CACHE"] {
        environment::set(name, None);
    }
    environment::set("LD_PRELOAD", settings.preload.get(own_preload(settings).len() + 1..));
}

/// Returns the environment for a program that is started beside this one, or by a child; `None`:
/// the one that was given.
///
/// # Safety
/// It is NULL or a list of strings that ends in NULL.
unsafe fn for_child(environment: Strings) -> Option<Environment> {
    if served::is_host() {
        // SAFETY: the caller's promise.
        return Some(unsafe { without_library(environment) });
    }
    // SAFETY: the caller's promise.
    if served::is_at_prefix() { None } else { unsafe { with_library(environment, false) } }
}

/// Takes the library out of an environment, for a program that the library itself needs.
///
/// # Safety
/// It is NULL or a list of strings that ends in NULL.
unsafe fn without_library(environment: Strings) -> Environment {
    // SAFETY: the caller's promise.
    let given = unsafe { strings(environment) };
    let kept = given.into_iter().filter(|e| {
        let name = e.to_bytes();
        !name.starts_with(b"LD_PRELOAD=") && !name.starts_with(b"LANEFS_")
    });
    let all = kept.map(CStr::as_ptr).chain([std::ptr::null()]).collect();
    Environment { own: Vec::new(), all }
}

/// Adds the library and its settings to an environment; `is_owner`: of the program that takes the
/// place of this one.
///
/// # Safety
/// It is NULL or a list of strings that ends in NULL.
unsafe fn with_library(environment: Strings, is_owner: bool) -> Option<Environment> {
    let settings = settings()?;
    let mut own: Vec<CString> = Vec::new();
    let mut set = |name: &str, value: &[u8]| {
        own.extend(CString::new([name.as_bytes(), b"=", value].concat()));
    };
    let mut all = Vec::new();
    let mut preload = own_preload(settings).to_vec();
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
            && !text.starts_with(b"LANEFS_MOUNT=")
            && !text.starts_with(b"LANEFS_MOUNTED=")
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
    match &settings.mount {
        Some(mount) if is_owner => set("LANEFS_MOUNT", &mount.dir),
        Some(mount) => set("LANEFS_MOUNTED", &mount.dir),
        None => {
            if let Some(dir) = &settings.mounted {
                set("LANEFS_MOUNTED", dir);
            }
        }
    }
    if let Some(dir) = route::cwd_path() {
        set("LANEFS_CWD", &[settings.prefix.as_slice(), &dir].concat());
    }
    all.extend(own.iter().map(|s| s.as_ptr()));
    all.push(std::ptr::null());
    Some(Environment { own, all })
}

/// Where a program lies that is to be started.
enum Lies {
    /// On the host, by the path that was given.
    Host,
    /// On the host, by another path: a link of the volume leads there.
    HostAt(CString),
}

impl Lies {
    /// Returns the path to start it by.
    fn path(&self, given: *const c_char) -> *const c_char {
        match self {
            Lies::Host => given,
            Lies::HostAt(path) => path.as_ptr(),
        }
    }
}

/// Finds out where a program lies.
///
/// # Errors
/// EACCES: in the volume, from where the kernel cannot start it. Those of the walk.
///
/// # Safety
/// The path is NULL or ends in a NUL.
unsafe fn lies(call: &'static Call, (dirfd, path): (c_int, *const c_char)) -> Result<Lies, c_int> {
    if path.is_null() {
        return Ok(Lies::Host);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(path) };
    let spot = match route(dirfd, text) {
        Route::Host => return Ok(Lies::Host),
        Route::HostPath(to) => return Ok(Lies::HostAt(to)),
        Route::Ours(spot) => spot,
    };
    if !volume::is_owner() {
        return Err(call.refuse(libc::EACCES));
    }
    let to = volume::serve(call, |v| match links::with(&spot, v, |fs, p| fs.stat(p).map_err(errno)) {
        Ok(_) => Ok(None),
        Err(_) => links::canonical(v, &spot).map(|(to, is_host)| is_host.then_some(to)),
    })?;
    match to.and_then(|to| CString::new(to).ok()) {
        Some(to) => Ok(Lies::HostAt(to)),
        None => {
            say_once(text);
            Err(call.refuse(libc::EACCES))
        }
    }
}

/// Says why a program of the volume is not started.
fn say_once(path: &CStr) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let path = path.to_string_lossy();
    volume::say(&match served::is_at_prefix() {
        true => format!(
            "{path}: a program that lies in the volume cannot take the place of the process which \
             has it: EACCES; start it as a child"
        ),
        false => format!(
            "{path}: a program that lies in the volume is not started from there: EACCES; its \
             interpreter may be: `python3 FILE`, `sh FILE`"
        ),
    });
}

/// Returns whether a path is not the host's.
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
    real: impl Fn(*const c_char, Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let lies = match lies(call, (dirfd, path)) {
            Ok(lies) => lies,
            Err(e) => return answer(Err(e)),
        };
        let path = lies.path(path);
        let real = |environment| real(path, environment);
        if !volume::is_owner() {
            return match for_child(environment) {
                Some(with) => real(with.all.as_ptr()),
                None => real(environment),
            };
        }
        if served::directory().is_some() {
            // A program that is looked for in many places is in one.
            if !path.is_null() && sys!(libc::SYS_faccessat, dirfd, path, libc::X_OK) < 0 {
                return real(environment);
            }
            handing::take_back();
            if route::cwd_is_ours() {
                // It would keep the mount busy. Where it cannot be left, the mount goes lazily.
                let _ = placeholder::leave_host_directory();
            }
        }
        volume::before_exec();
        let result = match with_library(environment, true) {
            Some(mut with) => {
                if let Some(handed) = handed_on().and_then(|h| CString::new(h).ok()) {
                    with.all.insert(0, handed.as_ptr());
                    with.own.push(handed);
                }
                real(with.all.as_ptr())
            }
            None => real(environment),
        };
        volume::after_failed_exec();
        result
    }
}

/// Starts another program beside this one; answers the errno itself.
///
/// # Safety
/// That of posix_spawn(3).
unsafe fn beside(
    call: &'static Call,
    path: *const c_char,
    environment: Strings,
    real: impl Fn(*const c_char, Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        // By a mount at the prefix the child finds it there.
        let lies = match served::is_at_prefix() {
            true => Lies::Host,
            false => match lies(call, (libc::AT_FDCWD, path)) {
                Ok(lies) => lies,
                Err(e) => return e,
            },
        };
        let path = lies.path(path);
        handing::before_fork();
        match for_child(environment) {
            Some(with) => real(path, with.all.as_ptr()),
            None => real(path, environment),
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
        let flags = unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFD) };
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
                let access = flags & (libc::O_ACCMODE | libc::O_SYNC | libc::O_PATH);
                let file = v.node_open(volume::view(v).cred(), Ino(ino), access).map_err(errno)?;
                if flags & libc::O_PATH == 0 {
                    file.lseek(at as i64, libc::SEEK_SET).map_err(errno)?;
                }
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
        replace(&CALL, (libc::AT_FDCWD, path), environment, |p, e| real(p, arguments, e))
    }
    /// Starts another program.
    fn execv(path: *const c_char, arguments: Strings) -> c_int {
        execve(path, arguments, environ)
    }
    /// Starts another program that is looked for.
    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        let has_slash = !file.is_null() && CStr::from_ptr(file).to_bytes().contains(&b'/');
        let place = if has_slash { file } else { std::ptr::null() };
        replace(&CALL, (libc::AT_FDCWD, place), environment, |p, e| real(if p.is_null() { file } else { p }, arguments, e))
    }
    /// Starts another program that is looked for.
    fn execvp(file: *const c_char, arguments: Strings) -> c_int {
        execvpe(file, arguments, environ)
    }
    /// Starts another program by its descriptor.
    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
        if is_ours(fd) { return answer(Err(CALL.refuse(libc::EACCES))); }
        replace(&CALL, (fd, std::ptr::null()), environment, |_, e| real(fd, arguments, e))
    }
    /// Starts another program beginning at a directory.
    fn execveat(dirfd: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int {
        if is_ours(dirfd) { return answer(Err(CALL.refuse(libc::EACCES))); }
        replace(&CALL, (dirfd, path), environment, |p, e| real(dirfd, p, arguments, e, flags))
    }
    /// Starts another program beside this one; answers the errno itself.
    fn posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings) -> c_int {
        beside(&CALL, path, environment, |p, e| real(pid, p, actions, attributes, arguments, e))
    }
    /// Starts another program that is looked for; answers the errno itself.
    fn posix_spawnp(pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, environment: Strings) -> c_int {
        let has_slash = !file.is_null() && CStr::from_ptr(file).to_bytes().contains(&b'/');
        let place = if has_slash { file } else { std::ptr::null() };
        beside(&CALL, place, environment, |p, e| {
            real(pid, if p.is_null() { file } else { p }, actions, attributes, arguments, e)
        })
    }
    /// Has a program that will be started open a file: none of the volume, which is another
    /// process's then, but through a mount at the prefix.
    fn posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
        if is_in_volume(libc::AT_FDCWD, path) && !served::is_at_prefix() { return CALL.refuse(libc::EBUSY); }
        real(actions, fd, path, flags, mode)
    }
    /// Has a program that will be started begin in a directory.
    fn posix_spawn_file_actions_addchdir_np(actions: *mut c_void, path: *const c_char) -> c_int {
        if is_in_volume(libc::AT_FDCWD, path) && !served::is_at_prefix() { return CALL.refuse(libc::EBUSY); }
        real(actions, path)
    }
    /// Forks; what is open is handed over, if a mount is served.
    fn fork() -> libc::pid_t {
        handing::before_fork();
        real()
    }
    /// Forks: the child would use the parent's memory, and with it the volume.
    fn vfork() -> libc::pid_t {
        fork()
    }
    /// Forks, with a terminal of the child's own.
    fn forkpty(fd: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void) -> libc::pid_t {
        handing::before_fork();
        real(fd, name, settings, size)
    }
    /// Has the shell run a command, and waits for it.
    fn system(command: *const c_char) -> c_int {
        handing::before_fork();
        real(command)
    }
    /// Has the shell run a command beside this program.
    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        handing::before_fork();
        real(command, mode)
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

/// Defines a function that formats, whose arguments come in a `va_list` to the function behind it:
/// one with `$named` arguments before them, each a word, which takes the list in the register
/// `$list`. `$save` puts the registers that are left to the list where that looks for them.
macro_rules! formats {
    ($($(#[$about:meta])* $name:ident($named:literal, $list:literal) => $to:path: [$($save:literal),*])*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// That of dprintf(3).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "sub rsp, 216",
                $($save,)*
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
                "mov dword ptr [rsp], {used}",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {to}",
                "add rsp, 216",
                "ret",
                used = const $named * 8,
                to = sym $to,
            )
        }
    )*};
}

formats! {
    /// Formats onto a descriptor.
    dprintf(2, "rdx") => super::streams::vdprintf:
        ["mov [rsp + 48], rdx", "mov [rsp + 56], rcx", "mov [rsp + 64], r8", "mov [rsp + 72], r9"]
    /// Formats onto a descriptor, with the check of fortified programs.
    __dprintf_chk(3, "rcx") => super::streams::__vdprintf_chk:
        ["mov [rsp + 56], rcx", "mov [rsp + 64], r8", "mov [rsp + 72], r9"]
}
