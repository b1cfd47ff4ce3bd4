//! `lanefs bench compare`: LaneFS and its peers on one medium, in one interleaved run.
//!
//! Every peer has a device of the same size: an image on a tmpfs of our own (`--medium mem`) or in
//! a directory on a disk (`--medium disk`). tmpfs itself has none. Everything made is on the undo
//! list (`undo`) before it is made.

mod memory;
mod peers;
mod undo;

pub use peers::{Ground, Medium, Peer, Place, Skipped, lanefs_command};
pub use undo::Undo;

use crate::error::{Failure, Res, say};
use crate::machine::Machine;
use crate::matrix::{Cells, command_line, matrix, now, write_json};
use crate::ratios::table;
use crate::registry::{Entry, select};
use crate::results::ResultsFile;
use crate::target::{Named, OpenTarget, TargetSpec};
use crate::units::parse_size;
use std::path::PathBuf;

/// Refuses `devices` devices of `size` in memory, written in full, when they do not fit.
pub fn check_memory(devices: u64, size: u64) -> Res<()> {
    memory::check(devices, size, memory::available()?)
}

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// What the peers' devices are made of.
    #[arg(long, value_enum, default_value = "mem")]
    pub medium: Medium,
    /// Who takes part.
    #[arg(long, value_delimiter = ',', default_value = "tmpfs,ext4,xfs,btrfs,f2fs,lanefs,lanefs-mount")]
    pub peers: Vec<String>,
    /// A file system that is already mounted takes part, under this name or that of the directory.
    #[arg(long, value_name = "[NAME=]DIR")]
    pub dir: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)] // what is flattened has its own
    pub cells: Cells,
    /// Size of each peer's device. With `--medium mem` all of them have to fit into memory
    /// together.
    #[arg(long, default_value = "4G", value_name = "SIZE")]
    pub size: String,
    /// With `--medium mem`: leave the devices as they are made, so that the first write to each of
    /// their pages also has the system clear it. Otherwise every peer's device is written once
    /// before.
    #[arg(long)]
    pub fresh: bool,
    /// Where images are made with `--medium disk`.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub images: PathBuf,
    /// The `lanefs` command [default: beside this program].
    #[arg(long, value_name = "PROGRAM")]
    pub lanefs: Option<PathBuf>,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Does it all and returns the exit status.
pub fn run(args: &CompareArgs) -> Res<i32> {
    args.cells.check()?;
    let workloads = select(&args.cells.workloads)?;
    let peers =
        args.peers.iter().filter(|p| !p.is_empty()).map(|p| Peer::parse(p)).collect::<Res<Vec<_>>>()?;
    let needs_root = args.medium == Medium::Mem && peers.iter().any(|p| p.mounts());
    if (needs_root || peers.iter().any(|p| p.mounts())) && !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            "making and mounting file systems takes root; without it name mounted ones: --peers lanefs --dir [NAME=]DIR",
        ));
    }
    let mut undo = Undo::new()?;
    let outcome = compare(args, &workloads, &peers, &mut undo);
    // The targets are closed by now; what remains is to unmount and remove.
    let complaints = undo.all();
    for complaint in &complaints {
        eprintln!("lanefs-bench: {complaint}");
    }
    match outcome {
        Err(e) if e.interrupted => {
            eprintln!("interrupted; everything made was removed, what was finished is kept");
            Ok(130)
        }
        Ok(code) => Ok(if complaints.is_empty() { code } else { 2 }),
        Err(e) => Err(e),
    }
}

/// Makes the peers, runs the cells and prints the table.
fn compare(args: &CompareArgs, workloads: &[&Entry], peers: &[Peer], undo: &mut Undo) -> Res<i32> {
    if args.medium == Medium::Mem {
        let bytes = parse_size(&args.size)?;
        let written = peers.iter().filter(|p| !args.fresh && p.has_device());
        let here = |p: &&Peer| p.missing(&peers::lanefs_command(args.lanefs.clone())).is_none();
        check_memory(written.filter(|p| here(p)).count() as u64, bytes)?;
    }
    let place = Place { medium: args.medium, images: &args.images, size: parse_size(&args.size)? };
    let mut ground = Ground::new(&place, args.lanefs.clone(), peers.iter().any(|p| p.mounts()), undo)?;
    ground.direct = args.cells.direct;
    ground.written = args.medium == Medium::Mem && !args.fresh;
    let mut machine = Machine::here();
    let mut targets: Vec<Named> = Vec::new();
    for &peer in peers {
        if crate::interrupt::requested() {
            return Err(Failure::interrupted());
        }
        match ground.make(peer, undo)? {
            Ok(named) => targets.push(named),
            Err(Skipped(why)) => say(format_args!("skipped {why}"))?,
        }
        if let Peer::Kernel { mkfs, .. } = peer {
            machine.note_version(mkfs[0], "-V");
        }
    }
    for text in &args.dir {
        let (name, dir) = match text.split_once('=') {
            Some((name, dir)) if !name.contains('/') => (name, dir),
            _ => (text.as_str(), text.as_str()),
        };
        let spec = TargetSpec::parse(dir)?;
        if let TargetSpec::Dir(path) = &spec {
            machine.note_mount(path);
        }
        targets.push(spec.named(name, args.cells.direct)?);
    }
    if targets.is_empty() {
        return Err(Failure::new("nobody takes part"));
    }
    for named in &targets {
        if let OpenTarget::Dir(_) = named.target {
            machine.note_mount(&ground.base.join(&named.name));
        }
    }
    let medium = match args.medium {
        Medium::Mem => "memory",
        Medium::Disk => "disk",
    };
    let mut file = ResultsFile {
        format: 1,
        command: command_line(),
        started: now(),
        machine,
        medium: medium.to_string(),
        ..ResultsFile::default()
    };
    matrix(&args.cells, workloads, &mut targets, &mut file, |file| match &args.json {
        Some(path) => write_json(path, file),
        None => Ok(()),
    })?;
    let subject = targets.iter().find(|t| t.name == "lanefs").or(targets.first());
    if let Some(subject) = subject {
        say("")?;
        for line in table(&file.results, &subject.name) {
            say(line)?;
        }
    }
    Ok(i32::from(!file.failures.is_empty()))
}
