//! Files that documents name: a document that leads to a file which is not there is wrong.

use super::Finding;
use std::collections::BTreeSet;

/// Documents that tell of what was.
const HISTORY: &[&str] = &["docs/reports/", "docs/FINDINGS.md", "CHANGELOG.md"];

/// The files there are, and those that documents name.
#[derive(Default)]
pub struct Paths {
    files: BTreeSet<String>,
    named: Vec<(String, usize, String)>,
}

impl Paths {
    /// Takes note of a file.
    pub fn add(&mut self, name: &str, text: &str) {
        self.files.insert(format!("/{name}"));
        if !name.ends_with(".md") || HISTORY.iter().any(|h| name.starts_with(h)) {
            return;
        }
        for (number, line) in text.lines().enumerate() {
            for code in line.split('`').skip(1).step_by(2).filter(|c| is_path(c)) {
                self.named.push((name.to_string(), number + 1, code.to_string()));
            }
        }
    }

    /// Complains about files that are named and not there.
    pub fn check(&self, findings: &mut Vec<Finding>) {
        for (file, line, path) in &self.named {
            let end = format!("/{path}");
            if !self.files.iter().any(|f| f.ends_with(&end)) {
                let message = format!("there is no file `{path}`");
                findings.push(Finding { file: file.clone(), line: *line, message });
            }
        }
    }
}

/// Returns whether it names a source file or a document in a folder.
fn is_path(code: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    code.contains('/')
        && !code.starts_with(['/', '.'])
        && code.chars().all(plain)
        && (code.ends_with(".rs") || code.ends_with(".md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_there() {
        let told = |document: &str, text: &str| {
            let mut paths = Paths::default();
            paths.add("crates/lanefs/src/ops/create.rs", "");
            paths.add(document, text);
            let mut findings = Vec::new();
            paths.check(&mut findings);
            findings.iter().map(Finding::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            told("A.md", "see `ops/create.rs`, `crates/lanefs/src/ops/create.rs`, `create.rs`\n"),
            [""; 0]
        );
        assert_eq!(told("A.md", "\nand `ops/unlink.rs`\n"), ["A.md:2: there is no file `ops/unlink.rs`"]);
        assert_eq!(told("A.md", "`ate.rs/create.rs` `/tmp/a.rs`\n").len(), 1);
        assert_eq!(told("docs/reports/old.md", "`ops/unlink.rs`\n"), [""; 0]);
    }
}
