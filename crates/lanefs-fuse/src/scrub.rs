//! A scrub through the mount: an `ioctl` of a directory of it, a step per call, so that no request
//! takes long and the caller sets the pace.
//!
//! The argument is [`IOC_SCRUB`]'s 16 KiB, in and out. In: where to go on and how many blocks to
//! read. Out: where to go on, what was read, and the damaged blocks with their paths. All integers
//! little-endian.

use lanefs::scrub::Damaged;
use lanefs::{Ino, ScrubCursor, ScrubDamage, ScrubStep, Volume};

/// Bytes of the argument.
pub const SCRUB_SIZE: usize = 16_000;
/// `ioctl` on a directory of the mount: one step of a scrub. For root and whoever serves the mount.
pub const IOC_SCRUB: u32 = 3 << 30 | (SCRUB_SIZE as u32) << 16 | 0x4c02;

/// Bytes before the list of damaged blocks.
const HEAD: usize = 48;
/// The longest path and the longest message that are passed on.
const LONGEST: usize = 2000;
/// Bytes of a damaged block before its path and its message.
const ENTRY: usize = 40;

const _: () = assert!(SCRUB_SIZE < 1 << 14, "the command's number has 14 bits for it");
// One block with the longest path and message fits, so a step always gets on.
const _: () = assert!(HEAD + ENTRY + 2 * LONGEST <= SCRUB_SIZE);

/// Encodes the argument of the caller.
pub fn encode_request(at: ScrubCursor, budget: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(SCRUB_SIZE);
    for w in [at.ino, at.page, budget] {
        out.extend(w.to_le_bytes());
    }
    debug_assert!(out.len() <= HEAD);
    out.resize(SCRUB_SIZE, 0);
    out
}

/// The rest of an encoded list of words and bytes.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn u64(&mut self) -> Option<u64> {
        let (w, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*w))
    }
    fn bytes(&mut self, n: u64) -> Option<&'a [u8]> {
        let (b, rest) = self.0.split_at_checked(usize::try_from(n).ok()?)?;
        self.0 = rest;
        Some(b)
    }
}

/// Serves [`IOC_SCRUB`]: does a step and encodes what it found. `None` if the request makes no
/// sense.
pub(crate) fn serve(volume: &Volume, request: &[u8]) -> Option<lanefs::Result<Vec<u8>>> {
    let mut r = Words(request);
    let at = ScrubCursor { ino: r.u64()?, page: r.u64()? };
    let mut budget = r.u64()?.clamp(1, 1 << 16);
    loop {
        let (step, damaged) = match volume.scrub_step(at, budget) {
            Ok(done) => done,
            Err(e) => return Some(Err(e)),
        };
        let (out, whole) = encode_answer(&step, &damaged);
        debug_assert_eq!(out.len(), SCRUB_SIZE);
        // More damage than an answer holds: fewer blocks at a time.
        if whole || budget == 1 {
            return Some(Ok(out));
        }
        budget = (budget / 8).max(1);
    }
}

/// Encodes an answer; false if not all damage fits.
fn encode_answer(step: &ScrubStep, damaged: &[Damaged]) -> (Vec<u8>, bool) {
    let next = step.next.unwrap_or_default();
    let mut list = Vec::new();
    let mut count = 0u64;
    for d in damaged {
        let path = d.path.as_deref().unwrap_or_default();
        let (path, what) = (&path[..path.len().min(LONGEST)], &d.damage.what.as_bytes());
        let what = &what[..what.len().min(LONGEST)];
        if HEAD + list.len() + ENTRY + path.len() + what.len() > SCRUB_SIZE {
            break;
        }
        debug_assert!(d.damage.device < 128 && d.damage.block < 1 << 56, "they share a word");
        debug_assert_ne!(d.damage.page, Some(u64::MAX), "it stands for no page");
        let page = d.damage.page.unwrap_or(u64::MAX);
        let block = u64::from(d.repaired) << 63 | u64::from(d.damage.device) << 56 | d.damage.block;
        for w in [d.damage.ino.0, page, block, path.len() as u64, what.len() as u64] {
            list.extend(w.to_le_bytes());
        }
        list.extend(path);
        list.extend(what);
        count += 1;
    }
    let mut out = Vec::with_capacity(SCRUB_SIZE);
    for w in [next.ino, next.page, u64::from(step.next.is_some()), step.data_blocks, step.node_blocks, count]
    {
        out.extend(w.to_le_bytes());
    }
    debug_assert_eq!(out.len(), HEAD);
    debug_assert!(HEAD + list.len() <= SCRUB_SIZE);
    debug_assert!(count > 0 || damaged.is_empty(), "a step that reports nothing never ends");
    out.extend(list);
    out.resize(SCRUB_SIZE, 0);
    (out, count == damaged.len() as u64)
}

/// Decodes the mount's answer; `None` if it is none.
pub fn decode_answer(bytes: &[u8]) -> Option<(ScrubStep, Vec<Damaged>)> {
    let mut r = Words(bytes);
    let next = ScrubCursor { ino: r.u64()?, page: r.u64()? };
    let more = r.u64()? != 0;
    let mut step = ScrubStep { next: more.then_some(next), ..ScrubStep::default() };
    (step.data_blocks, step.node_blocks) = (r.u64()?, r.u64()?);
    let mut damaged = Vec::new();
    for _ in 0..r.u64()? {
        let (ino, page, block) = (Ino(r.u64()?), r.u64()?, r.u64()?);
        let (path, what) = (r.u64()?, r.u64()?);
        let (path, what) = (r.bytes(path)?, r.bytes(what)?);
        let damage = ScrubDamage {
            ino,
            page: (page != u64::MAX).then_some(page),
            device: (block >> 56) as u8 & 0x7f,
            block: block & ((1 << 56) - 1),
            what: String::from_utf8_lossy(what).into_owned(),
        };
        let (path, repaired) = ((!path.is_empty()).then(|| path.to_vec()), block >> 63 == 1);
        damaged.push(Damaged { path, damage, repaired });
    }
    Some((step, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_survives_the_trip() {
        let damage = |n: u64| ScrubDamage {
            ino: Ino(n),
            page: (n > 0).then_some(n * 3),
            device: n as u8,
            block: 7 + n,
            what: "x".repeat(n as usize),
        };
        let damaged: Vec<Damaged> = (0..5)
            .map(|n| Damaged {
                path: (n > 1).then(|| vec![b'/'; n as usize]),
                damage: damage(n),
                repaired: n == 2,
            })
            .collect();
        let step = ScrubStep {
            next: Some(ScrubCursor { ino: 5, page: 6 }),
            data_blocks: 1,
            node_blocks: 2,
            damage: Vec::new(),
            repaired: Vec::new(),
        };
        let (bytes, whole) = encode_answer(&step, &damaged);
        assert!(whole && bytes.len() == SCRUB_SIZE);
        assert_eq!(decode_answer(&bytes), Some((step.clone(), damaged)));
        let many = vec![Damaged { path: Some(vec![b'a'; 3000]), damage: damage(1), repaired: false }; 50];
        let (bytes, whole) = encode_answer(&step, &many);
        assert!(!whole);
        assert_eq!(decode_answer(&bytes).map(|a| a.1.len()), Some(7));
        for n in 0..bytes.len().min(3000) {
            let _ = decode_answer(&bytes[..n]);
        }
    }
}
