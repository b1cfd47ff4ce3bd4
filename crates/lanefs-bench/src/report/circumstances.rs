//! When and where numbers were made, and what to beware of in them.

use crate::machine::Machine;
use std::fmt::Write;

/// The share of the processors that others may have used before a run.
const QUIET: f64 = 0.25;

/// Formats seconds since 1970 as a date and a time, UTC.
pub fn date(seconds: u64) -> String {
    // Days since 0000-03-01, in eras of 400 years, so that leap days come last in their year.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    debug_assert!((1..=12).contains(&month) && (1..=31).contains(&day));
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Returns what a reader must know before any number, as boxes for the top of a page.
pub fn banners(machine: &Machine, workers: usize) -> String {
    let mut out = String::new();
    let mut say = |text: String| {
        let _ = write!(out, "<p class=\"banner\">{text}</p>");
    };
    if machine.load > machine.cpus as f64 * QUIET {
        say(format!(
            "The machine was busy: a load of {:.1} on {} processors when the run began. Rates are provisional.",
            machine.load, machine.cpus
        ));
    }
    if machine.cpus > 0 && workers > machine.cpus {
        say(format!(
            "{workers} workers shared {} processors: more workers than that show queueing, not scaling.",
            machine.cpus
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_651_200 + 3661), "2026-11-26 01:01 UTC");
    }

    #[test]
    fn a_busy_machine_and_too_many_workers_are_told() {
        let machine = |load| Machine { cpus: 2, load, ..Machine::default() };
        assert_eq!(banners(&machine(0.1), 2), "");
        assert!(banners(&machine(3.0), 2).contains("busy"));
        assert!(banners(&machine(0.0), 4).contains("4 workers shared 2 processors"));
    }
}
