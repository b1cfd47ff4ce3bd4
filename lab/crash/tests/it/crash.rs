//! The simulator accepts the toy that is right and catches every one that is wrong.

use lanefs::Order;
use lanefs_lab_crash::crash::states::Levels;
use lanefs_lab_crash::crash::system::LaneFs;
use lanefs_lab_crash::crash::toy::{Bug, Toy};
use lanefs_lab_crash::crash::{Config, Counts, run, workloads};
use lanefs_lab_model::scenario;

const SMALL: Config =
    Config { blocks: 64, devices: 1, levels: Levels::SHORT, nested: 3, limit: 3000, setup: 0 };

/// Scenarios that need no remount (the toy has none).
fn scenarios() -> Vec<scenario::Scenario> {
    let mut all = scenario::known().unwrap();
    all.retain(|s| !s.steps.iter().any(|s| s.op == lanefs_lab_model::op::Op::Remount));
    all.extend(workloads::seq1().map(|s| s.unwrap()).step_by(23));
    all.extend(
        (0..6)
            .map(|s| workloads::random(s, 30))
            .filter(|s| !s.steps.iter().any(|s| s.op == lanefs_lab_model::op::Op::Remount)),
    );
    all
}

#[test]
fn a_toy_that_is_right_passes() {
    let mut counts = Counts::default();
    for (s, order) in scenarios().iter().flat_map(|s| [(s, Order::Relaxed), (s, Order::Ordered)]) {
        let mut toy = Toy::new(Bug::None);
        toy.order = order;
        if let Err(f) = run(&toy, &s.steps, &SMALL, &mut counts) {
            panic!("{}, {order:?}: {f}", s.name);
        }
    }
    assert!(counts.states > 400 && counts.recovered > counts.states, "{counts:?}");
}

#[test]
fn every_toy_that_is_wrong_is_caught() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let mut counts = Counts::default();
        let caught =
            scenarios().iter().find_map(|s| run(&Toy::new(bug), &s.steps, &SMALL, &mut counts).err());
        match caught {
            Some(f) => eprintln!("{bug:?}: {}", f.violation),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn on_a_small_device_the_log_wraps_and_the_cleaner_works_before_crashes() {
    let quick = Config { blocks: 384, levels: Levels::QUICK, nested: 0, limit: 150, ..Config::SHORT };
    for s in scenario::small().unwrap() {
        let (mut counts, config) = (Counts::default(), Config { setup: s.setup, ..quick });
        if let Err(f) = run(&LaneFs::default(), &s.steps, &config, &mut counts) {
            panic!("{}: {f}", s.name);
        }
        assert!(counts.reused > 0 && counts.fscks >= counts.states, "{}: {counts:?}", s.name);
        assert!(counts.cleaned > 0 || s.name.starts_with("wraps"), "{}: {counts:?}", s.name);
    }
}
