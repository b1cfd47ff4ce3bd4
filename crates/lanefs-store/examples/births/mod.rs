//! Files with names, for the examples that write to a store without the library above it.

use lanefs_format::record::{Effect, encode_group};
use lanefs_store::*;
use std::ops::Range;

pub type AnyResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Makes files of these numbers, durable and in the trees.
pub fn births(store: &Store, numbers: Range<u64>) -> AnyResult<()> {
    let epoch = store.info().last_epoch + 1;
    let groups: Vec<_> = numbers.map(|ino| birth(epoch, ino)).collect();
    store.commit_epoch(epoch, vec![(0, groups.concat())])?;
    let groups = groups.into_iter().map(Into::into).collect();
    store.checkpoint(|| Ok(FoldInput { epoch, groups }))?;
    Ok(())
}

/// Returns the group that makes a file with a name in the root.
pub fn birth(epoch: u64, ino: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let new = Effect::New {
        ino: Ino(ino),
        parent: ROOT_INO,
        generation: 0,
        mode: libc::S_IFREG | 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        time: 0,
        target: b"",
        logged: false,
    };
    let name = format!("file-{ino}").into_bytes();
    let cookie = (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 4) << 3 & ((1 << 63) - 1);
    let (dir, old, kind) = (ROOT_INO, Ino::NONE, FileKind::File);
    let set = Effect::Set { dir, cookie, name: &name, ino: Ino(ino), old, kind };
    encode_group(&mut out, Version { epoch, ts: ino, lane: 0 }, &[new, set]);
    out
}
