//! Circles of imports. The layers of a crate are what its own files say: module A lies above B if a
//! file of A names B. No list says who may name whom; there must be no circle, neither between the
//! top-level modules of a crate nor between the files and folders of one folder.
//!
//! 1. A path that begins with `crate::` or `super::` names the module that it leads to, through
//!    names that a folder's `mod.rs` or the crate's root hands on (`pub use`).
//! 2. It counts between the two siblings in which the naming and the named file differ first. What
//!    a folder's own file (`mod.rs`) and the files below it name of each other does not count.
//! 3. A call through a method needs no import. That the methods of a type lie in its own folder is
//!    looked at by [`super::types`].

use super::{Finding, leftovers, rooms};
use crate::source;
use std::collections::{BTreeMap, BTreeSet};

/// Circles that are left to be cut: a crate, a folder of it, and the modules that reach each other.
/// One that grows is a finding, and so is one that got smaller.
const LEFT: &[(&str, &str, &[&str])] = &[
    // A volume gives its view, and the view holds its volume.
    ("lanefs", "", &["fs", "volume"]),
];

/// A module's path inside its crate.
type Path = Vec<String>;

/// Module to the modules it names, with a file and a line for each.
type Imports = BTreeMap<String, BTreeMap<String, (String, usize)>>;

/// The modules of a crate and the names in them.
#[derive(Default)]
struct Crate {
    modules: BTreeSet<Path>,
    /// A module and a name that it hands on, and where that leads.
    exports: BTreeMap<(Path, String), Path>,
    /// From a module to a path that it names, with the file and the line.
    named: Vec<(Path, Path, String, usize)>,
}

/// Imports between the modules of each crate, as they are gathered.
#[derive(Default)]
pub struct Circles(BTreeMap<String, Crate>);

impl Circles {
    /// Takes note of a file.
    pub fn add(&mut self, name: &str, text: &str) {
        let Some((krate, path)) = rooms::module_path(name) else { return };
        if leftovers::is_test_file(name) {
            return;
        }
        let path: Path = path.into_iter().map(String::from).collect();
        let krate = self.0.entry(krate.to_string()).or_default();
        let lines = source::lines(text);
        for (line, exported, named) in paths_of(&lines, &path) {
            if let Some(as_name) = exported {
                krate.exports.insert((path.clone(), as_name), named.clone());
            }
            krate.named.push((path.clone(), named, name.to_string(), line + 1));
        }
        krate.modules.insert(path);
    }

    /// Complains about circles.
    pub fn check(&self, findings: &mut Vec<Finding>) {
        for (name, krate) in &self.0 {
            for (folder, imports) in &krate.imports() {
                check_folder(name, folder, imports, findings);
            }
        }
    }

    /// Complains about names in the lists of `rooms` that no module has: such a rule holds nobody.
    pub fn check_lists(&self, findings: &mut Vec<Finding>) {
        for (name, krate) in &self.0 {
            let rooms: BTreeSet<_> = rooms::listed(name).collect();
            let top: BTreeSet<&str> =
                krate.modules.iter().filter_map(|m| m.first()).map(String::as_str).collect();
            for unknown in rooms.iter().filter(|m| !top.contains(**m)) {
                findings.push(Finding {
                    file: format!("crates/{name}/src"),
                    line: 0,
                    message: format!("rooms.rs names `{unknown}`, which is no module of it"),
                });
            }
        }
    }
}

impl Crate {
    /// The module that a path leads to.
    fn resolve(&self, path: &[String], patience: usize) -> Path {
        let mut at = Path::new();
        for (i, word) in path.iter().enumerate() {
            let mut next = at.clone();
            next.push(word.clone());
            if self.modules.iter().any(|m| m.starts_with(&next)) {
                at = next;
                continue;
            }
            if let Some(to) = self.exports.get(&(at.clone(), word.clone())).filter(|_| patience > 0) {
                let mut to = to.clone();
                to.extend_from_slice(&path[i + 1..]);
                return self.resolve(&to, patience - 1);
            }
            break;
        }
        at
    }

    /// For each folder what its files and folders name of each other.
    fn imports(&self) -> BTreeMap<Path, Imports> {
        let mut folders: BTreeMap<Path, Imports> = BTreeMap::new();
        for (from, named, file, line) in &self.named {
            let to = self.resolve(named, 8);
            let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(same), to.get(same)) {
                let imports = folders.entry(from[..same].to_vec()).or_default();
                imports.entry(b.clone()).or_default();
                let of = imports.entry(a.clone()).or_default();
                of.entry(b.clone()).or_insert((file.clone(), *line));
            }
        }
        folders
    }
}

/// Complains about the circles between the modules of one folder.
fn check_folder(krate: &str, folder: &Path, imports: &Imports, findings: &mut Vec<Finding>) {
    let folder = folder.join("/");
    let left = LEFT.iter().find(|l| (l.0, l.1) == (krate, &folder)).map_or(&[][..], |l| l.2);
    let mut met = BTreeSet::new();
    for circle in circles(imports) {
        if circle.iter().all(|m| left.contains(&m.as_str())) {
            met.extend(circle);
            continue;
        }
        let list = circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let within = |m: &String| imports[m].iter().filter(|(to, _)| circle.contains(*to));
        for (from, (to, (file, line))) in circle.iter().flat_map(|m| within(m).map(move |a| (m, a))) {
            let message = format!("`{from}` names `{to}`, part of a circle ({list}): cut one of them");
            findings.push(Finding { file: file.clone(), line: *line, message });
        }
    }
    for gone in left.iter().filter(|m| !met.contains(**m)) {
        findings.push(Finding {
            file: format!("crates/{krate}/src/{folder}"),
            line: 0,
            message: format!("`{gone}` is in no circle any more: take it out of LEFT in circles.rs"),
        });
    }
}

/// The paths inside the crate that a file names, absolute, with the line; and the name under which
/// it hands one on.
fn paths_of(lines: &[source::Line], module: &[String]) -> Vec<(usize, Option<String>, Path)> {
    // One text, so that a group of imports may span lines.
    let mut text = String::new();
    let mut line_of = Vec::new();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
        text.push_str(&line.code);
        text.push('\n');
        line_of.resize(text.len(), number);
    }
    let mut found = Vec::new();
    for (at, _) in text.match_indices("::") {
        let first = text[..at].rfind(|c: char| !is_word(c)).map_or(0, |i| i + 1);
        let word = &text[first..at];
        let starts = !text[..first].ends_with(':');
        let statement = text[..first].rfind([';', '}']).map_or(0, |i| i + 1);
        let before = text[statement..first].trim();
        let exports = before.starts_with("pub") && before.ends_with("use");
        let base: Option<Path> = match word {
            _ if !starts => None,
            "crate" => Some(Path::new()),
            "super" => module.split_last().map(|(_, up)| up.to_vec()),
            "self" => Some(module.to_vec()),
            // A folder that hands on what a file in it has.
            _ if exports => Some(module.iter().cloned().chain([word.to_string()]).collect()),
            _ => None,
        };
        let Some(base) = base else { continue };
        for (offset, tail) in tails(&text[at + 2..]) {
            let mut path = base.clone();
            for word in &tail {
                match word.as_str() {
                    "super" => drop(path.pop()),
                    _ => path.push(word.clone()),
                }
            }
            let name = if exports { tail.last().cloned() } else { None };
            found.push((line_of[at + 2 + offset], name, path));
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The rest of a path, or of each path of a group in braces, with its offset.
fn tails(text: &str) -> Vec<(usize, Path)> {
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    if let Some(group) = text.strip_prefix('{') {
        let mut found = Vec::new();
        let (mut depth, mut from) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    let part = &group[from..at];
                    let skipped = part.len() - part.trim_start().len();
                    found.extend(tails(part.trim()).into_iter().map(|(o, p)| (1 + from + skipped + o, p)));
                    from = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
        return found;
    }
    let word = &text[..end];
    if word.is_empty() {
        return vec![(0, Path::new())];
    }
    let rest = text[end..].strip_prefix("::").map(tails);
    let rest = rest.unwrap_or_else(|| vec![(0, Path::new())]);
    rest.into_iter().map(|(o, tail)| (o, [word.to_string()].into_iter().chain(tail).collect())).collect()
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

/// Returns the modules that a module reaches by one import or more.
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
}
