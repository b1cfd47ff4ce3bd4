//! Bytes for every decoder of the format: valid blocks that were changed, and noise. Whatever they
//! say, the answer is a value or an error; and what was decoded can be encoded and decoded again.

use super::images::corpus;
use super::tell;
use lanefs_format::batch::{self, Context};
use lanefs_format::dir_bucket::{self, BucketId};
use lanefs_format::header::BlockKind;
use lanefs_format::superblock::{UnverifiedSuperblock, Uuid};
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, Ino};
use lanefs_format::{
    checksum, header, inode, map_node, orphans, pack, record, slot, summary, table_node, usage_node,
};
use lanefs_lab_model::generate::Rng;

/// One buffer through all decoders.
pub fn case(rng: &mut Rng) -> Result<(), String> {
    let mut bytes = buffer(rng)?;
    for _ in 0..rng.below(6) {
        let n = bytes.len() as u64;
        match rng.below(4) {
            0 => bytes[rng.below(n) as usize] = rng.bits() as u8,
            1 => {
                let at = rng.below(n) as usize;
                let v = *rng.pick(&[0, 1, 0xff, 0x7f, 0x80]);
                let end = (at + (1 << rng.below(5))).min(bytes.len());
                bytes[at..end].fill(v);
            }
            2 => {
                let (from, to) = (rng.below(n) as usize, rng.below(n) as usize);
                let len = (1 + rng.below(300) as usize).min(bytes.len() - from.max(to));
                bytes.copy_within(from..from + len, to);
            }
            _ => {
                let at = (rng.below(n) & !3) as usize;
                let v = (1u64 << rng.below(64)).wrapping_sub(rng.below(2));
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&v.to_le_bytes()[..end - at]);
            }
        }
    }
    tell("decoders");
    blocks(&bytes, rng);
    messages(&bytes, rng)
}

/// One to four blocks: of a valid image, or noise.
fn buffer(rng: &mut Rng) -> Result<Vec<u8>, String> {
    let n = 1 + rng.below(4) as usize;
    if rng.one_in(8) {
        let density = 1 + rng.below(64);
        let byte = |rng: &mut Rng| if rng.one_in(density) { rng.bits() as u8 } else { 0 };
        return Ok((0..n * BLOCK_SIZE).map(|_| byte(rng)).collect());
    }
    let (seed, targets) = rng.pick(corpus()?);
    let start = rng.pick(targets).offset_in(seed.devices.len());
    let device = &seed.devices[start.0];
    let end = (start.1 + n * BLOCK_SIZE).min(device.len());
    Ok(device[start.1..end].to_vec())
}

fn blocks(bytes: &[u8], rng: &mut Rng) {
    let mut all: Vec<Block> = Vec::new();
    for b in bytes.chunks_exact(BLOCK_SIZE) {
        let mut block = Block([0; BLOCK_SIZE]);
        block.0.copy_from_slice(b);
        all.push(block);
    }
    let Some(b) = all.first() else { return };
    let h = header::read_header(b);
    let (ino, index, level) = (Ino(h.ino.get()), h.index.get(), h.level);
    let addr = BlockAddr(rng.bits());
    let _ = header::verify_sealed(b, addr);
    if let Ok(i) = inode::decode(b, addr, ino)
        && let Some(back) = inode::encode(ino, &i)
    {
        assert_eq!(
            inode::decode(&back, addr, ino).ok().as_ref(),
            Some(&i),
            "an inode changed by encoding it"
        );
    }
    pack_of_inodes(b, addr, index);
    for kind in [BlockKind::Map, BlockKind::Table, BlockKind::Usage] {
        let _ = map_node::decode(b, addr, kind, level, ino, index);
    }
    let _ = table_node::decode(b, addr, index);
    for n in [16, 512, 1 + rng.below(600) as u32] {
        let _ = usage_node::decode_leaf(b, addr, index, n);
    }
    if let Some(id) = BucketId::from_page(index) {
        if let Ok(e) = dir_bucket::decode(b, addr, ino, id) {
            sound_names(e);
        }
        let from = rng.below(BLOCK_SIZE as u64) as usize;
        if let Ok(e) = dir_bucket::check_body(&bytes[from..], addr, id) {
            sound_names(e);
        }
    }
    let _ = inode::decode_xattr_block(b, addr, ino, index);
    let _ = orphans::decode_orphans(b, addr, index);
    for part in 0..3 {
        let _ = summary::decode_summary(b, addr, index, part);
    }
    decode_sealed_ends(b.clone(), rng);
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b.0[at + i]));
    let context = Context { mount: word(72), seq: word(80), secret: rng.bits() };
    let _ = batch::decode_batch(&all, addr, context);
    let _ = batch::decode_chain(b, addr, context);
}

/// A pack: whatever inode is in it comes back from a slot that is made of it, which is as long.
fn pack_of_inodes(b: &Block, addr: BlockAddr, chunk: u64) {
    let Ok(p) = pack::decode(b, addr, chunk) else { return };
    for (ino, slot) in p.inodes().take_while(|i| i.0.chunk() == chunk) {
        let one = pack::decode_inode(b, addr, ino, slot).ok();
        assert_eq!(one, p.inode(ino, slot).ok(), "two answers for inode {ino}");
        let mut back = Vec::new();
        if let Some(i) = one
            && pack::put_slot(&mut back, ino, &i)
        {
            let again = pack::encode(chunk, std::iter::once(&back[..]));
            assert_eq!(pack::decode_inode(&again, addr, ino, 1).ok(), Some(i), "inode {ino} changed");
        }
    }
}

/// Superblock and slot, whose sum is in their last bytes.
fn decode_sealed_ends(mut b: Block, rng: &mut Rng) {
    let at = BlockAddr(rng.below(3));
    for plain in [true, false] {
        let crc = checksum::block_crc(if plain { BlockAddr(0) } else { at }, &b.0[..BLOCK_SIZE - 4]);
        b.0[BLOCK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        let size = rng.bits() >> rng.below(64);
        let _ = UnverifiedSuperblock(Box::new(b.clone())).verify(at.0, size);
        let volume = Uuid(std::array::from_fn(|i| b.0[16 + i]));
        let _ = slot::Slot::decode(&b, at, volume);
    }
}

fn sound_names(bytes: &[u8]) {
    for e in dir_bucket::entries(bytes) {
        assert!(dir_bucket::name_is_valid(e.name), "a name {:?} was let through", e.name);
    }
}

fn messages(bytes: &[u8], rng: &mut Rng) -> Result<(), String> {
    for from in [batch::BATCH_HEADER, 0, rng.below(bytes.len() as u64) as usize] {
        let some = &bytes[from.min(bytes.len())..];
        if let Some(m) = batch::decode_message(some) {
            let mut back = Vec::new();
            batch::put_message_head(&mut back, &m.groups, m.inodes.len());
            m.inodes.iter().for_each(|i| batch::put_inode(&mut back, i));
            if batch::decode_message(&back).as_ref() != Some(&m) {
                return Err("a message changed by encoding it".into());
            }
            walk_groups(&m.groups);
        }
        walk_groups(some);
    }
    Ok(())
}

fn walk_groups(bytes: &[u8]) {
    for g in record::groups(bytes).take(10_000) {
        let Ok(g) = g else { return };
        for e in g.effects() {
            match e {
                Ok(record::Effect::Set { name, .. } | record::Effect::Clr { name, .. }) => {
                    assert!(dir_bucket::name_is_valid(name), "a name {name:?} was let through");
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}
