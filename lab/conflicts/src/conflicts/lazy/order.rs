//! One order of the two calls: what each answers and changes.

use super::{Args, Id, Id::*, Init, Kind, Obj, PAGES, Pruned, Step, V};
use crate::conflicts::call::Call;
use crate::conflicts::choice::Choices;
use std::collections::{BTreeMap, BTreeSet};

/// The changes that the calls of one order made.
#[derive(Clone, Default, Debug)]
pub(super) struct State {
    pub(super) entries: BTreeMap<(Id, u8), Option<Obj>>,
    pub(super) attrs: BTreeMap<(Obj, Kind), V>,
    pub(super) len: BTreeMap<Id, u8>,
    pub(super) parent: BTreeMap<Id, Id>,
    pub(super) dead: BTreeSet<Id>,
    pub(super) links: BTreeMap<Obj, i32>,
    pub(super) offset: BTreeMap<u8, u8>,
    pub(super) closed: BTreeSet<u8>,
    pub(super) durable: Vec<Vec<V>>,
}

/// One order of the two calls.
pub(super) struct Run<'a> {
    pub(super) c: &'a mut Choices,
    pub(super) init: &'a mut Init,
    pub(super) s: State,
}

enum Place {
    At(Id, u8),
    Error(i32),
}

impl Run<'_> {
    fn entry(&mut self, d: Id, n: u8) -> Option<Obj> {
        match (self.s.entries.get(&(d, n)), d) {
            (Some(e), _) => *e,
            (None, New(_)) => None,
            (None, Init(d)) => self.init.entry(self.c, d, n),
        }
    }

    fn set_entry(&mut self, d: Id, n: u8, new: Option<Obj>) {
        let old = self.entry(d, n);
        for (o, by) in [(old, -1), (new, 1)] {
            match o {
                Some(Obj::Dir(_)) => *self.s.links.entry(Obj::Dir(d)).or_default() += by,
                Some(o) => {
                    *self.s.links.entry(o).or_default() += by;
                    self.s.attrs.insert((o, Kind::Time), V::Now);
                }
                None => {}
            }
            if let Some(o @ Obj::Dir(_)) = o {
                self.s.attrs.insert((o, Kind::Time), V::Now);
            }
        }
        self.s.entries.insert((d, n), new);
        self.s.attrs.insert((Obj::Dir(d), Kind::Time), V::Now);
    }

    /// The directory that the path of initial directory `d` leads to now.
    fn walk(&mut self, d: u8) -> Result<Id, i32> {
        let Some((p, n)) = self.init.dirs[d as usize].place.filter(|_| d != 0) else { return Ok(Init(d)) };
        let parent = self.walk(p)?;
        let Some(n) = n else {
            return if parent == Init(p) { Ok(Init(d)) } else { Err(libc::ENOENT) };
        };
        match self.entry(parent, n) {
            Some(Obj::Dir(x)) => Ok(x),
            None | Some(Obj::Link(New(_))) => Err(libc::ENOENT),
            Some(_) => Err(libc::ENOTDIR),
        }
    }

    fn place(&mut self, at: (u8, u8)) -> Place {
        match self.walk(at.0) {
            Ok(d) => Place::At(d, at.1),
            Err(e) => Place::Error(e),
        }
    }

    /// Finds the object that a path names; follows a final link if asked for.
    fn find(&mut self, at: (u8, u8), follow: bool) -> Result<Obj, i32> {
        let (d, n) = match self.place(at) {
            Place::At(d, n) => (d, n),
            Place::Error(e) => return Err(e),
        };
        match self.entry(d, n) {
            None => Err(libc::ENOENT),
            Some(Obj::Link(l)) if follow => match l {
                Init(l) => Ok(Obj::File(Init(self.init.links[l as usize]))),
                New(_) => Err(libc::ENOENT),
            },
            Some(o) => Ok(o),
        }
    }

    fn attr(&mut self, o: Obj, k: Kind) -> V {
        match (self.s.attrs.get(&(o, k)), o) {
            (Some(v), _) => v.clone(),
            (None, Obj::File(Init(f))) if k == Kind::Xattr => {
                if Init::flag(self.c, &mut self.init.files[f as usize].xattr) {
                    V::Init(o, k)
                } else {
                    V::Nothing
                }
            }
            (None, _) if k == Kind::Xattr => V::Nothing,
            (None, Obj::File(New(_)) | Obj::Dir(New(_)) | Obj::Link(New(_))) => V::Nothing,
            _ => V::Init(o, k),
        }
    }

    fn set(&mut self, o: Obj, k: Kind, v: V) {
        self.s.attrs.insert((o, k), v);
        if k != Kind::Time {
            self.s.attrs.insert((o, Kind::Time), V::Now);
        }
    }

    fn len(&mut self, f: Id) -> u8 {
        match (self.s.len.get(&f), f) {
            (Some(l), _) => *l,
            (None, New(_)) => 0,
            (None, Init(f)) => self.init.len(self.c, f),
        }
    }

    /// The length, as a symbol if nobody needs to know it.
    fn size(&mut self, f: Id) -> V {
        match (self.s.len.get(&f), f) {
            (Some(l), _) => V::N(i64::from(*l)),
            (None, New(_)) => V::N(0),
            (None, Init(f)) => self.init.files[f as usize].len.map_or(V::Len(f), |l| V::N(i64::from(l))),
        }
    }

    fn is_empty(&mut self, d: Id) -> bool {
        if self.s.entries.iter().any(|((x, _), e)| *x == d && e.is_some()) {
            return false;
        }
        let Init(x) = d else { return true };
        let seen = |s: &State, n: u8| s.entries.contains_key(&(d, n));
        if self.init.entries.iter().any(|((y, n), e)| *y == x && e.is_some() && !seen(&self.s, *n)) {
            return false;
        }
        if self.init.dirs.iter().any(|y| y.place == Some((x, None))) {
            return false;
        }
        !Init::flag(self.c, &mut self.init.dirs[x as usize].more)
    }

    fn stat(&mut self, o: Obj) -> Vec<V> {
        let links = self.s.links.get(&o).copied().unwrap_or(0);
        let mut out = vec![V::Is(o), V::Links(o, links)];
        for k in [Kind::Mode, Kind::Owner, Kind::Time] {
            out.push(self.attr(o, k));
        }
        if let Obj::File(f) = o {
            out.push(self.size(f));
        }
        out
    }

    fn truncate(&mut self, f: Id, to: u8) -> Step<()> {
        let len = self.len(f);
        if to > len {
            return Err(Pruned);
        }
        for p in to..=PAGES {
            self.s.attrs.insert((Obj::File(f), Kind::Page(p)), V::Nothing);
        }
        self.s.len.insert(f, to);
        self.s.attrs.insert((Obj::File(f), Kind::Time), V::Now);
        Ok(())
    }

    fn read(&mut self, f: Id, page: u8) -> Vec<V> {
        if page >= self.len(f) { vec![V::N(0)] } else { vec![self.attr(Obj::File(f), Kind::Page(page))] }
    }

    fn write(&mut self, f: Id, page: u8, v: u8) -> Step<Vec<V>> {
        let len = self.len(f);
        if page > len || page > PAGES {
            return Err(Pruned);
        }
        self.set(Obj::File(f), Kind::Page(page), V::C(v));
        if page == len {
            self.s.len.insert(f, len + 1);
        }
        Ok(vec![V::N(1)])
    }

    /// A removed name's file: whether it was its last matters to what happens, not to what is
    /// answered.
    fn lose(&mut self, o: Obj) {
        if let Obj::File(Init(f)) = o {
            Init::flag(self.c, &mut self.init.files[f as usize].extra);
        }
    }

    /// Returns the differences from the initial state among what `pick` takes.
    fn changes(
        &mut self,
        pick: impl Fn(&Obj) -> bool,
        names: impl Fn(Id, Option<Obj>, Option<Obj>) -> bool,
    ) -> Vec<V> {
        let mut out = Vec::new();
        let entries: Vec<_> = self.s.entries.iter().map(|(k, v)| (*k, *v)).collect();
        for ((d, n), e) in entries {
            let before = match d {
                Init(d) => self.init.entry(self.c, d, n),
                New(_) => None,
            };
            if e != before && names(d, before, e) {
                out.push(V::Name(d, n, e));
            }
        }
        let attrs: Vec<_> = self
            .s
            .attrs
            .iter()
            .filter(|(k, _)| k.1 != Kind::Time && pick(&k.0))
            .map(|(k, v)| (*k, v.clone()))
            .collect();
        for ((o, k), v) in attrs {
            out.push(V::Is(o));
            out.push(V::Init(o, k));
            out.push(v);
        }
        let lens: Vec<_> =
            self.s.len.iter().filter(|(f, _)| pick(&Obj::File(**f))).map(|(f, l)| (*f, *l)).collect();
        for (f, l) in lens {
            out.push(V::Is(Obj::File(f)));
            out.push(V::N(i64::from(l)));
        }
        out
    }

    /// A change stores a time, which is promised even where nothing else differs.
    fn promise_times(&self, list: &mut Vec<V>, pick: impl Fn(&Obj) -> bool) {
        if !list.is_empty() || self.s.attrs.keys().any(|k| k.1 == Kind::Time && pick(&k.0)) {
            list.push(V::Now);
        }
    }

    pub(super) fn call(&mut self, call: Call, a: &Args, who: u8) -> Step<Vec<V>> {
        let fail = |e: i32| Ok(vec![V::E(e)]);
        let ok = || Ok(vec![V::N(0)]);
        macro_rules! place {
            ($at:expr) => {
                match self.place($at) {
                    Place::At(d, n) => (d, n),
                    Place::Error(e) => return fail(e),
                }
            };
        }
        macro_rules! find {
            ($follow:expr) => {
                match self.find(a.at.unwrap_or_default(), $follow) {
                    Ok(o) => o,
                    Err(e) => return fail(e),
                }
            };
        }
        // The handle, its file.
        macro_rules! fd {
            () => {{
                let fd = a.fd.unwrap_or(0);
                if self.s.closed.contains(&fd) {
                    return fail(libc::EBADF);
                }
                (fd, Init(self.init.fds[fd as usize].file))
            }};
        }
        match call {
            Call::Open | Call::Create => {
                let (d, n) = place!(a.at.unwrap_or_default());
                let o = match self.entry(d, n) {
                    None if call == Call::Open => return fail(libc::ENOENT),
                    None => {
                        if self.s.dead.contains(&d) {
                            return fail(libc::ENOENT);
                        }
                        let o = Obj::File(New(who));
                        self.set_entry(d, n, Some(o));
                        return Ok(vec![V::Is(o)]);
                    }
                    Some(_) if call == Call::Create && a.form == 1 => return fail(libc::EEXIST),
                    Some(Obj::Link(New(_))) => return fail(libc::ENOENT),
                    Some(Obj::Link(Init(l))) => Obj::File(Init(self.init.links[l as usize])),
                    Some(o) => o,
                };
                match o {
                    Obj::Dir(_) if call == Call::Create || a.form > 0 => fail(libc::EISDIR),
                    Obj::File(f) if a.form == 2 => {
                        self.truncate(f, 0)?;
                        Ok(vec![V::Is(o)])
                    }
                    o => Ok(vec![V::Is(o)]),
                }
            }
            Call::Link => {
                let o = find!(false);
                let (d, n) = place!(a.to.unwrap_or_default());
                if self.entry(d, n).is_some() {
                    return fail(libc::EEXIST);
                }
                if let Obj::Dir(_) = o {
                    return fail(libc::EPERM);
                }
                self.set_entry(d, n, Some(o));
                ok()
            }
            Call::Unlink => {
                let (d, n) = place!(a.at.unwrap_or_default());
                match self.entry(d, n) {
                    None => fail(libc::ENOENT),
                    Some(Obj::Dir(_)) => fail(libc::EISDIR),
                    Some(o) => {
                        self.lose(o);
                        self.set_entry(d, n, None);
                        ok()
                    }
                }
            }
            Call::Symlink | Call::Mkdir => {
                let (d, n) = place!(a.at.unwrap_or_default());
                if self.entry(d, n).is_some() {
                    return fail(libc::EEXIST);
                }
                let o = if call == Call::Mkdir { Obj::Dir(New(who)) } else { Obj::Link(New(who)) };
                self.set_entry(d, n, Some(o));
                if call == Call::Mkdir {
                    self.s.parent.insert(New(who), d);
                }
                ok()
            }
            Call::Rmdir => {
                let (d, n) = place!(a.at.unwrap_or_default());
                match self.entry(d, n) {
                    None => fail(libc::ENOENT),
                    Some(Obj::Dir(x)) => {
                        if !self.is_empty(x) {
                            return fail(libc::ENOTEMPTY);
                        }
                        self.set_entry(d, n, None);
                        self.s.dead.insert(x);
                        ok()
                    }
                    Some(_) => fail(libc::ENOTDIR),
                }
            }
            Call::Rename => self.rename(a),
            Call::Readlink => match find!(false) {
                o @ Obj::Link(_) => Ok(vec![V::Is(o)]),
                _ => fail(libc::EINVAL),
            },
            Call::Readdir => {
                let d = match self.walk(a.at.unwrap_or_default().0) {
                    Ok(d) => d,
                    Err(e) => return fail(e),
                };
                Ok(self.changes(|_| false, |x, _, _| x == d))
            }
            Call::Stat => {
                let o = find!(true);
                Ok(self.stat(o))
            }
            Call::Access => {
                find!(true);
                ok()
            }
            Call::Chmod | Call::Chown => {
                let o = find!(true);
                self.set(o, if call == Call::Chmod { Kind::Mode } else { Kind::Owner }, V::C(a.value));
                ok()
            }
            Call::Utimens => {
                let o = find!(true);
                self.set(o, Kind::Time, V::C(a.value));
                ok()
            }
            Call::Truncate => match find!(true) {
                Obj::File(f) => {
                    self.truncate(f, a.page)?;
                    ok()
                }
                _ => fail(libc::EISDIR),
            },
            Call::Setxattr => {
                let o = find!(true);
                let there = self.attr(o, Kind::Xattr) != V::Nothing;
                match (a.form, there) {
                    (1, true) => fail(libc::EEXIST),
                    (2, false) => fail(libc::ENODATA),
                    _ => {
                        self.set(o, Kind::Xattr, V::C(a.value));
                        ok()
                    }
                }
            }
            Call::Getxattr => {
                let o = find!(true);
                Ok(vec![self.attr(o, Kind::Xattr)])
            }
            Call::Fstat => {
                let (_, f) = fd!();
                if let Init(f) = f {
                    self.orphan(f);
                }
                Ok(self.stat(Obj::File(f)))
            }
            Call::Read => {
                let (fd, f) = fd!();
                let at = self.offset(fd);
                let r = self.read(f, at);
                if r != [V::N(0)] {
                    self.s.offset.insert(fd, at + 1);
                }
                Ok(r)
            }
            Call::Write => {
                let (fd, f) = fd!();
                let at = self.offset(fd);
                self.s.offset.insert(fd, at + 1);
                self.write(f, at, a.value)
            }
            Call::Append => {
                let (fd, f) = fd!();
                let at = self.len(f);
                self.s.offset.insert(fd, at + 1);
                let mut r = self.write(f, at, a.value)?;
                r.push(V::N(i64::from(at)));
                Ok(r)
            }
            Call::Pread => {
                let (_, f) = fd!();
                Ok(self.read(f, a.page))
            }
            Call::Pwrite => {
                let (_, f) = fd!();
                self.write(f, a.page, a.value)
            }
            Call::Ftruncate => {
                let (_, f) = fd!();
                self.truncate(f, a.page)?;
                ok()
            }
            Call::Lseek => {
                let (fd, f) = fd!();
                let to = if a.form == 1 { self.len(f) } else { a.page };
                self.s.offset.insert(fd, to);
                Ok(vec![V::N(i64::from(to))])
            }
            Call::Close => {
                let (fd, _) = fd!();
                self.s.closed.insert(fd);
                ok()
            }
            Call::Fsync | Call::Fdatasync => {
                let (_, f) = fd!();
                if let Init(f) = f {
                    self.orphan(f);
                    Init::flag(self.c, &mut self.init.files[f as usize].dirty);
                }
                let me = Obj::File(f);
                let mut d = self.changes(|o| *o == me, |_, b, e| b == Some(me) || e == Some(me));
                if call == Call::Fsync {
                    self.promise_times(&mut d, |o| *o == me);
                }
                self.s.durable.push(d);
                ok()
            }
            Call::FsyncDir => {
                let (_, d) = fd!();
                let me = Obj::Dir(d);
                let mut c = self.changes(|o| *o == me, |x, b, e| x == d || b == Some(me) || e == Some(me));
                self.promise_times(&mut c, |o| *o == me);
                self.s.durable.push(c);
                ok()
            }
            Call::Sync => {
                let mut c = self.changes(|_| true, |_, _, _| true);
                self.promise_times(&mut c, |_| true);
                self.s.durable.push(c);
                ok()
            }
            Call::Checkpoint => ok(),
        }
    }

    /// A file that only a handle knows may have no name at all.
    fn orphan(&mut self, f: u8) {
        let named = self.init.entries.values().any(|e| *e == Some(Obj::File(Init(f))));
        if !named {
            Init::flag(self.c, &mut self.init.files[f as usize].extra);
        }
    }

    fn offset(&mut self, fd: u8) -> u8 {
        match self.s.offset.get(&fd) {
            Some(o) => *o,
            None => self.init.offset(self.c, fd),
        }
    }

    fn parent(&mut self, d: Id) -> Id {
        match (self.s.parent.get(&d), d) {
            (Some(p), _) => *p,
            (None, Init(0)) => Init(0),
            (None, Init(d)) => Init(self.init.parent(self.c, d)),
            (None, New(_)) => Init(0),
        }
    }

    fn rename(&mut self, a: &Args) -> Step<Vec<V>> {
        let fail = |e: i32| Ok(vec![V::E(e)]);
        let (from, to) = (a.at.unwrap_or_default(), a.to.unwrap_or_default());
        let (d, n) = match self.place(from) {
            Place::At(d, n) => (d, n),
            Place::Error(e) => return fail(e),
        };
        let (d2, n2) = match self.place(to) {
            Place::At(d, n) => (d, n),
            Place::Error(e) => return fail(e),
        };
        let Some(o) = self.entry(d, n) else { return fail(libc::ENOENT) };
        let target = self.entry(d2, n2);
        if let Obj::Dir(x) = o
            && d != d2
        {
            let mut up = d2;
            loop {
                if up == x {
                    return fail(libc::EINVAL);
                }
                if up == Init(0) {
                    break;
                }
                up = self.parent(up);
            }
        }
        if let Some(Obj::Dir(t)) = target
            && d != d2
        {
            let mut up = d;
            while up != Init(0) {
                if up == t {
                    return fail(libc::ENOTEMPTY);
                }
                up = self.parent(up);
            }
        }
        if target == Some(o) {
            return Ok(vec![V::N(0)]);
        }
        match (o, target) {
            (Obj::Dir(_), Some(Obj::Dir(t))) => {
                if !self.is_empty(t) {
                    return fail(libc::ENOTEMPTY);
                }
                self.s.dead.insert(t);
            }
            (Obj::Dir(_), Some(_)) => return fail(libc::ENOTDIR),
            (_, Some(Obj::Dir(_))) => return fail(libc::EISDIR),
            (_, Some(t)) => self.lose(t),
            _ => {}
        }
        self.set_entry(d, n, None);
        self.set_entry(d2, n2, Some(o));
        if let Obj::Dir(x) = o {
            self.s.parent.insert(x, d2);
        }
        Ok(vec![V::N(0)])
    }
}
