//! Crashing a state: every subset of what is written and not flushed, what recovery makes of it,
//! and whether that is allowed.

use super::*;

type Tree = [Ino; KEYS];

/// The epochs and batches that survived.
struct Survivors {
    /// Committed epochs without a gap.
    epochs: u8,
    /// Groups of these.
    committed: Set,
    /// Batches.
    batches: Vec<Set>,
}

impl State {
    /// `Err` says which rule a crash now would break.
    pub(super) fn crash(&self, p: &Program, m: Fault) -> Result<(), String> {
        // What may or may not survive: (part, lane) and batches.
        let mut loose: Vec<(bool, usize, usize)> = Vec::new();
        for (i, part) in self.parts.iter().enumerate().filter(|(_, p)| p.status == 2) {
            let lanes = (0..self.lanes.len()).filter(|l| self.of_lane(part.set, *l) != 0);
            loose.extend(lanes.map(|l| (true, i, l)));
        }
        loose.extend(
            self.batches.iter().enumerate().filter(|(_, b)| b.status == 1).map(|(i, _)| (false, i, 0)),
        );
        for lost in 0..1u32 << loose.len() {
            let is_lost = |x: (bool, usize, usize)| {
                loose.iter().position(|y| *y == x).is_some_and(|i| lost >> i & 1 == 1)
            };
            let whole = |i: usize, part: &Part| {
                part.status == 3 || part.status == 2 && (0..self.lanes.len()).all(|l| !is_lost((true, i, l)))
            };
            let epochs = self.parts.iter().enumerate().take_while(|(i, p)| whole(*i, p)).count();
            let s = Survivors {
                epochs: epochs as u8,
                committed: self.parts[..epochs].iter().fold(0, |a, p| a | p.set),
                batches: self
                    .batches
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| !is_lost((false, *i, 0)))
                    .map(|(_, b)| b.set)
                    .collect(),
            };
            self.judge(p, m, &s).map_err(|e| {
                format!(
                    "{e}; after a crash with {} epochs and the batches {:?} surviving",
                    s.epochs, s.batches
                )
            })?;
        }
        Ok(())
    }

    fn of_lane(&self, set: Set, lane: usize) -> Set {
        (0..self.groups.len())
            .filter(|g| set >> g & 1 == 1 && self.groups[*g].lane as usize == lane)
            .fold(0, |a, g| a | 1 << g)
    }

    fn replay(&self, base: Tree, set: Set) -> Tree {
        let mut tree = base;
        for g in (0..self.groups.len()).filter(|g| set >> g & 1 == 1) {
            for (k, new, _) in &self.groups[g].effects {
                tree[*k as usize] = *new;
            }
        }
        tree
    }

    /// Returns the tree that recovery makes: per key the last writer by version; records of batches
    /// only above the last committed epoch.
    fn recover(&self, p: &Program, m: Fault, s: &Survivors) -> Tree {
        let mut records: Vec<((u8, u8, u8), Key, Ino)> = Vec::new();
        let mut start = p.base;
        for part in &self.parts[..s.epochs as usize] {
            let end = self.replay(start, part.set);
            for g in (0..self.groups.len()).filter(|g| part.set >> g & 1 == 1).map(|g| &self.groups[g]) {
                // Absorption: a key that ends where it started leaves nothing to write.
                let kept = g.effects.iter().filter(|e| end[e.0 as usize] != start[e.0 as usize]);
                records.extend(kept.map(|e| (g.version(), e.0, e.1)));
            }
            start = end;
        }
        for batch in &s.batches {
            let in_batch = || (0..self.groups.len()).filter(|g| batch >> g & 1 == 1).map(|g| &self.groups[g]);
            if m == Fault::BatchDropped && in_batch().any(|g| g.epoch <= s.epochs) {
                continue;
            }
            for g in in_batch() {
                let unfiltered = matches!(m, Fault::NoEpochFilter | Fault::BatchesLast);
                if g.epoch <= s.epochs && !unfiltered {
                    continue;
                }
                let version = if m == Fault::BatchesLast { (200, g.ts, g.lane) } else { g.version() };
                for (k, new, _) in &g.effects {
                    let pair =
                        |h: &Group| h.epoch == g.epoch && h.effects.iter().any(|f| f.0 == *k && f.2 == 0);
                    if m == Fault::AbsorbedInBatch && *new == 0 && in_batch().any(pair) {
                        continue;
                    }
                    records.push((version, *k, *new));
                }
            }
        }
        records.sort_unstable();
        let mut tree = p.base;
        for (_, k, ino) in records {
            tree[k as usize] = ino;
        }
        tree
    }

    fn judge(&self, p: &Program, m: Fault, s: &Survivors) -> Result<(), String> {
        let d = s.batches.iter().fold(s.committed, |a, b| a | b);
        let tree = self.recover(p, m, s);
        let has = |g: usize| d >> g & 1 == 1;
        for b in self.batches.iter().filter(|b| b.answered) {
            if b.must & !d != 0 {
                return Err(format!("C3: groups {:b} were acknowledged and are lost", b.must & !d));
            }
        }
        for (i, g) in self.groups.iter().enumerate().filter(|(i, _)| has(*i)) {
            for (j, h) in self.groups[..i].iter().enumerate().filter(|(j, _)| !has(*j)) {
                let key = g.effects.iter().any(|e| h.effects.iter().any(|f| f.0 == e.0));
                // Two operations on one inode under different names commute unless one came after
                // the other.
                let inode = g.before >> j & 1 == 1 && g.effects.iter().any(|e| h.names(e.1) || h.names(e.2));
                let parent = g.effects.iter().any(|e| h.new == dir_of(e.0));
                let inside = g.removed != 0 && h.in_dir(g.removed);
                if key || inode || parent || inside {
                    return Err(format!("C2: group {i} survived without group {j}, which it depends on"));
                }
            }
        }
        let want = self.replay(p.base, d);
        if tree != want {
            return Err(format!("C1: recovered {tree:?}, but the groups {d:b} in order make {want:?}"));
        }
        self.sound(p, d, &tree)
    }

    /// C5 of a recovered tree.
    fn sound(&self, p: &Program, d: Set, tree: &Tree) -> Result<(), String> {
        let born = |i: Ino| {
            p.base.contains(&i)
                || i == 1
                || self.groups.iter().enumerate().any(|(g, x)| x.new == i && d >> g & 1 == 1)
        };
        let mut links = [0i32; INODES];
        p.base.iter().for_each(|i| links[*i as usize] += 1);
        for g in (0..self.groups.len()).filter(|g| d >> g & 1 == 1) {
            for (_, new, old) in &self.groups[g].effects {
                links[*new as usize] += 1;
                links[*old as usize] -= 1;
            }
        }
        for (k, ino) in tree.iter().enumerate().filter(|(_, i)| **i != 0) {
            if !born(*ino) {
                return Err(format!("C5: key {k} names inode {ino}, which was never made"));
            }
            let mut dir = dir_of(k as Key);
            for hop in 0.. {
                if dir == 1 {
                    break;
                }
                match tree.iter().position(|i| *i == dir) {
                    Some(up) if hop < KEYS => dir = dir_of(up as Key),
                    _ => {
                        return Err(format!(
                            "C5: key {k} (inode {ino}) lies in a directory that can't be reached"
                        ));
                    }
                }
            }
        }
        // An inode that had a name at every instant of the history must have one now.
        let mut bare = [false; INODES];
        let mut history = p.base;
        for g in &self.groups {
            for (k, new, _) in &g.effects {
                history[*k as usize] = *new;
            }
            for (ino, b) in bare.iter_mut().enumerate() {
                *b |= !history.contains(&(ino as Ino));
            }
        }
        for ino in 2..INODES as Ino {
            let existed = p.base.contains(&ino);
            if existed && !bare[ino as usize] && !tree.contains(&ino) {
                return Err(format!("C5: inode {ino} always had a name and is lost"));
            }
            let names = tree.iter().filter(|i| **i == ino).count() as i32;
            if born(ino) && links[ino as usize] != names {
                return Err(format!(
                    "C5: inode {ino} has {names} names, its records say {}",
                    links[ino as usize]
                ));
            }
            if p.is_dir(ino) && names > 1 {
                return Err(format!("C5: directory {ino} has {names} names"));
            }
        }
        Ok(())
    }
}
