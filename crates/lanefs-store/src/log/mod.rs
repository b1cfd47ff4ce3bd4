//! Where blocks go: segments, the mlogs that fill them, the way to the devices, and room.

pub(crate) mod io;
pub(crate) mod message;
pub(crate) mod mlog;
pub(crate) mod segment;
pub(crate) mod slots;
pub(crate) mod space;
pub(crate) mod usage_table;
