//! A volume for virtual machines: the back end of virtiofs by vhost-user. QEMU, Cloud Hypervisor,
//! crosvm and others connect to a socket, share the guest's memory, and the guest's kernel mounts
//! the volume as it mounts virtiofsd's directories.
//!
//! The requests in the queues are those of FUSE, and [`lanefs_fuse::guest`] serves them. Here is
//! what carries them:
//!
//! | module | what it does |
//! | --- | --- |
//! | `chain` | takes a request out of the guest's memory, and puts the answer there |
//! | `line` | the threads that serve one queue |
//! | `device` | what the virtual machine is told of the device |
//! | `server` | from the socket to the closed volume |
//!
//! The guest is not believed, nor is what lies in its memory: each byte is copied out once before
//! it is looked at. The program at the other end of the socket is: it gives the memory.

#![deny(missing_docs)]

mod chain;
mod device;
mod line;
mod server;

pub use device::{BadTag, MOST_QUEUES, Tag};
pub use server::{Options, Server, Stopper};
