//! The volume: opened when it is first needed, closed when the process ends, and whose it is.

use crate::hook::{errno, set_errno};
use crate::raw::sys;
use crate::report::{self, Call};
use crate::settings::{Settings, settings};
use crate::{notices, placeholder, served, shared, stderr};
use lanefs::{Cred, Fs, MountOptions, Volume};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The open volume, or why it could not be opened.
static VOLUME: OnceLock<Result<Volume, c_int>> = OnceLock::new();
/// The volume as the program sees it now: its credential and its umask. Never freed.
static VIEW: AtomicPtr<Fs> = AtomicPtr::new(std::ptr::null_mut());
/// A page of which the child of a fork gets an empty copy (P2).
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The descriptors of the images and of the mount, which a child of a fork closes: they would hold
/// the images' lock, and keep the mount from failing when the owner is killed. -1: none.
static DESCRIPTORS: [AtomicI32; 256] = [const { AtomicI32::new(-1) }; 256];
/// The child has said that the volume is not its own.
static SAID: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How deep this thread is within the volume.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread is within the volume: then the caller is the library itself, or a
/// signal handler.
pub fn is_inside() -> bool {
    INSIDE.with(Cell::get) > 0
}

/// Marks this thread as within the volume, and keeps its errno.
struct Inside(c_int);

impl Inside {
    fn enter() -> Inside {
        INSIDE.with(|i| i.set(i.get() + 1));
        Inside(errno())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|i| i.set(i.get() - 1));
        set_errno(self.0);
    }
}

/// Writes a line to the standard error, past everything that buffers.
pub fn say(line: &str) {
    stderr::write(format!("lanefs run: {line}\n").as_bytes());
}

/// Returns whether the volume is this process's: it was opened here, or by nobody yet (P2).
pub fn is_owner() -> bool {
    // SAFETY: the page is mapped when its address is stored, and stays.
    match unsafe { OWNER.load(Ordering::Acquire).as_ref() } {
        Some(page) => page.load(Ordering::Relaxed) == 1,
        None => true,
    }
}

/// Returns whether the volume was opened, here or before a fork.
pub fn is_open() -> bool {
    matches!(VOLUME.get(), Some(Ok(_)))
}

/// Answers a call in a process whose parent has the volume.
fn not_ours() -> c_int {
    if !SAID.swap(true, Ordering::Relaxed) {
        let prefix = settings().map(|s| String::from_utf8_lossy(&s.prefix)).unwrap_or_default();
        let child = std::process::id();
        say(&match served::directory() {
            Some(m) if m.at_prefix => format!(
                "a file at {prefix} was opened by another process and not handed on to its child \
                 {child}: EIO; see docs/RUN.md, \"Children\""
            ),
            _ => format!(
                "the volume at {prefix} belongs to the process that opened it, not to its child \
                 {child}: EIO; {}",
                advice()
            ),
        });
    }
    libc::EIO
}

/// Returns what to do where another process has the volume.
fn advice() -> String {
    let shown = |dir: &[u8]| String::from_utf8_lossy(dir).into_owned();
    let mounted = served::directory().map(|m| &m.dir).or(settings().and_then(|s| s.mounted.as_ref()));
    match mounted {
        Some(dir) => format!("its files are at {}, where it is mounted", shown(dir)),
        None => match settings() {
            Some(s) => format!("use `lanefs run --mount {}`, or mount it instead", shown(&s.prefix)),
            None => "mount it instead".into(),
        },
    }
}

/// Returns whether paths below the prefix are the host's, where the mount is: in a child of the
/// process that serves it there, and for the mount's own calls.
#[inline]
pub fn is_mounts() -> bool {
    served::is_host() || (served::is_at_prefix() && !is_owner())
}

/// Performs a call on the volume.
///
/// # Errors
/// EDEADLK: from a signal handler, and the thread is within the volume. EIO: in the child of the
/// process that has it. Those of opening it. Else what `f` answers.
pub fn serve<T>(call: &'static Call, f: impl FnOnce(&Volume) -> Result<T, c_int>) -> Result<T, c_int> {
    if is_inside() {
        return Err(call.refuse(libc::EDEADLK));
    }
    if !is_owner() {
        return Err(call.refuse(not_ours()));
    }
    let _inside = Inside::enter();
    let settings = settings().ok_or(libc::EIO)?;
    match VOLUME.get_or_init(|| open(settings)) {
        Ok(volume) => {
            call.served();
            f(volume)
        }
        Err(errno) => Err(call.refuse(*errno)),
    }
}

/// Looks at the volume for what is no call of its own, if it is open and this process's.
pub fn glance<T>(f: impl FnOnce(&Volume) -> T) -> Option<T> {
    if is_inside() || !is_owner() {
        return None;
    }
    let volume = VOLUME.get()?.as_ref().ok()?;
    let _inside = Inside::enter();
    Some(f(volume))
}

/// Returns the volume as the program sees it. Called within [`serve`].
pub fn view(volume: &Volume) -> &'static Fs {
    // SAFETY: what is stored there is leaked, so lives as long as the program.
    match unsafe { VIEW.load(Ordering::Acquire).as_ref() } {
        Some(view) => view,
        None => look_again(volume),
    }
}

/// Makes a view for the credential and the umask that the process has now. Views are kept: a
/// program has few, and others may be using them.
#[cold]
fn look_again(volume: &Volume) -> &'static Fs {
    type Key = (u32, u32, Vec<u32>, u32);
    static VIEWS: Mutex<Option<HashMap<Key, &'static Fs>>> = Mutex::new(None);
    let cred = Cred::current();
    // SAFETY: umask takes any mode; the second call puts back what the first one found.
    let umask = unsafe {
        let now = sys!(libc::SYS_umask, 0o77) as u32;
        sys!(libc::SYS_umask, now);
        now
    };
    let mut views = VIEWS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (cred.uid, cred.gid, cred.groups.to_vec(), umask);
    let view = *views
        .get_or_insert_default()
        .entry(key)
        .or_insert_with(|| Box::leak(Box::new(volume.as_user(cred).with_umask(umask))));
    VIEW.store(std::ptr::from_ref(view).cast_mut(), Ordering::Release);
    view
}

/// Forgets the view: the credential or the umask has changed.
pub fn forget_view() {
    VIEW.store(std::ptr::null_mut(), Ordering::Release);
}

/// Opens the volume.
fn open(settings: &Settings) -> Result<Volume, c_int> {
    let options = MountOptions { cache_size: settings.cache, ..MountOptions::default() };
    notices::begin(say);
    let taken = placeholder::take_low();
    let opened = Volume::open(&settings.images, &options);
    placeholder::give_back(taken);
    match opened {
        Ok(volume) => {
            note_images(settings);
            mark_owner();
            Ok(volume)
        }
        Err(e) => {
            let prefix = String::from_utf8_lossy(&settings.prefix);
            let advice = match e.errno() == libc::EBUSY {
                true => format!("; one process has it at a time: {}", advice()),
                false => String::new(),
            };
            say(&format!("{prefix}: {e}{advice}"));
            Err(e.errno())
        }
    }
}

/// Opens the volume and serves its mount, before the program begins.
///
/// # Errors
/// It was said which.
pub fn begin_served() -> Result<(), c_int> {
    let _inside = Inside::enter();
    let settings = settings().ok_or(libc::EIO)?;
    let volume = VOLUME.get_or_init(|| open(settings)).as_ref().map_err(|e| *e)?;
    serve_mount(volume)
}

/// Serves the mount of an open volume, while the program does nothing.
fn serve_mount(volume: &Volume) -> Result<(), c_int> {
    let before = descriptors();
    let taken = placeholder::take_low();
    let result = served::begin(volume);
    placeholder::give_back(taken);
    descriptors().into_iter().filter(|fd| !before.contains(fd)).for_each(note);
    result.map_err(|e| {
        let dir = settings().and_then(|s| s.mount.as_ref()).map(|m| String::from_utf8_lossy(&m.dir));
        say(&format!("{}: the volume cannot be mounted there: {e}", dir.unwrap_or_default()));
        e.raw_os_error().unwrap_or(libc::EIO)
    })
}

/// Returns the numbers of all open descriptors.
pub fn descriptors() -> Vec<c_int> {
    let Ok(fds) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let all: Vec<c_int> = fds.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    // SAFETY: F_GETFD takes any number; that of the listing itself is closed again.
    all.into_iter().filter(|fd| unsafe { sys!(libc::SYS_fcntl, *fd, libc::F_GETFD) } >= 0).collect()
}

/// Enters a descriptor of the volume: the program must not close it, and a child must.
fn note(fd: c_int) {
    for place in &DESCRIPTORS {
        if place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            placeholder::note(fd);
            return;
        }
    }
}

/// Finds the descriptors of the images.
fn note_images(settings: &Settings) {
    let is_image = |fd: &c_int| {
        let of = |path: &std::path::Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
        let this = of(format!("/proc/self/fd/{fd}").as_ref());
        this.is_some() && settings.images.iter().any(|i| of(i) == this)
    };
    descriptors().into_iter().filter(is_image).for_each(note);
}

/// Marks the process as the volume's owner.
fn mark_owner() {
    // SAFETY: an anonymous mapping of one page touches nothing else; the advice is for that page,
    // which is never unmapped.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            say("no memory");
            libc::abort();
        }
        libc::madvise(page, 4096, libc::MADV_WIPEONFORK);
        let page = page.cast::<AtomicU32>();
        (*page).store(1, Ordering::Relaxed);
        OWNER.store(page, Ordering::Release);
        unsafe extern "C" {
            fn __register_atfork(
                prepare: Option<extern "C" fn()>,
                parent: Option<extern "C" fn()>,
                child: Option<extern "C" fn()>,
                dso: *mut libc::c_void,
            ) -> c_int;
        }
        __register_atfork(None, None, Some(in_child), std::ptr::null_mut());
    }
}

/// Runs in the child of a fork: lets go of the images and the mount.
extern "C" fn in_child() {
    for place in &DESCRIPTORS {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor is the child's copy of the volume's, which the child never
            // uses (P2).
            unsafe { sys!(libc::SYS_close, fd) };
        }
    }
}

/// Removes the mount.
fn end_mount() {
    if let Err(e) = served::end() {
        say(&format!("the mount ended with an error: {e}"));
    }
}

/// Serves the mount again: the process has not become another program.
pub fn after_failed_exec() {
    if let Some(Ok(volume)) = VOLUME.get()
        && settings().is_some_and(|s| s.mount.is_some())
        && is_owner()
        && !is_inside()
    {
        let _inside = Inside::enter();
        // It was said why.
        let _ = serve_mount(volume);
    }
}

/// Makes durable what was done and removes the mount, before the process becomes another program:
/// no descriptor of the volume is handed on.
pub fn before_exec() {
    if let Some(Ok(volume)) = VOLUME.get()
        && is_owner()
        && !is_inside()
    {
        let _inside = Inside::enter();
        end_mount();
        let stored = shared::flush_all().map_err(lanefs::Error::Posix);
        if let Err(e) = stored.and(volume.sync()) {
            say(&format!("what was written last is not durable: {e}"));
        }
    }
}

/// Closes the volume, and reports. A thread that is within the volume has been interrupted by a
/// signal handler that ends the process: then it ends as by a crash, and what was synced is found.
pub fn close() {
    static CLOSED: AtomicBool = AtomicBool::new(false);
    if !is_owner() || is_inside() || CLOSED.swap(true, Ordering::Relaxed) {
        return;
    }
    let _inside = Inside::enter();
    if let Some(text) = report::text() {
        stderr::write_first(text.as_bytes());
    }
    let Some(Ok(volume)) = VOLUME.get() else { return };
    end_mount();
    let stored = shared::flush_all().map_err(lanefs::Error::Posix);
    if let Err(e) = stored.and(volume.close()) {
        say(&format!("the volume was not closed well, and what was written last may be lost: {e}"));
    }
}
