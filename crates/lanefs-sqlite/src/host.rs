//! The SQLite that has loaded us, or is linked to the same program.

use crate::api::{ApiRoutines, Vfs};
use crate::volumes::{OPTIONS, Parameters};
use libc::{c_char, c_int};
use std::ffi::{CStr, CString};

/// An SQLite that knows the VFS. A process may have several.
pub struct Known {
    pub api: &'static ApiRoutines,
    /// SQLite's own VFS.
    pub base: *mut Vfs,
}

// SAFETY: functions, and a VFS that stays where it is for good and that SQLite itself uses from all
// threads.
unsafe impl Sync for Known {}
// SAFETY: as above.
unsafe impl Send for Known {}

impl Known {
    /// Writes to SQLite's log (`sqlite3_config(SQLITE_CONFIG_LOG)`, `.log` of its shell).
    pub fn tell(&self, code: c_int, message: &str) {
        tracing::debug!("{message}");
        if let Ok(message) = CString::new(message) {
            // SAFETY: a format and its argument.
            unsafe { (self.api.log)(code, c"lanefs: %s".as_ptr(), message.as_ptr()) };
        }
    }

    /// Returns a copy of a text that SQLite frees.
    pub fn text(&self, text: &CStr) -> *mut c_char {
        // SAFETY: a format and its argument.
        unsafe { (self.api.mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Returns what the parameters of a name say.
    ///
    /// # Safety
    /// A name that SQLite hands to a VFS's open or full_pathname.
    pub unsafe fn parameters(&self, name: *const c_char) -> Parameters {
        let value = |key: &str| {
            let key = CString::new(key).ok()?;
            // SAFETY: the caller's promise.
            let value = unsafe { (self.api.uri_parameter)(name, key.as_ptr()) };
            // SAFETY: NULL or a text of SQLite's.
            (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
        };
        let options = OPTIONS.iter().filter_map(|name| Some((*name, value(name)?))).collect();
        Parameters { volume: value("volume"), mount: value("mount"), options }
    }
}
