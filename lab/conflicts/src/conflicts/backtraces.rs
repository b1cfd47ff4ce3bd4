//! The backtraces of each class of conflict. While thousands of tests run, only the two sites of an
//! access are kept; afterwards the example of each class is run again with the callers of every
//! access.

use super::call::Call;
use super::drive::{AGAIN, Options, name};
use super::enumerate;
use super::overlap::{self, Conflict};
use super::run::{Order, Rig};
use super::symbol::Symbols;
use super::tally::{Class, Tally};
use super::trace::{Access, WRITE};
use clap::Parser;
use serde::Serialize;
use std::collections::BTreeMap;

/// Makes the rig that runs tests and keeps the callers of every access.
pub fn rig(o: &Options) -> Result<Rig, String> {
    let mut rig = Rig::new()?;
    (rig.stacks, rig.plant) = (true, o.plant);
    Ok(rig)
}

/// Gives each class its backtraces, or a note that says why it has none.
pub fn add(tally: &mut Tally, rig: &Rig) {
    let mut wanted: BTreeMap<(Call, Call), BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for (i, c) in tally.classes.iter_mut().enumerate() {
        match test_of(&c.example) {
            Ok((pair, number)) => wanted.entry(pair).or_default().entry(number).or_default().push(i),
            Err(e) => c.backtraces_note = format!("{:?}: {e}", c.example),
        }
    }
    let mut symbols = Symbols::default();
    for (pair, numbers) in wanted {
        // The tests of one pair at a time: all of them do not fit into the memory of a small
        // machine.
        let tests = enumerate::tests(pair, &rig.names).map(|p| p.tests);
        for (number, indexes) in numbers {
            let mut search = Search::new(indexes.iter().map(|i| &tally.classes[*i]));
            match &tests {
                Err(e) => search.failed = Some(e.clone()),
                Ok(tests) => match tests.get(number) {
                    None => search.failed = Some(format!("the pair has {} tests", tests.len())),
                    Some(t) => search
                        .run(&mut symbols, |first, shift| rig.run_elsewhere(t, first, true, false, shift)),
                },
            }
            for (i, (backtraces, note)) in indexes.into_iter().zip(search.end()) {
                (tally.classes[i].backtraces, tally.classes[i].backtraces_note) = (backtraces, note);
            }
        }
    }
}

/// The pair and the number in the arguments that run a test.
fn test_of(example: &str) -> Result<((Call, Call), usize), String> {
    let words: Vec<String> = example.split_whitespace().map(str::to_string).collect();
    let o = Options::try_parse_from(words).map_err(|e| e.to_string())?;
    Ok((o.pair.ok_or("no --pair")?, o.test.ok_or("no --test")?))
}

/// A conflict that was looked for.
#[derive(Debug)]
struct Wanted {
    field: String,
    sites: [String; 2],
    shown: Option<Shown>,
}

/// The backtraces of a conflict that was seen again.
#[derive(Debug)]
struct Shown {
    backtraces: [Vec<String>; 2],
    first: usize,
    shift: usize,
    /// At the sites that the class names.
    exact: bool,
}

/// Looks for the conflicts of one test.
#[derive(Debug)]
struct Search {
    wanted: Vec<Wanted>,
    failed: Option<String>,
}

/// Both backtraces, innermost first, and what is to be said of them.
type Found = (Vec<Vec<String>>, String);

impl Search {
    fn new<'a>(classes: impl Iterator<Item = &'a Class>) -> Search {
        let want = |c: &Class| Wanted { field: c.field.clone(), sites: c.sites.clone(), shown: None };
        Search { wanted: classes.map(want).collect(), failed: None }
    }

    /// Runs a test in both orders, and elsewhere on the heap as long as something was not seen at
    /// all. `run` takes who is first, and the place.
    fn run(&mut self, symbols: &mut Symbols, run: impl Fn(usize, usize) -> Result<Order, String>) {
        for (shift, first) in (0..=AGAIN).flat_map(|shift| [(shift, 0), (shift, 1)]) {
            let done = |w: &Wanted| w.shown.as_ref().is_some_and(|s| s.exact || shift > 0);
            if self.wanted.iter().all(done) {
                return;
            }
            match run(first, shift) {
                Ok(order) => {
                    let [a, b] = &order.recordings;
                    for c in overlap::explain(a, b, &order.shared) {
                        let (field, sites) = name(&c, symbols);
                        self.see(&field, &sites, (first, shift), || traces(&c, &order, symbols));
                    }
                }
                Err(e) => self.failed = Some(e),
            }
        }
    }

    /// Notes a conflict if it is looked for and was not yet seen as well as here.
    fn see(
        &mut self,
        field: &str,
        sites: &[String; 2],
        (first, shift): (usize, usize),
        backtraces: impl FnOnce() -> [Vec<String>; 2],
    ) {
        let Some(w) = self.wanted.iter_mut().find(|w| w.field == field) else { return };
        let exact = w.sites == *sites;
        if w.shown.as_ref().is_none_or(|s| exact && !s.exact) {
            w.shown = Some(Shown { backtraces: backtraces(), first, shift, exact });
        }
    }

    fn end(self) -> Vec<Found> {
        let failed = self.failed;
        let say = |w: Wanted| match w.shown {
            Some(s) => {
                let mut note = format!("lane {} first", s.first);
                if s.shift > 0 {
                    note += ", with the volume elsewhere on the heap";
                }
                if !s.exact {
                    note += "; at other places than the two sites of the run, which did not come again";
                }
                (s.backtraces.into(), note)
            }
            None => {
                let why = failed.as_ref().map_or(String::new(), |e| format!(": {e}"));
                (
                    vec![],
                    format!(
                        "the conflict did not come again when the example was run for its backtraces{why}"
                    ),
                )
            }
        };
        self.wanted.into_iter().map(say).collect()
    }
}

/// One test in both orders.
#[derive(Debug, Serialize)]
struct Explained {
    /// The arguments that run it again.
    test: String,
    /// Lane and call of each step of the set-up.
    setup: Vec<(usize, String)>,
    /// The calls of the two lanes.
    calls: [String; 2],
    conflicts: Vec<Line>,
}

/// A shared line.
#[derive(Debug, Serialize)]
struct Line {
    /// The lane whose call was first.
    first: usize,
    field: String,
    /// They share a byte, not only the line.
    bytes: bool,
    /// Of lane 0 and of lane 1.
    accesses: [String; 2],
    /// The same, innermost first.
    backtraces: [Vec<String>; 2],
}

/// Runs one test and tells each shared line with its backtraces.
pub fn explain(o: &Options, number: usize) -> Result<(), String> {
    let calls = o.pair.ok_or("--test goes with --pair")?;
    let rig = rig(o)?;
    let tests = enumerate::tests(calls, &rig.names)?.tests;
    let t = tests.get(number).ok_or(format!("the pair has {} tests", tests.len()))?;
    let mut symbols = Symbols::default();
    let steps = t.setup.iter().flat_map(|(lane, ops)| ops.iter().map(|op| (*lane, format!("{op:?}"))));
    let mut e = Explained {
        test: format!("--pair {},{} --test {number}", calls.0.name(), calls.1.name()),
        setup: steps.collect(),
        calls: [0, 1].map(|who| format!("{:?}", t.ops[who])),
        conflicts: vec![],
    };
    println!("set-up:");
    for (lane, op) in &e.setup {
        println!("  lane {lane}: {op}");
    }
    println!("lane 0: {}\nlane 1: {}", e.calls[0], e.calls[1]);
    for first in 0..2 {
        println!("\n{} first:", ["lane 0", "lane 1"][first]);
        let order = rig.run(t, first, true, true)?;
        if !order.shared.by_lines() {
            println!("  no line is shared with a write");
        }
        for c in overlap::explain(&order.recordings[0], &order.recordings[1], &order.shared) {
            let line = Line::of(&c, first, &order, &mut symbols);
            line.print(c.a.addr);
            e.conflicts.push(line);
        }
    }
    o.output.write_file(&e)
}

impl Line {
    fn of(c: &Conflict, first: usize, order: &Order, symbols: &mut Symbols) -> Line {
        let (field, _) = name(c, symbols);
        let say = |x: &Access| {
            let kind = if x.kind & WRITE != 0 { "writes" } else { "reads" };
            format!("{kind} {} bytes at {:#x}", x.size, x.addr)
        };
        let backtraces = traces(c, order, symbols);
        Line { first, field, bytes: c.bytes, accesses: [say(&c.a), say(&c.b)], backtraces }
    }

    fn print(&self, addr: usize) {
        let what = if self.bytes { "the same bytes" } else { "the same line" };
        println!("  {} at {addr:#x}: {what}", self.field);
        for (lane, (access, frames)) in self.accesses.iter().zip(&self.backtraces).enumerate() {
            println!("    lane {lane} {access}");
            frames.iter().for_each(|f| println!("      {f}"));
        }
    }
}

fn traces(c: &Conflict, order: &Order, symbols: &mut Symbols) -> [Vec<String>; 2] {
    let [a, b] = &order.recordings;
    [symbols.backtrace(&a.callers(&c.a)), symbols.backtrace(&b.callers(&c.b))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(field: &str, sites: [&str; 2]) -> Class {
        Class { field: field.into(), sites: sites.map(str::to_string), ..Class::default() }
    }

    fn sites(s: [&str; 2]) -> [String; 2] {
        s.map(str::to_string)
    }

    fn both(s: &str) -> [Vec<String>; 2] {
        [vec![format!("{s} of lane 0")], vec![format!("{s} of lane 1")]]
    }

    #[test]
    fn an_example_names_its_test() {
        assert_eq!(test_of("--pair stat,access --test 7"), Ok(((Call::Stat, Call::Access), 7)));
        assert!(test_of("").is_err());
        assert!(test_of("--pair stat,access").is_err());
        assert!(test_of("--pair stat,nothing --test 1").is_err());
    }

    #[test]
    fn the_sites_of_the_run_are_better_than_others() {
        let classes = [class("A.b", ["x", "y"]), class("C.d", ["x", "y"])];
        let mut s = Search::new(classes.iter());
        s.see("A.b", &sites(["x", "z"]), (0, 0), || both("other"));
        s.see("E.f", &sites(["x", "y"]), (0, 0), || unreachable!("nobody looks for it"));
        s.see("A.b", &sites(["x", "y"]), (1, 0), || both("same"));
        s.see("A.b", &sites(["x", "y"]), (1, 1), || unreachable!("it was seen so already"));
        s.see("A.b", &sites(["z", "y"]), (1, 2), || unreachable!("it was seen better already"));
        s.failed = Some("no memory".into());
        let end = s.end();
        assert_eq!(end[0], (both("same").into(), "lane 1 first".to_string()));
        assert!(end[1].0.is_empty() && end[1].1.ends_with("its backtraces: no memory"), "{}", end[1].1);
    }

    #[test]
    fn what_was_seen_elsewhere_says_so() {
        let classes = [class("A.b", ["x", "y"])];
        let mut s = Search::new(classes.iter());
        s.see("A.b", &sites(["x", "z"]), (0, 2), || both("other"));
        let (found, note) = s.end().remove(0);
        assert_eq!(found, both("other"));
        assert!(note.starts_with("lane 0 first, with the volume elsewhere") && note.contains("other places"));
    }

    #[test]
    fn a_failing_run_is_tried_in_every_order_and_place() {
        let classes = [class("A.b", ["x", "y"])];
        let mut s = Search::new(classes.iter());
        let tried = std::cell::RefCell::new(Vec::new());
        s.run(&mut Symbols::default(), |first, shift| {
            tried.borrow_mut().push((first, shift));
            Err("it fails".into())
        });
        assert_eq!(tried.borrow().len(), 2 * (AGAIN + 1));
        assert_eq!(tried.borrow()[..3], [(0, 0), (1, 0), (0, 1)]);
        assert!(s.end()[0].1.ends_with("it fails"));
    }
}
