//! The prediction in the terminal and as a page.

use super::drive::{Curve, Prediction};
use super::predict::{BehindPoint, Hot};
use std::fmt::Write;

/// Prints a workload as soon as it is known.
pub fn line(c: &Curve) {
    let last = c.points.last();
    print!("{:<5}", c.workload);
    for p in &c.points {
        print!(" {:>3}:{:>6.1}", p.lanes, p.speed_up);
    }
    match (c.measured.and_then(|m| m.speed_up_2), c.error_at_2) {
        (Some(m), Some(e)) => print!("  measured at 2: {m:.2}, error {:+.0} %", e * 100.0),
        _ => print!("  nothing measured"),
    }
    println!();
    if c.points.iter().any(|p| p.behind.is_some()) {
        print!("  with the background:");
        for (lanes, b) in c.points.iter().filter_map(|p| Some((p.lanes, p.behind.as_ref()?))) {
            print!(" {lanes:>3}:{:>6.1}", b.speed_up);
        }
        let b = last.and_then(|p| p.behind.as_ref());
        if let Some(b) = b {
            let BehindPoint { bound, transfers, waits_ns, background_waits_ns, .. } = b;
            println!(
                "  {bound:?}; {transfers:.2} transfers a unit, waits {waits_ns:.0} and {background_waits_ns:.0} ns"
            );
        }
        b.iter().for_each(|b| hottest(&b.hot));
    }
    last.iter().for_each(|p| hottest(&p.hot));
}

/// Prints the busiest lines.
fn hottest(lines: &[Hot]) {
    for h in lines.iter().take(3) {
        println!("        {:.3} transfers a unit, {:.0} ns: {}", h.transfers, h.busy_ns, h.field);
        println!("            {}\n            {}", h.sites[0], h.sites[1]);
    }
}

/// Prints what it is, and what failed.
pub fn summary(p: &Prediction) {
    println!(
        "\npredicted speed-up by lanes ({}); {} ns for a line within a socket of {} cores, {} ns from another",
        p.note, p.costs.near_ns, p.costs.socket, p.costs.far_ns
    );
    type Error = fn(&Curve) -> Option<f64>;
    let by: [(&str, Error); 2] = [("rate", |c| c.error_at_2), ("processor time", |c| c.error_at_2_cpu)];
    for (what, error) in by {
        let errors: Vec<f64> = p.curves.iter().filter_map(error).map(f64::abs).collect();
        if errors.is_empty() {
            continue;
        }
        let (sum, most) = errors.iter().fold((0.0, 0.0), |(s, m): (f64, f64), e| (s + e, m.max(*e)));
        println!(
            "against what was measured from one to two cores by {what}: mean error {:.0} %, largest {:.0} %, of {} workloads",
            100.0 * sum / errors.len() as f64,
            100.0 * most,
            errors.len()
        );
    }
    for f in &p.failures {
        println!("failed: {f}");
    }
}

fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// One curve: lanes to the right, speed-up upwards, both by powers of two.
fn svg(c: &Curve) -> String {
    let (w, h) = (220.0, 160.0);
    let at = |lanes: f64, up: f64| {
        (30.0 + lanes.log2() / 7.0 * (w - 40.0), h - 20.0 - up.max(0.5).log2() / 7.0 * (h - 40.0))
    };
    let mut s = format!("<svg width={w} height={h} role=img><title>{}</title>", escape(&c.about));
    for n in 0..8 {
        let v = f64::from(1 << n);
        let ((x, y), (x0, y0)) = (at(v, v), at(1.0, 1.0));
        let _ = write!(
            s,
            "<line x1={x:.0} y1={y0:.0} x2={x:.0} y2=20 class=g /><line x1={x0:.0} y1={y:.0} x2={} y2={y:.0} class=g />",
            w - 10.0
        );
        if n % 2 == 1 || n == 0 {
            let _ = write!(
                s,
                "<text x={x:.0} y={} text-anchor=middle>{v}</text><text x={} y={:.0} text-anchor=end>{v}</text>",
                h - 6.0,
                x0 - 4.0,
                y + 3.0
            );
        }
    }
    let ((x1, y1), (x2, y2)) = (at(1.0, 1.0), at(128.0, 128.0));
    let _ = write!(s, "<line x1={x1:.0} y1={y1:.0} x2={x2:.0} y2={y2:.0} class=i />");
    let mut curve = |class: char, points: Vec<(usize, f64)>| {
        let places = points.into_iter().map(|(lanes, up)| at(lanes as f64, up));
        let places: Vec<String> = places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(s, "<polyline points=\"{}\" class={class} />", places.join(" "));
    };
    curve('p', c.points.iter().map(|p| (p.lanes, p.speed_up)).collect());
    curve('b', c.points.iter().filter_map(|p| Some((p.lanes, p.behind.as_ref()?.speed_up))).collect());
    if let Some(m) = c.measured.and_then(|m| m.speed_up_2) {
        let (x, y) = at(2.0, m);
        let _ = write!(s, "<circle cx={x:.1} cy={y:.1} r=4 class=m><title>measured: {m:.2}</title></circle>");
    }
    let _ = write!(s, "<text x=32 y=14 class=t>{}</text></svg>", c.workload);
    s
}

/// The page: one file, nothing loaded from elsewhere.
pub fn html(p: &Prediction) -> String {
    let mut s = format!(
        "<!doctype html><meta charset=utf-8><title>LaneFS: predicted scaling</title><style>body{{font:14px sans-serif;margin:2em}}\
         text{{font:9px sans-serif}}.t{{font:bold 12px sans-serif}}.g{{stroke:#eee}}.i{{stroke:#bbb;stroke-dasharray:3}}\
         .p{{fill:none;stroke:#2a6fbb;stroke-width:2}}.b{{fill:none;stroke:#d80;stroke-width:2}}.m{{fill:#c33}}td,th{{text-align:left;padding:2px 10px;vertical-align:top}}</style>\
         <h1>Predicted scaling of FxMark's workloads</h1><p><b>This is {}.</b> Blue: the predicted speed-up by cores; orange: until the background has done its part, where that was asked for; dashed: ideal; red dot: what was \
         measured with two cores. A line costs {} ns within a socket of {} cores and {} ns from another socket.</p>",
        p.note, p.costs.near_ns, p.costs.socket, p.costs.far_ns
    );
    p.curves.iter().for_each(|c| s.push_str(&svg(c)));
    s.push_str("<h2>What bounds them at the most lanes</h2><table><tr><th>workload<th>speed-up<th>transfers a unit<th>waits<th>busiest line<th>its accesses</tr>");
    for c in &p.curves {
        let Some(last) = c.points.last() else { continue };
        let h = last.hot.first().cloned().unwrap_or_default();
        let _ = write!(
            s,
            "<tr><td>{}<td>{:.1} of {}{}<td>{:.2}<td>{:.0} ns<td><code>{}</code> {:.2} a unit, {:.0} ns<td>{}<br>{}</tr>",
            c.workload,
            last.speed_up,
            last.lanes,
            if last.bound_by_line { ", by the line" } else { "" },
            last.transfers,
            last.waits_ns,
            escape(&h.field),
            h.transfers,
            h.busy_ns,
            escape(&h.sites[0]),
            escape(&h.sites[1])
        );
    }
    s.push_str("</table>\n");
    s
}
