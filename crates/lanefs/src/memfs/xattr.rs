//! Extended attributes of one inode, and their encoding as the store keeps them.
//!
//! Encoding: for each attribute, in name order, `name_len: u8, value_len: u32, name, value`, little-endian.

use lanefs_store::XATTR_BLOB_MAX;
use std::collections::BTreeMap;

/// The longest attribute name, prefix included, in bytes.
pub(crate) const XATTR_NAME_MAX: usize = 255;
/// The largest value, in bytes.
pub(crate) const XATTR_VALUE_MAX: usize = 65536;

#[derive(Default, Clone)]
pub(crate) struct Xattrs {
    map: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

impl Xattrs {
    /// Decodes what the store kept; `None` if it is malformed.
    pub fn decode(mut b: &[u8]) -> Option<Xattrs> {
        let mut map = BTreeMap::new();
        while let Some((&n, rest)) = b.split_first() {
            let (len, rest) = rest.split_first_chunk::<4>()?;
            let (name, rest) = rest.split_at_checked(n.into())?;
            let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            if name.is_empty() || value.len() > XATTR_VALUE_MAX {
                return None;
            }
            map.insert(name.into(), value.into());
            b = rest;
        }
        Some(Xattrs { map })
    }

    /// The bytes the store keeps.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        for (n, v) in &self.map {
            out.push(n.len() as u8);
            out.extend_from_slice(&(v.len() as u32).to_le_bytes());
            out.extend_from_slice(n);
            out.extend_from_slice(v);
        }
        out
    }

    fn encoded_len(&self) -> usize {
        self.map.iter().map(|(n, v)| 5 + n.len() + v.len()).sum()
    }

    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.map.get(name).map(|v| &**v)
    }

    /// Sets a value. ENOSPC when the inode's attributes would exceed [`XATTR_BLOB_MAX`].
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), i32> {
        let old = self.map.insert(name.into(), value.into());
        if self.encoded_len() > XATTR_BLOB_MAX {
            match old {
                Some(v) => self.map.insert(name.into(), v),
                None => self.map.remove(name),
            };
            return Err(libc::ENOSPC);
        }
        Ok(())
    }

    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.map.remove(name).is_some()
    }

    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.map.keys().map(|k| &**k)
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_no_cut_is_taken_for_whole() {
        let mut x = Xattrs::default();
        x.set(b"user.a", b"1").unwrap();
        x.set(b"user.b", &[7; 300]).unwrap();
        let b = x.encode();
        let y = Xattrs::decode(&b).unwrap();
        assert_eq!(y.get(b"user.b"), Some(&[7u8; 300][..]));
        assert_eq!(y.names().count(), 2);
        for cut in 1..b.len() {
            // A cut is refused, unless it falls between two attributes.
            assert!(Xattrs::decode(&b[..cut]).is_none_or(|x| x.names().count() < 2));
        }
    }

    #[test]
    fn too_many_bytes_are_refused_and_change_nothing() {
        let mut x = Xattrs::default();
        x.set(b"user.a", &vec![1; 60_000]).unwrap();
        x.set(b"user.b", &vec![1; 60_000]).unwrap();
        assert_eq!(x.set(b"user.a", &vec![2; XATTR_VALUE_MAX + 10_000]), Err(libc::ENOSPC));
        assert_eq!(x.get(b"user.a").map(<[u8]>::len), Some(60_000));
    }
}
