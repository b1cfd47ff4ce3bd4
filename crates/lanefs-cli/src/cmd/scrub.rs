//! `lanefs scrub`

use crate::failure::{About, Failure, Outcome, found};
use crate::image::open_with;
use crate::{mounted, progress, size};
use lanefs::scrub::Damaged;
use lanefs::{MountOptions, ScrubCursor, ScrubStep};
use lanefs_fuse::scrub::{IOC_SCRUB, decode_answer, encode_request};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Exit codes, as fsck(8) has them.
const ERRORS_REPAIRED: i32 = 1;
const ERRORS_LEFT: i32 = 4;
const COULD_NOT_RUN: i32 = 8;
/// Blocks per step.
const STEP: u64 = 2048;

/// Read everything on the medium and compare it with the checksums
///
/// DIR is a mounted volume, which can be used meanwhile; IMAGE one that is not mounted, whose
/// images are only read. Damaged files are named, to be restored from a backup; `lanefs fsck` looks
/// after the rest. Of a volume with two copies of its structures
/// (`lanefs mkfs --metadata-copies 2`) both are read, and on a mounted one a bad copy is written
/// again from the other. Exit code: 0 nothing is damaged, 1 what was damaged is repaired, 4
/// something is damaged, 8 the scrub could not be run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Read no more than so many bytes a second, as in 50M
    #[arg(long, value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// A directory of a mounted volume, or the volume's images or block devices
    #[arg(required = true, value_name = "DIR|IMAGE")]
    pub volume: Vec<PathBuf>,
}

/// Scrubs.
pub fn run(args: &Args) -> Outcome {
    let done = match &args.volume[..] {
        [dir] if dir.is_dir() => of_mounted(args, dir),
        images => unmounted(args, images),
    };
    let total = done.map_err(|f| f.code(COULD_NOT_RUN))?;
    let mut out = std::io::stdout().lock();
    let told = match args.json {
        true => writeln!(out, "{:#}", json(args, &total)),
        false => text(&mut out, args, &total),
    };
    let code = match total.damaged.len() {
        0 => 0,
        _ if total.left() == 0 => ERRORS_REPAIRED,
        _ => ERRORS_LEFT,
    };
    found(code, told, COULD_NOT_RUN)
}

/// The results of all steps.
#[derive(Default)]
struct Total {
    data: u64,
    nodes: u64,
    damaged: Vec<Damaged>,
}

impl Total {
    /// Counts damaged blocks that are not repaired.
    fn left(&self) -> usize {
        self.damaged.iter().filter(|d| !d.repaired).count()
    }
}

/// Goes through the steps at the pace asked for.
fn steps(
    args: &Args,
    blocks: u64,
    mut step: impl FnMut(ScrubCursor) -> Result<(ScrubStep, Vec<Damaged>), Failure>,
) -> Result<Total, Failure> {
    let (mut at, mut total, began) = (ScrubCursor::default(), Total::default(), Instant::now());
    let bar = progress::items("reading blocks");
    progress::set_total(&bar, blocks);
    loop {
        let (done, mut damaged) = step(at)?;
        total.data += done.data_blocks;
        total.nodes += done.node_blocks;
        total.damaged.append(&mut damaged);
        // About: what is used changes meanwhile, and blocks of structures are shared.
        progress::set_total(&bar, blocks.max(total.data + total.nodes));
        debug_assert!(bar.length() >= Some(total.data + total.nodes), "more is done than there is");
        bar.set_position(total.data + total.nodes);
        let Some(next) = done.next else { break };
        at = next;
        if let Some(rate) = args.rate {
            let due = (total.data + total.nodes) as f64 * 4096.0 / rate as f64;
            let early = Duration::from_secs_f64(due).saturating_sub(began.elapsed());
            std::thread::sleep(early);
        }
    }
    bar.finish_and_clear();
    Ok(total)
}

/// Reads a rate at which a scrub comes to an end.
fn parse_rate(text: &str) -> Result<u64, String> {
    match size::parse(text).map_err(|e| e.to_string())? {
        rate @ 4096.. => Ok(rate),
        _ => Err("4096 bytes a second are the least; leave --rate out to read as fast as it goes".into()),
    }
}

fn of_mounted(args: &Args, dir: &Path) -> Result<Total, Failure> {
    let about = mounted::ask(dir)?;
    let open = std::fs::File::open(dir).about(dir.display())?;
    steps(args, about.usable.saturating_sub(about.free), |at| {
        let mut argument = encode_request(at, STEP);
        // SAFETY: the number states that the argument is SCRUB_SIZE bytes, in and out, which the
        // buffer has; the descriptor is open.
        let result = unsafe { libc::ioctl(open.as_raw_fd(), u64::from(IOC_SCRUB), argument.as_mut_ptr()) };
        if result != 0 {
            let e = std::io::Error::last_os_error();
            let why = match e.raw_os_error() {
                Some(libc::ENOTTY) => {
                    "is no directory of a mounted LaneFS volume; name that, or its image".into()
                }
                Some(libc::EPERM) => {
                    "only root (with CAP_SYS_ADMIN), or the user who mounted it, may scrub a mounted volume"
                        .into()
                }
                _ => e.to_string(),
            };
            return Err(Failure::new(format_args!("{}: {why}", dir.display())));
        }
        decode_answer(&argument)
            .ok_or_else(|| Failure::new(format_args!("{}: the mount gave no answer", dir.display())))
    })
}

fn unmounted(args: &Args, images: &[PathBuf]) -> Result<Total, Failure> {
    let options = MountOptions { read_only: true, background: false, ..MountOptions::default() };
    let volume = open_with(images, &options)?;
    let space = volume.statfs()?;
    steps(args, space.blocks.saturating_sub(space.free), |at| Ok(volume.scrub_step(at, STEP)?))
}

fn name(d: &Damaged) -> String {
    match &d.path {
        Some(path) => path.escape_ascii().to_string(),
        None if d.damage.ino.is_none() => "the volume".into(),
        None => format!("inode {}", d.damage.ino),
    }
}

fn volume(args: &Args) -> String {
    args.volume.iter().map(|i| i.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn json(args: &Args, total: &Total) -> serde_json::Value {
    let damaged: Vec<_> = total
        .damaged
        .iter()
        .map(|d| {
            serde_json::json!({
                "path": d.path.as_ref().map(|p| String::from_utf8_lossy(p)),
                "inode": d.damage.ino.0, "page": d.damage.page, "block": format!("{}:{}", d.damage.device, d.damage.block),
                "what": d.damage.what, "repaired": d.repaired,
            })
        })
        .collect();
    serde_json::json!({
        "volume": volume(args), "clean": total.left() == 0, "data_blocks": total.data,
        "node_blocks": total.nodes, "damaged": damaged,
    })
}

fn text(out: &mut impl Write, args: &Args, total: &Total) -> std::io::Result<()> {
    for d in &total.damaged {
        match d.damage.page {
            Some(page) => writeln!(out, "{}: at byte {}: {}", name(d), page * 4096, d.damage.what)?,
            None => writeln!(out, "{}: {}", name(d), d.damage.what)?,
        }
    }
    let volume = volume(args);
    writeln!(out, "{volume}: {} blocks of data and {} of structures read", total.data, total.nodes)?;
    let repaired = total.damaged.len() - total.left();
    if repaired > 0 {
        writeln!(out, "{volume}: {repaired} copies of blocks were damaged and are written again")?;
    }
    match total.left() {
        0 => writeln!(out, "{volume}: nothing is damaged"),
        1 => writeln!(out, "{volume}: one block is damaged"),
        n => writeln!(out, "{volume}: {n} blocks are damaged"),
    }
}
