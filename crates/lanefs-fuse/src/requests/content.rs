//! Open files and what is in them.
//!
//! Rules that the writeback cache needs of this side (the kernel's fs/fuse/file.c):
//!
//! W1 Files opened write-only are opened for reading too: the kernel fills partly written pages.
//! W2 O_APPEND is the kernel's: it knows the size; writes come with their offset. So it is without
//!    this cache too: an append is resolved under the kernel's lock of the inode, beside which
//!    nobody changes the size, and O_APPEND may come and go by fcntl(2) without a word. And pages
//!    of a map come by any handle that may write, which may be one that appends.
//! W3 Writes from the cache leave times alone; the kernel keeps mtime and ctime and sends them by
//!    SETATTR, before the FSYNC that was to cover them.
//! W4 FLUSH has nothing left to do once the kernel wrote back its pages at close, so it is answered
//!    "not implemented" and not sent again; errors of writes reach close and fsync by the kernel's
//!    own account.
//! W5 The kernel follows a synchronous write with O_SYNC or O_DSYNC by FSYNC itself, but not an
//!    asynchronous one past its cache; which of the two it is we do not learn. So what comes past
//!    the cache with such a flag is durable before the answer.
//! W6 Of pages of its cache the kernel looks at the error alone, not at how many bytes were taken:
//!    anything less than all is an error.
//! W7 A short answer to a read is the end of the file to the kernel, or a hole: so it is given only
//!    there. What cannot be read is an error of the whole request.
//! W8 The kernel keeps the attributes it got. Where they change here by themselves (setuid and
//!    setgid that go, blocks that cached writes take) it is made to ask for them again, before the
//!    request is answered.
//! W9 The first pages of a file may be the kernel's alone for long. So a file without blocks that
//!    is open for writing is reported to have one: that it has none means, to who archives or
//!    copies it, that it holds nothing but zeros. Who asks through a handle (GETATTR_FH, and
//!    CREATE) may believe it, since the kernel asks for the blocks again behind each close; others
//!    have to ask again.

//!
//! Where files are opened without a request (`profile=stateless`):
//!
//! N1 OPEN and CREATE are answered "not implemented" once: the kernel makes files by MKNOD then. So
//!    no request has a handle, and no RELEASE comes (but for TMPFILE, of handle 0). A request opens
//!    the inode for itself, as root: the kernel has checked who may (its `default_permissions`). An
//!    inode without a name lives while the kernel knows it (`known`).
//! N2 O_TRUNC comes as SETATTR, as with `profile=through` (`wire::handshake`); O_APPEND and
//!    O_NOATIME come with each WRITE and READ.
//! N3 What a flag of the inode (`i`, `a`) forbids a WRITE is refused, since nobody asks when it is
//!    opened; also pages of the kernel's cache, which are written back before the flag is set.
//! N4 The kernel does not gather what write(2) gives, so who has it open for writing need not be
//!    known; only pages of maps are its own.

use super::{MADE, Wire, rights};
use crate::adaptor::{Adaptor, Opened};
use crate::aside::{Job, What};
use crate::blocking_hook::{about_to_wait, about_to_wait_for_requests};
use crate::handles::ASSUMED;
use crate::taking::{has_space, needs_space_for};
use crate::translate::root;
use crate::wire::abi::*;
use crate::wire::{Answer, Errno, Origin, Reply, Request};
use lanefs::{File, Ino, NewInodeAttrs, Stat};
use std::sync::Arc;

/// The flags of every open file: what is cached of it stays right, and writes past the cache need
/// not wait for each other.
const OPENED: u32 = FOPEN_KEEP_CACHE | FOPEN_PARALLEL_DIRECT_WRITES;

/// The flags where others change the volume: every read and write comes here, and the kernel keeps
/// nothing of it.
const OPENED_SHARED: u32 = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;

/// Returns the flags of an open file. Where it is `exact` each read and write comes here.
fn opened(adaptor: &Adaptor, exact: bool) -> u32 {
    debug_assert!(!exact || adaptor.writeback, "what is not gathered is exact");
    match (adaptor.shared, exact) {
        (true, _) => OPENED_SHARED,
        (false, true) => OPENED | FOPEN_DIRECT_IO,
        (false, false) => OPENED,
    }
}

/// Returns whether what is written to a file that is about to be made is not to be gathered (R4 of
/// [`crate::space`]): its space would not be there, and it is root who asks, to whom more is left.
/// ENOSPC to others.
fn may_make(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<bool> {
    adaptor.took_space(MADE);
    if has_space(adaptor, reply, MADE)? {
        adaptor.space.lets_through();
        return Ok(false);
    }
    debug_assert!(adaptor.writeback, "where nothing is gathered nothing is kept back");
    if req.is_user() { Err(Errno(libc::ENOSPC)) } else { Ok(true) }
}

/// The bytes from which on reads go past the volume's own cache, and writes leave it when they are
/// on the device: the kernel has what it reads and writes, and has asked for more by then. Smaller
/// reads are read ahead of here.
const KEPT: u32 = 64 << 10;

const _: () = assert!(KEPT.is_multiple_of(4096), "only whole pages go past the cache");

/// The bytes that one request copies at the most where little space is left.
const COPIED: u64 = 1 << 20;

pub(super) fn open(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    if adaptor.stateless {
        // From now on the kernel opens files by itself (N1).
        return Err(Errno(libc::ENOSYS));
    }
    let mut a = req.args();
    let (flags, open_flags) = (a.u32()?, a.u32()?);
    // As root: the kernel has checked, and states what becomes of setuid.
    let file = adaptor.volume.node_open(&root(), req.ino, adaptor.open_flags(flags))?;
    debug_assert_eq!(file.ino(), req.ino);
    if open_flags & OPEN_KILL_SUIDGID != 0 {
        rights::kill_priv(adaptor, req, req.ino)?;
    }
    if may_gather(adaptor, &file) {
        adaptor.space.lets_through();
        if file.stat()?.blocks == 0 {
            adaptor.aside.attributes_changed(req.ino);
        }
    }
    adaptor.open_out(file, flags, opened(adaptor, false), None, reply)
}

/// Returns whether the kernel may gather what is written through this file.
fn may_gather(adaptor: &Adaptor, file: &File) -> bool {
    adaptor.writeback && file.flags() & libc::O_ACCMODE != libc::O_RDONLY
}

/// Reports a block of a file whose handle the kernel is about to get (W9).
fn assume_block(adaptor: &Adaptor, file: &File, stat: &mut Stat) {
    if may_gather(adaptor, file) && stat.blocks == 0 {
        stat.blocks = ASSUMED;
    }
}

pub(super) fn create(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    if adaptor.stateless {
        return Err(Errno(libc::ENOSYS));
    }
    let mut a = req.args();
    let (flags, mode, umask, open_flags) = (a.u32()?, a.u32()?, a.u32()?, a.u32()?);
    let name = a.name()?;
    let exact = may_make(adaptor, req, reply)?;
    let inherited = rights::inherit(&adaptor.volume, req.ino, mode, umask, false)?;
    let how = adaptor.open_flags(flags) | flags as i32 & (libc::O_CREAT | libc::O_EXCL);
    let birth = NewInodeAttrs { mode: inherited.mode, xattrs: &inherited.xattrs() };
    let (mut stat, file, made) = adaptor.volume.node_create(&req.cred(), req.ino, name, birth, how)?;
    debug_assert_eq!(stat.ino, file.ino(), "attributes and handle go to the kernel as one inode's");
    // O_TRUNC takes setuid from a file that was there; a new one keeps the mode that it was
    // made with.
    if open_flags & OPEN_KILL_SUIDGID != 0 && !made {
        rights::kill_priv(adaptor, req, stat.ino)?;
        stat = file.stat()?;
    }
    assume_block(adaptor, &file, &mut stat);
    adaptor.sync_parent_dirs(&[(req.ino, name)])?;
    adaptor.enter(&stat, reply)?;
    adaptor.open_out(file, flags, opened(adaptor, exact), Some((req.ino, name)), reply)
}

pub(super) fn tmpfile(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (flags, mode, umask) = (a.u32()?, a.u32()?, a.u32()?);
    let exact = may_make(adaptor, req, reply)?;
    let inherited = rights::inherit(&adaptor.volume, req.ino, mode, umask, false)?;
    let how = adaptor.open_flags(flags) | flags as i32 & libc::O_EXCL;
    let birth = NewInodeAttrs { mode: inherited.mode, xattrs: &inherited.xattrs() };
    let (mut stat, file) = adaptor.volume.node_tmpfile(&req.cred(), req.ino, birth, how)?;
    debug_assert_eq!((stat.ino, stat.nlink), (file.ino(), 0), "it has no name before it is answered");
    assume_block(adaptor, &file, &mut stat);
    adaptor.enter(&stat, reply)?;
    adaptor.open_out(file, flags, opened(adaptor, exact), None, reply)
}

pub(super) fn release(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let handle = req.args().u64()?;
    // SAFETY: the handle of RELEASE; a guest's is looked up.
    let made = unsafe { adaptor.handles.remove(handle) };
    // The kernel keeps the times of files where it gathers writes, and changes none for a write
    // past its cache. It is to ask for them when nobody has the file open.
    if let Some((dir, name)) = made {
        adaptor.aside.forget(dir, &name);
    }
    Ok(())
}

/// Takes note that pages of a file are about to come into the kernel's cache.
fn comes_into_cache(adaptor: &Adaptor, ino: Ino) {
    if adaptor.stateless {
        adaptor.known.comes_into_cache(ino);
    } else {
        adaptor.handles.is_read_into_cache(ino);
    }
}

pub(super) fn read(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (handle, offset, size) = (a.u64()?, a.u64()?, a.u32()?);
    a.skip(12)?; // flags of the request, the owner of locks
    let flags = a.u32()? as i32;
    let file = adaptor.file(req.ino, handle, libc::O_RDONLY | flags & libc::O_NOATIME)?;
    if flags & libc::O_DIRECT == 0 {
        comes_into_cache(adaptor, req.ino);
    }
    let space = reply.space(size as usize)?;
    let mut done = 0;
    // Up to the end of the file, or to what cannot be read, which is an error then (W7).
    while done < space.len() {
        let (rest, at) = (&mut space[done..], offset.saturating_add(done as u64));
        match if size >= KEPT { file.read_uncached_at(rest, at) } else { file.read_at(rest, at) }? {
            0 => break,
            n => {
                debug_assert!(n <= space.len() - done, "more was read than was asked for");
                done += n;
            }
        }
    }
    reply.keep(done);
    Ok(())
}

pub(super) fn write(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
    let mut a = req.args();
    let (handle, offset, size, how) = (a.u64()?, a.u64()?, a.u32()?, a.u32()?);
    a.skip(8)?; // the owner of locks
    let flags = a.u32()? as i32;
    a.skip(4)?;
    let data = a.bytes(size as usize)?;
    let cached = how & WRITE_CACHE != 0;
    // With a handle the flags count that it was opened with.
    let append = if cached { libc::O_APPEND } else { flags & libc::O_APPEND };
    let opened = adaptor.file(req.ino, handle, libc::O_RDWR | append)?;
    let file = &*opened;
    let direct = flags & libc::O_DIRECT != 0;
    let past_cache = direct || opened.goes_past_cache();
    // What the kernel has accepted is taken in any case; of another write the caller hears.
    if !cached {
        file.may_write()?;
        // (R4 of `space`: what root writes to these may use the reserve up.)
        if !opened.goes_past_cache() {
            needs_space_for(adaptor, reply, file, (offset, size.into()))?;
        }
        // Of one that finds space for a part the kernel makes an error, and cuts off what got
        // behind the end: a crash before that would show it.
        if direct && !adaptor.volume.has_for_users(size.into()) {
            let takes = file.without_space(offset, size.into())?;
            if takes > 0 && !adaptor.volume.has_space(takes, !req.is_user()) {
                return Err(Errno(libc::ENOSPC));
            }
        }
    }
    if how & WRITE_KILL_SUIDGID != 0 {
        rights::kill_priv(adaptor, req, req.ino)?;
    }
    if adaptor.stateless && !direct {
        comes_into_cache(adaptor, req.ino);
    }
    let blocks = file.stat()?.blocks;
    let appends = adaptor.shared && flags & libc::O_APPEND != 0 && !cached;
    let for_user = !cached && rights::leaves_last(&adaptor.volume, req, u64::from(size));
    // Writes to a file with setuid come through the kernel's cache one by one; it keeps their
    // times, too.
    let put = match (adaptor.writeback, past_cache) {
        (_, true) | (false, _) if for_user => {
            |file: &File, data: &[u8], offset| file.write_for_user(data, Some(offset))
        }
        (true, false) => File::write_back_at,
        (true, _) if cached => File::write_back_at,
        (false, false) if size >= KEPT && (offset | u64::from(size)).is_multiple_of(4096) => {
            File::write_uncached_at
        }
        _ => File::write_at,
    };
    // Where the end is others know better than the kernel.
    let put = match (appends, for_user) {
        (true, false) => |file: &File, data: &[u8], _: u64| file.append(data).map(|_| data.len()),
        (true, true) => |file: &File, data: &[u8], _: u64| file.write_for_user(data, None),
        (false, _) => put,
    };
    let (n, error) = write_all(file, offset, data, put);
    debug_assert!(error.is_none() || (n as usize) < data.len(), "all was written, and failed");
    adaptor.took_space(u64::from(n));
    if cached {
        adaptor.closing.count_write(n as usize == data.len());
        adaptor.about_to_answer(req.ino);
        // W8: the others the kernel asks about again by itself.
        if file.stat()?.blocks != blocks {
            adaptor.aside.attributes_changed(req.ino);
        }
        if (n as usize) < data.len() {
            return Err(error.unwrap_or(Errno(libc::EIO)));
        }
    } else {
        // Of a write with O_DIRECT that took a part the kernel makes EIO. Where the file got longer
        // it is cut to what it was, by the kernel.
        if let Some(e) = error.filter(|_| n == 0 || direct) {
            return Err(e);
        }
        if flags & libc::O_DSYNC != 0 {
            about_to_wait();
            if flags & libc::O_SYNC == libc::O_SYNC { file.sync_all() } else { file.sync_data() }?;
        }
        // A guest waits for the write, and drops the pages itself.
        let drops = past_cache && !adaptor.guest;
        if drops && may_be_cached(adaptor, req.ino, handle)? {
            match origin {
                Origin::Device(device) => {
                    reply.answer = Answer::Elsewhere;
                    let (device, what) = (Arc::clone(device), What::Written { offset, bytes: n });
                    return adaptor.aside.answer(Job { ino: req.ino, what, unique: req.unique, device });
                }
                Origin::Ring | Origin::Guest => {
                    about_to_wait_for_requests();
                    adaptor.aside.drop_pages(req.ino, offset, n);
                }
            }
        }
    }
    reply.u32(n)?;
    reply.u32(0)
}

/// Returns whether pages that were just written past the kernel's cache may be in it, as they were.
fn may_be_cached(adaptor: &Adaptor, ino: Ino, handle: u64) -> Wire<bool> {
    match adaptor.stateless {
        true => Ok(adaptor.known.is_cached(ino)),
        false => Ok(adaptor.handle(handle)?.may_be_cached()),
    }
}

pub(super) fn fsync(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let mut a = req.args();
    let (file, how) = (adaptor.file(req.ino, a.u64()?, libc::O_RDONLY)?, a.u32()?);
    about_to_wait();
    let synced = if how & FSYNC_FDATASYNC != 0 { file.sync_data() } else { file.sync_all() };
    match adaptor.stateless && !synced.as_ref().is_err_and(lanefs::Error::is_of_full_host) {
        true => adaptor.sync_errors.tell(req.ino, req.pid, synced.map_err(Errno::from)),
        false => Ok(synced?),
    }
}

pub(super) fn fallocate(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    // Open for appending: what an append-only file forbids is asked below.
    let file = adaptor.file(req.ino, a.u64()?, libc::O_RDWR | libc::O_APPEND)?;
    let (offset, length, mode) = (a.u64()?, a.u64()?, a.u32()?);
    let takes = mode as i32 & !(libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE) == 0;
    if takes && offset.checked_add(length).is_some_and(|end| end <= lanefs::MAX_FILE_SIZE) {
        file.may_write()?;
        needs_space_for(adaptor, reply, &file, (offset, length))?;
    }
    rights::kill_priv_of(adaptor, req, req.ino)?;
    // The kernel keeps the times of files that it caches writes of, and hands its own over.
    let for_root = !rights::leaves_last(&adaptor.volume, req, length);
    let done = file.allocate_for(mode as i32, offset, length, adaptor.writeback, for_root);
    if done.is_err() && mode as i32 & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
        adaptor.aside.drop_pages_soon(req.ino);
    }
    done?;
    adaptor.took_space(length);
    Ok(())
}

pub(super) fn lseek(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
    let mut a = req.args();
    let (handle, offset, whence) = (a.u64()?, a.i64()?, a.u32()? as i32);
    // Also where nothing is gathered: pages of maps are.
    if !adaptor.guest && adaptor.may_hold(req.ino) {
        let (ino, unique) = (req.ino, req.unique);
        match origin {
            Origin::Device(device) => {
                let made = match adaptor.file(ino, handle, libc::O_RDONLY)? {
                    Opened::Made(file) => Some(Box::new(file)),
                    Opened::Held(_) => None,
                };
                reply.answer = Answer::Elsewhere;
                let device = Arc::clone(device);
                let what = What::Seek { handle, made, offset, whence };
                return adaptor.aside.answer(Job { ino, what, unique, device });
            }
            // The answer has to come from here; others serve the writes that this waits for.
            // A guest gathers nothing.
            Origin::Ring | Origin::Guest => {
                about_to_wait_for_requests();
                adaptor.aside.flush_kernel_pages(ino);
            }
        }
    }
    reply.u64(adaptor.file(req.ino, handle, libc::O_RDONLY)?.lseek(offset, whence)?)
}

pub(super) fn copy_file_range(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (from, from_offset) = (adaptor.file(req.ino, a.u64()?, libc::O_RDONLY)?, a.u64()?);
    let to_ino = Ino(a.u64()?);
    let to = adaptor.file(to_ino, a.u64()?, libc::O_RDWR)?;
    let (to_offset, len) = (a.u64()?, a.u64()?);
    // The answer carries 32 bits; the caller comes back for the rest.
    let mut len = len.min(1 << 30).min(from.stat()?.size.saturating_sub(from_offset));
    if !adaptor.space.has_beside(len) {
        len = len.min(COPIED);
        to.may_write()?;
        needs_space_for(adaptor, reply, &to, (to_offset, len))?;
    }
    rights::kill_priv_of(adaptor, req, to_ino)?;
    if len > 0 && rights::leaves_last(&adaptor.volume, req, len) {
        if !adaptor.volume.has_space(1, false) {
            return Err(Errno(libc::ENOSPC));
        }
        len = len.min(adaptor.volume.free_now()?.max(4096));
    }
    if len > 0 {
        len = whole_pages(to_offset, len, to.stat()?.size)?;
    }
    let copy = if adaptor.writeback { File::copy_range_back_to } else { File::copy_range_to };
    let n = copy(&from, from_offset, &to, to_offset, len)?;
    debug_assert!(n <= len, "more was copied than was asked for");
    adaptor.took_space(n);
    reply.u32(u32::try_from(n).map_err(|_| Errno(libc::EOVERFLOW))?)?;
    reply.u32(0)
}

/// Returns how much of a range of `len` bytes at `offset` is copied into a file of `size` bytes:
/// the pages that it has as a whole, or to the end of the file. EOPNOTSUPP if there is none, or
/// the first is one in part.
///
/// The kernel drops the pages that were copied to from its cache, those in part as well, and with
/// them what was stored beside by a shared map since it wrote them back (fuse_copy_file_range says
/// so of itself). Where this says that it cannot copy, the kernel does, in its cache.
fn whole_pages(offset: u64, len: u64, size: u64) -> Wire<u64> {
    debug_assert!(len > 0, "nothing is copied");
    let page = rustix::param::page_size() as u64;
    let end = offset.saturating_add(len);
    let len = len.saturating_sub(if end < size { end % page } else { 0 });
    if len == 0 || !offset.is_multiple_of(page) { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(len) }
}

/// Writes as much as can be written. Returns how much that was, and the error that kept the rest.
fn write_all(
    file: &File,
    offset: u64,
    data: &[u8],
    put: fn(&File, &[u8], u64) -> lanefs::Result<usize>,
) -> (u32, Option<Errno>) {
    let mut done = 0;
    while done < data.len() {
        let at = offset.saturating_add(done as u64);
        match put(file, &data[done..], at) {
            Ok(0) => break,
            Ok(n) => {
                debug_assert!(n <= data.len() - done, "more was written than was given");
                done += n;
            }
            Err(e) => return (done as u32, Some(e.into())),
        }
    }
    (done as u32, None)
}
