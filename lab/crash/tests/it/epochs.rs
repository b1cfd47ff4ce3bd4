//! The epoch-lane protocol, explored; and every planted mistake found. `LANEFS_STATES=400000` looks
//! deeper.

use lanefs_lab_crash::epochs::{Fault, explore, hunt, programs};

fn limit(least: usize) -> usize {
    std::env::var("LANEFS_STATES").ok().and_then(|s| s.parse().ok()).unwrap_or(least)
}

#[test]
fn the_protocol_holds() {
    let (mut states, mut exhausted, mut all) = (0, 0, 0);
    for p in programs::scripted().into_iter().chain((0..30).map(programs::random)) {
        let e = explore(&p, Fault::None, limit(4_000));
        if let Some((why, steps)) = e.broken {
            panic!("{why}\n{p:?}\n{}", steps.join("\n"));
        }
        states += e.states;
        exhausted += usize::from(e.exhausted);
        all += 1;
    }
    eprintln!("{states} states of {all} programs, {exhausted} exhausted");
    assert!(states > 60_000);
}

#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for m in Fault::ALL {
        match hunt(m, limit(200_000)) {
            Some((why, steps)) => eprintln!("{m:?}: {} steps: {why}", steps.len()),
            None => missed.push(m),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
