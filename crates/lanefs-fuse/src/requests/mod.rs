//! Requests of the kernel, each translated into one call of the library.

mod attrs;
mod content;
#[cfg(test)]
mod fault_tests;
mod flags;
#[cfg(test)]
mod fuzz_tests;
mod ioctl;
mod listing;
mod names;
mod rights;

use crate::adaptor::Adaptor;
use crate::blocking_hook::about_to_wait;
use crate::wire::abi::{FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, op};
use crate::wire::{Answer, Errno, Origin, Reply, Request};

/// The outcome of a request; the content of its answer is in the [`Reply`].
type Wire<T> = Result<T, Errno>;

/// Requests about what somebody has already entered: these pass whoever may enter.
const INSIDE: &[u32] = &[
    op::READ,
    op::WRITE,
    op::FSYNC,
    op::RELEASE,
    op::READDIR,
    op::READDIRPLUS,
    op::RELEASEDIR,
    op::FSYNCDIR,
    op::FORGET,
    op::BATCH_FORGET,
    op::SYNCFS,
    op::DESTROY,
];

/// Requests that are refused when the mount is about to be cut off: by these the kernel would come
/// to hold something anew.
const LATE: &[u32] = &[op::OPEN, op::CREATE, op::TMPFILE, op::READ];

/// The space that a new file or name takes, about, in bytes.
const MADE: u64 = 8 << 10;

/// Makes durable all that returned before; the kernel has handed over what it held.
fn sync(adaptor: &Adaptor) -> Wire<()> {
    about_to_wait();
    Ok(adaptor.volume.sync()?)
}

/// Closes the volume: the mount is gone, and who unmounted it waits until this is answered. A guest
/// may mount again: for it all is made durable.
fn destroy(adaptor: &Adaptor) -> Wire<()> {
    about_to_wait();
    if adaptor.guest {
        // It waits, however long that takes: what it has written it has no more.
        let patience = lanefs::set_patience(None);
        let synced = adaptor.volume.sync();
        lanefs::set_patience(patience);
        return Ok(synced?);
    }
    // As long as an unmount waits here nobody can end it, nor any sync(2) on this machine. So where
    // a host has no space that goes no longer than for an fsync; who serves the mount closes the
    // volume behind it, and waits for the host.
    if !adaptor.volume.waits_for_host() || adaptor.volume.sync().is_ok() {
        adaptor.closing.close(&adaptor.volume);
    }
    Ok(())
}

/// Does what a request asks for. `origin`: where it came from, and where its answer goes.
pub(crate) fn serve(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
    debug_assert!(reply.len() == 0 && reply.answer == Answer::Now, "an answer of its own");
    if let Some(only) = adaptor.only
        && req.uid != 0
        && req.uid != only
        && !INSIDE.contains(&req.op)
    {
        return Err(Errno(libc::EACCES));
    }
    // Root may act as another user (setfsuid(2)), whose permissions nobody would check.
    if adaptor.unchecked && req.uid != 0 && !INSIDE.contains(&req.op) {
        return Err(Errno(libc::EACCES));
    }
    if adaptor.closing.has_begun() && LATE.contains(&req.op) {
        return Err(Errno(libc::EIO));
    }
    match req.op {
        op::LOOKUP => names::lookup(adaptor, req, reply),
        op::FORGET | op::BATCH_FORGET => {
            reply.answer = Answer::None;
            names::forget(adaptor, req)
        }
        op::GETATTR => attrs::getattr(adaptor, req, reply, origin),
        op::STATX => attrs::statx(adaptor, req, reply),
        op::SETATTR => attrs::setattr(adaptor, req, reply),
        op::READLINK => names::readlink(adaptor, req, reply),
        op::SYMLINK => names::symlink(adaptor, req, reply),
        op::MKNOD => names::mknod(adaptor, req, reply),
        op::MKDIR => names::mkdir(adaptor, req, reply),
        op::UNLINK => names::unlink(adaptor, req),
        op::RMDIR => names::rmdir(adaptor, req),
        op::RENAME | op::RENAME2 => names::rename(adaptor, req, reply, origin),
        op::LINK => names::link(adaptor, req, reply),
        op::OPEN => content::open(adaptor, req, reply),
        op::CREATE => content::create(adaptor, req, reply),
        op::TMPFILE => content::tmpfile(adaptor, req, reply),
        op::READ => content::read(adaptor, req, reply),
        op::WRITE => content::write(adaptor, req, reply, origin),
        op::RELEASE => content::release(adaptor, req),
        op::FSYNC => content::fsync(adaptor, req),
        op::FSYNCDIR => {
            about_to_wait();
            Ok(adaptor.volume.node_sync(req.ino)?)
        }
        // Only to be asked who enters: others must not read what the kernel keeps of a listing. And
        // where others change directories, that it keeps none.
        op::OPENDIR if adaptor.only.is_some() || adaptor.shared => reply.open_out(0, 0),
        // Only to be asked whether somebody serves: else a dead mount's directories can be opened.
        op::OPENDIR if adaptor.opens_dirs => reply.open_out(0, FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR),
        op::READDIR => listing::readdir(adaptor, req, reply),
        op::READDIRPLUS => listing::readdirplus(adaptor, req, reply),
        op::STATFS => attrs::statfs(adaptor, reply),
        // The kernel asks once, and says EOPNOTSUPP by itself from then on.
        op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR if adaptor.noxattr => {
            Err(Errno(libc::ENOSYS))
        }
        op::SETXATTR => attrs::setxattr(adaptor, req, reply),
        op::GETXATTR => attrs::getxattr(adaptor, req, reply),
        op::LISTXATTR => attrs::listxattr(adaptor, req, reply),
        op::REMOVEXATTR => attrs::removexattr(adaptor, req),
        op::ACCESS => attrs::access(adaptor, req),
        op::IOCTL => ioctl::ioctl(adaptor, req, reply, origin),
        op::FALLOCATE => content::fallocate(adaptor, req, reply),
        op::LSEEK => content::lseek(adaptor, req, reply, origin),
        op::COPY_FILE_RANGE => content::copy_file_range(adaptor, req, reply),
        op::SYNCFS => sync(adaptor),
        op::DESTROY => destroy(adaptor),
        // Among them: OPENDIR (directories are read by inode number: the kernel need not open
        // them, keeps their pages cached, and drops these itself when it changes the
        // directory), FLUSH (W4), INTERRUPT, locks.
        _ => Err(Errno(libc::ENOSYS)),
    }
}
