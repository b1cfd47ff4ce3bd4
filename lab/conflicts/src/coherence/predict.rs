//! The rates that the transfers allow.
//!
//! With `n` cores an operation takes its own work (measured on one core) and waits for its
//! transfers, so at most `n / (work + waits)` operations are done in a time; and each transfer of
//! one line follows the one before, so at most `1 / (transfers of the busiest line x their cost)`.
//! These are the asymptotic bounds of a closed queueing network, which the true rate stays below.

use serde::Serialize;

/// One line that travels.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Hot {
    /// `Type.field`, as far as the source tells.
    pub field: String,
    /// Serial transfers for one unit of work.
    pub transfers: f64,
    /// Nanoseconds they take.
    pub busy_ns: f64,
    /// The write before and the access that made it travel.
    pub sites: [String; 2],
}

/// A workload with a number of lanes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Point {
    /// Lanes, each on a core of its own.
    pub lanes: usize,
    /// Units of work recorded.
    pub units: u64,
    /// Serial transfers for one unit, all lines.
    pub transfers: f64,
    /// Copies of unchanged lines for one unit.
    pub copies: f64,
    /// Nanoseconds a unit waits for lines.
    pub waits_ns: f64,
    /// The busiest lines.
    pub hot: Vec<Hot>,
    /// The predicted speed-up against one lane.
    pub speed_up: f64,
    /// The bound is the busiest line, not the sum of the waits.
    pub bound_by_line: bool,
}

/// Fills in the prediction for a workload whose unit takes `work_ns` on one core.
pub fn predict(p: &mut Point, work_ns: f64) {
    let by_waits = p.lanes as f64 * work_ns / (work_ns + p.waits_ns);
    let busiest = p.hot.first().map_or(0.0, |h| h.busy_ns);
    let by_line = if busiest > 0.0 { work_ns / busiest } else { f64::INFINITY };
    p.bound_by_line = by_line < by_waits;
    // One core at least does what one core does: the others may rest.
    p.speed_up = by_waits.min(by_line).max(1.0_f64.min(by_waits));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_bound_counts() {
        let hot = |busy_ns| vec![Hot { busy_ns, ..Hot::default() }];
        let mut p = Point { lanes: 10, waits_ns: 100.0, hot: hot(10.0), ..Point::default() };
        predict(&mut p, 100.0);
        assert!((p.speed_up - 5.0).abs() < 1e-9 && !p.bound_by_line);
        p.hot = hot(50.0);
        predict(&mut p, 100.0);
        assert!((p.speed_up - 2.0).abs() < 1e-9 && p.bound_by_line);
        p.hot = vec![];
        p.waits_ns = 0.0;
        predict(&mut p, 100.0);
        assert!((p.speed_up - 10.0).abs() < 1e-9);
    }
}
