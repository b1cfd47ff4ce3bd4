//! Volumes: making, opening and closing them.

use crate::answer::{Failure, Outcome, status};
use crate::args::{Out, handle, text};
use lanefs::{CreateOptions, Cred, Fs, MountOptions, Volume};
use lanefs_fuse::{ServedMount, serve_mount};
use lanefs_sync::fork;
use libc::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The most images that a volume has (docs/SPEC.md). A message has the number.
const MAX_IMAGES: usize = 64;

/// An open volume as one user sees it. Calls on paths take it.
pub struct lanefs_volume {
    pub(crate) fs: Fs,
    /// What all handles of the volume have in common.
    shared: Arc<Shared>,
}

/// An open volume, closed with the last handle of it.
struct Shared {
    volume: Volume,
    /// A mount of it, served by this process.
    mount: Mutex<Option<ServedMount>>,
}

/// Sizes of a volume, in blocks of 4096 bytes.
#[repr(C)]
pub struct lanefs_statfs {
    /// Blocks that files can fill in all.
    pub blocks: u64,
    /// Blocks that are free for root.
    pub free: u64,
    /// Blocks that are free for others: the last of a volume is left to root.
    pub available: u64,
    /// Inodes in all, at most; they are made on demand.
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
    /// Identity of the volume.
    pub fsid: u64,
    /// The longest name, in bytes.
    pub name_max: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Returns the paths of images.
unsafe fn images<'a>(images: *const *const c_char, count: usize) -> Outcome<Vec<&'a Path>> {
    if images.is_null() || count == 0 {
        return Err(Failure::Argument(libc::EFAULT, "no image is named"));
    }
    // Before the array is read: a number that cannot be has no array of as many.
    if count > MAX_IMAGES {
        return Err(Failure::Argument(libc::EINVAL, "a volume has no more than 64 images"));
    }
    (0..count)
        .map(|i| {
            // SAFETY: the caller's array has `count` texts.
            let image = unsafe { text(*images.add(i)) }?;
            Ok(Path::new(std::ffi::OsStr::from_bytes(image)))
        })
        .collect()
}

/// Returns the options that a text names.
unsafe fn options(list: *const c_char) -> Outcome<MountOptions> {
    let mut options = MountOptions::default();
    if list.is_null() {
        return Ok(options);
    }
    // SAFETY: not NULL; the caller's promise.
    let list = String::from_utf8_lossy(unsafe { text(list) }?);
    for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
        if !options.set(name, value)? {
            let known = "ro, rw, noatime, order, cache_size, commit, dirty_expire";
            return Err(Failure::Told(
                libc::EINVAL,
                format!("option {option}: not known; there are {known}"),
            ));
        }
    }
    Ok(options)
}

/// Hands out a volume.
fn hand_out(fs: Fs, shared: Arc<Shared>, out: Out<*mut lanefs_volume>) {
    out.put(Box::into_raw(Box::new(lanefs_volume { fs, shared })));
}

/// Hands out a volume that was just opened.
fn hand_out_first(volume: Volume, out: Out<*mut lanefs_volume>) {
    hand_out(volume.fs(), Arc::new(Shared { volume, mount: Mutex::new(None) }), out);
}

/// Makes a volume in `count` new image files of `size` bytes each (a multiple of 4096), whose root
/// belongs to the calling process. Durable when it returns, as far as the directories of the files
/// are. `label`: a name for people, or NULL.
///
/// EEXIST: one of them exists. EINVAL: a size that cannot be, or more than 64 images. And what the
/// system answers.
///
/// # Safety
/// Pointers are NULL or as said; so for all functions of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_format(
    images: *const *const c_char,
    count: usize,
    size: u64,
    label: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let images = unsafe { self::images(images, count) }?;
        let mut options = CreateOptions::new();
        if !label.is_null() {
            // SAFETY: not NULL; the caller's promise.
            options.label(&String::from_utf8_lossy(unsafe { text(label) }?));
        }
        Ok(options.create(&images, size)?)
    })
}

/// Opens the volume in these image files or block devices, recovering it if it was not closed.
/// `options`: NULL, or words with commas between: `ro`, `noatime`, `order=relaxed`,
/// `cache_size=256M`, `commit=SECONDS`, `dirty_expire=SECONDS`, as of the mount.
///
/// EBUSY: a process has it open; the message has its number. EINVAL: no volume, or an option that
/// cannot be read. EIO, EUCLEAN: damage; the message has what to do. And what the system answers.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_open_volume(
    images: *const *const c_char,
    count: usize,
    options: *const c_char,
    volume: *mut *mut lanefs_volume,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, images, options) =
            unsafe { (Out::new(volume)?, self::images(images, count)?, self::options(options)?) };
        fork::watch();
        hand_out_first(Volume::open(&images, &options)?, out);
        Ok(())
    })
}

/// Makes a volume of `bytes` bytes in memory, a multiple of 4096, and opens it. It is gone when it
/// is closed.
///
/// EINVAL: a size that cannot be. ENOMEM: no memory.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_memory_volume(bytes: u64, volume: *mut *mut lanefs_volume) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(volume)? };
        fork::watch();
        hand_out_first(Volume::in_memory(bytes)?, out);
        Ok(())
    })
}

/// Hands out the same volume as another user sees it: what it makes is that user's, permissions are
/// checked for it, and `umask` is taken from the modes of what is made. `groups`: `count` further
/// groups, or NULL. The volume that is opened sees everything as the calling process may, without a
/// umask. Every such handle is closed by `lanefs_close_volume`.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_as_user(
    volume: *const lanefs_volume,
    uid: u32,
    gid: u32,
    groups: *const u32,
    count: usize,
    umask: u32,
    other: *mut *mut lanefs_volume,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, volume) = unsafe { (Out::new(other)?, handle(volume)?) };
        let groups: &[u32] = match count {
            0 => &[],
            _ if groups.is_null() || count > 65_536 => {
                return Err(Failure::Argument(libc::EFAULT, "no groups, or more than 65536"));
            }
            // SAFETY: not NULL; the caller's array has `count` numbers.
            _ => unsafe { std::slice::from_raw_parts(groups, count) },
        };
        let fs = volume.fs.volume().as_user(Cred::user(uid, gid, groups));
        hand_out(fs.with_umask(umask), Arc::clone(&volume.shared), out);
        Ok(())
    })
}

/// Serves a mount of the volume at the directory `dir` from threads of this process, until
/// `lanefs_unmount` or the end of the last handle: others use the files by system calls meanwhile,
/// and either sees what the other does at once. Root mounts by itself, others by fusermount3.
///
/// EBUSY: it is mounted already; else what mounting answers, as the message has it.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_serve_mount(volume: *const lanefs_volume, dir: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, dir) = unsafe { (handle(volume)?, text(dir)?) };
        let mut mount = volume.shared.mount.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mount) = &*mount {
            let at = mount.mountpoint().display();
            return Err(Failure::Told(libc::EBUSY, format!("it is mounted at {at} already")));
        }
        let dir = Path::new(std::ffi::OsStr::from_bytes(dir));
        *mount = Some(serve_mount(&volume.shared.volume, dir)?);
        Ok(())
    })
}

/// Unmounts what `lanefs_serve_mount` has mounted, whoever uses it: files that others have open
/// there fail from then on. The volume stays open. EINVAL: it is not mounted.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_unmount(volume: *const lanefs_volume) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { handle(volume)? };
        let mount = volume.shared.mount.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mount = mount.ok_or(Failure::Argument(libc::EINVAL, "the volume is not mounted"))?;
        Ok(mount.unmount()?)
    })
}

/// Closes a handle of a volume, whatever it returns. With the last one the volume is unmounted and
/// closed: all is made durable, and files that are still open answer EIO (they must be closed all
/// the same).
///
/// EIO, ENOSPC: something could not be made durable; the volume is closed as by a crash.
///
/// # Safety
/// A handle that was not closed, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_close_volume(volume: *mut lanefs_volume) -> c_int {
    if volume.is_null() {
        return 0;
    }
    status(|| {
        // SAFETY: made by `hand_out`, and the caller closes it once.
        let lanefs_volume { fs, shared } = *unsafe { Box::from_raw(volume) };
        drop(fs);
        match Arc::into_inner(shared) {
            Some(last) => {
                drop(last.mount);
                Ok(last.volume.close()?)
            }
            None => Ok(()),
        }
    })
}

/// Makes durable all that returned before.
///
/// EIO, ENOSPC: nothing is promised of what was not durable before.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_sync(volume: *const lanefs_volume) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.volume().sync()?))
}

/// Tells the sizes of a volume.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_statfs(volume: *const lanefs_volume, out: *mut lanefs_statfs) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, volume) = unsafe { (Out::new(out)?, handle(volume)?) };
        let s = volume.fs.volume().statfs()?;
        out.put(lanefs_statfs {
            blocks: s.blocks,
            free: s.free,
            available: s.available,
            files: s.files,
            files_free: s.files_free,
            fsid: s.fsid,
            name_max: s.name_max,
            reserved: 0,
        });
        Ok(())
    })
}
