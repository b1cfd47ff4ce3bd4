//! The namespace after a crash: rules C1 to C5. In an ordered volume with it the rights of inodes.

use super::{Found, Observed, Oracle, Violation, broken};
use crate::model::{Id, Persist};
use lanefs::Order;
use std::collections::BTreeMap;

/// Which groups a recovered state shows at least.
pub(super) type Cut = Vec<bool>;

impl Oracle {
    /// The observed entries as inodes of the model, per key.
    pub(super) fn names(&self, found: &Observed) -> Result<BTreeMap<usize, Id>, Violation> {
        let mut names = BTreeMap::new();
        for e in &found.entries {
            let at = &found.inodes[&e.dir];
            let dir = self.model_id(e.dir, at)?;
            let child = self.model_id(e.inode, &found.inodes[&e.inode])?;
            let Some(key) = self.key_index.get(&(dir, e.name.clone())) else {
                return Err(broken("C4", format!("{:?}/{:?} was never made", at.path, e.name)));
            };
            names.insert(*key, child);
        }
        Ok(names)
    }

    /// Groups that had been acknowledged as durable (C3), without what they depend on.
    fn acknowledged(&self, answered: usize) -> Cut {
        let mut cut = vec![false; self.groups.len()];
        for (op, what) in self.persists.iter().filter(|p| p.0 < answered) {
            for (i, g) in self.groups.iter().enumerate().filter(|(_, g)| g.op <= *op) {
                cut[i] |= match what {
                    Persist::All => true,
                    // C3': all that returned before it. An fdatasync promises no more than its
                    //      file's last change, and what came before that.
                    Persist::Inode(_) if self.order == Order::Ordered => true,
                    Persist::Inode(x) | Persist::Data(x) => {
                        // Of rights only what a write took away: an fdatasync asks for no others.
                        let taken = g.by_content && g.rights.iter().any(|r| r.0 == *x);
                        g.named.contains(x) || taken || g.entries.iter().any(|e| self.keys[e.0].0 == *x)
                    }
                };
            }
        }
        cut
    }

    pub(super) fn put(&self, cut: &mut Cut, group: usize) {
        let mut todo = vec![group];
        while let Some(g) = todo.pop() {
            if !std::mem::replace(&mut cut[g], true) || g == group {
                todo.extend(self.groups[g].needs.iter().filter(|n| !cut[**n]));
            }
        }
    }

    /// The least cut that holds what was acknowledged and shows these names, or why there is none.
    pub(super) fn cut(
        &self,
        answered: usize,
        called: usize,
        names: &BTreeMap<usize, Id>,
        found: &Observed,
    ) -> Result<Cut, Violation> {
        let mut inodes: Vec<(Id, &Found)> = Vec::new();
        for (identity, at) in &found.inodes {
            inodes.push((self.model_id(*identity, at)?, at));
        }
        let must = self.acknowledged(answered);
        let mut cut = vec![false; self.groups.len()];
        for g in (0..must.len()).filter(|g| must[*g]) {
            self.put(&mut cut, g);
        }
        let acknowledged = cut.clone();
        loop {
            let mut grown = false;
            for (key, chain) in self.chains.iter().enumerate() {
                let found = names.get(&key).copied();
                let at = chain.iter().take_while(|(g, _)| cut[*g]).count();
                let value = |n: usize| if n == 0 { None } else { chain[n - 1].1 };
                if value(at) == found {
                    continue;
                }
                let fits = (at + 1..=chain.len())
                    .take_while(|n| self.groups[chain[*n - 1].0].op < called)
                    .find(|n| value(*n) == found);
                let Some(n) = fits else {
                    return Err(self.explain(key, found, &acknowledged, &cut));
                };
                self.put(&mut cut, chain[n - 1].0);
                grown = true;
            }
            for (id, at) in &inodes {
                grown |= self.grow_by_rights(*id, at, called, &acknowledged, &mut cut)?;
            }
            if !grown {
                return Ok(cut);
            }
        }
    }

    fn explain(&self, key: usize, found: Option<Id>, acknowledged: &Cut, cut: &Cut) -> Violation {
        let (dir, name) = &self.keys[key];
        let chain = &self.chains[key];
        let at = chain.iter().take_while(|(g, _)| cut[*g]).count();
        let by_ack = chain.iter().take_while(|(g, _)| acknowledged[*g]).count();
        let say = |v: Option<Id>| v.map_or("nothing".into(), |i| format!("inode #{i}"));
        let value = |n: usize| if n == 0 { None } else { chain[n - 1].1 };
        let steps = |c: &Cut| -> Vec<usize> {
            c.iter().zip(&self.groups).filter(|(c, _)| **c).map(|(_, g)| g.op).collect()
        };
        let rule = if by_ack == at { "C3" } else { "C2" };
        broken(
            rule,
            format!(
                "{name:?} in directory #{dir} is {}, but must be {} or later; steps {:?} were acknowledged, \
                 steps {:?} must be there with what is seen; the entry changed at steps {:?}",
                say(found),
                say(value(at)),
                steps(acknowledged),
                steps(cut),
                chain.iter().map(|(g, v)| (self.groups[*g].op, say(*v))).collect::<Vec<_>>(),
            ),
        )
    }
}
