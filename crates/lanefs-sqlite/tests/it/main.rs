//! The VFS under SQLite: the one that comes with the tests, linked, and the shell of the system,
//! which loads the extension.

mod bench;
mod connections;
mod kills;
mod linked;
mod shell;
