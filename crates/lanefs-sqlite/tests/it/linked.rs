//! SQLite linked to this program, with the VFS.

use rusqlite::{Connection, OpenFlags, ffi};
use std::path::Path;
use std::sync::Once;

/// Makes the VFS known, as a program does that has it linked.
pub fn make_known() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let entry: *const () = lanefs_sqlite::lanefs_sqlite_register as *const ();
        // SAFETY: SQLite calls it with the three arguments that it takes.
        let code = unsafe {
            ffi::sqlite3_auto_extension(Some(std::mem::transmute::<
                *const (),
                unsafe extern "C" fn(
                    *mut ffi::sqlite3,
                    *mut *mut std::ffi::c_char,
                    *const ffi::sqlite3_api_routines,
                ) -> std::ffi::c_int,
            >(entry)))
        };
        assert_eq!(code, ffi::SQLITE_OK);
        // From the first connection on it is known.
        drop(Connection::open_in_memory().unwrap());
    });
}

/// Opens a database by its URI without `file:` and the VFS.
pub fn open(name: &str) -> rusqlite::Result<Connection> {
    make_known();
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{name}&vfs=lanefs"), flags)
}

/// Opens a database in an image, which is made if it is missing.
pub fn open_in(image: &Path, name: &str) -> Connection {
    open(&format!("{name}?volume={}&size=64M&cache_size=64M", image.display())).unwrap()
}

/// Returns the one value that a query has, as text.
pub fn value(c: &Connection, sql: &str) -> String {
    let mut statement = c.prepare(sql).unwrap();
    let mut rows = statement.query([]).unwrap();
    let row = rows.next().unwrap().unwrap();
    match row.get_ref(0).unwrap() {
        rusqlite::types::ValueRef::Integer(n) => n.to_string(),
        other => other.as_str().unwrap().to_string(),
    }
}
