//! `cargo xtask measure [--quick] [NAME..]`: the figures that stand in docs/reports. What works in
//! process are examples of the crate `lanefs`; here they are started, and done again through a
//! mount.

mod mount_fsync;
mod sequential;
mod transports;

use crate::programs::volume::{self, Volume};
use crate::run::{cargo, need, run};
use std::process::Command;

/// Name, what it shows, how.
type Measurement = (&'static str, &'static str, fn(bool) -> Result<(), String>);

const MEASUREMENTS: &[Measurement] = &[
    ("cost", "one operation in process, beside tmpfs", |_| example("cost", &[])),
    ("fsync", "trips, bytes and flushes of an fsync; flushes shared", |_| example("fsync", &[])),
    ("recovery", "recovery of 1 GiB of log", |quick| {
        example("recovery", if quick { &["--mib", "128"] } else { &[] })
    }),
    ("million", "a million files in process, 128 MiB; opening with them", |quick| {
        example("million", if quick { &["--files", "50000"] } else { &[] })
    }),
    ("names", "ten million names in one directory, 128 MiB", |quick| {
        example("million", if quick { &["--names", "--files", "200000"] } else { &["--names"] })
    }),
    ("sizes", "empty volumes of 10 GiB to 1 TiB: what grows with the size", |_| example("sizes", &[])),
    ("sparse", "a file of 100 GiB with holes, 128 MiB", |_| example("memory", &[])),
    ("mount-million", "a million files through a mount, 128 MiB; mounting with them", mount_million),
    ("mount-sparse", "a file of 100 GiB through a mount, 128 MiB", |_| through_mount("memory", &[])),
    ("requests", "requests that the kernel makes of an operation, for each way to mount", |_| requests()),
    ("roundtrips", "metadata calls through the mount, beside an empty FUSE file system", |_| round_trips()),
    ("transports", "calls per second over io_uring, beside /dev/fuse", transports::run),
    ("mount-fsync", "fsync through the mount, beside the file system under the image", mount_fsync::run),
    ("sequential", "sequential I/O through the mount, beside the device and memcpy", sequential::run),
];

/// The command.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let mut quick = false;
    let mut names = Vec::new();
    for argument in arguments {
        match *argument {
            "--quick" => quick = true,
            name if MEASUREMENTS.iter().any(|m| m.0 == name) => names.push(name),
            other => {
                let all: Vec<&str> = MEASUREMENTS.iter().map(|m| m.0).collect();
                return Err(format!("measure: {other:?}: not one of {}", all.join(" ")));
            }
        }
    }
    need(&[("fusermount3", "fuse3")])?;
    let mut failed = Vec::new();
    for (name, what, measure) in MEASUREMENTS {
        if names.is_empty() || names.contains(name) {
            println!("\n== {name}: {what}");
            if let Err(e) = measure(quick) {
                println!("{name}: {e}");
                failed.push(*name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("measurements failed: {}", failed.join(" "))) }
}

/// Runs a measuring program of the benchmarks.
fn example(name: &str, arguments: &[&str]) -> Result<(), String> {
    run(cargo(&["run", "--release", "--quiet", "--package", "lanefs-bench", "--example", name, "--"])
        .args(arguments))
}

/// A mounted volume with the budget of 128 MiB.
fn mounted(size: &str, options: &[&str]) -> Result<Volume, String> {
    let mut volume = Volume::make(&volume::build()?, size, options)?;
    volume.mount()?;
    Ok(volume)
}

/// Runs one on a mount and shows the memory of the process that serves it.
fn on_mount(volume: &Volume, name: &str, arguments: &[&str]) -> Result<(), String> {
    let pid = volume.pid().ok_or("nothing serves the mount")?.to_string();
    let mut c = cargo(&[
        "run",
        "--release",
        "--quiet",
        "--package",
        "lanefs-bench",
        "--example",
        name,
        "--",
        "--dir",
    ]);
    run(c.arg(volume.mnt()).args(["--pid", &pid]).args(arguments))
}

fn through_mount(name: &str, arguments: &[&str]) -> Result<(), String> {
    let mut volume = mounted("8G", &["--cache-size", "128M"])?;
    on_mount(&volume, name, arguments)?;
    volume.umount()?;
    volume.fsck()
}

/// A million files through the mount, then once more to be left there while it is mounted again.
fn mount_million(quick: bool) -> Result<(), String> {
    let files: &[&str] = if quick { &["--files", "20000"] } else { &[] };
    let mut volume = mounted("24G", &["--cache-size", "128M"])?;
    on_mount(&volume, "million", files)?;
    on_mount(&volume, "million", &[files, &["--keep"]].concat())?;
    println!("unmounted in {:.2} s", volume.umount()?.as_secs_f64());
    for _ in 0..3 {
        let took = volume.mount()?;
        println!(
            "mounted with the files in {:.1} ms, the start of the process included",
            took.as_secs_f64() * 1e3
        );
        volume.umount()?;
    }
    volume.fsck()
}

/// The table that a test of the mount holds to its ratchet.
fn requests() -> Result<(), String> {
    let test = ["test", "--release", "--quiet", "--package", "lanefs-fuse", "--test", "it", "--"];
    run(cargo(&test).args(["--nocapture", "requests"]))
}

/// The same calls in a file system that does nothing and in LaneFS, in turn.
fn round_trips() -> Result<(), String> {
    run(&mut cargo(&["build", "--release", "--quiet", "--package", "lanefs-fuse", "--example", "empty"]))?;
    let mut volume = mounted("4G", &[])?;
    run(Command::new(volume::target().join("release/examples/empty")).arg(volume.mnt()))?;
    volume.umount().map(drop)
}
