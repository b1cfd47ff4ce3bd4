//! Every workload runs, counts and cleans up, on a directory, with threads and with processes.

mod paper;
mod space;

use lanefs_bench::registry::{Group, all};
use lanefs_bench::runner::Plan;
use lanefs_bench::target::{OpenTarget, TargetSpec};
use lanefs_bench::workload::Params;

fn plan(workers: usize, processes: bool) -> Plan {
    let loadfile = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/client.txt");
    let params = Params { scale: 0.01, loadfile: Some(loadfile.into()), ..Params::default() };
    Plan { workers, seconds: 0.02, warmup: 0.002, processes, sustained: false, ops: None, params }
}

/// A directory, in memory where the machine has such a place: set-ups make many files.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn every(group: Group, processes: bool) {
    let dir = place();
    let mut target = TargetSpec::Dir(dir.path().to_path_buf()).open(false).unwrap();
    all_of(group, processes, &mut target, || {
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "left {left:?}");
    });
}

fn in_process(group: Group) {
    let mut target = TargetSpec::parse("mem:512M").unwrap().open(false).unwrap();
    let OpenTarget::Volume(volume) = &target else { panic!("mem: is a volume") };
    let fs = volume.volume().fs();
    all_of(group, false, &mut target, || {
        let mut left = Vec::new();
        fs.read_dir_from("/", 0, &mut |e| {
            left.push(e.name.to_vec());
            true
        })
        .unwrap();
        left.retain(|n| n != b"." && n != b"..");
        assert!(left.is_empty(), "left {left:?}");
    });
}

fn all_of(group: Group, processes: bool, target: &mut OpenTarget, clean: impl Fn()) {
    for entry in all().iter().filter(|e| e.group == group) {
        let outcome = entry.run(target, &plan(2, processes));
        let outcome = outcome.unwrap_or_else(|e| panic!("{}: {e}", entry.info.name));
        assert!(outcome.ops > 0 && outcome.rate > 0.0, "{}", entry.info.name);
        let alone = group == Group::External;
        assert_eq!(outcome.per_worker.len(), if alone { 1 } else { 2 });
        assert!(outcome.per_worker.iter().all(|&r| r > 0.0), "{}: {:?}", entry.info.name, outcome.per_worker);
        assert!(!outcome.latencies.is_empty(), "{}", entry.info.name);
        clean();
    }
}

#[test]
fn micro_in_process() {
    in_process(Group::Micro);
    in_process(Group::More);
}

/// The last sync and the background are inside the clock, their processor time beside the worker's.
#[test]
fn sustained_runs_end_when_all_is_done() {
    let dir = place();
    let mut targets = [TargetSpec::parse("mem:512M").unwrap(), TargetSpec::Dir(dir.path().to_path_buf())]
        .map(|t| t.open(false).unwrap());
    for name in ["MWCL", "MWUL", "create-unlink", "DWAL", "MWRM"] {
        for target in &mut targets {
            let entry = all().iter().find(|e| e.info.name == name).unwrap();
            let mut plan = Plan { sustained: true, warmup: 0.0, seconds: 0.05, ..plan(2, false) };
            plan.params.stock = Some(500);
            let o = entry.run(target, &plan).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(o.rate > 0.0 && o.cpu_ns_all > 0.0, "{name}: {o:?}");
            // One span for all: what each did adds up, second by second.
            let units: u64 = o.per_second.iter().sum();
            assert!(units >= o.ops, "{name}: {units} units, {} operations", o.ops);
            if let OpenTarget::Volume(_) = target {
                assert!(o.cpu_ns_all >= o.cpu_ns, "{name}: the workers are among everybody: {o:?}");
            }
        }
    }
}

#[test]
fn a_sustained_run_has_threads_only() {
    let dir = place();
    let mut target = TargetSpec::Dir(dir.path().to_path_buf()).open(false).unwrap();
    let entry = all().iter().find(|e| e.info.name == "MWCL").unwrap();
    let e = entry.run(&mut target, &Plan { sustained: true, ..plan(2, true) }).unwrap_err();
    assert!(e.message.contains("threads only"), "{}", e.message);
}

#[test]
fn papers_in_process() {
    in_process(Group::Papers);
}

#[test]
fn yardsticks_in_process() {
    in_process(Group::Yardstick);
}

#[test]
fn micro_threads() {
    every(Group::Micro, false);
    every(Group::More, false);
}

#[test]
fn micro_processes() {
    every(Group::Micro, true);
}

#[test]
fn papers_threads() {
    every(Group::Papers, false);
}

#[test]
fn papers_processes() {
    every(Group::Papers, true);
}

#[test]
fn yardsticks() {
    every(Group::Yardstick, false);
}

/// `db_bench` on a directory, where the machine has it; in process it is refused.
#[test]
fn programs_of_their_own() {
    let entry = all().iter().find(|e| e.group == Group::External).unwrap();
    let mut volume = TargetSpec::parse("mem:64M").unwrap().open(false).unwrap();
    let refused = entry.run(&mut volume, &plan(1, false)).unwrap_err();
    assert!(refused.message.contains("mounted"), "{refused}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|d| d.join("db_bench").is_file()) {
        every(Group::External, false);
    } else {
        eprintln!("db_bench is not installed: not tried");
    }
}

#[test]
fn a_missing_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut target = TargetSpec::Dir(dir.path().to_path_buf()).open(false).unwrap();
    drop(dir);
    assert!(all()[0].run(&mut target, &plan(1, false)).is_err());
}

/// The counts of `lanefs-bench cost` against the ones that are kept: allocations, bytes and flushes
/// do not depend on what else the machine does.
/// `cargo run -p lanefs-bench -- cost --workloads all --seconds 0.05 --repeats 1 --size 1G --json FILE`
/// gives new ones.
#[test]
fn operations_cost_no_more_than_they_did() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/cost.ratchet.json");
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_lanefs-bench"))
        .args([
            "cost",
            "--workloads",
            "all",
            "--seconds",
            "0.05",
            "--warmup",
            "0.01",
            "--repeats",
            "1",
            "--size",
            "1G",
        ])
        .args(["--against", kept])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let worse: Vec<&str> = said.lines().filter(|l| l.starts_with("worse")).collect();
    assert!(
        out.status.success() && said.contains("MWRM"),
        "{worse:#?} {}",
        String::from_utf8_lossy(&out.stderr)
    );
}
