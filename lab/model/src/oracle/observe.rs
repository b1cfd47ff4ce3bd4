//! Looks at everything a recovered volume shows.

use super::{Violation, broken};
use crate::op::{Attributes, Identity, Name, Op, Outcome, Who};
use crate::target::Target;
use std::collections::BTreeMap;

/// An inode as found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// One path that leads to it.
    pub path: Name,
    /// Type and permission bits.
    pub mode: u32,
    /// Link count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Modification time.
    pub mtime: i64,
    /// A symbolic link's target.
    pub target: Name,
    /// A regular file's content.
    pub bytes: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
}

impl Found {
    /// Returns whether it is as the root of a new volume is; with `apart` but for the rights, which
    /// are judged by themselves.
    pub(super) fn is_new_root(&self, apart: bool) -> bool {
        let rights = self.mode == libc::S_IFDIR | 0o755 && (self.uid, self.gid) == (0, 0);
        (apart || rights) && self.xattrs.keys().all(|name| apart && super::rights::is_right(name, self.mode))
    }
    fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// An entry as found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The directory.
    pub dir: Identity,
    /// The name.
    pub name: Name,
    /// The inode that it names.
    pub inode: Identity,
}

/// Everything found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// The root directory.
    pub root: Identity,
    /// All inodes that have a name, and the root.
    pub inodes: BTreeMap<Identity, Found>,
    /// All entries.
    pub entries: Vec<Entry>,
}

/// The longest file that is read whole.
const READ_MAX: u64 = 16 << 20;
/// Deeper paths than this mean a cycle.
const DEPTH_MAX: usize = 64;

/// Reads the whole tree of a target. An error is a violation too: what recovery leaves must be
/// readable.
pub fn observe(t: &mut dyn Target) -> Result<Observed, Violation> {
    let root = attributes(t, &"/".into())?;
    let mut o = Observed { root: root.id, inodes: BTreeMap::new(), entries: Vec::new() };
    let found = read(t, &"/".into(), &root)?;
    o.inodes.insert(root.id, found);
    let mut todo = vec![(root.id, Vec::new(), 0)];
    while let Some((dir, path, depth)) = todo.pop() {
        let at = if path.is_empty() { Name::from("/") } else { Name(path.clone()) };
        if depth > DEPTH_MAX {
            return Err(broken("C5", format!("{at:?}: a cycle")));
        }
        let Outcome::List(list) = ask(t, Op::Readdir { path: at })? else { continue };
        for (name, (kind, ino)) in list {
            let mut full = path.clone();
            full.push(b'/');
            full.extend_from_slice(&name.0);
            let full = Name(full);
            let a = attributes(t, &full)?;
            if a.id.0 != ino || (a.mode >> 12) as u8 != kind {
                return Err(broken(
                    "C5",
                    format!("{full:?}: the entry says inode {ino} of kind {kind}, stat {a:?}"),
                ));
            }
            o.entries.push(Entry { dir, name, inode: a.id });
            let is_new = !o.inodes.contains_key(&a.id);
            if is_new {
                let found = read(t, &full, &a)?;
                let is_dir = found.is_dir();
                o.inodes.insert(a.id, found);
                if is_dir {
                    todo.push((a.id, full.0, depth + 1));
                }
            }
        }
    }
    Ok(o)
}

/// Reads one inode completely.
pub fn one(t: &mut dyn Target, path: &Name) -> Result<Found, Violation> {
    let a = attributes(t, path)?;
    read(t, path, &a)
}

fn ask(t: &mut dyn Target, op: Op) -> Result<Outcome, Violation> {
    match t.call(Who::Root, &op) {
        Outcome::Fail(e) => {
            let name = crate::op::errno_name(e);
            Err(broken("C5", format!("{op:?} failed with {name} after recovery")))
        }
        o => Ok(o),
    }
}

fn attributes(t: &mut dyn Target, path: &Name) -> Result<Attributes, Violation> {
    match ask(t, Op::Lstat { path: path.clone() })? {
        Outcome::Attr(a) => Ok(a),
        o => Err(broken("C5", format!("lstat of {path:?} answered {o:?}"))),
    }
}

fn read(t: &mut dyn Target, path: &Name, a: &Attributes) -> Result<Found, Violation> {
    let mut f = Found {
        path: path.clone(),
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size.unwrap_or(0),
        mtime: a.mtime.unwrap_or(0),
        target: Name::default(),
        bytes: Vec::new(),
        xattrs: BTreeMap::new(),
    };
    let kind = a.mode & libc::S_IFMT;
    match kind {
        libc::S_IFLNK => {
            if let Outcome::Bytes(b) = ask(t, Op::Readlink { path: path.clone() })? {
                f.target = Name(b);
            }
            return Ok(f);
        }
        libc::S_IFREG => {
            if f.size > READ_MAX {
                return Err(broken("F2", format!("{path:?} has {} bytes", f.size)));
            }
            ask(t, Op::Open { fd: 250, path: path.clone(), flags: libc::O_RDONLY, mode: 0 })?;
            let bytes = ask(t, Op::Pread { fd: 250, offset: 0, len: f.size as u32 });
            ask(t, Op::Close { fd: 250 })?;
            if let Outcome::Bytes(b) = bytes? {
                f.bytes = b;
            }
            if f.bytes.len() as u64 != f.size {
                let n = f.bytes.len();
                return Err(broken("F1", format!("{path:?} has {} bytes, but {n} could be read", f.size)));
            }
        }
        _ => {}
    }
    if let Outcome::Keys(keys) = ask(t, Op::Listxattr { path: path.clone() })? {
        for name in keys {
            if let Outcome::Bytes(b) = ask(t, Op::Getxattr { path: path.clone(), name: name.clone() })? {
                f.xattrs.insert(name, b);
            }
        }
    }
    Ok(f)
}

impl Observed {
    /// C5, as far as the tree alone shows it.
    pub fn sound(&self) -> Result<(), Violation> {
        let mut names: BTreeMap<Identity, u32> = BTreeMap::new();
        let mut subdirs: BTreeMap<Identity, u32> = BTreeMap::new();
        for e in &self.entries {
            *names.entry(e.inode).or_default() += 1;
            if self.inodes[&e.inode].is_dir() {
                *subdirs.entry(e.dir).or_default() += 1;
            }
        }
        for (id, f) in &self.inodes {
            let (n, subs) = (names.get(id).copied().unwrap_or(0), subdirs.get(id).copied().unwrap_or(0));
            if f.is_dir() {
                let want = if *id == self.root { 0 } else { 1 };
                if n != want {
                    return Err(broken("C5", format!("directory {:?} has {n} names", f.path)));
                }
                if f.nlink != 2 + subs {
                    return Err(broken(
                        "C5",
                        format!(
                            "directory {:?} has link count {}, with {subs} subdirectories",
                            f.path, f.nlink
                        ),
                    ));
                }
            } else if f.nlink != n {
                return Err(broken("C5", format!("{:?} has link count {} and {n} names", f.path, f.nlink)));
            }
        }
        Ok(())
    }
}

impl Observed {
    /// The same tree with all times 0.
    pub fn without_times(&self) -> Observed {
        let mut o = self.clone();
        o.inodes.values_mut().for_each(|f| f.mtime = 0);
        o.entries.sort_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name)));
        o
    }

    /// Takes out the file at a path of the root directory.
    pub fn take(&mut self, path: &str) -> Option<Found> {
        let i = self.entries.iter().position(|e| e.dir == self.root && e.name.0 == path.as_bytes()[1..])?;
        let e = self.entries.remove(i);
        self.inodes.remove(&e.inode)
    }

    /// Describes in words how another tree differs.
    pub fn difference(&self, other: &Observed) -> String {
        let mut out = Vec::new();
        for (id, f) in &self.inodes {
            match other.inodes.get(id) {
                None => out.push(format!("{:?} (inode {id:?}) is gone", f.path)),
                Some(g) if (f.size, f.mode, f.nlink) != (g.size, g.mode, g.nlink) => out.push(format!(
                    "{:?}: size {} mode {:o} nlink {}, now size {} mode {:o} nlink {}",
                    f.path, f.size, f.mode, f.nlink, g.size, g.mode, g.nlink
                )),
                Some(g) if f.bytes != g.bytes => out.push(format!("{:?} has other bytes", f.path)),
                Some(g) if f.xattrs != g.xattrs => out.push(format!("{:?} has other attributes", f.path)),
                _ => {}
            }
        }
        for (id, f) in other.inodes.iter().filter(|(id, _)| !self.inodes.contains_key(id)) {
            out.push(format!("{:?} (inode {id:?}) is new", f.path));
        }
        for e in self.entries.iter().filter(|e| !other.entries.contains(e)) {
            out.push(format!("entry {:?} is gone or names another inode", e.name));
        }
        out.join("; ")
    }
}
