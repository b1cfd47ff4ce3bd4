//! The keyed hash of a name, which places it in its directory: SipHash-1-3, cut to 60 bits
//! (docs/SPEC.md, "Directories").
//!
//! In one go over the whole name: a path walk hashes every component, and the streaming hashers
//! spend most of a short name's time on what is left over between two writes.

use super::dir_bucket::{COLLISION_BITS, COOKIE_BITS, COOKIE_MAX};

const _: () = assert!(60 + COLLISION_BITS == COOKIE_BITS);

/// Returns the place of `name` among the names of a directory: 60 bits of hash, never 0, shifted
/// over [`COLLISION_BITS`] zero bits.
#[inline]
pub fn name_hash(key: [u64; 2], name: &[u8]) -> u64 {
    let hash = (sip13(key, name) >> 4).max(1) << COLLISION_BITS;
    debug_assert!((1 << COLLISION_BITS..=COOKIE_MAX).contains(&hash), "{hash:#x} is no cookie");
    hash
}

struct State([u64; 4]);

impl State {
    #[inline(always)]
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*b);
        *a = a.wrapping_add(*d);
        *b = b.rotate_left(17) ^ *c;
        *d = d.rotate_left(21) ^ *a;
        *c = c.rotate_left(32);
    }

    #[inline(always)]
    fn word(&mut self, m: u64) {
        self.0[3] ^= m;
        self.round();
        self.0[0] ^= m;
    }
}

#[inline]
fn sip13(key: [u64; 2], data: &[u8]) -> u64 {
    let mut s = State([
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = data.as_chunks::<8>();
    for w in words {
        s.word(u64::from_le_bytes(*w));
    }
    s.word(last_word(rest) | (data.len() as u64) << 56);
    s.0[2] ^= 0xff;
    s.round();
    s.round();
    s.round();
    s.0[0] ^ s.0[1] ^ s.0[2] ^ s.0[3]
}

/// Returns up to seven bytes as a little-endian number, in at most three loads.
#[inline(always)]
fn last_word(rest: &[u8]) -> u64 {
    let n = rest.len();
    debug_assert!(n < 8, "{n} bytes are a word of their own");
    if let (Some(low), Some(high)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << (8 * (n - 4));
    }
    match n {
        0 => 0,
        // One to three: the first, the middle and the last, which may be the same.
        _ => {
            u64::from(rest[0])
                | u64::from(rest[n / 2]) << (8 * (n / 2))
                | u64::from(rest[n - 1]) << (8 * (n - 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::Hasher;

    fn library(key: [u64; 2], name: &[u8]) -> u64 {
        let mut h = siphasher::sip::SipHasher13::new_with_keys(key[0], key[1]);
        h.write(name);
        h.finish()
    }

    proptest! {
        #[test]
        fn is_what_the_library_says(a: u64, b: u64, name in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sip13([a, b], &name), library([a, b], &name));
        }
    }

    #[test]
    fn every_length_up_to_a_few_words() {
        let name: Vec<u8> = (1..=40).collect();
        for n in 0..=name.len() {
            assert_eq!(sip13([3, 4], &name[..n]), library([3, 4], &name[..n]), "{n} bytes");
        }
    }
}
