//! A check that the peers' devices fit into memory: they are written in full before anything is
//! measured.

use crate::error::{Context, Failure, Res};

const MIB: u64 = 1 << 20;
/// Below this no peer can be made.
const LEAST: u64 = 128 * MIB;

/// Returns the bytes that can be had without swapping.
pub fn available() -> Res<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").at("/proc/meminfo")?;
    parse(&text).ok_or_else(|| Failure::new("/proc/meminfo does not tell what memory is available"))
}

fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Refuses `devices` devices of `size` that would take more than three quarters of what is
/// available: the rest is for caches and workloads.
pub fn check(devices: u64, size: u64, available: u64) -> Res<()> {
    let most = available / 4 * 3;
    if devices.saturating_mul(size) <= most {
        return Ok(());
    }
    // In steps that are easy to type.
    let fits = most / devices.max(1);
    let fits = if fits >= 1024 * MIB { fits / (256 * MIB) * 256 * MIB } else { fits / (64 * MIB) * 64 * MIB };
    debug_assert!(devices.saturating_mul(fits) <= most, "the size that is proposed does not fit either");
    let what = format!(
        "{devices} devices of {} MiB do not fit into memory, of which {} MiB are available",
        size / MIB,
        available / MIB
    );
    let way = match fits {
        LEAST.. => format!("give --size {}M, fewer --peers, or --medium disk", fits / MIB),
        _ => "give fewer --peers, or --medium disk".to_string(),
    };
    Err(Failure::new(format!("{what}; {way}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_a_size_that_does() {
        let gib = 1 << 30;
        check(6, 4 * gib, 64 * gib).unwrap();
        check(0, 4 * gib, gib).unwrap();
        let said = check(6, 4 * gib, 20 * gib).unwrap_err().message;
        assert!(said.contains("--size 2560M"), "{said}");
        check(6, 2560 * MIB, 20 * gib).unwrap();
        let said = check(6, 4 * gib, gib / 2).unwrap_err().message;
        assert!(said.contains("--peers") && !said.contains("--size"), "{said}");
        check(2, u64::MAX, u64::MAX).unwrap_err();
    }

    #[test]
    fn the_system_tells_what_is_available() {
        assert_eq!(parse("MemTotal: 1 kB\nMemAvailable:     2048 kB\n"), Some(2 << 20));
        assert_eq!(parse("MemTotal: 1 kB\n"), None);
        assert!(available().unwrap() > 0);
    }
}
