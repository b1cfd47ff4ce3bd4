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

use crate::adaptor::Adaptor;
use crate::blocking_hook::about_to_wait;
use crate::wire::abi::op;
use crate::wire::{Answer, Errno, Origin, Reply, Request};
use std::sync::atomic::Ordering::SeqCst;

/// How a request went; what it answers is in the [`Reply`].
type Wire<T> = Result<T, Errno>;

/// Requests about what somebody has already entered: these `allow_root` lets pass.
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

impl Adaptor {
    /// Makes durable all that returned before; the kernel has handed over what it held.
    fn sync(&self) -> Wire<()> {
        about_to_wait();
        Ok(self.volume.sync()?)
    }

    /// The mount is gone, and who unmounted it waits for this: the volume is closed when it is
    /// answered.
    fn destroy(&self) -> Wire<()> {
        about_to_wait();
        self.closing.close(&self.volume);
        Ok(())
    }

    /// Does what a request asks for. `origin`: where it came from, and where its answer goes.
    pub(crate) fn serve(&self, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
        if let Some(only) = self.only
            && req.uid != 0
            && req.uid != only
            && !INSIDE.contains(&req.op)
        {
            return Err(Errno(libc::EACCES));
        }
        if self.closing.begun.load(SeqCst) && LATE.contains(&req.op) {
            return Err(Errno(libc::EIO));
        }
        match req.op {
            op::LOOKUP => self.lookup(req, reply),
            op::FORGET | op::BATCH_FORGET => {
                reply.answer = Answer::None;
                self.forget(req)
            }
            op::GETATTR => self.getattr(req, reply, origin),
            op::STATX => self.statx(req, reply),
            op::SETATTR => self.setattr(req, reply),
            op::READLINK => self.readlink(req, reply),
            op::SYMLINK => self.symlink(req, reply),
            op::MKNOD => self.mknod(req, reply),
            op::MKDIR => self.mkdir(req, reply),
            op::UNLINK => self.unlink(req),
            op::RMDIR => self.rmdir(req),
            op::RENAME | op::RENAME2 => self.rename(req),
            op::LINK => self.link(req, reply),
            op::OPEN => self.open(req, reply),
            op::CREATE => self.create(req, reply),
            op::TMPFILE => self.tmpfile(req, reply),
            op::READ => self.read(req, reply),
            op::WRITE => self.write(req, reply, origin),
            op::RELEASE => self.release(req),
            op::FSYNC => self.fsync(req),
            op::FSYNCDIR => {
                about_to_wait();
                Ok(self.volume.node_sync(req.ino)?)
            }
            // Only to be asked who enters: others must not read what the kernel keeps of a listing.
            op::OPENDIR if self.only.is_some() => reply.open_out(0, 0),
            op::READDIR => self.readdir(req, reply),
            op::READDIRPLUS => self.readdirplus(req, reply),
            op::STATFS => self.statfs(reply),
            op::SETXATTR => self.setxattr(req),
            op::GETXATTR => self.getxattr(req, reply),
            op::LISTXATTR => self.listxattr(req, reply),
            op::REMOVEXATTR => self.removexattr(req),
            op::ACCESS => self.access(req),
            op::IOCTL => self.ioctl(req, reply),
            op::FALLOCATE => self.fallocate(req),
            op::LSEEK => self.lseek(req, reply, origin),
            op::COPY_FILE_RANGE => self.copy_file_range(req, reply),
            op::SYNCFS => self.sync(),
            op::DESTROY => self.destroy(),
            // Among them: OPENDIR (directories are read by inode number: the kernel need not open
            // them, keeps their pages cached, and drops these itself when it changes the
            // directory), FLUSH (W4), INTERRUPT, locks.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}
