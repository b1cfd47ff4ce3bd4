//! One inode after a crash: rules F1 to F6, and F9.

use super::cut::Cut;
use super::rights::is_right;
use super::{Found, Oracle, Versioned, Versions, Violation, broken};
use crate::model::{Id, PAGE, Page, Persist, ROOT};
use crate::op::{Identity, Name, Tagged};
use lanefs::Order;
use std::sync::Arc;

/// The place of the last version made by a step up to `op`.
fn upto<T>(v: &[Versioned<T>], op: Option<usize>) -> usize {
    op.map_or(0, |op| v.iter().take_while(|x| x.op <= op).count().saturating_sub(1))
}

impl Oracle {
    /// The last step whose acknowledgement covers the inode's attributes, and the one that covers
    /// its bytes.
    fn covered(&self, id: Id, answered: usize, cut: &Cut) -> (Option<usize>, Option<usize>) {
        let acknowledged = || self.persists.iter().filter(|p| p.0 < answered);
        let all = |p: &Persist| *p == Persist::All || *p == Persist::Inode(id);
        let attrs = acknowledged().filter(|p| all(&p.1)).map(|p| p.0).max();
        let bytes = acknowledged().filter(|p| all(&p.1) || p.1 == Persist::Data(id)).map(|p| p.0).max();
        // F5: a rename over a file, once durable, comes with the content the file had then.
        let replaced = self.groups.iter().zip(cut).filter(|(g, c)| **c && g.replacer == Some(id));
        (attrs, bytes.max(replaced.map(|(g, _)| g.op).max()))
    }

    /// F4 for a file of a volume of which a part is lost: every byte is zero or was written to this
    /// file at this place, by whatever step. An inode that the run did not get to know is not
    /// judged.
    pub fn own_bytes(&self, identity: Identity, found: &Found) -> Result<(), Violation> {
        let Some(v) = self.of_target.get(&identity).and_then(|id| self.inodes.get(id)) else { return Ok(()) };
        for (i, page) in found.bytes.chunks(4096).enumerate() {
            let versions = v.pages.get(&(i as u64)).map_or(&[][..], |p| p);
            let own =
                |at: usize, b: u8| versions.iter().any(|x| x.value.as_ref().is_some_and(|p| p[at] == b));
            if page.iter().enumerate().any(|(at, b)| *b != 0 && !own(at, *b)) {
                return Err(self.stray(found, i, page));
            }
        }
        Ok(())
    }

    pub(super) fn check_inode(
        &self,
        id: Id,
        found: &Found,
        answered: usize,
        called: usize,
        cut: &Cut,
    ) -> Result<(), Violation> {
        let Some(v) = self.inodes.get(&id) else {
            return Err(broken("C4", format!("{:?}: inode #{id} was never made", found.path)));
        };
        if v.kind != (found.mode >> 12) as u8 {
            return Err(broken(
                "F6",
                format!("{:?} has mode {:o}, its kind was {}", found.path, found.mode, v.kind),
            ));
        }
        if v.target.as_ref().is_some_and(|t| *t != found.target) {
            return Err(broken(
                "F6",
                format!("{:?} leads to {:?}, not {:?}", found.path, found.target, v.target),
            ));
        }
        let (attrs, bytes) = self.covered(id, answered, cut);
        self.check_attrs(id, v, found, attrs, called)?;
        if u32::from(v.kind) << 12 == libc::S_IFREG {
            self.check_bytes(v, found, bytes, called)
        } else {
            Ok(())
        }
    }

    fn check_attrs(
        &self,
        id: Id,
        v: &Versions,
        found: &Found,
        covered: Option<usize>,
        called: usize,
    ) -> Result<(), Violation> {
        let is_dir = u32::from(v.kind) << 12 == libc::S_IFDIR;
        let fits = |a: &Versioned<crate::model::AttrState>| {
            let (w, f) = (&a.value, found);
            // In an ordered volume the rights are the cut's business, and travel apart from all
            // others.
            let apart = self.order == Order::Ordered;
            let count = |names: &mut dyn Iterator<Item = &Name>| {
                names.filter(|n| !(apart && is_right(n, f.mode))).count()
            };
            (apart || (w.mode, w.uid, w.gid) == (f.mode, f.uid, f.gid))
                && (is_dir || w.mtime.is_none() || w.mtime == Some(f.mtime))
                && count(&mut w.xattrs.keys()) == count(&mut f.xattrs.keys())
                && w.xattrs.iter().all(|(k, b)| apart && is_right(k, f.mode) || f.xattrs.get(k) == Some(&**b))
        };
        let from = upto(&v.attrs, covered);
        // The root has no version of its making.
        if id == ROOT
            && covered.is_none_or(|c| v.attrs.first().is_none_or(|a| a.op > c))
            && found.is_new_root(self.order == Order::Ordered)
        {
            return Ok(());
        }
        if v.attrs[from.min(v.attrs.len())..].iter().take_while(|a| a.op < called).any(fits) {
            return Ok(());
        }
        let brief = |a: &Versioned<crate::model::AttrState>| {
            let s = &a.value;
            let x = s.xattrs.iter().map(|(k, v)| format!("{k:?}: {} bytes", v.len())).collect::<Vec<_>>();
            format!("step {}: mode {:o} owner {}:{} mtime {:?} {x:?}", a.op, s.mode, s.uid, s.gid, s.mtime)
        };
        let want: Vec<_> = v.attrs.iter().skip(from).take_while(|a| a.op < called).map(brief).collect();
        Err(broken(
            "F2",
            format!(
                "{:?} (inode #{id}) has mode {:o}, owner {}:{}, mtime {}, attributes {:?}; allowed: {want:?}",
                found.path,
                found.mode,
                found.uid,
                found.gid,
                found.mtime,
                found.xattrs.keys().collect::<Vec<_>>()
            ),
        ))
    }

    fn check_bytes(
        &self,
        v: &Versions,
        found: &Found,
        covered: Option<usize>,
        called: usize,
    ) -> Result<(), Violation> {
        let from = upto(&v.sizes, covered);
        let sizes = || v.sizes.iter().skip(from).take_while(|s| s.op < called);
        let mut why = None;
        // F9: a part of a growing write is found, up to the end of one of its pages.
        let within = |i: usize| {
            i > from
                && !v.sizes[i].cut
                && found.size.is_multiple_of(PAGE)
                && (v.sizes[i - 1].value + 1..v.sizes[i].value).contains(&found.size)
        };
        let fits = |i: &usize| v.sizes[*i].value == found.size || within(*i);
        for i in (from..from + sizes().count()).filter(fits) {
            match self.pages_fit(v, found, v.sizes[i].op, covered, called) {
                Ok(()) => return Ok(()),
                Err(e) => why = Some(e),
            }
        }
        Err(why.unwrap_or_else(|| {
            let allowed: Vec<_> = sizes().map(|s| (s.op, s.value)).collect();
            broken(
                "F2",
                format!("{:?} has {} bytes; allowed (step, size): {allowed:?}", found.path, found.size),
            )
        }))
    }

    /// F9: Returns the last step by which the file grew inside a page, if writes alone brought that
    /// into the file; the size is the one made by step `size_op`.
    fn grown_at(v: &Versions, page: u64, size_op: usize) -> Option<usize> {
        let sizes = &v.sizes[..v.sizes.iter().take_while(|s| s.op <= size_op).count()];
        let outside = sizes.iter().rposition(|s| s.value <= page * PAGE)?;
        if sizes[outside + 1..].iter().any(|s| s.cut) {
            return None;
        }
        let inside = sizes[outside..].windows(2).take_while(|w| w[0].value < (page + 1) * PAGE);
        inside.filter(|w| w[1].value > w[0].value).last().map(|w| w[1].op)
    }

    /// Checks that every page is at an allowed version if the size is the one made by step
    /// `size_op`.
    fn pages_fit(
        &self,
        v: &Versions,
        found: &Found,
        size_op: usize,
        covered: Option<usize>,
        called: usize,
    ) -> Result<(), Violation> {
        const ZERO: [u8; 4096] = [0; 4096];
        for (i, page) in found.bytes.chunks(4096).enumerate() {
            let Some(versions) = v.pages.get(&(i as u64)) else {
                if page.iter().all(|b| *b == 0) {
                    continue;
                }
                return Err(self.stray(found, i, page));
            };
            // F3: not before the last cut that the size shows, and before the next.
            let first = versions.iter().rposition(|x| x.cut && x.op <= size_op);
            let next = versions.iter().position(|x| x.cut && x.op > size_op);
            let low = if covered.is_some_and(|c| versions[0].op <= c) {
                Some(upto(versions, covered))
            } else {
                None
            };
            let end = versions.iter().take_while(|x| x.op < called).count().min(next.unwrap_or(usize::MAX));
            // What a truncate left of the page that its end falls in is as free as any page; only
            // what lies behind must be gone.
            let trimmed = first.filter(|f| versions[*f].op == size_op && page.len() < 4096);
            let start = if trimmed.is_some() { low } else { low.max(first) };
            // F9: not as it was before the file grew over it.
            let grown = Oracle::grown_at(v, i as u64, size_op).filter(|op| versions[0].op <= *op);
            let grown = grown.map(|op| upto(versions, Some(op)));
            let start = start.max(grown);
            let same = |x: Option<&Arc<Page>>| x.map_or(&ZERO[..], |p| &p[..])[..page.len()] == *page;
            let unwritten = start.is_none() && same(None);
            let range = start.unwrap_or(0)..end.max(start.map_or(0, |s| s + 1)).min(versions.len());
            if unwritten || versions[range].iter().any(|x| same(x.value.as_ref())) {
                continue;
            }
            let known = versions.iter().find(|x| same(x.value.as_ref()));
            return Err(match known {
                Some(x) => broken(
                    if x.op >= called {
                        "C4"
                    } else if low.is_some_and(|l| versions[l].op > x.op) {
                        "F2"
                    } else if grown.is_some_and(|g| versions[g].op > x.op) {
                        "F9"
                    } else {
                        "F3"
                    },
                    format!(
                        "{:?} ({} bytes): page {i} is as step {} left it; changed at steps {:?}, durable up to step {covered:?}",
                        found.path,
                        found.size,
                        x.op,
                        versions.iter().map(|x| x.op).collect::<Vec<_>>()
                    ),
                ),
                None if low.is_some() && page.iter().all(|b| *b == 0) => broken(
                    "F2",
                    format!("{:?}: page {i} is zeros; it was durable up to step {covered:?}", found.path),
                ),
                None if grown.is_some() && page.iter().all(|b| *b == 0) => broken(
                    "F9",
                    format!(
                        "{:?} ({} bytes): page {i} is zeros; the file grew over it with what steps {:?} wrote",
                        found.path,
                        found.size,
                        versions.iter().map(|x| x.op).collect::<Vec<_>>()
                    ),
                ),
                None => self.stray(found, i, page),
            });
        }
        Ok(())
    }

    /// Bytes that no version of the page explains: whose are they?
    fn stray(&self, found: &Found, page: usize, bytes: &[u8]) -> Violation {
        let start = page as u64 * 4096;
        let mut whose = Vec::new();
        for tag in 0..4096 {
            let hits =
                bytes.iter().enumerate().filter(|(i, b)| **b == Tagged::byte(tag, start + *i as u64)).count();
            if hits > bytes.len() / 8 + 8 {
                whose.push(format!("{hits} of write {tag}"));
            }
        }
        let zeros = bytes.iter().filter(|b| **b == 0).count();
        broken(
            "F4",
            format!(
                "{:?}: page {page} ({} bytes) is no version of itself: {zeros} zeros, {}",
                found.path,
                bytes.len(),
                if whose.is_empty() { "the rest of nobody".into() } else { whose.join(", ") }
            ),
        )
    }
}
