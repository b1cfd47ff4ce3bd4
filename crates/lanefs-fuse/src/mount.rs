//! Attaching to the name space: by mount(2) when we may, else by the setuid helper fusermount3.

use crate::MountConfig;
use crate::control::Abort;
use crate::passing;
use crate::watchdog::Held;
use crate::wire::Device;
use rustix::mount::UnmountFlags;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A mount of ours, and how it is taken down again.
pub(crate) struct Attached {
    mountpoint: PathBuf,
    /// The mount's own number and its device's, which name it whatever is mounted on top; `None`:
    /// the table of mounts could not be read.
    which: Option<Which>,
    way: Way,
}

/// The way a mount was made, and is taken down.
enum Way {
    /// By umount(2).
    Direct,
    /// By fusermount3. With `auto_unmount` it waits at the other end of the socket for the end of
    /// this process, or of the mount.
    ByHelper(Option<UnixStream>),
}

/// An entry of the table of mounts.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Which {
    id: u64,
    parent: u64,
    /// The device's numbers, which are those of the FUSE connection.
    device: (u32, u32),
    kind: String,
}

/// Mounts. The kernel's first request is waiting at the device then.
pub(crate) fn attach(mountpoint: &Path, config: &MountConfig) -> io::Result<(Device, Attached)> {
    let mountpoint = mountpoint.canonicalize()?;
    let mode = mountpoint.metadata()?.mode();
    if mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    // The kernel itself keeps others out without `allow_other`; only `allow_root` is left to the
    // server.
    let me = rustix::process::geteuid();
    let others = config.others_may_enter(me.as_raw());
    if me.is_root() && !config.auto_unmount {
        let device = mount_directly(&mountpoint, mode, others, config)?;
        return Ok((device, Attached::new(mountpoint, Way::Direct)));
    }
    let (device, socket) = mount_by_helper(&mountpoint, others, config)?;
    Ok((device, Attached::new(mountpoint, Way::ByHelper(socket))))
}

/// Mounts by mount(2).
fn mount_directly(mountpoint: &Path, mode: u32, others: bool, config: &MountConfig) -> io::Result<Device> {
    debug_assert!(mountpoint.is_absolute(), "it is found again in the table of mounts");
    debug_assert_eq!(mode & libc::S_IFMT, libc::S_IFDIR, "a directory, as the volume's root");
    let device = Device::open()?;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_fd().as_raw_fd(),
        mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    debug_assert!(!others || !config.is_unchecked(), "others may do what their modes forbid");
    for (on, option) in [(!config.is_unchecked(), ",default_permissions"), (others, ",allow_other")] {
        data.push_str(if on { option } else { "" });
    }
    let mount = |source: &str, kind, data: String| -> io::Result<()> {
        let data = CString::new(data)?;
        Ok(rustix::mount::mount(source, mountpoint, kind, config.flags(), data.as_c_str())?)
    };
    if let Some(block_device) = &config.block_device {
        match mount(block_device, "fuseblk.lanefs", format!("{data},blksize=4096")) {
            Ok(()) => return Ok(device),
            // A kernel may have no such type, or let nobody write to a block device that is
            // mounted.
            Err(e) => tracing::warn!(
                "{}: cannot be mounted as a block device ({e}): sync and syncfs are no promise; fsync is",
                config.source
            ),
        }
    }
    mount(&config.source, "fuse.lanefs", data)?;
    Ok(device)
}

/// Has fusermount3, which is setuid root, mount; it sends the device through a socket.
fn mount_by_helper(
    mountpoint: &Path,
    others: bool,
    config: &MountConfig,
) -> io::Result<(Device, Option<UnixStream>)> {
    debug_assert!(mountpoint.is_absolute(), "the helper may look from elsewhere");
    let Some(helper) = helper() else {
        let what = "fusermount3, which mounts for ordinary users: not found; install fuse3";
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    };
    let (mine, theirs) = UnixStream::pair()?;
    // Inherited, with a number that the child gets. Not by a hook after the fork: that would make
    // it a real fork, and no ring of a device may live through one.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    // One that stays until the mount is gone is no child of this process, whose program may wait
    // for all it has.
    let mut command = Command::new("/bin/sh");
    match config.auto_unmount {
        true => {
            command.args(["-c", "\"$0\" \"$@\" &"]).arg(&helper);
        }
        false => command = Command::new(&helper),
    }
    let mut child = command
        .arg("-o")
        .arg(helper_options(others, config))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", helper.display())))?;
    drop(theirs);
    let Some(device) = passing::receive(&mine)? else {
        let mut message = String::new();
        if let Some(mut err) = child.stderr.take() {
            let _ = err.read_to_string(&mut message);
        }
        let _ = child.wait();
        return Err(io::Error::other(with_advice(message.trim().replace('\n', "; "))));
    };
    // Where a program has the kernel wait for its children, there is nothing to wait for.
    let _ = child.wait();
    Ok((device.into(), config.auto_unmount.then_some(mine)))
}

/// Returns the helper by its path, if it is installed.
pub(crate) fn helper() -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join("fusermount3")).find(|path| path.is_file())
}

/// Adds advice to a message of fusermount3 if it may not open the device: it opens that as the user
/// who called it.
fn with_advice(message: String) -> String {
    match message.contains("/dev/fuse") && message.contains("Permission denied") {
        true => format!("{message}; {}", crate::wire::NOT_ALLOWED),
        false => message,
    }
}

/// Returns the options for fusermount3.
fn helper_options(others: bool, config: &MountConfig) -> String {
    debug_assert!(!config.is_unchecked(), "the helper has the kernel check modes");
    // fusermount3 splits at commas and takes a backslash for an escape.
    let source = config.source.replace('\\', "\\\\").replace(',', "\\,");
    debug_assert_eq!(source.replace("\\\\", "").replace("\\,", "").find(['\\', ',']), None, "one option");
    let mut options = format!("fsname={source},subtype=lanefs,default_permissions");
    options += if config.suid { ",suid" } else { ",nosuid" };
    options += if config.dev { ",dev" } else { ",nodev" };
    for (on, option) in [
        (others, ",allow_other"),
        (config.read_only, ",ro"),
        (config.noexec, ",noexec"),
        (config.noatime, ",noatime"),
        (config.sync, ",sync"),
        (config.dirsync, ",dirsync"),
        (config.auto_unmount, ",auto_unmount"),
    ] {
        if on {
            options += option;
        }
    }
    options
}

impl Attached {
    /// Describes the mount that was just made at `mountpoint`.
    fn new(mountpoint: PathBuf, way: Way) -> Attached {
        let which = mounts_at(&mountpoint).and_then(|all| topmost(&all).cloned());
        Attached { which: which.filter(|w| w.kind.starts_with("fuse")), mountpoint, way }
    }

    /// Returns the directory of the mount.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the directory of the kernel's knobs for the mount's device.
    pub(crate) fn knobs(&self) -> Option<PathBuf> {
        let which = self.which.as_ref()?;
        let ((major, minor), of_block) = (which.device, which.kind.starts_with("fuseblk"));
        let suffix = if of_block { "-fuseblk" } else { "" };
        Some(PathBuf::from(format!("/sys/class/bdi/{major}:{minor}{suffix}")))
    }

    /// Lets the kernel read ahead by whole requests, and gather as many writes as for any other
    /// file system (FUSE starts with a hundredth, for servers that may not be trusted). Best
    /// effort: only root may.
    pub(crate) fn tune(&self, config: &MountConfig) {
        let Some(bdi) = self.knobs() else { return };
        let read_ahead = (config.max_write / 1024).to_string();
        for (knob, value) in
            [("read_ahead_kb", read_ahead.as_str()), ("max_ratio", "100"), ("strict_limit", "0")]
        {
            let _ = std::fs::write(bdi.join(knob), value);
        }
    }

    /// Checks that the mount can be reached by the mountpoint's name: ENOENT if it is gone, EBUSY
    /// if another lies on top of it, since whatever is done by that name would be done to that one.
    fn check(&self) -> io::Result<()> {
        let error = |e| Err(io::Error::from_raw_os_error(e));
        let (Some(mine), Some(all)) = (&self.which, mounts_at(&self.mountpoint)) else { return Ok(()) };
        match topmost(&all) {
            Some(top) if top == mine => Ok(()),
            _ if all.contains(mine) => error(libc::EBUSY),
            _ => error(libc::ENOENT),
        }
    }

    /// Unmounts if nobody uses the mount; EBUSY otherwise.
    pub(crate) fn detach_if_idle(&self) -> io::Result<()> {
        self.check()?;
        match &self.way {
            Way::Direct => Ok(rustix::mount::unmount(&self.mountpoint, UnmountFlags::NOFOLLOW)?),
            Way::ByHelper(waiting) => {
                unmount_by_helper(&self.mountpoint, &["-u", "-q"])?;
                waiting.as_ref().map_or(Ok(()), has_unmounted)
            }
        }
    }

    /// Takes the mount out of the name space now; those who use it keep it until they are done.
    pub(crate) fn detach(&self) -> io::Result<()> {
        self.check()?;
        match &self.way {
            Way::Direct => Ok(rustix::mount::unmount(&self.mountpoint, DETACHED)?),
            Way::ByHelper(Some(waiting)) if has_unmounted(waiting).is_ok() && self.check().is_err() => Ok(()),
            Way::ByHelper(_) => unmount_by_helper(&self.mountpoint, &["-u", "-q", "-z"]),
        }
    }

    /// Opens the mount's root directory; `None` if it cannot be had: another mount lies on top, or
    /// it does not answer.
    pub(crate) fn root(&self) -> Option<File> {
        self.check().ok()?;
        File::open(&self.mountpoint).ok()
    }

    /// Opens what cuts the connection, whoever does so and whatever is mounted on top.
    pub(crate) fn abort_file(&self) -> io::Result<Abort> {
        let which = self.which.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        debug_assert!(which.kind.starts_with("fuse"), "only these have a connection");
        Abort::open(which.device)
    }

    /// Returns who waits to unmount when this process has ended.
    pub(crate) fn held(&self) -> Option<Held<'_>> {
        let Way::ByHelper(Some(waiting)) = &self.way else { return None };
        Some(Held { waiting: waiting.as_fd(), mountpoint: self.mountpoint.as_os_str().as_bytes() })
    }

    /// Cuts the connection: every call in progress and every later one on the mount fails. False if
    /// there was no way to.
    pub(crate) fn abort(&self) -> bool {
        let mut cut = false;
        if matches!(self.way, Way::Direct) && self.check().is_ok() {
            // EBUSY is the expected answer: the force is in the cut, not in the unmount.
            let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
            cut = true;
        }
        cut |= self.abort_file().and_then(|file| file.cut()).is_ok();
        cut
    }
}

/// The flags of umount(2) for a mount that leaves the name space at once.
const DETACHED: UnmountFlags = UnmountFlags::DETACH.union(UnmountFlags::NOFOLLOW);

/// Has the waiting helper unmount, and waits until it has: what is mounted there afterwards must
/// not be taken for this mount.
fn has_unmounted(waiting: &UnixStream) -> io::Result<()> {
    waiting.shutdown(std::net::Shutdown::Write)?;
    waiting.set_read_timeout(Some(HELPER_TAKES))?;
    let mut reads = waiting;
    let said = reads.read(&mut [0])?;
    debug_assert_eq!(said, 0, "it sends the device, and no more");
    match said {
        0 => Ok(()),
        _ => Err(io::Error::other("fusermount3 said something unknown")),
    }
}

/// The time after which the waiting helper is not waited for any more.
const HELPER_TAKES: Duration = Duration::from_secs(10);

/// Takes mounts of LaneFS off a directory whose serving process has ended without unmounting.
/// Returns how many there were.
///
/// # Errors
/// Those of umount(2) or fusermount3.
pub fn remove_dead_mounts(mountpoint: &Path) -> io::Result<usize> {
    let mut removed = 0;
    while std::fs::metadata(mountpoint).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN)) {
        let path = mountpoint.canonicalize().or_else(|_| std::path::absolute(mountpoint))?;
        let top = mounts_at(&path).and_then(|all| topmost(&all).cloned());
        if !top.is_some_and(|top| top.kind.ends_with(".lanefs")) {
            return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        }
        match rustix::mount::unmount(&path, DETACHED) {
            Err(rustix::io::Errno::PERM) => unmount_by_helper(&path, &["-u", "-q", "-z"])?,
            done => done?,
        }
        removed += 1;
        debug_assert!(removed <= 1000, "{}: a dead mount stays", path.display());
    }
    Ok(removed)
}

/// Unmounts by fusermount3.
fn unmount_by_helper(mountpoint: &Path, how: &[&str]) -> io::Result<()> {
    let done = Command::new("fusermount3").args(how).arg("--").arg(mountpoint).status()?;
    if done.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBUSY)) }
}

/// Returns the mounts at a directory; `None` if the table of mounts cannot be read.
fn mounts_at(mountpoint: &Path) -> Option<Vec<Which>> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    let mut wanted = String::new();
    for c in mountpoint.to_str()?.chars() {
        match c {
            ' ' | '\t' | '\n' | '\\' => wanted.push_str(&format!("\\{:03o}", u32::from(c))),
            c => wanted.push(c),
        }
    }
    let line = |l: &str| {
        let (front, back) = l.split_once(" - ")?;
        let f: Vec<&str> = front.split(' ').collect();
        if f.get(4) != Some(&wanted.as_str()) {
            return None;
        }
        let kind = back.split(' ').next()?.to_string();
        let (major, minor) = f[2].split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        Some(Which { id: f[0].parse().ok()?, parent: f[1].parse().ok()?, device, kind })
    };
    Some(table.lines().filter_map(line).collect())
}

/// Returns the mount that lies on top of all others at one directory: none is mounted on it there.
fn topmost(all: &[Which]) -> Option<&Which> {
    all.iter().find(|w| all.iter().all(|other| other.parent != w.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_top_is_told_from_what_is_below() {
        let mount = |id, parent| Which { id, parent, device: (0, 0), kind: String::new() };
        let (below, middle, top) = (mount(40, 22), mount(57, 40), mount(31, 57));
        assert_eq!(topmost(&[below.clone(), middle.clone(), top.clone()]), Some(&top));
        assert_eq!(topmost(&[top.clone(), below.clone(), middle]), Some(&top));
        assert_eq!(topmost(std::slice::from_ref(&below)), Some(&below));
        assert_eq!(topmost(&[]), None);
        assert_eq!(mounts_at(Path::new("/no such directory")), Some(Vec::new()));
    }
}
