//! The `lanefs` command as its users meet it: argument forms, exit codes, images without a mount, and mounts.

#[macro_use]
mod transport;
mod common;
mod forms;
mod images;
mod mount_files;
mod mount_unnamed;
mod mounts;
mod transports;
