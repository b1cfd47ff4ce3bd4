//! Sizes as people write them: `4G`, `512M`, `1.5GiB`, `4096`.

/// A text that is no size, or a size that is too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSize(String);

impl std::fmt::Display for BadSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSize {}

/// Reads a size in bytes. K, M, G, T, P and E, small or large, are powers of 1024, with or without
/// `iB` or `B`; a number with a point is rounded down to bytes.
///
/// # Errors
/// What is wrong with the text, and how to write a size.
pub fn parse(text: &str) -> Result<u64, BadSize> {
    let text = text.trim();
    let none = || BadSize(format!("{text:?} is not a size; write a number with K, M, G or T, as in 4G"));
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
        _ => return Err(none()),
    };
    debug_assert!(number.bytes().all(|b| b.is_ascii_digit() || b == b'.'), "{number} has no sign");
    let too_large = || BadSize(format!("{text:?} is too large"));
    if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
        let whole = number.parse::<u64>().map_err(|_| too_large())?;
        return whole.checked_mul(1 << shift).ok_or_else(too_large);
    }
    match number.parse::<f64>() {
        Ok(n) if n * (1u64 << shift) as f64 <= u64::MAX as f64 / 2.0 => {
            Ok((n * (1u64 << shift) as f64) as u64)
        }
        Ok(_) => Err(too_large()),
        Err(_) => Err(none()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("4k", 4096),
            ("4G", 4 << 30),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2TB", 2 << 40),
            (" 8 M ", 8 << 20),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", ".", "4X", "4GG", "1..5G", "-1", "-4G", "+4G", "4 G G", "0x10", "1e3"] {
            assert!(parse(text).unwrap_err().to_string().contains("is not a size"), "{text}");
        }
        for text in ["16E", "99999999E", "99999999T", "9.5E", "99999999999999999999"] {
            assert!(parse(text).unwrap_err().to_string().contains("is too large"), "{text}");
        }
    }
}
