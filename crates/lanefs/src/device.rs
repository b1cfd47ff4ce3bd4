//! The media of a volume. [`Volume::open`](crate::Volume::open) takes image files and block
//! devices by their paths; what else can be read, written and flushed is a [`Device`] too, for
//! [`Volume::open_devices`](crate::Volume::open_devices) and
//! [`CreateOptions::format`](crate::CreateOptions::format).

pub use lanefs_store::device::{
    Device, FileDevice, FileOptions, ImageLock, MemoryDevice, MemoryImage, ReadReq, WriteReq,
};
