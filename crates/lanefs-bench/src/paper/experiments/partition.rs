//! FxMark's partition experiment: all workers on one volume, or each on a volume of its own.

use super::spread::Spread;
use crate::compare::{Medium, Peer, check_memory};
use crate::error::{Failure, Res, say};
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use crate::runner::{CellOutcome, Plan, run};
use crate::target::{DirTarget, Named, OpenTarget, Target, VolumeTarget};
use crate::workload::micro::dwsl::Dwsl;
use crate::workload::papers::varmail_private::VarmailPrivate;

/// Bytes that a file system of the kernel needs to be made.
const LEAST: u64 = 384 << 20;

/// The workloads, in the order of the pictures.
const WORKLOADS: [(&str, &str, &str); 2] = [
    ("DWSL", "overwriting and fsyncing a block of private files", "ops per second"),
    ("varmail-private", "varmail, a directory for each worker", "filebench ops per second"),
];

fn cell<T: Target>(workload: usize, target: &mut Spread<T>, plan: &Plan) -> Res<CellOutcome> {
    match workload {
        0 => run::<Spread<T>, Dwsl<Spread<T>>>(target, plan),
        _ => run::<Spread<T>, VarmailPrivate>(target, plan),
    }
}

/// Takes the first `n` of the targets for a cell.
fn among<T: Target>(targets: &mut Vec<T>, n: usize, workload: usize, plan: &Plan) -> Res<CellOutcome> {
    let rest = targets.split_off(n.min(targets.len()));
    let mut spread = Spread::new(std::mem::take(targets));
    let done = cell(workload, &mut spread, plan);
    *targets = spread.into_inner();
    targets.extend(rest);
    done
}

/// The volumes of one peer.
enum Volumes {
    Here(Vec<VolumeTarget>),
    Mounted(Vec<DirTarget>),
}

impl Volumes {
    fn cell(&mut self, n: usize, workload: usize, plan: &Plan) -> Res<CellOutcome> {
        match self {
            Volumes::Here(v) => among(v, n, workload, plan),
            Volumes::Mounted(v) => among(v, n, workload, plan),
        }
    }
}

/// Sorts the targets of one peer by their kind.
fn volumes(targets: Vec<Named>) -> Volumes {
    let (mut here, mut mounted) = (Vec::new(), Vec::new());
    for named in targets {
        match named.target {
            OpenTarget::Volume(v) => here.push(v),
            OpenTarget::Dir(d) => mounted.push(d),
        }
    }
    debug_assert!(here.is_empty() || mounted.is_empty(), "one peer, one kind");
    if here.is_empty() { Volumes::Mounted(mounted) } else { Volumes::Here(here) }
}

/// Makes as many volumes of each peer as there are workers at most.
fn peers(session: &mut Session<'_>, most: usize) -> Res<Vec<(String, &'static str, Volumes)>> {
    let medium = session.medium();
    let mut wanted = Vec::new();
    for name in session.names() {
        let peer = Peer::parse(&name)?;
        match peer.missing(&crate::compare::lanefs_command(session.args.lanefs.clone())) {
            _ if peer.mounts() && !rustix::process::geteuid().is_root() => {
                session.out.lacks(name, "mounting takes root");
            }
            Some(why) => session.out.lacks(name, why),
            None => wanted.push(peer),
        }
    }
    let mut ground = session.ground(medium, wanted.iter().any(Peer::mounts))?;
    ground.size = (ground.size / most.max(1) as u64).max(LEAST);
    if medium == Medium::Mem {
        check_memory((wanted.len() * most) as u64, ground.size)?;
    }
    let mut made = Vec::new();
    for peer in wanted {
        let mut targets = Vec::new();
        for n in 0..most {
            match ground.make_as(peer, &format!("{}{n}", peer.name()), session.undo)? {
                Ok(named) => targets.push(named),
                Err(skipped) => session.out.lacks(peer.name(), skipped.0),
            }
        }
        let how = if peer == Peer::Lanefs { "in process" } else { "system calls" };
        if targets.len() == most {
            made.push((peer.name().to_string(), how, volumes(targets)));
        }
    }
    Ok(made)
}

/// Runs it.
pub fn run_all(session: &mut Session<'_>) -> Res<()> {
    let workers = session.workers();
    let most = workers.last().copied().unwrap_or(1);
    let mut peers = peers(session, most)?;
    for (at, (name, title, unit)) in WORKLOADS.into_iter().enumerate() {
        let mut series = Vec::new();
        for (peer, how, volumes) in &mut peers {
            let (mut together, mut apart) = (Vec::new(), Vec::new());
            for &w in &workers {
                let plan = session.cells().plan(w, false);
                let mut rates = [Vec::new(), Vec::new()];
                for _ in 0..session.args.repeats {
                    for (rates, n) in rates.iter_mut().zip([1, w]) {
                        if crate::interrupt::requested() {
                            return Err(Failure::interrupted());
                        }
                        rates.push(volumes.cell(n, at, &plan)?.rate);
                    }
                }
                together.push(Point::of(w as f64, &rates[0]));
                apart.push(Point::of(w as f64, &rates[1]));
            }
            say(format_args!("{name} on {peer} is done"))?;
            let line = |name: String, points| Series { name, how: how.to_string(), predicted: false, points };
            series.push(line(peer.clone(), together));
            series.push(line(format!("{peer}, apart"), apart));
        }
        session.out.panels.push(Panel {
            name: name.to_string(),
            title: format!("{title}: one volume, or one for each worker (apart)"),
            drawn: Drawn::Lines,
            x: "workers".to_string(),
            y: unit.to_string(),
            series,
        });
        session.keep()?;
    }
    Ok(())
}
