//! The `lanefs` command as its users meet it: argument forms, exit codes, images without a mount,
//! and mounts.

#[macro_use]
mod transport;
mod bench;
mod change;
mod common;
mod copies;
mod damaged;
mod devices;
mod forms;
mod host_full;
mod host_told;
mod images;
mod killed;
mod mount_belief;
mod mount_block;
mod mount_files;
mod mount_flags;
mod mount_growth;
mod mount_handles;
mod mount_idmap;
mod mount_open_files;
mod mount_replace;
mod mount_rights;
mod mount_trim;
mod mount_truth;
mod mount_unnamed;
mod mount_whiteout;
mod mounts;
mod run;
mod scrub;
mod security;
mod stat;
mod transports;
mod virtiofs;
