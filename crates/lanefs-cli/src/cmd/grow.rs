//! `lanefs grow`

use crate::failure::{About, Failure, Outcome, written};
use crate::{image, mounted, names, size};
use lanefs::{Grown, MountOptions};
use lanefs_fuse::change::{DeviceChange, IOC_GROW, encode_size};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Make a volume larger, mounted or not
///
/// The space is there at once, durably. A power loss meanwhile leaves the old size or the new one.
/// An image file is made SIZE long; where its file or block device was made longer before, leave
/// --size out. Of a volume of several devices the last one grows. `lanefs shrink` makes a volume
/// smaller, `lanefs device` adds devices and removes them.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The new size, such as 8G [default: all that the image file or block device has]
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Do not say what was done
    #[arg(long, short)]
    pub quiet: bool,
    /// The volume's image or block device, all of them with commas between, or a directory of a
    /// mounted volume
    #[arg(value_name = "IMAGE|DIR")]
    pub volume: PathBuf,
}

/// Grows.
pub fn run(args: &Args) -> Outcome {
    let bytes = args.size.map(|s| s.next_multiple_of(lanefs_format::BLOCK_SIZE as u64));
    let images = match args.volume.is_dir() {
        true => vec![args.volume.clone()],
        false => names::images(args.volume.as_os_str()),
    };
    let named = images.last().and_then(|i| i.canonicalize().ok()).filter(|_| !args.volume.is_dir());
    let mount = |dir: &Path| match &named {
        // Another one than the last is refused.
        Some(image) => mounted::change_devices(dir, &DeviceChange::Grow(image.clone(), bytes)),
        None => mounted::change(dir, IOC_GROW, encode_size(bytes)),
    };
    let Grown { before, after } = mounted::either(&images, mount, |images| unmounted(images, bytes))?;
    if !args.quiet {
        let (name, after_text) = (args.volume.display(), size::show(after));
        let mut out = std::io::stdout().lock();
        written(match after > before {
            true => writeln!(out, "{name}: {after_text}, before {}", size::show(before)),
            false => writeln!(
                out,
                "{name}: {after_text} as before; make the file or the device longer, or give --size"
            ),
        })?;
    }
    Ok(0)
}

/// Grows a volume that is not mounted.
fn unmounted(images: &[PathBuf], bytes: Option<u64>) -> Result<Grown, Failure> {
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = image::open_with(images, &options)?;
    let grown = volume.grow(bytes)?;
    volume.close().about(images[0].display())?;
    Ok(grown)
}
