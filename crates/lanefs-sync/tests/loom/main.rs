//! The protocols under loom, which runs every interleaving (up to a number of preemptions) and
//! every outcome of relaxed memory that it knows:
//! `RUSTFLAGS="--cfg loom" cargo test -p lanefs-sync --release --test loom`
//!
//! A lost wakeup shows as a deadlock, which loom reports. Where a mistake can be planted from
//! outside, a test that must panic shows that the check can fail.
#![cfg(loom)]

mod changes;
mod epoch;
mod lanes;
mod partial;
mod rps;
mod seqlock;
mod strided;

/// Explores `test` with at most `preemptions` preemptions a run.
fn explore(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(test);
}
