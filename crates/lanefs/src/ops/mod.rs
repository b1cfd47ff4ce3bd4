//! Operations: a verb is a file. Each follows the steps of DESIGN "Epoch lanes"; [`crate::op::Op`]
//! is its time between steps 1 and 7.

pub(crate) mod attr;
pub(crate) mod content;
pub(crate) mod create;
mod flags;
pub(crate) mod link;
pub(crate) mod perm;
mod plain_walk;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod resolve;
pub(crate) mod rights;
pub(crate) mod room;
pub(crate) mod xattr;

pub(crate) use crate::error::posix;
pub(crate) use crate::op::Op;
