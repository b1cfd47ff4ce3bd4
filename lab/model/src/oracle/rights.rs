//! Rights after a crash: mode, owner, ACLs and file capabilities of inodes in an ordered volume
//! (C2', C3').
//!
//! 1. A call that changes the rights of an inode is a group, like one that changes a name. It names
//!    no inode and has no key, so in a relaxed volume, where groups are found by what they share,
//!    it would be in no cut; there rights are judged with the other attributes instead
//!    (`content.rs`).
//! 2. Each inode has a chain of rights: those it was made with, and those that each group left.
//!    Rights as found must be what the chain says at the cut. Where they are of a later group the
//!    cut grows to the first one that fits, with all groups before it. So a later name without an
//!    earlier chmod is a violation, and so is a later chmod without an earlier name.
//! 3. Content that was written behind a change of rights is not found without it (F8): the cut
//!    grows to the last change up to the step that first left a page as it is found.

use super::cut::Cut;
use super::{Found, Group, Oracle, Versions, Violation, broken};
use crate::model::{AttrState, Id, Page};
use crate::op::{CAPABILITY, Name};
use lanefs::Order;
use std::collections::BTreeMap;

/// Returns whether an extended attribute of an inode with this mode is a right: an ACL, or the
/// capabilities of a file.
pub(super) fn is_right(name: &Name, mode: u32) -> bool {
    name.0.starts_with(b"system.posix_acl_") || name.0 == CAPABILITY && mode & libc::S_IFMT == libc::S_IFREG
}

/// The attributes that decide who may do what with an inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
    acls: BTreeMap<Name, Vec<u8>>,
}

impl Rights {
    fn of(state: &AttrState) -> Rights {
        let acls =
            state.xattrs.iter().filter(|x| is_right(x.0, state.mode)).map(|(n, v)| (n.clone(), v.to_vec()));
        Rights { mode: state.mode, uid: state.uid, gid: state.gid, acls: acls.collect() }
    }

    fn found(at: &Found) -> Rights {
        let acls = at.xattrs.iter().filter(|x| is_right(x.0, at.mode)).map(|(n, v)| (n.clone(), v.clone()));
        Rights { mode: at.mode, uid: at.uid, gid: at.gid, acls: acls.collect() }
    }

    fn say(&self) -> String {
        let acls = self.acls.iter().map(|(n, v)| format!("{n:?}: {} bytes", v.len())).collect::<Vec<_>>();
        format!("mode {:o} owner {}:{} {acls:?}", self.mode, self.uid, self.gid)
    }
}

/// The rights of an inode in the order of the groups that changed them.
#[derive(Clone, Default, Debug)]
pub(super) struct RightsChain {
    first: Rights,
    then: Vec<(usize, Rights)>,
}

impl RightsChain {
    pub(super) fn of_a_new_root() -> RightsChain {
        let first = Rights { mode: libc::S_IFDIR | 0o755, ..Rights::default() };
        RightsChain { first, then: Vec::new() }
    }

    pub(super) fn then(&mut self, group: usize, rights: &Rights) {
        self.then.push((group, rights.clone()));
    }

    fn at(&self, n: usize) -> &Rights {
        n.checked_sub(1).map_or(&self.first, |n| &self.then[n].1)
    }
}

impl Versions {
    /// The last step without which the pages would not be as they are found: 0 if there is none.
    fn written(&self, found: &Found) -> usize {
        let first = |(i, page): (usize, &[u8])| {
            let versions = self.pages.get(&(i as u64))?;
            let same = |p: &Page| p[..page.len()] == *page;
            // What is left by a truncate was there before, and zeros tell nothing.
            versions.iter().find(|v| v.value.as_deref().is_some_and(same)).filter(|v| !v.cut).map(|v| v.op)
        };
        let pages = found.bytes.chunks(4096).enumerate().filter(|p| p.1.iter().any(|b| *b != 0));
        pages.filter_map(first).max().unwrap_or(0)
    }
}

impl Oracle {
    /// Notes in the group of a call what it left of an inode's attributes, if rights are among what
    /// changed.
    pub(super) fn note_rights(&mut self, group: &mut Group, id: Id, state: &AttrState) {
        if self.order != Order::Ordered {
            return;
        }
        let now = Rights::of(state);
        // A call may change an inode twice; only what it leaves can be found.
        group.rights.retain(|r| r.0 != id);
        match self.rights.get(&id) {
            // What an inode is made with comes with the group that makes it.
            None => drop(self.rights.insert(id, RightsChain { first: now, then: Vec::new() })),
            Some(chain) if *chain.at(chain.then.len()) == now => {}
            Some(_) => group.rights.push((id, now)),
        }
    }

    /// Makes the cut larger if the rights found of an inode need it, and returns whether it did.
    pub(super) fn grow_by_rights(
        &self,
        id: Id,
        found: &Found,
        called: usize,
        acknowledged: &Cut,
        cut: &mut Cut,
    ) -> Result<bool, Violation> {
        if self.order != Order::Ordered {
            return Ok(false);
        }
        let Some(chain) = self.rights.get(&id) else { return Ok(false) };
        let seen = Rights::found(found);
        let at = chain.then.iter().take_while(|(g, _)| cut[*g]).count();
        let written = self.inodes.get(&id).map_or(0, |v| v.written(found));
        let least = chain.then.iter().take_while(|(g, _)| self.groups[*g].op <= written).count();
        if *chain.at(at) == seen && at >= least {
            return Ok(false);
        }
        let fits = ((at + 1).max(least)..=chain.then.len())
            .take_while(|n| self.groups[chain.then[*n - 1].0].op < called)
            .find(|n| *chain.at(*n) == seen);
        if let Some(n) = fits {
            self.put(cut, chain.then[n - 1].0);
            return Ok(true);
        }
        let by_ack = chain.then.iter().take_while(|(g, _)| acknowledged[*g]).count();
        let steps = |c: &Cut| -> Vec<usize> {
            c.iter().zip(&self.groups).filter(|(c, _)| **c).map(|(_, g)| g.op).collect()
        };
        let rule = match () {
            () if at < least => "F8",
            () if by_ack == at => "C3'",
            () => "C2'",
        };
        Err(broken(
            rule,
            format!(
                "{:?} (inode #{id}) has {}, but must have {} or what a later step made; steps {:?} were acknowledged, \
                 steps {:?} must be there with what is seen; its rights changed at steps {:?}, content is of step {written}",
                found.path,
                seen.say(),
                chain.at(at).say(),
                steps(acknowledged),
                steps(cut),
                chain.then.iter().map(|(g, r)| (self.groups[*g].op, r.say())).collect::<Vec<_>>(),
            ),
        ))
    }
}
