//! Random work on a store, beside a model of what it must hold.
//!
//! Every state a file ever had is kept, by the operation that made it; an operation writes its
//! number into `mtime`. After a crash a file must be exactly one of its states, not older than the
//! last acknowledged one; the names must be exactly those after some operation, not before the last
//! acknowledged one; and the volume must pass its audit.
//!
//! A call that fails is made again, as a caller does that hears of an error. So faults that do not
//! stop the store change nothing of what is judged.

use crate::common::*;
use lanefs_format::record::Effect;
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is told of the work while it is done.
pub trait Watch {
    /// Something was acknowledged: see [`Told`].
    fn acked(&self, what: String);
    /// Makes a call that makes a checkpoint.
    fn around(&self, _: &Store, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        call()
    }
}

/// What was acknowledged: which names, and of each file which state.
#[derive(Default)]
pub struct Told {
    names: usize,
    files: BTreeMap<u64, i64>,
}

impl Told {
    /// From what [`Watch::acked`] was told.
    pub fn new<'a>(marks: impl Iterator<Item = &'a str>) -> Told {
        let mut told = Told::default();
        for mark in marks {
            let words: Vec<&str> = mark.split(' ').collect();
            match words[..] {
                ["names", k] => told.names = k.parse().unwrap(),
                ["file", ino, op] => {
                    told.files.insert(ino.parse().unwrap(), op.parse().unwrap());
                }
                _ => panic!("{mark}"),
            }
        }
        told
    }
}

/// By its place among the file's pages: its seed and how many of its bytes are not zero.
type Pages = BTreeMap<u64, (u64, usize)>;

#[derive(Clone, Default)]
struct State {
    size: u64,
    pages: Pages,
    xattrs: Vec<u8>,
    /// Pages that were preallocated.
    room: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct File {
    now: State,
    /// All states, by operation.
    states: BTreeMap<i64, State>,
    links: u32,
    dead: bool,
}

/// So many pages a file has at the most.
fn places(ino: u64) -> u64 {
    if is_wide(ino) { 48 } else { 16 }
}

/// Some files have holes everywhere, so that their maps are trees with several leaves.
fn is_wide(ino: u64) -> bool {
    ino.is_multiple_of(3)
}

/// The page at a place.
fn at(ino: u64, place: u64) -> u64 {
    if is_wide(ino) { place * 97 } else { place }
}

fn block(seed: u64, len: usize) -> Box<Block> {
    let mut b = page(seed);
    b.0[len..].fill(0);
    b
}

/// Calls until it is answered, as a caller does that hears of an error and tries again. An error
/// only if the store does not go on.
fn insist<T>(s: &Store, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..4 {
        match call() {
            Err(_) if s.healthy().is_ok() => {}
            answered => return answered,
        }
    }
    let r = call();
    assert!(r.is_ok() || s.healthy().is_err(), "refused again and again: {}", r.err().unwrap());
    r
}

pub struct Model {
    files: BTreeMap<u64, File>,
    names: BTreeMap<Vec<u8>, u64>,
    /// The names after each namespace operation.
    history: Vec<BTreeMap<Vec<u8>, u64>>,
    /// Groups of the open epoch; and those committed and not folded, with their epochs.
    pending: Vec<u8>,
    committed: Vec<(u64, Arc<Vec<u8>>)>,
    epoch: u64,
    op: i64,
    next_ino: u64,
    /// Different names that files have.
    choice: u64,
}

impl Model {
    /// Of a volume without files.
    pub fn new(s: &Store) -> Model {
        Model {
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            history: vec![BTreeMap::new()],
            pending: Vec::new(),
            committed: Vec::new(),
            epoch: s.info().last_epoch + 1,
            op: 100,
            next_ino: 20,
            choice: 12,
        }
    }

    /// Makes so many files, folds them, and keeps about so many from then on.
    pub fn crowd(&mut self, s: &Store, files: u64, w: &dyn Watch) -> Result<()> {
        for n in 0..files {
            self.op += 1;
            self.create(format!("n{n}").into_bytes(), true);
        }
        self.choice = self.choice.max(files);
        self.fold(s, w)
    }

    fn group(&mut self, effects: &[Effect<'_>]) {
        let g = group(self.epoch, self.op as u64, effects);
        self.pending.extend(g);
        self.history.push(self.names.clone());
    }

    fn create(&mut self, name: Vec<u8>, dies: bool) {
        let ino = self.next_ino;
        let old = self.names.insert(name.clone(), ino);
        self.next_ino += 1;
        self.files.insert(ino, File { links: 1, ..Default::default() });
        self.group(&[new_file(ino), set(&name, ino, old.unwrap_or(0))]);
        if let Some(old) = old {
            self.unlinked(old, dies);
        }
    }

    /// One call, random; an error if the store does not go on.
    pub fn step(&mut self, s: &Store, r: &mut Rng, w: &dyn Watch) -> Result<()> {
        self.op += 1;
        let live: Vec<u64> = self.files.iter().filter(|(_, f)| !f.dead).map(|(i, _)| *i).collect();
        let pick = live.get(r.below(live.len().max(1) as u64) as usize).copied();
        match (r.below(22), pick) {
            (0..=2, _) | (_, None) => {
                let name = format!("n{}", r.below(self.choice)).into_bytes();
                self.create(name, r.below(8) > 0);
            }
            (3, Some(ino)) if self.files[&ino].links > 0 => {
                let name = format!("link{}", r.below(6)).into_bytes();
                if self.names.contains_key(&name) {
                    return Ok(());
                }
                self.names.insert(name.clone(), ino);
                self.files.get_mut(&ino).unwrap().links += 1;
                self.group(&[set(&name, ino, 0)]);
            }
            (4, _) => {
                let Some((name, ino)) = self.names.pop_first() else { return Ok(()) };
                let f = self.files.get_mut(&ino).unwrap();
                f.links -= 1;
                let last = f.links == 0 && r.below(2) == 0;
                f.dead = last;
                self.group(&[clr(&name, ino)]);
                if last {
                    self.dies(ino);
                }
            }
            (5..=12, Some(ino)) => {
                let durable = r.below(3) > 0;
                self.write(s, r, w, ino, durable)?;
                // Now and then a little of every file, so that a checkpoint has many inodes to
                // write.
                if self.choice > 100 && r.below(8) == 0 {
                    for ino in live {
                        self.op += 1;
                        self.write(s, r, w, ino, durable)?;
                    }
                }
            }
            (13, Some(ino)) => self.cut(s, r, ino)?,
            (20..=21, Some(ino)) => self.preallocate(s, r, w, ino)?,
            (14..=15, _) => {
                insist(s, || self.commit(s))?;
                w.acked(format!("names {}", self.history.len() - 1));
            }
            (16, _) => self.fold(s, w)?,
            (17, _) => {
                let target = s.pressure().free_segments + 2;
                insist(s, || w.around(s, &mut || s.clean(target).map(|_| ())))?;
            }
            (18, _) if r.below(2) == 0 => self.fold_some(s, r, w)?,
            // A checkpoint without a fold.
            (18, _) => insist(s, || w.around(s, &mut || s.free_space_for_epoch(0, true)))?,
            (_, Some(ino)) => {
                s.forget_inode(Ino(ino));
                s.shrink();
            }
        }
        Ok(())
    }

    /// A name of the file is gone; with the last one the file dies, unless somebody still has it
    /// open.
    fn unlinked(&mut self, ino: u64, dies: bool) {
        let f = self.files.get_mut(&ino).unwrap();
        f.links -= 1;
        f.dead = f.links == 0 && dies;
        if f.dead {
            self.dies(ino);
        }
    }

    fn dies(&mut self, ino: u64) {
        let g = group(self.epoch, self.op as u64, &[Effect::Dead { ino: Ino(ino), generation: 0 }]);
        self.pending.extend(g);
    }

    /// After an error it can be called again.
    fn commit(&mut self, s: &Store) -> Result<()> {
        let g = &self.pending;
        let half = lanefs_format::record::groups(g).next().map_or(0, |x| x.unwrap().bytes.len());
        s.commit_epoch(self.epoch, vec![(0, g[..half].to_vec()), (1, g[half..].to_vec())])?;
        self.committed.push((self.epoch, Arc::new(std::mem::take(&mut self.pending))));
        self.epoch += 1;
        Ok(())
    }

    /// A checkpoint that folds all there is.
    pub fn fold(&mut self, s: &Store, w: &dyn Watch) -> Result<()> {
        insist(s, || {
            // What a checkpoint folded that failed behind its fold stays folded.
            self.committed.retain(|c| c.0 > s.folded_epoch());
            w.around(s, &mut || {
                let done = s.checkpoint(|| {
                    self.commit(s)?;
                    let groups = self.committed.iter().map(|c| c.1.clone().into()).collect();
                    Ok(FoldInput { epoch: self.epoch - 1, groups })
                });
                done.map(|_| ())
            })
        })?;
        self.committed.clear();
        w.acked(format!("names {}", self.history.len() - 1));
        Ok(())
    }

    /// A checkpoint that folds some of what was committed before.
    fn fold_some(&mut self, s: &Store, r: &mut Rng, w: &dyn Watch) -> Result<()> {
        let some = r.below(self.committed.len() as u64 + 1) as usize;
        insist(s, || {
            self.committed.retain(|c| c.0 > s.folded_epoch());
            let some = &self.committed[..some.min(self.committed.len())];
            let epoch = some.last().map_or(s.folded_epoch(), |c| c.0);
            let groups = || some.iter().map(|c| c.1.clone().into()).collect();
            w.around(s, &mut || s.fold_committed(|| Ok(FoldInput { epoch, groups: groups() })).map(|_| ()))
        })?;
        self.committed.retain(|c| c.0 > s.folded_epoch());
        Ok(())
    }

    fn cut(&mut self, s: &Store, r: &mut Rng, ino: u64) -> Result<()> {
        let mtime = self.op;
        let before = self.files[&ino].now.clone();
        let f = self.files.get_mut(&ino).unwrap();
        let keep = r.below(12);
        f.now.size = f.now.size.min(at(ino, keep) * 4096);
        f.now.pages.retain(|p, _| *p < keep);
        f.now.room.retain(|p| *p < at(ino, keep));
        f.states.insert(self.op, f.now.clone());
        let size = f.now.size;
        let cut = Cut { size: Some(size), time: Some(mtime), attrs: &|| Attrs { mtime, ..attrs(size) } };
        insist(s, || {
            s.unmap(0, Ino(ino), at(ino, keep)..u64::MAX, Some(&cut)).inspect_err(|e| {
                // It changed nothing. (Nor is anything told by a store that does not go on.)
                for place in (0..places(ino)).filter(|_| s.healthy().is_ok()) {
                    let expected = before.pages.get(&place).map(|&(seed, len)| block(seed, len).0);
                    let got = read(s, ino, at(ino, place)).map(|b| b.0).filter(|b| b.iter().any(|b| *b != 0));
                    assert!(got == expected, "op {mtime}, inode {ino} page {place}: {e}, and it was cut");
                }
            })
        })
    }

    /// Keeps room for some pages, behind the end of the file too, and says so in an update.
    fn preallocate(&mut self, s: &Store, r: &mut Rng, w: &dyn Watch, ino: u64) -> Result<()> {
        let first = at(ino, r.below(places(ino))) + r.below(3);
        let pages = first..first + 1 + r.below(12);
        let size = self.files[&ino].now.size;
        let of = || attrs(size);
        let there_is_room = insist(s, || {
            match s.preallocate(0, Ino(ino), pages.clone(), &of, lanefs_store::Claimant::Root) {
                Err(StoreError::NoSpace) => Ok(false),
                answer => answer.map(|_| true),
            }
        })?;
        if !there_is_room {
            return Ok(());
        }
        let f = self.files.get_mut(&ino).unwrap();
        f.now.room.extend(pages);
        f.states.insert(self.op, f.now.clone());
        let durable = r.below(2) == 0;
        let groups = if durable { self.pending.clone() } else { Vec::new() };
        insist(s, || {
            let mut u = update(ino, size, Vec::new());
            u.attrs.mtime = self.op;
            s.submit(tx(durable, groups.clone(), vec![u]))
        })?;
        if durable {
            w.acked(format!("file {ino} {}", self.op));
            w.acked(format!("names {}", self.history.len() - 1));
        }
        Ok(())
    }

    fn write(&mut self, s: &Store, r: &mut Rng, w: &dyn Watch, ino: u64, durable: bool) -> Result<()> {
        let promised = 12;
        if !s.reserve(0, promised) {
            return Ok(()); // Full.
        }
        let f = self.files.get_mut(&ino).unwrap();
        let first = r.below(places(ino));
        let most = if is_wide(ino) { 8 } else { 4 };
        let mut pages = Vec::new();
        for place in first..first + 1 + r.below(most) {
            let p = at(ino, place);
            let mut len = 4096;
            let end = (p + 1) * 4096;
            if end > f.now.size {
                // The new last page; sometimes short enough for the inode block, and sometimes it
                // was not and is now.
                len = match r.below(4) {
                    0 | 1 => 1 + r.below(3400) as usize,
                    2 => 3401 + r.below(600) as usize,
                    _ => 4096,
                };
                f.now.size = p * 4096 + len as u64;
            } else if f.now.size < end + 4096 && !f.now.size.is_multiple_of(4096) && p == f.now.size / 4096 {
                len = (f.now.size % 4096) as usize;
            }
            let seed = self.op as u64 * 100 + place;
            f.now.pages.insert(place, (seed, len));
            pages.push((p, seed, len));
            if len < 4096 || place + 1 == places(ino) {
                break;
            }
        }
        // Some are so long that they have blocks of their own.
        let xattrs = (r.below(6) == 0).then(|| vec![self.op as u8; r.below(9000) as usize]);
        if let Some(x) = &xattrs {
            f.now.xattrs.clone_from(x);
        }
        f.states.insert(self.op, f.now.clone());
        let size = f.now.size;
        let (lane, mtime) = (r.below(3) as usize, self.op);
        let send = |m: &Model| {
            let groups = if durable { m.pending.clone() } else { Vec::new() };
            let pages = pages.iter().map(|&(p, seed, len)| (p, block(seed, len))).collect();
            let mut u = update(ino, size, pages);
            (u.reserved, u.attrs.mtime, u.xattrs) = (promised as u32, mtime, xattrs.clone());
            s.submit(Transaction { lane, ..tx(durable, groups, vec![u]) })
        };
        let mut sent = send(self);
        if matches!(sent, Err(StoreError::NoSpace)) {
            // Names have no promise here, so they can fill the log of a small volume. The library
            // folds them before; this model does so when it hears of it.
            self.fold(s, w)?;
        }
        if sent.is_err() {
            sent = insist(s, || send(self));
        }
        sent?;
        if durable {
            w.acked(format!("file {ino} {}", self.op));
            w.acked(format!("names {}", self.history.len() - 1));
        }
        Ok(())
    }

    fn holds(s: &Store, ino: u64, state: &State, context: &str) {
        for place in 0..places(ino) {
            let expected = state.pages.get(&place).map(|&(seed, len)| block(seed, len).0);
            // Zeros with room for them are no hole, and were not written.
            let got = read(s, ino, at(ino, place)).map(|b| b.0).filter(|b| b.iter().any(|b| *b != 0));
            assert!(got == expected, "{context}: inode {ino} page {place}");
        }
        for &p in &state.room {
            let room = s.room_in(Ino(ino), p..p + 1).unwrap();
            assert_eq!(room, 1, "{context}: inode {ino} has no room for page {p}");
            assert!(s.has_room(Ino(ino), p).unwrap());
        }
    }

    /// Checks what is read of a store at work.
    pub fn check_now(&self, s: &Store, context: &str) {
        for (&ino, f) in self.files.iter().filter(|(_, f)| !f.dead) {
            Model::holds(s, ino, &f.now, context);
            if !f.states.is_empty() {
                let i = s.load_inode(Ino(ino)).unwrap().unwrap();
                assert!(i.xattrs == f.now.xattrs, "{context}: attributes of inode {ino}");
            }
        }
    }

    /// Checks a recovered store.
    pub fn check(&self, s: &Store, told: &Told, context: &str) {
        let mut names = BTreeMap::new();
        let mut next = 0;
        while next < 1 << 63 {
            let b = s.load_bucket(ROOT_INO, next).unwrap();
            names.extend(b.entries.iter().map(|e| (e.name.to_vec(), e.ino.0)));
            next = b.high + 1;
        }
        assert!(
            self.history[told.names..].contains(&names),
            "{context}: names {names:?} were never so since {:?}",
            self.history[told.names]
        );
        let mut links: BTreeMap<u64, u32> = BTreeMap::new();
        names.values().for_each(|i| *links.entry(*i).or_default() += 1);
        for (&ino, &n) in &links {
            let i =
                s.load_inode(Ino(ino)).unwrap().unwrap_or_else(|| panic!("{context}: inode {ino} is gone"));
            assert_eq!(i.nlink, n, "{context}: links of inode {ino}");
            let f = &self.files[&ino];
            let least = told.files.get(&ino).copied().unwrap_or(0);
            let state = match f.states.get(&i.attrs.mtime) {
                Some(state) => state.clone(),
                None => {
                    assert_eq!((i.attrs.mtime, least), (5, 0), "{context}: inode {ino} lost its updates");
                    State::default()
                }
            };
            assert!(i.attrs.mtime >= least, "{context}: inode {ino} is of {} not {least}", i.attrs.mtime);
            let context = format!("{context}: inode {ino} of {}", i.attrs.mtime);
            assert_eq!(i.attrs.size, state.size, "{context}: size");
            assert!(i.xattrs == state.xattrs, "{context}: attributes");
            Model::holds(s, ino, &state, &context);
        }
        let a = s.audit().unwrap();
        assert!(a.problems.is_empty(), "{context}: {:#?}", a.problems);
        assert_eq!(a.inodes, links.len() as u64 + 1, "{context}: inodes without names are left");
    }
}
