//! Rates: curves by number of workers, bars by file system.

use super::svg::{Anchor, Svg, nice};
use crate::results::CellResult;
use crate::units::human;

/// A cell and the colour of its target.
pub type Coloured<'a> = (usize, &'a CellResult);

/// Returns the smallest and the largest rate of a cell's repeats.
fn bounds(r: &CellResult) -> (f64, f64) {
    let low = r.runs.iter().copied().fold(r.ops_per_s, f64::min);
    let high = r.runs.iter().copied().fold(r.ops_per_s, f64::max);
    (low, high)
}

/// Formats a mark of an axis: no more digits than it has.
fn axis(v: f64) -> String {
    let text = human(v);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text.trim_end_matches(".0").to_string(),
    }
}

/// Draws bars for one number of workers, one below the other; a whisker spans the repeats.
pub fn bars(cells: &[Coloured<'_>]) -> Svg {
    const ROW: f64 = 21.0;
    const LEFT: f64 = 84.0;
    const RIGHT: f64 = 300.0;
    let mut svg = Svg::new(360.0, cells.len() as f64 * ROW + 4.0);
    let most = cells.iter().map(|(_, r)| bounds(r).1).fold(0.0, f64::max).max(1e-9);
    let x = |v: f64| LEFT + v / most * (RIGHT - LEFT);
    for (row, (colour, r)) in cells.iter().enumerate() {
        let y = row as f64 * ROW + 3.0;
        let (low, high) = bounds(r);
        let title =
            format!("{}: {} per second, spread {:.1} %", r.target, human(r.ops_per_s), r.spread * 100.0);
        svg.text(LEFT - 6.0, y + 12.0, Anchor::End, "t", &r.target);
        svg.bar(LEFT, y, x(r.ops_per_s) - LEFT, ROW - 5.0, *colour, &title);
        if high > low {
            let middle = y + (ROW - 5.0) / 2.0;
            svg.line((x(low), middle), (x(high), middle), "w");
            for end in [low, high] {
                svg.line((x(end), middle - 3.0), (x(end), middle + 3.0), "w");
            }
        }
        svg.text(x(high) + 5.0, y + 12.0, Anchor::Start, "v", &human(r.ops_per_s));
    }
    svg
}

/// Draws curves over the number of workers, one for each target, and a line at the number of
/// processors; needs at least two numbers.
pub fn curves(cells: &[Coloured<'_>], cpus: usize) -> Option<Svg> {
    const LEFT: f64 = 52.0;
    const RIGHT: f64 = 346.0;
    const TOP: f64 = 14.0;
    const BOTTOM: f64 = 128.0;
    let mut workers: Vec<usize> = cells.iter().map(|(_, r)| r.workers).collect();
    workers.sort_unstable();
    workers.dedup();
    let (&fewest, &most) = (workers.first()?, workers.last()?);
    if fewest == most {
        return None;
    }
    let (top, step) = nice(cells.iter().map(|(_, r)| bounds(r).1).fold(0.0, f64::max));
    let x = |w: usize| LEFT + 14.0 + (w - fewest) as f64 / (most - fewest) as f64 * (RIGHT - LEFT - 28.0);
    let y = |v: f64| BOTTOM - v / top * (BOTTOM - TOP);
    let mut svg = Svg::new(360.0, 148.0);
    for mark in 0..=(top / step).round() as usize {
        let v = mark as f64 * step;
        svg.line((LEFT, y(v)), (RIGHT, y(v)), if mark == 0 { "x" } else { "g" });
        svg.text(LEFT - 5.0, y(v) + 3.5, Anchor::End, "m", &axis(v));
    }
    for &w in &workers {
        svg.text(x(w), BOTTOM + 14.0, Anchor::Middle, "m", &format!("{w}"));
    }
    if (fewest..=most).contains(&cpus) {
        svg.line((x(cpus), TOP), (x(cpus), BOTTOM), "n");
        let (anchor, by) = if cpus == fewest { (Anchor::Start, 4.0) } else { (Anchor::End, -4.0) };
        svg.text(x(cpus) + by, TOP - 1.0, anchor, "m", &format!("{cpus} processors"));
    }
    let mut colours: Vec<usize> = cells.iter().map(|(c, _)| *c).collect();
    colours.dedup();
    for colour in colours {
        let mut line: Vec<&CellResult> =
            cells.iter().filter(|(c, _)| *c == colour).map(|(_, r)| *r).collect();
        line.sort_by_key(|r| r.workers);
        svg.curve(&line.iter().map(|r| (x(r.workers), y(r.ops_per_s))).collect::<Vec<_>>(), colour);
        for r in line {
            let (low, high) = bounds(r);
            svg.line((x(r.workers), y(low)), (x(r.workers), y(high)), "w");
            let title = format!("{}, {} workers: {} per second", r.target, r.workers, human(r.ops_per_s));
            svg.dot((x(r.workers), y(r.ops_per_s)), colour, &title);
        }
    }
    Some(svg)
}
