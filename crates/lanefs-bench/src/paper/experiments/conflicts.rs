//! ScaleFS figures 6 and 8: which commuting calls share a cache line, from what the conflict
//! checker (`cargo xtask conflicts`) wrote.

use crate::error::{Context, Failure, Res, say};
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Calls that make durable: a file system in memory only has none of them.
const DURABLE: [&str; 4] = ["fsync", "fdatasync", "sync", "checkpoint"];

/// What is read of the checker's results.
#[derive(Debug, Deserialize)]
struct Tally {
    pairs: Vec<Pair>,
    #[serde(default)]
    sample: Option<u64>,
}

/// Two calls.
#[derive(Debug, Deserialize)]
struct Pair {
    a: String,
    b: String,
    tests: usize,
    conflicting_bytes: usize,
    conflicting_lines: usize,
}

/// Returns the checker's results: those named, or of a run in the sources one stands in.
fn results(session: &mut Session<'_>) -> Res<Option<Tally>> {
    let path = match &session.args.conflicts {
        Some(path) => path.clone(),
        None if Path::new("lab/conflicts").is_dir() && Path::new("xtask").is_dir() => {
            let path: PathBuf =
                std::env::temp_dir().join(format!("lanefs-conflicts-{}.json", std::process::id()));
            session.undo.file(&path)?;
            say("running cargo xtask conflicts, which takes minutes (--conflicts FILE takes what it wrote)")?;
            let mut command = Command::new("cargo");
            command.args(["xtask", "conflicts", "--json"]).arg(&path);
            // Its status tells whether its own limits hold, which is another question.
            command.status().at("running cargo")?;
            path
        }
        None => {
            session.out.lacks(
                "the map",
                "the checker takes the sources: there, cargo xtask conflicts --json FILE, then --conflicts FILE here",
            );
            return Ok(None);
        }
    };
    let text = std::fs::read(&path).at(path.display())?;
    let tally: Tally =
        serde_json::from_slice(&text).at(format!("{} is none of `cargo xtask conflicts`", path.display()))?;
    if tally.pairs.is_empty() {
        return Err(Failure::new(format!("{} tells of no pair", path.display())));
    }
    Ok(Some(tally))
}

/// Draws it.
pub fn run(session: &mut Session<'_>, memory_only: bool) -> Res<()> {
    let Some(tally) = results(session)? else { return Ok(()) };
    let kept = |call: &str| !memory_only || !DURABLE.contains(&call);
    let pairs: Vec<&Pair> = tally.pairs.iter().filter(|p| kept(&p.a) && kept(&p.b)).collect();
    let mut calls: Vec<&str> = Vec::new();
    for call in pairs.iter().flat_map(|p| [p.a.as_str(), p.b.as_str()]) {
        if !calls.contains(&call) {
            calls.push(call);
        }
    }
    let row = |(at, call): (usize, &&str)| {
        let points = calls[..=at].iter().enumerate().filter_map(|(x, other)| {
            let pair =
                pairs.iter().find(|p| (p.a == *call && p.b == *other) || (p.b == *call && p.a == *other))?;
            debug_assert!(pair.conflicting_lines <= pair.tests);
            let (y, high) = (pair.conflicting_lines as f64, pair.tests as f64);
            Some(Point { x: x as f64, label: Some(other.to_string()), y, low: 0.0, high })
        });
        Series {
            name: call.to_string(),
            how: "recorded accesses".into(),
            predicted: false,
            points: points.collect(),
        }
    };
    let tests: usize = pairs.iter().map(|p| p.tests).sum();
    let free = |conflicts: fn(&Pair) -> usize| {
        100.0 * (1.0 - pairs.iter().map(|p| conflicts(p)).sum::<usize>() as f64 / tests.max(1) as f64)
    };
    let bar = |name: &str, percent: f64| Series {
        name: name.to_string(),
        how: "recorded accesses".into(),
        predicted: false,
        points: vec![Point::bar(0, "free", &[percent])],
    };
    let sample = match tally.sample {
        Some(0) | None => "every test".to_string(),
        Some(n) => format!("a sample of {n} of each pair"),
    };
    session.out.panels.push(Panel {
        name: "map".to_string(),
        title: format!("{tests} tests ({sample}); numbers: tests in which the calls shared a line"),
        drawn: Drawn::Map,
        x: "a call's row is to the left of its name, its column below it".to_string(),
        y: "tests with a conflict".to_string(),
        series: calls.iter().enumerate().map(row).collect(),
    });
    session.out.panels.push(Panel {
        name: "all".to_string(),
        title: format!("share of {tests} tests without a conflict"),
        drawn: Drawn::Bars,
        x: "tests".to_string(),
        y: "percent".to_string(),
        series: vec![
            bar("by lines", free(|p| p.conflicting_lines)),
            bar("by bytes", free(|p| p.conflicting_bytes)),
        ],
    });
    session.keep()
}
