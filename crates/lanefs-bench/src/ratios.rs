//! Ratios of rates of targets, from runs that were interleaved.

use crate::results::{CellResult, median};
use crate::units::times;

/// A ratio of rates: its median over the repeats, the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// Divides `a` by `b`, repeat by repeat: repeats that ran side by side are compared with each
/// other.
pub fn ratio(a: &CellResult, b: &CellResult) -> Option<Ratio> {
    let each: Vec<f64> = a.runs.iter().zip(&b.runs).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect();
    if each.is_empty() {
        return (b.ops_per_s > 0.0).then(|| {
            let r = a.ops_per_s / b.ops_per_s;
            Ratio { median: r, low: r, high: r }
        });
    }
    let low = each.iter().copied().fold(f64::MAX, f64::min);
    let high = each.iter().copied().fold(f64::MIN, f64::max);
    let ratio = Ratio { median: median(&each), low, high };
    debug_assert!(low <= ratio.median && ratio.median <= high, "{ratio:?}");
    Some(ratio)
}

/// Returns the geometric mean; 0 of none.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let positive: Vec<f64> = values.iter().copied().filter(|v| *v > 0.0).collect();
    if positive.is_empty() {
        return 0.0;
    }
    (positive.iter().map(|v| v.ln()).sum::<f64>() / positive.len() as f64).exp()
}

/// Formats the comparison table: `subject` over each other target, per workload and number of
/// workers, then the geometric means.
pub fn table(results: &[CellResult], subject: &str) -> Vec<String> {
    let find = |target: &str, like: &CellResult| {
        results
            .iter()
            .find(|r| r.target == target && r.workload == like.workload && r.workers == like.workers)
    };
    let mut others: Vec<&str> = Vec::new();
    for r in results.iter().filter(|r| r.target != subject) {
        if !others.contains(&r.target.as_str()) {
            others.push(&r.target);
        }
    }
    let mut means: Vec<Vec<f64>> = others.iter().map(|_| Vec::new()).collect();
    let mut lines =
        vec![format!("{subject} against the others: median ratio (smallest-largest of the repeats)")];
    let head: String = others.iter().map(|o| format!(" {o:>24}")).collect();
    lines.push(format!("{:<16} {:>7}{head}", "workload", "workers"));
    for mine in results.iter().filter(|r| r.target == subject) {
        let mut line = format!("{:<16} {:>7}", mine.workload, mine.workers);
        for (other, mean) in others.iter().zip(&mut means) {
            let text = match find(other, mine).and_then(|theirs| ratio(mine, theirs)) {
                Some(r) => {
                    mean.push(r.median);
                    format!("{} ({}-{})", times(r.median), times(r.low), times(r.high))
                }
                None => "-".to_string(),
            };
            line.push_str(&format!(" {text:>24}"));
        }
        lines.push(line);
    }
    let mut line = format!("{:<16} {:>7}", "geometric mean", "");
    for mean in &means {
        line.push_str(&format!(" {:>24}", times(geometric_mean(mean))));
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(target: &str, runs: &[f64]) -> CellResult {
        CellResult {
            target: target.into(),
            workload: "DWOL".into(),
            workers: 1,
            ops_per_s: median(runs),
            runs: runs.to_vec(),
            ..CellResult::default()
        }
    }

    #[test]
    fn ratios_pair_repeats() {
        let (a, b) = (cell("a", &[10.0, 20.0, 30.0]), cell("b", &[5.0, 20.0, 10.0]));
        assert_eq!(ratio(&a, &b), Some(Ratio { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(ratio(&a, &cell("c", &[0.0])), None);
        let lines = table(&[a, b], "a");
        assert!(lines[2].contains("2.00x (1.00x-3.00x)"), "{lines:?}");
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-9);
    }
}
