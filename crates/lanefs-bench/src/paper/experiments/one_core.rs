//! ScaleFS figure 10: the workloads with one worker, in memory and on a disk, side by side.

use crate::compare::Medium;
use crate::error::Res;
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::{Session, how};
use crate::registry::select;

/// The workloads, and the labels their bars have.
const WORKLOADS: &[(&str, &str)] = &[
    ("mailbench-p", "mailbench-p"),
    ("dbench-sync", "dbench"),
    ("largefile", "largefile"),
    ("smallfile", "smallfile"),
];

/// Runs them on the medium that was asked for, or on both.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    let media = match session.args.medium {
        Some(medium) => vec![medium],
        None => vec![Medium::Mem, Medium::Disk],
    };
    let names: Vec<String> = WORKLOADS.iter().map(|(w, _)| w.to_string()).collect();
    let entries = select(&names)?;
    for medium in media {
        let mut targets = session.targets(medium)?;
        let first = session.run(&entries, &mut targets, &[1])?;
        let mut series = Vec::new();
        for named in &targets {
            let cells = session.out.results[first..].iter().filter(|r| r.target == named.name);
            let points: Vec<Point> = cells
                .filter_map(|r| {
                    let at = WORKLOADS.iter().position(|(w, _)| *w == r.workload)?;
                    Some(Point::bar(at, WORKLOADS[at].1, &r.runs))
                })
                .collect();
            if !points.is_empty() {
                let (name, how) = (named.name.clone(), how(named).to_string());
                series.push(Series { name, how, predicted: false, points });
            }
        }
        let (name, title) = match medium {
            Medium::Mem => ("mem", "devices in memory"),
            Medium::Disk => ("disk", "devices on the disk at hand"),
        };
        // The cells of the two media would look like the same ones.
        for r in &mut session.out.results[first..] {
            r.target = format!("{} ({name})", r.target);
        }
        session.out.panels.push(Panel {
            name: name.to_string(),
            title: format!("one worker, {title}"),
            drawn: Drawn::Bars,
            x: "workload".to_string(),
            y: "messages, calls, MB, files per second".to_string(),
            series,
        });
        session.keep()?;
    }
    Ok(())
}
