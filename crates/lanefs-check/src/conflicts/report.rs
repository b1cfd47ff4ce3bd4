//! The heat map: calls by calls, in the terminal and as a page.

use super::call::Call;
use super::tally::{Pair, Tally};
use std::collections::BTreeMap;
use std::fmt::Write;

fn percent(part: usize, all: usize) -> f64 {
    if all == 0 { 100.0 } else { part as f64 * 100.0 / all as f64 }
}

fn calls(t: &Tally) -> Vec<&'static str> {
    let used = |c: &Call| t.pairs.iter().any(|p| p.a == c.name() || p.b == c.name());
    Call::ALL.iter().filter(|c| used(c)).map(|c| c.name()).collect()
}

fn by_name(t: &Tally) -> BTreeMap<(&str, &str), &Pair> {
    t.pairs.iter().map(|p| ((p.a.as_str(), p.b.as_str()), p)).collect()
}

/// Prints the heat map, the classes and the sums.
pub fn terminal(t: &Tally) {
    let (names, map) = (calls(t), by_name(t));
    println!("tests that share a line with a write, of each pair (. none, - no commutative test)\n");
    for (i, a) in names.iter().enumerate() {
        print!("{a:>11}");
        for b in &names[..=i] {
            match map.get(&(*b, *a)).or(map.get(&(*a, *b))) {
                Some(p) if p.tests == 0 => print!("   -"),
                Some(p) if p.conflicting_lines == 0 => print!("   ."),
                Some(p) => print!("{:>4}", p.conflicting_lines),
                None => print!("    "),
            }
        }
        println!();
    }
    print!("{:>11}", "");
    for n in &names {
        print!(" {:>3}", &n[..n.len().min(3)]);
    }
    println!("\n");
    for c in &t.classes {
        println!("{:>6} tests by bytes, {:>6} by the line alone: {}", c.tests_bytes, c.tests_lines, c.field);
        println!("{:>12} {}\n{:>12} {}", "", c.sites[0], "", c.sites[1]);
        println!("{:>12} cargo xtask conflicts {} --json FILE", "", c.example);
        if !c.why.is_empty() {
            println!("{:>12} kept: {}", "", c.why);
        }
    }
    for (f, n) in &t.sporadic {
        println!("now and then ({n} times): {f}");
    }
    for e in t.errors.iter().take(10) {
        println!("differs from the model: {e}");
    }
    println!(
        "\n{} commutative tests of {} run; free of conflicts, warm: {} by bytes ({:.2} %), {} by lines ({:.2} %); cold, one order: \
         {:.2} % and {:.2} %; {} differ from the model; {:.0} s",
        t.tests,
        t.known,
        t.free_by_bytes,
        percent(t.free_by_bytes, t.tests),
        t.free_by_lines,
        percent(t.free_by_lines, t.tests),
        percent(t.cold_free_by_bytes, t.tests),
        percent(t.cold_free_by_lines, t.tests),
        t.errors.len(),
        t.seconds
    );
    for v in &t.views {
        println!(
            "{:>7.2} % by bytes {:>7.2} % by lines of {:>6} tests: {}",
            v.free_by_bytes, v.free_by_lines, v.tests, v.name
        );
    }
}

fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The page: one file, nothing loaded from elsewhere.
pub fn html(t: &Tally) -> String {
    let (names, map) = (calls(t), by_name(t));
    let (cell, left, top) = (26, 90, 80);
    let size = names.len() * cell;
    let mut s = String::new();
    let _ = write!(
        s,
        "<!doctype html><meta charset=utf-8><title>LaneFS: conflicts</title><style>body{{font:14px sans-serif;margin:2em}}\
         text{{font:11px sans-serif}}td,th{{text-align:left;padding:2px 10px;vertical-align:top}}code{{font-size:12px}}</style>\
         <h1>Operations that commute and share a cache line</h1><p>{} commutative tests ({} known). Free of conflicts, warm: \
         {:.2} % by bytes, {:.2} % by lines of 64 bytes.</p><svg width={} height={} role=img>",
        t.tests,
        t.known,
        percent(t.free_by_bytes, t.tests),
        percent(t.free_by_lines, t.tests),
        left + size + 20,
        top + size + 20
    );
    for (i, a) in names.iter().enumerate() {
        let y = top + i * cell;
        let _ = write!(s, "<text x={} y={} text-anchor=end>{a}</text>", left - 6, y + 17);
        let x = left + i * cell + 16;
        let _ = write!(s, "<text transform=\"translate({x} {}) rotate(-60)\">{a}</text>", top - 6 + i * cell);
        for (j, b) in names[..=i].iter().enumerate() {
            let Some(p) = map.get(&(*b, *a)).or(map.get(&(*a, *b))) else { continue };
            let share = if p.tests == 0 { 0.0 } else { p.conflicting_lines as f64 / p.tests as f64 };
            let color = match p.conflicting_lines {
                _ if p.tests == 0 => "#eee".to_string(),
                0 => "#7bc47f".to_string(),
                _ => format!("hsl({:.0} 80% 60%)", 50.0 * (1.0 - share)),
            };
            let x = left + j * cell;
            let _ = write!(
                s,
                "<rect x={x} y={y} width={} height={} fill=\"{color}\"><title>{b} and {a}: {} tests, {} share bytes, {} share lines\
                 </title></rect>",
                cell - 2,
                cell - 2,
                p.tests,
                p.conflicting_bytes,
                p.conflicting_lines
            );
            if p.conflicting_lines > 0 {
                let _ = write!(
                    s,
                    "<text x={} y={} text-anchor=middle>{}</text>",
                    x + 12,
                    y + 17,
                    p.conflicting_lines
                );
            }
        }
    }
    s.push_str(
        "</svg><h2>By field</h2><table><tr><th>field<th>tests<th>accesses<th>again<th>kept because</tr>",
    );
    for c in &t.classes {
        let _ = write!(
            s,
            "<tr><td><code>{}</code><td>{} by bytes, {} by the line<td>{}<br>{}<td><code>cargo xtask conflicts {} --json FILE</code><td>{}</tr>",
            escape(&c.field),
            c.tests_bytes,
            c.tests_lines,
            escape(&c.sites[0]),
            escape(&c.sites[1]),
            escape(&c.example),
            escape(&c.why)
        );
    }
    s.push_str("</table>\n");
    s
}
