//! `lanefs umount`

use crate::failure::{About, Failure, Outcome};
use crate::mounted;
use crate::mountinfo::{self, Mount};
use crate::names;
use lanefs_store::{Store, StoreError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time for which a server that has closed its images is waited for to end: it may be a program
/// with other things to do.
const UNTIL_ENDED: Duration = Duration::from_millis(200);

/// Unmount a volume, and wait until its image is closed
///
/// Fails if the image could not be closed cleanly.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Take the mount away at once; who uses it keeps it until done. Does not wait
    #[arg(long, short)]
    pub lazy: bool,
    /// Where the volume is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Unmounts.
pub fn run(args: &Args) -> Outcome {
    let dir = resolve(&args.dir)?;
    let mount = mountinfo::at(&dir).about("/proc/self/mountinfo")?.ok_or_else(|| {
        Failure::new(format_args!(
            "{}: no LaneFS volume is mounted here; see `findmnt -t fuse.lanefs,fuseblk.lanefs`",
            dir.display()
        ))
    })?;
    if mount.covered {
        return Err(Failure::new(format_args!(
            "{0}: something else is mounted on top of the LaneFS volume; unmount that first, see `findmnt {0}`",
            dir.display()
        )));
    }
    // The mount of another user names a server and images that are not to be believed: whoever
    // waits for these may wait for ever.
    let believed = mount.user.is_none_or(|user| user == rustix::process::geteuid().as_raw());
    let server = if believed { server_of(&dir) } else { None };
    let images: Vec<PathBuf> = names::images(&mount.source).iter().map(|i| names::behind(i)).collect();
    let told = detach_telling(&dir, &mount, args.lazy, if believed { &images } else { &[] })?;
    if args.lazy || !believed {
        return Ok(0);
    }
    // Of a server that was gone before there is nothing to report: whoever comes here then has seen
    // calls fail.
    let closed_here = server.is_some() && !mount.read_only;
    if let Some(kept) = wait_until_closed(server, &images, &mount, told) {
        eprintln!("lanefs: {}: unmounted; the volume stays open, for it is mounted {kept}", dir.display());
        return Ok(0);
    }
    if !closed_here {
        return Ok(0);
    }
    let closed = was_closed(&images);
    let images: Vec<String> = images.iter().map(|i| i.display().to_string()).collect();
    let images = images.join(" ");
    let reason = "look for the reason in the log (mount -o log=FILE) and in that of the kernel";
    match closed {
        Ok(None | Some(true)) => Ok(0),
        Ok(Some(false)) => Err(Failure::new(format_args!(
            "{images}: unmounted, but the volume was not closed cleanly: what was synced is safe, and something \
             else that programs had written may be lost. Run `lanefs fsck {images}`, and {reason}"
        ))),
        Err(e) => Err(Failure::new(format_args!(
            "{images}: unmounted, but the volume cannot be read: {e}. It may not have been closed cleanly; {reason}"
        ))),
    }
}

/// Returns whether the volume was closed; `None` if it cannot be known: who unmounts may not read
/// the images, somebody has them open, or other devices have come in their place. What the system
/// cannot read, and what has become shorter than the volume, is an error.
fn was_closed(images: &[PathBuf]) -> Result<Option<bool>, StoreError> {
    match super::info::devices(images).and_then(Store::was_closed) {
        Err(e) if e.errno() != libc::EIO && !matches!(e, StoreError::TooShort { .. }) => Ok(None),
        closed => closed.map(Some),
    }
}

/// Returns the mountpoint as the mount table has it, also if nobody answers there any more.
fn resolve(dir: &Path) -> Result<PathBuf, Failure> {
    match dir.canonicalize() {
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            let whole = std::path::absolute(dir).about(dir.display())?;
            match (whole.parent(), whole.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize().about(dir.display())?.join(name)),
                _ => Ok(whole),
            }
        }
        r => r.about(dir.display()),
    }
}

/// Returns the serving process, if it answers.
fn server_of(dir: &Path) -> Option<OwnedFd> {
    let dir = File::open(dir).ok()?;
    let mut pid = 0u32;
    // SAFETY: the ioctl writes one u32 through the pointer, which is valid for that.
    let answered =
        unsafe { libc::ioctl(dir.as_raw_fd(), lanefs_fuse::IOC_GETPID as libc::Ioctl, &raw mut pid) };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    if answered == 0 {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    } else {
        None
    }
}

/// Unmounts, and tells meanwhile what that may wait for if it takes long: the kernel asks the
/// server to write what it holds. Returns whether it was told.
fn detach_telling(dir: &Path, mount: &Mount, lazy: bool, images: &[PathBuf]) -> Result<bool, Failure> {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        let unmount = move || done.send(detach(dir, mount, lazy));
        if std::thread::Builder::new().spawn_scoped(s, unmount).is_err() {
            return detach(dir, mount, lazy).map(|()| false);
        }
        let (result, told) = match wait.recv_timeout(mounted::UNTIL_TOLD) {
            Ok(result) => (result, false),
            Err(_) => {
                let told = mounted::tell_full_hosts(images);
                (wait.recv().unwrap_or(Ok(())), told)
            }
        };
        result.map(|()| told)
    })
}

/// Unmounts, by fusermount3 where the kernel does not allow it.
fn detach(dir: &Path, mount: &Mount, lazy: bool) -> Result<(), Failure> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(busy(dir)),
        Err(rustix::io::Errno::PERM) => {
            let me = rustix::process::getuid().as_raw();
            if let Some(other) = mount.user.filter(|u| *u != me) {
                return Err(Failure::new(format_args!(
                    "{}: permission denied: user {other} mounted it, who may unmount it, as root may",
                    dir.display()
                )));
            }
            let mut helper = std::process::Command::new("fusermount3");
            helper.arg("-u").arg("-q").args(lazy.then_some("-z")).arg("--").arg(dir);
            match helper
                .status()
                .about("fusermount3, which unmounts for ordinary users, cannot be run; install fuse3")?
            {
                s if s.success() => Ok(()),
                _ => Err(busy(dir)),
            }
        }
        Err(e) => Err(std::io::Error::from(e)).about(dir.display()),
    }
}

fn busy(dir: &Path) -> Failure {
    let dir = dir.display();
    Failure::new(format_args!("{dir}: in use; see who with `fuser -vm {dir}`, or give --lazy"))
}

/// Returns where a mount that was taken away is seen still: by another name, or in the mount
/// namespace of other processes, which is looked at only if `everywhere`.
fn kept_at(mount: &Mount, everywhere: bool) -> Option<String> {
    let here = mountinfo::lanefs_mounts().ok()?.into_iter().find(|m| m.device == mount.device);
    if let Some(other) = here {
        return Some(format!("at {}, too; unmount that", other.dir.display()));
    }
    let elsewhere = if everywhere { mountinfo::elsewhere(&mount.device) } else { Vec::new() };
    let (pid, dir) = elsewhere.into_iter().next()?;
    Some(format!(
        "at {} in the mount namespace of process {pid}, too; `nsenter -t {pid} -m umount {0}` unmounts that",
        dir.display()
    ))
}

/// Waits until the server has ended, or has let go of all images (it may be a program with other
/// things to do). Returns where the mount is seen still, if that is why it does not.
/// `told`: that these wait for their hosts has been said.
fn wait_until_closed(
    server: Option<OwnedFd>,
    images: &[PathBuf],
    mount: &Mount,
    told: bool,
) -> Option<String> {
    let server = server?;
    if let Some(kept) = kept_at(mount, false) {
        return Some(kept);
    }
    let (since, mut looked, mut closed) = (Instant::now(), false, None);
    let mut patience = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    loop {
        let mut ended = [PollFd::new(&server, PollFlags::IN)];
        if matches!(rustix::event::poll(&mut ended, Some(&patience)), Ok(1..)) {
            return None;
        }
        debug_assert!((1..1_000_000_000).contains(&patience.tv_nsec), "a wait without end, or none");
        patience.tv_nsec = (patience.tv_nsec * 2).min(50_000_000);
        // A server of nothing else ends then, and takes its socket and the like along.
        if closed.is_some_and(|at: Instant| at.elapsed() > UNTIL_ENDED) {
            return None;
        }
        if closed.is_none() && !images.is_empty() && images.iter().all(|i| is_free(i)) {
            closed = Some(Instant::now());
        }
        if !looked && since.elapsed() > mounted::UNTIL_TOLD {
            looked = true;
            if let Some(kept) = kept_at(mount, true) {
                return Some(kept);
            }
            if !told {
                mounted::tell_full_hosts(images);
            }
        }
    }
}

/// Returns whether nobody holds the lock of an image. What cannot be opened is not known to be
/// free.
fn is_free(image: &Path) -> bool {
    // Not a pipe, which would wait for a writer.
    let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(image);
    open().is_ok_and(|f| rustix::fs::flock(&f, FlockOperation::NonBlockingLockShared).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount may name a pipe as its image, which waits for a writer when it is opened.
    #[test]
    fn a_pipe_in_place_of_an_image_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("image");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let _ = is_free(&pipe);
    }
}
