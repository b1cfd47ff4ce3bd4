//! Figures in the text format of Prometheus, version 0.0.4.
//!
//! Written here, since what the field's library writes is its successor, OpenMetrics, which names
//! counters in a way that the format at hand does not have.

use lanefs::report::{MlogReport, Report};
use lanefs_fuse::report::{LatencyReport, RequestReport};
use std::fmt::Write;

/// The type of the content, for HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The bounds of latencies, powers of two of nanoseconds: the same each time, as those who add
/// histograms up expect.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=36;

/// The kinds of metrics.
#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

/// A text that is being written.
struct Text(String);

impl Text {
    /// Begins a metric: its name and what it is.
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        debug_assert!(name.starts_with("lanefs_") && !help.contains(['\n', '\\']), "{name}: {help}");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a line: a name, pairs in braces if there are any, and a value.
    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0 += name;
        for (n, (label, is)) in labels.iter().enumerate() {
            let is = is.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{is}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    /// Writes a metric that has one value for each value of a label.
    fn each(&mut self, name: &str, kind: Kind, help: &str, label: &str, values: &[(&str, f64)]) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        debug_assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: the name says what it is");
        self.begin(name, kind, help);
        for (is, value) in values {
            let labels = [(label, *is)];
            self.line(name, if label.is_empty() { &[] } else { &labels }, *value);
        }
    }

    /// Writes a metric that has one value.
    fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.each(name, kind, help, "", &[("", value)]);
    }
}

/// Returns the text of a volume, and of the mount that serves it.
pub fn text(volume: &Report, requests: &[RequestReport]) -> String {
    let mut t = Text(String::new());
    memory(&mut t, volume);
    space(&mut t, volume);
    written(&mut t, volume);
    mlogs(&mut t, &volume.store.mlogs);
    of_requests(&mut t, requests);
    t.0
}

fn memory(t: &mut Text, v: &Report) {
    t.one("lanefs_open_seconds", Kind::Gauge, "Seconds since the volume was opened.", v.open_seconds);
    let cache = [
        ("clean", v.cache.clean_bytes as f64),
        ("dirty", v.cache.dirty_bytes as f64),
        ("free", v.cache.limit_bytes.saturating_sub(v.cache.used_bytes) as f64),
    ];
    t.each("lanefs_cache_bytes", Kind::Gauge, "Memory for pages of files.", "state", &cache);
    let memory = [
        ("used", v.memory.used_bytes as f64),
        ("names", v.memory.name_bytes as f64),
        ("log", v.memory.log_bytes as f64),
        ("committed_log", v.memory.committed_log_bytes as f64),
        ("store_inodes", v.store.inode_memory_bytes as f64),
    ];
    t.each("lanefs_memory_bytes", Kind::Gauge, "Memory of all but pages, and parts of it.", "part", &memory);
    let limit = v.memory.limit_bytes as f64;
    t.one("lanefs_memory_limit_bytes", Kind::Gauge, "What that may be.", limit);
    let inodes = [
        ("on_disk", v.store.space.inodes as f64),
        ("in_memory", v.inodes.in_memory as f64),
        ("open", v.inodes.open as f64),
        ("dirty", v.inodes.dirty as f64),
        ("written_not_durable", v.inodes.written_not_durable as f64),
    ];
    t.each("lanefs_inodes", Kind::Gauge, "Inodes, by states that overlap.", "state", &inodes);
}

fn space(t: &mut Text, v: &Report) {
    let s = &v.store.space;
    let space = [
        ("total", s.total_bytes as f64),
        ("free", s.free_bytes as f64),
        ("reserved", s.reserved_bytes as f64),
        ("live", s.live_bytes as f64),
    ];
    t.each("lanefs_space_bytes", Kind::Gauge, "Space that users can fill, and of what.", "part", &space);
    let s = &v.store.segments;
    let full: u64 = s.by_utilisation.iter().sum();
    let states = [
        ("free", s.free as f64),
        ("pending", s.pending as f64),
        ("open", s.open as f64),
        ("chain", s.chain as f64),
        ("full", full as f64),
    ];
    t.each("lanefs_segments", Kind::Gauge, "Segments in each state.", "state", &states);
    let tenths: Vec<String> =
        (1..=s.by_utilisation.len()).map(|n| format!("{:.1}", n as f64 / 10.0)).collect();
    let by: Vec<(&str, f64)> =
        tenths.iter().map(String::as_str).zip(s.by_utilisation.iter().map(|n| *n as f64)).collect();
    let help = "Full segments by how much of them is live: up to so much, and more than the one before.";
    t.each("lanefs_segments_full", Kind::Gauge, help, "utilisation", &by);
    t.one("lanefs_segments_low_water", Kind::Gauge, "Below so many free ones it cleans.", s.low_water as f64);
    let (name, help) = ("lanefs_segments_checkpoint_below", "Below so many free ones checkpoints begin.");
    t.one(name, Kind::Gauge, help, s.checkpoint_below as f64);
}

fn written(t: &mut Text, v: &Report) {
    let w = &v.store.written;
    let causes = [
        ("data", w.data_bytes as f64),
        ("log", w.log_bytes as f64),
        ("tree", w.tree_bytes as f64),
        ("moved", w.moved_bytes as f64),
        ("root", w.root_bytes as f64),
    ];
    t.each("lanefs_written_bytes_total", Kind::Counter, "Bytes written to devices.", "cause", &causes);
    let d = &v.store.devices;
    let flushes = [("asked", d.flushes_asked as f64), ("issued", d.flushes_issued as f64)];
    t.each("lanefs_flushes_total", Kind::Counter, "Flushes asked for, and those issued.", "what", &flushes);
    let help = "Writes that wait for space on the host of a sparse image.";
    t.one("lanefs_waiting_for_host", Kind::Gauge, help, d.waiting_for_host as f64);
    let help = "1 if a device is in trouble, or its host has no space: see lanefs stat.";
    t.one("lanefs_in_trouble", Kind::Gauge, help, f64::from(u8::from(d.trouble.is_some())));
    let change = d.change.unwrap_or_default();
    let parts = [("done", change.done_bytes as f64), ("total", change.total_bytes as f64)];
    let help = "Bytes copied or moved by the change of devices under way, and those that are to be.";
    t.each("lanefs_device_change_bytes", Kind::Gauge, help, "what", &parts);
    t.one("lanefs_transactions_total", Kind::Counter, "Transactions of the store.", d.transactions as f64);
    t.one("lanefs_commits_total", Kind::Counter, "Epochs committed.", v.epochs.commits as f64);
    let c = &v.store.checkpoints;
    let kinds = [("folding", c.folding as f64), ("in_place", c.in_place as f64), ("failed", c.failed as f64)];
    t.each("lanefs_checkpoints_total", Kind::Counter, "Checkpoints.", "kind", &kinds);
    let seconds = c.total_ns as f64 / 1e9;
    t.one("lanefs_checkpoint_seconds_total", Kind::Counter, "Time that checkpoints took.", seconds);
    let longest = c.longest_ns as f64 / 1e9;
    t.one("lanefs_checkpoint_longest_seconds", Kind::Gauge, "The longest since the opening.", longest);
    let c = &v.store.cleaner;
    let cleaner = [
        ("segments", c.segments as f64),
        ("blocks_moved", c.blocks_moved as f64),
        ("nodes_marked", c.nodes_marked as f64),
    ];
    t.each("lanefs_cleaned_total", Kind::Counter, "What the cleaner did.", "what", &cleaner);
}

/// Writes a metric that has one value for each mlog.
fn mlogs(t: &mut Text, mlogs: &[MlogReport]) {
    let numbers: Vec<String> = (0..mlogs.len()).map(|n| n.to_string()).collect();
    let mut of = |name: &str, kind, help, value: fn(&MlogReport) -> u64| {
        let values: Vec<(&str, f64)> =
            numbers.iter().map(String::as_str).zip(mlogs.iter().map(|m| value(m) as f64)).collect();
        t.each(name, kind, help, "mlog", &values);
    };
    of("lanefs_mlog_data_bytes_total", Kind::Counter, "Data of files written to an mlog.", |m| m.data_bytes);
    of("lanefs_mlog_log_bytes_total", Kind::Counter, "Batches written to an mlog.", |m| m.log_bytes);
    let help = "Batches of an mlog that recovery would read.";
    of("lanefs_mlog_to_recover_bytes", Kind::Gauge, help, |m| m.to_recover_bytes);
    let help = "What the open heads of an mlog can take.";
    of("lanefs_mlog_head_capacity_bytes", Kind::Gauge, help, |m| m.head_capacity_bytes);
}

/// Writes the metrics of requests.
fn of_requests(t: &mut Text, requests: &[RequestReport]) {
    let mut of = |name: &str, help, value: fn(&RequestReport) -> u64| {
        let values: Vec<_> = requests.iter().map(|r| (r.kind.as_str(), value(r) as f64)).collect();
        t.each(name, Kind::Counter, help, "kind", &values);
    };
    of("lanefs_requests_total", "Requests of the kernel.", |r| r.count);
    of("lanefs_request_received_bytes_total", "Bytes of requests.", |r| r.received_bytes);
    of("lanefs_request_answered_bytes_total", "Bytes of answers.", |r| r.answered_bytes);
    let timed: Vec<_> = requests.iter().filter_map(|r| Some((&r.kind, r.latency.as_ref()?))).collect();
    if timed.is_empty() {
        return;
    }
    let help = "Time that requests took, of those that were timed.";
    t.begin("lanefs_request_seconds", "histogram", help);
    for (kind, latency) in timed {
        histogram(t, kind, latency);
    }
}

fn histogram(t: &mut Text, kind: &str, latency: &LatencyReport) {
    let name = "lanefs_request_seconds";
    let bucket = format!("{name}_bucket");
    for power in BOUNDS {
        let bound = 1u64 << power;
        let below: u64 = latency.buckets.iter().take_while(|b| b.0 <= bound).map(|b| b.1).sum();
        let le = (bound as f64 / 1e9).to_string();
        t.line(&bucket, &[("kind", kind), ("le", &le)], below as f64);
    }
    t.line(&bucket, &[("kind", kind), ("le", "+Inf")], latency.count as f64);
    t.line(&format!("{name}_sum"), &[("kind", kind)], latency.sum_ns as f64 / 1e9);
    t.line(&format!("{name}_count"), &[("kind", kind)], latency.count as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_and_labels_are_escaped() {
        let latency = LatencyReport::new(vec![(1024, 3), (1280, 2), (2048, 1), (u64::MAX, 4)], 2_000_000_000);
        let mut t = Text(String::new());
        histogram(&mut t, "re\"a\\d\n", &latency);
        let lines: Vec<&str> = t.0.lines().collect();
        let begin = "lanefs_request_seconds_bucket{kind=\"re\\\"a\\\\d\\n\",le=";
        assert_eq!(lines[0], format!("{begin}\"0.000001024\"}} 3"));
        assert_eq!(lines[1], format!("{begin}\"0.000002048\"}} 6"));
        assert_eq!(lines[26], format!("{begin}\"68.719476736\"}} 6"));
        assert_eq!(lines[27], format!("{begin}\"+Inf\"}} 10"));
        assert!(lines[28].ends_with("} 2") && lines[29].ends_with("} 10"), "{lines:?}");
    }
}
