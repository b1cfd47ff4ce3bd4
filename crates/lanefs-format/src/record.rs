//! Namespace records: the effects of operations, as the oplog holds them in memory and as commits
//! and fsync batches carry them to disk. One encoding for both, so that logging an operation is one
//! copy.
//!
//! A *group* is all effects of one operation; it is applied whole or not at all (O3).
//!
//! ```text
//! group   := len:u32 count:u16 lane:u16 epoch:u64 ts:u64 effect*        (len covers the whole group)
//! effect  := tag:u8 kind:u8 name_len:u16 payload
//! SET (1)    dir:u64 cookie:u64 ino:u64 old:u64 name[name_len]            the entry now names `ino`; it named `old` (0: none)
//! CLR (2)    dir:u64 cookie:u64 old:u64 name[name_len]                    the entry is gone; it named `old`
//! NEW (3)    ino:u64 parent:u64 rdev:u64 time:i64 generation:u32 mode:u32 uid:u32 gid:u32 target[name_len]
//!            (kind 1: later changes of mode, owner and ACLs are all in RIGHTS; 0: in records of the inode)
//! DEAD (4)   ino:u64 generation:u32                                       the inode's number is free
//! PARENT (5) ino:u64 parent:u64                                           a directory moved
//! XATTRS (6) ino:u64 xattrs[name_len]                                     what the inode that NEW makes just before has from the start
//! RIGHTS (7) ino:u64 generation:u32 mode:u32 uid:u32 gid:u32 acls[name_len]   who may do what with it from now on (kind 1: with these ACLs)
//! ```
//!
//! Link counts are not logged: SET adds a link to `ino` and takes one from `old`; CLR takes one
//! from `old`. Within one key the (old, new) pairs telescope, so a chain of effects can be absorbed
//! into its first `old` and its last `ino` without losing a count (O8). Directories carry no link
//! counts of this kind. `kind` is the [`FileKind`] of `ino` (of `old` for CLR). All integers
//! little-endian, no padding.

use crate::dir_bucket::name_is_valid;
use crate::types::{COUNTER_END, FileKind, Ino, NAME_MAX, SYMLINK_MAX, Version};

/// Bytes before the first effect of a group.
pub const GROUP_HEADER: usize = 24;
/// No group is longer: the largest is a directory with attributes from the start and its name.
pub const GROUP_MAX: usize = 8192;
/// The most bytes of encoded extended attributes that a new inode can have from the start.
pub const NEW_XATTRS_MAX: usize = 7680;

const _: () = assert!(GROUP_MAX <= u16::MAX as usize, "what is of variable length fits its field");
const _: () = assert!(
    GROUP_HEADER + (4 + 48) + (4 + 8 + NEW_XATTRS_MAX) + (4 + 32 + NAME_MAX) <= GROUP_MAX,
    "the largest group: a directory, its attributes, its name"
);
const _: () = assert!(
    GROUP_HEADER + (4 + 48 + SYMLINK_MAX) + (4 + 32 + NAME_MAX) <= GROUP_MAX,
    "a link with the longest target has a name as well"
);

/// One effect of a namespace operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // fields are named as in the table above and in `Attrs`
pub enum Effect<'a> {
    /// Entry `name` of `dir` names `ino` from now on; before it named `old` (none if it did not
    /// exist).
    Set { dir: Ino, cookie: u64, name: &'a [u8], ino: Ino, old: Ino, kind: FileKind },
    /// Entry `name` of `dir`, which named `old`, is gone.
    Clr { dir: Ino, cookie: u64, name: &'a [u8], old: Ino, kind: FileKind },
    /// Inode `ino` exists from now on, empty (a symbolic link: holding `target`).
    New {
        ino: Ino,
        parent: Ino,
        generation: u32,
        mode: u32,
        uid: u32,
        gid: u32,
        rdev: u64,
        time: i64,
        target: &'a [u8],
        logged: bool,
    },
    /// Inode `ino` has no names and no users left; its number may be reused once this is durable.
    Dead { ino: Ino, generation: u32 },
    /// Directory `ino` has moved into `parent`.
    Parent { ino: Ino, parent: Ino },
    /// Inode `ino`, which the effect before made, has these extended attributes from the start.
    Xattrs { ino: Ino, xattrs: &'a [u8] },
    /// Inode `ino` has this mode and owner from now on; and these ACLs and capabilities (encoded as
    /// all attributes are, see [`crate::xattrs::with_rights`]) in place of those it had, if there
    /// are any here.
    Rights { ino: Ino, generation: u32, mode: u32, uid: u32, gid: u32, acls: Option<&'a [u8]> },
}

impl<'a> Effect<'a> {
    /// Returns the number of bytes that this effect takes in a group.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        4 + match self {
            Effect::Set { name, .. } => 32 + name.len(),
            Effect::Clr { name, .. } => 24 + name.len(),
            Effect::New { target, .. } => 48 + target.len(),
            Effect::Dead { .. } => 12,
            Effect::Parent { .. } => 16,
            Effect::Xattrs { xattrs, .. } => 8 + xattrs.len(),
            Effect::Rights { acls, .. } => 24 + acls.map_or(0, <[u8]>::len),
        }
    }

    /// Returns whether what is of variable length in it is as short as a decoder asks for.
    fn is_short(&self) -> bool {
        match self {
            Effect::Set { name, .. } | Effect::Clr { name, .. } => name.len() <= NAME_MAX,
            Effect::New { target, .. } => target.len() <= SYMLINK_MAX,
            Effect::Xattrs { xattrs, .. } => xattrs.len() <= NEW_XATTRS_MAX,
            Effect::Rights { acls, .. } => acls.is_none_or(|acls| acls.len() <= NEW_XATTRS_MAX),
            Effect::Dead { .. } | Effect::Parent { .. } => true,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, tag: u8, kind: u8, n: usize| {
            debug_assert!(n <= usize::from(u16::MAX), "a name, target or list of {n} bytes");
            let n = (n as u16).to_le_bytes();
            out.extend_from_slice(&[tag, kind, n[0], n[1]]);
        };
        match *self {
            Effect::Set { dir, cookie, name, ino, old, kind } => {
                head(out, 1, kind as u8, name.len());
                for v in [dir.0, cookie, ino.0, old.0] {
                    out.extend_from_slice(&v.to_le_bytes());
                }
                out.extend_from_slice(name);
            }
            Effect::Clr { dir, cookie, name, old, kind } => {
                head(out, 2, kind as u8, name.len());
                for v in [dir.0, cookie, old.0] {
                    out.extend_from_slice(&v.to_le_bytes());
                }
                out.extend_from_slice(name);
            }
            Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged } => {
                head(out, 3, u8::from(logged), target.len());
                for v in [ino.0, parent.0, rdev, time as u64] {
                    out.extend_from_slice(&v.to_le_bytes());
                }
                for v in [generation, mode, uid, gid] {
                    out.extend_from_slice(&v.to_le_bytes());
                }
                out.extend_from_slice(target);
            }
            Effect::Dead { ino, generation } => {
                head(out, 4, 0, 0);
                out.extend_from_slice(&ino.0.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
            }
            Effect::Parent { ino, parent } => {
                head(out, 5, 0, 0);
                out.extend_from_slice(&ino.0.to_le_bytes());
                out.extend_from_slice(&parent.0.to_le_bytes());
            }
            Effect::Xattrs { ino, xattrs } => {
                head(out, 6, 0, xattrs.len());
                out.extend_from_slice(&ino.0.to_le_bytes());
                out.extend_from_slice(xattrs);
            }
            Effect::Rights { ino, generation, mode, uid, gid, acls } => {
                head(out, 7, u8::from(acls.is_some()), acls.map_or(0, <[u8]>::len));
                out.extend_from_slice(&ino.0.to_le_bytes());
                for v in [generation, mode, uid, gid] {
                    out.extend_from_slice(&v.to_le_bytes());
                }
                out.extend_from_slice(acls.unwrap_or_default());
            }
        }
    }
}

/// Appends one group to `out` and returns its length in bytes. Does not allocate if `out` has
/// capacity for [`group_len`] more bytes.
pub fn encode_group(out: &mut Vec<u8>, version: Version, effects: &[Effect<'_>]) -> usize {
    let start = out.len();
    let len = group_len(effects);
    debug_assert!(len <= GROUP_MAX, "a group of {len} bytes");
    debug_assert!(effects.len() <= usize::from(u16::MAX), "{} effects in one group", effects.len());
    debug_assert!(effects.iter().all(Effect::is_short), "what no decoder would take: {effects:?}");
    // Whole words, each with one look at the capacity that is left.
    let lengths =
        u64::from(len as u32) | (effects.len() as u64 & 0xffff) << 32 | u64::from(version.lane) << 48;
    for word in [lengths, version.epoch, version.ts] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for e in effects {
        e.put(out);
    }
    debug_assert_eq!(out.len() - start, len, "a buffer was reserved by the length foretold");
    len
}

/// Voids the group at byte `at` of a buffer in memory: it has no effects any more, and
/// [`without_void`] leaves it out. On disk there is no such group. Returns its bytes.
pub fn void_group(buf: &mut [u8], at: usize) -> usize {
    let bytes = group_at(buf, at).map_or(0, |g| g.bytes.len());
    debug_assert!(bytes > 0 && group_at(buf, at).is_ok_and(|g| g.count > 0), "no group begins at byte {at}");
    buf[at + 4..at + 6].fill(0);
    bytes
}

/// Returns the groups of a buffer of which none is malformed, but for those that were voided.
pub fn without_void(buf: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(buf.len());
    let (mut start, mut at) = (0, 0);
    while let Ok(g) = group_at(buf, at) {
        let is_void = g.count == 0 && g.bytes.len() > GROUP_HEADER;
        if is_void {
            out.extend_from_slice(&buf[start..at]);
            start = at + g.bytes.len();
        }
        at += g.bytes.len();
    }
    debug_assert_eq!(at, buf.len(), "a malformed group at byte {at}");
    out.extend_from_slice(&buf[start..at]);
    out
}

/// Returns how many bytes [`encode_group`] will append for these effects.
#[inline]
pub fn group_len(effects: &[Effect<'_>]) -> usize {
    GROUP_HEADER + effects.iter().map(Effect::encoded_len).sum::<usize>()
}

/// A group as it lies in a buffer; its bounds are checked, its effects not yet.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The operation's place in the order of all operations; (ts, lane) is also its identity.
    pub version: Version,
    /// The number of effects that follow.
    pub count: u16,
    /// The whole group, header included.
    pub bytes: &'a [u8],
}

/// The reason why bytes are not a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed record group at byte {at}: {why}")]
pub struct RecordError {
    /// Offset within the buffer given.
    pub at: usize,
    /// The mistake, for people.
    pub why: &'static str,
}

/// Reads the groups of a buffer one after another; stops at the first malformed one with an error.
pub fn groups(buf: &[u8]) -> impl Iterator<Item = Result<Group<'_>, RecordError>> {
    let mut at = 0;
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || at == buf.len() {
            return None;
        }
        let r = group_at(buf, at);
        match &r {
            Ok(g) => {
                at += g.bytes.len();
                debug_assert!(at <= buf.len(), "a group behind the end of its buffer");
            }
            Err(_) => failed = true,
        }
        Some(r)
    })
}

/// Reads the group that starts at byte `at`.
pub fn group_at(buf: &[u8], at: usize) -> Result<Group<'_>, RecordError> {
    let err = |why| RecordError { at, why };
    let h = buf.get(at..at + GROUP_HEADER).ok_or(err("header cut short"))?;
    let len = u32_at(h, 0) as usize;
    if !(GROUP_HEADER..=GROUP_MAX).contains(&len) {
        return Err(err("length out of range"));
    }
    let bytes = buf.get(at..at + len).ok_or(err("group cut short"))?;
    let version = Version { epoch: u64_at(h, 8), ts: u64_at(h, 16), lane: u16_at(h, 6) };
    if version.epoch.max(version.ts) >= COUNTER_END {
        return Err(err("a version that cannot be"));
    }
    Ok(Group { version, count: u16_at(h, 4), bytes })
}

impl<'a> Group<'a> {
    /// Returns whether an inode is made here: a NEW is the first effect of its group. Does not look
    /// at the rest.
    #[inline]
    pub fn makes_an_inode(&self) -> bool {
        debug_assert!(self.bytes.len() >= GROUP_HEADER, "a group has a header");
        self.count > 0 && self.bytes.get(GROUP_HEADER) == Some(&NEW_TAG)
    }

    /// Returns the mode of the inode that is made here, and the length of its target; `None` if
    /// none is. Does not look at the rest.
    #[inline]
    pub fn made_inode(&self) -> Option<(u32, usize)> {
        let new = self.bytes.get(GROUP_HEADER..GROUP_HEADER + NEW_FIXED).filter(|_| self.makes_an_inode())?;
        debug_assert_eq!(new.len(), NEW_FIXED, "a NEW has more than its head");
        let (mode, target) = (u32_at(new, NEW_MODE), usize::from(u16_at(new, 2)));
        debug_assert!(target <= usize::from(u16::MAX), "a target of {target} bytes");
        Some((mode, target))
    }

    /// Returns the effects, checked one by one; stops at the first malformed one with an error.
    pub fn effects(&self) -> impl Iterator<Item = Result<Effect<'a>, RecordError>> + use<'a> {
        let bytes = self.bytes;
        let mut left = self.count;
        let mut at = GROUP_HEADER;
        let mut done = false;
        std::iter::from_fn(move || {
            if done {
                return None;
            }
            if left == 0 {
                done = true;
                return (at != bytes.len())
                    .then_some(Err(RecordError { at, why: "bytes after the last effect" }));
            }
            left -= 1;
            match effect_at(bytes, at) {
                Ok((e, n)) => {
                    debug_assert_eq!(n, e.encoded_len(), "reading and writing disagree: {e:?}");
                    debug_assert!(at + n <= bytes.len(), "an effect behind the end of its group");
                    at += n;
                    Some(Ok(e))
                }
                Err(e) => {
                    done = true;
                    Some(Err(e))
                }
            }
        })
    }
}

/// The tag of NEW.
const NEW_TAG: u8 = 3;
/// Bytes of a NEW before its target, and the place of its mode.
const NEW_FIXED: usize = 4 + 48;
const NEW_MODE: usize = 4 + 36;

/// Returns the number of bytes between the header and the name of an effect.
#[inline]
fn fixed_len(tag: u8) -> Option<usize> {
    match tag {
        1 => Some(32),
        2 | 7 => Some(24),
        3 => Some(48),
        4 => Some(12),
        5 => Some(16),
        6 => Some(8),
        _ => None,
    }
}

/// Decodes the effect at byte `at` of a group, and returns how many bytes it takes.
fn effect_at(b: &[u8], at: usize) -> Result<(Effect<'_>, usize), RecordError> {
    let err = |why| RecordError { at, why };
    let h = b.get(at..at + 4).ok_or(err("effect header cut short"))?;
    let (tag, kind, n) = (h[0], h[1], u16_at(h, 2) as usize);
    let fixed = fixed_len(tag).ok_or(err("unknown effect"))?;
    let p = b.get(at + 4..at + 4 + fixed).ok_or(err("effect cut short"))?;
    let tail = b.get(at + 4 + fixed..at + 4 + fixed + n).ok_or(err("name cut short"))?;
    let ino = |o| Ino(u64_at(p, o));
    let name = || name_is_valid(tail).then_some(tail).ok_or(err("bad name"));
    let kind_of = || FileKind::from_u8(kind).ok_or(err("unknown file kind"));
    let flag = || if kind <= 1 { Ok(kind == 1) } else { Err(err("unknown flags")) };
    let some = |i: Ino| if i.is_none() { Err(err("inode number 0")) } else { Ok(i) };
    let mode_at = |o| match u32_at(p, o) {
        mode if FileKind::from_mode(mode).is_some() => Ok(mode),
        _ => Err(err("a mode that names no kind of file")),
    };
    let e = match tag {
        1 => Effect::Set {
            dir: some(ino(0))?,
            cookie: u64_at(p, 8),
            name: name()?,
            ino: some(ino(16))?,
            old: ino(24),
            kind: kind_of()?,
        },
        2 => Effect::Clr {
            dir: some(ino(0))?,
            cookie: u64_at(p, 8),
            name: name()?,
            old: some(ino(16))?,
            kind: kind_of()?,
        },
        3 => {
            if n > SYMLINK_MAX {
                return Err(err("symbolic link target too long"));
            }
            let mode = mode_at(36)?;
            Effect::New {
                ino: some(ino(0))?,
                parent: ino(8),
                rdev: u64_at(p, 16),
                time: u64_at(p, 24) as i64,
                generation: u32_at(p, 32),
                mode,
                uid: u32_at(p, 40),
                gid: u32_at(p, 44),
                target: tail,
                logged: flag()?,
            }
        }
        4 if n == 0 => Effect::Dead { ino: some(ino(0))?, generation: u32_at(p, 8) },
        5 if n == 0 => Effect::Parent { ino: some(ino(0))?, parent: some(ino(8))? },
        6 if n <= NEW_XATTRS_MAX => Effect::Xattrs { ino: some(ino(0))?, xattrs: tail },
        7 if n <= NEW_XATTRS_MAX => {
            let mode = mode_at(12)?;
            if n > 0 && !flag()? {
                return Err(err("ACLs that do not count"));
            }
            Effect::Rights {
                ino: some(ino(0))?,
                generation: u32_at(p, 8),
                mode,
                uid: u32_at(p, 16),
                gid: u32_at(p, 20),
                acls: flag()?.then_some(tail),
            }
        }
        6 | 7 => return Err(err("too many attributes")),
        _ => return Err(err("unexpected name")),
    };
    Ok((e, 4 + fixed + n))
}

#[inline]
fn u16_at(b: &[u8], o: usize) -> u16 {
    u16::from_le_bytes([b[o], b[o + 1]])
}
#[inline]
fn u32_at(b: &[u8], o: usize) -> u32 {
    u32::from_le_bytes([b[o], b[o + 1], b[o + 2], b[o + 3]])
}
#[inline]
fn u64_at(b: &[u8], o: usize) -> u64 {
    u64::from(u32_at(b, o)) | u64::from(u32_at(b, o + 4)) << 32
}

/// Returns the groups of `buf` with a later epoch than `folded`, encoded one after the other as
/// they stood there.
pub fn groups_above(buf: &[u8], folded: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for g in groups(buf).map_while(std::result::Result::ok) {
        if g.version.epoch > folded {
            out.extend_from_slice(g.bytes);
        }
    }
    debug_assert!(out.len() <= buf.len(), "groups are left out, none comes to them");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let v = Version { epoch: 3, ts: 77, lane: 2 };
        let effects = [
            Effect::New {
                ino: Ino(20),
                parent: Ino(1),
                generation: 1,
                mode: libc::S_IFLNK | 0o777,
                uid: 1,
                gid: 2,
                rdev: 0,
                time: -5,
                target: b"over/there",
                logged: true,
            },
            Effect::Set {
                dir: Ino(1),
                cookie: 9,
                name: b"a",
                ino: Ino(20),
                old: Ino(19),
                kind: FileKind::Symlink,
            },
            Effect::Clr { dir: Ino(1), cookie: 10, name: b"b", old: Ino(20), kind: FileKind::Symlink },
            Effect::Dead { ino: Ino(19), generation: 4 },
            Effect::Parent { ino: Ino(30), parent: Ino(31) },
            Effect::Xattrs { ino: Ino(20), xattrs: b"attributes" },
        ];
        let mut buf = Vec::new();
        let n = encode_group(&mut buf, v, &effects);
        assert_eq!(n, buf.len());
        let n2 = encode_group(&mut buf, Version { ts: 78, ..v }, &effects[3..4]);
        let got: Vec<_> = groups(&buf).map(|g| g.unwrap()).collect();
        let made: Vec<_> = got.iter().map(Group::made_inode).collect();
        assert_eq!(made, [Some((libc::S_IFLNK | 0o777, 10)), None]);
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].version, v);
        assert_eq!(got[1].bytes.len(), n2);
        let back: Vec<_> = got[0].effects().map(|e| e.unwrap()).collect();
        assert_eq!(back, effects);
        // Every truncation is refused, never read past the end.
        for cut in 0..n {
            assert!(groups(&buf[..cut]).any(|g| g.is_err()) || cut == 0);
        }
    }

    #[test]
    fn names_that_no_operation_can_make_are_refused() {
        for bad in [&b"a/b"[..], b".", b"..", b"", b"nul\0"] {
            let mut buf = Vec::new();
            let e = [Effect::Clr { dir: Ino(1), cookie: 1, name: bad, old: Ino(20), kind: FileKind::File }];
            encode_group(&mut buf, Version::default(), &e);
            let g = group_at(&buf, 0).unwrap();
            assert!(g.effects().any(|e| e.is_err()), "{bad:?}");
        }
    }
}
