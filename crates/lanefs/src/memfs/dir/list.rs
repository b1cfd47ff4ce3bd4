//! Listing a directory in cookie order.

use super::entry::{Head, range_of};
use super::{Dir, relax};
use crossbeam_epoch::Guard;
use lanefs_format::{FileKind, Ino};
use std::sync::atomic::Ordering::Acquire;

/// One entry of a listing: cookie, inode, kind, name.
pub(crate) type Listed<'g> = (u64, Ino, FileKind, &'g [u8]);

/// The place at which a listing stands.
pub(crate) enum Step {
    /// The entries of one leaf were handed over; go on behind this cookie.
    Next(u64),
    /// Nothing behind.
    End,
    /// The leaf that covers this cookie is not in memory: load it and ask again.
    NotLoaded(u64),
}

impl Dir {
    /// Collects into `out` the live entries of the leaf that covers the first cookie behind
    /// `after`, in order.
    pub fn list_leaf<'g>(&self, after: u64, out: &mut Vec<Listed<'g>>, _guard: &'g Guard) -> Step {
        out.clear();
        let Some(from) = after.checked_add(1).filter(|from| *from < 1 << 63) else { return Step::End };
        if self.root().is_none() {
            return if self.newborn { Step::End } else { Step::NotLoaded(from) };
        }
        let mut turn = 0;
        loop {
            let (leaf, level) = self.leaf(from);
            let Some(look) = leaf.look() else {
                relax(&mut turn);
                continue;
            };
            let Head::Chain(mut p) = leaf.head() else { continue };
            out.clear();
            // SAFETY: as in `Dir::lookup`.
            while let Some(e) = unsafe { p.as_ref() } {
                if e.cookie >= from
                    && let Some((ino, kind)) = e.target()
                {
                    out.push((e.cookie, ino, kind, e.name.as_slice()));
                }
                p = e.next.load(Acquire);
            }
            if !look.holds(&leaf.split_seq) || !matches!(leaf.head(), Head::Chain(_)) {
                continue;
            }
            if !look.is_complete() {
                return Step::NotLoaded(from);
            }
            out.sort_unstable_by_key(|e| e.0);
            let (_, hi) = range_of(from, level);
            debug_assert!(out.iter().all(|e| (from..=hi).contains(&e.0)), "names of another leaf");
            debug_assert!(hi > after, "the listing stands still");
            return if hi >= (1 << 63) - 1 {
                if out.is_empty() { Step::End } else { Step::Next(hi) }
            } else {
                Step::Next(hi)
            };
        }
    }
}
