//! The worth of each technique: for each workload the rate of every variant, as a share of LaneFS
//! as usual.

use super::svg::{Anchor, Svg, escape};
use crate::ablation::VARIANTS;
use crate::ratios::ratio;
use crate::registry;
use crate::results::{CellResult, ResultsFile};
use crate::units::human;
use std::fmt::Write;

/// Makes the section; nothing if the file is not one of `ablate`.
pub fn section(file: &ResultsFile) -> String {
    if !file.ablation {
        return String::new();
    }
    let mut names: Vec<&str> = Vec::new();
    for r in &file.results {
        if !names.contains(&r.workload.as_str()) {
            names.push(&r.workload);
        }
    }
    let mut out = String::from(
        "<h2>What each technique is worth</h2><p class=\"how\">LaneFS with one technique taken out, or several, against LaneFS as \
         usual (the line at 1), in runs side by side: median of the repeats, whiskers from the smallest to the largest ratio. \
         Shorter than the line: the technique was worth something.</p><dl>",
    );
    let ran = |name: &str| file.results.iter().any(|r| r.target == name);
    for v in VARIANTS.iter().filter(|v| ran(v.name)) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(v.name), escape(v.about));
    }
    out.push_str("</dl><div class=\"panels\">");
    for name in names {
        let about = registry::all().iter().find(|e| e.info.name == name).map_or("", |e| e.info.about);
        let _ = write!(out, "<figure><figcaption><b>{}</b> {}</figcaption>", escape(name), escape(about));
        let of: Vec<&CellResult> = file.results.iter().filter(|r| r.workload == name).collect();
        let mut workers: Vec<usize> = of.iter().map(|r| r.workers).collect();
        workers.sort_unstable();
        workers.dedup();
        for w in workers {
            let at: Vec<&CellResult> = of.iter().filter(|r| r.workers == w).copied().collect();
            if let Some(figure) = figure(&at) {
                let _ = write!(out, "<h3>{w} worker{}</h3>{figure}", if w == 1 { "" } else { "s" });
            }
        }
        out.push_str("</figure>");
    }
    out + "</div>"
}

fn figure(cells: &[&CellResult]) -> Option<String> {
    const ROW: f64 = 19.0;
    const LEFT: f64 = 84.0;
    const RIGHT: f64 = 300.0;
    let usual = cells.iter().find(|r| r.target == VARIANTS[0].name)?;
    let rows: Vec<_> = cells.iter().filter_map(|r| Some((r, ratio(r, usual)?))).collect();
    let most = rows.iter().map(|(_, q)| q.high).fold(1.25, f64::max).min(3.0);
    let x = |v: f64| LEFT + v.clamp(0.0, most) / most * (RIGHT - LEFT);
    let bottom = rows.len() as f64 * ROW + 4.0;
    let mut svg = Svg::new(360.0, bottom);
    for (row, (r, q)) in rows.iter().enumerate() {
        let y = row as f64 * ROW + 3.0;
        let title = format!("{}: {} per second, {:.2} of usual", r.target, human(r.ops_per_s), q.median);
        // As usual in one colour, what has one technique out in another, what has more in a third.
        let colour = match r.without.len() {
            0 => 0,
            1 => 5,
            _ => 1,
        };
        svg.text(LEFT - 6.0, y + 11.0, Anchor::End, "t", &r.target);
        svg.bar(LEFT, y, x(q.median) - LEFT, ROW - 6.0, colour, &title);
        let middle = y + (ROW - 6.0) / 2.0;
        svg.line((x(q.low), middle), (x(q.high), middle), "w");
        svg.text(x(q.high.max(q.median)) + 5.0, y + 11.0, Anchor::Start, "v", &format!("{:.2}", q.median));
    }
    svg.line((x(1.0), 0.0), (x(1.0), bottom), "x");
    Some(svg.finish("rates with techniques taken out, as shares of the usual rate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_has_a_bar_and_a_word() {
        let cell = |target: &str, rate: f64, without: &[&str]| CellResult {
            target: target.into(),
            workload: "MWCM".into(),
            workers: 2,
            ops_per_s: rate,
            runs: vec![rate * 0.9, rate, rate * 1.1],
            without: without.iter().map(|w| w.to_string()).collect(),
            ..CellResult::default()
        };
        let results = vec![
            cell("lanefs", 100.0, &[]),
            cell("no-rps", 80.0, &["rps"]),
            cell("D", 40.0, &["oplog", "counter"]),
        ];
        let mut file = ResultsFile { results, ablation: true, ..ResultsFile::default() };
        let html = section(&file);
        assert_eq!(html.matches("<rect").count(), 3);
        assert!(html.contains("0.80") && html.contains("0.40") && html.contains("2 workers"), "{html}");
        file.ablation = false;
        assert_eq!(section(&file), "");
    }
}
