//! The command: explores, runs in parts, adds up, reports, and holds the result against the
//! ratchet.

use super::call::Call;
use super::overlap::{self, Conflict};
use super::run::{Order, Rig};
use super::symbol::Symbols;
use super::tally::{Found, Pair, Ratchet, Tally};
use super::test_case::Test;
use super::{backtraces, enumerate, judge, lackey, report, views};
use clap::Parser;
use lanefs_lab_model::harness::{Jobs, Output, this_program};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

/// Tests of a pair that are run if nothing else is asked for.
pub const SAMPLE: usize = 120;

/// The number of times that a conflict must come again to count.
pub(crate) const AGAIN: usize = 3;

/// The same for fields that share a line and no byte. Two blocks that are allocated one after the
/// other stay neighbours wherever the heap is, and share a line in up to three of its four places:
/// three more runs would take four in ten of such pairs for fields of one structure.
const AGAIN_BY_LINE: usize = 20;

/// The options of the command.
#[derive(Clone, Debug, Parser)]
#[command(no_binary_name = true)]
pub struct Options {
    /// At most so many tests of a pair; 0: all
    #[arg(long, value_name = "N")]
    pub sample: Option<usize>,
    /// This pair alone
    #[arg(long, value_name = "A,B", value_parser = pair)]
    pub pair: Option<(Call, Call)>,
    /// This test of the pair alone, with backtraces
    #[arg(long, value_name = "K")]
    pub test: Option<usize>,
    /// Write a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the backtraces of each class, not only write them to the files
    #[arg(long)]
    pub backtraces: bool,
    /// The file that says what is accepted
    #[arg(long, value_name = "FILE")]
    pub ratchet: Option<PathBuf>,
    /// Write what was found to the ratchet
    #[arg(long)]
    pub accept: bool,
    /// Put a counter in that every call writes
    #[arg(long)]
    pub plant: bool,
    /// Part of a run, this one of so many: its tally goes to standard output
    #[arg(long, value_name = "I/N", value_parser = part)]
    pub part: Option<(usize, usize)>,
    /// Trace so many tests by valgrind too, and compare
    #[arg(long, value_name = "N")]
    pub lackey: Option<usize>,
    /// The program under valgrind: the test comes by standard input
    #[arg(long, hide = true)]
    pub lackey_child: bool,
    /// Add up the answers of parts instead of running anything; may be given several times
    #[arg(long, value_name = "FILE")]
    pub add: Vec<PathBuf>,
    /// Processes.
    #[command(flatten)]
    pub jobs: Jobs,
    /// Results.
    #[command(flatten)]
    pub output: Output,
}

fn pair(words: &str) -> Result<(Call, Call), String> {
    let (x, y) = words.split_once(',').ok_or("two calls with a comma between them")?;
    let find = |n: &str| Call::named(n).ok_or(format!("no call {n:?}"));
    let (x, y) = (find(x)?, find(y)?);
    Ok((x.min(y), x.max(y)))
}

fn part(words: &str) -> Result<(usize, usize), String> {
    let (x, y) = words.split_once('/').ok_or("two numbers with a slash between them")?;
    let number = |v: &str| v.parse::<usize>().map_err(|e| e.to_string());
    Ok((number(x)?, number(y)?.max(1)))
}

/// Asks for small pages: thousands of short-lived volumes touch little of the memory they map, and
/// clearing large pages took a third of the time.
pub fn prefer_small_pages() {
    // SAFETY: sets an attribute of this process; no memory is touched.
    let _ = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Does what was asked for; true if the ratchet holds.
pub fn main(o: &Options) -> Result<bool, String> {
    if o.lackey_child {
        return lackey::child().map(|()| true);
    }
    if let Some(n) = o.lackey {
        return lackey::check(n, &ratchet_of(o)?, &o.output);
    }
    if let Some(test) = o.test {
        return backtraces::explain(o, test).map(|()| true);
    }
    if let Some(part) = o.part {
        let tally = run_part(o, part)?;
        let out = std::io::stdout();
        return serde_json::to_writer(out.lock(), &tally).map(|()| true).map_err(|e| e.to_string());
    }
    let begin = std::time::Instant::now();
    let mut tally = Tally::default();
    for part in run_all(o)? {
        tally.add(part);
    }
    tally.seconds = begin.elapsed().as_secs_f64();
    tally.sample = sample_of(o);
    let order: BTreeMap<String, usize> =
        Call::pairs().enumerate().map(|(i, p)| (format!("{},{}", p.0.name(), p.1.name()), i)).collect();
    tally.pairs.sort_by_key(|p| order.get(&format!("{},{}", p.a, p.b)).copied());
    tally.views = views::of(&tally);
    tally.classes.sort_by_key(|c| std::cmp::Reverse(c.tests_bytes + c.tests_lines));
    let mut ratchet = ratchet_of(o)?;
    for c in &mut tally.classes {
        c.why = ratchet.classes.get(&c.field).cloned().unwrap_or_default();
    }
    if o.backtraces || o.output.json.is_some() || o.html.is_some() {
        backtraces::add(&mut tally, &backtraces::rig(o)?);
    }
    report::terminal(&tally, o.backtraces);
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    o.output.write_file(&tally)?;
    if let Some(path) = &o.html {
        write(path, report::html(&tally))?;
    }
    let broken = ratchet.broken_by(&tally);
    if o.accept {
        ratchet.accept(&tally);
        if let Some(path) = &o.ratchet {
            let text = serde_json::to_string_pretty(&ratchet).map_err(|e| e.to_string())?;
            write(path, text + "\n")?;
        }
        return Ok(tally.errors.is_empty());
    }
    for b in broken.iter().take(40) {
        println!("worse than before: {b}");
    }
    Ok(broken.is_empty())
}

/// Reads the conflicts that are accepted; there are none if there is no such file.
fn ratchet_of(o: &Options) -> Result<Ratchet, String> {
    match &o.ratchet {
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display())),
            Err(_) => Ok(Ratchet::default()),
        },
        None => Ok(Ratchet::default()),
    }
}

fn sample_of(o: &Options) -> usize {
    match o.sample {
        Some(0) => usize::MAX,
        Some(n) => n,
        None if o.pair.is_some() => usize::MAX,
        None => SAMPLE,
    }
}

/// Runs the parts, each in a process of its own: the collector of memory and the allocator are one
/// per process.
fn run_all(o: &Options) -> Result<Vec<Tally>, String> {
    if !o.add.is_empty() {
        let read = |p: &PathBuf| {
            let text = std::fs::read_to_string(p).map_err(|e| format!("{}: {e}", p.display()))?;
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", p.display()))
        };
        return o.add.iter().map(read).collect();
    }
    let mut children = Vec::new();
    for i in 0..o.jobs.get() {
        let mut c = this_program("conflicts")?;
        c.arg("--part").arg(format!("{i}/{}", o.jobs.get())).stdout(Stdio::piped());
        if let Some(n) = o.sample {
            c.arg("--sample").arg(n.to_string());
        }
        if let Some((a, b)) = o.pair {
            c.arg("--pair").arg(format!("{},{}", a.name(), b.name()));
        }
        if o.plant {
            c.arg("--plant");
        }
        children.push(c.spawn().map_err(|e| e.to_string())?);
    }
    let wait = |c: std::process::Child| {
        let out = c.wait_with_output().map_err(|e| e.to_string())?;
        if !out.status.success() {
            return Err(format!("a part ended with {}", out.status));
        }
        serde_json::from_slice(&out.stdout).map_err(|e| format!("a part answered nonsense: {e}"))
    };
    // All are waited for before any failure is told.
    let done: Vec<Result<Tally, String>> = children.into_iter().map(wait).collect();
    done.into_iter().collect()
}

/// A mixed-up order of tests, the same in every run, so that a smaller sample is part of a larger
/// one.
fn rank(n: usize) -> u64 {
    let mut z = (n as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

fn run_part(o: &Options, (part, parts): (usize, usize)) -> Result<Tally, String> {
    let mut rig = Rig::new()?;
    rig.plant = o.plant;
    let mut symbols = Symbols::default();
    let mut tally = Tally::default();
    let sample = sample_of(o);
    for (i, calls) in Call::pairs().enumerate() {
        if o.pair.is_some_and(|p| p != calls) || o.pair.is_none() && i % parts != part {
            continue;
        }
        let mut tests = enumerate::tests(calls, &rig.names)?.tests;
        let known = tests.len();
        tests.sort_by_key(|t| rank(t.number));
        tests.truncate(sample);
        if o.pair.is_some() {
            // One pair: its tests are divided.
            let mut n = 0;
            tests.retain(|_| {
                n += 1;
                n % parts == part
            });
        }
        let mut p = Pair {
            a: calls.0.name().into(),
            b: calls.1.name().into(),
            known: if o.pair.is_some() && part > 0 { 0 } else { known },
            ..Pair::default()
        };
        for t in &tests {
            run_test(&rig, t, &mut symbols, &mut tally, &mut p);
        }
        tally.known += p.known;
        tally.pairs.push(p);
    }
    Ok(tally)
}

/// Field, sites and whether bytes are shared, of one order's conflicts.
type Fields = BTreeMap<String, (bool, [String; 2])>;

fn fields(order: &Order, symbols: &mut Symbols) -> Fields {
    let mut out = Fields::new();
    for c in overlap::explain(&order.recordings[0], &order.recordings[1], &order.shared) {
        let (field, sites) = name(&c, symbols);
        let e = out.entry(field).or_insert((c.bytes, sites));
        e.0 |= c.bytes;
    }
    out
}

/// The field that a conflict is about: what the writer's line names, else the other's.
pub(crate) fn name(c: &Conflict, symbols: &mut Symbols) -> (String, [String; 2]) {
    let (x, y) = (symbols.site(&c.a), symbols.site(&c.b));
    let (first, second) = if c.a.kind & super::trace::WRITE != 0 { (&x, &y) } else { (&y, &x) };
    let mut field = first.field.clone().or(second.field.clone()).unwrap_or_else(|| first.function.clone());
    if !c.bytes {
        // Neighbours on a line: both names.
        let of = |s: &super::symbol::Site| s.field.clone().unwrap_or_else(|| s.function.clone());
        let (a, b) = (of(first), of(second));
        field = if a <= b { format!("{a} | {b}") } else { format!("{b} | {a}") };
    }
    let say = |s: &super::symbol::Site, kind: u16| {
        let how = if kind & super::trace::WRITE != 0 { "writes" } else { "reads" };
        format!("{} {how} ({})", s.function, s.place)
    };
    (field, [say(&x, c.a.kind), say(&y, c.b.kind)])
}

fn run_test(rig: &Rig, t: &Test, symbols: &mut Symbols, tally: &mut Tally, p: &mut Pair) {
    let mut found = Fields::new();
    let plant = if rig.plant { " --plant" } else { "" };
    let label = format!("--pair {},{} --test {}{plant}", p.a, p.b, t.number);
    for first in 0..2 {
        let order = match rig.run(t, first, true, true) {
            Ok(o) => o,
            Err(e) => {
                tally.errors.push(format!("{label}, call {first} first: {e}"));
                continue;
            }
        };
        if !order.shared.by_lines() {
            continue;
        }
        let mut now = fields(&order, symbols);
        // What does not come again each time is work done for many, now and then, or two blocks
        // side by side on the heap by chance.
        for shift in 1..=AGAIN_BY_LINE {
            if now.is_empty() || shift > AGAIN && now.values().all(|f| f.0) {
                break;
            }
            let Ok(again) = rig.run_elsewhere(t, first, true, false, shift) else { break };
            let again = fields(&again, symbols);
            let comes_again = |f: &String, bytes: bool| again.contains_key(f) || bytes && shift > AGAIN;
            for (f, _) in now.iter().filter(|(f, found)| !comes_again(f, found.0)) {
                tally.now_and_then(f, 1, &label);
            }
            now.retain(|f, found| comes_again(f, found.0));
        }
        for (f, (bytes, sites)) in now {
            found.entry(f).or_insert((bytes, sites)).0 |= bytes;
        }
    }
    p.tests += 1;
    tally.tests += 1;
    let bytes = found.values().any(|f| f.0);
    let mut stamps = false;
    match judge::stamps_one_inode(t) {
        Ok(stamped) => {
            stamps = stamped;
            p.stamped.tests += usize::from(stamped);
            p.stamped.bytes += usize::from(stamped && bytes);
            p.stamped.lines += usize::from(stamped && !found.is_empty());
        }
        Err(e) => tally.errors.push(format!("{label}: {e}")),
    }
    p.conflicting_bytes += usize::from(bytes);
    p.conflicting_lines += usize::from(!found.is_empty());
    tally.free_by_bytes += usize::from(!bytes);
    tally.free_by_lines += usize::from(found.is_empty());
    if !found.is_empty() {
        let of = |shared| found.iter().filter(|f| f.1.0 == shared).map(|f| f.0.clone()).collect();
        tally.found.push(Found { test: label.clone(), stamped: stamps, bytes: of(true), lines: of(false) });
    }
    for (f, (bytes, sites)) in found {
        let c = tally.class(&f);
        if bytes {
            c.tests_bytes += 1;
        } else {
            c.tests_lines += 1;
        }
        *c.pairs.entry(format!("{},{}", p.a, p.b)).or_default() += 1;
        if c.example.is_empty() {
            (c.example, c.sites) = (label.clone(), sites);
        }
    }
    match rig.run(t, 0, false, false) {
        Ok(o) => {
            p.cold_bytes += usize::from(o.shared.by_bytes());
            p.cold_lines += usize::from(o.shared.by_lines());
            tally.cold_free_by_bytes += usize::from(!o.shared.by_bytes());
            tally.cold_free_by_lines += usize::from(!o.shared.by_lines());
        }
        Err(e) => tally.errors.push(format!("{label}, cold: {e}")),
    }
}
