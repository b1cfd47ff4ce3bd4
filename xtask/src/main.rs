//! The project's own tools: `cargo xtask COMMAND`.

mod apps;
mod c_library;
mod conflicts;
mod cost;
mod deb;
mod demo;
mod faults;
mod guest;
mod jitter;
mod killtest;
mod lab;
mod measure;
mod programs;
mod python;
mod rocksdb;
mod run;
mod source;
mod stuck;
mod test;
mod tidy;
mod tsan;
mod virtiofs;
mod watched;
mod xfstests;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

  apps   git, databases, mail, editors and dpkg under power loss, beside ext4 and XFS: [--rounds N] [--only NAME] [--order ordered|relaxed] [--states N] [--seed N] [--jobs N] [--minutes N] [--peers N] [--keep DIR] [--json FILE]
  c-library --out DIR [--debug]   liblanefs.so, liblanefs.a, lanefs.h, lanefs.pc and lanefs_sqlite.so below DIR
  conflicts [--sample N] [--pair A,B [--test K]] [--lackey N] [--backtraces] --json FILE [--html FILE]   operations that commute share no cache line
  coherence [--lanes 1,2,..] [--workloads A,B] [--measured FILE] [--background] --json FILE [--html FILE]   how FxMark's workloads would scale
  crash  crash and recover in every way: [--long | --quick | --brief] [--seed N] [--minutes N] [--states N] [--only FAMILY] --json FILE
  cost [--json FILE]   what FxMark's operations cost apart from time, held to what they did: allocations, device, instructions, lines
  simulate  a volume with faults of the device, all from one seed: --runs N [--seed N] [--jobs N] [--minutes N] --json FILE
  faults [PART OF A NAME] [--jobs N] [--json FILE] | --schedules NAME [OPTIONS OF schedules]   faults planted in a copy of the source, each of which must be found
  fuzz [--sanitizer address [--store]] [--seconds N] [--cases N] [--seed N] [--json FILE]   damaged images and bytes: no panic, no hang, bounded memory
  oom [--long | --sample N] [--only STAGE] [--jobs N] [--json FILE]   memory that runs out at every step: an answer or the end, nothing lost
  schedules --runs N [--seed N] [--jobs N] [--minutes N] [--twice] [--json FILE]   threads in orders drawn from seeds, with crashes
  deb    a Debian package of the command, with pages, completions and the helper of mount(8)
  demo   kill the server of a mount, find what was synced; make files beside tmpfs
  python-wheel --out DIR [--debug]   the module for Python as a wheel
  python-test [PYTEST'S ARGUMENTS]   its tests, with the wheel installed
  programs [--quick] [NAME..]   real programs on a mounted volume, each checked by its own means
  killtest [--rounds N] [--seed S] [--order ordered|relaxed] [NAME.. | small | synced | idle | full [--minutes N]]   kill -9 of the mount under load: fsck clean, nothing acknowledged lost
  measure [--quick] [NAME..]   the figures that stand in docs/reports
  fsx [--ops N] [--seed S] [--direct] [--mmap] FILE   random operations on one file, compared with a copy in memory
  guest   `lanefs bench guest` with Debian's kernel, emulated: F2FS and the others take part
  jitter [FILTER..]   the threaded tests with pauses before locks, fences and sequence words
  rocksdb-plugin --out DIR [--debug] [--rocksdb PREFIX]   lib/librocksdb_lanefs.so and include/lanefs_rocksdb.h below DIR
  tsan [FILTER..]   the threaded tests under ThreadSanitizer
  virtiofs [--rounds N] [work] [times] [kill]   a volume in a virtual machine: the guest's kernel at work, times beside ext4, kill -9 of the back end and of the machine
  xfstests --source DIR [--options MOUNT-OPTIONS] [--seconds N] [--group NAME | TEST..]   the kernel developers' tests of file systems, built in DIR, on a mount (root)
  test   everything that must pass: format, tidy, lints, docs, loom, all tests
  tidy   imports between modules, file lengths, words, assertions, leftovers, ASCII, SAFETY comments, whitespace";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["apps", ref rest @ ..] => apps::main(rest),
        ["c-library", ref rest @ ..] => c_library::main(rest),
        ["conflicts", ref rest @ ..] => conflicts::check(rest),
        ["coherence", ref rest @ ..] => conflicts::coherence(rest),
        ["cost", ref rest @ ..] => cost::check(rest),
        [check @ ("crash" | "simulate" | "oom" | "schedules"), ref rest @ ..] => lab::check(check, rest),
        ["faults", ref rest @ ..] => faults::main(rest),
        ["fuzz", ref rest @ ..] => lab::fuzz(rest),
        ["deb"] => deb::build(),
        ["demo"] => demo::run_demo(),
        ["test"] => test::all("1"),
        ["test", "--from", step] => test::all(step),
        ["python-wheel", ref rest @ ..] => python::wheel(rest),
        ["python-test", ref rest @ ..] => python::test(rest),
        ["programs", ref rest @ ..] => programs::main(rest),
        ["killtest", ref rest @ ..] => killtest::main(rest),
        ["killtest-writer", ref rest @ ..] => killtest::writer::main(rest),
        ["measure", ref rest @ ..] => measure::main(rest),
        ["guest"] => guest::main(),
        ["jitter", ref rest @ ..] => jitter::main(rest),
        ["fsx", ref rest @ ..] => programs::fsx::main(rest),
        ["rocksdb-plugin", ref rest @ ..] => rocksdb::main(rest),
        ["tsan", ref rest @ ..] => tsan::main(rest),
        ["virtiofs", ref rest @ ..] => virtiofs::main(rest),
        ["xfstests", ref rest @ ..] => xfstests::main(rest),
        ["tidy"] => return run_tidy(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy() -> ExitCode {
    let findings = match tidy::check_workspace(&run::root()) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("tidy: cannot read the workspace: {error}");
            return ExitCode::from(2);
        }
    };
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: nothing to complain about");
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} to fix", findings.len());
        ExitCode::FAILURE
    }
}
