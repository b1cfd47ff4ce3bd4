//! `lanefs info`

use crate::failure::{Failure, Outcome, written};
use crate::size::show;
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{BLOCK_SIZE, OpenOptions, OpenReport, SpaceUsage, Store, VolumeInfo};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Show what a volume is: sizes, identity, state
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let devices = open_devices(&args.images)?;
    let (store, report) = Store::open(devices, &OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let (info, space) = (store.info(), store.space());
    let mut out = std::io::stdout().lock();
    written(match args.json {
        true => writeln!(out, "{:#}", json(args, &info, &space, &report)),
        false => text(&mut out, args, &info, &space, &report),
    })?;
    Ok(0)
}

/// Opens images for reading only.
pub fn open_devices(images: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>, Failure> {
    images.iter().map(|i| Ok(Arc::new(FileDevice::open(i, true)?) as Arc<dyn Device>)).collect()
}

/// A volume's identity as people write it.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn json(args: &Args, info: &VolumeInfo, space: &SpaceUsage, report: &OpenReport) -> serde_json::Value {
    let images: Vec<_> = args.images.iter().map(|i| i.display().to_string()).collect();
    serde_json::json!({
        "images": images,
        "uuid": uuid(&info.uuid),
        "label": info.label,
        "clean": report.clean,
        "block_size": BLOCK_SIZE,
        "total_blocks": info.total_blocks,
        "segment_blocks": info.segment_blocks,
        "segments": info.segments,
        "mlogs": info.mlogs,
        "devices": info.devices,
        "mount_generation": info.mount_generation,
        "last_epoch": info.last_epoch,
        "usable_blocks": space.total,
        "free_blocks": space.free,
        "inodes": space.inodes,
    })
}

fn text(
    out: &mut impl Write,
    args: &Args,
    info: &VolumeInfo,
    space: &SpaceUsage,
    report: &OpenReport,
) -> std::io::Result<()> {
    let block = BLOCK_SIZE as u64;
    let images: Vec<_> = args.images.iter().map(|i| i.display().to_string()).collect();
    let state = match report.clean {
        true => "clean".to_string(),
        false => format!("not closed; {} batches to recover", report.batches),
    };
    for (name, value) in [
        ("volume", images.join(", ")),
        ("uuid", uuid(&info.uuid)),
        ("label", info.label.clone()),
        ("state", state),
        ("size", show(info.total_blocks * block)),
        ("usable", show(space.total * block)),
        ("free", show(space.free * block)),
        ("inodes", space.inodes.to_string()),
        ("segments", format!("{} of {}", info.segments, show(u64::from(info.segment_blocks) * block))),
        ("mlogs", info.mlogs.to_string()),
        ("mounted", format!("{} times", info.mount_generation)),
    ] {
        writeln!(out, "{name:<9} {value}")?;
    }
    Ok(())
}
