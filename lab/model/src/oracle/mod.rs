//! The oracle: which states docs/SEMANTICS.md part 2 allows after a crash.
//!
//! A run is a [`History`]: the steps, what each changed in the model, and which inode of the target
//! each inode of the model is. A crash is two numbers: so many steps had been answered, so many had
//! been called. What was found afterwards is an [`Observed`] tree. [`Oracle::check`] decides
//! without search:
//!
//! 1. *The namespace* (`cut.rs`). The groups acknowledged as durable and all they depend on are in
//!    the cut D. Each observed entry must be what the key's chain of changes held after some number
//!    of changes; where D says less, D grows to the next number that fits, with its dependencies.
//!    Every D' that explains the observation and contains the acknowledged groups contains this D,
//!    so the least fixpoint exists exactly if some D' does. In an ordered volume each group depends
//!    on the one before it, and an fsync acknowledges all groups before it: D is a prefix. There
//!    mode, owner and ACLs (the *rights* of an inode) are in the same order (`rights.rs`): a call
//!    that changes them is a group too, and each inode has a chain of rights beside the chains of
//!    the keys.
//! 2. *Each inode* (`content.rs`) by the interval [last acknowledged as durable, last called] of
//!    its versions.

mod content;
mod cut;
pub mod observe;
mod rights;

use crate::model::{AttrState, Change, Id, Page, Persist, ROOT};
use crate::op::{Identity, Name, Step};
use crate::target::Identities;
use lanefs::Order;
use rights::{Rights, RightsChain};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use observe::{Found, Observed, observe};

/// The steps of a run and their effects.
#[derive(Clone, Default, Debug)]
pub struct History {
    /// The steps.
    pub steps: Vec<Step>,
    /// The changes that each made.
    pub changes: Vec<Vec<Change>>,
    /// The pairs of the model's inodes with the target's.
    pub ids: Identities,
}

/// A rule of docs/SEMANTICS.md that a recovered state breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule's number.
    pub rule: &'static str,
    /// The state that was found, in words.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

pub fn broken(rule: &'static str, what: String) -> Violation {
    Violation { rule, what }
}

/// A successful namespace operation, or in an ordered volume a change of rights.
#[derive(Clone, Debug)]
struct Group {
    /// The step it was.
    op: usize,
    /// (key, inode before, inode after).
    entries: Vec<(usize, Option<Id>, Option<Id>)>,
    /// Inodes it names.
    named: Vec<Id>,
    /// The file that took a regular file's name by rename (F5).
    replacer: Option<Id>,
    /// The inodes whose rights it changed, in an ordered volume.
    rights: Vec<(Id, Rights)>,
    /// Whether the change of rights came with a change of content: a write that took setuid away.
    by_content: bool,
    /// Groups that must be in a cut with it (C2), directly.
    needs: Vec<usize>,
}

/// One version of something: the step that made it, whether truncation did, the value.
#[derive(Clone, Debug)]
struct Versioned<T> {
    op: usize,
    cut: bool,
    value: T,
}

/// All versions of an inode.
#[derive(Clone, Default, Debug)]
struct Versions {
    kind: u8,
    born: usize,
    target: Option<Name>,
    attrs: Vec<Versioned<AttrState>>,
    sizes: Vec<Versioned<u64>>,
    pages: BTreeMap<u64, Vec<Versioned<Option<Arc<Page>>>>>,
}

/// A history, indexed.
#[derive(Debug)]
pub struct Oracle {
    groups: Vec<Group>,
    keys: Vec<(Id, Name)>,
    key_index: BTreeMap<(Id, Name), usize>,
    /// Per key: (group, inode afterwards), in order.
    chains: Vec<Vec<(usize, Option<Id>)>>,
    /// Per inode, in an ordered volume: its rights at first, and after each group that changed
    /// them.
    rights: BTreeMap<Id, RightsChain>,
    inodes: BTreeMap<Id, Versions>,
    persists: Vec<(usize, Persist)>,
    of_target: BTreeMap<Identity, Id>,
    order: Order,
}

impl Oracle {
    /// Indexes a history of calls made one after the other, on a volume opened with this order.
    pub fn new(history: &History, order: Order) -> Oracle {
        let mut o = Oracle {
            order,
            groups: Vec::new(),
            keys: Vec::new(),
            key_index: BTreeMap::new(),
            chains: Vec::new(),
            rights: BTreeMap::from([(ROOT, RightsChain::of_a_new_root())]),
            inodes: BTreeMap::new(),
            persists: Vec::new(),
            of_target: history.ids.pairs().map(|(id, t)| (t, id)).collect(),
        };
        let dir = (libc::S_IFDIR >> 12) as u8;
        o.inodes.insert(ROOT, Versions { kind: dir, ..Versions::default() });
        for (op, changes) in history.changes.iter().enumerate() {
            let mut group = Group {
                op,
                entries: vec![],
                named: vec![],
                replacer: None,
                rights: vec![],
                by_content: false,
                needs: vec![],
            };
            let mut moved = false;
            for c in changes {
                match c {
                    Change::Entry { dir, name, old, new } => {
                        let key = o.key(*dir, name);
                        group.entries.push((key, *old, *new));
                        group.named.extend(old.iter().chain(new));
                    }
                    Change::New { id, kind, target } => {
                        let v =
                            Versions { kind: *kind, born: op, target: target.clone(), ..Versions::default() };
                        o.inodes.insert(*id, v);
                        group.named.push(*id);
                    }
                    Change::Moved { .. } => moved = true,
                    Change::Attr { id, state } => {
                        o.note_rights(&mut group, *id, state);
                        let v = o.inodes.entry(*id).or_default();
                        v.attrs.push(Versioned { op, cut: false, value: state.clone() });
                    }
                    Change::Size { id, size, cut } => {
                        group.by_content = true;
                        let v = o.inodes.entry(*id).or_default();
                        v.sizes.push(Versioned { op, cut: *cut, value: *size });
                    }
                    Change::Page { id, page, bytes, cut } => {
                        group.by_content = true;
                        let v = o.inodes.entry(*id).or_default().pages.entry(*page).or_default();
                        v.push(Versioned { op, cut: *cut, value: bytes.clone() });
                    }
                    Change::Persist(p) => o.persists.push((op, *p)),
                }
            }
            if !group.named.is_empty() || !group.rights.is_empty() {
                o.add(group, moved);
            }
        }
        o
    }

    fn key(&mut self, dir: Id, name: &Name) -> usize {
        *self.key_index.entry((dir, name.clone())).or_insert_with(|| {
            self.keys.push((dir, name.clone()));
            self.chains.push(Vec::new());
            self.keys.len() - 1
        })
    }

    /// Adds a group: what it depends on by C2, and its place in the chains of its keys.
    fn add(&mut self, mut g: Group, moved: bool) {
        let is_dir =
            |o: &Oracle, id: &Id| o.inodes.get(id).is_some_and(|v| u32::from(v.kind) << 12 == libc::S_IFDIR);
        let removed_dirs: Vec<Id> =
            g.entries.iter().filter_map(|e| e.1).filter(|id| is_dir(self, id)).collect();
        for (i, h) in self.groups.iter().enumerate() {
            let shares_key = h.entries.iter().any(|(k, ..)| g.entries.iter().any(|e| e.0 == *k));
            let shares_inode = h.named.iter().any(|n| g.named.contains(n));
            let makes_dir = g
                .entries
                .iter()
                .any(|e| h.named.contains(&self.keys[e.0].0) && h.makes(self.keys[e.0].0, self));
            let inside = h.entries.iter().any(|e| removed_dirs.contains(&self.keys[e.0].0));
            // In an ordered volume what is found is a prefix (C2'): the group before it brings all
            // that came before.
            let before = self.order == Order::Ordered && i + 1 == self.groups.len();
            if before || moved || shares_key || shares_inode || makes_dir || inside {
                g.needs.push(i);
            }
        }
        // A rename clears one key and puts what was there over a regular file at another.
        for (_, old, new) in &g.entries {
            let over_file = old.is_some_and(|t| {
                self.inodes.get(&t).is_some_and(|v| u32::from(v.kind) << 12 == libc::S_IFREG)
            });
            if over_file && new.is_some() && g.entries.iter().any(|e| e.1 == *new && e.2.is_none()) {
                g.replacer = *new;
            }
        }
        let index = self.groups.len();
        for (key, _, new) in &g.entries {
            self.chains[*key].push((index, *new));
        }
        for (id, rights) in &g.rights {
            self.rights.entry(*id).or_default().then(index, rights);
        }
        self.groups.push(g);
    }

    /// Checks that a recovered state is allowed when `answered` steps had been answered and
    /// `called` (that many or one more) had been called.
    pub fn check(&self, answered: usize, called: usize, found: &Observed) -> Result<(), Violation> {
        found.sound()?;
        let names = self.names(found)?;
        let cut = self.cut(answered, called, &names, found)?;
        for (identity, inode) in &found.inodes {
            let id = self.model_id(*identity, inode)?;
            self.check_inode(id, inode, answered, called, &cut)?;
        }
        Ok(())
    }

    fn model_id(&self, identity: Identity, at: &Found) -> Result<Id, Violation> {
        self.of_target.get(&identity).copied().ok_or_else(|| {
            broken("R2", format!("{:?} names inode {identity:?}, which the run never made", at.path))
        })
    }
}

impl Group {
    fn makes(&self, id: Id, o: &Oracle) -> bool {
        o.inodes.get(&id).is_some_and(|v| v.born == self.op) && self.entries.iter().any(|e| e.2 == Some(id))
    }
}
