//! The inodes in memory, and how they are read and changed there.

pub(crate) mod cache;
mod preallocate;
mod reading;
mod unmap;
