//! `lanefs bench space`: file systems that are nearly full.
//!
//! Each file system is made anew for each fill level, on a device of its own, and goes through the
//! phases one after the other: `fill` to that share of what it offers when it is empty, `overwrite`
//! (twice the volume, at random, in writes of 4 KiB), `fileserver` and `varmail` in what is left.
//! Or, if asked for, through `lives`: files that live for long beside files that do not.
//! One at a time: what it takes of memory is given back before the next.
//!
//! What is written to the device is counted by the device: that of a volume in this process by
//! [`CountingDevice`](crate::cost::CountingDevice), a loop device by the kernel. Both count what
//! the file system asked for.

mod metered;
mod phases;

use crate::compare::{Ground, Medium, Peer, Place, Skipped, Undo};
use crate::error::{Context, Failure, Res, say};
use crate::machine::Machine;
use crate::matrix::{command_line, now};
use crate::target::{DirTarget, OpenTarget, TargetSpec, VolumeTarget};
use crate::units::{human, parse_size, span};
use lanefs_store::device::FileDevice;
use metered::Metered;
use phases::{Done, Filled, FilledMount, FilledVolume, Wishes};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// Arguments of `space`.
#[derive(Debug, clap::Args)]
pub struct SpaceArgs {
    /// How full the file systems are made, in per cent of what they offer when they are empty.
    #[arg(long, value_delimiter = ',', default_value = "50,90,97.5")]
    pub fill: Vec<f64>,
    /// Who takes part.
    #[arg(long, value_delimiter = ',', default_value = "lanefs,ext4,xfs,btrfs,f2fs")]
    pub peers: Vec<String>,
    /// LaneFS takes part mounted, too.
    #[arg(long)]
    pub mount: bool,
    /// Size of each device.
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    pub size: String,
    /// What the devices are made of.
    #[arg(long, value_enum, default_value = "mem")]
    pub medium: Medium,
    /// Where images are made with `--medium disk`.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub images: PathBuf,
    /// The `lanefs` command [default: beside this program].
    #[arg(long, value_name = "PROGRAM")]
    pub lanefs: Option<PathBuf>,
    /// Workers of all phases but the filling.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// How often the volume is overwritten.
    #[arg(long, default_value_t = 2.0, value_name = "TIMES")]
    pub passes: f64,
    /// Each worker that overwrites calls fsync after every so many writes.
    #[arg(long, default_value_t = 0, value_name = "WRITES")]
    pub sync_every: u64,
    /// Open the files that fill the volume with O_DIRECT.
    #[arg(long)]
    pub direct: bool,
    /// Timed seconds of fileserver and varmail.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// What is done at each level. `lives` is by itself: it fills an empty file system with files
    /// that are removed again, half of them soon.
    #[arg(long, value_delimiter = ',', default_value = "fill,overwrite,fileserver,varmail")]
    pub phases: Vec<String>,
    /// The files of `lives` say how long they will live (`F_SET_RW_HINT`).
    #[arg(long)]
    pub hints: bool,
    /// Options of the volume in this process, as they follow `mem:SIZE` in the target of `run`:
    /// `mlogs=8`, or `full=lanes` in a build with `--features ablation`.
    #[arg(long, value_name = "KEY=VALUE,..")]
    pub volume: Option<String>,
    /// So many per cent of the overwrites go to the rest of the blocks: 90 has nine of ten go to a
    /// tenth [default: all alike].
    #[arg(long, value_name = "PER CENT")]
    pub skew: Option<u8>,
    /// Seconds after which overwriting ends in any case, with a word.
    #[arg(long, default_value_t = 3600.0, value_name = "SECONDS")]
    pub limit: f64,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A whole results file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SpaceFile {
    /// Layout of this file.
    pub format: u32,
    /// The command that made it.
    pub command: String,
    /// Seconds since 1970.
    pub started: u64,
    /// The machine that made it.
    pub machine: Machine,
    /// Bytes of each device.
    pub size: u64,
    /// What was measured.
    pub results: Vec<SpaceResult>,
    /// What was not, or not to its end, and why.
    pub failures: Vec<SpaceFailure>,
    /// Who did not take part, and why.
    pub skipped: Vec<String>,
}

/// A phase of a file system at a fill level.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpaceResult {
    /// The file system.
    pub target: String,
    /// How full it was made, in per cent.
    pub fill: f64,
    /// The phase.
    pub phase: String,
    /// The operations done.
    pub ops: u64,
    /// Operations a second: writes of 1 MiB (fill) and 4 KiB (overwrite), filebench's operations.
    /// The last sync is inside the clock of fill and overwrite.
    pub ops_per_s: f64,
    /// Median latency of a write, or of a turn of the workload.
    pub p50_ns: u64,
    /// 99.9 % took at most this.
    pub p999_ns: u64,
    /// The longest one.
    pub max_ns: u64,
    /// Bytes written to the device for each byte that was written to files.
    pub write_amplification: f64,
    /// Bytes written to files.
    pub user_bytes: u64,
    /// What the store of a volume in this process did meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreWork>,
}

/// What a store does for what it was given.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StoreWork {
    /// Checkpoints of all kinds.
    pub checkpoints: u64,
    /// The seconds that they took together.
    pub checkpoint_s: f64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Blocks of data that it moved.
    pub blocks_moved: u64,
    /// Blocks of users' data that were written.
    pub data_blocks: u64,
    /// Blocks of the tree that were written.
    pub tree_blocks: u64,
    /// Blocks of the logs that were written.
    pub log_blocks: u64,
}

impl StoreWork {
    /// Returns the work since `before`.
    fn since(self, before: StoreWork) -> StoreWork {
        StoreWork {
            checkpoints: self.checkpoints.saturating_sub(before.checkpoints),
            checkpoint_s: self.checkpoint_s - before.checkpoint_s,
            segments_cleaned: self.segments_cleaned.saturating_sub(before.segments_cleaned),
            blocks_moved: self.blocks_moved.saturating_sub(before.blocks_moved),
            data_blocks: self.data_blocks.saturating_sub(before.data_blocks),
            tree_blocks: self.tree_blocks.saturating_sub(before.tree_blocks),
            log_blocks: self.log_blocks.saturating_sub(before.log_blocks),
        }
    }
}

/// A phase that failed or ended early.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpaceFailure {
    /// The file system.
    pub target: String,
    /// How full it was made, in per cent.
    pub fill: f64,
    /// The phase.
    pub phase: String,
    /// What happened.
    pub message: String,
}

/// What can be done at a level.
const PHASES: [&str; 5] = ["fill", "overwrite", "fileserver", "varmail", "lives"];

/// Does it all and returns the exit status.
pub fn run(args: &SpaceArgs) -> Res<i32> {
    let mut peers =
        args.peers.iter().filter(|p| !p.is_empty()).map(|p| Peer::parse(p)).collect::<Res<Vec<_>>>()?;
    if args.mount && !peers.contains(&Peer::LanefsMount) {
        peers.push(Peer::LanefsMount);
    }
    check(args, &peers)?;
    let mut file = SpaceFile {
        format: 1,
        command: command_line(),
        started: now(),
        machine: Machine::here(),
        size: parse_size(&args.size)?,
        ..SpaceFile::default()
    };
    say(format_args!(
        "{:<13} {:>6} {:<10} {:>10} {:>10} {:>10} {:>10} {:>7}",
        "target", "fill", "phase", "ops/s", "p50", "p99.9", "longest", "amplif."
    ))?;
    for &fill in &args.fill {
        for &peer in &peers {
            match level(args, peer, fill, &mut file) {
                Err(e) if e.interrupted => {
                    eprintln!("interrupted; everything made was removed, what was finished is kept");
                    return Ok(130);
                }
                other => other?,
            }
        }
    }
    Ok(i32::from(!file.failures.is_empty()))
}

/// Refuses what cannot be run.
fn check(args: &SpaceArgs, peers: &[Peer]) -> Res<()> {
    if args.fill.is_empty() || args.fill.iter().any(|f| !f.is_finite() || *f <= 0.0 || *f > 100.0) {
        return Err(Failure::refused("--fill is more than 0 and at most 100"));
    }
    if !(1..=1024).contains(&args.workers) {
        return Err(Failure::refused("--workers is 1 to 1024"));
    }
    let sane = |n: f64, most: f64| n.is_finite() && n > 0.0 && n <= most;
    if !sane(args.passes, 1e6) || !sane(args.seconds, 86_400.0) || !sane(args.limit, 1e7) {
        return Err(Failure::refused("--passes, --seconds and --limit are more than 0"));
    }
    if let Some(phase) = args.phases.iter().find(|p| !PHASES.contains(&p.as_str())) {
        return Err(Failure::refused(format!("--phases: there is no {phase}, but {}", PHASES.join(", "))));
    }
    if args.volume.is_some() && args.medium != Medium::Mem {
        return Err(Failure::refused("--volume is for --medium mem"));
    }
    if args.skew.is_some_and(|s| !(1..=99).contains(&s)) {
        return Err(Failure::refused("--skew is 1 to 99 per cent"));
    }
    if peers.is_empty() || peers.contains(&Peer::Tmpfs) {
        return Err(Failure::refused("--peers names file systems that have a device"));
    }
    if peers.iter().any(|p| p.mounts()) && !rustix::process::geteuid().is_root() {
        return Err(Failure::refused("mounting takes root; without it: --peers lanefs"));
    }
    Ok(())
}

/// Makes a file system, has it go through its phases, and removes it.
fn level(args: &SpaceArgs, peer: Peer, fill: f64, file: &mut SpaceFile) -> Res<()> {
    let mut undo = Undo::new()?;
    let place = Place { medium: args.medium, images: &args.images, size: file.size };
    let mut ground = Ground::new(&place, args.lanefs.clone(), peer.mounts(), &mut undo)?;
    ground.direct = args.direct;
    ground.written = args.medium == Medium::Mem;
    if let Some(why) = peer.missing(&ground.lanefs) {
        if !file.skipped.contains(&why) {
            say(format_args!("skipped {why}"))?;
            file.skipped.push(why);
        }
        return Ok(());
    }
    let done = match peer {
        Peer::Lanefs => {
            let mut on = FilledVolume(Metered::new(in_process(args, &ground, &mut undo)?));
            phases(args, &mut on, (peer.name(), fill), file)
        }
        _ => {
            let mut on = mounted(&ground, peer, &mut undo)?;
            phases(args, &mut on, (peer.name(), fill), file)
        }
    };
    // All files are closed by now.
    for complaint in undo.all() {
        eprintln!("lanefs-bench: {complaint}");
    }
    done
}

/// Makes a volume and opens it in this process.
fn in_process(args: &SpaceArgs, ground: &Ground, undo: &mut Undo) -> Res<VolumeTarget> {
    match args.medium {
        Medium::Mem => {
            let wished = args.volume.as_ref().map_or(String::new(), |v| format!(",{v}"));
            let spec = TargetSpec::parse(&format!("mem:{},written=yes{wished}", ground.size))?;
            let TargetSpec::Memory(memory) = spec else {
                return Err(Failure::new("a volume in memory is meant"));
            };
            VolumeTarget::counted(&memory, args.direct)
        }
        Medium::Disk => {
            let image = ground.lanefs_image(Peer::Lanefs.name(), undo)?;
            let device = FileDevice::open(&image, false).at(image.display())?;
            VolumeTarget::counting(Arc::new(device), args.direct)
        }
    }
}

/// Makes a file system on a loop device and mounts it.
fn mounted(ground: &Ground, peer: Peer, undo: &mut Undo) -> Res<FilledMount> {
    let made = match peer {
        Peer::LanefsMount => ground.make_on_loop(undo)?,
        _ => ground.make(peer, undo)?.map_err(|Skipped(why)| Failure::new(why))?.target,
    };
    let OpenTarget::Dir(workloads) = made else { return Err(Failure::new("a mount is a directory")) };
    let device = ground.loop_of(peer)?;
    let fill = DirTarget::new(&ground.base.join(peer.name()), ground.direct)?;
    FilledMount::new(fill, workloads, device)
}

/// Does the phases of one file system. One that fails is noted, and the next one tried.
fn phases<F: Filled>(
    args: &SpaceArgs,
    on: &mut F,
    (target, fill): (&str, f64),
    file: &mut SpaceFile,
) -> Res<()> {
    let wishes = Wishes {
        workers: args.workers,
        passes: args.passes,
        sync_every: args.sync_every,
        seconds: args.seconds,
        limit: args.limit,
        skew: args.skew,
        hints: args.hints,
    };
    let mut files = Vec::new();
    for phase in args.phases.iter().map(String::as_str) {
        let done = match phase {
            "fill" => phases::fill(on, fill).map(|(done, made)| {
                files = made;
                done
            }),
            "lives" => phases::lives(on, fill, file.size, &wishes),
            "overwrite" => phases::overwrite(on, &files, file.size, &wishes),
            _ => phases::workload(on, phase, &wishes),
        };
        let failed = match done {
            Err(e) if e.interrupted => return Err(e),
            Err(e) => Some(e.message),
            Ok(mut done) => {
                let stopped = done.stopped.take();
                note(done, (target, fill, phase), file)?;
                stopped
            }
        };
        if let Some(message) = failed {
            say(format_args!("{target:<13} {fill:>6} {phase:<10} {message}"))?;
            let (target, phase) = (target.to_string(), phase.to_string());
            file.failures.push(SpaceFailure { target, fill, phase, message });
        }
        if let Some(path) = &args.json {
            crate::matrix::write_json(path, file)?;
        }
    }
    Ok(())
}

/// Notes what came out of a phase, and prints it.
fn note(done: Done, (target, fill, phase): (&str, f64, &str), file: &mut SpaceFile) -> Res<()> {
    let result = SpaceResult {
        target: target.to_string(),
        fill,
        phase: phase.to_string(),
        ops: done.ops,
        ops_per_s: done.ops_per_s,
        p50_ns: done.p50_ns,
        p999_ns: done.p999_ns,
        max_ns: done.max_ns,
        write_amplification: done.device_bytes as f64 / done.user_bytes.max(1) as f64,
        user_bytes: done.user_bytes,
        store: done.store,
    };
    say(format_args!(
        "{target:<13} {fill:>6} {phase:<10} {:>10} {:>10} {:>10} {:>10} {:>7.2}",
        human(result.ops_per_s),
        span(result.p50_ns),
        span(result.p999_ns),
        span(result.max_ns),
        result.write_amplification
    ))?;
    file.results.push(result);
    Ok(())
}
