//! The pictures: lines by number of workers, groups of bars, a map of pairs.

use super::results::{Drawn, Panel, Point};
use crate::report::svg::{Anchor, Svg, nice};
use crate::units::human;

/// Width of a drawing.
const WIDTH: f64 = 560.0;
/// Left end of the axes.
const LEFT: f64 = 62.0;
/// Upper end of the axes; the axis' name is above.
const TOP: f64 = 24.0;
/// Height between the axes' ends.
const HEIGHT: f64 = 200.0;
/// Width that a character of the legend takes at most.
const CHARACTER: f64 = 6.4;
/// Bars that span more than this are drawn on a logarithmic axis.
const WIDE: f64 = 50.0;

/// Formats a number for people.
pub fn number(v: f64) -> String {
    match v.abs() {
        0.0 => "0".to_string(),
        a if a < 0.01 => format!("{v:.4}"),
        a if a < 10.0 => format!("{v:.2}"),
        a if a < 1000.0 => format!("{v:.1}"),
        _ => human(v),
    }
}

/// Formats a mark of an axis: no digits that say nothing.
fn mark(v: f64) -> String {
    let text = number(v);
    let (digits, unit) = text.split_once(' ').map_or((text.as_str(), ""), |(d, u)| (d, u));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{unit}")
}

/// Draws a panel for the page; also returns whether it takes the width of two.
pub fn svg(panel: &Panel, cpus: usize) -> (String, bool) {
    let drawing = drawing(panel, cpus);
    let broad = drawing.width() > WIDTH * 1.2;
    (drawing.finish(&panel.title), broad)
}

/// Draws a panel as a file of its own.
pub fn alone(panel: &Panel, cpus: usize) -> String {
    drawing(panel, cpus).alone(&panel.title)
}

fn drawing(panel: &Panel, cpus: usize) -> Svg {
    match panel.drawn {
        Drawn::Lines => lines(panel, cpus),
        Drawn::Bars => bars(panel),
        Drawn::Map => map(panel),
    }
}

/// Returns where each entry of the legend begins, and the height of all.
fn legend(panel: &Panel, width: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (LEFT, 0.0);
    let mut at = Vec::new();
    for s in &panel.series {
        let wide = 18.0 + (s.name.len() + s.how.len() + 3) as f64 * CHARACTER;
        if x > LEFT && x + wide > width {
            (x, y) = (LEFT, y + 16.0);
        }
        at.push((x, y));
        x += wide;
    }
    debug_assert_eq!(at.len(), panel.series.len());
    (at, y + 16.0)
}

/// Draws the legend below `bottom`.
fn draw_legend(svg: &mut Svg, panel: &Panel, at: &[(f64, f64)], bottom: f64) {
    for (i, (s, (x, y))) in panel.series.iter().zip(at).enumerate() {
        svg.bar(*x, bottom + y, 11.0, 11.0, i, &s.name);
        svg.text(x + 16.0, bottom + y + 10.0, Anchor::Start, "t", &format!("{} ({})", s.name, s.how));
    }
}

fn points(panel: &Panel) -> impl Iterator<Item = &Point> {
    panel.series.iter().flat_map(|s| &s.points)
}

fn lines(panel: &Panel, cpus: usize) -> Svg {
    const RIGHT: f64 = WIDTH - 14.0;
    let bottom = TOP + HEIGHT;
    let mut xs: Vec<f64> = points(panel).map(|p| p.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (first, last) = (xs.first().copied().unwrap_or(0.0), xs.last().copied().unwrap_or(1.0));
    let steep = last / first.max(1.0) >= 8.0;
    // A zero has no logarithm, and stands left of one.
    let zero = if first < 1.0 { 1.0 } else { 0.0 };
    let by = |x: f64| if steep { (x + zero).log2() } else { x };
    let span = (by(last) - by(first)).max(1e-9);
    let x = |v: f64| {
        if last > first {
            LEFT + 16.0 + (by(v) - by(first)) / span * (RIGHT - LEFT - 32.0)
        } else {
            (LEFT + RIGHT) / 2.0
        }
    };
    let (top, step) = nice(points(panel).map(|p| p.high).fold(0.0, f64::max));
    let y = |v: f64| bottom - v.max(0.0) / top * HEIGHT;
    let (entries, legend_height) = legend(panel, WIDTH);
    let mut svg = Svg::new(WIDTH, bottom + 44.0 + legend_height);
    svg.text(4.0, 12.0, Anchor::Start, "m", &panel.y);
    for i in 0..=(top / step).round() as usize {
        let v = i as f64 * step;
        svg.line((LEFT, y(v)), (RIGHT, y(v)), if i == 0 { "x" } else { "g" });
        svg.text(LEFT - 6.0, y(v) + 3.5, Anchor::End, "m", &mark(v));
    }
    let mut drawn = f64::MIN;
    for &v in &xs {
        // Marks that would touch are left out.
        if x(v) - drawn > 26.0 {
            svg.text(x(v), bottom + 14.0, Anchor::Middle, "m", &v.to_string());
            drawn = x(v);
        }
    }
    svg.text((LEFT + RIGHT) / 2.0, bottom + 28.0, Anchor::Middle, "m", &panel.x);
    let here = cpus as f64;
    if panel.x == "workers" && last > first && here >= first && here <= last {
        svg.line((x(here), TOP), (x(here), bottom), "n");
        let (side, at) = if x(here) > WIDTH / 2.0 { (Anchor::End, -4.0) } else { (Anchor::Start, 4.0) };
        svg.text(x(here) + at, TOP - 4.0, side, "m", &format!("{cpus} processors"));
    }
    for (i, s) in panel.series.iter().enumerate() {
        let at: Vec<(f64, f64)> = s.points.iter().map(|p| (x(p.x), y(p.y))).collect();
        match (at.is_empty(), s.predicted) {
            (true, _) => continue,
            (_, true) => svg.broken(&at, i),
            (_, false) => svg.curve(&at, i),
        }
        for p in s.points.iter().filter(|_| !s.predicted) {
            svg.line((x(p.x), y(p.low)), (x(p.x), y(p.high)), "w");
            let title = format!("{}: {} at {}", s.name, number(p.y), p.x);
            svg.dot((x(p.x), y(p.y)), i, &title);
        }
    }
    draw_legend(&mut svg, panel, &entries, bottom + 38.0);
    svg
}

fn bars(panel: &Panel) -> Svg {
    const BAR: f64 = 15.0;
    let bottom = TOP + HEIGHT;
    let mut groups: Vec<(usize, &str)> =
        points(panel).map(|p| (p.x as usize, p.label.as_deref().unwrap_or(""))).collect();
    groups.sort_unstable();
    groups.dedup();
    let longest = groups.iter().map(|g| g.1.len()).max().unwrap_or(0) as f64;
    let valued = groups.len() * panel.series.len() <= 24;
    let bar = if valued { BAR.max(44.0) } else { BAR };
    let group = (panel.series.len() as f64 * bar + 14.0).max(longest * CHARACTER + 8.0);
    let right = (LEFT + group * groups.len() as f64).max(WIDTH - 14.0);
    let group = (right - LEFT) / groups.len().max(1) as f64;
    let most = points(panel).map(|p| p.high).fold(0.0, f64::max);
    let least = points(panel).map(|p| p.y).filter(|y| *y > 0.0).fold(most, f64::min);
    let steep = least > 0.0 && most / least > WIDE;
    let (low, high) = (least.max(1e-12).log10().floor(), most.max(1e-12).log10().ceil());
    let (top, step) = nice(most);
    let y = |v: f64| {
        let share = if steep { (v.max(1e-12).log10() - low) / (high - low).max(1.0) } else { v / top };
        bottom - share.clamp(0.0, 1.0) * HEIGHT
    };
    let (entries, legend_height) = legend(panel, right);
    let mut svg = Svg::new(right + 14.0, bottom + 30.0 + legend_height);
    svg.text(
        4.0,
        12.0,
        Anchor::Start,
        "m",
        &format!("{}{}", panel.y, if steep { " (logarithmic)" } else { "" }),
    );
    let marks: Vec<f64> = if steep {
        (low as i32..=high as i32).map(|e| 10f64.powi(e)).collect()
    } else {
        (0..=(top / step).round() as usize).map(|i| i as f64 * step).collect()
    };
    for (i, &v) in marks.iter().enumerate() {
        svg.line((LEFT, y(v)), (right, y(v)), if i == 0 { "x" } else { "g" });
        svg.text(LEFT - 6.0, y(v) + 3.5, Anchor::End, "m", &mark(v));
    }
    let bar = ((group - 14.0) / panel.series.len().max(1) as f64).min(44.0);
    for (at, &(index, label)) in groups.iter().enumerate() {
        let left = LEFT + at as f64 * group;
        svg.text(left + group / 2.0, bottom + 14.0, Anchor::Middle, "m", label);
        let start = left + (group - bar * panel.series.len() as f64) / 2.0;
        for (i, s) in panel.series.iter().enumerate() {
            let Some(p) = s.points.iter().find(|p| p.x as usize == index) else { continue };
            let (x, to) = (start + i as f64 * bar, y(p.y));
            svg.bar(x + 1.0, to, bar - 2.0, bottom - to, i, &format!("{}, {label}: {}", s.name, number(p.y)));
            if p.high > p.low {
                svg.line((x + bar / 2.0, y(p.low)), (x + bar / 2.0, y(p.high)), "w");
            }
            if valued {
                svg.text(x + bar / 2.0, y(p.high).max(TOP + 4.0) - 4.0, Anchor::Middle, "m", &mark(p.y));
            }
        }
    }
    draw_legend(&mut svg, panel, &entries, bottom + 24.0);
    svg
}

/// Draws the lower triangle of a square of pairs. A call's name stands at the diagonal: its row is
/// to the left of it, its column below. Green is free of conflicts; a number tells how many tests
/// were not.
fn map(panel: &Panel) -> Svg {
    const CELL: f64 = 27.0;
    const LEFT: f64 = 6.0;
    let longest = panel.series.iter().map(|s| s.name.len()).max().unwrap_or(0) as f64;
    let rows = panel.series.len() as f64;
    let mut svg = Svg::new(LEFT + rows * CELL + longest * CHARACTER + 12.0, TOP + rows * CELL + 24.0);
    svg.text(4.0, 12.0, Anchor::Start, "m", &panel.y);
    for (row, s) in panel.series.iter().enumerate() {
        let y = TOP + row as f64 * CELL;
        for p in &s.points {
            let x = LEFT + p.x * CELL;
            let title = format!("{} and {}: {} of {}", s.name, p.label.as_deref().unwrap_or(""), p.y, p.high);
            svg.bar(x, y, CELL - 2.0, CELL - 2.0, if p.y > 0.0 { 1 } else { 2 }, &title);
            if p.y > 0.0 {
                svg.text(x + CELL / 2.0 - 1.0, y + 17.0, Anchor::Middle, "m", &mark(p.y));
            }
        }
        svg.text(LEFT + (row as f64 + 1.0) * CELL + 4.0, y + 17.0, Anchor::Start, "t", &s.name);
    }
    svg.text(LEFT, TOP + rows * CELL + 14.0, Anchor::Start, "m", &panel.x);
    svg
}

#[cfg(test)]
mod tests {
    use super::super::results::Series;
    use super::*;

    #[test]
    fn numbers_read_well() {
        let said = [0.0, 0.001, 1.234, 56.78, 999.4, 12_345.0].map(number);
        assert_eq!(said, ["0", "0.0010", "1.23", "56.8", "999.4", "12.3 k"]);
        assert_eq!([2_500_000.0, 1.0, 0.25].map(mark), ["2.5M", "1", "0.25"]);
    }

    #[test]
    fn what_is_predicted_is_broken_and_the_processors_have_a_line() {
        let points = |xs: &[f64]| xs.iter().map(|&x| Point::of(x, &[x])).collect();
        let series = vec![
            Series { name: "lanefs".into(), points: points(&[1.0, 2.0]), ..Series::default() },
            Series { name: "p".into(), predicted: true, points: points(&[2.0, 128.0]), ..Series::default() },
        ];
        let panel = Panel { x: "workers".into(), series, ..Panel::default() };
        let (drawn, _) = svg(&panel, 2);
        assert!(drawn.contains("stroke-dasharray") && drawn.contains("2 processors"), "{drawn}");
        let (empty, _) = svg(&Panel::default(), 2);
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
        let (bars, _) = svg(&Panel { drawn: Drawn::Bars, ..Panel::default() }, 2);
        assert!(!bars.contains("NaN") && !bars.contains("inf"), "{bars}");
    }
}
