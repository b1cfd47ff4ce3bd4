//! The page of a figure: what was measured how, the pictures, the paper's numbers beside this
//! run's, and what is not here.

use super::draw::{number, svg};
use super::results::{FigureResults, Panel};
use crate::report::svg::escape;
use crate::report::{banners, date};
use std::fmt::Write;
use std::path::Path;

const STYLE: &str = include_str!("../report/style.css");

/// Returns the name, without an extension, of a panel's picture beside the page `page`.
pub(super) fn picture(page: &Path, panel: &Panel) -> String {
    let stem = page.file_stem().map_or_else(|| "figure".into(), |s| s.to_string_lossy());
    let name: String =
        panel.name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    format!("{stem}-{name}")
}

/// Makes the page. `at`: where it will lie, if pictures and CSV lie beside it.
pub fn page(out: &FigureResults, at: Option<&Path>) -> String {
    let m = &out.machine;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{name}</title><style>{STYLE}</style></head><body><main><h1>{name}: {}</h1><p class=\"how\">{}</p>",
        escape(&out.title),
        escape(&out.source),
        name = escape(&out.figure),
    );
    let workers = out.results.iter().map(|r| r.workers).max().unwrap_or(1);
    html.push_str(&banners(m, workers));
    let _ = write!(
        html,
        "<p class=\"how\">{}; devices: {}; {} repeats of {} s, the median counts, whiskers span the repeats. {} processors ({}), kernel {}. \
         <b>In process</b>: calls of the library, no system call; <b>system calls</b>: through the kernel. \
         Broken lines are a model's prediction; nobody measured them.</p>",
        date(out.started),
        escape(&if out.medium.is_empty() { "none".to_string() } else { out.medium.join(" and ") }),
        out.repeats,
        out.seconds,
        m.cpus,
        escape(&m.cpu),
        escape(m.kernel.split(' ').next().unwrap_or_default()),
    );
    if let Some(path) = at {
        let csv = path.with_extension("csv");
        let csv = csv.file_name().unwrap_or_default().to_string_lossy();
        let _ = write!(html, "<p class=\"how\"><a href=\"{0}\">all points as CSV</a></p>", escape(&csv));
    }
    html.push_str("<div class=\"panels pictures\">");
    for panel in &out.panels {
        let (svg, broad) = svg(panel, m.cpus);
        let _ = write!(
            html,
            "<figure{}><figcaption><b>{}</b> {}</figcaption>{svg}",
            if broad { " class=\"broad\"" } else { "" },
            escape(&panel.name),
            escape(&panel.title)
        );
        if let Some(path) = at {
            let name = picture(path, panel);
            let _ = write!(html, "<p class=\"how\"><a href=\"{0}.svg\">{0}.svg</a></p>", escape(&name));
        }
        html.push_str("</figure>");
    }
    html.push_str("</div>");
    html.push_str(&stated(out));
    if !out.missing.is_empty() {
        html.push_str("<h2>Not here</h2><dl>");
        for one in &out.missing {
            let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(&one.what), escape(&one.why));
        }
        html.push_str("</dl>");
    }
    html.push_str("<h2>How and where</h2><dl>");
    let _ = write!(html, "<dt>command</dt><dd>{}</dd>", escape(&out.command));
    let _ = write!(html, "<dt>load at the start</dt><dd>{:.2}</dd>", m.load);
    for mount in &m.mounts {
        let _ = write!(html, "<dt>mount</dt><dd>{}</dd>", escape(mount));
    }
    html.push_str("</dl></main></body></html>\n");
    html
}

/// The paper's numbers and this run's.
fn stated(out: &FigureResults) -> String {
    if out.stated.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>What the paper says, and this run</h2><div class=\"wide\"><table><thead><tr><th>what</th><th>paper</th>\
         <th>where it stands</th><th>here</th><th>which is</th></tr></thead><tbody>",
    );
    for s in &out.stated {
        let _ = write!(
            html,
            "<tr><th>{}</th><td>{} {}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&s.what),
            s.paper,
            escape(&s.unit),
            escape(&s.place),
            s.here.map_or("-".to_string(), number),
            escape(&s.here_is)
        );
    }
    html + "</tbody></table></div>"
}

#[cfg(test)]
mod tests {
    use super::super::results::{Point, Series};
    use super::*;

    #[test]
    fn nothing_escapes_and_every_element_is_closed() {
        let series = vec![Series {
            name: "<b>evil".into(),
            how: "in process".into(),
            predicted: false,
            points: vec![Point::of(1.0, &[2.0, 3.0]), Point::of(2.0, &[5.0])],
        }];
        let panel = Panel { name: "a/..\"".into(), title: "<script>".into(), series, ..Panel::default() };
        let out = FigureResults { figure: "max-6".into(), panels: vec![panel], ..FigureResults::default() };
        let html = page(&out, Some(Path::new("x/page.html")));
        assert!(!html.contains("<script") && !html.contains("<b>evil"));
        assert!(html.contains("page-a----.svg") && html.contains("page.csv"), "{html}");
        for element in ["figure", "svg", "div", "dl", "p", "main", "body", "html"] {
            let opened =
                html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
            assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "{element}");
        }
    }
}
