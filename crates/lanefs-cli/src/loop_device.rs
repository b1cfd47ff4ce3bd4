//! Loop devices, which the kernel can mount as block devices: one with an image behind it, or one
//! that only stands for an image.
//!
//! The kernel tells a FUSE server of `sync` only where it has mounted a block device, and looks at
//! nothing of that. So the server of an image goes on reading and writing the file itself, and the
//! loop device that is mounted is one of the same file that begins behind all that a file may have
//! ([`STANDS_FOR`]): it has no bytes, so that nobody reads what is stale there, or writes over the
//! volume.

use crate::failure::{About, Failure};
use crate::mounted;
use lanefs_store::device::{FileOptions, STANDS_FOR};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Bytes of the kernel's `struct loop_config`.
const CONFIG: usize = 304;
/// Where the offset of what is attached stands in it.
const OFFSET: usize = 32;
/// Where the flags stand in it.
const FLAGS: usize = 60;

const _: () = assert!(OFFSET + 8 <= FLAGS && FLAGS + 4 <= CONFIG);

/// A loop device that an image is attached to. The kernel detaches it when nobody has it open and
/// it is not mounted any more, however the processes that had it ended.
#[derive(Debug)]
pub struct LoopDevice {
    /// The device.
    pub path: PathBuf,
    /// Keeps it until it is mounted.
    _open: File,
}

/// Attaches an image to a free loop device.
pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice, Failure> {
    let images = [image.to_path_buf()];
    // Nobody else has it, as itself or as a loop device, until it is attached; from then on who
    // opens it gets an error about that.
    let how = FileOptions { read_only, ..FileOptions::default() };
    let claim = mounted::device_when_closed(image, &images, how).map_err(lanefs::Error::from)?;
    let file = File::options().read(true).write(!read_only).open(image).about(image.display())?;
    let device = attach_file(&file, read_only, 0).about(format_args!(
        "{}: cannot be attached to a loop device, which -o loop asks for",
        image.display()
    ));
    drop(claim);
    device
}

/// Returns a loop device that stands for an image which this process has open.
pub fn stand_for(image: &Path, read_only: bool) -> io::Result<LoopDevice> {
    let file = File::options().read(true).write(!read_only).open(image)?;
    attach_file(&file, read_only, STANDS_FOR)
}

/// Attaches what an open file has from an offset on.
fn attach_file(file: &File, read_only: bool, offset: u64) -> io::Result<LoopDevice> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    let mut config = [0_u8; CONFIG];
    let direct = if offset == STANDS_FOR { 0 } else { LO_FLAGS_DIRECT_IO };
    let flags = LO_FLAGS_AUTOCLEAR | direct | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    config[OFFSET..OFFSET + 8].copy_from_slice(&offset.to_ne_bytes());
    config[..4].copy_from_slice(&(file.as_raw_fd() as u32).to_ne_bytes());
    config[4..8].copy_from_slice(&4096_u32.to_ne_bytes());
    config[FLAGS..FLAGS + 4].copy_from_slice(&flags.to_ne_bytes());
    loop {
        // SAFETY: the ioctl takes no argument; the descriptor is open.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, 0) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let open = File::options().read(true).write(!read_only).open(&path)?;
        // SAFETY: the kernel reads CONFIG bytes, which is the size of the struct and of the array;
        // both descriptors are open.
        match unsafe { libc::ioctl(open.as_raw_fd(), LOOP_CONFIGURE, config.as_ptr()) } {
            0 => return Ok(LoopDevice { path, _open: open }),
            _ => match io::Error::last_os_error() {
                // Somebody else was faster.
                e if e.raw_os_error() == Some(libc::EBUSY) => {}
                e => return Err(e),
            },
        }
    }
}
