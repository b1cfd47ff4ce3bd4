//! Sizes for people.

pub use lanefs::size::parse;

/// Formats a size for people: three digits and a unit.
pub fn show(bytes: u64) -> String {
    let text = short(bytes as f64);
    debug_assert!(text.len() <= "99.4 KiB".len(), "{text}: three digits and a unit");
    text
}

/// Formats a size with the unit that suits it.
fn short(mut n: f64) -> String {
    for unit in ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] {
        if n < 999.5 {
            return if unit == "B" || n >= 99.5 {
                format!("{n:.0} {unit}")
            } else {
                format!("{n:.1} {unit}")
            };
        }
        n /= 1024.0;
    }
    format!("{n:.1} EiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(4096), "4.0 KiB");
        assert_eq!(show(1023 * 1024), "1.0 MiB");
        assert_eq!(show(250 << 30), "250 GiB");
    }
}
