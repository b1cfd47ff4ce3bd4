//! The calls on an open file.

use crate::api::{self, File, IoMethods};
use crate::host::Known;
use crate::locks;
use crate::shm::Part;
use crate::volumes::{Database, Use, locked};
use lanefs::{Error, Ino};
use libc::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// What SQLite keeps for an open file: its own part, and ours.
#[repr(C)]
pub struct OpenFile {
    base: File,
    state: *mut State,
}

/// An open file of a volume. A connection uses it in one thread at a time.
pub struct State {
    pub file: lanefs::File,
    /// The path in the volume.
    pub path: String,
    pub volume: Use,
    /// Of a database: what its connections have in common, and this one's part.
    pub database: Option<Arc<Database>>,
    pub known: &'static Known,
    level: c_int,
    part: Part,
    keep_wal: bool,
    errno: c_int,
}

/// The calls on files of volumes.
static METHODS: IoMethods = IoMethods {
    version: 2,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
};

impl State {
    /// Takes an open file.
    pub fn new(
        file: lanefs::File,
        path: &str,
        volume: Use,
        database: Option<Arc<Database>>,
        known: &'static Known,
    ) -> State {
        State {
            file,
            path: path.into(),
            volume,
            database,
            known,
            level: locks::NONE,
            part: Part::default(),
            keep_wal: false,
            errno: 0,
        }
    }

    /// Puts it where SQLite wants it.
    ///
    /// # Safety
    /// `place` is memory for an [`OpenFile`].
    pub unsafe fn put(self, place: *mut File) {
        let open =
            OpenFile { base: File { methods: &raw const METHODS }, state: Box::into_raw(Box::new(self)) };
        // SAFETY: the caller's promise.
        unsafe { place.cast::<OpenFile>().write(open) };
    }

    /// Tells SQLite's log of an error, and returns the code that stands for it.
    fn failed(&mut self, e: &Error, code: c_int) -> c_int {
        self.errno = e.errno();
        if e.errno() == libc::ENOSPC {
            return api::FULL;
        }
        self.known.tell(code, &format!("{}: {e}", self.path));
        code
    }

    /// Returns whether the path leads elsewhere by now.
    fn has_moved(&self) -> bool {
        !self.volume.opened.fs.stat(self.path.as_str()).is_ok_and(|s| s.ino == self.ino())
    }

    fn ino(&self) -> Ino {
        self.file.ino()
    }

    /// Lets go of locks and shared memory.
    fn leave(&mut self) {
        if let Some(database) = &self.database {
            locked(&database.locks).lower(self.id(), self.level, locks::NONE);
            locked(&database.shm).leave(&mut self.part);
            self.level = locks::NONE;
        }
    }

    /// Returns what tells this connection from others.
    fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

/// Calls `f` with the state of an open file; a panic is the error `code`.
///
/// # Safety
/// A file that [`State::put`] made and that was not closed.
unsafe fn with(file: *mut File, code: c_int, f: impl FnOnce(&mut State) -> c_int) -> c_int {
    // SAFETY: the caller's promise; SQLite uses a file in one thread at a time.
    let state = unsafe { &mut *(*file.cast::<OpenFile>()).state };
    catch_unwind(AssertUnwindSafe(|| f(state))).unwrap_or(code)
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: SQLite closes a file once; without methods it takes it for closed.
    let mut state = unsafe {
        let open = &mut *file.cast::<OpenFile>();
        open.base.methods = std::ptr::null();
        Box::from_raw(open.state)
    };
    let ended = move || {
        state.leave();
        let State { file, volume, known, .. } = *state;
        drop(file);
        match volume.end() {
            Ok(()) => api::OK,
            Err(e) => {
                known.tell(api::IOERR_CLOSE, &e);
                api::IOERR_CLOSE
            }
        }
    };
    catch_unwind(AssertUnwindSafe(ended)).unwrap_or(api::IOERR_CLOSE)
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, len: c_int, at: i64) -> c_int {
    // SAFETY: SQLite's file, and a buffer of `len` bytes.
    unsafe {
        let buf = std::slice::from_raw_parts_mut(buf.cast::<u8>(), len.max(0) as usize);
        with(file, api::IOERR_READ, |s| {
            let mut done = 0;
            while done < buf.len() {
                match s.file.read_at(&mut buf[done..], at as u64 + done as u64) {
                    Ok(0) => {
                        buf[done..].fill(0);
                        return api::IOERR_SHORT_READ;
                    }
                    Ok(n) => done += n,
                    Err(e) => return s.failed(&e, api::IOERR_READ),
                }
            }
            api::OK
        })
    }
}

unsafe extern "C" fn write(file: *mut File, buf: *const c_void, len: c_int, at: i64) -> c_int {
    // SAFETY: SQLite's file, and a buffer of `len` bytes.
    unsafe {
        let buf = std::slice::from_raw_parts(buf.cast::<u8>(), len.max(0) as usize);
        with(file, api::IOERR_WRITE, |s| match s.file.write_all_at(buf, at as u64) {
            Ok(()) => api::OK,
            Err(e) => s.failed(&e, api::IOERR_WRITE),
        })
    }
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: SQLite's file.
    unsafe {
        with(file, api::IOERR_TRUNCATE, |s| match s.file.set_len(size.max(0) as u64) {
            Ok(()) => api::OK,
            Err(e) => s.failed(&e, api::IOERR_TRUNCATE),
        })
    }
}

/// Content, size and the names of the file, and the directories above it, are durable when this
/// returns: a journal needs no fsync of its directory to be found.
unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: SQLite's file.
    unsafe {
        with(file, api::IOERR_FSYNC, |s| match s.file.sync_data() {
            Ok(()) => {
                if let Some(database) = &s.database {
                    database.synced.store(true, Ordering::Relaxed);
                }
                api::OK
            }
            Err(e) => s.failed(&e, api::IOERR_FSYNC),
        })
    }
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: SQLite's file, and a place for the size.
    unsafe {
        with(file, api::IOERR_FSTAT, |s| match s.file.stat() {
            Ok(stat) => {
                *size = stat.size as i64;
                api::OK
            }
            Err(e) => s.failed(&e, api::IOERR_FSTAT),
        })
    }
}

unsafe extern "C" fn lock(file: *mut File, wanted: c_int) -> c_int {
    // SAFETY: SQLite's file.
    unsafe {
        with(file, api::BUSY, |s| {
            let Some(database) = &s.database else { return api::OK };
            let reached = locked(&database.locks).raise(s.id(), s.level, wanted);
            s.level = reached;
            if reached >= wanted { api::OK } else { api::BUSY }
        })
    }
}

unsafe extern "C" fn unlock(file: *mut File, wanted: c_int) -> c_int {
    // SAFETY: SQLite's file.
    unsafe {
        with(file, api::OK, |s| {
            let Some(database) = &s.database else { return api::OK };
            locked(&database.locks).lower(s.id(), s.level, wanted);
            s.level = s.level.min(wanted);
            api::OK
        })
    }
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, is: *mut c_int) -> c_int {
    // SAFETY: SQLite's file, and a place for the answer.
    unsafe {
        with(file, api::OK, |s| {
            let reserved = s.database.as_ref().is_some_and(|d| locked(&d.locks).is_reserved());
            *is = c_int::from(reserved);
            api::OK
        })
    }
}

unsafe extern "C" fn file_control(file: *mut File, what: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: SQLite's file, and for each of these the place that sqlite3.h says.
    unsafe {
        with(file, api::ERROR, |s| {
            match what {
                api::FCNTL_LOCKSTATE => *argument.cast::<c_int>() = s.level,
                api::FCNTL_LAST_ERRNO => *argument.cast::<c_int>() = s.errno,
                api::FCNTL_SIZE_HINT => {}
                api::FCNTL_HAS_MOVED => *argument.cast::<c_int>() = c_int::from(s.has_moved()),
                api::FCNTL_VFSNAME => {
                    let name = s.known.text(c"lanefs");
                    *argument.cast() = name;
                }
                api::FCNTL_PERSIST_WAL => match *argument.cast::<c_int>() {
                    asked if asked < 0 => *argument.cast::<c_int>() = c_int::from(s.keep_wal),
                    set => s.keep_wal = set != 0,
                },
                _ => return api::NOTFOUND,
            }
            api::OK
        })
    }
}

unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    4096
}

/// What is true of a volume (docs/SEMANTICS.md): a page of 4096 bytes is found as it was before a
/// write inside it or as it was behind it (F1), whatever else is written; so a write never harms
/// bytes beside it. SAFE_APPEND: what is appended is found with the size that it gave the file, or
/// that is not found (F9); so a rollback journal needs no sync between its pages and their number.
/// Not SEQUENTIAL: what was not synced may be found in any order.
unsafe extern "C" fn device_characteristics(_file: *mut File) -> c_int {
    api::IOCAP_ATOMIC512
        | api::IOCAP_ATOMIC1K
        | api::IOCAP_ATOMIC2K
        | api::IOCAP_ATOMIC4K
        | api::IOCAP_SAFE_APPEND
        | api::IOCAP_POWERSAFE_OVERWRITE
        | api::IOCAP_SUBPAGE_READ
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    index: c_int,
    size: c_int,
    extend: c_int,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite's file, and a place for the address.
    unsafe {
        *place = std::ptr::null_mut();
        with(file, api::IOERR_SHMMAP, |s| {
            let Some(database) = &s.database else { return api::IOERR_SHMMAP };
            let (Ok(index), Ok(size)) = (usize::try_from(index), usize::try_from(size)) else {
                return api::IOERR_SHMMAP;
            };
            match locked(&database.shm).region(&mut s.part, index, size, extend != 0) {
                Ok(region) => {
                    *place = region.map_or(std::ptr::null_mut(), <*mut u8>::cast);
                    api::OK
                }
                Err(()) => api::NOMEM,
            }
        })
    }
}

unsafe extern "C" fn shm_lock(file: *mut File, first: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: SQLite's file.
    unsafe {
        with(file, api::BUSY, |s| {
            let Some(database) = &s.database else { return api::IOERR_SHMMAP };
            let mut shm = locked(&database.shm);
            if flags & api::SHM_UNLOCK != 0 {
                shm.unlock(&mut s.part, first, count);
                return api::OK;
            }
            match shm.lock(&mut s.part, first, count, flags & api::SHM_SHARED != 0) {
                true => api::OK,
                false => api::BUSY,
            }
        })
    }
}

unsafe extern "C" fn shm_barrier(_file: *mut File) {
    // SeqCst: pairs with the same fence of the other connections, between what SQLite wrote to the
    // shared memory before and what it reads behind.
    fence(Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut File, _delete: c_int) -> c_int {
    // SAFETY: SQLite's file.
    unsafe {
        with(file, api::OK, |s| {
            if let Some(database) = &s.database {
                locked(&database.shm).leave(&mut s.part);
            }
            api::OK
        })
    }
}
