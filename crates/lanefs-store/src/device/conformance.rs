//! The duties of every device, checked of each kind of device by its own tests.

use super::{Device, ReadReq, WriteReq};
use lanefs_format::{BLOCK_SIZE, Block};

const B: u64 = BLOCK_SIZE as u64;

fn block(fill: u8) -> Block {
    let mut b = Block([fill; BLOCK_SIZE]);
    b.0[0] = fill ^ 0xff;
    b
}

fn read_one(d: &dyn Device, at: u64) -> Box<Block> {
    let mut b = Block::zeroed();
    d.read(&mut [ReadReq { offset: at, data: &mut b.0 }]).unwrap();
    b
}

/// Checks a device of at least 64 blocks, all zero.
pub(crate) fn check(d: &dyn Device) {
    let size = d.size();
    assert!(size >= 64 * B && size.is_multiple_of(B));
    assert!(!d.name().is_empty());
    assert_eq!(read_one(d, 0).0, [0; BLOCK_SIZE]);
    assert_eq!(read_one(d, size - B).0, [0; BLOCK_SIZE]);

    // Nothing asked, nothing done.
    d.read(&mut []).unwrap();
    d.write(&[]).unwrap();
    d.flush().unwrap();

    // Many requests in one submission, the last block included, are all seen.
    let blocks: Vec<Block> = (0..40).map(|i| block(i + 1)).collect();
    let mut writes: Vec<WriteReq<'_>> = blocks
        .iter()
        .enumerate()
        .map(|(i, b)| WriteReq { offset: (i as u64 * 3 % 40) * B, data: &b.0 })
        .collect();
    let last = block(200);
    writes.push(WriteReq { offset: size - B, data: &last.0 });
    d.write(&writes).unwrap();
    d.flush().unwrap();
    let mut back = vec![Block([0; BLOCK_SIZE]); 40];
    let mut reads: Vec<ReadReq<'_>> = back
        .iter_mut()
        .enumerate()
        .map(|(i, b)| ReadReq { offset: (i as u64 * 3 % 40) * B, data: &mut b.0 })
        .collect();
    d.read(&mut reads).unwrap();
    for (a, b) in blocks.iter().zip(&back) {
        assert!(a.0 == b.0);
    }
    assert!(read_one(d, size - B).0 == last.0);

    // Requests of several blocks.
    let big: Vec<Block> = (0..8).map(|i| block(100 + i)).collect();
    let flat: Vec<u8> = big.iter().flat_map(|b| b.0).collect();
    d.write(&[WriteReq { offset: 48 * B, data: &flat }]).unwrap();
    let mut back = vec![1; flat.len()];
    d.read(&mut [ReadReq { offset: 48 * B, data: &mut back }]).unwrap();
    assert!(back == flat);

    // Requests outside the device or not in whole blocks are errors and change nothing.
    let before = read_one(d, size - B);
    for offset in [size, size - B + 1, size - B + 512, 1, u64::MAX - B + 1, u64::MAX] {
        assert!(d.write(&[WriteReq { offset, data: &blocks[0].0 }]).is_err(), "{offset}");
        let mut b = Block::zeroed();
        assert!(d.read(&mut [ReadReq { offset, data: &mut b.0 }]).is_err(), "{offset}");
    }
    assert!(d.write(&[WriteReq { offset: size - B, data: &flat }]).is_err());
    assert!(d.write(&[WriteReq { offset: 0, data: &flat[..100] }]).is_err());
    assert!(d.discard(size, B).is_err());
    assert!(d.discard(0, u64::MAX).is_err());
    assert!(read_one(d, size - B).0 == before.0);

    // A discard is a hint: its neighbours stay.
    d.discard(B, 2 * B).unwrap();
    d.discard(0, 0).unwrap();
    assert_eq!(read_one(d, 0).0, blocks[0].0);
    assert_eq!(read_one(d, 3 * B).0, blocks[1].0);
    d.write(&[WriteReq { offset: B, data: &last.0 }]).unwrap();
    assert!(read_one(d, B).0 == last.0);
    d.flush().unwrap();
}
