//! `lanefs info`

use crate::failure::{Failure, Outcome, written};
use crate::mounted;
use crate::size::show;
use lanefs_format::BLOCK_SIZE;
use lanefs_fuse::about::About;
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{OpenOptions, OpenReport, Store, StoreError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Show what a volume is: sizes, identity, state
///
/// Of a volume that is mounted the mount is asked: name its image, or a directory of it. With
/// --export the answer is lines of KEY=value as `blkid -o export` has them: DEVNAME, UUID, LABEL
/// (if there is one), BLOCK_SIZE and TYPE.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Write what identifies the volume, for scripts
    #[arg(long, conflicts_with = "json")]
    pub export: bool,
    /// The volume's images or block devices, or a directory of a mounted volume
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let shown = Shown::of(&args.images)?;
    let mut out = std::io::stdout().lock();
    written(match (args.json, args.export) {
        (true, _) => writeln!(out, "{:#}", json(args, &shown)),
        (_, true) => export(&mut out, args, &shown),
        _ => text(&mut out, args, &shown),
    })?;
    Ok(0)
}

/// Returns the description of a volume, mounted or not.
pub fn about(images: &[PathBuf]) -> Result<About, Failure> {
    Shown::of(images).map(|s| s.about)
}

/// Escapes a value so that a shell reads it as one word.
fn escaped(value: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,+@%".contains(c);
    value.chars().flat_map(|c| (!plain(c)).then_some('\\').into_iter().chain([c])).collect()
}

fn export(out: &mut impl Write, args: &Args, shown: &Shown) -> std::io::Result<()> {
    let images: Vec<_> = args.images.iter().map(|i| i.display().to_string()).collect();
    writeln!(out, "DEVNAME={}", escaped(&images.join(",")))?;
    writeln!(out, "UUID={}", uuid(&shown.about.uuid))?;
    if !shown.about.label.is_empty() {
        writeln!(out, "LABEL={}", escaped(&shown.about.label))?;
    }
    writeln!(out, "BLOCK_SIZE={BLOCK_SIZE}")?;
    writeln!(out, "TYPE=lanefs")
}

/// The description of a volume, and its state.
struct Shown {
    about: About,
    state: State,
}

/// The state of a volume.
enum State {
    /// It is mounted there.
    Mounted(PathBuf),
    /// It is not mounted, and opening it found this.
    Found(OpenReport),
}

impl Shown {
    /// Describes the volume of images, or of a directory of a mount.
    fn of(images: &[PathBuf]) -> Result<Shown, Failure> {
        if let Some(dir) = images.iter().find(|i| mounted::is_dead(i)) {
            return Err(mounted::dead(dir));
        }
        match images {
            [dir] if dir.is_dir() => Shown::of_mounted(dir),
            images => Shown::of_images(images),
        }
    }

    /// Describes a mounted volume.
    fn of_mounted(dir: &Path) -> Result<Shown, Failure> {
        let about = mounted::ask(dir)?;
        Ok(Shown { about, state: State::Mounted(dir.canonicalize().unwrap_or_else(|_| dir.into())) })
    }

    /// Describes the volume of images, by the mount that has them if there is one.
    fn of_images(images: &[PathBuf]) -> Result<Shown, Failure> {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let open = || Store::open(devices(images)?, &options);
        let holder = |e: &StoreError| match e {
            StoreError::InUse { pid, .. } => Some(*pid),
            _ => None,
        };
        match mounted::when_closed(images, open, holder) {
            Ok((store, report)) => {
                let (info, space) = (store.info(), store.space());
                let about = About {
                    uuid: info.uuid,
                    label: info.label,
                    total_blocks: info.total_blocks,
                    segment_blocks: info.segment_blocks.into(),
                    segments: info.segments,
                    mlogs: info.mlogs as u64,
                    metadata_copies: info.metadata_copies.into(),
                    devices: info.devices as u64,
                    mount_generation: info.mount_generation,
                    last_epoch: info.last_epoch,
                    usable: space.total,
                    free: space.free,
                    inodes: space.inodes,
                    read_only: true,
                };
                Ok(Shown { about, state: State::Found(report) })
            }
            Err(e) => match mounted::dir_of(images) {
                // What is behind a loop device that is mounted is no volume to others.
                Some(dir)
                    if matches!(
                        e,
                        StoreError::InUse { .. }
                            | StoreError::NotOpened { .. }
                            | StoreError::NoImage { .. }
                            | StoreError::NotAVolume { .. }
                    ) =>
                {
                    Shown::of_mounted(&dir)
                }
                _ => Err(e.into()),
            },
        }
    }
}

/// Opens images for reading only; says what the store says where one cannot be.
pub fn devices(images: &[PathBuf]) -> lanefs_store::Result<Vec<Arc<dyn Device>>> {
    images.iter().map(|i| Ok(Arc::new(FileDevice::open(i, true)?) as Arc<dyn Device>)).collect()
}

/// Opens images for reading only.
pub fn open_devices(images: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>, Failure> {
    Ok(devices(images)?)
}

/// Formats a volume's identity as people write it.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    debug_assert_eq!(hex.len(), 32);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn json(args: &Args, shown: &Shown) -> serde_json::Value {
    let info = &shown.about;
    let (clean, dir) = match &shown.state {
        State::Mounted(dir) => (false, Some(dir.display().to_string())),
        State::Found(report) => (report.clean, None),
    };
    let images: Vec<_> = args.images.iter().map(|i| i.display().to_string()).collect();
    serde_json::json!({
        "images": images,
        "uuid": uuid(&info.uuid),
        "label": info.label,
        "clean": clean,
        "mounted": dir,
        "block_size": BLOCK_SIZE,
        "total_blocks": info.total_blocks,
        "segment_blocks": info.segment_blocks,
        "segments": info.segments,
        "mlogs": info.mlogs,
        "metadata_copies": info.metadata_copies,
        "devices": info.devices,
        "mount_generation": info.mount_generation,
        "last_epoch": info.last_epoch,
        "usable_blocks": info.usable,
        "free_blocks": info.free,
        "inodes": info.inodes,
    })
}

fn text(out: &mut impl Write, args: &Args, shown: &Shown) -> std::io::Result<()> {
    let info = &shown.about;
    let block = BLOCK_SIZE as u64;
    let images: Vec<_> = args.images.iter().map(|i| i.display().to_string()).collect();
    let state = match &shown.state {
        State::Mounted(dir) if info.read_only => format!("mounted at {}, opened read-only", dir.display()),
        State::Mounted(dir) => format!("mounted at {}", dir.display()),
        State::Found(report) if report.clean => "clean".to_string(),
        State::Found(report) => format!("not closed; {} batches to recover", report.batches),
    };
    for (name, value) in [
        ("volume", images.join(", ")),
        ("uuid", uuid(&info.uuid)),
        ("label", info.label.clone()),
        ("state", state),
        ("size", show(info.total_blocks * block)),
        ("usable", show(info.usable * block)),
        ("free", show(info.free * block)),
        ("inodes", info.inodes.to_string()),
        ("segments", format!("{} of {}", info.segments, show(info.segment_blocks * block))),
        ("mlogs", info.mlogs.to_string()),
        ("metadata", if info.metadata_copies == 2 { "two copies".into() } else { "one copy".into() }),
        ("mounted", format!("{} times", info.mount_generation)),
    ] {
        writeln!(out, "{name:<9} {value}")?;
    }
    Ok(())
}
