//! Assertions: how many there are for each function of the product, crate by crate. What a function
//! expects, and what it leaves, is said where the debug build checks it.

use super::Finding;
use crate::source::{Line, words};
use std::collections::BTreeMap;

/// The crates that keep people's files, and how many assertions each has for a hundred functions at
/// least. May only rise.
const FLOORS: &[(&str, usize)] = &[
    ("crates/lanefs-sync/", 40),
    ("crates/lanefs-format/", 90),
    ("crates/lanefs-store/", 55),
    ("crates/lanefs/", 65),
    ("crates/lanefs-fuse/", 65),
];

/// The macros that are assertions.
const ASSERTIONS: &[&str] =
    &["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];

/// The counts of one crate.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    functions: usize,
    assertions: usize,
}

/// The counts of all crates.
#[derive(Default)]
pub struct Assertions {
    crates: BTreeMap<&'static str, Count>,
}

impl Assertions {
    /// Counts a file's.
    pub fn add(&mut self, name: &str, lines: &[Line]) {
        let product =
            |c: &&(&'static str, usize)| name.strip_prefix(c.0).is_some_and(|rest| rest.starts_with("src/"));
        let Some(&(of, _)) = FLOORS.iter().find(product) else { return };
        if super::leftovers::is_test_file(name) {
            return;
        }
        let count = self.crates.entry(of).or_default();
        for line in lines.iter().filter(|l| !l.test) {
            count.functions += functions(&line.code);
            count.assertions += assertions(&line.code);
        }
    }

    /// Complains about crates with too few.
    pub fn check(&self, findings: &mut Vec<Finding>) {
        for &(of, floor) in FLOORS {
            let Some(c) = self.crates.get(of) else { continue };
            if c.assertions * 100 < floor * c.functions {
                let message = format!(
                    "{} assertions for {} functions, and {floor} for a hundred are asked: say what is expected, and what is left, in a debug_assert!",
                    c.assertions, c.functions
                );
                findings.push(Finding { file: of.to_string(), line: 0, message });
            }
        }
    }
}

/// Returns how many functions a line begins. A type `fn(..)` is none.
fn functions(code: &str) -> usize {
    code.match_indices("fn ")
        .filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .count()
}

fn assertions(code: &str) -> usize {
    words(code).filter(|w| ASSERTIONS.contains(w)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    #[test]
    fn functions_and_assertions_are_counted() {
        assert_eq!(functions("pub(crate) const fn f(g: fn(u8)) -> impl Fn(u8) {"), 1);
        assert_eq!(functions("let often = 1;"), 0);
        assert_eq!(assertions("debug_assert_eq!(a, b); debug_assert!(c);"), 2);
    }

    #[test]
    fn a_crate_with_too_few_is_a_finding() {
        let mut a = Assertions::default();
        a.add("crates/lanefs-format/src/a.rs", &source::lines("fn f() {}\nfn g() {}\n"));
        a.add(
            "crates/lanefs-format/src/b.rs",
            &source::lines("#[cfg(test)]\nmod t {\n    fn t() { assert!(true) }\n}\n"),
        );
        let mut findings = Vec::new();
        a.check(&mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        a.add(
            "crates/lanefs-format/src/a.rs",
            &source::lines("fn h() { assert!(x); assert_eq!(y, z); debug_assert!(w) }\n"),
        );
        findings.clear();
        a.check(&mut findings);
        assert!(findings.is_empty(), "{findings:?}");
    }
}
