//! The targets on which a sequence of calls can be run, and the comparison of their answers with
//! the model's.

pub mod directory;
pub mod volume;

use crate::model::{Content, Model};
use crate::op::{Fd, Identity, Name, Op, Outcome, Step, Who};
use std::collections::BTreeMap;

/// Something that answers calls: a LaneFS volume, a directory of the running kernel, a toy.
pub trait Target {
    /// Does one call.
    fn call(&mut self, who: Who, op: &Op) -> Outcome;
}

/// Pairs the model's inodes with the target's, one to one while they live.
#[derive(Clone, Default, Debug)]
pub struct Identities {
    known: BTreeMap<u64, Identity>,
    used: BTreeMap<u64, u64>,
}

impl Identities {
    /// The target's identity of a model inode, if it was ever seen.
    pub fn of(&self, id: u64) -> Option<Identity> {
        self.known.get(&id).copied()
    }

    /// All pairs: model inode, target identity.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, Identity)> + '_ {
        self.known.iter().map(|(a, b)| (*a, *b))
    }

    /// Notes that model inode `id` is `(ino, generation)`; `None` as generation where the target
    /// didn't say.
    pub fn pair(&mut self, model: &Model, id: u64, ino: u64, generation: Option<u32>) -> Result<(), String> {
        if let Some(k) = self.known.get(&id) {
            return if k.0 == ino && generation.is_none_or(|g| g == k.1) {
                Ok(())
            } else {
                Err(format!("inode #{id} of the model was {k:?}, now it is ({ino}, {generation:?})"))
            };
        }
        if let Some(other) = self.used.get(&ino)
            && *other != id
            && model.is_live(*other)
        {
            return Err(format!("inode number {ino} is that of #{other} and of #{id}"));
        }
        self.used.insert(ino, id);
        if let Some(g) = generation {
            self.known.insert(id, (ino, g));
        }
        Ok(())
    }
}

/// Compares what a target answered with what the model did; `Err` says how they differ.
pub fn agree(
    model: &Model,
    ids: &mut Identities,
    step: &Step,
    want: &Outcome,
    got: &Outcome,
) -> Result<(), String> {
    let differ = || Err(format!("expected {want:?}, got {got:?}"));
    match (want, got) {
        (_, Outcome::Unsupported) => Ok(()),
        (Outcome::Attr(w), Outcome::Attr(g)) => {
            let same = (w.mode, w.nlink, w.uid, w.gid) == (g.mode, g.nlink, g.uid, g.gid)
                && (w.size.is_none() || w.size == g.size)
                && (w.atime.is_none() || w.atime == g.atime)
                && (w.mtime.is_none() || w.mtime == g.mtime);
            if !same {
                return differ();
            }
            ids.pair(model, w.id.0, g.id.0, Some(g.id.1))
        }
        (Outcome::List(w), Outcome::List(g)) => {
            if !w.keys().eq(g.keys()) {
                return differ();
            }
            for ((name, (kind, id)), (gkind, ino)) in w.iter().zip(g.values()) {
                if kind != gkind {
                    return Err(format!("entry {name:?} is of kind {gkind}, not {kind}"));
                }
                ids.pair(model, *id, *ino, None)?;
            }
            Ok(())
        }
        _ => match &step.op {
            Op::Lseek { fd, offset, whence } if matches!(*whence, libc::SEEK_DATA | libc::SEEK_HOLE) => {
                seek_agrees(model, *fd, *offset, *whence, want, got)
            }
            Op::Fallocate { fd, mode, offset, len }
                if (want, got) == (&Outcome::Done, &Outcome::Fail(libc::ENOSPC))
                    && *mode == libc::FALLOC_FL_KEEP_SIZE
                    && lies_behind(model, *fd, offset.saturating_add(*len)) =>
            {
                Ok(())
            }
            _ if want == got => Ok(()),
            _ => differ(),
        },
    }
}

/// Returns whether what is preallocated up to there may need more space than a small volume has: a
/// file has two ranges, and with a third behind its end two are joined with what lies between
/// (SEMANTICS D4). The model keeps no space, so it has not gone another way.
fn lies_behind(model: &Model, fd: u8, end: u64) -> bool {
    let node = model.handles.get(&fd).and_then(|h| model.inodes.get(&h.id));
    node.is_some_and(|n| matches!(&n.content, Content::File(data) if end > data.size))
}

pub fn on_directory(model: &Model, fd: u8) -> bool {
    model.handles.get(&fd).and_then(|h| model.inodes.get(&h.id)).is_some_and(|n| n.is_dir())
}

/// SEMANTICS D5: data may be where the model has none, never the other way round.
fn seek_agrees(
    model: &Model,
    fd: u8,
    offset: i64,
    whence: i32,
    want: &Outcome,
    got: &Outcome,
) -> Result<(), String> {
    let differ = |why| Err(format!("expected {want:?}, got {got:?}: {why}"));
    let content = model.handles.get(&fd).and_then(|h| model.inodes.get(&h.id)).map(|n| &n.content);
    let Some(crate::model::Content::File(pages)) = content else {
        return if want == got { Ok(()) } else { differ("not a file") };
    };
    let start = offset.max(0) as u64;
    match (want, got) {
        (Outcome::Fail(a), Outcome::Fail(b)) if a == b => Ok(()),
        (Outcome::Fail(_), Outcome::Count(at)) if whence == libc::SEEK_DATA && offset >= 0 => {
            if *at >= start && *at < pages.size { Ok(()) } else { differ("no data there") }
        }
        (Outcome::Count(_), Outcome::Fail(libc::ENXIO)) if whence == libc::SEEK_DATA => {
            if pages.is_zero(start, pages.size) { Ok(()) } else { differ("there is data") }
        }
        (Outcome::Count(_), Outcome::Count(at)) if whence == libc::SEEK_DATA => {
            if *at < start || *at >= pages.size {
                differ("out of range")
            } else if !pages.is_zero(start, *at) {
                differ("data was skipped")
            } else {
                Ok(())
            }
        }
        (Outcome::Count(_), Outcome::Count(at)) => {
            if *at < start || *at > pages.size {
                differ("out of range")
            } else if *at < pages.size && !pages.is_zero(*at, (at / 4096 + 1) * 4096) {
                differ("no hole there")
            } else {
                Ok(())
            }
        }
        _ => differ("kind of answer"),
    }
}

/// A target and the model, side by side.
#[derive(Debug)]
pub struct Pair<T> {
    /// The model.
    pub model: Model,
    /// The target.
    pub target: T,
    /// The pairs of the model's inodes with the target's.
    pub ids: Identities,
    /// Whether a call that fails must fail with the very error of the model, or with any.
    pub exact_errors: bool,
    /// For targets whose handles act with the credentials of their opener, not of who uses them:
    /// who opened which.
    pub openers: Option<BTreeMap<Fd, Who>>,
}

impl<T: Target> Pair<T> {
    /// A fresh target and a fresh model.
    pub fn new(target: T) -> Pair<T> {
        Pair { model: Model::new(), target, ids: Identities::default(), exact_errors: true, openers: None }
    }

    /// One call on both; `Err` if they differ.
    pub fn step(&mut self, step: &Step) -> Result<Outcome, String> {
        let as_opener;
        let mut step = step;
        if let (
            Some(o),
            Op::Write { fd, .. }
            | Op::Pwrite { fd, .. }
            | Op::Ftruncate { fd, .. }
            | Op::Fallocate { fd, .. },
        ) = (&self.openers, &step.op)
            && let Some(who) = o.get(fd)
        {
            as_opener = Step { who: *who, op: step.op.clone() };
            step = &as_opener;
        }
        let want = self.model.apply(step.who, &step.op);
        if let (Some(o), Op::Open { fd, .. }, Outcome::Done) = (&mut self.openers, &step.op, &want) {
            o.insert(*fd, step.who);
        }
        // Where a directory's handle may be moved to is each file system's own business.
        if matches!(step.op, Op::Lseek { fd, .. } if on_directory(&self.model, fd)) {
            return Ok(want);
        }
        let got = self.target.call(step.who, &step.op);
        if got == Outcome::Unsupported {
            return Err(format!("{:?} {:?}: the target can't", step.who, step.op));
        }
        if !self.exact_errors && matches!((&want, &got), (Outcome::Fail(_), Outcome::Fail(_))) {
            return Ok(got);
        }
        let agreed = agree(&self.model, &mut self.ids, step, &want, &got);
        agreed.map(|()| got).map_err(|e| format!("{:?} {:?}: {e}", step.who, step.op))
    }

    /// Compares the whole tree: every listing, every stat, every byte, every link, every attribute.
    pub fn compare_tree(&mut self) -> Result<(), String> {
        let mut todo = vec![(crate::model::ROOT, "/".to_string())];
        while let Some((dir, path)) = todo.pop() {
            for op in [Op::Stat { path: path.as_str().into() }, Op::Readdir { path: path.as_str().into() }] {
                self.step(&op.into())?;
            }
            let here: Vec<_> =
                self.model.entries().filter(|e| e.0 == dir).map(|e| (e.1.clone(), e.2)).collect();
            for (name, id) in here {
                let mut full = path.clone().into_bytes();
                if full.last() != Some(&b'/') {
                    full.push(b'/');
                }
                full.extend_from_slice(&name.0);
                let p = Name(full.clone());
                self.step(&Op::Lstat { path: p.clone() }.into())?;
                match self.model.inodes[&id].content.clone() {
                    crate::model::Content::Dir { .. } => {
                        if let Ok(s) = String::from_utf8(full) {
                            todo.push((id, s));
                        }
                    }
                    crate::model::Content::Symlink(_) => {
                        self.step(&Op::Readlink { path: p }.into())?;
                    }
                    crate::model::Content::File(pages) => {
                        self.step(
                            &Op::Open { fd: 255, path: p.clone(), flags: libc::O_RDONLY, mode: 0 }.into(),
                        )?;
                        for (page, _) in pages.map.iter().take(64) {
                            self.step(&Op::Pread { fd: 255, offset: page * 4096, len: 4096 }.into())?;
                        }
                        self.step(&Op::Close { fd: 255 }.into())?;
                        self.step(&Op::Listxattr { path: p.clone() }.into())?;
                        for name in self.model.inodes[&id].xattrs.keys().cloned().collect::<Vec<_>>() {
                            self.step(&Op::Getxattr { path: p.clone(), name }.into())?;
                        }
                    }
                    crate::model::Content::Other => {}
                }
            }
        }
        Ok(())
    }
}

/// Runs a sequence on a target beside the model, then compares the whole tree.
pub fn run<T: Target>(target: T, steps: &[Step]) -> Result<Pair<T>, String> {
    let mut pair = Pair::new(target);
    run_on(&mut pair, steps)?;
    Ok(pair)
}

/// As [`run`], on a pair that exists.
pub fn run_on<T: Target>(pair: &mut Pair<T>, steps: &[Step]) -> Result<(), String> {
    for (i, s) in steps.iter().enumerate() {
        pair.step(s).map_err(|e| format!("step {i}: {e}"))?;
    }
    pair.compare_tree().map_err(|e| format!("at the end: {e}"))
}

/// The size that is compared: directories have none.
pub fn compared_size(mode: u32, size: u64) -> Option<u64> {
    (mode & libc::S_IFMT != libc::S_IFDIR).then_some(size)
}
