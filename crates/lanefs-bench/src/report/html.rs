//! The page: what was measured where, the ratios at a glance, then a panel for each workload.

use super::ablation;
use super::circumstances::{banners, date};
use super::latency::ridges;
use super::overview::overviews;
use super::rates::{Coloured, bars, curves};
use super::svg::escape;
use crate::registry;
use crate::results::{CellResult, ResultsFile};
use crate::units::{human, span};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The results of some files: each cell once, on a medium.
struct Gathered {
    /// In the order of the files; where there are several media, the target's name tells which.
    cells: Vec<CellResult>,
    /// The media, and what stands behind the names of their targets.
    media: Vec<String>,
    /// Processors of the machine.
    cpus: usize,
}

/// Returns what stands behind a target's name on a medium, where there are several.
fn suffix(medium: &str, several: bool) -> String {
    match medium {
        _ if !several => String::new(),
        "" => " (else)".to_string(),
        medium => format!(" ({medium})"),
    }
}

fn gather(files: &[ResultsFile]) -> Gathered {
    let measured = || files.iter().filter(|f| !f.ablation);
    let media: Vec<&str> = distinct(measured().map(|f| f.medium.as_str()));
    let several = media.len() > 1;
    let mut cells: Vec<CellResult> = Vec::new();
    for (file, r) in measured().flat_map(|f| f.results.iter().map(move |r| (f, r))) {
        let target = format!("{}{}", r.target, suffix(&file.medium, several));
        // Of two results for the same cell the later one counts.
        cells.retain(|c| (&c.target, &c.workload, c.workers) != (&target, &r.workload, r.workers));
        cells.push(CellResult { target, ..r.clone() });
    }
    let media = media.iter().map(|m| suffix(m, several)).collect();
    Gathered { cells, media, cpus: files.iter().map(|f| f.machine.cpus).max().unwrap_or(0) }
}

/// The page for these files.
pub fn page(files: &[ResultsFile]) -> String {
    let gathered = gather(files);
    let cells: Vec<&CellResult> = gathered.cells.iter().collect();
    let targets = distinct(cells.iter().map(|c| c.target.as_str()));
    let names = distinct(cells.iter().map(|c| c.workload.as_str()));

    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>File systems, measured</title><style>{STYLE}</style></head><body><main><h1>File systems, measured</h1>"
    );
    out.push_str(&head(files, &cells));
    if !cells.is_empty() {
        out.push_str(&measured(&gathered, &cells, &targets, &names));
    }
    for file in files {
        out.push_str(&ablation::section(file));
    }
    for file in files {
        out.push_str(&circumstances(file));
    }
    out.push_str("</main></body></html>\n");
    out
}

/// What a reader must know first: what was called how, when, how often and how long, and what
/// disturbed.
fn head(files: &[ResultsFile], cells: &[&CellResult]) -> String {
    let mut out = String::new();
    for file in files {
        let workers = file.results.iter().map(|r| r.workers).max().unwrap_or(1);
        let boxes = banners(&file.machine, workers);
        // Two files of one run would say the same.
        if !out.contains(&boxes) {
            out.push_str(&boxes);
        }
    }
    let by = |called: &str| {
        distinct(cells.iter().filter(|c| c.called == called).map(|c| c.target.as_str())).join(", ")
    };
    let mut parts = Vec::new();
    for (called, what) in
        [("in process", "by calls of the library, in process"), ("system calls", "by system calls")]
    {
        let who = by(called);
        if !who.is_empty() {
            parts.push(format!("{} {what}", escape(&who)));
        }
    }
    let mut lines = vec![];
    if !parts.is_empty() {
        lines.push(format!("<b>Measured:</b> {}.", parts.join("; ")));
    }
    for file in files {
        let Some(first) = file.results.first() else { continue };
        let medium =
            if file.medium.is_empty() { String::new() } else { format!("{}: ", escape(&file.medium)) };
        lines.push(format!(
            "{medium}{}, {} repeats of {} s, {} processors.",
            date(file.started),
            first.runs.len(),
            first.seconds,
            file.machine.cpus
        ));
    }
    let _ = write!(out, "<p class=\"how\">{}</p>", lines.join("<br>"));
    out
}

/// Ratios, a panel for each workload, all numbers.
fn measured(gathered: &Gathered, cells: &[&CellResult], targets: &[&str], names: &[&str]) -> String {
    let colour = |target: &str| targets.iter().position(|t| *t == target).unwrap_or(0);
    let mut out = legend(targets);
    out.push_str(&overviews(cells, targets, names, &gathered.media));
    out.push_str("<h2>Workload by workload</h2><p class=\"how\">Bars and curves: operations per second, median of the repeats; \
        whiskers span the repeats; a line stands at the number of processors. Latency: distribution on a logarithmic axis, heights drawn \
        as a cube root so that rare slow operations show; ticks at p50, p99, p99.9. --pictures DIR writes each as SVG and CSV.</p><div class=\"panels\">");
    for name in names {
        let mut of: Vec<Coloured<'_>> =
            cells.iter().filter(|c| c.workload == *name).map(|c| (colour(&c.target), *c)).collect();
        of.sort_by_key(|(c, r)| (*c, r.workers));
        out.push_str(&panel(name, &of, gathered.cpus));
    }
    out.push_str("</div>");
    out.push_str(&numbers(cells));
    out
}

/// Returns each picture as SVG and its numbers as CSV: the files' names, and what is in them.
pub fn pictures(files: &[ResultsFile]) -> Vec<(String, String)> {
    let gathered = gather(files);
    let targets = distinct(gathered.cells.iter().map(|c| c.target.as_str()));
    let mut out = Vec::new();
    for name in distinct(gathered.cells.iter().map(|c| c.workload.as_str())) {
        let of = gathered.cells.iter().filter(|c| c.workload == name);
        let colour = |c: &CellResult| targets.iter().position(|t| *t == c.target).unwrap_or(0);
        let mut cells: Vec<Coloured<'_>> = of.map(|c| (colour(c), c)).collect();
        cells.sort_by_key(|(c, r)| (*c, r.workers));
        let most = cells.iter().map(|(_, r)| r.workers).max().unwrap_or(1);
        let at_most: Vec<Coloured<'_>> = cells.iter().filter(|(_, r)| r.workers == most).copied().collect();
        let drawn = [
            ("rates", Some(bars(&at_most))),
            ("workers", curves(&cells, gathered.cpus)),
            ("latency", ridges(&at_most)),
        ];
        let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        for (kind, svg) in drawn {
            if let Some(svg) = svg {
                out.push((format!("{file}-{kind}.svg"), svg.alone(&format!("{name}: {kind}"))));
            }
        }
        let mut csv = String::from(
            "target,called,workers,per_second,low,high,p50_ns,p99_ns,p999_ns,cpu_ns,cpu_ns_all\n",
        );
        for (_, r) in &cells {
            let low = r.runs.iter().copied().fold(r.ops_per_s, f64::min);
            let high = r.runs.iter().copied().fold(r.ops_per_s, f64::max);
            let target = r.target.replace(['"', ',', '\n', '\r'], " ");
            let _ = writeln!(
                csv,
                "{target},{},{},{},{low},{high},{},{},{},{},{}",
                r.called, r.workers, r.ops_per_s, r.p50_ns, r.p99_ns, r.p999_ns, r.cpu_ns, r.cpu_ns_all
            );
        }
        out.push((format!("{file}.csv"), csv));
    }
    out
}

fn distinct<'a>(items: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

fn legend(targets: &[&str]) -> String {
    let mut out = String::from("<ul class=\"legend\">");
    for (i, target) in targets.iter().enumerate() {
        let _ = write!(out, "<li><i class=\"k{}\"></i>{}</li>", i % 8, escape(target));
    }
    out + "</ul>"
}

fn panel(name: &str, cells: &[Coloured<'_>], cpus: usize) -> String {
    let info = registry::all().iter().find(|e| e.info.name == name).map(|e| e.info);
    let unit = cells.first().map_or("ops", |(_, r)| if r.unit.is_empty() { "ops" } else { &r.unit });
    let most = cells.iter().map(|(_, r)| r.workers).max().unwrap_or(1);
    let at_most: Vec<Coloured<'_>> = cells.iter().filter(|(_, r)| r.workers == most).copied().collect();
    let mut out = format!(
        "<figure><figcaption><b>{}</b> {}</figcaption><h3>{} per second, {most} worker{}</h3>{}",
        escape(name),
        escape(info.map_or("", |i| i.about)),
        escape(unit),
        if most == 1 { "" } else { "s" },
        bars(&at_most).finish("rates by file system")
    );
    if let Some(curves) = curves(cells, cpus) {
        let curves = curves.finish("rate by number of workers");
        let _ = write!(out, "<h3>{} per second by workers</h3>{curves}", escape(unit));
    }
    if let Some(ridges) = ridges(&at_most) {
        let ridges = ridges.finish("latency distributions");
        let _ = write!(out, "<h3>latency, {most} worker{}</h3>{ridges}", if most == 1 { "" } else { "s" });
    }
    out + "</figure>"
}

fn numbers(cells: &[&CellResult]) -> String {
    let mut out = String::from(
        "<h2>All numbers</h2><div class=\"wide\"><table><thead><tr><th>workload</th><th>target</th><th>workers</th><th>per second</th>\
         <th>spread</th><th>p50</th><th>p99</th><th>p99.9</th><th>cpu each</th><th>of all</th></tr></thead><tbody>",
    );
    for r in cells {
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&r.workload),
            escape(&r.target),
            r.workers,
            human(r.ops_per_s),
            r.spread * 100.0,
            span(r.p50_ns),
            span(r.p99_ns),
            span(r.p999_ns),
            span(r.cpu_ns as u64),
            span(r.cpu_ns_all as u64)
        );
    }
    out + "</tbody></table></div>"
}

fn circumstances(file: &ResultsFile) -> String {
    let m = &file.machine;
    let mut out = String::from("<h2>How and where</h2><dl>");
    let mut item = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escape(value));
        }
    };
    item("command", &file.command);
    item(
        "processor",
        &format!("{} x {}{}", m.cpus, m.cpu, if m.virtual_machine { " (virtual)" } else { "" }),
    );
    item("memory", &format!("{:.1} GiB", m.memory as f64 / (1u64 << 30) as f64));
    item("kernel", &m.kernel);
    item("load at the start", &format!("{:.2}", m.load));
    item("clock", &format!("{:.0} ns a reading, taken off", m.timer_ns));
    item("versions", &m.versions.join("; "));
    for mount in &m.mounts {
        item("mount", mount);
    }
    for f in &file.failures {
        item("failed", &format!("{} on {}, {} workers: {}", f.workload, f.target, f.workers, f.message));
    }
    out + "</dl>"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(target: &str, workload: &str, workers: usize, rate: f64) -> CellResult {
        CellResult {
            target: target.into(),
            workload: workload.into(),
            workers,
            ops_per_s: rate,
            runs: vec![rate * 0.9, rate, rate * 1.1],
            p50_ns: 100,
            p99_ns: 1000,
            p999_ns: 20_000,
            latencies: vec![(90, 10), (100, 80), (1000, 9), (20_000, 1)],
            ..CellResult::default()
        }
    }

    #[test]
    fn a_page_holds_everything_and_nothing_escapes() {
        let file = ResultsFile {
            command: "<script>alert(1)</script>".into(),
            results: vec![
                cell("lanefs", "DWOL", 1, 4e6),
                cell("<b>evil", "DWOL", 1, 1e6),
                cell("lanefs", "DWOL", 2, 8e6),
            ],
            ..ResultsFile::default()
        };
        let html = page(&[file]);
        assert!(!html.contains("<script") && !html.contains("<b>evil"), "unescaped text");
        assert!(html.contains("4.00x") && html.contains("8.00 M") && html.matches("<svg").count() >= 3);
    }

    #[test]
    fn odd_numbers_do_not_break_it() {
        let mut odd = cell("a", "DWOL", 1, 0.0);
        odd.runs = vec![];
        odd.latencies = vec![(0, 0), (u64::MAX, 3)];
        odd.p999_ns = u64::MAX;
        let none = CellResult::default();
        let html = page(&[ResultsFile { results: vec![odd, none], ..ResultsFile::default() }]);
        assert!(!html.contains("NaN") && !html.contains("inf\""));
    }
}
