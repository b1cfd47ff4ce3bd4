//! Memory while workloads run (Max table 5, ScaleFS figure 12). Each workload runs in a process of
//! its own, on a volume in that process over an image on a disk, and the kernel tells the most
//! memory that the process had in use.

use super::calls::once;
use super::probe::Look;
use crate::error::{Context, Failure, Res, say};
use crate::paper::PaperArgs;
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use crate::runner::Plan;
use crate::target::{OpenTarget, TargetSpec};
use crate::workload::Params;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Arguments of `paper-cell`, which this program runs itself with.
#[derive(Debug, clap::Args)]
pub struct CellArgs {
    /// The image; without one nothing is opened.
    #[arg(long)]
    pub image: Option<PathBuf>,
    /// The workload; without one the volume is opened and closed.
    #[arg(long)]
    pub workload: Option<String>,
    /// Workers.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Timed seconds.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Multiplies the numbers of files.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// The loadfile of dbench.
    #[arg(long)]
    pub loadfile: Option<PathBuf>,
    /// What makes durable is left out.
    #[arg(long)]
    pub without_sync: bool,
}

/// Runs a workload once, says that it is done, and waits to be told to end.
pub fn cell(args: &CellArgs) -> Res<i32> {
    let mut target = match &args.image {
        Some(image) => Some(TargetSpec::Image(image.clone(), lanefs::Order::default()).open(false)?),
        None => None,
    };
    if let (Some(OpenTarget::Volume(volume)), Some(name)) = (&mut target, &args.workload) {
        let params = Params { scale: args.scale, stock: None, loadfile: args.loadfile.clone() };
        let (workers, seconds) = (args.workers, args.seconds);
        let plan =
            Plan { workers, seconds, warmup: 0.0, processes: false, ops: None, sustained: false, params };
        let look = if args.without_sync { Look::WithoutSync } else { Look::Plain };
        once(name, volume, look, &plan).ok_or_else(|| Failure::new(format!("no workload `{name}`")))??;
    }
    say("done")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).at("standard input")?;
    Ok(0)
}

/// Returns the most memory a process had in use, in bytes.
fn most(pid: u32) -> Res<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).at(&path)?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|k| k << 10).ok_or_else(|| Failure::new(format!("{path} tells no VmHWM")))
}

/// Runs this program with `paper-cell` and returns the most memory it had in use.
fn measured(args: &PaperArgs, front: &[&str], image: Option<&Path>, more: &[&str]) -> Res<u64> {
    let program = std::env::current_exe().at("finding this program")?;
    let mut command = Command::new(program);
    command.args(front).arg("paper-cell");
    command.args(["--seconds", &args.seconds.to_string(), "--scale", &args.scale.to_string()]);
    if let Some(image) = image {
        command.arg("--image").arg(image);
    }
    if let Some(loadfile) = &args.loadfile {
        command.arg("--loadfile").arg(loadfile);
    }
    let mut child = command
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at("running this program")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let mut out = std::io::BufReader::new(out);
        std::io::BufRead::read_line(&mut out, &mut line).at("reading of a child")?;
    }
    let bytes = if line.trim() == "done" { Some(most(child.id())) } else { None };
    drop(child.stdin.take());
    let ended = child.wait_with_output().at("a child")?;
    match bytes {
        Some(bytes) => bytes,
        None => Err(Failure::new(String::from_utf8_lossy(&ended.stderr).trim().to_string())),
    }
}

/// The images that workloads run on: a new one each.
struct Images {
    ground: crate::compare::Ground,
    made: usize,
}

impl Images {
    fn new(session: &mut Session<'_>) -> Res<Images> {
        Ok(Images { ground: session.ground(crate::compare::Medium::Disk, false)?, made: 0 })
    }
    fn next(&mut self, session: &mut Session<'_>) -> Res<PathBuf> {
        self.made += 1;
        self.ground.lanefs_image(&format!("memory{}", self.made), session.undo)
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Max table 5: what an open volume takes beside the program, and what more while a workload runs.
pub fn in_use(session: &mut Session<'_>) -> Res<()> {
    const WORKLOADS: [&str; 2] = ["varmail-ptd", "dbench"];
    let mut images = Images::new(session)?;
    let workers = session.workers().last().copied().unwrap_or(1).to_string();
    let mut bars = [Vec::new(), Vec::new()];
    for (at, workload) in WORKLOADS.into_iter().enumerate() {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..session.args.repeats {
            if crate::interrupt::requested() {
                return Err(Failure::interrupted());
            }
            let image = images.next(session)?;
            let program = measured(session.args, session.front, None, &[])?;
            let open = measured(session.args, session.front, Some(&image), &[])?;
            let more = ["--workload", workload, "--workers", &workers];
            match measured(session.args, session.front, Some(&image), &more) {
                Ok(ran) => {
                    runs[0].push(mib(open.saturating_sub(program)));
                    runs[1].push(mib(ran.saturating_sub(open)));
                }
                Err(e) => session.out.lacks(workload, e.message),
            }
        }
        for (bars, runs) in bars.iter_mut().zip(&runs).filter(|(_, runs)| !runs.is_empty()) {
            bars.push(Point::bar(at, workload, runs));
        }
        say(format_args!("{workload}: done"))?;
    }
    let [opened, ran] = bars;
    let line =
        |name: &str, points| Series { name: name.into(), how: "in process".into(), predicted: false, points };
    session.out.panels.push(Panel {
        name: "memory".to_string(),
        title: format!("most memory in use, {workers} worker(s): an open volume, and what a workload adds"),
        drawn: Drawn::Bars,
        x: "workload".to_string(),
        y: "MiB".to_string(),
        series: vec![line("static", opened), line("cache and all else", ran)],
    });
    session.keep()
}

/// ScaleFS figure 12: the most memory of each workload, as it is and with nothing made durable.
pub fn peak(session: &mut Session<'_>) -> Res<()> {
    const WORKLOADS: [(&str, &str); 5] = [
        ("mailbench-p", "mailbench-p"),
        ("mailbench-s", "mailbench-s"),
        ("dbench", "dbench"),
        ("largefile", "largefile"),
        ("smallfile", "smallfile"),
    ];
    let mut images = Images::new(session)?;
    let workers = session.workers().last().copied().unwrap_or(1).to_string();
    let mut bars = [Vec::new(), Vec::new()];
    for (at, (workload, label)) in WORKLOADS.into_iter().enumerate() {
        let program = measured(session.args, session.front, None, &[])?;
        for (bars, without) in bars.iter_mut().zip([true, false]) {
            let mut runs = Vec::new();
            for _ in 0..session.args.repeats {
                if crate::interrupt::requested() {
                    return Err(Failure::interrupted());
                }
                let image = images.next(session)?;
                let mut more = vec!["--workload", workload, "--workers", &workers];
                if without {
                    more.push("--without-sync");
                }
                match measured(session.args, session.front, Some(&image), &more) {
                    Ok(ran) => runs.push(mib(ran.saturating_sub(program))),
                    Err(e) => session.out.lacks(workload, e.message),
                }
            }
            if !runs.is_empty() {
                bars.push(Point::bar(at, label, &runs));
            }
        }
        say(format_args!("{workload}: done"))?;
    }
    let [without, with] = bars;
    let line =
        |name: &str, points| Series { name: name.into(), how: "in process".into(), predicted: false, points };
    session.out.panels.push(Panel {
        name: "peak".to_string(),
        title: format!("most memory in use beyond the program's own, {workers} worker(s)"),
        drawn: Drawn::Bars,
        x: "workload".to_string(),
        y: "MiB".to_string(),
        series: vec![line("without fsync", without), line("lanefs", with)],
    });
    session.keep()
}
