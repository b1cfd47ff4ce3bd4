//! Max figure 12: techniques taken out, and numbers of mlogs.

use crate::error::{Failure, Res};
use crate::paper::figure::Curve;
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use crate::registry::select;
use crate::target::{Memory, TargetSpec};

/// Numbers of mlogs.
const MLOGS: [usize; 5] = [1, 2, 4, 8, 16];

const fn curve(name: &'static str, title: &'static str, workload: &'static str) -> Curve {
    Curve { name, title, workload }
}

/// Runs it.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    let mut targets = session.targets(session.medium())?;
    let curves = [
        curve("a", "overwriting blocks of private files (DWOL)", "DWOL"),
        curve("b, c", "creating empty files (MWCL); c: no-cells has one group", "MWCL"),
        curve("varmail", "varmail", "varmail"),
    ];
    session.curves(&curves, false, &mut targets)?;
    drop(targets);
    mlogs(session)
}

/// Varmail by number of mlogs, with the most workers.
fn mlogs(session: &mut Session<'_>) -> Res<()> {
    let entries = select(&["varmail".to_string()])?;
    let most = session.workers().last().copied().unwrap_or(1);
    let mut points = Vec::new();
    for n in MLOGS {
        if crate::interrupt::requested() {
            return Err(Failure::interrupted());
        }
        let memory = Memory { mlogs: n, written: !session.args.fresh, ..Memory::new(session.size()?) };
        let named = TargetSpec::Memory(memory).named(&format!("mlogs={n}"), false)?;
        let first = session.run(&entries, &mut [named], &[most])?;
        points.extend(session.out.results[first..].iter().map(|r| Point::of(n as f64, &r.runs)));
    }
    session.out.panels.push(Panel {
        name: "d".to_string(),
        title: format!("varmail with {most} workers, by number of mlogs"),
        drawn: Drawn::Lines,
        x: "mlogs".to_string(),
        y: "filebench ops per second".to_string(),
        series: vec![Series { name: "lanefs".into(), how: "in process".into(), predicted: false, points }],
    });
    session.keep()
}
