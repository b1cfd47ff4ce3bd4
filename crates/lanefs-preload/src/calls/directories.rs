//! Listing directories.

use super::open;
use crate::attributes::errno;
use crate::dispatch::{by_fd, by_spot};
use crate::hook::{answer, hook, set_errno};
use crate::route::Last;
use crate::table::{self, Description, is_ours};
use crate::volume;
use lanefs::{FileKind, Volume};
use libc::{DIR, dirent};
use std::collections::{HashSet, VecDeque};
use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Entries that are taken from the volume at once.
const AT_ONCE: usize = 64;

/// A directory stream of the volume; its address stands for a `DIR`.
struct Stream {
    fd: c_int,
    description: Arc<Description>,
    state: Mutex<State>,
}

struct State {
    /// Entries that were taken and not given yet.
    ahead: VecDeque<dirent>,
    /// Behind which cookie more are taken.
    taken: i64,
    /// The cookie of the entry that was given last.
    given: i64,
    /// The entry that the caller has.
    entry: dirent,
}

/// The addresses of all streams of the volume, and how many there are.
static STREAMS: RwLock<Option<HashSet<usize>>> = RwLock::new(None);
/// Relaxed: a stream is known to its caller after it was entered.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the stream of the volume at this address, if it is one.
///
/// # Safety
/// It is not closed while it is used.
unsafe fn stream<'a>(dir: *mut DIR) -> Option<&'a Stream> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let streams = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    let ours = streams.as_ref().is_some_and(|s| s.contains(&(dir as usize)));
    // SAFETY: what is entered there is a stream; the caller keeps it.
    ours.then(|| unsafe { &*dir.cast::<Stream>() })
}

fn publish(fd: c_int, description: Arc<Description>) -> *mut DIR {
    // SAFETY: all fields are integers, for which zero is a value.
    let entry = unsafe { std::mem::zeroed() };
    let state = State { ahead: VecDeque::new(), taken: 0, given: 0, entry };
    let stream = Box::into_raw(Box::new(Stream { fd, description, state: Mutex::new(state) }));
    let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    streams.get_or_insert_default().insert(stream as usize);
    COUNT.fetch_add(1, Ordering::Relaxed);
    stream.cast()
}

/// Returns the type of an entry.
fn kind(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => libc::DT_REG,
        FileKind::Dir => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Char => libc::DT_CHR,
        FileKind::BlockDev => libc::DT_BLK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
    }
}

/// Takes entries behind a cookie, at most so many. Of a directory that was removed there are none.
fn take(volume: &Volume, d: &Description, behind: i64, most: usize) -> Result<Vec<dirent>, c_int> {
    let mut out = Vec::new();
    let result = volume.node_readdir(d.file.ino(), behind as u64, &mut |e| {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut entry: dirent = unsafe { std::mem::zeroed() };
        entry.d_ino = e.ino.0;
        entry.d_off = e.cookie as i64;
        entry.d_type = kind(e.kind);
        let n = e.name.len().min(entry.d_name.len() - 1);
        for (to, from) in entry.d_name.iter_mut().zip(&e.name[..n]) {
            *to = *from as c_char;
        }
        entry.d_reclen = (offset_of!(dirent, d_name) + n + 1).next_multiple_of(8) as u16;
        out.push(entry);
        out.len() < most
    });
    match result {
        Ok(()) => Ok(out),
        Err(e) if matches!(e.errno(), libc::ESTALE | libc::ENOENT) => Ok(out),
        Err(e) => Err(errno(e)),
    }
}

/// Returns the next entry, where it stays until the next call; NULL at the end.
fn next(call: &'static crate::report::Call, stream: &Stream) -> *mut dirent {
    let mut state = stream.state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.ahead.is_empty() {
        match volume::serve(call, |v| take(v, &stream.description, state.taken, AT_ONCE)) {
            Err(errno) => {
                set_errno(errno);
                return std::ptr::null_mut();
            }
            Ok(entries) => {
                let Some(last) = entries.last() else { return std::ptr::null_mut() };
                state.taken = last.d_off;
                state.ahead = entries.into();
            }
        }
    }
    match state.ahead.pop_front() {
        None => std::ptr::null_mut(),
        Some(entry) => {
            state.given = entry.d_off;
            state.entry = entry;
            &raw mut state.entry
        }
    }
}

/// Goes on behind a cookie.
fn go_to(stream: &Stream, cookie: i64) {
    let mut state = stream.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.ahead.clear();
    (state.taken, state.given) = (cookie, cookie);
}

hook! {
    /// Opens a directory.
    fn opendir(path: *const c_char) -> *mut DIR {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        by_spot(&CALL, (libc::AT_FDCWD, path), Last::Follow, |volume, spot| {
            let description = Arc::new(open::describe(volume, spot, flags, 0)?);
            let fd = open::number(description.clone(), 0, true)?;
            Ok(publish(fd, description))
        }, |_, p| real(p))
    }
    /// Opens a directory that is open by its descriptor.
    fn fdopendir(fd: c_int) -> *mut DIR {
        if !is_ours(fd) { return real(fd); }
        answer(volume::serve(&CALL, |_| {
            let description = table::get(fd).ok_or(libc::EBADF)?;
            if description.kind != FileKind::Dir {
                return Err(libc::ENOTDIR);
            }
            if description.path_only() {
                return Err(libc::EBADF);
            }
            Ok(publish(fd, description))
        }))
    }
    /// Closes a directory.
    fn closedir(dir: *mut DIR) -> c_int {
        let Some(known) = stream(dir) else { return real(dir) };
        let fd = known.fd;
        {
            let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
            streams.get_or_insert_default().remove(&(dir as usize));
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        let stream = Box::from_raw(dir.cast::<Stream>());
        // The descriptor keeps the file; in a child of the volume's owner nothing may be touched.
        if volume::is_owner() && table::is_ours(fd) { drop(stream) } else { std::mem::forget(stream) }
        super::descriptors::close(fd)
    }
    /// Returns the next entry.
    fn readdir(dir: *mut DIR) -> *mut dirent {
        match stream(dir) { Some(stream) => next(&CALL, stream), None => real(dir) }
    }
    /// Returns the next entry.
    fn readdir64(dir: *mut DIR) -> *mut dirent {
        match stream(dir) { Some(stream) => next(&CALL, stream), None => real(dir) }
    }
    /// Copies the next entry to the caller's memory.
    fn readdir_r(dir: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        let Some(stream) = stream(dir) else { return real(dir, entry, result) };
        let before = crate::hook::errno();
        set_errno(0);
        let found = next(&CALL, stream);
        let failed = crate::hook::errno();
        set_errno(before);
        *result = std::ptr::null_mut();
        if let Some(found) = found.as_ref() {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(found).cast::<u8>(), entry.cast::<u8>(), found.d_reclen.into());
            *result = entry;
            return 0;
        }
        failed
    }
    /// Copies the next entry to the caller's memory.
    fn readdir64_r(dir: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        readdir_r(dir, entry, result)
    }
    /// Goes back to the start.
    fn rewinddir(dir: *mut DIR) -> () {
        match stream(dir) { Some(stream) => go_to(stream, 0), None => real(dir) }
    }
    /// Goes on where telldir was called.
    fn seekdir(dir: *mut DIR, place: c_long) -> () {
        match stream(dir) { Some(stream) => go_to(stream, place), None => real(dir, place) }
    }
    /// Returns the place of the next entry.
    fn telldir(dir: *mut DIR) -> c_long {
        match stream(dir) {
            Some(stream) => stream.state.lock().unwrap_or_else(PoisonError::into_inner).given,
            None => real(dir),
        }
    }
    /// Returns the descriptor.
    fn dirfd(dir: *mut DIR) -> c_int {
        match stream(dir) { Some(stream) => stream.fd, None => real(dir) }
    }
    /// Lists into the caller's memory.
    fn getdents64(fd: c_int, to: *mut c_void, space: usize) -> isize {
        if !is_ours(fd) { return real(fd, to, space); }
        by_fd(&CALL, fd, |volume, d| {
            if d.kind != FileKind::Dir {
                return Err(libc::ENOTDIR);
            }
            let _held = d.position.lock().unwrap_or_else(PoisonError::into_inner);
            let behind = d.listed.load(Ordering::Relaxed) as i64;
            let entries = take(volume, d, behind, (space / offset_of!(dirent, d_name)).max(1))?;
            let mut done = 0;
            for entry in &entries {
                let len = usize::from(entry.d_reclen);
                if done + len > space {
                    break;
                }
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_ref(entry).cast::<u8>(), to.cast::<u8>().add(done), len);
                done += len;
                d.listed.store(entry.d_off as u64, Ordering::Relaxed);
            }
            if done == 0 && !entries.is_empty() { Err(libc::EINVAL) } else { Ok(done as isize) }
        })
    }
}
