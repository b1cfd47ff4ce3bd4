//! Numbers as people read and write them.

use crate::error::{Failure, Res};

/// Formats a rate for people: `1.95 M`, `40.1 k`.
pub fn human(rate: f64) -> String {
    match rate {
        r if r >= 1e9 => format!("{:.2} G", r / 1e9),
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r => format!("{r:.1}"),
    }
}

/// Formats a span for people.
pub fn span(ns: u64) -> String {
    match ns {
        n if n >= 1_000_000_000 => format!("{:.2} s", n as f64 / 1e9),
        n if n >= 1_000_000 => format!("{:.2} ms", n as f64 / 1e6),
        n if n >= 10_000 => format!("{:.1} us", n as f64 / 1e3),
        n => format!("{n} ns"),
    }
}

/// Formats a ratio for people.
pub fn times(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}x"),
        v if v >= 10.0 => format!("{v:.1}x"),
        v => format!("{v:.2}x"),
    }
}

/// Reads a size such as `4G`, `512M` or `1048576`.
pub fn parse_size(text: &str) -> Res<u64> {
    lanefs::size::parse(text).map_err(|e| Failure::new(e.to_string()))
}
