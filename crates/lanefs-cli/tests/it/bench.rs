//! `lanefs bench` as its users meet it.

use crate::common::*;
use crate::copies::{as_user, ordinary};
use std::path::Path;
use std::process::{Command, Stdio};

fn bench(args: &[&str]) -> Run {
    lanefs_in(Path::new("/"), &[&["bench"], args].concat())
}

/// Operations in a volume in memory, as short as can be.
const SHORT: [&str; 8] = ["--workloads", "DWOL", "--seconds", "0.01", "--warmup", "0.001", "--repeats", "1"];

#[test]
fn an_ordinary_user_measures_volumes_in_memory() {
    let Some((work, program)) = ordinary() else { return };
    let user = |args: &[&str]| as_user(work.path(), &program, &[args, &SHORT[..]].concat());
    user(&["bench", "run", "--target", "mem:256M"]).ok();
    let run = user(&["bench", "compare", "--peers", "lanefs", "--size", "256M", "--dir", "."]).ok();
    assert!(run.out.contains("lanefs"), "{run:?}");
}

#[test]
fn a_directory_to_compare_with_needs_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let run = bench(
        &[&["compare", "--peers", "", "--dir", path, "--dir", &format!("named={path}")], &SHORT[..]].concat(),
    );
    let run = run.ok();
    assert!(run.out.contains(path) && run.out.contains("named"), "{run:?}");
}

#[test]
fn costs_that_are_not_counted_are_a_dash() {
    let run = bench(&[&["cost", "--size", "256M"], &SHORT[..]].concat()).ok();
    assert!(!run.out.contains("NaN"), "{run:?}");
    let row = run.out.lines().rfind(|l| l.starts_with("DWOL")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("-"), "{row}");
}

#[test]
fn instructions_are_counted() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let run = bench(&[&["cost", "--size", "256M", "--instructions", "20"], &SHORT[..]].concat()).ok();
    let row = run.out.lines().rfind(|l| l.starts_with("DWOL")).unwrap();
    let told = row.split_whitespace().rev().nth(1).unwrap();
    assert!(told.parse::<f64>().is_ok_and(|n| n > 100.0), "{row}");
}

#[test]
fn a_reader_who_goes_ends_it_quietly() {
    for args in [&["list"][..], &[&["cost", "--size", "256M"], &SHORT[..]].concat()] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(LANEFS);
        let child =
            command.arg("bench").args(args).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let out = child.spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn ablate_says_first_that_it_cannot() {
    let run = bench(&["ablate", "--size", "64M", "--workloads", "DWOL"])
        .fails(1, &["--features ablation", "cargo run"]);
    assert_eq!(run.out, "");
}

#[test]
fn a_workload_that_is_not_there_is_answered_with_all_groups() {
    bench(&["run", "--target", "mem:64M", "--workloads", "DWXX"])
        .fails(2, &["all", "papers", "external", "yardsticks", "everything"]);
}

#[test]
fn volumes_that_do_not_fit_into_memory_are_refused() {
    // More than any machine can even map, so that nothing is harmed where it is tried.
    bench(&[&["compare", "--peers", "lanefs", "--size", "900T"], &SHORT[..]].concat())
        .fails(2, &["--size", "MiB", "memory"]);
}
