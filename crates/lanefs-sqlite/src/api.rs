//! SQLite's C interface, as far as a VFS needs it (sqlite3.h, sqlite3ext.h): numbers and layouts
//! that SQLite keeps for ever.

use libc::{c_char, c_int, c_void};

pub const OK: c_int = 0;
pub const ERROR: c_int = 1;
pub const BUSY: c_int = 5;
pub const NOMEM: c_int = 7;
pub const NOTFOUND: c_int = 12;
pub const FULL: c_int = 13;
pub const CANTOPEN: c_int = 14;
pub const OK_LOAD_PERMANENTLY: c_int = 256;

/// An error of I/O, of some kind.
const IOERR: c_int = 10;
pub const IOERR_READ: c_int = IOERR | 1 << 8;
pub const IOERR_SHORT_READ: c_int = IOERR | 2 << 8;
pub const IOERR_WRITE: c_int = IOERR | 3 << 8;
pub const IOERR_FSYNC: c_int = IOERR | 4 << 8;
pub const IOERR_DIR_FSYNC: c_int = IOERR | 5 << 8;
pub const IOERR_TRUNCATE: c_int = IOERR | 6 << 8;
pub const IOERR_FSTAT: c_int = IOERR | 7 << 8;
pub const IOERR_DELETE: c_int = IOERR | 10 << 8;
pub const IOERR_ACCESS: c_int = IOERR | 13 << 8;
pub const IOERR_CLOSE: c_int = IOERR | 16 << 8;
pub const IOERR_SHMMAP: c_int = IOERR | 21 << 8;
pub const IOERR_DELETE_NOENT: c_int = IOERR | 23 << 8;

pub const OPEN_READONLY: c_int = 0x1;
pub const OPEN_READWRITE: c_int = 0x2;
pub const OPEN_CREATE: c_int = 0x4;
pub const OPEN_DELETEONCLOSE: c_int = 0x8;
pub const OPEN_EXCLUSIVE: c_int = 0x10;
pub const OPEN_MAIN_DB: c_int = 0x100;
pub const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub const OPEN_WAL: c_int = 0x80000;

pub const ACCESS_EXISTS: c_int = 0;
pub const ACCESS_READWRITE: c_int = 1;

pub const SHM_UNLOCK: c_int = 1;
pub const SHM_SHARED: c_int = 4;

pub const FCNTL_LOCKSTATE: c_int = 1;
pub const FCNTL_LAST_ERRNO: c_int = 4;
pub const FCNTL_SIZE_HINT: c_int = 5;
pub const FCNTL_PERSIST_WAL: c_int = 10;
pub const FCNTL_VFSNAME: c_int = 12;
pub const FCNTL_HAS_MOVED: c_int = 20;

pub const IOCAP_ATOMIC512: c_int = 0x2;
pub const IOCAP_ATOMIC1K: c_int = 0x4;
pub const IOCAP_ATOMIC2K: c_int = 0x8;
pub const IOCAP_ATOMIC4K: c_int = 0x10;
pub const IOCAP_SAFE_APPEND: c_int = 0x200;
pub const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;
pub const IOCAP_SUBPAGE_READ: c_int = 0x8000;

/// An open file as SQLite has it: what follows is the VFS's own.
#[repr(C)]
pub struct File {
    pub methods: *const IoMethods,
}

/// The calls on an open file.
#[repr(C)]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(*mut File) -> c_int,
    pub read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    // From version 2 on.
    pub shm_map: unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub shm_lock: unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int,
    pub shm_barrier: unsafe extern "C" fn(*mut File),
    pub shm_unmap: unsafe extern "C" fn(*mut File, c_int) -> c_int,
}

/// A symbol of a library.
pub type Symbol = Option<unsafe extern "C" fn()>;

/// A VFS.
#[repr(C)]
pub struct Vfs {
    pub version: c_int,
    /// Bytes of a file, [`File`] included.
    pub file_bytes: c_int,
    /// The longest name.
    pub longest_name: c_int,
    pub next: *mut Vfs,
    pub name: *const c_char,
    pub data: *mut c_void,
    pub open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub dl_open: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void,
    pub dl_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char),
    pub dl_sym: unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Symbol,
    pub dl_close: unsafe extern "C" fn(*mut Vfs, *mut c_void),
    pub randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int,
    pub last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    // From version 2 on.
    pub current_time_int64: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int>,
    // From version 3 on; here for their place alone.
    pub system_calls: [*const c_void; 3],
}

/// The table of SQLite's functions that an extension gets: it only ever grows at its end.
#[repr(C)]
pub struct ApiRoutines {
    others: [*const c_void; 67],
    pub libversion_number: unsafe extern "C" fn() -> c_int,
    malloc: *const c_void,
    pub mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
    others_2: [*const c_void; 71],
    pub vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    pub vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    others_3: [*const c_void; 24],
    pub log: unsafe extern "C" fn(c_int, *const c_char, ...),
    others_4: [*const c_void; 21],
    pub uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
}

/// The least version of SQLite: from here on a name's parameters are found also by the names of
/// journals.
pub const LEAST_VERSION: c_int = 3_032_000;

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;
    use std::mem::{offset_of, size_of};

    /// The layouts are those of another's declarations, made from SQLite's header.
    #[test]
    fn layouts_are_sqlites() {
        assert_eq!(size_of::<Vfs>(), size_of::<ffi::sqlite3_vfs>());
        assert_eq!(offset_of!(Vfs, open), offset_of!(ffi::sqlite3_vfs, xOpen));
        assert_eq!(offset_of!(Vfs, full_pathname), offset_of!(ffi::sqlite3_vfs, xFullPathname));
        assert_eq!(offset_of!(Vfs, current_time_int64), offset_of!(ffi::sqlite3_vfs, xCurrentTimeInt64));
        assert_eq!(offset_of!(IoMethods, sync), offset_of!(ffi::sqlite3_io_methods, xSync));
        assert_eq!(offset_of!(IoMethods, shm_unmap), offset_of!(ffi::sqlite3_io_methods, xShmUnmap));
        // By their place in the table of 3.40, as of every version since.
        assert_eq!(offset_of!(ApiRoutines, mprintf), 69 * size_of::<usize>());
        assert_eq!(offset_of!(ApiRoutines, vfs_find), 141 * size_of::<usize>());
        assert_eq!(offset_of!(ApiRoutines, log), 167 * size_of::<usize>());
        assert_eq!(offset_of!(ApiRoutines, uri_parameter), 189 * size_of::<usize>());
    }

    #[test]
    fn numbers_are_sqlites() {
        assert_eq!(IOERR_DELETE_NOENT, ffi::SQLITE_IOERR_DELETE_NOENT);
        assert_eq!(IOERR_SHORT_READ, ffi::SQLITE_IOERR_SHORT_READ);
        assert_eq!(IOERR_SHMMAP, ffi::SQLITE_IOERR_SHMMAP);
        assert_eq!(IOERR_DIR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC);
        assert_eq!(IOERR_CLOSE, ffi::SQLITE_IOERR_CLOSE);
        assert_eq!(IOERR_ACCESS, ffi::SQLITE_IOERR_ACCESS);
        assert_eq!((OPEN_MAIN_DB, OPEN_WAL), (ffi::SQLITE_OPEN_MAIN_DB, ffi::SQLITE_OPEN_WAL));
        assert_eq!(OPEN_MAIN_JOURNAL, ffi::SQLITE_OPEN_MAIN_JOURNAL);
        assert_eq!(IOCAP_ATOMIC4K, ffi::SQLITE_IOCAP_ATOMIC4K);
        assert_eq!(IOCAP_SAFE_APPEND, ffi::SQLITE_IOCAP_SAFE_APPEND);
        assert_eq!(IOCAP_SUBPAGE_READ, ffi::SQLITE_IOCAP_SUBPAGE_READ);
        assert_eq!(FCNTL_HAS_MOVED, ffi::SQLITE_FCNTL_HAS_MOVED);
    }
}
