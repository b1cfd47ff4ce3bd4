//! Listing directories.

use crate::core::Core;
use crate::core::memory;
use crate::error::Result;
use crate::memfs::dir::Step;
use crate::ops::content;
use crate::ops::resolve;
use crate::stat::NodeEntry;
use crate::{FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::dir_bucket::COLLISION_BITS;
use std::sync::atomic::Ordering;

/// Cookies of `.` and `..`; every name's is larger.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;
/// The largest cookie that a name can have.
const LAST: u64 = (1 << 63) - 1;

const _: () = assert!(0 < DOT && DOT < DOTDOT && DOTDOT < 1 << COLLISION_BITS, "hashes are not 0");

/// Hands the entries behind `cookie` to `f` in cookie order until it returns false. A name that
/// exists throughout is handed over exactly once; one that comes or goes meanwhile may or may not
/// be.
pub(crate) fn read_dir(
    core: &Core,
    ino: Ino,
    cookie: u64,
    f: &mut dyn FnMut(NodeEntry<'_>) -> bool,
    guard: &mut Guard,
) -> Result<()> {
    let parent = {
        let (inode, _) = resolve::find_dir(core, ino, guard)?;
        if cookie == 0 {
            content::touch_atime(core, inode);
        }
        // Acquire: pairs with the Release of the rename that moved the directory.
        Ino(inode.parent.load(Ordering::Acquire))
    };
    let dots: [(&[u8], Ino, u64); 2] = [(b".", ino, DOT), (b"..", parent, DOTDOT)];
    for (name, ino, at) in dots {
        if cookie < at && !f(NodeEntry { ino, kind: FileKind::Dir, name, cookie: at }) {
            return Ok(());
        }
    }
    let mut at = cookie.max(DOTDOT);
    loop {
        {
            let (inode, dir) = resolve::find_dir(core, ino, guard)?;
            let mut out = Vec::new();
            // A few leaves under one guard, then let the collector go on.
            for _ in 0..32 {
                match dir.list_leaf(at, &mut out, guard) {
                    Step::End => return Ok(()),
                    Step::NotLoaded(c) => resolve::load_bucket(core, inode, dir, c, guard)?,
                    Step::Next(next) => {
                        debug_assert!(next > at, "a listing goes back from {at} to {next}");
                        debug_assert!(out.is_sorted_by(|a, b| a.0 < b.0), "entries out of order");
                        debug_assert!(out.first().is_none_or(|e| e.0 > at), "an entry comes twice");
                        debug_assert!(out.last().is_none_or(|e| e.0 <= next), "an entry would come again");
                        for &(cookie, ino, kind, name) in &out {
                            if !f(NodeEntry { ino, kind, name, cookie }) {
                                return Ok(());
                            }
                        }
                        if next >= LAST {
                            return Ok(());
                        }
                        at = next;
                    }
                }
            }
        }
        // While names exceed their share of the memory, who lists more of them waits.
        guard.repin_after(|| memory::slow_down_meta(core));
    }
}
