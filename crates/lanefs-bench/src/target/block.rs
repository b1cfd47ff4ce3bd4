//! Memory that is read and written: blocks, aligned.

/// Bytes of a block, which FxMark reads and writes at a time.
pub const BLOCK: usize = 4096;

/// A block of data, aligned so that O_DIRECT takes it.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct Block(pub [u8; BLOCK]);

const _: () = assert!(size_of::<Block>() == BLOCK && align_of::<Block>() == BLOCK);

impl Block {
    /// Makes a block with the content of a worker, by its number.
    pub fn new(id: usize) -> Box<Block> {
        Box::new(Block([id as u8 ^ 0x5a; BLOCK]))
    }
}

/// Makes a buffer of whole blocks, aligned like one.
pub fn buffer(bytes: usize) -> Vec<Block> {
    debug_assert!(bytes > 0, "a buffer of nothing");
    vec![Block([0x6c; BLOCK]); bytes.div_ceil(BLOCK)]
}

/// Returns the blocks as bytes.
pub fn as_bytes(blocks: &[Block]) -> &[u8] {
    // SAFETY: `Block` is repr(C), 4096 initialised bytes without padding, so a slice of n blocks is
    // a slice of n * 4096 bytes with the same lifetime and no stricter alignment.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * BLOCK) }
}

/// Returns the blocks as bytes that can be written.
pub fn as_bytes_mut(blocks: &mut [Block]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; every bit pattern is a valid `Block`, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), blocks.len() * BLOCK) }
}
