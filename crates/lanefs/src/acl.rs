//! POSIX ACLs as the kernel stores them in `system.posix_acl_access` and
//! `system.posix_acl_default`, and what they have to do with modes.
//!
//! The library stores an ACL as the extended attribute that the kernel has for it, and checks
//! access by the mode alone. With FUSE's POSIX_ACL the kernel checks access against these values.
//! Three things are the file system's, done as ext4 and XFS do them (see acl(5)):
//!
//! 1. Setting an access ACL sets the mode, and the ACL is kept only where the mode does not say all
//!    of it. Programs copy a mode so where they are linked to libacl: `sed -i`, vim, cp and tar.
//! 2. A change of mode changes the ACL's owner, mask and other entries.
//! 3. A new file inherits its directory's default ACL in place of the umask. This is the mount's:
//!    what the library makes by path inherits none.
//!
//! The calls of [`crate::Fs`] and [`crate::File`] do the first two, and so do
//! [`crate::Volume::node_setxattr_and_mode`] and [`crate::Volume::node_setattr_and_acl`]. They
//! change ACL and mode at once: of two threads that change them at a time one leaves both. (A
//! change of mode alone begins with the ACL that it finds, and takes back one that is set
//! meanwhile.)

/// Name of the attribute that holds the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds a directory's default ACL.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// An ACL without entries, which stands for none.
pub(crate) const NO_ENTRIES: &[u8] = &VERSION.to_le_bytes();
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

// Each tag is a bit of its own.
const _: () = assert!(USER_OBJ + USER + GROUP_OBJ + GROUP + MASK + OTHER == 0x3f);

/// The permissions of one user, one group, or a class of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A decoded ACL: sorted and with its three base entries present, as the kernel guarantees and
/// [`Acl::decode`] checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

/// The mode and the ACLs of a new file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// Permission bits.
    pub mode: u32,
    /// Access ACL, unless the mode expresses it.
    pub access: Option<Vec<u8>>,
    /// Default ACL of a new directory.
    pub default: Option<Vec<u8>>,
}

impl Inherited {
    /// Returns the ACLs as extended attributes.
    pub fn xattrs(&self) -> Vec<(&[u8], &[u8])> {
        let both = [(ACCESS, &self.access), (DEFAULT, &self.default)];
        both.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
    }
}

impl Acl {
    /// Decodes the stored value; `None` if it is not an ACL.
    pub fn decode(value: &[u8]) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(8) {
            return None;
        }
        let entries: Vec<Entry> = entries
            .chunks_exact(8)
            .map(|e| Entry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                perm: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let whole = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|t| count(*t) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && entries.len() == 3 + named + count(MASK)
            && entries.iter().all(|e| e.perm <= 7);
        let acl = whole.then_some(Acl(entries))?;
        acl.check_invariants();
        debug_assert_eq!(acl.encode(), value, "what is decoded is stored again as it was");
        Some(acl)
    }

    /// Asserts that the entries are those of an ACL as [`Acl::decode`] lets it pass.
    fn check_invariants(&self) {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        debug_assert_eq!((count(USER_OBJ), count(GROUP_OBJ), count(OTHER)), (1, 1, 1), "base entries");
        let named = count(USER) + count(GROUP);
        debug_assert!(count(MASK) == 1 || (count(MASK) == 0 && named == 0), "named entries need a mask");
        debug_assert_eq!(self.0.len(), 3 + named + count(MASK), "an entry with an unknown tag");
        debug_assert!(self.0.iter().all(|e| e.perm <= 7));
    }

    /// Encodes the value to be stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            out.extend(e.tag.to_le_bytes());
            out.extend(e.perm.to_le_bytes());
            out.extend(e.id.to_le_bytes());
        }
        debug_assert_eq!(out.len(), 4 + 8 * self.0.len());
        out
    }

    /// Returns the permissions of the first entry with a tag.
    fn perm(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// Returns the tag whose permissions the mode's group bits show: the mask if there is one.
    fn group_tag(&self) -> u16 {
        if self.0.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    /// Returns whether the mode alone expresses it.
    pub fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the nine permission bits that show this ACL.
    pub fn mode(&self) -> u32 {
        let group = self.group_tag();
        let mode = self.0.iter().fold(0, |mode, e| {
            mode | match e.tag {
                USER_OBJ => u32::from(e.perm) << 6,
                OTHER => u32::from(e.perm),
                t if t == group => u32::from(e.perm) << 3,
                _ => 0,
            }
        });
        debug_assert_eq!(mode & !0o777, 0, "permissions of an entry overlap those of another");
        mode
    }

    /// Brings the entries that the mode shows in step with it, as chmod does.
    pub fn chmod(&mut self, mode: u32) {
        let group = self.group_tag();
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(p) = self.perm(tag) {
                *p = (mode >> shift & 7) as u16;
            }
        }
        self.check_invariants();
        debug_assert_eq!(self.mode(), mode & 0o777);
    }

    /// Returns the mode and the ACLs of a file made with `mode` in a directory with this default
    /// ACL. The umask is not used then.
    pub fn inherit(&self, mode: u32, is_dir: bool) -> Inherited {
        let mut access = self.clone();
        let allowed = self.mode() & mode;
        access.chmod(allowed);
        debug_assert_eq!(allowed & !mode, 0, "an ACL grants more than who makes the file asked for");
        Inherited {
            mode: mode & !0o777 | allowed,
            access: (!access.is_plain()).then(|| access.encode()),
            default: is_dir.then(|| self.encode()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }

    fn sample() -> Acl {
        acl(&[(USER_OBJ, 7, NONE), (USER, 6, 1000), (GROUP_OBJ, 5, NONE), (MASK, 6, NONE), (OTHER, 0, NONE)])
    }

    #[test]
    fn a_value_survives_and_garbage_is_refused() {
        let value = sample().encode();
        assert_eq!(Acl::decode(&value), Some(sample()));
        for n in 0..value.len() {
            assert_eq!(Acl::decode(&value[..n]), None, "{n} bytes");
        }
        let without_mask =
            acl(&[(USER_OBJ, 7, NONE), (USER, 6, 1000), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]);
        assert_eq!(Acl::decode(&without_mask.encode()), None);
    }

    #[test]
    fn the_mask_stands_in_the_group_bits() {
        let mut a = sample();
        assert_eq!(a.mode(), 0o760);
        a.chmod(0o640);
        assert_eq!(a.mode(), 0o640);
        assert_eq!(a.0[2].perm, 5, "the owning group's own entry stays behind the mask");
    }

    #[test]
    fn a_new_file_gets_the_default_acl_cut_by_its_mode() {
        let file = sample().inherit(0o100_644, false);
        assert_eq!(file.mode, 0o100_640);
        assert_eq!(Acl::decode(&file.access.unwrap()).unwrap().mode(), 0o640);
        assert_eq!(file.default, None);
        let dir = sample().inherit(0o777, true);
        assert_eq!(dir.default, Some(sample().encode()));
        let plain = acl(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 5, NONE)]);
        assert_eq!(plain.inherit(0o666, false), Inherited { mode: 0o644, access: None, default: None });
    }
}
