//! Latencies: one ridge for each file system over a common logarithmic axis, with p50, p99 and
//! p99.9 marked.

use super::rates::Coloured;
use super::svg::{Anchor, Svg};
use crate::units::span;

/// Bins in a decade.
const BINS: f64 = 12.0;

/// Draws ridges for one number of workers.
pub fn ridges(cells: &[Coloured<'_>]) -> Option<Svg> {
    const ROW: f64 = 30.0;
    const LEFT: f64 = 84.0;
    const RIGHT: f64 = 350.0;
    let cells: Vec<&Coloured<'_>> = cells.iter().filter(|(_, r)| r.p50_ns > 0).collect();
    let low = cells.iter().map(|(_, r)| r.latencies.first().map_or(r.p50_ns, |l| l.0)).min()?.max(1);
    let high = cells.iter().map(|(_, r)| r.p999_ns).max()?.max(low * 10);
    let (low, high) = ((low as f64).log10().floor(), (high as f64).log10().ceil());
    debug_assert!(low < high, "an axis without a length");
    let x = |ns: f64| LEFT + ((ns.max(1.0).log10() - low) / (high - low)).clamp(0.0, 1.0) * (RIGHT - LEFT);
    let bottom = cells.len() as f64 * ROW + 6.0;
    let mut svg = Svg::new(360.0, bottom + 18.0);
    for decade in low as i32..=high as i32 {
        let at = x(10f64.powi(decade));
        svg.line((at, 2.0), (at, bottom), "g");
        svg.text(at, bottom + 13.0, Anchor::Middle, "m", &decade_name(decade));
    }
    for (row, (colour, r)) in cells.iter().enumerate() {
        let base = (row + 1) as f64 * ROW;
        let bins = ((high - low) * BINS).ceil() as usize + 1;
        let mut density = vec![0u64; bins];
        for &(ns, n) in &r.latencies {
            let bin = ((ns.max(1) as f64).log10() - low) * BINS;
            density[(bin.max(0.0) as usize).min(bins - 1)] += n;
        }
        debug_assert_eq!(
            density.iter().sum::<u64>(),
            r.latencies.iter().map(|l| l.1).sum::<u64>(),
            "one bin for each"
        );
        let peak = density.iter().copied().max().unwrap_or(0).max(1) as f64;
        // Rare slow operations matter most and would be invisible: the height is a root, not the
        // share itself.
        let points: Vec<(f64, f64)> = density
            .iter()
            .enumerate()
            .map(|(i, &n)| {
                let at = 10f64.powf(low + (i as f64 + 0.5) / BINS);
                (x(at), base - (n as f64 / peak).powf(0.33) * (ROW - 8.0))
            })
            .collect();
        svg.area(&points, base, *colour);
        svg.line((LEFT, base), (RIGHT, base), "x");
        for (ns, height) in [(r.p50_ns, 14.0), (r.p99_ns, 10.0), (r.p999_ns, 7.0)] {
            svg.line((x(ns as f64), base), (x(ns as f64), base - height), "w");
        }
        let title = format!("p50 {}, p99 {}, p99.9 {}", span(r.p50_ns), span(r.p99_ns), span(r.p999_ns));
        svg.dot((x(r.p50_ns as f64), base), *colour, &title);
        svg.text(LEFT - 6.0, base - 4.0, Anchor::End, "t", &r.target);
    }
    Some(svg)
}

/// Formats a power of ten of nanoseconds.
fn decade_name(decade: i32) -> String {
    let digits = ["1", "10", "100"][decade.rem_euclid(3) as usize];
    let unit = match decade.div_euclid(3) {
        0 => "ns",
        1 => "us",
        2 => "ms",
        _ => return format!("{} s", 10f64.powi(decade - 9)),
    };
    format!("{digits} {unit}")
}
