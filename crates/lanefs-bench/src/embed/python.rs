//! Python: files of 4 KiB are made, written and closed, one after the other, by the functions of
//! `os` and by the built-in `open`; on a LaneFS volume by the module `lanefs` (docs/PYTHON.md). The
//! clock is the program's own around the loop, so neither the start of the interpreter nor opening
//! a volume is in it, and nothing is synced. Each program does it twice: the first time a volume's
//! pages are memory that the process has never touched, which a virtual machine may have to ask for
//! far away.

use super::{EmbedArgs, Home, Row};
use crate::error::{Context, Failure, Res, say};
use crate::results::median;
use std::path::Path;
use std::process::Command;

/// The program, and how it opens files.
const PROGRAM: &str = include_str!("create.py");
const LOADS: [(&str, [&str; 2]); 2] =
    [("raw", ["python-raw-first", "python-raw"]), ("open", ["python-open-first", "python-open"])];

/// Returns whether the interpreter has the module; says so if it has not.
fn has_module(args: &EmbedArgs) -> Res<bool> {
    let asked = Command::new(&args.python).args(["-c", "import lanefs"]).output();
    let has = asked.at(args.python.display())?.status.success();
    if !has {
        let python = args.python.display();
        say(format_args!(
            "skipped python: {python} has no module `lanefs`; `cargo xtask python-wheel --out DIR` makes it, --python names another"
        ))?;
    }
    Ok(has)
}

/// Runs all loads on all peers, by turns. `script` is where the program is put.
pub(super) fn rows(args: &EmbedArgs, homes: &[(String, Home)], script: &Path) -> Res<Vec<Row>> {
    let mut rows = Vec::new();
    if homes.iter().any(|(_, home)| matches!(home, Home::Image(_))) && !has_module(args)? {
        return Ok(rows);
    }
    std::fs::write(script, PROGRAM).at(script.display())?;
    for (how, turns) in LOADS {
        let mut told = vec![Vec::new(); homes.len()];
        for _ in 0..args.rounds {
            for ((_, home), told) in homes.iter().zip(&mut told) {
                if crate::interrupt::requested() {
                    return Err(Failure::interrupted());
                }
                told.push(files(args, home, how, script)?);
            }
        }
        for (turn, load) in turns.into_iter().enumerate() {
            for ((peer, _), told) in homes.iter().zip(&told) {
                let seconds: Vec<f64> = told.iter().map(|t| t[turn].0).collect();
                rows.push(Row {
                    load: load.to_string(),
                    peer: peer.clone(),
                    transactions: args.files.into(),
                    rate: f64::from(args.files) / median(&seconds),
                    seconds,
                    processor_seconds: told.iter().map(|t| t[turn].1).collect(),
                });
            }
        }
    }
    Ok(rows)
}

/// Has files made; returns the seconds and the processor time of each turn.
fn files(args: &EmbedArgs, home: &Home, how: &str, script: &Path) -> Res<[(f64, f64); 2]> {
    let (kind, place) = match home {
        Home::Dir(dir) => ("dir", dir),
        Home::Image(image) => ("image", image),
    };
    let mut python = Command::new(&args.python);
    python.arg(script).arg(kind).arg(place).args([how, &args.files.to_string()]);
    let out = python.output().at(args.python.display())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let turn = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        let (seconds, processor) = line.trim().split_once(' ')?;
        Some((seconds.parse().ok()?, processor.parse().ok()?))
    };
    match (turn("first "), turn("again ")) {
        (Some(first), Some(again)) if out.status.success() => Ok([first, again]),
        _ => {
            let errors = String::from_utf8_lossy(&out.stderr);
            Err(Failure::new(format!("{} on {}: {errors}{text}", args.python.display(), place.display())))
        }
    }
}
