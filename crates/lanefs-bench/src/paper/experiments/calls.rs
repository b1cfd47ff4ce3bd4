//! What the calls of a workload take and wait (ScaleXFS figures 6 to 10, 17, 19), and what is left
//! of a workload's time when nothing is made durable (beside ScaleFS figure 7).

use super::probe::{Call, Counted, Counts, Look, Probe, probed};
use crate::error::{Failure, Res, say};
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::{Session, how};
use crate::runner::{CellOutcome, Plan};
use crate::target::{DirTarget, Named, OpenTarget, VolumeTarget};
use crate::workload::papers::{
    dbench, largefile, mailbench_p, mailbench_s, mdtest_create, smallfile, varmail_private,
};

/// One run of a workload whose calls are looked at.
type Run<T> = fn(&mut T, Look, &Plan) -> Res<(CellOutcome, Counts)>;

/// A workload for each kind of target.
struct Watched {
    name: &'static str,
    unit: &'static str,
    dir: Run<DirTarget>,
    volume: Run<VolumeTarget>,
}

macro_rules! watched {
    ($name:literal, $unit:literal, $worker:ty) => {
        Watched {
            name: $name,
            unit: $unit,
            dir: |t, look, plan| probed::<DirTarget, $worker>(t, look, plan),
            volume: |t, look, plan| probed::<VolumeTarget, $worker>(t, look, plan),
        }
    };
}

const VARMAIL: Watched = watched!("varmail-ptd", "filebench ops", varmail_private::VarmailPrivate);
const MDTEST: Watched = watched!("mdtest", "files", mdtest_create::MdtestCreate);
const DBENCH: Watched = Watched {
    name: "dbench",
    unit: "calls",
    dir: |t, look, plan| probed::<DirTarget, dbench::Dbench<Probe<'_, DirTarget>>>(t, look, plan),
    volume: |t, look, plan| probed::<VolumeTarget, dbench::Dbench<Probe<'_, VolumeTarget>>>(t, look, plan),
};
const SHARED_MAIL: Watched = watched!("mailbench-s", "messages", mailbench_s::MailbenchS);
const MAILBENCH: Watched = watched!("mailbench-p", "messages", mailbench_p::MailbenchP);
const LARGEFILE: Watched = watched!("largefile", "MB", largefile::Largefile);
const SMALLFILE: Watched = watched!("smallfile", "files", smallfile::Smallfile);

/// Runs one of them once, if it is one, on a volume.
pub fn once(name: &str, target: &mut VolumeTarget, look: Look, plan: &Plan) -> Option<Res<CellOutcome>> {
    let all = [VARMAIL, DBENCH, MAILBENCH, SHARED_MAIL, LARGEFILE, SMALLFILE, MDTEST];
    let found = all.into_iter().find(|w| w.name == name)?;
    Some((found.volume)(target, look, plan).map(|(outcome, _)| outcome))
}

/// What came of the repeats of one cell.
struct Looked {
    rates: Vec<f64>,
    counts: Vec<Counts>,
}

impl Looked {
    /// Returns the mean of a call in each repeat, in microseconds.
    fn mean_us(&self, call: Call) -> Vec<f64> {
        let of = self.counts.iter().map(|c| c.of(call)).filter(|c| c.calls > 0);
        of.map(|c| c.ns as f64 / c.calls as f64 / 1e3).collect()
    }

    /// Returns a share in each repeat, in percent.
    fn share(&self, part: impl Fn(&Counts) -> f64, all: impl Fn(&Counts) -> f64) -> Vec<f64> {
        self.counts.iter().filter(|c| all(c) > 0.0).map(|c| 100.0 * part(c) / all(c)).collect()
    }
}

/// Runs a workload on all targets, in turn; `None` where it failed.
fn run(
    session: &mut Session<'_>,
    workload: &Watched,
    targets: &mut [Named],
    look: Look,
    workers: usize,
) -> Res<Vec<Option<Looked>>> {
    let plan = session.cells().plan(workers, false);
    let mut all: Vec<Option<Looked>> =
        targets.iter().map(|_| Some(Looked { rates: vec![], counts: vec![] })).collect();
    for _ in 0..session.args.repeats {
        for (named, looked) in targets.iter_mut().zip(&mut all) {
            let Some(so_far) = looked.as_mut() else { continue };
            if crate::interrupt::requested() {
                return Err(Failure::interrupted());
            }
            let done = match &mut named.target {
                OpenTarget::Dir(t) => (workload.dir)(t, look, &plan),
                OpenTarget::Volume(t) => (workload.volume)(t, look, &plan),
            };
            match done {
                Ok((outcome, counts)) => {
                    so_far.rates.push(outcome.rate);
                    so_far.counts.push(counts);
                }
                Err(e) if e.interrupted => return Err(e),
                Err(e) => {
                    let what = format!("{} on {}, {workers} workers", workload.name, named.name);
                    session.out.lacks(what, &e.message);
                    *looked = None;
                }
            }
        }
    }
    say(format_args!("{} with {workers} workers is done", workload.name))?;
    Ok(all)
}

/// Makes a panel by number of workers: for each target, of `points` what it makes of a cell.
fn panel(
    name: &str,
    (title, unit): (&str, &str),
    targets: &[Named],
    cells: &[(usize, Vec<Option<Looked>>)],
    value: impl Fn(&Looked) -> Vec<f64>,
) -> Panel {
    debug_assert!(cells.iter().all(|(_, looked)| looked.len() == targets.len()));
    let mut panel = Panel {
        name: name.to_string(),
        title: title.to_string(),
        drawn: Drawn::Lines,
        x: "workers".to_string(),
        y: unit.to_string(),
        series: Vec::new(),
    };
    for (at, named) in targets.iter().enumerate() {
        let points: Vec<Point> = cells
            .iter()
            .filter_map(|(workers, looked)| Some((*workers, value(looked[at].as_ref()?))))
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(workers, runs)| Point::of(workers as f64, &runs))
            .collect();
        if !points.is_empty() {
            let (name, how) = (named.name.clone(), how(named).to_string());
            panel.series.push(Series { name, how, predicted: false, points });
        }
    }
    panel
}

/// Runs workloads by number of workers and makes of each what `draw` says.
fn each(
    session: &mut Session<'_>,
    workloads: &[Watched],
    look: Look,
    draw: impl Fn(&Watched, &[Named], &[(usize, Vec<Option<Looked>>)]) -> Vec<Panel>,
) -> Res<()> {
    let mut targets = session.targets(session.medium())?;
    for workload in workloads {
        let mut cells = Vec::new();
        for workers in session.workers() {
            cells.push((workers, run(session, workload, &mut targets, look, workers)?));
        }
        let panels = draw(workload, &targets, &cells);
        session.out.panels.extend(panels.into_iter().filter(|p| !p.series.is_empty()));
        session.keep()?;
    }
    Ok(())
}

/// Mean latency of creat, unlink and fsync within varmail-ptd, dbench (and mdtest).
pub fn latencies(session: &mut Session<'_>) -> Res<()> {
    each(session, &[VARMAIL, DBENCH, MDTEST], Look::Times, |w, targets, cells| {
        [("creat", Call::Create), ("unlink", Call::Unlink), ("fsync", Call::Sync)]
            .into_iter()
            .map(|(name, call)| {
                let title = format!("mean latency of {name} within {}", w.name);
                let text = (title.as_str(), "microseconds");
                panel(&format!("{}-{name}", w.name), text, targets, cells, |l| l.mean_us(call))
            })
            .collect()
    })
}

fn waited(c: Counted) -> f64 {
    c.waited_ns as f64
}

/// Returns what all calls but those that make durable waited.
fn metadata(c: &Counts) -> f64 {
    waited(c.of(Call::Create)) + waited(c.of(Call::Unlink)) + waited(c.of(Call::Other))
}

/// How long calls wait, in the ways of figures 7, 9, 10 and 17. A thread that spins is working; one
/// that another took the processor from is waiting.
pub fn waits(session: &mut Session<'_>) -> Res<()> {
    let figure = session.figure.name;
    each(session, &[VARMAIL, DBENCH, MDTEST], Look::Waits, |w, targets, cells| {
        let made = |what: &str, title: String, unit: &str, value: &dyn Fn(&Looked) -> Vec<f64>| {
            panel(&format!("{}{what}", w.name), (&title, unit), targets, cells, value)
        };
        let sync = |c: &Counts| waited(c.of(Call::Sync));
        let both = |c: &Counts, f: fn(Counted) -> f64| f(c.of(Call::Create)) + f(c.of(Call::Unlink));
        match figure {
            "scalexfs-7" => {
                let title = format!("{}: waiting of other calls over waiting in fsync", w.name);
                vec![made("", title, "percent", &|l| l.share(metadata, sync))]
            }
            "scalexfs-9" => {
                vec![made("", format!("{}: waiting's share of creat and unlink", w.name), "percent", &|l| {
                    l.share(|c| both(c, waited), |c| both(c, |k| k.ns as f64))
                })]
            }
            "scalexfs-10" => vec![
                made(
                    "-a",
                    format!("{}: waiting of other calls than fsync over all waiting", w.name),
                    "percent",
                    &|l| l.share(metadata, |c| metadata(c) + sync(c)),
                ),
                made("-b", format!("{}: the same over the workload's time", w.name), "percent", &|l| {
                    l.share(metadata, |c| c.ns as f64)
                }),
            ],
            _ => vec![made(
                "",
                format!("{}: waiting of all calls", w.name),
                "percent of the workload's time",
                &|l| l.share(|c| metadata(c) + sync(c), |c| c.ns as f64),
            )],
        }
    })
}

/// The workloads of ScaleFS as they are and with what makes durable left out, at the most workers.
pub fn durability(session: &mut Session<'_>) -> Res<()> {
    let mut targets = session.targets(session.medium())?;
    let most = session.workers().last().copied().unwrap_or(1);
    for w in [MAILBENCH, SMALLFILE, LARGEFILE, DBENCH] {
        let synced = run(session, &w, &mut targets, Look::Plain, most)?;
        let not = run(session, &w, &mut targets, Look::WithoutSync, most)?;
        let bars = |name: &str, looked: &[Option<Looked>]| {
            let points =
                targets.iter().zip(looked).enumerate().filter_map(|(i, (named, looked))| {
                    Some(Point::bar(i, &named.name, &looked.as_ref()?.rates))
                });
            let points: Vec<Point> = points.collect();
            Series {
                name: name.to_string(),
                how: "by each file system's calls".into(),
                predicted: false,
                points,
            }
        };
        let series = vec![bars("with fsync", &synced), bars("without fsync", &not)];
        if series.iter().any(|s| !s.points.is_empty()) {
            session.out.panels.push(Panel {
                name: w.name.to_string(),
                title: format!("{}, {most} workers: with fsync and without", w.name),
                drawn: Drawn::Bars,
                x: "file system".to_string(),
                y: format!("{} per second", w.unit),
                series,
            });
        }
        session.keep()?;
    }
    Ok(())
}
