//! The error of a decoder that refuses a block.

use crate::types::BlockAddr;

/// A block does not hold what was to be read from it: its checksum, its header or its content is
/// wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block {addr} ({what}): {why}")]
pub struct FormatError {
    /// The block, or the first block, that was decoded.
    pub addr: BlockAddr,
    /// The structure that was expected there, such as "inode block".
    pub what: &'static str,
    /// The reason, for people.
    pub why: String,
}

/// A result of decoding.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;
