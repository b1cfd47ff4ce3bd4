//! `ioctl`: what there is beyond the calls that every file system has.
//!
//! The kernel moves an argument for us whose size and direction are in the command's number, and
//! nothing else. The shutdown's number means that it is written to the caller, though the caller's
//! flags lie there: they are read out of the caller's memory, which waits for the answer.

use super::Wire;
use super::flags::{self, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS};
use crate::about::{ABOUT_SIZE, IOC_ABOUT, encode};
use crate::adaptor::Adaptor;
use crate::aside::{Job, What};
use crate::blocking_hook::{about_to_wait, about_to_wait_for_requests};
use crate::change::{self, CHANGE_SIZE, DEVICE_SIZE, IOC_DEVICE, IOC_GROW, IOC_LABEL};
use crate::report::{IOC_REPORT, REPORT_SIZE};
use crate::scrub::{IOC_SCRUB, SCRUB_SIZE, serve};
use crate::translate::root;
use crate::wire::abi::IOCTL_DIR;
use crate::wire::{Answer, Errno, Origin, Reply, Request};
use crate::{IOC_FITRIM, IOC_GETPID, IOC_GOINGDOWN, IOC_SYNC};
use lanefs::Cred;
use lanefs::device::FileDevice;
use lanefs::inode_flags::IMMUTABLE;
use std::sync::Arc;

/// The flag of the shutdown that has names that changed made durable first; without any flag, all
/// there is.
const LOGFLUSH: u32 = 1;
/// The flag of a shutdown as by a crash.
const NOLOGFLUSH: u32 = 2;

/// An inode's version, which the command's number calls a long, and a program takes as 32 bits.
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
/// The same, of a program of 32 bits.
const FS_IOC32_GETVERSION: u32 = 0x8004_7601;
/// The UUID of the volume: how many bytes it has, and these. Linux before 6.9 asks us; newer ones
/// answer by themselves that there is none.
const FS_IOC_GETFSUUID: u32 = 0x8011_1500;
/// The label, up to the first zero.
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
/// The most bytes of a label, with a zero at the end.
const FSLABEL_MAX: usize = 256;

const _: () = assert!(FS_IOC_GETFSLABEL >> 16 & 0x3fff == FSLABEL_MAX as u32);

/// An `ioctl` as it came.
struct Call<'a> {
    /// Whether it was called on a directory.
    is_dir: bool,
    command: u32,
    /// The address of the argument in the caller.
    at: u64,
    /// The bytes that the kernel has read there.
    given: &'a [u8],
    /// The most bytes of an answer.
    capacity: usize,
}

pub(super) fn ioctl(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
    let mut a = req.args();
    a.skip(8)?; // the handle
    let (flags, command, at) = (a.u32()?, a.u32()?, a.u64()?);
    let (size, capacity) = (a.u32()? as usize, a.u32()? as usize);
    let call = Call { is_dir: flags & IOCTL_DIR != 0, command, at, given: a.bytes(size)?, capacity };
    if let Some(flags) = closing_flags(adaptor, req, &call)? {
        match origin {
            Origin::Device(device) => {
                reply.answer = Answer::Elsewhere;
                let (device, what) = (Arc::clone(device), What::Flags(flags));
                return adaptor.aside.answer(Job { ino: req.ino, what, unique: req.unique, device });
            }
            // A guest opens files by a request, so the flags close nothing.
            Origin::Ring | Origin::Guest => {
                about_to_wait_for_requests();
                adaptor.aside.flush_kernel_pages(req.ino);
            }
        }
    }
    let answer = answer_ioctl(adaptor, req, &call)?;
    let most = (command >> 16 & 0x3fff) as usize;
    debug_assert!(answer.len() <= most, "the command's number states the size of its argument");
    if answer.len() > call.capacity {
        return Err(Errno(libc::EINVAL));
    }
    reply.put(&[0; 16])?; // the result, and that nothing has to be tried again
    reply.put(&answer)
}

/// Does what the call asks for, and returns the bytes of the answer.
fn answer_ioctl(adaptor: &Adaptor, req: &Request<'_>, call: &Call<'_>) -> Wire<Vec<u8>> {
    let serves = |user| !adaptor.guest && user == rustix::process::geteuid().as_raw();
    let mine = || req.user().is_some_and(|u| u == 0 || serves(u));
    match call.command {
        // What the host has of processes and space is not a guest's.
        IOC_GETPID | IOC_GROW | IOC_DEVICE if adaptor.guest => Err(Errno(libc::ENOTTY)),
        IOC_GOINGDOWN => go_down(adaptor, req, call).map(|()| Vec::new()),
        FS_IOC_GETFLAGS | FS_IOC_FSGETXATTR => {
            flags::encode(call.command, adaptor.volume.node_flags(req.ino)?)
        }
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR => set_flags(adaptor, req, call).map(|()| Vec::new()),
        FS_IOC_GETVERSION | FS_IOC32_GETVERSION => {
            let stat = adaptor.volume.node_stat(req.ino)?;
            Ok(adaptor.volume.handle_generation(&stat).to_ne_bytes().to_vec())
        }
        FS_IOC_GETFSUUID => Ok(uuid(adaptor)),
        FS_IOC_GETFSLABEL => Ok(label(adaptor)),
        _ if !call.is_dir => Err(Errno(libc::ENOTTY)),
        IOC_GETPID => Ok(std::process::id().to_ne_bytes().to_vec()),
        IOC_ABOUT if call.capacity < ABOUT_SIZE => Err(Errno(libc::EINVAL)),
        IOC_ABOUT => Ok(encode(&adaptor.volume.info(), &adaptor.volume.statfs()?)),
        IOC_REPORT if call.capacity < REPORT_SIZE => Err(Errno(libc::EINVAL)),
        IOC_REPORT => {
            about_to_wait();
            Ok(adaptor.reports.serve(call.given, mine()).ok_or(Errno(libc::EINVAL))??)
        }
        IOC_SYNC if !mine() => Err(Errno(libc::EPERM)),
        IOC_SCRUB | IOC_GROW | IOC_LABEL | IOC_DEVICE if !req.administers(adaptor.guest) => {
            Err(Errno(libc::EPERM))
        }
        IOC_SYNC => {
            about_to_wait();
            adaptor.volume.sync()?;
            Ok(Vec::new())
        }
        IOC_SCRUB if call.capacity < SCRUB_SIZE => Err(Errno(libc::EINVAL)),
        IOC_SCRUB => {
            about_to_wait();
            Ok(serve(&adaptor.volume, call.given).ok_or(Errno(libc::EINVAL))??)
        }
        IOC_GROW | IOC_LABEL if call.capacity < CHANGE_SIZE => Err(Errno(libc::EINVAL)),
        IOC_GROW => {
            about_to_wait();
            let done = change::grow(&adaptor.volume, call.given).ok_or(Errno(libc::EINVAL))??;
            // There may be space now for what the kernel gathers.
            adaptor.space.look();
            Ok(done)
        }
        IOC_DEVICE if call.capacity < DEVICE_SIZE => Err(Errno(libc::EINVAL)),
        IOC_DEVICE => {
            about_to_wait();
            let its = |new: &FileDevice| req.writes_to(new);
            let done = change::device(&adaptor.volume, call.given, &its).ok_or(Errno(libc::EINVAL))??;
            adaptor.space.look(); // As above.
            Ok(done)
        }
        IOC_LABEL => {
            about_to_wait();
            Ok(change::label(&adaptor.volume, call.given).ok_or(Errno(libc::EINVAL))??)
        }
        IOC_FITRIM => trim(adaptor, req, call),
        _ => Err(Errno(libc::ENOTTY)),
    }
}

/// Returns the volume's UUID as FS_IOC_GETFSUUID tells it.
fn uuid(adaptor: &Adaptor) -> Vec<u8> {
    let uuid = adaptor.volume.info().uuid;
    let mut told = vec![uuid.len() as u8];
    told.extend(uuid);
    debug_assert_eq!(told.len() as u32, FS_IOC_GETFSUUID >> 16 & 0x3fff);
    told
}

/// Returns the volume's label as FS_IOC_GETFSLABEL tells it.
fn label(adaptor: &Adaptor) -> Vec<u8> {
    let label = adaptor.volume.info().label;
    debug_assert!(label.len() < FSLABEL_MAX, "no zero follows a label of {} bytes", label.len());
    let mut told = label.into_bytes();
    told.resize(FSLABEL_MAX, 0);
    told
}

/// Returns the flags that the call sets if pages of the kernel's cache would be refused from then
/// on (N3 of `requests::content`): what the kernel has accepted before has to be written first.
fn closing_flags(adaptor: &Adaptor, req: &Request<'_>, call: &Call<'_>) -> Wire<Option<u32>> {
    let sets = matches!(call.command, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR);
    if !sets || !adaptor.stateless || !adaptor.checks_flags || !adaptor.known.is_cached(req.ino) {
        return Ok(None);
    }
    let flags = flags::decode(call.command, call.given)?;
    Ok((flags & IMMUTABLE != 0).then_some(flags))
}

/// Sets flags of an inode, as chattr(1) asks for.
fn set_flags(adaptor: &Adaptor, req: &Request<'_>, call: &Call<'_>) -> Wire<()> {
    let flags = flags::decode(call.command, call.given)?;
    let cred = match (adaptor.checks_flags, req.user()) {
        (true, _) => root(),
        (_, Some(user)) => Cred::user(user, req.gid, &[]),
        _ => return Err(Errno(libc::EPERM)),
    };
    debug_assert!(cred.prechecked || !adaptor.checks_flags, "the kernel has checked");
    adaptor.volume.node_set_flags(&cred, req.ino, flags)?;
    adaptor.aside.attributes_changed(req.ino);
    Ok(())
}

/// Discards what is free, as fstrim(8) asks for.
fn trim(adaptor: &Adaptor, req: &Request<'_>, call: &Call<'_>) -> Wire<Vec<u8>> {
    if !req.administers(adaptor.guest) {
        return Err(Errno(libc::EPERM));
    }
    let words = call.given.as_chunks::<8>().0;
    let [start, len, least] = words else { return Err(Errno(libc::EINVAL)) };
    let [start, len, least] = [start, len, least].map(|w| u64::from_ne_bytes(*w));
    if least > adaptor.volume.segment_bytes() {
        return Err(Errno(libc::EINVAL));
    }
    about_to_wait();
    let discarded = adaptor.volume.trim(start..start.saturating_add(len))?;
    debug_assert!(discarded <= len, "more was discarded than was asked for");
    Ok([start, discarded, least].iter().flat_map(|w| w.to_ne_bytes()).collect())
}

/// Stops the volume as a crash would, after what the caller's flags want made durable.
fn go_down(adaptor: &Adaptor, req: &Request<'_>, call: &Call<'_>) -> Wire<()> {
    if !req.administers(adaptor.guest) {
        return Err(Errno(libc::EPERM));
    }
    let flags = word_of(req.pid, call.at).unwrap_or(NOLOGFLUSH);
    about_to_wait();
    // What cannot be made durable does not keep the volume up.
    let done = match flags {
        0 => adaptor.volume.sync(),
        LOGFLUSH => adaptor.volume.checkpoint(),
        NOLOGFLUSH => Ok(()),
        _ => return Err(Errno(libc::EINVAL)),
    };
    adaptor.volume.shutdown();
    debug_assert!(adaptor.volume.node_stat(req.ino).is_err(), "a volume that is shut down serves nobody");
    Ok(done?)
}

/// Reads the word at an address of the thread `pid`; `None` if it cannot be read by us.
fn word_of(pid: u32, address: u64) -> Option<u32> {
    let pid = i32::try_from(pid).ok().filter(|p| *p > 0)?;
    let mut word = [0u8; 4];
    let mine = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: word.len() };
    // SAFETY: the kernel writes at most the four bytes of `word` through the first vector, which
    // lives until the call returns; the second is an address of another process, which the kernel
    // checks there.
    let n = unsafe { libc::process_vm_readv(pid, &raw const mine, 1, &raw const theirs, 1, 0) };
    (n == 4).then(|| u32::from_ne_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor_tests::{AGREED, adaptor_of};
    use lanefs::Volume;

    /// What no test on a mount sees since Linux 6.9, and the sizes of the others.
    #[test]
    fn identity_is_told_in_the_sizes_of_the_commands() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.set_label("home").unwrap();
        let (adaptor, _) = adaptor_of(volume.clone(), AGREED);
        let told = uuid(&adaptor);
        assert_eq!((told[0], &told[1..]), (16, &volume.info().uuid[..]));
        assert_eq!(label(&adaptor)[..6], *b"home\0\0");
        assert_eq!(label(&adaptor).len(), 256);
        adaptor.end();
    }

    #[test]
    fn a_word_of_a_caller_is_read() {
        let word = 0x1234_5678u32;
        assert_eq!(word_of(std::process::id(), (&raw const word).addr() as u64), Some(word));
        assert_eq!(word_of(std::process::id(), 8), None);
        assert_eq!(word_of(0, (&raw const word).addr() as u64), None);
    }
}
