//! `lanefs device`

use crate::failure::{About, Failure, Outcome, written};
use crate::{image, mounted, names, size};
use lanefs::device::FileDevice;
use lanefs::{Grown, MountOptions};
use lanefs_fuse::change::DeviceChange;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Add a device to a volume, or remove its last one, mounted or not
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Add(Add),
    Remove(Remove),
}

/// Add an image or a block device to a volume
///
/// Its space is there at once. From then on name it with the others: `a.lane,b.lane`. A power loss
/// meanwhile leaves the volume with it or without; opening says so if that is not what was named.
#[derive(clap::Args, Debug)]
struct Add {
    /// The volume's images or block devices, with commas between, or a directory of a mounted
    /// volume
    #[arg(value_name = "IMAGE|DIR")]
    volume: PathBuf,
    /// The image or block device that is added; what it holds is lost
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Size of an image file that is made for it, such as 4G
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Overwrite what it holds
    #[arg(long)]
    force: bool,
    /// Do not say what was done
    #[arg(long, short)]
    quiet: bool,
}

/// Remove the last device of a volume
///
/// What lies on it is moved to the others first, while programs go on; where it does not fit
/// nothing is changed. Then it says no more that it belongs to a volume, and is free for others.
#[derive(clap::Args, Debug)]
struct Remove {
    /// The volume's images or block devices, with commas between, or a directory of a mounted
    /// volume
    #[arg(value_name = "IMAGE|DIR")]
    volume: PathBuf,
    /// The image or block device that is removed
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Do not say what was done
    #[arg(long, short)]
    quiet: bool,
}

/// Adds or removes.
pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Add(add) => run_add(add),
        Command::Remove(remove) => {
            let device = whole(&remove.device)?;
            let done = change(&remove.volume, &DeviceChange::Remove(device))?;
            tell(&remove.volume, done, remove.quiet)
        }
    }
}

fn run_add(add: &Add) -> Outcome {
    let name = add.new.display();
    let is_there = add.new.exists();
    match (is_there, add.size) {
        (false, Some(size)) => {
            drop(FileDevice::create(&add.new, size.next_multiple_of(lanefs_format::BLOCK_SIZE as u64))?);
        }
        (false, None) => {
            return Err(Failure::new(format_args!("{name}: does not exist; give --size to have it made")));
        }
        (true, Some(_)) => {
            return Err(Failure::new(format_args!("{name}: exists and has its own size; leave --size out")));
        }
        (true, None) if !add.force => {
            super::mkfs::refuse_if_holding(&FileDevice::open(&add.new, true)?)?;
        }
        (true, None) => {}
    }
    let added = whole(&add.new)
        .and_then(|new| change(&add.volume, &DeviceChange::Add(new, add.force)))
        .and_then(|done| tell(&add.volume, done, add.quiet));
    if added.is_err() && !is_there {
        // Best effort: the error that matters is the first one.
        let _ = std::fs::remove_file(&add.new);
    }
    added
}

/// Returns the name by which another process finds a device.
fn whole(device: &Path) -> Result<PathBuf, Failure> {
    device.canonicalize().about(device.display())
}

fn tell(volume: &Path, Grown { before, after }: Grown, quiet: bool) -> Outcome {
    if !quiet {
        let (name, before, after) = (volume.display(), size::show(before), size::show(after));
        written(writeln!(std::io::stdout().lock(), "{name}: {after} on all devices, before {before}"))?;
    }
    Ok(0)
}

/// Changes the devices of a volume, mounted or not.
pub fn change(volume: &Path, what: &DeviceChange) -> Result<Grown, Failure> {
    let images = match volume.is_dir() {
        true => vec![volume.to_path_buf()],
        false => names::images(volume.as_os_str()),
    };
    mounted::either(
        &images,
        |dir| mounted::change_devices(dir, what),
        |images| {
            // With one log the least of it is open, so that it can be as small as possible.
            let options = MountOptions { background: false, mlogs: 1, ..MountOptions::default() };
            let volume = image::open_with(images, &options)?;
            let done = what.make(&volume);
            volume.close().about(images[0].display())?;
            Ok(done?)
        },
    )
}
