//! A short part of `cargo xtask fuzz`.

use lanefs_check::fuzz;

#[test]
fn damaged_images_and_bytes_break_nothing() {
    let cases = std::env::var("LANEFS_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(400);
    let found: Vec<_> = (0..cases).filter_map(|seed| fuzz::case(seed).err()).collect();
    assert!(found.is_empty(), "{} findings, the first: {}", found.len(), found[0]);
}
