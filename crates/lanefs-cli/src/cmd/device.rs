//! `lanefs device`

use crate::failure::{About, Failure, Outcome, written};
use crate::{image, mounted, names, progress, size};
use lanefs::device::FileDevice;
use lanefs::{Grown, MountOptions, Report};
use lanefs_fuse::change::DeviceChange;
use lanefs_store::Store;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Add a device to a volume, remove its last one, or replace one, mounted or not
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Add(Add),
    Remove(Remove),
    Replace(Replace),
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
    #[command(flatten)]
    new: New,
}

/// A device that comes to a volume.
#[derive(clap::Args, Debug)]
struct New {
    /// The image or block device that comes to it; what it holds is lost
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

/// Put another device in the place of one, such as a disk that fails
///
/// What lies on it is copied while programs go on. Then it says no more that it belongs to a
/// volume, and is free for others. From then on name the volume with the new one. What that has
/// more is not used; if it is the last device `lanefs grow` takes it.
#[derive(clap::Args, Debug)]
struct Replace {
    /// The volume's images or block devices, with commas between, or a directory of a mounted
    /// volume
    #[arg(value_name = "IMAGE|DIR")]
    volume: PathBuf,
    /// The image or block device that is replaced
    #[arg(value_name = "OLD")]
    old: PathBuf,
    #[command(flatten)]
    new: New,
}

/// Adds, removes or replaces.
pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Add(add) => run_add(add),
        Command::Remove(remove) => {
            let device = of_volume(&remove.device)?;
            let done = change(&remove.volume, &DeviceChange::Remove(device))?;
            tell(&remove.volume, done, remove.quiet)
        }
        Command::Replace(replace) => run_replace(replace),
    }
}

fn run_add(add: &Add) -> Outcome {
    let done = with_new(&add.new, |new| change(&add.volume, &DeviceChange::Add(new, add.new.force)))?;
    tell(&add.volume, done, add.new.quiet)
}

fn run_replace(replace: &Replace) -> Outcome {
    let old = of_volume(&replace.old)?;
    let done = with_new(&replace.new, |new| {
        change(&replace.volume, &DeviceChange::Replace(old, new, replace.new.force))
    })?;
    let (copied, unreadable) = (size::show(done.before), done.after);
    let (old, new, volume) = (replace.old.display(), replace.new.new.display(), replace.volume.display());
    if unreadable > 0 {
        return Err(Failure::new(format_args!(
            "{volume}: {new} in place of {old}, of which {unreadable} bytes could not be read, and are lost; \
             `lanefs scrub` says what they belong to"
        )));
    }
    if !replace.new.quiet {
        written(writeln!(std::io::stdout().lock(), "{volume}: {new} in place of {old}, {copied} copied"))?;
    }
    Ok(0)
}

/// Does `f` with the name of a new device, an image file that is made where it has a size. That is
/// removed again if `f` fails, but where a volume may use it: whoever made the change may have done
/// so, or be about to, and not have been able to say it.
fn with_new(
    New { new, size, force, .. }: &New,
    f: impl FnOnce(PathBuf) -> Result<Grown, Failure>,
) -> Result<Grown, Failure> {
    let name = new.display();
    let is_there = new.exists();
    match (is_there, size) {
        (false, Some(size)) => {
            drop(FileDevice::create(new, size.next_multiple_of(lanefs_format::BLOCK_SIZE as u64))?);
        }
        (false, None) => {
            return Err(Failure::new(format_args!("{name}: does not exist; give --size to have it made")));
        }
        (true, Some(_)) => {
            return Err(Failure::new(format_args!("{name}: exists and has its own size; leave --size out")));
        }
        (true, None) if !force => {
            super::mkfs::refuse_if_holding(&FileDevice::open(new, true)?)?;
        }
        (true, None) => {}
    }
    let done = whole(new).and_then(f);
    // What was copied to it is no sign. Who uses it, or is about to, has it open for writing.
    let is_unused = || FileDevice::open(new, false).is_ok_and(|d| !Store::may_be_on(&d));
    if done.is_err() && !is_there && is_unused() {
        // Best effort: the error that matters is the first one.
        let _ = std::fs::remove_file(new);
    }
    done
}

/// Refuses a new device that lies on the mounted volume itself: what is written to it would wait
/// for itself.
fn refuse_own(dir: &Path, what: &DeviceChange) -> Result<(), Failure> {
    let (DeviceChange::Add(new, _) | DeviceChange::Replace(_, new, _)) = what else { return Ok(()) };
    let on = |path: &Path| path.metadata().map(|m| m.dev()).about(path.display());
    if on(dir)? == on(new)? {
        let (new, dir) = (new.display(), dir.display());
        return Err(Failure::new(format_args!(
            "{new}: lies on the volume that is mounted at {dir}, which cannot hold a device of its own; \
             name one that lies elsewhere"
        )));
    }
    Ok(())
}

/// Returns the name by which another process finds a device.
fn whole(device: &Path) -> Result<PathBuf, Failure> {
    device.canonicalize().about(device.display())
}

/// Returns the name of a device of a volume: for a loop device that only stands for an image, as it
/// is in the mount table, that image.
fn of_volume(device: &Path) -> Result<PathBuf, Failure> {
    let device = whole(device)?;
    // It has no bytes. One that has some is what the volume lies on.
    let length = std::fs::File::open(&device).and_then(|mut f| f.seek(SeekFrom::End(0)));
    Ok(if matches!(length, Ok(0)) { names::behind(&device) } else { device })
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
    let of = |r: &Report| r.store.devices.change.map(|c| (c.done_bytes, c.total_bytes));
    mounted::either(
        &images,
        |dir| {
            refuse_own(dir, what)?;
            let look = || mounted::report(dir, 0).ok().and_then(|r| of(&r.volume));
            progress::watched("moving", look, || mounted::change_devices(dir, what))
        },
        |images| {
            // With one log the least of it is open, so that it can be as small as possible.
            let options = MountOptions { background: false, mlogs: 1, ..MountOptions::default() };
            let volume = image::open_with(images, &options)?;
            let look = || volume.report().ok().and_then(|r| of(&r));
            let done = progress::watched("moving", look, || what.make(&volume));
            volume.close().about(images[0].display())?;
            Ok(done?)
        },
    )
}
