//! The bytes of a page on their way to a device.

use lanefs_format::Block;
use lanefs_sync::stable::Stable;
use std::fmt;
use std::ops::Deref;

/// The bytes of a page, as they are written: a copy, or where they lie with a caller who keeps them
/// as they are until this is dropped. It is dropped before the transaction it came with is
/// answered.
pub enum PageImage {
    /// A copy.
    Own(Box<Block>),
    /// The caller's.
    Stable(Stable<Block>),
}

impl Deref for PageImage {
    type Target = Block;

    fn deref(&self) -> &Block {
        match self {
            PageImage::Own(block) => block,
            PageImage::Stable(block) => block,
        }
    }
}

impl From<Box<Block>> for PageImage {
    fn from(block: Box<Block>) -> PageImage {
        PageImage::Own(block)
    }
}

impl fmt::Debug for PageImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageImage::Own(_) => "a copy of a page",
            PageImage::Stable(_) => "a page that stays as it is",
        })
    }
}
