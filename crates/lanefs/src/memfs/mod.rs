//! The file system in memory: cells, directories, pages. Nothing here knows a disk address or a path.

pub(crate) mod data;
