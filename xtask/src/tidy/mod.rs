//! Walks the workspace and applies every check.

mod assertions;
mod circles;
mod crates;
mod leftovers;
mod paths;
mod rooms;
mod types;
mod width;
mod words;

use crate::source;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Something to fix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the workspace.
    pub file: String,
    /// The line, from 1; 0 if it is about the whole file.
    pub line: usize,
    /// The message that says what is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, message } = self;
        if *line == 0 { write!(out, "{file}: {message}") } else { write!(out, "{file}:{line}: {message}") }
    }
}

/// Collects the findings of one file.
pub struct Report<'a> {
    file: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Report<'_> {
    /// Complains about a line, given from 0.
    pub fn line(&mut self, line: usize, message: impl Into<String>) {
        self.findings.push(Finding { file: self.file.to_string(), line: line + 1, message: message.into() });
    }

    /// Complains about the file.
    pub fn file(&mut self, message: impl Into<String>) {
        self.findings.push(Finding { file: self.file.to_string(), line: 0, message: message.into() });
    }
}

/// Checks every file below a workspace's root.
pub fn check_workspace(root: &Path) -> io::Result<Vec<Finding>> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut findings = Vec::new();
    let mut assertions = assertions::Assertions::default();
    let mut circles = circles::Circles::default();
    let mut paths = paths::Paths::default();
    let mut types = types::Types::default();
    let mut words = words::Words::default();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        let bytes = fs::read(&path)?;
        match String::from_utf8(bytes) {
            Ok(text) => {
                paths.add(&name, &text);
                if name.ends_with(".rs") {
                    circles.add(&name, &text);
                    let lines = source::lines(&text);
                    assertions.add(&name, &lines);
                    types.add(&name, &lines);
                    words.add_source(&name, &lines);
                } else if name.ends_with(".md") {
                    words.add_document(&name, &text);
                }
                check_file(&name, &text, &mut findings);
            }
            Err(_) => Report { file: &name, findings: &mut findings }.file("is not UTF-8"),
        }
    }
    assertions.check(&mut findings);
    circles.check(&mut findings);
    circles.check_lists(&mut findings);
    types.check(&mut findings);
    paths.check(&mut findings);
    words.check(&mut findings);
    findings.sort();
    Ok(findings)
}

/// Checks one file by its name relative to the workspace.
pub fn check_file(name: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut report = Report { file: name, findings };
    leftovers::check_whitespace(text, &mut report);
    if name.ends_with(".rs") {
        let lines = source::lines(text);
        leftovers::check_ascii(text, &mut report);
        leftovers::check_words(&lines, &mut report);
        leftovers::check_safety(&lines, &mut report);
        width::check_comments(text, &lines, &mut report);
        if !leftovers::is_test_file(name) {
            leftovers::check_length(&lines, &mut report);
            rooms::check(name, &lines, &mut report);
        }
    } else if name.ends_with(".md") {
        width::check_document(text, &mut report);
    } else if name.ends_with("Cargo.toml") {
        leftovers::check_ascii(text, &mut report);
        crates::check(name, text, &mut report);
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        // Hidden folders belong to tools, and a folder `target` beside a manifest to cargo.
        let of_cargo = name == "target" && folder.join("Cargo.toml").exists();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !of_cargo {
                collect(&path, files)?;
            }
        } else if [".rs", ".toml", ".md"].iter().any(|ending| name.ends_with(ending)) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_walked_and_places_are_named() {
        let root = std::env::temp_dir().join(format!("xtask-tidy-{}", std::process::id()));
        let src = root.join("crates/lanefs/src/memfs");
        fs::create_dir_all(&src).unwrap();
        fs::create_dir_all(root.join("target")).unwrap();
        fs::write(root.join("Cargo.toml"), "[workspace]\n").unwrap();
        fs::write(root.join("target/built.rs"), "\t\t \n").unwrap();
        fs::write(src.join("cell.rs"), "fn f() {}\nuse lanefs_store::BlockAddr; \n").unwrap();
        let findings = check_workspace(&root);
        fs::remove_dir_all(&root).unwrap();
        // The circles that are left in the crate are not in this workspace; that is told of no
        // file.
        let told: Vec<String> =
            findings.unwrap().iter().filter(|f| f.line > 0).map(Finding::to_string).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.iter().all(|line| line.starts_with("crates/lanefs/src/memfs/cell.rs:2: ")), "{told:?}");
        assert!(told.iter().any(|line| line.contains("BlockAddr")));
        assert!(told.iter().any(|line| line.contains("whitespace")));
    }

    /// A folder of sources may be called `target`; it was passed over, and a circle through it was
    /// not seen.
    #[test]
    fn only_cargos_own_target_folder_is_passed_over() {
        let root = std::env::temp_dir().join(format!("xtask-tidy-target-{}", std::process::id()));
        let src = root.join("crates/lanefs-bench/src/target");
        fs::create_dir_all(&src).unwrap();
        fs::write(src.join("mod.rs"), "fn f() {} \n").unwrap();
        let findings = check_workspace(&root);
        fs::remove_dir_all(&root).unwrap();
        let file = "crates/lanefs-bench/src/target/mod.rs";
        assert!(findings.unwrap().iter().any(|f| f.file == file && f.message.contains("whitespace")));
    }
}
