//! `lanefs stat`

use crate::failure::{Failure, Outcome, written};
use crate::figures::{Figures, dir_of};
use crate::size::show;
use crate::{mounted, prometheus};
use lanefs_fuse::report::RequestReport;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Show what a volume does and did: requests, memory, segments, logs, what was written and why
///
/// Of a volume that is mounted the mount is asked: name a directory of it, or its image. Counts are
/// those since it was mounted. Latencies are only known of requests that came while somebody asked
/// for them (--latency, `lanefs top`), for root and who mounted the volume. An image that is not
/// mounted is only read: its figures are those that opening it would find.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Write the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Have requests timed for so many seconds, and show those that came meanwhile
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub latency: Option<u64>,
    /// A directory of a mounted volume, or the volume's images or block devices
    #[arg(required = true, value_name = "DIR|IMAGE")]
    pub volume: Vec<PathBuf>,
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let figures = match dir_of(&args.volume)? {
        Some(dir) => of_mounted(args, &dir)?,
        None if args.latency.is_some() => {
            return Err(Failure::new(format_args!(
                "{}: is not mounted: there are no requests to be timed",
                args.volume[0].display()
            )));
        }
        None => Figures::of_images(&args.volume)?,
    };
    let requests = figures.mount.as_ref().map_or(&[][..], |m| &m.requests);
    let mut out = std::io::stdout().lock();
    written(match (args.json, args.prometheus) {
        (true, _) => serde_json::to_writer_pretty(&mut out, &figures)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out)),
        (_, true) => out.write_all(prometheus::text(&figures.volume, requests).as_bytes()),
        _ => text(&mut out, &figures),
    })?;
    Ok(0)
}

/// Asks a mount; with `--latency` waits, and leaves out the requests that came before.
fn of_mounted(args: &Args, dir: &Path) -> Result<Figures, Failure> {
    let Some(seconds) = args.latency else {
        return Ok(Figures::of_mount(&args.volume, dir, mounted::report(dir, 0)?));
    };
    let before = mounted::report(dir, seconds + 1)?;
    if !before.is_timed {
        return Err(Failure::new(format_args!(
            "{}: only root, or who mounted it, may have requests timed",
            dir.display()
        )));
    }
    std::thread::sleep(Duration::from_secs(seconds));
    let mut after = mounted::report(dir, 0)?;
    after.requests = after.requests_since(&before);
    Ok(Figures::of_mount(&args.volume, dir, after))
}

/// Formats nanoseconds for people.
pub fn time(nanos: u64) -> String {
    if nanos == u64::MAX {
        return "> 1 min".into();
    }
    let n = nanos as f64;
    match nanos {
        0..1_000 => format!("{n} ns"),
        1_000..1_000_000 => format!("{:.1} us", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", n / 1e6),
        _ => format!("{:.1} s", n / 1e9),
    }
}

/// Formats a number of seconds for people.
fn long(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// Returns the lines on a volume, each with its name in front.
pub fn lines(f: &Figures) -> Vec<(&'static str, String)> {
    let (v, s) = (&f.volume, &f.volume.store);
    let state = match (&f.mounted, &f.recovery) {
        (Some(dir), _) => format!("mounted at {} for {}", dir.escape_debug(), long(v.open_seconds)),
        (_, Some(r)) if !r.clean => {
            format!("not closed; {} batches to recover, {} read", r.batches, show(r.scanned_bytes))
        }
        _ => "closed".into(),
    };
    let used = s.space.total_bytes.saturating_sub(s.space.free_bytes);
    let mut lines = vec![
        ("state", state),
        (
            "space",
            format!(
                "{} of {} used, {} promised; {} inodes",
                show(used),
                show(s.space.total_bytes),
                show(s.space.reserved_bytes),
                s.space.inodes
            ),
        ),
    ];
    if let Some(trouble) = &s.devices.trouble {
        let writes = match s.devices.waiting_for_host {
            0 => String::new(),
            n => format!(" ({n} writes wait)"),
        };
        lines.insert(1, ("trouble", format!("{}{writes}", trouble.escape_debug())));
    }
    if let Some(c) = s.devices.change {
        let moved = format!("{} of {} copied or moved", show(c.done_bytes), show(c.total_bytes));
        lines.insert(1, ("devices", moved));
    }
    if f.mounted.is_some() {
        lines.extend(memory(f));
    }
    lines.extend(segments(f));
    if f.mounted.is_some() {
        lines.extend(done(f));
    }
    lines
}

fn memory(f: &Figures) -> [(&'static str, String); 3] {
    let (c, m, i) = (&f.volume.cache, &f.volume.memory, &f.volume.inodes);
    let waits = if m.callers_wait { "; callers wait for memory" } else { "" };
    let names = format!(
        "{} of {}: {} inodes, {} of names; log {}, {} committed{waits}",
        show(m.used_bytes),
        show(m.limit_bytes),
        i.in_memory,
        show(m.name_bytes),
        show(m.log_bytes),
        show(m.committed_log_bytes)
    );
    [
        (
            "cache",
            format!(
                "{} of {} used, {} dirty (writers wait above {})",
                show(c.used_bytes),
                show(c.limit_bytes),
                show(c.dirty_bytes),
                show(c.dirty_limit_bytes)
            ),
        ),
        ("memory", names),
        (
            "inodes",
            format!("{} open, {} dirty, {} written and not durable", i.open, i.dirty, i.written_not_durable),
        ),
    ]
}

fn segments(f: &Figures) -> [(&'static str, String); 3] {
    let s = &f.volume.store;
    let g = &s.segments;
    let full: Vec<String> = g.by_utilisation.iter().map(u64::to_string).collect();
    let to_recover: u64 = s.mlogs.iter().map(|m| m.to_recover_bytes).fold(0, u64::saturating_add);
    let states = format!(
        "{} of {}: {} free ({} kept back, cleaned below {}, checkpoints below {}), {} pending, {} open, {} in logs",
        g.total,
        show(g.segment_bytes),
        g.free,
        g.reserved,
        g.low_water,
        g.checkpoint_below,
        g.pending,
        g.open,
        g.chain
    );
    [
        ("segments", states),
        ("full", format!("by tenths in use: {}", full.join(" "))),
        ("mlogs", format!("{}, {} of log since the last checkpoint", s.mlogs.len(), show(to_recover))),
    ]
}

fn done(f: &Figures) -> [(&'static str, String); 4] {
    let (v, s) = (&f.volume, &f.volume.store);
    let (w, c, k) = (&s.written, &s.checkpoints, &s.cleaner);
    let amplification = w.write_amplification.map_or("none".into(), |a| format!("{a:.2}"));
    let written = format!(
        "{}: data {}, log {}, tree {}, moved {}, roots {}; amplification {amplification}",
        show(w.total_bytes),
        show(w.data_bytes),
        show(w.log_bytes),
        show(w.tree_bytes),
        show(w.moved_bytes),
        show(w.root_bytes)
    );
    let commits = format!(
        "{} epochs; {} transactions, {} flushes for {}",
        v.epochs.commits, s.devices.transactions, s.devices.flushes_issued, s.devices.flushes_asked
    );
    let checkpoints = format!(
        "{} and {} without a fold, {} failed; the last took {}, the longest {}",
        c.folding,
        c.in_place,
        c.failed,
        time(c.last_ns),
        time(c.longest_ns)
    );
    let cleaner =
        format!("{} segments, {} blocks moved, {} marked", k.segments, k.blocks_moved, k.nodes_marked);
    [("written", written), ("commits", commits), ("checkpoints", checkpoints), ("cleaner", cleaner)]
}

/// Returns a table of requests that came in so many seconds, if a rate is wanted.
pub fn requests(requests: &[RequestReport], seconds: Option<f64>) -> Vec<String> {
    let count = if seconds.is_some() { "per second" } else { "count" };
    let head = format!(
        "{:<16} {count:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "request", "received", "answered", "p50", "p99", "p99.9", "max"
    );
    let mut sorted: Vec<_> = requests.iter().collect();
    sorted.sort_by_key(|r| std::cmp::Reverse(r.count));
    let of = |r: &RequestReport| {
        let per = |n: u64| n as f64 / seconds.unwrap_or(1.0).max(1e-3);
        let bytes = |n: u64| show(per(n) as u64);
        let l = r.latency.as_ref();
        let at = |nanos: Option<u64>| nanos.map_or("-".into(), time);
        format!(
            "{:<16} {:>10.0} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            r.kind.escape_debug().to_string(),
            per(r.count),
            bytes(r.received_bytes),
            bytes(r.answered_bytes),
            at(l.map(|l| l.p50_ns)),
            at(l.map(|l| l.p99_ns)),
            at(l.map(|l| l.p999_ns)),
            at(l.map(|l| l.max_ns))
        )
    };
    std::iter::once(head).chain(sorted.into_iter().map(of)).collect()
}

fn text(out: &mut impl Write, f: &Figures) -> std::io::Result<()> {
    writeln!(out, "{:<12}{}", "volume", f.images.join(", "))?;
    for (name, value) in lines(f) {
        writeln!(out, "{name:<12}{value}")?;
    }
    if let Some(mount) = &f.mount {
        writeln!(out)?;
        requests(&mount.requests, None).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_short() {
        let of = [0, 999, 1_280, 1_310_720, 68_719_476_736, u64::MAX].map(time);
        assert_eq!(of, ["0 ns", "999 ns", "1.3 us", "1.3 ms", "68.7 s", "> 1 min"]);
        assert_eq!([59.9, 7_199.0, 90_000.0, 1e6].map(long), ["59 s", "119 min", "25 h", "11 days"]);
    }
}
