//! File content: pages, sizes, holes.

use super::*;
use crate::op::{CAPABILITY, Tagged};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// One page.
pub type Page = [u8; PAGE as usize];

/// A regular file's content.
#[derive(Clone, Default, Debug)]
pub struct Pages {
    /// Bytes.
    pub size: u64,
    /// The pages that were written; a page that is missing is a hole. Bytes at and behind `size`
    /// are zero.
    pub map: BTreeMap<u64, Arc<Page>>,
}

impl Pages {
    /// The bytes of `[offset, offset + len)` that lie before the end.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.size);
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let (page, from) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE as usize - from).min((end - at) as usize);
            match self.map.get(&page) {
                Some(p) => out.extend_from_slice(&p[from..from + n]),
                None => out.resize(out.len() + n, 0),
            }
            at += n as u64;
        }
        out
    }

    /// Returns whether `[from, to)` holds only zeros (behind the end there are only zeros).
    pub fn is_zero(&self, from: u64, to: u64) -> bool {
        let pages = self.map.range(from / PAGE..to.div_ceil(PAGE));
        pages
            .flat_map(|(p, b)| b.iter().enumerate().map(move |(i, b)| (p * PAGE + i as u64, *b)))
            .all(|(at, b)| b == 0 || at < from || at >= to)
    }

    fn edit(&mut self, page: u64, range: std::ops::Range<usize>, bytes: Option<&[u8]>) -> Arc<Page> {
        let p = self.map.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
        let p = Arc::make_mut(p);
        match bytes {
            Some(b) => p[range].copy_from_slice(b),
            None => p[range].fill(0),
        }
        self.map[&page].clone()
    }
}

impl Model {
    pub(super) fn file(&self, id: Id) -> Res<&Pages> {
        match &self.ino(id)?.content {
            Content::File(p) => Ok(p),
            Content::Dir { .. } => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    fn file_mut(&mut self, id: Id) -> Res<&mut Pages> {
        match &mut self.ino_mut(id)?.content {
            Content::File(p) => Ok(p),
            Content::Dir { .. } => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    /// SEMANTICS P2.
    pub(super) fn kill_priv(&mut self, c: &Cred, id: Id) -> Res<()> {
        let n = self.ino_mut(id)?;
        let had = n.xattrs.remove(&CAPABILITY.into()).is_some();
        if c.uid == 0 || n.mode & 0o6000 == 0 {
            if had {
                self.attr_changed(id);
            }
            return Ok(());
        }
        let mut mode = n.mode & !libc::S_ISUID;
        if mode & 0o010 != 0 || !c.in_group(n.gid) {
            mode &= !libc::S_ISGID;
        }
        if mode != n.mode || had {
            n.mode = mode;
            self.attr_changed(id);
        }
        Ok(())
    }

    fn touch(&mut self, id: Id) -> Res<()> {
        let n = self.ino_mut(id)?;
        if n.mtime != Time::Clock {
            n.mtime = Time::Clock;
            self.attr_changed(id);
        }
        Ok(())
    }

    pub(super) fn set_size(&mut self, c: &Cred, id: Id, size: u64) -> Res<()> {
        let f = self.file_mut(id)?;
        let mut pages = Vec::new();
        if size < f.size {
            for gone in f.map.split_off(&size.div_ceil(PAGE)).keys() {
                pages.push((*gone, None));
            }
            if f.map.contains_key(&(size / PAGE)) && !size.is_multiple_of(PAGE) {
                pages.push((
                    size / PAGE,
                    Some(f.edit(size / PAGE, (size % PAGE) as usize..PAGE as usize, None)),
                ));
            }
        }
        f.size = size;
        self.changes.push(Change::Size { id, size, cut: true });
        self.changes.extend(pages.into_iter().map(|(page, bytes)| Change::Page {
            id,
            page,
            bytes,
            cut: true,
        }));
        self.kill_priv(c, id)?;
        self.touch(id)
    }

    pub(super) fn truncate_path(&mut self, c: &Cred, path: &Name, size: u64) -> Res {
        if size > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        let id = self.lookup(c, path, true)?;
        self.file(id)?;
        self.permission(c, id, 2)?;
        self.set_size(c, id, size)?;
        Ok(Outcome::Done)
    }

    pub(super) fn ftruncate(&mut self, c: &Cred, fd: Fd, size: u64) -> Res {
        if size > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        let h = self.handle(fd)?;
        if !h.writable() {
            return Err(libc::EINVAL);
        }
        let id = h.id;
        self.set_size(c, id, size)?;
        Ok(Outcome::Done)
    }

    pub(super) fn read(&mut self, fd: Fd, offset: Option<u64>, len: u32) -> Res {
        if offset.is_some_and(|o| o > i64::MAX as u64) {
            return Err(libc::EINVAL);
        }
        let h = self.handle(fd)?;
        if !h.readable() {
            return Err(libc::EBADF);
        }
        let (id, at) = (h.id, offset.unwrap_or(h.cursor));
        let bytes = self.file(id)?.read(at, u64::from(len));
        self.ino_mut(id)?.atime = Time::Clock;
        if let (None, Some(h)) = (offset, self.handles.get_mut(&fd)) {
            h.cursor += bytes.len() as u64;
        }
        Ok(Outcome::Bytes(bytes))
    }

    pub(super) fn write(&mut self, c: &Cred, fd: Fd, offset: Option<u64>, data: Tagged) -> Res {
        if offset.is_some_and(|o| o > i64::MAX as u64) {
            return Err(libc::EINVAL);
        }
        let h = self.handle(fd)?;
        if !h.writable() {
            return Err(libc::EBADF);
        }
        let (id, flags) = (h.id, h.flags);
        if data.len == 0 {
            return Ok(Outcome::Count(0));
        }
        let size = self.file(id)?.size;
        let at = if flags & libc::O_APPEND != 0 { size } else { offset.unwrap_or(h.cursor) };
        if at >= i64::MAX as u64 {
            return Err(libc::EFBIG);
        }
        let len = u64::from(data.len).min(i64::MAX as u64 - at);
        self.put(id, at, &data.bytes(at)[..len as usize])?;
        self.kill_priv(c, id)?;
        self.touch(id)?;
        if let (None, Some(h)) = (offset, self.handles.get_mut(&fd)) {
            h.cursor = at + len;
        }
        if flags & libc::O_SYNC == libc::O_SYNC {
            self.changes.push(Change::Persist(Persist::Inode(id)));
        } else if flags & libc::O_DSYNC != 0 {
            self.changes.push(Change::Persist(Persist::Data(id)));
        }
        Ok(Outcome::Count(len))
    }

    /// Stores bytes and moves the end if they lie behind it.
    fn put(&mut self, id: Id, at: u64, bytes: &[u8]) -> Res<()> {
        let f = self.file_mut(id)?;
        let mut pages = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let pos = at + done as u64;
            let from = (pos % PAGE) as usize;
            let n = (PAGE as usize - from).min(bytes.len() - done);
            pages.push((pos / PAGE, f.edit(pos / PAGE, from..from + n, Some(&bytes[done..done + n]))));
            done += n;
        }
        let end = at + bytes.len() as u64;
        let grown = end > f.size;
        f.size = f.size.max(end);
        for (page, b) in pages {
            self.changes.push(Change::Page { id, page, bytes: Some(b), cut: false });
        }
        if grown {
            self.changes.push(Change::Size { id, size: end, cut: false });
        }
        Ok(())
    }

    pub(super) fn fallocate(&mut self, c: &Cred, fd: Fd, mode: i32, offset: u64, len: u64) -> Res {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        let h = self.handle(fd)?;
        if offset > i64::MAX as u64 || len == 0 || len > i64::MAX as u64 {
            return Err(libc::EINVAL);
        }
        if ![0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP].contains(&mode) {
            return Err(libc::EOPNOTSUPP);
        }
        if !h.writable() {
            return Err(libc::EBADF);
        }
        let id = h.id;
        let end = offset + len;
        if end > i64::MAX as u64 {
            return Err(libc::EFBIG);
        }
        let f = self.file_mut(id)?;
        let mut pages = Vec::new();
        if mode & (PUNCH | ZERO) != 0 {
            let hit: Vec<u64> = f.map.range(offset / PAGE..end.div_ceil(PAGE)).map(|p| *p.0).collect();
            for page in hit {
                let from = offset.saturating_sub(page * PAGE) as usize;
                let to = (end - page * PAGE).min(PAGE) as usize;
                if from == 0 && to == PAGE as usize {
                    f.map.remove(&page);
                    pages.push((page, None));
                } else {
                    pages.push((page, Some(f.edit(page, from..to, None))));
                }
            }
        }
        let grown = mode & KEEP == 0 && end > f.size;
        if grown {
            f.size = end;
        }
        for (page, bytes) in pages {
            self.changes.push(Change::Page { id, page, bytes, cut: false });
        }
        if grown {
            self.changes.push(Change::Size { id, size: end, cut: false });
        }
        self.kill_priv(c, id)?;
        self.touch(id)?;
        Ok(Outcome::Done)
    }

    pub(super) fn lseek(&mut self, fd: Fd, offset: i64, whence: i32) -> Res {
        let h = self.handle(fd)?;
        let (id, cursor) = (h.id, h.cursor);
        let f = self.file(id)?;
        let to = match whence {
            libc::SEEK_SET => offset,
            libc::SEEK_CUR => (cursor as i64).checked_add(offset).ok_or(libc::EOVERFLOW)?,
            libc::SEEK_END => (f.size as i64).checked_add(offset).ok_or(libc::EOVERFLOW)?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                if offset < 0 || offset as u64 >= f.size {
                    return Err(libc::ENXIO);
                }
                let mut at = offset as u64;
                let data = whence == libc::SEEK_DATA;
                while at < f.size && f.map.contains_key(&(at / PAGE)) != data {
                    at = (at / PAGE + 1) * PAGE;
                }
                if at >= f.size {
                    if data {
                        return Err(libc::ENXIO);
                    }
                    at = f.size;
                }
                at as i64
            }
            _ => return Err(libc::EINVAL),
        };
        if to < 0 {
            return Err(libc::EINVAL);
        }
        if let Some(h) = self.handles.get_mut(&fd) {
            h.cursor = to as u64;
        }
        Ok(Outcome::Count(to as u64))
    }
}
