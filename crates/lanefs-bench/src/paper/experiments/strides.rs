//! ScaleXFS figure 22: what the length of the strides of the counter of free space is worth.

use crate::error::{Failure, Res};
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use crate::registry::select;
use crate::results::{CellResult, quantile};
use crate::target::{Named, TargetSpec};

/// Lengths, in blocks; 0: one counter for all lanes.
const STRIDES: [u64; 6] = [0, 1, 8, 64, 512, 4096];

/// Returns the mean of the sampled latencies, in microseconds.
fn mean_us(r: &CellResult) -> f64 {
    let (sum, n) =
        r.latencies.iter().fold((0.0, 0u64), |(s, n), (ns, k)| (s + *ns as f64 * *k as f64, n + k));
    sum / n.max(1) as f64 / 1e3
}

/// Runs it.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    let size = session.size()?;
    let written = if session.args.fresh { "no" } else { "yes" };
    if let Err(e) = TargetSpec::parse("mem:64M,stride=1") {
        session.out.lacks("stride lengths", e.message);
        return Ok(());
    }
    crate::compare::check_memory(if session.args.fresh { 0 } else { STRIDES.len() as u64 }, size)?;
    let entries = select(&["mdtest-create".to_string()])?;
    let most = session.workers().last().copied().unwrap_or(1);
    let mut targets: Vec<Named> = Vec::new();
    for stride in STRIDES {
        if crate::interrupt::requested() {
            return Err(Failure::interrupted());
        }
        let spec = TargetSpec::parse(&format!("mem:{size},written={written},stride={stride}"))?;
        targets.push(spec.named(&format!("stride={stride}"), false)?);
    }
    let first = session.run(&entries, &mut targets, &[most])?;
    let cells = &session.out.results[first..];
    debug_assert!(cells.len() <= STRIDES.len());
    let stride = |r: &CellResult| r.target.trim_start_matches("stride=").parse::<f64>().unwrap_or(0.0);
    let line = |value: &dyn Fn(&CellResult) -> Vec<f64>| {
        let points = cells.iter().map(|r| Point::of(stride(r), &value(r))).collect();
        vec![Series { name: "lanefs".into(), how: "in process".into(), predicted: false, points }]
    };
    let panel = |name: &str, title: &str, y: &str, series| Panel {
        name: name.to_string(),
        title: format!("{title}, mdtest with {most} workers"),
        drawn: Drawn::Lines,
        x: "blocks of a stride (0: one counter)".to_string(),
        y: y.to_string(),
        series,
    };
    let mut panels = vec![
        panel("a", "mean latency of creat", "microseconds", line(&|r| vec![mean_us(r)])),
        panel(
            "b",
            "95 % of creat took at most",
            "microseconds",
            line(&|r| vec![quantile(&r.latencies, 0.95) as f64 / 1e3]),
        ),
        panel("c", "throughput", "files per second", line(&|r| r.runs.clone())),
    ];
    let none = cells.iter().find(|r| stride(r) == 0.0);
    if let Some(none) = none.filter(|r| r.ops_per_s > 0.0) {
        let fastest = cells.iter().map(|r| r.ops_per_s).fold(none.ops_per_s, f64::max);
        let quickest = cells.iter().map(mean_us).fold(mean_us(none), f64::min);
        let gain = [
            Point::bar(0, "latency", &[(1.0 - quickest / mean_us(none).max(1e-9)) * 100.0]),
            Point::bar(1, "throughput", &[(fastest / none.ops_per_s - 1.0) * 100.0]),
        ];
        let one =
            Series { name: "lanefs".into(), how: "in process".into(), predicted: false, points: gain.into() };
        let mut gain = panel("gain", "the best stride over one counter", "percent", vec![one]);
        gain.drawn = Drawn::Bars;
        panels.push(gain);
    }
    session.out.panels.append(&mut panels);
    session.keep()
}
