//! SQLite's databases on a LaneFS volume that the same process has open: a VFS, as an extension
//! that SQLite loads (`lanefs_sqlite.so`) or linked to the program.
//!
//! ```text
//! .load ./lanefs_sqlite
//! .open 'file:app.db?vfs=lanefs&volume=disk.lane&size=1G'
//! ```
//!
//! docs/SQLITE.md says how it is used, and what it promises. Linked statically, the VFS is made
//! known by SQLite's own means:
//!
//! ```text
//! sqlite3_auto_extension((void (*)(void))lanefs_sqlite_register);   /* before the first open */
//! ```
//!
//! A program in Rust that has a volume open lends it by [`register`].
//!
//! Declarations of SQLite's interface are this crate's own (`api.rs`), since those of other crates
//! either link an SQLite of their own, which an extension must not, or do not pass on the
//! parameters of a database's name, which say where the volume is.

#![deny(missing_docs)]

mod api;
mod file;
mod host;
mod locks;
mod names;
mod shm;
mod vfs;
mod volumes;

pub use volumes::{register, unregister};

use api::{ApiRoutines, OK, OK_LOAD_PERMANENTLY};
use libc::{c_char, c_int, c_void};

/// What SQLite calls when it loads `lanefs_sqlite.so`: makes the VFS `lanefs` known, for all
/// connections of the process. The library stays loaded.
///
/// # Safety
/// SQLite's: the table of its functions, and a place for a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_lanefssqlite_init(
    _db: *mut c_void,
    message: *mut *mut c_char,
    api: *const ApiRoutines,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { vfs::make_known(message, api) } {
        OK => OK_LOAD_PERMANENTLY,
        error => error,
    }
}

/// Does the same for a program that this crate is linked to: to be given to
/// `sqlite3_auto_extension`.
///
/// # Safety
/// As [`sqlite3_lanefssqlite_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_sqlite_register(
    _db: *mut c_void,
    message: *mut *mut c_char,
    api: *const ApiRoutines,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { vfs::make_known(message, api) }
}
