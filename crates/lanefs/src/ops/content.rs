//! Reading and changing the content of an open file.

use super::rights::Rights;
use super::{perm, posix};
use crate::FileKind;
use crate::core::Core;
use crate::core::page_store;
use crate::core::{STEP, space};
use crate::error::{Error, Result};
use crate::memfs::Inode;
use crate::memfs::data::{Cut, DataCtx, FileData, ReadAhead, SPACE_LENT, Written};
use crate::memfs::inode::{DATASYNC, NOATIME, PRIVILEGED};
use crate::ops::{rights, xattr};
use lanefs_format::{BLOCK_SIZE, MAX_FILE_SIZE};
use lanefs_store::Claimant;
use lanefs_sync::clock::coarse_realtime_ns;

/// The number of times that space is freed for one append.
const TRIES: usize = 100;
/// The number of times that a write waits for what is lent to others.
const TURNS: usize = 50;

/// Returns whether there is no space, or none for now.
fn is_full(e: &Error) -> bool {
    e.errno() == libc::ENOSPC || e.errno() == SPACE_LENT.errno()
}

/// The kind of caller that writes.
#[derive(Clone, Copy)]
pub(crate) struct Writer {
    /// It keeps mtime, ctime and the setuid and setgid bits right by itself.
    pub keeps_times: bool,
    /// It has the pages still: they leave memory once they are written back.
    pub keeps_pages: bool,
    /// It may write without setuid and setgid being taken away.
    pub privileged: bool,
    /// The file's group, if the caller is in it.
    pub group: u32,
    /// What it writes is written back while the file grows.
    pub writes_ahead: bool,
    /// It hands over what others wrote, in another order perhaps than they did.
    pub any_order: bool,
    /// Who pays for the pages that are added.
    pub claimant: Claimant,
}

/// Reads a file's content.
pub(crate) fn read_data(
    core: &Core,
    inode: &Inode,
    data: &FileData,
    off: u64,
    buf: &mut [u8],
    ahead: &ReadAhead,
    kept: bool,
) -> Result<usize> {
    let ctx = page_store::data_ctx(core, inode);
    let read =
        if kept { data.read_uncached(&ctx, off, buf, ahead) } else { data.read(&ctx, off, buf, ahead) };
    debug_assert!(!read.as_ref().is_ok_and(|n| *n > buf.len()), "{read:?} bytes of {}", buf.len());
    debug_assert!(!matches!(read, Ok(1..)) || off < MAX_FILE_SIZE, "there is nothing at {off}");
    read
}

/// Reads a file's content if all of it is in memory.
pub(crate) fn read_cached(
    core: &Core,
    inode: &Inode,
    data: &FileData,
    off: u64,
    buf: &mut [u8],
) -> Option<usize> {
    data.read_cached(&page_store::data_ctx(core, inode), off, buf)
}

/// Moves the access time, as relatime does.
pub(crate) fn touch_atime(core: &Core, inode: &Inode) {
    if core.options.noatime {
        return;
    }
    let now = coarse_realtime_ns();
    if inode.wants_atime(now) && !inode.has_flag(NOATIME) && core.writable().is_ok() {
        inode.set_times(Some(now), None, None);
        core.journal.dirty_inode(inode, 0);
    }
}

/// Writes at `offset`, or at the end if that is `None`; returns where and how much.
pub(crate) fn write_data(
    core: &Core,
    inode: &Inode,
    data: &FileData,
    offset: Option<u64>,
    buf: &[u8],
    writer: Writer,
) -> Result<(u64, usize)> {
    core.writable()?;
    let Some(offset) = offset else {
        return write_part(core, inode, data, None, buf, writer, true);
    };
    // Unit by unit, the file being marked dirty after each: pages of a file that nobody knows
    // to be dirty are not written back, and one write may be larger than all the frames there
    // are.
    let unit = core.memfs.frames.unit() * BLOCK_SIZE;
    debug_assert!(unit >= BLOCK_SIZE, "a write would not come to an end");
    let mut done = 0;
    while done < buf.len() || done == 0 {
        let at = offset.saturating_add(done as u64);
        let part = &buf[done..buf.len().min(done + unit - at as usize % BLOCK_SIZE)];
        debug_assert!(part.len() <= unit && part.is_empty() == buf.is_empty(), "a part of {}", part.len());
        match write_part(core, inode, data, Some(at), part, writer, done == 0) {
            Err(e) if done == 0 => return Err(e),
            // The writer gets the error when it comes back for the rest.
            Err(_) => break,
            // After a part the rest is asked for: what is deleted frees space, and if nothing
            // does, that call fails.
            Ok((_, n)) => {
                debug_assert!(n <= part.len(), "{n} bytes of {} were written", part.len());
                done += n;
                if n == 0 {
                    break;
                }
            }
        }
    }
    Ok((offset, done))
}

/// Writes what is brought into memory at once; returns where and how much.
fn write_part(
    core: &Core,
    inode: &Inode,
    data: &FileData,
    offset: Option<u64>,
    buf: &[u8],
    writer: Writer,
    is_first: bool,
) -> Result<(u64, usize)> {
    if !writer.keeps_times && !buf.is_empty() {
        // Before anything of it is in memory (ops::rights, 7); and behind it, if it was
        // set meanwhile.
        drop_privilege(core, inode, &writer)?;
    }
    let ctx = match writer.keeps_times {
        // The kernel: it has accepted that already.
        true => page_store::accepted_data_ctx(core, inode),
        false => page_store::data_ctx_of(core, inode, writer.claimant),
    };
    let ctx = DataCtx { once: writer.keeps_pages, any_order: writer.any_order, ..ctx };
    let (at, w) = match offset {
        Some(o) => {
            // Not in the middle of a call that makes the file longer: it would be written back
            // with a size that it never had (SEMANTICS F2).
            let inside = || o.saturating_add(buf.len() as u64) <= data.size();
            let write = || space::with_space(core, || data.write(&ctx, o, buf));
            match write() {
                Err(e) if is_full(&e) && (is_first || inside()) => (o, write_pages_and_retry(core, write)?),
                Err(e) if is_full(&e) => return posix(libc::ENOSPC),
                r => (o, r?),
            }
        }
        None => with_pages_written(core, || append_part(core, data, &ctx, buf, writer.claimant))?,
    };
    debug_assert!(w.bytes <= buf.len(), "{} bytes of {} were written", w.bytes, buf.len());
    debug_assert!(w.bytes > 0 || !w.extended, "the file grew by nothing");
    debug_assert!(w.bytes == 0 || at + w.bytes as u64 <= MAX_FILE_SIZE, "{} bytes at {at}", w.bytes);
    if w.bytes > 0 {
        let flags = if w.extended { DATASYNC } else { 0 };
        if writer.keeps_times {
            core.journal.dirty_inode(inode, flags);
        } else {
            drop_what_came(core, inode, &writer);
            core.journal.changed(inode, true, coarse_realtime_ns(), flags);
        }
        if w.extended && writer.writes_ahead || writer.keeps_pages {
            let end = at + w.bytes as u64;
            if end / STEP != at / STEP
                && let Some(persistence) = core.persistence()
            {
                persistence.has_grown(inode, writer.keeps_pages);
            }
        }
    }
    Ok((at, w.bytes))
}

/// Appends all of it if what was deleted frees space for all; else as much as there is space for.
fn append_part(
    core: &Core,
    data: &FileData,
    ctx: &DataCtx<'_>,
    buf: &[u8],
    who: Claimant,
) -> Result<(u64, Written)> {
    let blocks = (buf.len() as u64).div_ceil(BLOCK_SIZE as u64);
    // Others take space while this thread frees it, hence again; but not for what will never
    // fit.
    let mut tries = 0;
    for _ in 0..TRIES {
        match data.append(ctx, buf, true) {
            Err(e) if e.errno() == libc::ENOSPC => {}
            r => return r,
        }
        if space::free_space(core) && core.store.has_for(who, blocks) {
            continue;
        }
        tries += 1;
        if !space::comes_back(core, tries) {
            break;
        }
    }
    data.append(ctx, buf, false)
}

/// Sets the size of a file.
#[inline]
pub(crate) fn truncate(core: &Core, inode: &Inode, size: u64) -> Result<()> {
    debug_assert!(size <= MAX_FILE_SIZE, "EFBIG comes first");
    let Some(data) = inode.data() else { return posix(libc::EINVAL) };
    if data.size() == size && !data.has_space_behind() && data.size_to_store() == size {
        // Nothing but the times changes, which the caller sees to. (A write that extends the
        // file comes after this.)
        return Ok(());
    }
    let cut = Cut { size: Some(size), time: Some(coarse_realtime_ns()), attrs: &|| inode.attrs() };
    let ctx = page_store::data_ctx(core, inode);
    core.store.watch_nodes()?;
    with_pages_written(core, || data.truncate(&ctx, size, Some(&cut)))
}

/// Runs `f`, which may write pages anew that have a block already, or space kept for one. If so
/// many such pages wait to be written back that a full volume has no space for another, they are
/// written, which gives as much back as it takes, and it runs again.
fn with_pages_written<T>(core: &Core, f: impl Fn() -> Result<T>) -> Result<T> {
    match f() {
        Err(e) if is_full(&e) => write_pages_and_retry(core, f),
        r => r,
    }
}

/// Writes dirty pages back and runs `f` again, as long as that helps. Apart: a call that finds
/// space does not look at what all lanes count.
#[cold]
fn write_pages_and_retry<T>(core: &Core, f: impl Fn() -> Result<T>) -> Result<T> {
    if core.store.is_host_short() {
        return posix(libc::ENOSPC); // They would have to wait.
    }
    let mut again = 0;
    // What is lent comes back, however often others are faster; so long as somebody writes.
    for turn in 0..TURNS {
        // Whoever syncs what cannot be written gets the error. A checkpoint frees what that gave
        // up, and with it space for the next.
        let written = super::persistence(core).and_then(|p| p.write_back_all());
        if written.is_err() || again > 0 || turn % 4 == 3 {
            space::free_space(core);
        }
        match f() {
            Err(e) if e.errno() == SPACE_LENT.errno() => {}
            Err(e) if is_full(&e) && (again == 0 || space::comes_back(core, again)) => again += 1,
            r => return r,
        }
    }
    posix(libc::ENOSPC)
}

/// Takes from a file that is written to the capabilities that it would be run with, whoever writes;
/// and setuid and setgid, where that is somebody without the right to keep them.
fn drop_privilege(core: &Core, inode: &Inode, writer: &Writer) -> Result<()> {
    if !inode.has(PRIVILEGED) {
        return Ok(());
    }
    xattr::drop_capability(core, inode)?;
    if !writer.privileged {
        let drop = Some(perm::dropping(inode.gid() == writer.group));
        rights::set_rights(core, inode, &Rights { drop, ..Rights::default() });
    }
    Ok(())
}

/// Does the same behind the write: what somebody set meanwhile. The write is done by then.
fn drop_what_came(core: &Core, inode: &Inode, writer: &Writer) {
    if let Err(e) = drop_privilege(core, inode, writer) {
        tracing::warn!("inode {}: its capabilities stay behind a write: {e}", inode.ino);
    }
}

/// Does what `fallocate(2)` does.
pub(crate) fn allocate(
    core: &Core,
    inode: &Inode,
    mode: i32,
    offset: u64,
    len: u64,
    writer: Writer,
) -> Result<()> {
    let Some(data) = inode.data() else {
        return posix(if inode.kind == FileKind::Dir { libc::EISDIR } else { libc::ENODEV });
    };
    core.writable()?;
    if len == 0 {
        return posix(libc::EINVAL);
    }
    check_range(offset, len)?;
    if !writer.keeps_times {
        drop_privilege(core, inode, &writer)?;
    }
    debug_assert!(offset + len <= MAX_FILE_SIZE, "EFBIG comes first");
    let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    core.store.watch_nodes()?;
    let ctx = page_store::data_ctx_of(core, inode, writer.claimant);
    let cut = Cut { size: None, time: None, attrs: &|| inode.attrs() };
    let dirtied = || core.journal.dirty_inode(inode, DATASYNC);
    let done = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => with_pages_written(core, || data.allocate(&ctx, offset, len, keep, &cut, &dirtied)),
        libc::FALLOC_FL_PUNCH_HOLE if keep => {
            with_pages_written(core, || data.punch_hole(&ctx, offset, len, Some(&cut)))
        }
        libc::FALLOC_FL_ZERO_RANGE => {
            with_pages_written(core, || data.zero_range(&ctx, offset, len, keep, &cut, &dirtied))
        }
        _ => return posix(libc::EOPNOTSUPP),
    };
    if done.is_err() {
        dirtied(); // some pages may be
    }
    done?;
    if writer.keeps_times {
        core.journal.dirty_inode(inode, DATASYNC);
        return Ok(());
    }
    drop_what_came(core, inode, &writer);
    let content = !keep || mode & libc::FALLOC_FL_KEEP_SIZE != mode;
    // The time of its end, as in `set_attr`.
    core.journal.changed(inode, content, coarse_realtime_ns(), DATASYNC);
    Ok(())
}

/// Checks a range of a file: EFBIG if it ends behind the largest size.
fn check_range(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_FILE_SIZE => Ok(()),
        _ => posix(libc::EFBIG),
    }
}
