//! A file system whose initial state is chosen when it is looked at.
//!
//! Two calls run against it in both orders and share one [`Init`]: each cell of the initial state
//! (what a name names, how long a file is) is open until the first look, which forks over the few
//! values that can make a difference. New inodes, names and handles are numbered as they appear, so
//! that states that differ only in numbering come once. Values that a call only passes on (a page
//! it reads, a mode it reports) are not chosen at all: they are symbols, and only a comparison of
//! one with a value that the other call wrote forks, into equal and not equal.
//!
//! This model steers the exploration. Whether a test commutes is decided by the reference model
//! (`judge.rs`).

mod compare;
mod order;

use super::call::Call;
use super::choice::Choices;
use std::collections::BTreeMap;

use compare::Same;
use order::{Run, State};

/// Directories, the root included; files; names in one directory; pages of a file.
const DIRS: usize = 3;
const FILES: usize = 3;
const LINKS: usize = 1;
const NAMES: u8 = 3;
const PAGES: u8 = 2;

/// An inode: of the initial state, or made by call 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Id {
    /// The n-th of the initial state.
    Init(u8),
    /// Made by this call.
    New(u8),
}
use Id::*;

/// The object that a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Obj {
    /// A regular file.
    File(Id),
    /// A directory.
    Dir(Id),
    /// A symbolic link: of the initial state to a file's other name, a new one to nothing.
    Link(Id),
}

/// Attributes that one call sets and another reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Kind {
    /// Permission bits.
    Mode,
    /// Owner.
    Owner,
    /// Times.
    Time,
    /// The value of the extended attribute.
    Xattr,
    /// A page.
    Page(u8),
}

/// A value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum V {
    /// An errno.
    E(i32),
    /// A number.
    N(i64),
    /// The initial value of an attribute.
    Init(Obj, Kind),
    /// The initial length of a file.
    Len(u8),
    /// A written value: 0 or 1.
    C(u8),
    /// The clock's.
    Now,
    /// Nothing there: a hole, no attribute.
    Nothing,
    /// An inode.
    Is(Obj),
    /// Names more or less than at first.
    Links(Obj, i32),
    /// A name and what it names (in a list of changes).
    Name(Id, u8, Option<Obj>),
}

/// The arguments of one call.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Args {
    /// Directory and name.
    pub at: Option<(u8, u8)>,
    /// The second path.
    pub to: Option<(u8, u8)>,
    /// A handle.
    pub fd: Option<u8>,
    /// A value to write, offset in pages, or variant.
    pub value: u8,
    /// Offset in pages.
    pub page: u8,
    /// Which form of the call.
    pub form: u8,
}

/// A directory of the initial state.
#[derive(Clone, Default, Debug)]
pub struct DirInit {
    /// Parent and name; `None` as the name for one that no call can name.
    pub place: Option<(u8, Option<u8>)>,
    /// Whether it holds something besides what was chosen.
    pub more: Option<bool>,
}

/// A file of the initial state.
#[derive(Clone, Default, Debug)]
pub struct FileInit {
    /// Pages.
    pub len: Option<u8>,
    /// Whether it has a name that no call can name.
    pub extra: Option<bool>,
    /// Whether it has the extended attribute.
    pub xattr: Option<bool>,
    /// Whether it was written to since it became durable.
    pub dirty: Option<bool>,
}

/// A handle of the initial state.
#[derive(Clone, Default, Debug)]
pub struct FdInit {
    /// The file.
    pub file: u8,
    /// Its offset in pages.
    pub offset: Option<u8>,
    /// The call that uses it first: its lane opened the file.
    pub by: u8,
    /// Opened with O_APPEND.
    pub append: bool,
    /// A directory's handle, then `file` is a directory.
    pub dir: bool,
}

/// The choices made so far for the initial state.
#[derive(Clone, Debug)]
pub struct Init {
    /// The root first.
    pub dirs: Vec<DirInit>,
    /// Files.
    pub files: Vec<FileInit>,
    /// Symbolic links: the files they lead to.
    pub links: Vec<u8>,
    /// Names looked at.
    pub entries: BTreeMap<(u8, u8), Option<Obj>>,
    /// Handles.
    pub fds: Vec<FdInit>,
    /// Comparisons of an initial value with a written one.
    pub equal: BTreeMap<(Obj, Kind, u8), bool>,
    names: BTreeMap<u8, u8>,
}

/// Not a test: something this exploration leaves out (writes behind the end of a file).
#[derive(Debug)]
pub struct Pruned;
type Step<T> = Result<T, Pruned>;

impl Init {
    fn new() -> Init {
        Init {
            dirs: vec![DirInit::default()],
            files: vec![],
            links: vec![],
            entries: BTreeMap::new(),
            fds: vec![],
            equal: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    fn may_hold(&self, mut parent: u8, child: u8) -> bool {
        loop {
            if parent == child {
                return false;
            }
            match self.dirs[parent as usize].place {
                Some((p, _)) => parent = p,
                None => return true,
            }
        }
    }

    fn entry(&mut self, c: &mut Choices, d: u8, n: u8) -> Option<Obj> {
        if let Some(e) = self.entries.get(&(d, n)) {
            return *e;
        }
        let mut options = vec![None];
        if self.dirs[d as usize].more != Some(false) {
            let files = (self.files.len() + 1).min(FILES) as u8;
            options.extend((0..files).map(|f| Some(Obj::File(Init(f)))));
            let dirs = self.dirs.len() as u8;
            let free = |x: &u8| self.dirs[*x as usize].place.is_none() && self.may_hold(d, *x);
            options.extend((1..dirs).filter(free).map(|x| Some(Obj::Dir(Init(x)))));
            if self.dirs.len() < DIRS {
                options.push(Some(Obj::Dir(Init(dirs))));
            }
            let links = (self.links.len() + 1).min(LINKS) as u8;
            options.extend((0..links).map(|l| Some(Obj::Link(Init(l)))));
        }
        let e = options[c.choose(options.len() as u32) as usize];
        match e {
            Some(Obj::File(Init(f))) if f as usize == self.files.len() => {
                self.files.push(FileInit::default())
            }
            Some(Obj::Dir(Init(x))) => {
                if x as usize == self.dirs.len() {
                    self.dirs.push(DirInit::default());
                }
                self.dirs[x as usize].place = Some((d, Some(n)));
            }
            Some(Obj::Link(Init(l))) if l as usize == self.links.len() => {
                let f = self.file(c, |f| f.extra != Some(false));
                self.files[f as usize].extra = Some(true);
                self.links.push(f);
            }
            _ => {}
        }
        self.entries.insert((d, n), e);
        e
    }

    /// A file: one that is known and fits, or another one.
    fn file(&mut self, c: &mut Choices, fits: impl Fn(&FileInit) -> bool) -> u8 {
        let mut options: Vec<u8> =
            (0..self.files.len() as u8).filter(|f| fits(&self.files[*f as usize])).collect();
        if self.files.len() < FILES || options.is_empty() {
            options.push(self.files.len() as u8);
        }
        let f = options[c.choose(options.len() as u32) as usize];
        if f as usize == self.files.len() {
            self.files.push(FileInit::default());
        }
        f
    }

    fn len(&mut self, c: &mut Choices, f: u8) -> u8 {
        let slot = &mut self.files[f as usize].len;
        *slot.get_or_insert_with(|| c.choose(u32::from(PAGES) + 1) as u8)
    }

    fn flag(c: &mut Choices, slot: &mut Option<bool>) -> bool {
        *slot.get_or_insert_with(|| c.choose(2) == 1)
    }

    fn offset(&mut self, c: &mut Choices, fd: u8) -> u8 {
        let slot = &mut self.fds[fd as usize].offset;
        *slot.get_or_insert_with(|| c.choose(u32::from(PAGES) + 1) as u8)
    }

    fn parent(&mut self, c: &mut Choices, d: u8) -> u8 {
        if let Some((p, _)) = self.dirs[d as usize].place {
            return p;
        }
        let fits = |p: &u8| self.may_hold(*p, d) && self.dirs[*p as usize].more != Some(false);
        let options: Vec<u8> = (0..self.dirs.len() as u8).filter(|p| *p != d && fits(p)).collect();
        let p = options[c.choose(options.len() as u32) as usize];
        self.dirs[d as usize].place = Some((p, None));
        p
    }
}
/// A leaf: an initial state, arguments, and whether this model thinks that the calls commute.
#[derive(Debug)]
pub struct Leaf {
    /// The choices made for the initial state.
    pub init: Init,
    /// The calls' arguments.
    pub args: [Args; 2],
    /// Results and states are equal in both orders.
    pub commutes: bool,
}

/// Runs a pair once with the choices given; `None` for what is left out.
pub fn explore(c: &mut Choices, calls: (Call, Call)) -> Option<Leaf> {
    let mut init = Init::new();
    let a = arguments(c, &mut init, calls.0, 0);
    // In this order the first call looks at the state before the second one's arguments are chosen.
    let mut run = Run { c, init: &mut init, s: State::default() };
    let ra = run.call(calls.0, &a, 0).ok()?;
    let s = run.s;
    let b = arguments(c, &mut init, calls.1, 1);
    let mut run = Run { c, init: &mut init, s };
    let rb = run.call(calls.1, &b, 1).ok()?;
    let first = run.s;
    let mut run = Run { c, init: &mut init, s: State::default() };
    let rb2 = run.call(calls.1, &b, 1).ok()?;
    let ra2 = run.call(calls.0, &a, 0).ok()?;
    let second = run.s;
    let mut same = Same { c, init: &mut init };
    let commutes = same.values(&ra, &ra2) && same.values(&rb, &rb2) && same.states(&first, &second);
    Some(Leaf { init, args: [a, b], commutes })
}

fn path(c: &mut Choices, init: &mut Init) -> (u8, u8) {
    let d = directory(c, init);
    let used = init.names.entry(d).or_default();
    let n = c.choose(u32::from((*used + 1).min(NAMES))) as u8;
    *used = (*used).max(n + 1);
    (d, n)
}

fn directory(c: &mut Choices, init: &mut Init) -> u8 {
    let d = c.choose((init.dirs.len() + 1).min(DIRS) as u32) as u8;
    if d as usize == init.dirs.len() {
        init.dirs.push(DirInit::default());
    }
    d
}

fn handle(c: &mut Choices, init: &mut Init, who: u8, append: bool, dir: bool) -> u8 {
    let mut options: Vec<u8> = (0..init.fds.len() as u8)
        .filter(|f| (init.fds[*f as usize].append, init.fds[*f as usize].dir) == (append, dir))
        .collect();
    options.push(init.fds.len() as u8);
    let fd = options[c.choose(options.len() as u32) as usize];
    if fd as usize == init.fds.len() {
        let file = if dir { directory(c, init) } else { init.file(c, |_| true) };
        init.fds.push(FdInit { file, offset: None, by: who, append, dir });
    }
    fd
}

fn arguments(c: &mut Choices, init: &mut Init, call: Call, who: u8) -> Args {
    use Call::*;
    let mut a = Args::default();
    match call {
        Link | Rename => {
            a.at = Some(path(c, init));
            a.to = Some(path(c, init));
        }
        Readdir => a.at = Some((directory(c, init), 0)),
        FsyncDir => a.fd = Some(handle(c, init, who, false, true)),
        Append => a.fd = Some(handle(c, init, who, true, false)),
        Fstat | Read | Write | Pread | Pwrite | Ftruncate | Lseek | Close | Fsync | Fdatasync => {
            a.fd = Some(handle(c, init, who, false, false));
        }
        Sync | Checkpoint => {}
        _ => a.at = Some(path(c, init)),
    }
    match call {
        Open | Create | Setxattr => a.form = c.choose(3) as u8,
        Lseek => a.form = c.choose(2) as u8,
        _ => {}
    }
    if matches!(call, Pread | Pwrite | Ftruncate | Truncate) || call == Lseek && a.form == 0 {
        a.page = c.choose(u32::from(PAGES) + u32::from(matches!(call, Ftruncate | Truncate | Lseek))) as u8;
    }
    if matches!(call, Chmod | Chown | Utimens | Setxattr | Write | Append | Pwrite) && who == 1 {
        a.value = c.choose(2) as u8;
    }
    a
}
