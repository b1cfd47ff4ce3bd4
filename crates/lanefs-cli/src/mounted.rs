//! Volumes that are mounted: asking their mounts, and waiting for those that are about to be
//! closed.

use crate::failure::{About as _, Failure, without_numbers};
use crate::{mountinfo, names};
use lanefs::Grown;
use lanefs_format::superblock::UnverifiedSuperblock;
use lanefs_format::{BLOCK_SHIFT, BLOCK_SIZE, Block};
use lanefs_fuse::about::{ABOUT_SIZE, About, IOC_ABOUT, decode};
use lanefs_fuse::change::{CHANGE_SIZE, DeviceChange, IOC_DEVICE};
use lanefs_fuse::report::{IOC_REPORT, MountReport, decode_piece, encode_request};
use lanefs_store::StoreError;
use lanefs_store::device::{FileDevice, FileOptions};
use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of a serving process whose mount is gone and which closes the volume.
const CLOSING: &CStr = c"lanefs-closing";

const _: () = assert!(CLOSING.count_bytes() < 16, "the kernel cuts longer names off");

/// The time for which a server whose mount is gone is waited for until it names itself as closing:
/// then it is used by somebody who had it before it was taken out of the name space.
const UNTIL_NAMED: Duration = Duration::from_secs(5);

/// The time after which somebody who waits is told of what that may be for.
pub const UNTIL_TOLD: Duration = Duration::from_secs(2);
/// The space on the host of an image below which that is told of.
const LITTLE: u64 = 64 << 20;

/// The bytes of a report at the most; a mount may be anybody's.
const REPORT_MAX: usize = 16 << 20;

/// Names this process as one whose mount is gone and which closes the volume. Called by the first
/// thread of the process.
pub fn closing() {
    // Without the name, others wait for less long.
    let _ = rustix::thread::set_name(CLOSING);
}

/// Opens what another process may hold for a moment longer: the server of a mount that is gone.
/// `holder`: the process that an error names.
pub fn when_closed<T, E>(
    images: &[PathBuf],
    open: impl Fn() -> Result<T, E>,
    holder: impl Fn(&E) -> Option<i32>,
) -> Result<T, E> {
    let since = Instant::now();
    let (mut nap, mut told) = (Duration::from_millis(2), false);
    loop {
        let waited = since.elapsed();
        let r = open();
        let pid = r.as_ref().err().and_then(&holder).filter(|pid| is_closing(*pid, images, waited));
        let Some(pid) = pid else { return r };
        if waited > UNTIL_TOLD && !told && says_that_it_closes(pid) {
            told = true;
            eprintln!("lanefs: waiting for process {pid}, which closes the volume");
            tell_full_hosts(images);
        }
        std::thread::sleep(nap);
        // To find who holds it all processes are looked through.
        nap = (nap * 2).min(Duration::from_millis(if told { 500 } else { 50 }));
    }
}

/// Tells of the images whose hosts may be waited for; returns whether there are any.
pub fn tell_full_hosts(images: &[PathBuf]) -> bool {
    let lines: Vec<String> = images.iter().filter_map(|i| full_host_of(i)).collect();
    lines.iter().for_each(|line| eprintln!("lanefs: {line}"));
    !lines.is_empty()
}

/// Returns what to tell of an image whose host has so little space that this may be what the server
/// waits for.
fn full_host_of(image: &Path) -> Option<String> {
    let (meta, host) = (std::fs::metadata(image).ok()?, rustix::fs::statvfs(image).ok()?);
    let free = host.f_bfree.saturating_mul(host.f_frsize);
    let is_sparse = meta.is_file() && meta.blocks() * 512 < meta.len();
    (is_sparse && free < LITTLE).then(|| {
        format!(
            "{}: is still being closed; the file system that holds it has only {} free, which it may be \
             waiting for. Free some space there; what was synced is safe in any case",
            image.display(),
            crate::size::show(free)
        )
    })
}

/// Opens one of the images of a volume; waits while that is about to be closed.
pub fn device_when_closed(
    image: &Path,
    images: &[PathBuf],
    how: FileOptions,
) -> Result<FileDevice, StoreError> {
    debug_assert!(images.iter().any(|i| i == image), "one of the volume's");
    let holder = |e: &StoreError| match e {
        StoreError::InUse { pid, .. } => Some(*pid),
        _ => None,
    };
    when_closed(images, || FileDevice::open_with(image, how), holder)
}

/// Returns whether a process closes the volume of these images, or is about to.
fn is_closing(pid: i32, images: &[PathBuf], waited: Duration) -> bool {
    // Nobody is seen who holds what a server that was killed still had a moment ago: its loop
    // device goes behind it.
    let is_going = || pid == 0 || serves_mounts(pid) && mount_of(images).is_none();
    says_that_it_closes(pid) || waited < UNTIL_NAMED && is_going()
}

/// Returns whether a process has named itself as one that closes a volume.
fn says_that_it_closes(pid: i32) -> bool {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    debug_assert!(comm.len() <= 16, "the kernel cuts longer names off");
    comm.trim_ascii_end() == CLOSING.to_bytes()
}

/// Returns whether a process is one that `lanefs mount` or mount(8)'s helper has started.
fn serves_mounts(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|b| *b == 0);
    let name = words.next().and_then(|w| w.rsplit(|b| *b == b'/').next()).unwrap_or_default();
    match name {
        b"lanefs" => words.next() == Some(b"mount"),
        name => name.starts_with(b"mount.") && name.ends_with(b"lanefs"),
    }
}

/// Returns where the volume of these images is mounted. The names in the mount table are not
/// enough: an image can be renamed while it is mounted and another made in its place, and one mount
/// can lie over another. So the mount is asked which volume it serves, and nobody changes one
/// volume by the name of another.
pub fn dir_of(images: &[PathBuf]) -> Option<PathBuf> {
    let mount = mount_of(images)?;
    if mount.covered {
        return None;
    }
    match ask(&mount.dir) {
        Ok(about) => match uuid_of(&names::behind(images.first()?)) {
            // Who may not read the image is no owner of it, and hears what the mount allows.
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Some(mount.dir),
            uuid => (uuid.ok() == Some(Some(about.uuid))).then_some(mount.dir),
        },
        Err(_) if is_dead(&mount.dir) => None,
        // Who may not ask hears that of the call that was meant.
        Err(_) => Some(mount.dir),
    }
}

/// Returns whether the process that served a mount is gone and the mount still there.
pub fn is_dead(dir: &Path) -> bool {
    std::fs::metadata(dir).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
}

/// Says what to do about such a mount.
pub fn dead(dir: &Path) -> Failure {
    let dir = dir.display();
    Failure::new(format_args!(
        "{dir}: the process that served the mount here is gone; run `lanefs umount {dir}` first"
    ))
}

/// Returns the volume's identity, if the image's first block has one.
fn uuid_of(image: &Path) -> std::io::Result<Option<[u8; 16]>> {
    let mut block = Box::new(Block([0; BLOCK_SIZE]));
    File::open(image)?.read_exact(&mut block.0)?;
    Ok(UnverifiedSuperblock(block).verify(0, u64::MAX >> BLOCK_SHIFT).ok().map(|sb| sb.volume.0))
}

/// Returns the last mount whose table entry has the names of these images.
fn mount_of(images: &[PathBuf]) -> Option<mountinfo::Mount> {
    let whole = |images: &[PathBuf]| -> Vec<PathBuf> {
        images.iter().map(|i| i.canonicalize().unwrap_or_else(|_| i.clone())).collect()
    };
    let wanted = whole(images);
    let mounts = mountinfo::lanefs_mounts().ok()?;
    mounts.into_iter().rev().find(|m| {
        let mut of = names::images(&m.source);
        // What is mounted by way of a loop device goes by either name.
        of.extend(of.clone().iter().map(|i| names::behind(i)));
        let of = whole(&of);
        wanted.iter().any(|w| of.contains(w))
    })
}

/// Asks the volume mounted at, or above, a directory for its description.
pub fn ask(dir: &Path) -> Result<About, Failure> {
    let open = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(dir).about(dir.display())?;
    let mut answer = [0u8; ABOUT_SIZE];
    // SAFETY: the number states that ABOUT_SIZE bytes are written through the pointer, which is
    // valid for that; the descriptor is open.
    let r = unsafe { libc::ioctl(open.as_raw_fd(), IOC_ABOUT as libc::Ioctl, answer.as_mut_ptr()) };
    let e = std::io::Error::last_os_error();
    match (r, e.raw_os_error()) {
        (0, _) => {}
        (_, Some(libc::ENOTTY)) => {
            return Err(Failure::new(format_args!(
                "{}: is no directory of a mounted LaneFS volume; name that, or its image",
                dir.display()
            )));
        }
        _ => return Err(e).about(dir.display()),
    }
    decode(&answer).ok_or_else(|| Failure::new(format_args!("{}: the mount gave no answer", dir.display())))
}

/// Asks for a change of the volume mounted at a directory. Returns its sizes in bytes before and
/// after, where that was what changed.
pub fn change(dir: &Path, command: u32, mut argument: [u8; CHANGE_SIZE]) -> Result<Grown, Failure> {
    change_by(dir, command, &mut argument)
}

/// Asks for a change of its devices.
pub fn change_devices(dir: &Path, what: &DeviceChange) -> Result<Grown, Failure> {
    let mut argument = what
        .encode()
        .ok_or_else(|| Failure::new("the device's path is too long; name it by a shorter one"))?;
    // What comes to the volume has to be the caller's to write to: see `lanefs_fuse::change`.
    let _open = match what {
        DeviceChange::Add(new, _) | DeviceChange::Replace(_, new, _) => {
            Some(File::options().read(true).write(true).open(new).about(new.display())?)
        }
        _ => None,
    };
    change_by(dir, IOC_DEVICE, &mut argument)
}

/// Asks by an argument of as many bytes as the command's number states.
fn change_by(dir: &Path, command: u32, argument: &mut [u8]) -> Result<Grown, Failure> {
    assert_eq!(argument.len(), (command >> 16 & 0x3fff) as usize, "the argument of another command");
    let open = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(dir).about(dir.display())?;
    // SAFETY: the number states how many bytes the argument has, in and out, and these are as many;
    // the descriptor is open.
    let r = unsafe { libc::ioctl(open.as_raw_fd(), command as libc::Ioctl, argument.as_mut_ptr()) };
    let e = std::io::Error::last_os_error();
    let refused = |why: &str| Failure::new(format_args!("{}: {why}", dir.display()));
    match (r, e.raw_os_error()) {
        (0, _) => {}
        (_, Some(libc::ENOTTY)) => {
            return Err(refused(
                "is no directory of a mounted LaneFS volume that can do this; name that, or its image",
            ));
        }
        (_, Some(libc::EPERM)) => {
            return Err(refused(
                "only root (with CAP_SYS_ADMIN), or the user who mounted it, may change a mounted volume",
            ));
        }
        _ => return Err(e).about(dir.display()),
    }
    match lanefs_fuse::change::decode(argument) {
        Some(Ok(done)) => Ok(done),
        Some(Err(why)) => Err(Failure::new(without_numbers(&why))),
        None => Err(refused("the mount gave no answer")),
    }
}

/// Asks the mount at a directory for its figures. For so many `seconds` it times requests, if the
/// caller may have it do that.
pub fn report(dir: &Path, seconds: u64) -> Result<MountReport, Failure> {
    let open = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(dir).about(dir.display())?;
    let wrong = |why: &str| Failure::new(format_args!("{}: {why}", dir.display()));
    // Texts are kept for a while: with many readers at a time one may be gone.
    for _ in 0..100 {
        let (mut number, mut text) = (0, Vec::new());
        loop {
            let mut argument =
                encode_request(number, text.len() as u64, if number == 0 { seconds } else { 0 });
            // SAFETY: the number states that the argument is REPORT_SIZE bytes, in and out, which
            // the buffer has; the descriptor is open.
            let r =
                unsafe { libc::ioctl(open.as_raw_fd(), IOC_REPORT as libc::Ioctl, argument.as_mut_ptr()) };
            if r != 0 {
                let e = std::io::Error::last_os_error();
                return Err(match e.raw_os_error() {
                    Some(libc::ENOTTY) => wrong(
                        "is no directory of a mounted LaneFS volume that can do this; name that, or its image",
                    ),
                    _ => return Err(e).about(dir.display()),
                });
            }
            let piece = decode_piece(&argument).ok_or_else(|| wrong("the mount gave no answer"))?;
            if text.len() > REPORT_MAX {
                return Err(wrong("the mount's answer has no end"));
            }
            number = piece.number;
            text.extend(piece.bytes);
            if number == 0 || piece.bytes.is_empty() || text.len() as u64 >= piece.total {
                break;
            }
        }
        if number != 0 {
            return serde_json::from_slice(&text).map_err(|_| wrong("the mount's answer cannot be read"));
        }
    }
    Err(wrong("too many ask the mount at a time; try again"))
}

/// Does something with a volume: through its mount, if `images` is a directory of one or the images
/// of one, else with the images themselves.
pub fn either<T>(
    images: &[PathBuf],
    mounted: impl Fn(&Path) -> Result<T, Failure>,
    unmounted: impl Fn(&[PathBuf]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let dir = match images {
        [dir] if dir.is_dir() => Some(dir.clone()),
        [dir] if is_dead(dir) => return Err(dead(dir)),
        images => dir_of(images),
    };
    match dir {
        Some(dir) => mounted(&dir),
        None => unmounted(images),
    }
}

/// Has the volume mounted at a directory make durable all that returned before.
pub fn sync(dir: &Path) -> Result<(), Failure> {
    let open = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(dir).about(dir.display())?;
    rustix::fs::syncfs(&open).map_err(std::io::Error::from).about(dir.display())?;
    // SAFETY: the number states that there is no argument.
    let r = unsafe { libc::ioctl(open.as_raw_fd(), lanefs_fuse::IOC_SYNC as libc::Ioctl, 0) };
    if r == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).about(dir.display()) }
}
