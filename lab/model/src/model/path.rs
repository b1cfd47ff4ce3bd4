//! Walking a path and asking for permission.

use super::*;

/// The last component of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Last {
    /// An ordinary name.
    Name(Name),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// The path was only slashes.
    Root,
}

/// The place that a path leads to: a directory, the last component, and whether slashes followed
/// it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub dir: Id,
    pub last: Last,
    pub slash: bool,
}

impl Model {
    /// `inode_permission`: mask is R 4, W 2, X 1.
    pub(super) fn permission(&self, c: &Cred, id: Id, mask: u32) -> Res<()> {
        let n = self.ino(id)?;
        if c.uid == 0 {
            let any_x = n.mode & 0o111 != 0 || n.is_dir();
            return if mask & 1 != 0 && !any_x { Err(libc::EACCES) } else { Ok(()) };
        }
        let shift = if c.uid == n.uid {
            6
        } else if c.in_group(n.gid) {
            3
        } else {
            0
        };
        if (n.mode >> shift) & mask == mask { Ok(()) } else { Err(libc::EACCES) }
    }

    pub(super) fn owner(&self, c: &Cred, id: Id) -> Res<()> {
        if c.uid == 0 || c.uid == self.ino(id)?.uid { Ok(()) } else { Err(libc::EPERM) }
    }

    pub(super) fn child(&self, dir: Id, name: &Name) -> Res<Option<Id>> {
        if name.0.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        match &self.ino(dir)?.content {
            Content::Dir { entries, .. } => Ok(entries.get(name).copied()),
            _ => Err(libc::ENOTDIR),
        }
    }

    pub(super) fn parent_of(&self, dir: Id) -> Id {
        match self.inodes.get(&dir).map(|n| &n.content) {
            Some(Content::Dir { parent, .. }) => *parent,
            _ => ROOT,
        }
    }

    /// The place a path names, its last component not looked up.
    pub(super) fn place(&self, c: &Cred, path: &Name) -> Res<Place> {
        self.place_from(c, ROOT, path, &mut 0)
    }

    fn place_from(&self, c: &Cred, start: Id, path: &Name, links: &mut u32) -> Res<Place> {
        if path.0.is_empty() {
            return Err(libc::ENOENT);
        }
        if path.0.len() > 4095 {
            return Err(libc::ENAMETOOLONG);
        }
        let mut dir = if path.0[0] == b'/' { ROOT } else { start };
        let parts: Vec<&[u8]> = path.0.split(|b| *b == b'/').filter(|p| !p.is_empty()).collect();
        let slash = path.0.last() == Some(&b'/');
        let Some((last, walk)) = parts.split_last() else {
            return Ok(Place { dir, last: Last::Root, slash: false });
        };
        for part in walk {
            self.permission(c, dir, 1)?;
            dir = match *part {
                b"." => dir,
                b".." => self.parent_of(dir),
                name => {
                    let id = self.child(dir, &name.into())?.ok_or(libc::ENOENT)?;
                    self.follow(c, dir, id, links)?
                }
            };
            if !self.ino(dir)?.is_dir() {
                return Err(libc::ENOTDIR);
            }
        }
        self.permission(c, dir, 1)?;
        let last = match *last {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(name.into()),
        };
        Ok(Place { dir, last, slash })
    }

    /// Follows symbolic links from entry `id` of `dir` to what they lead to.
    fn follow(&self, c: &Cred, dir: Id, id: Id, links: &mut u32) -> Res<Id> {
        let Content::Symlink(target) = &self.ino(id)?.content else { return Ok(id) };
        *links += 1;
        if *links > 40 {
            return Err(libc::ELOOP);
        }
        let place = self.place_from(c, dir, target, links)?;
        self.arrive(c, &place, true, links)
    }

    /// `fs.protected_symlinks`: may this caller follow a final link in a sticky directory?
    pub(super) fn may_follow(&self, c: &Cred, dir: Id, link: Id) -> Res<()> {
        let (d, l) = (self.ino(dir)?, self.ino(link)?);
        let guarded = self.quirks.symlinks && d.mode & 0o1002 == 0o1002;
        if guarded && c.uid != l.uid && d.uid != l.uid { Err(libc::EACCES) } else { Ok(()) }
    }

    /// Looks the last component up.
    pub(super) fn arrive(&self, c: &Cred, place: &Place, follow: bool, links: &mut u32) -> Res<Id> {
        let id = match &place.last {
            Last::Root | Last::Dot => place.dir,
            Last::DotDot => self.parent_of(place.dir),
            Last::Name(n) => {
                let id = self.child(place.dir, n)?.ok_or(libc::ENOENT)?;
                if (follow || place.slash) && self.ino(id)?.is_symlink() {
                    self.may_follow(c, place.dir, id)?;
                    self.follow(c, place.dir, id, links)?
                } else {
                    id
                }
            }
        };
        if place.slash && !self.ino(id)?.is_dir() { Err(libc::ENOTDIR) } else { Ok(id) }
    }

    /// Returns the inode that a path names.
    pub(super) fn lookup(&self, c: &Cred, path: &Name, follow: bool) -> Res<Id> {
        let mut links = 0;
        let place = self.place_from(c, ROOT, path, &mut links)?;
        self.arrive(c, &place, follow, &mut links)
    }

    /// For open with O_CREAT: the place behind final symbolic links, which need not exist.
    pub(super) fn place_to_create(&self, c: &Cred, path: &Name) -> Res<Place> {
        let mut links = 0;
        let mut place = self.place_from(c, ROOT, path, &mut links)?;
        loop {
            let Last::Name(n) = &place.last else { return Ok(place) };
            if place.slash {
                return Err(libc::EISDIR);
            }
            let Some(id) = self.child(place.dir, n)? else { return Ok(place) };
            let Content::Symlink(target) = &self.ino(id)?.content else { return Ok(place) };
            self.may_follow(c, place.dir, id)?;
            links += 1;
            if links > 40 {
                return Err(libc::ELOOP);
            }
            place = self.place_from(c, place.dir, target, &mut links)?;
        }
    }
}
