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
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().trim_end_matches(['b', 'i']) {
        "" => 1,
        "k" => 1u64 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(Failure::new(format!("`{text}` is not a size; say for example 4G or 512M"))),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| Failure::new(format!("`{text}` is not a size; say for example 4G or 512M")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4G").unwrap(), 4 << 30);
        assert_eq!(parse_size("512MiB").unwrap(), 512 << 20);
        assert_eq!(parse_size("17").unwrap(), 17);
        for bad in ["", "G", "4X", "-1", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
