//! The results of a run: JSON for machines.

use crate::machine::Machine;
use serde::{Deserialize, Serialize};

/// A whole results file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResultsFile {
    /// Layout of this file.
    pub format: u32,
    /// The command that made it.
    pub command: String,
    /// Seconds since 1970.
    pub started: u64,
    /// The machine that made it.
    #[serde(default)]
    pub machine: Machine,
    /// The targets are LaneFS with techniques taken out: see `CellResult::without`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ablation: bool,
    /// What devices were made of, `memory` or `disk`, where the run made them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub medium: String,
    /// The cells that were measured.
    pub results: Vec<CellResult>,
    /// The cells that could not be measured, and why.
    #[serde(default)]
    pub failures: Vec<CellFailure>,
}

/// One cell: a workload on a target with a number of workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CellResult {
    /// The target's name.
    pub target: String,
    /// The workload's name.
    pub workload: String,
    /// The number of workers.
    pub workers: usize,
    /// Median of the repeats.
    pub ops_per_s: f64,
    /// (largest - smallest) / median of the repeats.
    pub spread: f64,
    /// Median latency of one operation.
    pub p50_ns: u64,
    /// 99 % took at most this.
    pub p99_ns: u64,
    /// 99.9 % took at most this.
    pub p999_ns: u64,
    /// The slowest that was sampled.
    #[serde(default)]
    pub max_ns: u64,
    /// Nanoseconds of the workers' own processor time per unit, median of the repeats; time they
    /// waited or were not running is not in it.
    #[serde(default)]
    pub cpu_ns: f64,
    /// Nanoseconds of processor time of everybody per unit, median of the repeats: all threads of
    /// this process, of the kernel, and of a mount's server.
    #[serde(default)]
    pub cpu_ns_all: f64,
    /// Median rate of a sustained run: with the last sync and all work of the background inside
    /// the clock. `ops_per_s` is the same number then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_ops_per_s: Option<f64>,
    /// Units done in each second of the last repeat of a sustained run; the last one is a part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_second: Vec<u64>,
    /// Allocations per operation and their bytes, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<(f64, f64)>,
    /// Bytes to the device, writes and flushes per operation, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<(f64, f64, f64)>,
    /// Instructions per operation, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<f64>,
    /// Cache lines per unit that pass from one core to another, by the model of
    /// `cargo xtask coherence`, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfers: Option<f64>,
    /// The unit that `ops_per_s` counts.
    #[serde(default)]
    pub unit: String,
    /// `threads` or `processes`.
    #[serde(default)]
    pub mode: String,
    /// `in process` (calls of the library) or `system calls`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub called: String,
    /// Techniques of LaneFS that were off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// Data files bypassed the page cache.
    #[serde(default)]
    pub direct: bool,
    /// The rate of each repeat, in the order they ran.
    #[serde(default)]
    pub runs: Vec<f64>,
    /// Timed seconds of a repeat.
    #[serde(default)]
    pub seconds: f64,
    /// Sampled latencies: upper bound in nanoseconds, how many.
    #[serde(default)]
    pub latencies: Vec<(u64, u64)>,
}

/// A cell that could not be measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CellFailure {
    /// The target's name.
    pub target: String,
    /// The workload's name.
    pub workload: String,
    /// The number of workers.
    pub workers: usize,
    /// Why.
    pub message: String,
}

/// Returns the middle of some numbers (the mean of the two middle ones); 0 of none.
pub fn median(values: &[f64]) -> f64 {
    debug_assert!(values.iter().all(|v| !v.is_nan()), "a number that is none");
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

/// Returns (largest - smallest) / median; 0 of fewer than two.
pub fn spread(values: &[f64]) -> f64 {
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let middle = median(values);
    if values.len() < 2 || middle <= 0.0 { 0.0 } else { (high - low) / middle }
}

/// Returns the value that a share `q` of the samples does not exceed.
pub fn quantile(sorted: &[(u64, u64)], q: f64) -> u64 {
    debug_assert!(sorted.is_sorted_by_key(|s| s.0) && (0.0..=1.0).contains(&q));
    let total: u64 = sorted.iter().map(|&(_, n)| n).sum();
    let wanted = ((total as f64 * q).ceil() as u64).max(1);
    let mut seen = 0;
    for &(value, n) in sorted {
        seen += n;
        if seen >= wanted {
            return value;
        }
    }
    sorted.last().map_or(0, |&(v, _)| v)
}

/// Joins samples of equal value and sorts them.
pub fn join(mut samples: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    samples.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (value, n) in samples {
        match out.last_mut() {
            Some(last) if last.0 == value => last.1 += n,
            _ => out.push((value, n)),
        }
    }
    debug_assert!(out.is_sorted_by(|a, b| a.0 < b.0), "each value once");
    out
}

impl CellResult {
    /// Makes a result of the outcomes of a cell's repeats.
    pub fn from_runs(outcomes: &[crate::runner::CellOutcome]) -> CellResult {
        let runs: Vec<f64> = outcomes.iter().map(|o| o.rate).collect();
        let latencies = join(outcomes.iter().flat_map(|o| o.latencies.iter().copied()).collect());
        let result = CellResult {
            ops_per_s: median(&runs),
            spread: spread(&runs),
            p50_ns: quantile(&latencies, 0.5),
            p99_ns: quantile(&latencies, 0.99),
            p999_ns: quantile(&latencies, 0.999),
            max_ns: latencies.last().map_or(0, |&(v, _)| v),
            cpu_ns: median(&outcomes.iter().map(|o| o.cpu_ns).collect::<Vec<f64>>()),
            cpu_ns_all: median(&outcomes.iter().map(|o| o.cpu_ns_all).collect::<Vec<f64>>()),
            per_second: outcomes.last().map(|o| o.per_second.clone()).unwrap_or_default(),
            allocated: outcomes.last().and_then(|o| o.allocated),
            traffic: outcomes.last().and_then(|o| o.traffic),
            runs,
            latencies,
            ..CellResult::default()
        };
        debug_assert!(result.p50_ns <= result.p99_ns && result.p99_ns <= result.p999_ns);
        debug_assert!(result.p999_ns <= result.max_ns);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        assert!((spread(&[90.0, 100.0, 110.0]) - 0.2).abs() < 1e-9);
        assert_eq!(spread(&[5.0]), 0.0);
        let l = join(vec![(30, 1), (10, 90), (20, 8), (10, 0), (30, 1)]);
        assert_eq!(l, [(10, 90), (20, 8), (30, 2)]);
        assert_eq!((quantile(&l, 0.5), quantile(&l, 0.98), quantile(&l, 0.99)), (10, 20, 30));
        assert_eq!(quantile(&[], 0.5), 0);
    }
}
