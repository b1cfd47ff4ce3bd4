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
    /// The same until the background has done all that a unit causes.
    pub behind: Option<BehindPoint>,
}

/// What sets the bound where the background is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// All cores work, or wait for lines.
    #[default]
    Cores,
    /// The busiest line.
    Line,
    /// The part of the background's work that one thread does.
    OneThread,
}

/// A workload with a number of lanes and the background, which works on the same cores.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BehindPoint {
    /// Serial transfers for one unit, all lines.
    pub transfers: f64,
    /// Nanoseconds an operation waits for lines, for one unit.
    pub waits_ns: f64,
    /// Nanoseconds the background waits for lines, for one unit.
    pub background_waits_ns: f64,
    /// The busiest lines.
    pub hot: Vec<Hot>,
    /// The predicted speed-up against one lane.
    pub speed_up: f64,
    /// What bounds it.
    pub bound: Bound,
}

/// Processor time of a unit on one core: what is measured.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Nanoseconds of the operations.
    pub work_ns: f64,
    /// Nanoseconds of the background behind them.
    pub behind_ns: f64,
    /// The part of these that is one thread's.
    pub alone: f64,
}

/// Fills in the prediction with the background for so many lanes. All cores share what operations
/// and the background do and wait for; what one thread of the background does alone, and the
/// transfers of one line, follow each other.
pub fn predict_behind(p: &mut BehindPoint, lanes: usize, w: Work) {
    let one = w.work_ns + w.behind_ns;
    let by_cores = lanes as f64 * one / (one + p.waits_ns + p.background_waits_ns);
    let over = |ns: f64| if ns > 0.0 { one / ns } else { f64::INFINITY };
    let by_line = over(p.hot.first().map_or(0.0, |h| h.busy_ns));
    let by_thread = over(w.alone * (w.behind_ns + p.background_waits_ns));
    let bounds = [(by_cores, Bound::Cores), (by_line, Bound::Line), (by_thread, Bound::OneThread)];
    let least = bounds.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
    (p.speed_up, p.bound) = (least.0.max(1.0_f64.min(by_cores)), least.1);
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
    fn the_background_bounds_by_cores_by_a_line_and_by_one_thread() {
        let work = |behind_ns, alone| Work { work_ns: 100.0, behind_ns, alone };
        let mut p = BehindPoint { waits_ns: 50.0, background_waits_ns: 50.0, ..BehindPoint::default() };
        predict_behind(&mut p, 10, work(100.0, 0.0));
        assert!((p.speed_up - 10.0 * 200.0 / 300.0).abs() < 1e-9 && p.bound == Bound::Cores);
        predict_behind(&mut p, 10, work(100.0, 0.5));
        assert!((p.speed_up - 200.0 / 75.0).abs() < 1e-9 && p.bound == Bound::OneThread);
        p.hot = vec![Hot { busy_ns: 100.0, ..Hot::default() }];
        predict_behind(&mut p, 10, work(100.0, 0.5));
        assert!((p.speed_up - 2.0).abs() < 1e-9 && p.bound == Bound::Line);
        // Reading causes nothing behind it.
        let mut p = BehindPoint::default();
        predict_behind(&mut p, 10, work(0.0, 0.5));
        assert!((p.speed_up - 10.0).abs() < 1e-9 && p.bound == Bound::Cores);
    }

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
