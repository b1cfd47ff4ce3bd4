//! Circles of imports. The layers of a crate are what its own files say: module A lies above B if a
//! file of A names B. No list says who may name whom; there must be no circle. Calls through a
//! method of a type that both know are not seen here.

use super::{Finding, leftovers, rooms};
use crate::source;
use std::collections::{BTreeMap, BTreeSet};

/// Circles that are left to be cut. One that grows is a finding, and so is one that got smaller.
const LEFT: &[(&str, &[&str])] =
    &[("lanefs", &["op", "ops", "volume", "writeback"]), ("lanefs-store", &["engine", "inodes", "store"])];

/// Module to the modules it names, with a file and a line for each.
type Imports = BTreeMap<String, BTreeMap<String, (String, usize)>>;

/// Imports between the top-level modules of each crate, as they are gathered.
#[derive(Default)]
pub struct Circles(BTreeMap<String, Imports>);

impl Circles {
    /// Takes note of a file.
    pub fn add(&mut self, name: &str, text: &str) {
        let Some((krate, path)) = rooms::module_path(name) else { return };
        let Some(own) = path.first() else { return };
        if leftovers::is_test_file(name) {
            return;
        }
        let imports = self.0.entry(krate.to_string()).or_default().entry(own.to_string()).or_default();
        for (line, named) in rooms::named_modules(&source::lines(text), path.len()) {
            imports.entry(named).or_insert((name.to_string(), line + 1));
        }
    }

    /// Complains about circles.
    pub fn check(&self, findings: &mut Vec<Finding>) {
        for (krate, imports) in &self.0 {
            let left = LEFT.iter().find(|(k, _)| k == krate).map_or(&[][..], |(_, modules)| modules);
            let mut met = BTreeSet::new();
            for circle in circles(imports) {
                if circle.iter().all(|m| left.contains(&m.as_str())) {
                    met.extend(circle);
                    continue;
                }
                let list = circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let within = |m: &String| imports[m].iter().filter(|(to, _)| circle.contains(*to));
                for (from, (to, (file, line))) in circle.iter().flat_map(|m| within(m).map(move |a| (m, a))) {
                    let message =
                        format!("`{from}` names `{to}`, part of a circle ({list}): cut one of them");
                    findings.push(Finding { file: file.clone(), line: *line, message });
                }
            }
            for gone in left.iter().filter(|m| !met.contains(**m)) {
                findings.push(Finding {
                    file: format!("crates/{krate}/src"),
                    line: 0,
                    message: format!("`{gone}` is in no circle any more: take it out of LEFT in circles.rs"),
                });
            }
        }
    }

    /// Complains about names in the lists of `rooms` that no module has: such a rule holds nobody.
    pub fn check_lists(&self, findings: &mut Vec<Finding>) {
        for (krate, imports) in &self.0 {
            let rooms: BTreeSet<_> = rooms::listed(krate).collect();
            for unknown in rooms.iter().filter(|m| !imports.contains_key(**m)) {
                findings.push(Finding {
                    file: format!("crates/{krate}/src"),
                    line: 0,
                    message: format!("rooms.rs names `{unknown}`, which is no module of it"),
                });
            }
        }
    }
}

/// Modules that reach each other, where there are several.
fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|m| (m, reached(imports, m))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (m, far) in &reach {
        let circle: BTreeSet<String> =
            far.iter().filter(|o| reach[**o].contains(m)).map(|o| (*o).clone()).collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// What a module reaches by one import or more.
fn reached<'a>(imports: &'a Imports, from: &str) -> BTreeSet<&'a String> {
    let mut far = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(m) = todo.pop() {
        for to in imports.get(m).into_iter().flat_map(BTreeMap::keys) {
            // Its own name, and words that are no module of the crate, lead nowhere.
            if to != m
                && let Some((to, _)) = imports.get_key_value(to)
                && far.insert(to)
            {
                todo.push(to);
            }
        }
    }
    far
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(files: &[(&str, &str)]) -> Vec<String> {
        let mut circles = Circles::default();
        files.iter().for_each(|(name, text)| circles.add(&format!("crates/{name}"), text));
        let mut findings = Vec::new();
        circles.check(&mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_call_upward_closes_a_circle() {
        let below = ("lanefs-store/src/segment.rs", "pub struct Table;\n");
        let above = ("lanefs-store/src/engine/mod.rs", "use crate::log::Log;\n");
        let between = ("lanefs-store/src/log.rs", "use crate::segment::Table;\n");
        assert_eq!(told(&[below, above, between]), [""; 0]);
        let planted = ("lanefs-store/src/segment.rs", "pub struct Table;\nfn f() { crate::engine::g() }\n");
        let told = told(&[planted, above, between]);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("(engine, log, segment)"), "{told:?}");
        assert!(
            told.iter()
                .any(|t| t.starts_with("crates/lanefs-store/src/segment.rs:2: `segment` names `engine`"))
        );
    }

    #[test]
    fn tests_may_name_what_is_above() {
        let above = ("lanefs-store/src/engine.rs", "use crate::log::Log;\n");
        for (name, text) in [
            ("lanefs-store/src/log.rs", "#[cfg(test)]\nmod tests {\n    use crate::engine::g;\n}\n"),
            ("lanefs-store/src/log.rs", "use crate::log::Log;\nuse crate::Result;\n"),
            ("lanefs-store/src/log_tests.rs", "use crate::engine::g;\n"),
        ] {
            assert_eq!(told(&[above, (name, text)]), [""; 0], "{name}");
        }
    }

    #[test]
    fn a_rule_about_no_module_is_told() {
        let mut circles = Circles::default();
        let rooms: BTreeSet<_> = rooms::listed("lanefs").collect();
        for m in rooms.iter().filter(|m| **m != "oplog") {
            circles.add(&format!("crates/lanefs/src/{m}.rs"), "");
        }
        let mut findings = Vec::new();
        circles.check_lists(&mut findings);
        let told: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert_eq!(told, ["crates/lanefs/src: rooms.rs names `oplog`, which is no module of it"]);
    }

    #[test]
    fn a_circle_that_is_left_neither_grows_nor_stays_listed() {
        let all = LEFT[0].1;
        let named = |m: usize| format!("use crate::{}::A;\n", all[(m + 1) % all.len()]);
        let files: Vec<_> = (0..all.len()).map(|m| (format!("lanefs/src/{}.rs", all[m]), named(m))).collect();
        let mut files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (&n[..], &t[..])).collect();
        assert_eq!(told(&files), [""; 0]);
        let last = files.len() - 1;
        let text = format!("{}use crate::stat::Stat;\n", files[last].1);
        files[last].1 = &text;
        files.push(("lanefs/src/stat.rs", "use crate::op::A;\n"));
        assert!(told(&files).iter().any(|t| t.contains("stat")), "it grew");
        files.pop();
        files[last].1 = "";
        assert_eq!(told(&files).len(), all.len(), "it is gone");
    }
}
