//! What a decoder says of a block that it refuses.

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
    /// What is wrong with it.
    pub why: String,
}

/// A result of decoding.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;
