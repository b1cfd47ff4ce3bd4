//! `lanefs mkfs`

use crate::failure::{About, Failure, Outcome, written};
use crate::{mounted, size};
use lanefs_format::BLOCK_SIZE;
use lanefs_format::superblock::{LABEL_MAX, MAX_MLOGS, MAX_SEGMENT_BLOCKS, MIN_SEGMENT_BLOCKS};
use lanefs_store::device::{Device, FileOptions, NewImage};
use lanefs_store::{FormatOptions, OpenOptions, Store};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The size of an image made without a size given.
pub const DEFAULT_SIZE: u64 = 4 << 30;

/// Make a new, empty volume
///
/// Images that do not exist are made as sparse files. Several images or block devices make one
/// volume on all of them.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Size of each new image, such as 4G [default: 4G]
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Number of independent logs, at most 128; small volumes hold fewer [default: one per
    /// CPU, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MLOGS)))]
    pub mlogs: Option<u32>,
    /// How often everything but file data lies on the devices: with 2 a damaged block costs nothing
    /// that it describes, and what is written of it is written twice
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub metadata_copies: u32,
    /// Overwrite what the image holds
    #[arg(long)]
    pub force: bool,
    /// A name for people, at most 64 bytes
    #[arg(long, default_value = "")]
    pub label: String,
    /// Size of a segment, the unit of allocation and cleaning [default: 2M, less on small volumes]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub segment_size: Option<u64>,
    /// Do not say what was made
    #[arg(long, short)]
    pub quiet: bool,
    /// Image files or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Refuses what cannot be a label.
pub fn check_label(label: &str) -> Result<(), Failure> {
    if label.len() > LABEL_MAX || label.chars().any(char::is_control) {
        return Err(Failure::new(format_args!(
            "label {label:?} is longer than {LABEL_MAX} bytes or has control characters; choose another"
        )));
    }
    Ok(())
}

/// Makes the volume.
pub fn run(args: &Args) -> Outcome {
    let mut options = FormatOptions {
        label: args.label.clone(),
        mlogs: args.mlogs.unwrap_or(0),
        metadata_copies: args.metadata_copies,
        force: args.force,
        ..FormatOptions::for_caller()
    };
    check_label(&args.label)?;
    if let Some(bytes) = args.segment_size {
        options.segment_blocks = u32::try_from(bytes / BLOCK_SIZE as u64).unwrap_or(u32::MAX);
        let whole = bytes.is_multiple_of(BLOCK_SIZE as u64);
        if !whole
            || !options.segment_blocks.is_power_of_two()
            || !(MIN_SEGMENT_BLOCKS..=MAX_SEGMENT_BLOCKS).contains(&options.segment_blocks)
        {
            return Err(Failure::new(
                "segment size must be a power of two from 64K to 2M; try --segment-size 2M",
            ));
        }
    }
    let used = make(&args.images, args.size, &options)?;
    if !args.quiet {
        report(args)?;
    }
    if let Some(asked) = args.mlogs.filter(|n| *n as usize > used) {
        eprintln!("lanefs: the volume has room for {used} mlogs only, not {asked}: so many will be used");
    }
    Ok(0)
}

/// Reports what was made, as a later look at the volume shows it.
fn report(args: &Args) -> Result<(), Failure> {
    let devices = super::info::open_devices(&args.images)?;
    let (store, _) = Store::open(devices, &OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let (info, space) = (store.info(), store.space());
    let block = BLOCK_SIZE as u64;
    let images: Vec<_> = args.images.iter().map(|i| i.display().to_string()).collect();
    let copies = if info.metadata_copies == 2 { ", two copies of metadata" } else { "" };
    let label = if info.label.is_empty() { String::new() } else { format!(", label {:?}", info.label) };
    written(writeln!(
        std::io::stdout(),
        "{}: a volume of {}, of which {} can be filled; {} segments of {}, {} mlogs{copies}; uuid {}{label}",
        images.join(", "),
        size::show(info.total_blocks * block),
        size::show(space.free * block),
        info.segments,
        size::show(u64::from(info.segment_blocks) * block),
        info.mlogs,
        super::info::uuid(&info.uuid),
    ))
}

/// Makes a volume on `images`, and returns how many mlogs it will be used with. If it cannot be
/// made, what was there is left as it was; images that were made for it are removed again if it
/// fails.
pub fn make(images: &[PathBuf], size: Option<u64>, options: &FormatOptions) -> Result<usize, Failure> {
    let mut made: Vec<NewImage> = Vec::new();
    // Only with --force an image that holds something is changed (in size) before the volume is
    // made.
    let sizes = images.iter().map(|i| size_of(i, size)).collect::<Option<Vec<_>>>();
    if let Some(sizes) = sizes.filter(|_| options.force) {
        options.mlogs_on(&sizes)?;
    }
    let devices = images
        .iter()
        .map(|image| device(image, images, size, options.force, &mut made))
        .collect::<Result<Vec<_>, _>>()?;
    Store::format(&devices, options)?;
    let mlogs = options.mlogs_on(&devices.iter().map(|d| d.size()).collect::<Vec<_>>())?;
    debug_assert!(made.len() <= devices.len(), "an image that is no device");
    drop(devices);
    NewImage::give_names(made)?;
    Ok(mlogs)
}

/// Returns the bytes an image will have; `None` for a device, which reports its size when it is
/// open.
fn size_of(image: &Path, size: Option<u64>) -> Option<u64> {
    let there = std::fs::metadata(image).ok();
    let made = size.unwrap_or(DEFAULT_SIZE).next_multiple_of(BLOCK_SIZE as u64);
    match there {
        None => Some(made),
        Some(meta) if !meta.is_file() => None,
        Some(meta) if meta.len() == 0 || size.is_some() => Some(made),
        Some(meta) => Some(meta.len()),
    }
}

/// Opens an image or a device, one of `images`, makes it or sets its size. Those that were made are
/// added to `made`.
fn device(
    image: &Path,
    images: &[PathBuf],
    size: Option<u64>,
    force: bool,
    made: &mut Vec<NewImage>,
) -> Result<Arc<dyn Device>, Failure> {
    let name = image.display();
    let Ok(meta) = std::fs::metadata(image) else {
        let size = size.unwrap_or(DEFAULT_SIZE).next_multiple_of(BLOCK_SIZE as u64);
        let new = NewImage::new(image, size)?;
        let device = new.device();
        made.push(new);
        return Ok(device);
    };
    let resize = size.filter(|s| meta.is_file() && *s != meta.len());
    if meta.is_file() && meta.len() == 0 || resize.is_some() && force {
        let size = size.unwrap_or(DEFAULT_SIZE).next_multiple_of(BLOCK_SIZE as u64);
        let file = std::fs::File::options().write(true).open(image).about(name)?;
        refuse_if_in_use(image, images)?;
        file.set_len(size).about(image.display())?;
    } else if let Some(size) = resize {
        return Err(Failure::new(format_args!(
            "{name}: exists with {} bytes, not {size}; leave --size out, or give --force to make it anew",
            meta.len()
        )));
    } else if size.is_some() && meta.file_type().is_block_device() {
        return Err(Failure::new(format_args!("{name}: a block device has its own size; leave --size out")));
    }
    let device: Arc<dyn Device> =
        Arc::new(mounted::device_when_closed(image, images, FileOptions::default())?);
    if !force {
        refuse_if_holding(&*device)?;
    }
    Ok(device)
}

/// Refuses an image that somebody has open, but for a server that is about to close it: opening
/// takes its lock, and fails with the holder's pid.
fn refuse_if_in_use(image: &Path, images: &[PathBuf]) -> Result<(), Failure> {
    match mounted::device_when_closed(image, images, FileOptions::default()) {
        Err(e @ lanefs_store::StoreError::InUse { .. }) => Err(e.into()),
        _ => Ok(()),
    }
}

/// Refuses an image whose beginning is not all zeros: it belongs to somebody.
pub fn refuse_if_holding(device: &dyn Device) -> Result<(), Failure> {
    let mut blocks =
        vec![lanefs_format::Block([0; BLOCK_SIZE]); 32.min((device.size() / BLOCK_SIZE as u64) as usize)];
    let mut reads: Vec<_> = blocks
        .iter_mut()
        .enumerate()
        .map(|(i, b)| lanefs_store::device::ReadReq { offset: (i * BLOCK_SIZE) as u64, data: &mut b.0 })
        .collect();
    debug_assert!(reads.iter().all(|r| r.offset < device.size()));
    device.read(&mut reads)?;
    drop(reads);
    if blocks.iter().any(|b| b.0.iter().any(|byte| *byte != 0)) {
        return Err(Failure::new(format_args!(
            "{}: holds something already (see `file -s {}`); give --force to overwrite it",
            device.name(),
            device.name()
        )));
    }
    Ok(())
}
