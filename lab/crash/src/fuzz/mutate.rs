//! Damage behind the checksums: fields are changed, then the block is sealed again, and whoever
//! refers to it, up to the slot.
//!
//! References are found by what they are on disk: eight bytes of address and the sum right behind
//! them, or (entries of the inode table) behind eight more. So the mutator needs to know no
//! structure to keep all of them valid, and knows only where fields begin.

use super::seeds::{HASH_KEY, Seed};
use super::tell;
use lanefs_format::BlockAddr;
use lanefs_format::batch::{BATCH_HEADER, blocks_for};
use lanefs_format::checksum::{block_crc, pieces_crc};
use lanefs_format::header::{BlockKind, HEADER_LEN, verify_sealed};
use lanefs_format::pack::SLOT_HEADER;
use lanefs_format::{BLOCK_SIZE, Block};
use lanefs_lab_model::generate::Rng;

/// The kind of a block, as the mutator sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Superblock or its copy.
    Superblock,
    /// Checkpoint slot.
    Slot,
    /// Any block with a header.
    Node(BlockKind),
}

/// A block that can be changed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    device: usize,
    block: usize,
    /// Its kind.
    pub form: Form,
}

impl Target {
    /// Device and byte where it begins.
    pub fn offset_in(&self, devices: usize) -> (usize, usize) {
        (self.device.min(devices - 1), self.block * BLOCK_SIZE)
    }

    fn addr(&self) -> BlockAddr {
        BlockAddr::new(self.device as u8, self.block as u64)
    }
}

/// An image while it is being changed.
pub struct Mutant {
    /// The bytes of each device.
    pub devices: Vec<Vec<u8>>,
    targets: Vec<Target>,
}

fn get(b: &[u8], at: usize, n: usize) -> u64 {
    let mut v = [0; 8];
    v[..n].copy_from_slice(&b[at..at + n]);
    u64::from_le_bytes(v)
}

/// The structures of a valid image.
pub fn targets(seed: &Seed) -> Vec<Target> {
    let mut all = Vec::new();
    for (device, bytes) in seed.devices.iter().enumerate() {
        for (block, b) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            let mut own = Block::zeroed();
            own.0.copy_from_slice(b);
            let form = match verify_sealed(&own, BlockAddr::new(device as u8, block as u64)) {
                Some((kind, _)) => Form::Node(kind),
                None if b.starts_with(b"LANEFS\0\x01") => Form::Superblock,
                None if b.starts_with(b"LFSLOT\0\x01") => Form::Slot,
                None => continue,
            };
            all.push(Target { device, block, form });
        }
    }
    all
}

impl Mutant {
    /// A copy to be changed.
    pub fn new(seed: &Seed, targets: Vec<Target>) -> Mutant {
        Mutant { devices: seed.devices.clone(), targets }
    }

    fn block(&self, t: Target) -> &[u8] {
        &self.devices[t.device][t.block * BLOCK_SIZE..(t.block + 1) * BLOCK_SIZE]
    }

    fn block_mut(&mut self, t: Target) -> &mut [u8] {
        &mut self.devices[t.device][t.block * BLOCK_SIZE..(t.block + 1) * BLOCK_SIZE]
    }

    fn crc(&self, t: Target) -> u32 {
        block_crc(t.addr(), self.block(t))
    }

    /// Makes a block's own sums right. What refers to it is not looked at.
    fn seal(&mut self, t: Target) {
        match t.form {
            Form::Superblock | Form::Slot => {
                let addr = if t.form == Form::Slot { t.addr() } else { BlockAddr(0) };
                let crc = pieces_crc(addr, 0, &[&self.block(t)[..BLOCK_SIZE - 4]]);
                self.block_mut(t)[BLOCK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
            }
            Form::Node(kind) => {
                if matches!(kind, BlockKind::Batch | BlockKind::Chain) {
                    self.seal_log(t);
                }
                let b = self.block_mut(t);
                b[12..16].fill(0);
                let crc = block_crc(t.addr(), b);
                b[12..16].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }

    /// The sum of a batch or link over all its blocks, as docs/SPEC.md section 6 has it.
    fn seal_log(&mut self, t: Target) {
        let b = self.block(t);
        let (mount, seq) = (get(b, 72, 8), get(b, 80, 8));
        let secret = HASH_KEY[0] ^ HASH_KEY[1].rotate_left(29);
        let x = seq ^ mount.rotate_left(40) ^ secret;
        let extra = x.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ (x >> 32);
        let len = usize::try_from(get(b, 120, 8)).unwrap_or(usize::MAX);
        let blocks = match t.form {
            Form::Node(BlockKind::Batch) if len < 1 << 20 => blocks_for(len),
            _ => 1,
        };
        let start = t.block * BLOCK_SIZE;
        let end = (start + blocks * BLOCK_SIZE).min(self.devices[t.device].len());
        let crc = pieces_crc(t.addr(), extra, &[&self.devices[t.device][start + HEADER_LEN + 4..end]]);
        self.block_mut(t)[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Seals a block that was changed, and then all that lead to it. `old` is the sum that its
    /// parents have.
    fn reseal_up(&mut self, t: Target, old: u32) {
        self.seal(t);
        let mut todo = vec![(t.addr(), old, self.crc(t))];
        // Each step goes one level up; damage may have made circles of it.
        for _ in 0..64 {
            let Some((addr, was, now)) = todo.pop() else { return };
            for parent in self.targets.clone() {
                let before = self.crc_if_names(parent, addr, was, now);
                if let Some(before) = before {
                    self.seal(parent);
                    if matches!(parent.form, Form::Node(k) if k != BlockKind::Batch && k != BlockKind::Chain)
                    {
                        todo.push((parent.addr(), before, self.crc(parent)));
                    }
                }
            }
        }
    }

    /// Replaces the sum of references to `addr` in a block; what the block summed to before, if
    /// there were any.
    fn crc_if_names(&mut self, t: Target, addr: BlockAddr, was: u32, now: u32) -> Option<u32> {
        let bytes = addr.0.to_le_bytes();
        let b = self.block(t);
        let mut found = Vec::new();
        for at in 16..BLOCK_SIZE - 20 {
            if b[at] == bytes[0] && b[at..at + 8] == bytes {
                found.extend([at + 8, at + 16].into_iter().filter(|&c| get(b, c, 4) as u32 == was));
            }
        }
        if found.is_empty() {
            return None;
        }
        let before = self.crc(t);
        for at in found {
            self.block_mut(t)[at..at + 4].copy_from_slice(&now.to_le_bytes());
        }
        Some(before)
    }

    /// Lets `f` change blocks; those for which it answers true are sealed again, with all that lead
    /// to them. Returns how many.
    pub fn edit(&mut self, mut f: impl FnMut(Form, &mut [u8]) -> bool) -> usize {
        let mut changed = 0;
        for t in self.targets.clone() {
            let old = self.crc(t);
            if f(t.form, self.block_mut(t)) {
                changed += 1;
                self.reseal_up(t, old);
            }
        }
        changed
    }

    /// Changes one place.
    pub fn change(&mut self, rng: &mut Rng) {
        let t = self.choose(rng);
        let old = self.crc(t);
        match rng.below(20) {
            // Damage that the checksums show.
            0 => {
                let at = rng.below(BLOCK_SIZE as u64) as usize;
                let bits = rng.bits() as u8;
                self.block_mut(t)[at] ^= bits.max(1);
                tell(format!("{t:?} byte {at} flipped, unsealed"));
                return;
            }
            // A block in the place of another.
            1 => {
                let from = self.choose(rng);
                let bytes = self.block(from).to_vec();
                self.block_mut(t).copy_from_slice(&bytes);
                tell(format!("{t:?} replaced by {from:?}"));
            }
            2 => {
                let len = 1 << rng.below(12);
                let (from, to) = (self.offset(t, rng), self.offset(t, rng));
                let end = len.min(BLOCK_SIZE - from.max(to));
                self.block_mut(t).copy_within(from..from + end, to);
                tell(format!("{t:?} {end} bytes at {from} copied to {to}"));
            }
            3 => {
                let (at, v) = (self.offset(t, rng), if rng.one_in(2) { 0 } else { rng.bits() as u8 });
                let end = (at + (1 << rng.below(10))).min(BLOCK_SIZE);
                self.block_mut(t)[at..end].fill(v);
                tell(format!("{t:?} {at}..{end} filled with {v}"));
            }
            // A reference to another block, with the right sum.
            4..=6 => {
                let to = self.choose(rng);
                let at = self.reference(t, rng);
                let (addr, crc) = (to.addr().0, self.crc(to));
                let crc_at = if t.form == Form::Node(BlockKind::Table) && rng.one_in(2) { 16 } else { 8 };
                if at + crc_at + 4 <= BLOCK_SIZE {
                    let b = self.block_mut(t);
                    b[at..at + 8].copy_from_slice(&addr.to_le_bytes());
                    b[at + crc_at..at + crc_at + 4].copy_from_slice(&crc.to_le_bytes());
                    tell(format!("{t:?} at {at} refers to {to:?}"));
                }
            }
            _ => {
                let n = *rng.pick(&[1usize, 2, 4, 4, 8, 8, 8]);
                let at = self.offset(t, rng).min(BLOCK_SIZE - n);
                let was = get(self.block(t), at, n);
                let v = self.value(rng, was, n);
                self.block_mut(t)[at..at + n].copy_from_slice(&v.to_le_bytes()[..n]);
                tell(format!("{t:?} at {at}: {n} bytes {was:#x} -> {v:#x}"));
            }
        }
        self.reseal_up(t, old);
    }

    /// A block to change; kinds with few blocks come as often as those with many.
    fn choose(&self, rng: &mut Rng) -> Target {
        let forms = [
            Form::Superblock,
            Form::Slot,
            Form::Slot,
            Form::Node(BlockKind::Inode),
            Form::Node(BlockKind::Inode),
            Form::Node(BlockKind::Inode),
            Form::Node(BlockKind::Pack),
            Form::Node(BlockKind::Pack),
            Form::Node(BlockKind::Pack),
            Form::Node(BlockKind::Map),
            Form::Node(BlockKind::Table),
            Form::Node(BlockKind::Bucket),
            Form::Node(BlockKind::Bucket),
            Form::Node(BlockKind::Xattr),
            Form::Node(BlockKind::Usage),
            Form::Node(BlockKind::Orphans),
            Form::Node(BlockKind::Batch),
            Form::Node(BlockKind::Batch),
            Form::Node(BlockKind::Batch),
            Form::Node(BlockKind::Chain),
            Form::Node(BlockKind::Summary),
        ];
        let form = *rng.pick(&forms);
        let some: Vec<&Target> = self.targets.iter().filter(|t| t.form == form).collect();
        match some.is_empty() {
            true => *rng.pick(&self.targets),
            false => **rng.pick(&some),
        }
    }

    /// Picks an offset at which to change something: mostly one where a field is.
    fn offset(&self, t: Target, rng: &mut Rng) -> usize {
        let fixed = |rng: &mut Rng, from: u64, to: u64| (from + rng.below((to - from) / 4) * 4) as usize;
        match (rng.below(4), t.form) {
            (0, _) => {
                // Beside something that is not zero.
                let b = self.block(t);
                let start = rng.below(BLOCK_SIZE as u64) as usize;
                (start..BLOCK_SIZE).find(|&i| b[i] != 0).unwrap_or(start)
            }
            (_, Form::Superblock) => fixed(rng, 8, 136).max(fixed(rng, 0, 1100) * usize::from(rng.one_in(4))),
            (_, Form::Slot) => fixed(rng, 8, 200),
            (1, Form::Node(_)) => *rng.pick(&[4, 5, 6, 8, 16, 24, 32, 40, 48, 56]),
            (_, Form::Node(BlockKind::Inode)) => *rng.pick(&[
                64, 76, 80, 88, 88, 88, 96, 128, 132, 136, 144, 152, 153, 154, 160, 168, 176, 180, 182, 184,
                192, 196, 200, 208, 256, 264, 268, 276, 296,
            ]),
            (_, Form::Node(BlockKind::Pack)) => self.pack_offset(t, rng),
            (_, Form::Node(BlockKind::Batch)) => {
                *rng.pick(&[68, 72, 80, 88, 96, 104, 112, 116, 120, 128, 132, BATCH_HEADER])
                    + fixed(rng, 0, 300) * usize::from(rng.one_in(2))
            }
            (_, Form::Node(BlockKind::Chain)) => fixed(rng, 68, 136),
            (_, Form::Node(BlockKind::Table)) => 64 + 28 * rng.below(128) as usize + fixed(rng, 0, 28),
            (_, Form::Node(BlockKind::Usage)) => 64 + 96 * rng.below(42) as usize + fixed(rng, 0, 96),
            (_, Form::Node(_)) => fixed(rng, 64, 200),
        }
    }

    /// Picks an offset in a pack: its counts, or a field of a slot.
    fn pack_offset(&self, t: Target, rng: &mut Rng) -> usize {
        if rng.one_in(8) {
            return *rng.pick(&[HEADER_LEN, HEADER_LEN + 2]);
        }
        let (b, mut at) = (self.block(t), HEADER_LEN + 4);
        for _ in 0..rng.below(get(b, HEADER_LEN, 2).clamp(1, 46)) {
            let words = (get(b, at + 1, 4) & 0xff_ffff).count_ones() as usize;
            let next = at + SLOT_HEADER + 8 * words + get(b, at + 4, 2) as usize;
            if next + 200 > BLOCK_SIZE {
                break;
            }
            at = next;
        }
        let field = *rng.pick(&[0, 1, 2, 3, 4, 5]);
        at + if rng.one_in(2) { field } else { SLOT_HEADER + 4 * rng.below(48) as usize }
    }

    /// Picks an offset at which a reference may be.
    fn reference(&self, t: Target, rng: &mut Rng) -> usize {
        match t.form {
            Form::Superblock => 112,
            Form::Slot => *rng.pick(&[96, 112, 128, 152, 172]),
            Form::Node(BlockKind::Inode) => *rng.pick(&[168, 256, 264, 276, 284]),
            Form::Node(BlockKind::Table) => 64 + *rng.pick(&[28, 12]) * rng.below(64) as usize,
            Form::Node(BlockKind::Chain | BlockKind::Batch) => *rng.pick(&[112, 248, 256]),
            Form::Node(_) => 64 + 12 * rng.below(256) as usize,
        }
    }

    /// A value that is likely to matter.
    fn value(&self, rng: &mut Rng, was: u64, n: usize) -> u64 {
        let bits = 8 * n as u32;
        let any = rng.bits();
        let edge = 1u64 << rng.below(u64::from(bits));
        match rng.below(12) {
            0 => 0,
            1 => u64::MAX,
            2 => was.wrapping_add(1),
            3 => was.wrapping_sub(1),
            4 => edge,
            5 => edge - 1,
            6 => was ^ edge,
            7 => any,
            8 => rng.pick(&self.targets).addr().0,
            9 => rng.below(300),
            10 => u64::MAX << rng.below(u64::from(bits)),
            _ => (rng.below(4) << 56) | rng.below(700),
        }
    }
}
