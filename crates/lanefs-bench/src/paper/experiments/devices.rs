//! ScaleFS figure 11: volumes over one to four devices, four workers.

use crate::compare::Medium;
use crate::error::{Context, Failure, Res, say};
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use crate::registry::select;
use crate::target::{OpenTarget, VolumeTarget};
use lanefs::{MountOptions, Volume};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{FormatOptions, Store};
use std::path::PathBuf;
use std::sync::Arc;

/// Workers, as in the paper.
const WORKERS: usize = 4;
/// Devices at most.
const MOST: u64 = 4;
/// Bytes of a device at least.
const LEAST: u64 = 256 << 20;
/// The workloads.
const WORKLOADS: [&str; 4] = ["mailbench-p", "dbench-sync", "largefile", "smallfile"];

/// Makes a volume over so many images.
fn volume(images: &[PathBuf], size: u64) -> Res<VolumeTarget> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for image in images {
        std::fs::File::create(image).and_then(|f| f.set_len(size)).at(image.display())?;
        devices.push(Arc::new(FileDevice::open(image, false).at(image.display())?));
    }
    debug_assert_eq!(devices.len(), images.len());
    Store::format(&devices, &FormatOptions::for_caller()).at("formatting")?;
    drop(devices);
    let volume = Volume::open(images, &MountOptions::default()).at("opening a volume of many devices")?;
    Ok(VolumeTarget::of(volume))
}

/// Runs it.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    for name in session.names().iter().filter(|n| *n != "lanefs") {
        session.out.lacks(
            name,
            "one file system over many devices takes a striping driver, which is not set up here",
        );
    }
    let ground = session.ground(session.medium(), false)?;
    let total = session.size()?;
    let workers = session.args.workers.last().copied().unwrap_or(WORKERS);
    let plan = session.cells().plan(workers, false);
    let mut points = WORKLOADS.map(|_| Vec::new());
    for n in 1..=MOST {
        let size = (total / n / (1 << 20) * (1 << 20)).max(LEAST);
        let images: Vec<PathBuf> = (0..n).map(|i| ground.base.join(format!("striped{n}-{i}.img"))).collect();
        for image in &images {
            session.undo.file(image)?;
        }
        let mut target = OpenTarget::Volume(volume(&images, size)?);
        for (workload, points) in WORKLOADS.iter().zip(&mut points) {
            let entries = select(&[workload.to_string()])?;
            let mut runs = Vec::new();
            for _ in 0..session.args.repeats {
                if crate::interrupt::requested() {
                    return Err(Failure::interrupted());
                }
                match entries[0].run(&mut target, &plan) {
                    Ok(outcome) => runs.push(outcome.rate),
                    Err(e) if e.interrupted => return Err(e),
                    Err(e) => session.out.lacks(format!("{workload} on {n} devices"), e.message),
                }
            }
            if !runs.is_empty() {
                points.push(Point::of(n as f64, &runs));
            }
        }
        say(format_args!("{n} device(s): done"))?;
    }
    let place = if session.medium() == Medium::Disk { "images on one disk" } else { "images in memory" };
    for (workload, points) in WORKLOADS.iter().zip(points) {
        let unit = select(&[workload.to_string()])?[0].info.unit;
        let one = Series { name: "lanefs".into(), how: "in process".into(), predicted: false, points };
        if !one.points.is_empty() {
            session.out.panels.push(Panel {
                name: workload.to_string(),
                title: format!("{workload}, {workers} workers, {place}"),
                drawn: Drawn::Lines,
                x: "devices".to_string(),
                y: format!("{unit} per second"),
                series: vec![one],
            });
        }
    }
    session.keep()
}
