//! The file system in memory: cells, directories, pages. Nothing here knows a disk address or a
//! path.

pub(crate) mod cell;
pub(crate) mod data;
pub(crate) mod dir;
mod owner;
pub(crate) mod stamps;
pub(crate) mod table;
pub(crate) mod xattr;

pub(crate) use cell::{Body, Cell};
