//! The ratio tables: LaneFS in process against its rivals, its own mount against them, the two
//! against each other, and one medium against another.

use super::svg::escape;
use crate::ratios::{Ratio, geometric_mean, ratio};
use crate::results::CellResult;
use crate::units::times;
use std::fmt::Write;

/// LaneFS in process.
const OURS: &str = "lanefs";
/// LaneFS through the kernel.
const MOUNT: &str = "lanefs-mount";

/// Makes all tables that the targets give. `media`: what stands behind the targets' names.
pub fn overviews(cells: &[&CellResult], targets: &[&str], names: &[&str], media: &[String]) -> String {
    let mut out = String::new();
    for medium in media {
        let here: Vec<&str> = targets.iter().copied().filter(|t| t.ends_with(medium.as_str())).collect();
        let (ours, mount) = (format!("{OURS}{medium}"), format!("{MOUNT}{medium}"));
        let rivals: Vec<&str> = here.iter().copied().filter(|t| *t != ours && *t != mount).collect();
        let has = |t: &String| here.contains(&t.as_str());
        if has(&ours) {
            out.push_str(&table(cells, &ours, &rivals, names, ""));
        }
        if has(&mount) {
            let how = "Its mount: through the kernel, as the others are. ";
            out.push_str(&table(cells, &mount, &rivals, names, how));
        }
        if has(&ours) && has(&mount) {
            out.push_str(&table(
                cells,
                &ours,
                &[&mount],
                names,
                "The same library without and with a mount. ",
            ));
        }
        if !has(&ours)
            && !has(&mount)
            && let Some((subject, others)) = here.split_first()
        {
            out.push_str(&table(cells, subject, others, names, ""));
        }
    }
    // The first medium over the others, target by target.
    if let Some((first, others)) = media.split_first() {
        for medium in others {
            let bases: Vec<&str> = targets.iter().filter_map(|t| t.strip_suffix(medium.as_str())).collect();
            for base in bases {
                let (a, b) = (format!("{base}{first}"), format!("{base}{medium}"));
                if targets.contains(&a.as_str()) {
                    let how = "Two runs, one after the other: their repeats are not paired. ";
                    out.push_str(&table(cells, &a, &[&b], names, how));
                }
            }
        }
    }
    out
}

/// Makes the table of one subject.
fn table(cells: &[&CellResult], subject: &str, others: &[&str], names: &[&str], how: &str) -> String {
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
        "<h2>{} against {}</h2><p class=\"how\">{how}How many times as fast, in runs side by side; in small type the smallest \
         and largest of the repeats. Where these span 1 the cell is neutral: the runs do not tell which is faster. \
         <b>1w</b>, <b>2w</b>: workers.</p><div class=\"wide\"><table class=\"ratios\"><thead><tr><th>workload</th>",
        escape(subject),
        if let [one] = others { escape(one) } else { "the others".to_string() }
    );
    for other in others {
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
                            heat(r),
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

/// Returns the class of a ratio, by how good it is; one that may as well be 1 is neutral.
fn heat(r: Ratio) -> &'static str {
    if r.low < 1.0 && r.high > 1.0 {
        return "h1";
    }
    match r.median {
        r if r < 0.9 => "h0",
        r if r < 1.1 => "h1",
        r if r < 3.0 => "h2",
        r if r < 8.0 => "h3",
        _ => "h4",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spans_one_is_neutral() {
        let heat = |low, median, high| heat(Ratio { low, median, high });
        assert_eq!(heat(0.8, 4.0, 9.0), "h1");
        assert_eq!((heat(0.5, 0.6, 0.7), heat(3.5, 4.0, 9.0)), ("h0", "h3"));
    }

    #[test]
    fn the_mount_is_apart_and_media_stand_side_by_side() {
        let cell = |target: &str, rate: f64| CellResult {
            target: target.into(),
            workload: "DWOL".into(),
            workers: 1,
            ops_per_s: rate,
            ..CellResult::default()
        };
        let all: Vec<CellResult> = ["lanefs", "lanefs-mount", "ext4"]
            .iter()
            .flat_map(|t| [cell(&format!("{t} (memory)"), 4.0), cell(&format!("{t} (disk)"), 2.0)])
            .collect();
        let cells: Vec<&CellResult> = all.iter().collect();
        let targets: Vec<&str> = all.iter().map(|c| c.target.as_str()).collect();
        let html = overviews(&cells, &targets, &["DWOL"], &[" (memory)".into(), " (disk)".into()]);
        for heading in [
            "lanefs (memory) against ext4 (memory)",
            "lanefs-mount (disk) against ext4 (disk)",
            "lanefs (disk) against lanefs-mount (disk)",
            "lanefs (memory) against lanefs (disk)",
        ] {
            assert!(html.contains(&format!("<h2>{heading}</h2>")), "{heading}: {html}");
        }
        assert!(html.contains("2.00x"));
    }
}
