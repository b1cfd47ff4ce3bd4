//! The kernel's FUSE protocol: requests are decoded, answers encoded, nothing is decided.
//!
//! No crate does this well enough: fuser 0.18, the best kept one, knows neither TMPFILE nor STATX,
//! hides which truncating opens and SETATTRs must clear setuid (KILLPRIV_V2), keeps it to itself
//! when an answer found nobody waiting (so a handle or an inode the kernel never learned of stays
//! held), and copies each answer once more. The example `empty` still uses it.

pub(crate) mod abi;
mod args;
mod caller;
mod device;
mod device_number;
mod handshake;
mod reply;
pub(crate) mod ring;

pub(crate) use args::{Args, Request};
pub(crate) use caller::Caller;
pub(crate) use device::{Device, NOT_ALLOWED, Now, Origin, request_bytes};
pub(crate) use device_number::rdev_from_kernel;
pub(crate) use handshake::{Agreed, Offer, agree, shake_hands};
pub(crate) use reply::{Answer, Reply, ReplyBuffer};

/// An error number as the kernel takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub i32);
