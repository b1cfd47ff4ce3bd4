//! A short part of `cargo xtask fuzz`, judged by less: panics that reach the caller, what a repair
//! leaves, names, directories without end, time. The bound on memory and panics of other threads
//! need an allocator and a hook that are the whole process's, which this one shares with other
//! tests: these two `cargo xtask fuzz` judges, of which `cargo xtask test` runs a minute.

use lanefs_lab_crash::fuzz;

#[test]
fn damaged_images_and_bytes_break_nothing() {
    let cases = std::env::var("LANEFS_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(400);
    let found: Vec<_> = (0..cases).filter_map(|seed| fuzz::case(seed).err()).collect();
    assert!(found.is_empty(), "{} findings, the first: {}", found.len(), found[0]);
}
