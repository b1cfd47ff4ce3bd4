//! Comparing the two orders.

use super::order::State;
use super::{Id::*, Init, Kind, Obj, V};
use crate::conflicts::choice::Choices;
use std::collections::BTreeSet;

/// Comparisons; those of a symbol with a value fork.
pub(super) struct Same<'a> {
    pub(super) c: &'a mut Choices,
    pub(super) init: &'a mut Init,
}

impl Same<'_> {
    fn value(&mut self, a: &V, b: &V) -> bool {
        match (a, b) {
            _ if a == b => true,
            (V::Init(o, k), V::C(v)) | (V::C(v), V::Init(o, k)) => {
                if let Some(e) = self.init.equal.get(&(*o, *k, *v)) {
                    return *e;
                }
                // Not both values.
                let e = self.init.equal.get(&(*o, *k, 1 - v)) != Some(&true) && self.c.choose(2) == 1;
                self.init.equal.insert((*o, *k, *v), e);
                e
            }
            (V::Len(f), V::N(n)) | (V::N(n), V::Len(f)) => i64::from(self.init.len(self.c, *f)) == *n,
            (V::Len(f), V::Len(g)) => self.init.len(self.c, *f) == self.init.len(self.c, *g),
            _ => false,
        }
    }

    pub(super) fn values(&mut self, a: &[V], b: &[V]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.value(a, b))
    }

    fn attr(&mut self, s: &State, o: Obj, k: Kind) -> V {
        match s.attrs.get(&(o, k)) {
            Some(v) => v.clone(),
            None => match (o, k) {
                (Obj::File(Init(f)), Kind::Xattr) if self.init.files[f as usize].xattr == Some(false) => {
                    V::Nothing
                }
                _ => V::Init(o, k),
            },
        }
    }

    pub(super) fn states(&mut self, a: &State, b: &State) -> bool {
        if a.dead != b.dead || a.closed != b.closed || a.durable.len() != b.durable.len() {
            return false;
        }
        for key in a.entries.keys().chain(b.entries.keys()) {
            let at = |s: &State, i: &Init| match (s.entries.get(key), key.0) {
                (Some(e), _) => *e,
                (None, Init(d)) => i.entries.get(&(d, key.1)).copied().flatten(),
                (None, New(_)) => None,
            };
            if at(a, self.init) != at(b, self.init) {
                return false;
            }
        }
        for f in a.len.keys().chain(b.len.keys()) {
            let mut at = |s: &State| match (s.len.get(f), f) {
                (Some(l), _) => *l,
                (None, Init(f)) => self.init.len(self.c, *f),
                (None, New(_)) => 0,
            };
            if at(a) != at(b) {
                return false;
            }
        }
        for fd in a.offset.keys().chain(b.offset.keys()) {
            let mut at =
                |s: &State| s.offset.get(fd).copied().unwrap_or_else(|| self.init.offset(self.c, *fd));
            if !a.closed.contains(fd) && at(a) != at(b) {
                return false;
            }
        }
        let keys: BTreeSet<_> = a.attrs.keys().chain(b.attrs.keys()).copied().collect();
        for (o, k) in keys {
            if let (Obj::File(f), Kind::Page(p)) = (o, k) {
                let len = a.len.get(&f).copied().unwrap_or(u8::MAX);
                if p >= len {
                    continue;
                }
            }
            let (x, y) = (self.attr(a, o, k), self.attr(b, o, k));
            if !self.value(&x, &y) {
                return false;
            }
        }
        let durable = a.durable.iter().zip(&b.durable).all(|(x, y)| self.durable(x, y));
        durable && a.links.iter().filter(|l| *l.1 != 0).eq(b.links.iter().filter(|l| *l.1 != 0))
    }

    /// Two lists of changes made durable are equal if what is only in one of them changes nothing.
    fn durable(&mut self, a: &[V], b: &[V]) -> bool {
        if a == b {
            return true;
        }
        let idle = |s: &mut Self, list: &[V]| {
            list.chunks(3).all(|t| match t {
                [V::Is(_), old @ V::Init(..), new] => s.value(old, new),
                _ => false,
            })
        };
        a.is_empty() && idle(self, b) || b.is_empty() && idle(self, a)
    }
}
