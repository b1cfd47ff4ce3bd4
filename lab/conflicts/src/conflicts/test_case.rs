//! From a leaf of the exploration to calls that can be made: the set-up, the handles, the two
//! calls.

use super::call::Call;
use super::lazy::{Args, Id::Init, Kind, Leaf, Obj};
use lanefs_lab_model::op::{Name, Op, Tagged, When};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// Bytes of a page, as offsets count.
const PAGE: u64 = 4096;
const MODES: [u32; 2] = [0o600, 0o640];
const OWNERS: [u32; 2] = [1000, 1001];
const TIMES: [i64; 3] = [1_000_000_000_000_000_000, 1_100_000_000_000_000_000, 1_200_000_000_000_000_000];
/// An access time that relatime leaves alone: the files were read since they were last written.
const ATIME: i64 = 4_000_000_000_000_000_000;
/// The bytes of a page or attribute that no call wrote.
const OTHER: u32 = 9;

/// Names that lie in different leaves of a directory, so that two of them share nothing by chance.
#[derive(Clone, Debug)]
pub struct Names(pub Vec<String>);

impl Names {
    /// The number of names that are needed.
    pub const NEEDED: usize = 14;

    fn free(&self, n: u8) -> &str {
        &self.0[n as usize]
    }
    /// The directory with names that no call uses.
    fn hidden(&self) -> &str {
        &self.0[3]
    }
    fn unplaced(&self, d: u8) -> &str {
        &self.0[3 + d as usize]
    }
    fn child(&self) -> &str {
        &self.0[6]
    }
    fn inode(&self, f: u8) -> &str {
        &self.0[7 + f as usize]
    }
    /// A lane's own directory for the warm phase.
    pub fn own(&self, lane: usize) -> &str {
        &self.0[10 + lane]
    }
    /// Names in it.
    pub fn scratch(&self, n: usize) -> &str {
        &self.0[12 + n]
    }
}

/// Calls on one lane.
pub type Phase = (usize, Vec<Op>);

/// One test.
#[derive(Clone, Debug)]
pub struct Test {
    /// Which calls.
    pub calls: (Call, Call),
    /// Its number among the tests of the pair.
    pub number: usize,
    /// The calls made before, and the lane of each.
    pub setup: Vec<Phase>,
    /// The two calls.
    pub ops: [Op; 2],
}

/// The lane of the set-up.
pub const SETUP: usize = 2;

struct Builder<'a> {
    leaf: &'a Leaf,
    names: &'a Names,
}

fn join(dir: &str, name: &str) -> String {
    if dir == "/" { format!("/{name}") } else { format!("{dir}/{name}") }
}

impl Builder<'_> {
    fn dir(&self, d: u8) -> String {
        match self.leaf.init.dirs[d as usize].place {
            _ if d == 0 => "/".into(),
            Some((p, Some(n))) => join(&self.dir(p), self.names.free(n)),
            Some((p, None)) => join(&self.dir(p), self.names.unplaced(d)),
            None => join("/", self.names.unplaced(d)),
        }
    }

    fn path(&self, at: (u8, u8)) -> Name {
        join(&self.dir(at.0), self.names.free(at.1)).into()
    }

    fn hidden(&self, f: u8) -> String {
        format!("/{}/{}", self.names.hidden(), self.names.inode(f))
    }

    /// The value of an attribute that a comparison chose, if one did.
    fn chosen(&self, o: Obj, k: Kind) -> Option<usize> {
        (0..2).find(|v| self.leaf.init.equal.get(&(o, k, *v)) == Some(&true)).map(usize::from)
    }

    fn attributes(&self, o: Obj, path: &str, ops: &mut Vec<Op>) {
        let path = Name::from(path);
        if let Some(v) = self.chosen(o, Kind::Mode) {
            ops.push(Op::Chmod { path: path.clone(), mode: MODES[v] });
        }
        if let Some(v) = self.chosen(o, Kind::Owner) {
            ops.push(Op::Chown { path: path.clone(), uid: Some(OWNERS[v]), gid: None, follow: true });
        }
        let mtime = When::At(TIMES[self.chosen(o, Kind::Time).unwrap_or(2)]);
        ops.push(Op::Utimens { path, atime: When::At(ATIME), mtime });
    }

    fn setup(&self) -> Vec<Phase> {
        let (init, names) = (&self.leaf.init, self.names);
        let mut ops = Vec::new();
        for n in [names.hidden(), names.own(0), names.own(1)] {
            ops.push(Op::Mkdir { path: join("/", n).into(), mode: 0o755 });
        }
        // Parents first.
        let mut dirs: Vec<(String, u8)> = (1..init.dirs.len() as u8).map(|d| (self.dir(d), d)).collect();
        dirs.sort_by_key(|d| d.0.matches('/').count());
        for (path, _) in &dirs {
            ops.push(Op::Mkdir { path: path.as_str().into(), mode: 0o755 });
        }
        let mut orphans = Vec::new();
        for (f, file) in init.files.iter().enumerate() {
            let f = f as u8;
            let me = Obj::File(Init(f));
            let hidden = self.hidden(f);
            let path = Name::from(hidden.as_str());
            ops.push(Op::Open {
                fd: 100,
                path: path.clone(),
                flags: libc::O_CREAT | libc::O_RDWR,
                mode: 0o644,
            });
            for p in 0..file.len.unwrap_or(1) {
                let tag = self.chosen(me, Kind::Page(p)).map_or(OTHER, |v| v as u32 + 1);
                let data = Tagged { tag, len: PAGE as u32 };
                ops.push(Op::Pwrite { fd: 100, offset: u64::from(p) * PAGE, data });
            }
            ops.push(Op::Close { fd: 100 });
            let value = self.chosen(me, Kind::Xattr);
            if file.xattr == Some(true) || value.is_some() {
                let tag = value.map_or(OTHER, |v| v as u32 + 1);
                let value = Tagged { tag, len: 16 };
                ops.push(Op::Setxattr { path: path.clone(), name: "user.k".into(), value, flags: 0 });
            }
            let named: Vec<_> = init.entries.iter().filter(|e| *e.1 == Some(me)).map(|e| *e.0).collect();
            for at in &named {
                ops.push(Op::Link { old: path.clone(), new: self.path(*at) });
            }
            self.attributes(me, &hidden, &mut ops);
            if !file.extra.unwrap_or(named.is_empty()) {
                // Opened by this name first if it has no other.
                let remove = Op::Unlink { path };
                if named.is_empty() { orphans.push(remove) } else { ops.push(remove) }
            }
        }
        for (at, e) in &init.entries {
            if let Some(Obj::Link(Init(l))) = e {
                let target = self.hidden(init.links[*l as usize]).into();
                ops.push(Op::Symlink { target, path: self.path(*at) });
            }
        }
        for (d, dir) in init.dirs.iter().enumerate() {
            if dir.more == Some(true) {
                let path = join(&self.dir(d as u8), names.child()).into();
                ops.push(Op::Mknod { path, mode: libc::S_IFREG | 0o644 });
            }
        }
        for (path, d) in dirs.iter().chain([&("/".to_string(), 0)]) {
            self.attributes(Obj::Dir(Init(*d)), path, &mut ops);
        }
        let mut phases = vec![(SETUP, ops)];
        for lane in 0..2 {
            let mut ops = Vec::new();
            for (fd, h) in init.fds.iter().enumerate().filter(|h| usize::from(h.1.by) == lane) {
                let (path, flags) = if h.dir {
                    (self.dir(h.file), libc::O_RDONLY | libc::O_DIRECTORY)
                } else {
                    let named = init.entries.iter().find(|e| *e.1 == Some(Obj::File(Init(h.file))));
                    let file = &init.files[h.file as usize];
                    let path = match named {
                        Some((at, _)) if file.extra != Some(true) => {
                            let p = self.path(*at);
                            String::from_utf8_lossy(&p.0).into_owned()
                        }
                        _ => self.hidden(h.file),
                    };
                    (path, libc::O_RDWR | if h.append { libc::O_APPEND } else { 0 })
                };
                ops.push(Op::Open { fd: fd as u8, path: path.into(), flags, mode: 0 });
                if let Some(o) = h.offset.filter(|o| *o > 0) {
                    ops.push(Op::Lseek {
                        fd: fd as u8,
                        offset: i64::from(o) * PAGE as i64,
                        whence: libc::SEEK_SET,
                    });
                }
            }
            phases.push((lane, ops));
        }
        orphans.extend([Op::Sync, Op::Checkpoint]);
        phases.push((SETUP, orphans));
        // What is dirty was written by the lane that has it open.
        for (fd, h) in init.fds.iter().enumerate().filter(|h| !h.1.dir) {
            let file = &init.files[h.file as usize];
            if file.dirty == Some(true) && file.len != Some(0) {
                let tag = self.chosen(Obj::File(Init(h.file)), Kind::Page(0)).map_or(OTHER, |v| v as u32 + 1);
                let data = Tagged { tag, len: PAGE as u32 };
                phases.push((usize::from(h.by), vec![Op::Pwrite { fd: fd as u8, offset: 0, data }]));
            }
        }
        phases.retain(|p| !p.1.is_empty());
        phases
    }

    fn op(&self, call: Call, a: &Args, who: usize) -> Op {
        let at = || a.at.map(|at| self.path(at)).unwrap_or_default();
        let to = || a.to.map(|to| self.path(to)).unwrap_or_default();
        let fd = a.fd.unwrap_or(0);
        let offset = u64::from(a.page) * PAGE;
        let data = Tagged { tag: u32::from(a.value) + 1, len: PAGE as u32 };
        let slot = 10 + who as u8;
        match call {
            Call::Open => {
                let flags = [libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR | libc::O_TRUNC][a.form as usize];
                Op::Open { fd: slot, path: at(), flags, mode: 0 }
            }
            Call::Create => {
                let flags = libc::O_RDWR | libc::O_CREAT | [0, libc::O_EXCL, libc::O_TRUNC][a.form as usize];
                Op::Open { fd: slot, path: at(), flags, mode: 0o644 }
            }
            Call::Link => Op::Link { old: at(), new: to() },
            Call::Unlink => Op::Unlink { path: at() },
            Call::Rename => Op::Rename { old: at(), new: to(), flags: 0 },
            Call::Symlink => Op::Symlink { target: "/missing/x".into(), path: at() },
            Call::Readlink => Op::Readlink { path: at() },
            Call::Mkdir => Op::Mkdir { path: at(), mode: 0o755 },
            Call::Rmdir => Op::Rmdir { path: at() },
            Call::Readdir => Op::Readdir { path: self.dir(a.at.unwrap_or_default().0).into() },
            Call::Stat => Op::Stat { path: at() },
            Call::Chmod => Op::Chmod { path: at(), mode: MODES[a.value as usize] },
            Call::Chown => {
                Op::Chown { path: at(), uid: Some(OWNERS[a.value as usize]), gid: None, follow: true }
            }
            Call::Utimens => {
                let mtime = When::At(TIMES[a.value as usize]);
                Op::Utimens { path: at(), atime: When::At(ATIME), mtime }
            }
            Call::Truncate => Op::Truncate { path: at(), size: offset },
            Call::Setxattr => {
                let flags = [0, libc::XATTR_CREATE, libc::XATTR_REPLACE][a.form as usize];
                let value = Tagged { tag: data.tag, len: 16 };
                Op::Setxattr { path: at(), name: "user.k".into(), value, flags }
            }
            Call::Getxattr => Op::Getxattr { path: at(), name: "user.k".into() },
            Call::Access => Op::Access { path: at(), mask: libc::R_OK },
            Call::Fstat => Op::Fstat { fd },
            Call::Read => Op::Read { fd, len: PAGE as u32 },
            Call::Write | Call::Append => Op::Write { fd, data },
            Call::Pread => Op::Pread { fd, offset, len: PAGE as u32 },
            Call::Pwrite => Op::Pwrite { fd, offset, data },
            Call::Ftruncate => Op::Ftruncate { fd, size: offset },
            Call::Lseek if a.form == 1 => Op::Lseek { fd, offset: 0, whence: libc::SEEK_END },
            Call::Lseek => Op::Lseek { fd, offset: offset as i64, whence: libc::SEEK_SET },
            Call::Close => Op::Close { fd },
            Call::Fsync | Call::FsyncDir => Op::Fsync { fd },
            Call::Fdatasync => Op::Fdatasync { fd },
            Call::Sync => Op::Sync,
            Call::Checkpoint => Op::Checkpoint,
        }
    }
}

/// The test of a leaf.
pub fn build(leaf: &Leaf, calls: (Call, Call), number: usize, names: &Names) -> Test {
    let b = Builder { leaf, names };
    let ops = [b.op(calls.0, &leaf.args[0], 0), b.op(calls.1, &leaf.args[1], 1)];
    Test { calls, number, setup: b.setup(), ops }
}

/// A description of a leaf but for the numbering of everything: equal for two leaves of one class,
/// seen from the call `order[0]`.
struct Signature<'a> {
    leaf: &'a Leaf,
    order: [usize; 2],
    out: Vec<u32>,
    labels: BTreeMap<(u8, u8, u8), u32>,
    counts: BTreeMap<(u8, u8), u32>,
    queue: VecDeque<Obj>,
}

const DIR: u8 = 0;
const NAME: u8 = 1;
const FILE: u8 = 2;
const LINK: u8 = 3;
const FD: u8 = 4;
const VALUE: u8 = 5;

impl Signature<'_> {
    /// The label of thing `n` of a kind (names: within a directory); new ones are numbered as they
    /// come.
    fn label(&mut self, kind: u8, within: u8, n: u8) -> u32 {
        if let Some(l) = self.labels.get(&(kind, within, n)) {
            return *l;
        }
        let count = self.counts.entry((kind, within)).or_default();
        let l = *count;
        *count += 1;
        self.labels.insert((kind, within, n), l);
        match kind {
            DIR => self.queue.push_back(Obj::Dir(Init(n))),
            FILE => self.queue.push_back(Obj::File(Init(n))),
            LINK => self.queue.push_back(Obj::Link(Init(n))),
            _ => {}
        }
        l
    }

    fn path(&mut self, at: Option<(u8, u8)>) {
        let Some((d, n)) = at else { return self.out.push(90) };
        let l = self.label(DIR, 0, d);
        self.out.push(l);
        let l = self.label(NAME, d, n);
        self.out.push(l);
    }

    fn obj(&mut self, o: Option<Obj>) {
        let (kind, n) = match o {
            Some(Obj::Dir(Init(n))) => (DIR, n),
            Some(Obj::File(Init(n))) => (FILE, n),
            Some(Obj::Link(Init(n))) => (LINK, n),
            _ => return self.out.push(91),
        };
        let l = self.label(kind, 0, n);
        self.out.extend([u32::from(kind) + 100, l]);
    }

    fn run(mut self) -> Vec<u32> {
        let init = &self.leaf.init;
        // The root is itself in every numbering.
        self.label(DIR, 0, 0);
        for i in self.order {
            let a = &self.leaf.args[i];
            self.path(a.at);
            self.path(a.to);
            if let Some(fd) = a.fd {
                let new = !self.labels.contains_key(&(FD, 0, fd));
                let l = self.label(FD, 0, fd);
                self.out.push(l);
                if new {
                    let h = &init.fds[fd as usize];
                    let o = if h.dir { Obj::Dir(Init(h.file)) } else { Obj::File(Init(h.file)) };
                    self.obj(Some(o));
                    self.out.extend([h.offset.map_or(92, u32::from), u32::from(h.append)]);
                }
            }
            let v = self.label(VALUE, 0, a.value);
            self.out.extend([u32::from(a.page), u32::from(a.form), v]);
        }
        while let Some(o) = self.queue.pop_front() {
            let opt = |b: Option<bool>| b.map_or(93, u32::from);
            match o {
                Obj::Dir(Init(d)) => {
                    let dir = &init.dirs[d as usize];
                    self.out.push(opt(dir.more));
                    if let Some((p, n)) = dir.place {
                        self.path(n.map(|n| (p, n)));
                        let l = self.label(DIR, 0, p);
                        self.out.push(l);
                    }
                    let mut here: Vec<_> =
                        init.entries.iter().filter(|e| e.0.0 == d).map(|e| (e.0.1, *e.1)).collect();
                    for e in &here {
                        self.label(NAME, d, e.0);
                    }
                    here.sort_by_key(|e| self.labels.get(&(NAME, d, e.0)).copied());
                    for (n, e) in here {
                        let l = self.label(NAME, d, n);
                        self.out.push(l);
                        self.obj(e);
                    }
                }
                Obj::File(Init(f)) => {
                    let file = &init.files[f as usize];
                    self.out.extend([
                        file.len.map_or(94, u32::from),
                        opt(file.extra),
                        opt(file.xattr),
                        opt(file.dirty),
                    ]);
                }
                Obj::Link(Init(l)) => self.obj(Some(Obj::File(Init(init.links[l as usize])))),
                _ => {}
            }
            let mut equal: Vec<_> =
                init.equal.iter().filter(|e| e.0.0 == o).map(|e| (e.0.1, e.0.2, *e.1)).collect();
            for e in &equal {
                self.label(VALUE, 0, e.1);
            }
            equal.sort_by_key(|e| (e.0, self.labels.get(&(VALUE, 0, e.1)).copied()));
            for (k, v, e) in equal {
                let l = self.label(VALUE, 0, v);
                let k = match k {
                    Kind::Mode => 0,
                    Kind::Owner => 1,
                    Kind::Time => 2,
                    Kind::Xattr => 3,
                    Kind::Page(p) => 4 + u32::from(p),
                };
                self.out.extend([k, l, u32::from(e)]);
            }
        }
        self.out
    }
}

/// Keeps one leaf of each class: two calls of one kind may be exchanged.
#[derive(Debug, Default)]
pub struct Classes(HashSet<Vec<u32>>);

impl Classes {
    /// Returns whether a leaf's class is seen for the first time.
    pub fn is_new(&mut self, leaf: &Leaf, calls: (Call, Call)) -> bool {
        let of = |order| {
            let s = Signature {
                leaf,
                order,
                out: vec![],
                labels: BTreeMap::new(),
                counts: BTreeMap::new(),
                queue: VecDeque::new(),
            };
            s.run()
        };
        let mut key = of([0, 1]);
        if calls.0 == calls.1 {
            key = key.min(of([1, 0]));
        }
        self.0.insert(key)
    }
}
