//! Operations: a verb is a file. Each follows the steps of DESIGN "Epoch lanes"; [`Op`]
//! is its time between steps 1 and 7.

pub(crate) mod acl;
pub(crate) mod attr;
pub(crate) mod content;
pub(crate) mod create;
pub(crate) mod flags;
pub(crate) mod link;
mod op;
pub(crate) mod open;
pub(crate) mod perm;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod resolve;
pub(crate) mod rights;
mod short_lived;
pub(crate) mod xattr;

pub(crate) use crate::error::posix;
pub(crate) use op::Op;

use crate::core::{Core, Persistence};
use crate::error::Result;
use std::sync::Arc;

/// Returns whom to ask for what takes the store. EIO while the volume is closed.
fn persistence(core: &Core) -> Result<Arc<dyn Persistence>> {
    core.persistence().map_or_else(|| posix(libc::EIO), Ok)
}
