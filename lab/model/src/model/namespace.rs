//! Names: open, create, link, remove, rename, list.

use super::path::{Last, Place};
use super::*;

/// The most names of one file.
const LINK_MAX: u32 = 65_000;
/// renameat2's flags.
pub const RENAME_NOREPLACE: u32 = 1;
/// renameat2's flags.
pub const RENAME_EXCHANGE: u32 = 2;
pub const RENAME_WHITEOUT: u32 = 4;

impl Model {
    fn set_entry(&mut self, dir: Id, name: &Name, new: Option<Id>) {
        let Some(n) = self.inodes.get_mut(&dir) else { return };
        n.mtime = Time::Clock;
        let Content::Dir { entries, .. } = &mut n.content else { return };
        let old = match new {
            Some(id) => entries.insert(name.clone(), id),
            None => entries.remove(name),
        };
        self.changes.push(Change::Entry { dir, name: name.clone(), old, new });
        for (id, delta) in [(old, -1i32), (new, 1)] {
            if let Some(n) = id.and_then(|id| self.inodes.get_mut(&id)) {
                n.links = n.links.wrapping_add_signed(delta);
            }
        }
        if let Some(id) = old {
            self.drop_if_gone(id);
        }
    }

    fn drop_if_gone(&mut self, id: Id) {
        if id != ROOT && self.inodes.get(&id).is_some_and(|n| n.links == 0 && n.opens == 0) {
            self.inodes.remove(&id);
        }
    }

    fn new_inode(&mut self, c: &Cred, dir: Id, mode: u32, content: Content) -> Res<Id> {
        let d = self.ino(dir)?;
        let (mut gid, mut mode) = (c.gid, mode);
        if d.mode & libc::S_ISGID != 0 {
            gid = d.gid;
            if mode & libc::S_IFMT == libc::S_IFDIR {
                mode |= libc::S_ISGID;
            } else if mode & 0o2010 == 0o2010 && c.uid != 0 && !c.in_group(gid) {
                mode &= !libc::S_ISGID;
            }
        }
        let id = self.next;
        self.next += 1;
        let n = Inode {
            mode,
            uid: c.uid,
            gid,
            links: 0,
            opens: 0,
            linkable: false,
            xattrs: BTreeMap::new(),
            atime: Time::Clock,
            mtime: Time::Clock,
            content,
        };
        let target = match &n.content {
            Content::Symlink(t) => Some(t.clone()),
            _ => None,
        };
        self.changes.push(Change::New { id, kind: n.kind(), target });
        let file = n.is_file();
        self.inodes.insert(id, n);
        self.attr_changed(id);
        if file {
            self.changes.push(Change::Size { id, size: 0, cut: false });
        }
        Ok(id)
    }

    /// `filename_create` and `may_create`: the free entry of `dir` that a new name takes.
    fn free_place(&self, c: &Cred, path: &Name, is_dir: bool) -> Res<(Id, Name)> {
        let place = self.place(c, path)?;
        let Last::Name(name) = place.last else { return Err(libc::EEXIST) };
        if self.child(place.dir, &name)?.is_some() {
            return Err(libc::EEXIST);
        }
        if place.slash && !is_dir {
            return Err(libc::ENOENT);
        }
        Ok((place.dir, name))
    }

    /// mkdir, mknod, symlink.
    pub(super) fn make(&mut self, c: &Cred, path: &Name, mode: u32, target: Option<&Name>) -> Res {
        let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
        let kind = mode & libc::S_IFMT;
        if let Some(t) = target {
            if t.0.is_empty() {
                return Err(libc::ENOENT);
            }
            if t.0.len() > 4095 {
                return Err(libc::ENAMETOOLONG);
            }
        }
        let (dir, name) = self.free_place(c, path, kind == libc::S_IFDIR)?;
        self.permission(c, dir, 3)?;
        // A character device is 0/0 here, a whiteout, which anybody may make.
        if kind == libc::S_IFBLK && c.uid != 0 {
            return Err(libc::EPERM);
        }
        let content = match (kind, target) {
            (libc::S_IFDIR, _) => Content::Dir { entries: BTreeMap::new(), parent: dir },
            (_, Some(t)) => Content::Symlink(t.clone()),
            (libc::S_IFREG, _) => Content::File(Pages::default()),
            _ => Content::Other,
        };
        let id = self.new_inode(c, dir, mode, content)?;
        self.set_entry(dir, &name, Some(id));
        Ok(Outcome::Done)
    }

    pub(super) fn open(&mut self, c: &Cred, fd: Fd, path: &Name, flags: i32, mode: u32) -> Res {
        if self.handles.contains_key(&fd) {
            return Err(libc::EMFILE);
        }
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return self.open_tmpfile(c, fd, path, flags, mode);
        }
        let has = |f: i32| flags & f != 0;
        if has(libc::O_CREAT) && has(libc::O_DIRECTORY) {
            return Err(libc::EINVAL);
        }
        let id = if has(libc::O_CREAT) {
            let stay = has(libc::O_EXCL) || has(libc::O_NOFOLLOW);
            let place = if stay { self.place(c, path)? } else { self.place_to_create(c, path)? };
            let Place { dir, last: Last::Name(name), slash } = place else {
                return Err(if has(libc::O_EXCL) { libc::EEXIST } else { libc::EISDIR });
            };
            if slash {
                return Err(libc::EISDIR);
            }
            let Some(id) = self.child(dir, &name)? else {
                self.permission(c, dir, 3)?;
                let id =
                    self.new_inode(c, dir, libc::S_IFREG | (mode & 0o7777), Content::File(Pages::default()))?;
                self.set_entry(dir, &name, Some(id));
                return self.install(fd, id, flags);
            };
            if has(libc::O_EXCL) {
                return Err(libc::EEXIST);
            }
            let (d, n) = (self.ino(dir)?, self.ino(id)?);
            let sticky = d.mode & libc::S_ISVTX != 0 && n.is_file() && n.uid != d.uid && n.uid != c.uid;
            let open_to = d.mode & 0o002 != 0 || self.quirks.regular >= 2 && d.mode & 0o020 != 0;
            if self.quirks.regular >= 1 && sticky && open_to {
                return Err(libc::EACCES);
            }
            if n.is_dir() {
                return Err(libc::EISDIR);
            }
            id
        } else {
            self.lookup(c, path, !has(libc::O_NOFOLLOW))?
        };
        let n = self.ino(id)?;
        if has(libc::O_DIRECTORY) && !n.is_dir() {
            return Err(libc::ENOTDIR);
        }
        if n.is_symlink() {
            return Err(libc::ELOOP);
        }
        let acc = flags & libc::O_ACCMODE;
        let writes = acc != libc::O_RDONLY || has(libc::O_TRUNC);
        if n.is_dir() && writes {
            return Err(libc::EISDIR);
        }
        let mask = if acc != libc::O_WRONLY { 4 } else { 0 } | if writes { 2 } else { 0 };
        self.permission(c, id, mask)?;
        if matches!(self.ino(id)?.content, Content::Other) {
            return Err(libc::ENXIO);
        }
        if has(libc::O_TRUNC) {
            self.set_size(c, id, 0)?;
        }
        self.install(fd, id, flags)
    }

    fn open_tmpfile(&mut self, c: &Cred, fd: Fd, path: &Name, flags: i32, mode: u32) -> Res {
        if flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_CREAT != 0 {
            return Err(libc::EINVAL);
        }
        let dir = self.lookup(c, path, true)?;
        if !self.ino(dir)?.is_dir() {
            return Err(libc::ENOTDIR);
        }
        self.permission(c, dir, 3)?;
        let id = self.new_inode(c, dir, libc::S_IFREG | (mode & 0o7777), Content::File(Pages::default()))?;
        self.ino_mut(id)?.linkable = flags & libc::O_EXCL == 0;
        self.install(fd, id, flags)
    }

    fn install(&mut self, fd: Fd, id: Id, flags: i32) -> Res {
        self.ino_mut(id)?.opens += 1;
        self.handles.insert(fd, Handle { id, flags, cursor: 0 });
        Ok(Outcome::Done)
    }

    pub(super) fn close(&mut self, fd: Fd) -> Res {
        let h = self.handles.remove(&fd).ok_or(libc::EBADF)?;
        self.ino_mut(h.id)?.opens -= 1;
        self.drop_if_gone(h.id);
        Ok(Outcome::Done)
    }

    pub(super) fn link(&mut self, c: &Cred, old: &Name, new: &Name) -> Res {
        let id = self.lookup(c, old, false)?;
        self.link_id(c, id, new)
    }

    pub(super) fn link_fd(&mut self, c: &Cred, fd: Fd, new: &Name) -> Res {
        let id = self.handle(fd)?.id;
        self.link_id(c, id, new)
    }

    fn link_id(&mut self, c: &Cred, id: Id, new: &Name) -> Res {
        let (dir, name) = self.free_place(c, new, false)?;
        let n = self.ino(id)?;
        if self.quirks.hardlinks && c.uid != 0 && c.uid != n.uid {
            let unsafe_source = !n.is_file() || n.mode & libc::S_ISUID != 0 || n.mode & 0o2010 == 0o2010;
            if unsafe_source || self.permission(c, id, 6).is_err() {
                return Err(libc::EPERM);
            }
        }
        self.permission(c, dir, 3)?;
        let n = self.ino_mut(id)?;
        if n.is_dir() {
            return Err(libc::EPERM);
        }
        if n.links == 0 && !n.linkable {
            return Err(libc::ENOENT);
        }
        if n.links >= LINK_MAX {
            return Err(libc::EMLINK);
        }
        n.linkable = false;
        self.set_entry(dir, &name, Some(id));
        Ok(Outcome::Done)
    }

    /// `may_delete`: may this caller remove entry `victim` of `dir`, as a directory or not?
    fn may_remove(&self, c: &Cred, dir: Id, victim: Id, as_dir: bool) -> Res<()> {
        self.permission(c, dir, 3)?;
        let (d, v) = (self.ino(dir)?, self.ino(victim)?);
        if d.mode & libc::S_ISVTX != 0 && c.uid != 0 && c.uid != d.uid && c.uid != v.uid {
            return Err(libc::EPERM);
        }
        match (as_dir, v.is_dir()) {
            (true, false) => Err(libc::ENOTDIR),
            (false, true) => Err(libc::EISDIR),
            _ => Ok(()),
        }
    }

    fn is_empty(&self, dir: Id) -> bool {
        !matches!(self.inodes.get(&dir).map(|n| &n.content), Some(Content::Dir { entries, .. }) if !entries.is_empty())
    }

    pub(super) fn unlink(&mut self, c: &Cred, path: &Name) -> Res {
        let place = self.place(c, path)?;
        let Last::Name(name) = place.last else { return Err(libc::EISDIR) };
        let id = self.child(place.dir, &name)?.ok_or(libc::ENOENT)?;
        if place.slash {
            return Err(if self.ino(id)?.is_dir() { libc::EISDIR } else { libc::ENOTDIR });
        }
        self.may_remove(c, place.dir, id, false)?;
        self.set_entry(place.dir, &name, None);
        Ok(Outcome::Done)
    }

    pub(super) fn rmdir(&mut self, c: &Cred, path: &Name) -> Res {
        let place = self.place(c, path)?;
        let name = match place.last {
            Last::Name(n) => n,
            Last::Dot => return Err(libc::EINVAL),
            Last::DotDot => return Err(libc::ENOTEMPTY),
            Last::Root => return Err(libc::EBUSY),
        };
        let id = self.child(place.dir, &name)?.ok_or(libc::ENOENT)?;
        self.may_remove(c, place.dir, id, true)?;
        if !self.is_empty(id) {
            return Err(libc::ENOTEMPTY);
        }
        self.set_entry(place.dir, &name, None);
        Ok(Outcome::Done)
    }

    /// Returns whether directory `a` is `d` or above it.
    fn is_above(&self, a: Id, mut d: Id) -> bool {
        loop {
            if a == d {
                return true;
            }
            if d == ROOT {
                return false;
            }
            d = self.parent_of(d);
        }
    }

    pub(super) fn rename(&mut self, c: &Cred, old: &Name, new: &Name, flags: u32) -> Res {
        let exchange = flags & RENAME_EXCHANGE != 0;
        let (noreplace, whiteout) = (flags & RENAME_NOREPLACE != 0, flags & RENAME_WHITEOUT != 0);
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT) != 0
            || exchange && (noreplace || whiteout)
        {
            return Err(libc::EINVAL);
        }
        let (from, to) = (self.place(c, old)?, self.place(c, new)?);
        let Last::Name(a) = &from.last else { return Err(libc::EBUSY) };
        let Last::Name(b) = &to.last else {
            return Err(if noreplace { libc::EEXIST } else { libc::EBUSY });
        };
        let source = self.child(from.dir, a)?.ok_or(libc::ENOENT)?;
        let target = self.child(to.dir, b)?;
        if noreplace && target.is_some() {
            return Err(libc::EEXIST);
        }
        let is_dir = self.ino(source)?.is_dir();
        if exchange {
            let t = target.ok_or(libc::ENOENT)?;
            if !self.ino(t)?.is_dir() && to.slash {
                return Err(libc::ENOTDIR);
            }
        }
        if !is_dir && (from.slash || !exchange && to.slash) {
            return Err(libc::ENOTDIR);
        }
        // As the kernel, which looks only for a directory between the two parents, never for a
        // parent itself.
        if is_dir && from.dir != to.dir && self.is_above(source, to.dir) {
            return Err(libc::EINVAL);
        }
        if let Some(t) = target
            && from.dir != to.dir
            && self.ino(t)?.is_dir()
            && self.is_above(t, from.dir)
        {
            return Err(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(Outcome::Done);
        }
        self.may_remove(c, from.dir, source, is_dir)?;
        let target_is_dir = target.is_some_and(|t| self.ino(t).is_ok_and(|n| n.is_dir()));
        match target {
            None => self.permission(c, to.dir, 3)?,
            Some(t) => self.may_remove(c, to.dir, t, if exchange { target_is_dir } else { is_dir })?,
        }
        if from.dir != to.dir {
            if is_dir {
                self.permission(c, source, 2)?;
            }
            if let Some(t) = target
                && exchange
                && target_is_dir
            {
                self.permission(c, t, 2)?;
            }
        }
        if let Some(t) = target
            && !exchange
            && target_is_dir
            && !self.is_empty(t)
        {
            return Err(libc::ENOTEMPTY);
        }
        let left = match whiteout {
            true => Some(self.new_inode(c, from.dir, libc::S_IFCHR, Content::Other)?),
            false => target.filter(|_| exchange),
        };
        self.do_rename((from.dir, a), (to.dir, b), source, left)
    }

    /// `left`: what has the old name then.
    fn do_rename(&mut self, from: (Id, &Name), to: (Id, &Name), source: Id, left: Option<Id>) -> Res {
        // The source stays alive while it has no name.
        self.ino_mut(source)?.opens += 1;
        if let Some(t) = left {
            self.ino_mut(t)?.opens += 1;
        }
        self.set_entry(from.0, from.1, left);
        self.set_entry(to.0, to.1, Some(source));
        for (id, dir) in [(Some(source), to.0), (left, from.0)] {
            let Some(id) = id else { continue };
            let n = self.ino_mut(id)?;
            n.opens -= 1;
            if let Content::Dir { parent, .. } = &mut n.content
                && *parent != dir
            {
                *parent = dir;
                self.changes.push(Change::Moved { id });
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn readlink(&mut self, c: &Cred, path: &Name) -> Res {
        let id = self.lookup(c, path, false)?;
        let n = self.ino_mut(id)?;
        n.atime = Time::Clock;
        match &n.content {
            Content::Symlink(t) => Ok(Outcome::Bytes(t.0.clone())),
            _ => Err(libc::EINVAL),
        }
    }

    pub(super) fn readdir(&mut self, c: &Cred, path: &Name) -> Res {
        let id = self.lookup(c, path, true)?;
        if !self.ino(id)?.is_dir() {
            return Err(libc::ENOTDIR);
        }
        self.permission(c, id, 4)?;
        let n = self.ino_mut(id)?;
        n.atime = Time::Clock;
        let Content::Dir { entries, .. } = &self.ino(id)?.content else { return Err(libc::ENOTDIR) };
        let list = entries.iter().map(|(n, id)| (n.clone(), (self.inodes[id].kind(), *id)));
        Ok(Outcome::List(list.collect()))
    }
}
