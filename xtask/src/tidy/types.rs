//! Types that hold too much: of a crate's layers the compiler sees nothing where one type has a
//! method for everything.
//!
//! 1. The methods of a type lie in the file that defines it, or below that file's folder: no module
//!    adds methods to a type of another.
//! 2. In the crates of the hot path no type has more than [`FIELDS`] fields or [`METHODS`] methods.
//!    (Their public surface, which is as wide as what it offers, is left out.)

use super::{Finding, leftovers, rooms};
use crate::source;
use std::collections::BTreeMap;

/// The most fields of a struct.
const FIELDS: usize = 15;
/// The most methods of a type.
const METHODS: usize = 30;

/// Crates of which the sizes are looked at.
const HOT: &[&str] = &["lanefs", "lanefs-store", "lanefs-sync"];

/// Types that are left to be taken apart.
const LEFT: &[(&str, &str)] = &[];

/// The public surface.
const SURFACE: &[(&str, &str)] =
    &[("lanefs", "Fs"), ("lanefs", "File"), ("lanefs", "Volume"), ("lanefs-store", "Store")];

/// The place where a type is defined, the file and the line, and the number of its fields.
struct Definition {
    file: String,
    line: usize,
    fields: usize,
}

/// The definitions and methods of the types of one name.
#[derive(Default)]
struct Type {
    defined: Vec<Definition>,
    /// Methods by file: the first one's line, and how many.
    methods: BTreeMap<String, (usize, usize)>,
}

impl Definition {
    /// Returns whether methods in a file are of this type: there, or below the folder of that name.
    fn is_home_of(&self, file: &str) -> bool {
        let home = self.file.strip_suffix("/mod.rs").or(self.file.strip_suffix(".rs")).unwrap_or(&self.file);
        file == self.file || file.strip_prefix(home).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// The types of each crate, as they are gathered.
#[derive(Default)]
pub struct Types(BTreeMap<(String, String), Type>);

impl Types {
    /// Takes note of a file.
    pub fn add(&mut self, name: &str, lines: &[source::Line]) {
        let Some((krate, _)) = rooms::module_path(name) else { return };
        if leftovers::is_test_file(name) {
            return;
        }
        let mut inside: Option<(String, bool)> = None;
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
            let code = line.code.trim_end();
            if !code.starts_with(' ') {
                inside = None;
                if let Some(ty) = defined(code) {
                    let t = self.0.entry((krate.to_string(), ty.clone())).or_default();
                    t.defined.push(Definition { file: name.to_string(), line: number + 1, fields: 0 });
                    inside = code.ends_with('{').then_some((ty, false));
                } else if let Some(ty) = implemented(code) {
                    inside = Some((ty, true));
                }
                continue;
            }
            let Some((ty, is_impl)) = &inside else { continue };
            let Some(own) = code.strip_prefix("    ").filter(|c| !c.starts_with(' ')) else { continue };
            let t = self.0.entry((krate.to_string(), ty.clone())).or_default();
            if *is_impl && is_function(own) {
                t.methods.entry(name.to_string()).or_insert((number + 1, 0)).1 += 1;
            } else if !*is_impl
                && own.contains(':')
                && !own.starts_with('#')
                && let Some(d) = t.defined.last_mut()
            {
                d.fields += 1;
            }
        }
    }

    /// Complains about types that are spread or too large.
    pub fn check(&self, findings: &mut Vec<Finding>) {
        for ((krate, ty), t) in &self.0 {
            let key = (krate.as_str(), ty.as_str());
            if LEFT.contains(&key) {
                continue;
            }
            for (file, (line, n)) in &t.methods {
                if let Some(d) = t.defined.first()
                    && !t.defined.iter().any(|d| d.is_home_of(file))
                {
                    findings.push(Finding {
                        file: file.clone(),
                        line: *line,
                        message: format!(
                            "{n} methods of `{ty}`, which {} defines: make them functions",
                            d.file
                        ),
                    });
                }
            }
            for d in &t.defined {
                let methods: usize = t.methods.iter().filter(|m| d.is_home_of(m.0)).map(|(_, m)| m.1).sum();
                let is_looked_at = HOT.contains(&krate.as_str()) && !SURFACE.contains(&key);
                if is_looked_at && (d.fields > FIELDS || methods > METHODS) {
                    findings.push(Finding {
                        file: d.file.clone(),
                        line: d.line,
                        message: format!(
                            "`{ty}` has {} fields and {methods} methods: {FIELDS} and {METHODS} are the most",
                            d.fields
                        ),
                    });
                }
            }
        }
    }
}

/// The name of the struct or enum that a line defines.
fn defined(code: &str) -> Option<String> {
    let code = visible(code);
    let rest = code.strip_prefix("struct ").or(code.strip_prefix("enum "))?;
    Some(source::words(rest).next()?.to_string())
}

/// The name of the type that an inherent `impl` is about.
fn implemented(code: &str) -> Option<String> {
    let rest = code.strip_prefix("unsafe ").unwrap_or(code).strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generics) => {
            let mut depth = 1;
            let end = generics.find(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0
            })?;
            &generics[end + 1..]
        }
        None => rest,
    };
    if !rest.starts_with(' ') || rest.contains(" for ") {
        return None;
    }
    Some(source::words(rest).next()?.to_string())
}

fn visible(code: &str) -> &str {
    let Some(rest) = code.strip_prefix("pub") else { return code };
    let rest = match rest.strip_prefix('(') {
        Some(r) => r.split_once(')').map_or(rest, |r| r.1),
        None => rest,
    };
    rest.trim_start()
}

fn is_function(code: &str) -> bool {
    let code = visible(code);
    let code = code.strip_prefix("const ").unwrap_or(code);
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    code.starts_with("fn ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(files: &[(&str, &str)]) -> Vec<String> {
        let mut types = Types::default();
        for (name, text) in files {
            types.add(&format!("crates/{name}"), &source::lines(text));
        }
        let mut findings = Vec::new();
        types.check(&mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn methods_lie_with_their_type() {
        let home = ("lanefs/src/core/mod.rs", "pub(crate) struct Core {\n    a: u8,\n}\n");
        let method = "impl Core {\n    pub fn f(&self) {}\n}\n";
        assert_eq!(told(&[home, ("lanefs/src/core/space.rs", method)]), [""; 0]);
        assert_eq!(
            told(&[home, ("lanefs/src/ops/link.rs", "impl Drop for Core {\n    fn f() {}\n}\n")]),
            [""; 0]
        );
        let upward = told(&[home, ("lanefs/src/ops/link.rs", method)]);
        assert!(upward[0].starts_with("crates/lanefs/src/ops/link.rs:2: 1 methods of `Core`"), "{upward:?}");
        let generic = "impl<'a, T: Ord<u8>> Core<'a, T> {\n    const fn f() {}\n}\n";
        assert_eq!(told(&[home, ("lanefs/src/ops/link.rs", generic)]).len(), 1);
    }

    #[test]
    fn no_type_holds_everything() {
        let fields = |n: usize| (0..n).map(|i| format!("    f{i}: u8,\n")).collect::<String>();
        let methods = |n: usize| (0..n).map(|i| format!("    fn f{i}() {{}}\n")).collect::<String>();
        let text = |f, m| format!("struct T {{\n{}}}\nimpl T {{\n{}}}\n", fields(f), methods(m));
        assert_eq!(told(&[("lanefs/src/t.rs", &text(FIELDS, METHODS))]), [""; 0]);
        assert_eq!(told(&[("lanefs/src/t.rs", &text(FIELDS + 1, 0))]).len(), 1);
        assert_eq!(told(&[("lanefs/src/t.rs", &text(0, METHODS + 1))]).len(), 1);
        assert_eq!(told(&[("lanefs-cli/src/t.rs", &text(FIELDS + 1, METHODS + 1))]), [""; 0]);
    }
}
