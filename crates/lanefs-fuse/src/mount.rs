//! Attaching to the name space: by mount(2) when we may, else by the setuid helper fusermount3.

use crate::MountConfig;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How a mount is taken down again.
pub(crate) enum Attached {
    /// By umount(2).
    Direct(PathBuf),
    /// By the crate, which calls fusermount3.
    ByHelper(PathBuf, Mutex<SessionUnmounter>),
}

/// Mounts, and answers the kernel's first request.
pub(crate) fn attach<F: fuser::Filesystem>(
    fs: F,
    mountpoint: &Path,
    config: &MountConfig,
) -> io::Result<(Session<F>, Attached)> {
    let mountpoint = mountpoint.canonicalize()?;
    let mode = mountpoint.metadata()?.mode();
    if mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    let me = rustix::process::geteuid();
    let others = config.others_may_enter(me.as_raw());
    let mut fuser_config = Config::default();
    fuser_config.n_threads = Some(config.readers());
    fuser_config.clone_fd = true;
    // The kernel itself keeps others out without `allow_other`; only `allow_root` is the crate's to enforce.
    fuser_config.acl = if config.allow_root { SessionACL::RootAndOwner } else { SessionACL::All };

    if me.is_root() && !config.auto_unmount {
        let fd = mount_directly(&mountpoint, mode, others, config)?;
        let acl = fuser_config.acl;
        return match Session::from_fd(fs, fd, acl, fuser_config) {
            Ok(session) => Ok((session, Attached::Direct(mountpoint))),
            Err(e) => {
                let _ = rustix::mount::unmount(&mountpoint, UnmountFlags::DETACH);
                Err(e)
            }
        };
    }
    if !others {
        fuser_config.acl = SessionACL::Owner;
    }
    fuser_config.mount_options = helper_options(config);
    let mut session = Session::new(fs, &mountpoint, &fuser_config)?;
    let unmounter = Mutex::new(session.unmount_callable());
    Ok((session, Attached::ByHelper(mountpoint, unmounter)))
}

fn mount_directly(mountpoint: &Path, mode: u32, others: bool, config: &MountConfig) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|e| {
        io::Error::new(e.kind(), format!("/dev/fuse: {e}; load the module with `modprobe fuse`"))
    })?;
    let mut flags = MountFlags::empty();
    for (on, flag) in [
        (config.read_only, MountFlags::RDONLY),
        (!config.suid, MountFlags::NOSUID),
        (!config.dev, MountFlags::NODEV),
        (config.noexec, MountFlags::NOEXEC),
        (config.noatime, MountFlags::NOATIME),
        (config.sync, MountFlags::SYNCHRONOUS),
        (config.dirsync, MountFlags::DIRSYNC),
    ] {
        flags.set(flag, on);
    }
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if others {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    rustix::mount::mount(config.source.as_str(), mountpoint, "fuse.lanefs", flags, data.as_c_str())?;
    Ok(device.into())
}

fn helper_options(config: &MountConfig) -> Vec<MountOption> {
    // fusermount3 splits at commas and takes a backslash for an escape.
    let source = config.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = vec![
        MountOption::FSName(source),
        MountOption::Subtype("lanefs".into()),
        MountOption::DefaultPermissions,
        if config.suid { MountOption::Suid } else { MountOption::NoSuid },
        if config.dev { MountOption::Dev } else { MountOption::NoDev },
    ];
    for (on, option) in [
        (config.read_only, MountOption::RO),
        (config.noexec, MountOption::NoExec),
        (config.noatime, MountOption::NoAtime),
        (config.sync, MountOption::Sync),
        (config.dirsync, MountOption::DirSync),
        (config.auto_unmount, MountOption::AutoUnmount),
    ] {
        if on {
            options.push(option);
        }
    }
    options
}

impl Attached {
    pub(crate) fn mountpoint(&self) -> &Path {
        match self {
            Attached::Direct(m) | Attached::ByHelper(m, _) => m,
        }
    }

    /// Lets the kernel read ahead by whole requests, and gather as many writes as for any other file system
    /// (FUSE starts with a hundredth, for servers that may not be trusted). Best effort: only root may.
    pub(crate) fn tune(&self, config: &MountConfig) {
        let Some(minor) = connection_of(self.mountpoint()) else { return };
        let bdi = PathBuf::from(format!("/sys/class/bdi/0:{minor}"));
        let read_ahead = (config.max_write / 1024).to_string();
        for (knob, value) in
            [("read_ahead_kb", read_ahead.as_str()), ("max_ratio", "100"), ("strict_limit", "0")]
        {
            let _ = std::fs::write(bdi.join(knob), value);
        }
    }

    /// Unmounts if nobody uses the mount; EBUSY otherwise.
    pub(crate) fn detach_if_idle(&self) -> io::Result<()> {
        match self {
            Attached::Direct(m) => Ok(rustix::mount::unmount(m, UnmountFlags::NOFOLLOW)?),
            Attached::ByHelper(m, _) => {
                let done = std::process::Command::new("fusermount3")
                    .arg("-u")
                    .arg("-q")
                    .arg("--")
                    .arg(m)
                    .status()?;
                if done.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBUSY)) }
            }
        }
    }

    /// Takes the mount out of the name space now; those who use it keep it until they are done.
    pub(crate) fn detach(&self) -> io::Result<()> {
        match self {
            Attached::Direct(m) => {
                Ok(rustix::mount::unmount(m, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
            }
            Attached::ByHelper(_, unmounter) => unmounter.lock().unwrap_or_else(|e| e.into_inner()).unmount(),
        }
    }

    /// Cuts the connection: every call in progress and every later one on the mount fails.
    pub(crate) fn abort(&self) {
        if let Attached::Direct(m) = self {
            // EBUSY is the expected answer: the force is in the cut, not in the unmount.
            let _ = rustix::mount::unmount(m, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
        }
        if let Some(minor) = connection_of(self.mountpoint()) {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
    }
}

/// The number of the FUSE connection mounted at `mountpoint`: its device's minor number.
fn connection_of(mountpoint: &Path) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = mountpoint.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    let line = table.lines().rev().find(|l| l.split(' ').nth(4) == Some(wanted.as_str()))?;
    line.split(' ').nth(2)?.split_once(':')?.1.parse().ok()
}
