//! Sizes as people write them: `4G`, `512M`, `1.5GiB`, `4096`.

/// Reads a size in bytes. K, M, G, T, P and E are powers of 1024, with or without `iB` or `B`.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return Err(format!("{text:?} is not a size; write a number with K, M, G or T, as in 4G")),
    };
    let too_large = || format!("{text:?} is too large");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(too_large);
    }
    match number.parse::<f64>() {
        Ok(n) if n * (1u64 << shift) as f64 <= u64::MAX as f64 / 2.0 => {
            Ok((n * (1u64 << shift) as f64) as u64)
        }
        Ok(_) => Err(too_large()),
        Err(_) => Err(format!("{text:?} is not a size; write a number with K, M, G or T, as in 4G")),
    }
}

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
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("4G", 4 << 30),
            ("1.5GiB", 3 << 29),
            ("2TB", 2 << 40),
            (" 8 M ", 8 << 20),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "4X", "1..5G", "99999999E", "-4G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(4096), "4.0 KiB");
        assert_eq!(show(1023 * 1024), "1.0 MiB");
        assert_eq!(show(250 << 30), "250 GiB");
    }
}
