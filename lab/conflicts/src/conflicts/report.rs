//! The heat map: calls by calls, in the terminal and as a page.

use super::call::Call;
use super::tally::{Class, Pair, Tally};
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

/// Prints the heat map, the classes, with their backtraces if these are wanted, and the sums.
pub fn terminal(t: &Tally, backtraces: bool) {
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
        println!("{:>12} cargo xtask conflicts {}", "", c.example);
        if !c.why.is_empty() {
            println!("{:>12} kept: {}", "", c.why);
        }
        if backtraces {
            println!("{:>12} {}", "", c.backtraces_note);
            for (lane, frames) in c.backtraces.iter().enumerate() {
                println!("{:>12} lane {lane}:", "");
                frames.iter().for_each(|f| println!("{:>14} {f}", ""));
            }
        }
    }
    for (f, n) in &t.sporadic {
        let example = t.sporadic_examples.get(f).map_or(String::new(), |e| format!(" ({e})"));
        println!("now and then ({n} times): {f}{example}");
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

const STYLE: &str = "body{font:15px/1.45 sans-serif;margin:0 auto;padding:1em;max-width:1100px;color:#222}\
    h1{font-size:1.5em}h2{margin-top:1.6em}h3{font-size:1em;margin:0 0 .3em}code{font-size:.9em;overflow-wrap:anywhere}\
    svg text{font:11px sans-serif}.map{display:flex;overflow-x:auto}.map svg{flex:none}\
    .map .names{position:sticky;left:0;background:#fff}.class{border-top:1px solid #ccc;padding:.8em 0}\
    .class p{margin:.2em 0}.count{font-weight:normal;color:#555}.why{color:#555}details{margin:.3em 0}\
    summary{cursor:pointer}li code{font-size:.8em}ol{margin:.2em 0 .8em;padding-left:2em}table{border-collapse:collapse}\
    td,th{text-align:left;padding:2px 12px 2px 0;vertical-align:top}td.n{text-align:right;white-space:nowrap}\
    .key span{display:inline-block;padding:0 .6em;margin:0 .4em .2em 0;border-radius:3px}";

/// The page: one file, nothing loaded from elsewhere.
pub fn html(t: &Tally) -> String {
    let mut s = String::new();
    let _ = write!(
        s,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>LaneFS: conflicts</title><style>{STYLE}</style><h1>Operations that commute and share a cache line</h1>\
         <p>{} commutative tests of {} were run. Free of conflicts, warm: {:.2} % by bytes, {:.2} % by lines of 64 bytes. \
         {} differ from the model.</p><p class=key>Tests of each pair that share a line: <span style=\"background:{FREE}\">none</span>\
         <span style=\"background:{}\">some</span><span style=\"background:{}\">half</span><span style=\"background:{}\">all</span>\
         <span style=\"background:{NO_TEST}\">no test that commutes</span></p>",
        t.tests,
        t.known,
        percent(t.free_by_bytes, t.tests),
        percent(t.free_by_lines, t.tests),
        t.errors.len(),
        color(1, 100),
        color(1, 2),
        color(1, 1),
    );
    heat_map(&mut s, t);
    if !t.views.is_empty() {
        s.push_str("<h2>The sums</h2><table><tr><th>by bytes<th>by lines<th>of<th>which tests</tr>");
        for v in &t.views {
            let (bytes, lines) = (v.free_by_bytes, v.free_by_lines);
            let _ = write!(
                s,
                "<tr><td class=n>{bytes:.2} %<td class=n>{lines:.2} %<td class=n>{}<td>{}</tr>",
                v.tests,
                escape(&v.name)
            );
        }
        s.push_str("</table>");
    }
    s.push_str("<h2>By field</h2>");
    t.classes.iter().for_each(|c| class(&mut s, c));
    if !t.sporadic.is_empty() {
        s.push_str(
            "<h2>Now and then</h2><p>These did not come again when their test was run again: work that one operation does for many, or \
             blocks side by side on the heap.</p>",
        );
    }
    for (field, n) in &t.sporadic {
        let _ = write!(
            s,
            "<div class=class><h3><code>{}</code> <span class=count>{n} times</span></h3>",
            escape(field)
        );
        if let Some(e) = t.sporadic_examples.get(field) {
            let _ = write!(s, "<p><code>cargo xtask conflicts {}</code></p>", escape(e));
        }
        s.push_str("</div>");
    }
    s.push('\n');
    s
}

const FREE: &str = "#7bc47f";
const NO_TEST: &str = "#eee";

/// From yellow for few to red for all.
fn color(conflicting: usize, tests: usize) -> String {
    match conflicting {
        _ if tests == 0 => NO_TEST.into(),
        0 => FREE.into(),
        n => format!("hsl({:.0} 80% 60%)", 50.0 * (1.0 - n as f64 / tests as f64)),
    }
}

fn heat_map(s: &mut String, t: &Tally) {
    let (names, map) = (calls(t), by_name(t));
    let (cell, left, top) = (26, 14, 80);
    let size = names.len() * cell;
    // The names of the rows stay where they are when a narrow screen moves the map.
    let height = top + size + 70;
    let _ = write!(s, "<div class=map><svg class=names width=84 height={height} aria-hidden=true>");
    for (i, a) in names.iter().enumerate() {
        let _ = write!(s, "<text x=78 y={} text-anchor=end>{a}</text>", top + i * cell + 17);
    }
    // The names of the columns stand over the first cell of each and below the last; they reach to
    // the right, or to the left.
    let _ = write!(
        s,
        "</svg><svg width={} height={height} role=img aria-label=\"Tests that share a line, by pair of calls\">",
        left + size + 40
    );
    for (i, a) in names.iter().enumerate() {
        let y = top + i * cell;
        let x = left + i * cell + 16;
        let _ = write!(s, "<text transform=\"translate({x} {}) rotate(-60)\">{a}</text>", y - 6);
        let below = top + size + 8;
        let _ =
            write!(s, "<text transform=\"translate({x} {below}) rotate(-60)\" text-anchor=end>{a}</text>");
        for (j, b) in names[..=i].iter().enumerate() {
            let Some(p) = map.get(&(*b, *a)).or(map.get(&(*a, *b))) else { continue };
            let x = left + j * cell;
            let _ = write!(
                s,
                "<rect x={x} y={y} width={} height={} fill=\"{}\"><title>{b} and {a}: {} tests, {} share bytes, {} share lines\
                 </title></rect>",
                cell - 2,
                cell - 2,
                color(p.conflicting_lines, p.tests),
                p.tests,
                p.conflicting_bytes,
                p.conflicting_lines
            );
            if p.conflicting_lines > 0 {
                // The number lies over the cell; what the cell says is to be seen there too.
                let _ = write!(
                    s,
                    "<text x={} y={} text-anchor=middle pointer-events=none>{}</text>",
                    x + 12,
                    y + 17,
                    p.conflicting_lines
                );
            }
        }
    }
    s.push_str("</svg></div>");
}

fn class(s: &mut String, c: &Class) {
    let _ = write!(
        s,
        "<div class=class><h3><code>{}</code> <span class=count>{} tests by bytes, {} by the line alone</span></h3>\
         <p>{}<br>{}</p><p><code>cargo xtask conflicts {}</code></p>",
        escape(&c.field),
        c.tests_bytes,
        c.tests_lines,
        escape(&c.sites[0]),
        escape(&c.sites[1]),
        escape(&c.example)
    );
    if !c.why.is_empty() {
        let _ = write!(s, "<p class=why>Kept: {}</p>", escape(&c.why));
    }
    let pairs: Vec<String> =
        c.pairs.iter().map(|(p, n)| format!("{} ({n})", p.replace(',', " and "))).collect();
    let _ = write!(
        s,
        "<details><summary>{} pairs of calls</summary>{}</details>",
        pairs.len(),
        escape(&pairs.join(", "))
    );
    if c.backtraces.is_empty() {
        let _ = write!(s, "<p class=why>No backtraces: {}.</p>", escape(&c.backtraces_note));
    } else {
        let _ = write!(s, "<details><summary>Backtraces ({})</summary>", escape(&c.backtraces_note));
        for (lane, frames) in c.backtraces.iter().enumerate() {
            let _ = write!(s, "Lane {lane}, innermost first:<ol>");
            frames.iter().for_each(|f| {
                let _ = write!(s, "<li><code>{}</code>", escape(f));
            });
            s.push_str("</ol>");
        }
        s.push_str("</details>");
    }
    s.push_str("</div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_both_backtraces_or_says_why_not() {
        let mut t = Tally::default();
        let c = t.class("Cell.<x>");
        c.backtraces = vec![vec!["Vec<u8>::f (a.rs:1)".into()], vec!["g (b.rs:2)".into()]];
        c.backtraces_note = "lane 1 first".into();
        t.class("Cell.y").backtraces_note = "it did not come again".into();
        t.now_and_then("Cell.z", 3, "--pair stat,stat --test 5");
        let page = html(&t);
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} in {page}"));
        assert!(at("Backtraces (lane 1 first)") < at("Vec&lt;u8&gt;::f (a.rs:1)"));
        assert!(at("Vec&lt;u8&gt;::f (a.rs:1)") < at("g (b.rs:2)"));
        assert!(at("Cell.y") < at("No backtraces: it did not come again."));
        assert!(at("Cell.z") < at("cargo xtask conflicts --pair stat,stat --test 5"));
        assert!(!page.contains("<x>"), "what is no tag is escaped");
    }

    #[test]
    fn cells_without_tests_are_neither_free_nor_in_conflict() {
        assert_eq!((color(0, 0), color(0, 5)), (NO_TEST.into(), FREE.into()));
        assert_ne!(color(1, 100), color(1, 2));
    }
}
