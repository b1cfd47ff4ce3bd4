//! The page: what was measured where, the ratios at a glance, then a panel for each workload.

use super::ablation;
use super::latency::ridges;
use super::rates::{Coloured, bars, curves};
use super::svg::escape;
use crate::ratios::{geometric_mean, ratio};
use crate::registry;
use crate::results::{CellResult, ResultsFile};
use crate::units::{human, span, times};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The page for these files.
pub fn page(files: &[ResultsFile]) -> String {
    let mut cells: Vec<&CellResult> = Vec::new();
    for r in files.iter().filter(|f| !f.ablation).flat_map(|f| &f.results) {
        // Of two results for the same cell the later one counts.
        cells.retain(|c| (&c.target, &c.workload, c.workers) != (&r.target, &r.workload, r.workers));
        cells.push(r);
    }
    let targets = distinct(cells.iter().map(|c| c.target.as_str()));
    let names = distinct(cells.iter().map(|c| c.workload.as_str()));

    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>File systems, measured</title><style>{STYLE}</style></head><body><main><h1>File systems, measured</h1>"
    );
    if !cells.is_empty() {
        out.push_str(&measured(&cells, &targets, &names));
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

/// Ratios, a panel for each workload, all numbers.
fn measured(cells: &[&CellResult], targets: &[&str], names: &[&str]) -> String {
    let colour = |target: &str| targets.iter().position(|t| *t == target).unwrap_or(0);
    let mut out = legend(targets);
    out.push_str(&overview(cells, targets, names));
    out.push_str("<h2>Workload by workload</h2><p class=\"how\">Bars and curves: operations per second, median of the repeats; \
        whiskers span the repeats. Latency: distribution on a logarithmic axis, heights drawn as a cube root so that rare slow operations \
        show; ticks at p50, p99, p99.9.</p><div class=\"panels\">");
    for name in names {
        let mut of: Vec<Coloured<'_>> =
            cells.iter().filter(|c| c.workload == *name).map(|c| (colour(&c.target), *c)).collect();
        of.sort_by_key(|(c, r)| (*c, r.workers));
        out.push_str(&panel(name, &of));
    }
    out.push_str("</div>");
    out.push_str(&numbers(cells));
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

/// The ratio table: the subject against each other target.
fn overview(cells: &[&CellResult], targets: &[&str], names: &[&str]) -> String {
    let Some(subject) = targets.iter().copied().find(|t| *t == "lanefs").or(targets.first().copied()) else {
        return String::new();
    };
    let others: Vec<&str> = targets.iter().copied().filter(|t| *t != subject).collect();
    if others.is_empty() {
        return String::new();
    }
    let mut counts: Vec<usize> = cells.iter().map(|c| c.workers).collect();
    counts.sort_unstable();
    counts.dedup();
    let find = |t: &str, n: &str, w: usize| {
        cells.iter().find(|c| c.target == t && c.workload == n && c.workers == w).copied()
    };
    let mut out = format!(
        "<h2>{} against the others</h2><p class=\"how\">How many times as fast, in runs side by side; in small type the smallest \
         and largest of the repeats. <b>1w</b>, <b>2w</b>: workers.</p><div class=\"wide\"><table class=\"ratios\"><thead><tr><th>workload</th>",
        escape(subject)
    );
    for other in &others {
        for w in &counts {
            let _ = write!(out, "<th>{}<br><small>{w}w</small></th>", escape(other));
        }
    }
    out.push_str("</tr></thead><tbody>");
    let mut means = vec![Vec::new(); others.len() * counts.len()];
    for name in names {
        let _ = write!(out, "<tr><th>{}</th>", escape(name));
        for (o, other) in others.iter().enumerate() {
            for (c, &w) in counts.iter().enumerate() {
                let r = find(subject, name, w).zip(find(other, name, w)).and_then(|(a, b)| ratio(a, b));
                match r {
                    Some(r) => {
                        means[o * counts.len() + c].push(r.median);
                        let _ = write!(
                            out,
                            "<td class=\"{}\">{}<small>{}-{}</small></td>",
                            heat(r.median),
                            times(r.median),
                            times(r.low),
                            times(r.high)
                        );
                    }
                    None => out.push_str("<td class=\"none\">-</td>"),
                }
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody><tfoot><tr><th>geometric mean</th>");
    for mean in &means {
        let _ = write!(out, "<td>{}</td>", times(geometric_mean(mean)));
    }
    out + "</tr></tfoot></table></div>"
}

/// Returns the class of a ratio, by how good it is.
fn heat(ratio: f64) -> &'static str {
    match ratio {
        r if r < 0.9 => "h0",
        r if r < 1.1 => "h1",
        r if r < 3.0 => "h2",
        r if r < 8.0 => "h3",
        _ => "h4",
    }
}

fn panel(name: &str, cells: &[Coloured<'_>]) -> String {
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
        bars(&at_most)
    );
    if let Some(curves) = curves(cells) {
        let _ = write!(out, "<h3>{} per second by workers</h3>{curves}", escape(unit));
    }
    if let Some(ridges) = ridges(&at_most) {
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
