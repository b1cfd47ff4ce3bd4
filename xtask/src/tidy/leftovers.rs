//! Checks that need no knowledge of the project: length, leftovers, ASCII, SAFETY comments,
//! whitespace.

use super::Report;
use crate::source::{Line, words};

/// The most lines of code of a file, its tests and its comments not counted.
const LONGEST: usize = 550;

/// Returns whether a whole file is tests.
pub fn is_test_file(name: &str) -> bool {
    let stem = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".rs");
    name.split('/').rev().skip(1).any(|folder| matches!(folder, "tests" | "benches" | "examples"))
        || matches!(stem, "tests" | "test" | "testing")
        || stem.ends_with("_tests")
        || stem.ends_with("_loom")
}

/// At most [`LONGEST`] lines of code that are not tests.
pub fn check_length(lines: &[Line], report: &mut Report<'_>) {
    let length = lines.iter().filter(|line| !line.test && !line.code.trim().is_empty()).count();
    if length > LONGEST {
        report.file(format!(
            "{length} lines of code without its tests, {LONGEST} are the limit: split it by topic"
        ));
    }
}

/// Blanks at line ends, tabs in Rust, and the newline at the end.
pub fn check_whitespace(text: &str, report: &mut Report<'_>) {
    for (number, line) in text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            report.line(number, "trailing whitespace");
        }
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        report.file("should end with one newline");
    }
}

/// ASCII only: what looks alike must be alike. Other characters in a literal are written as
/// escapes.
pub fn check_ascii(text: &str, report: &mut Report<'_>) {
    for (number, line) in text.lines().enumerate() {
        if let Some(odd) =
            line.chars().find(|letter| !letter.is_ascii() || (letter.is_control() && *letter != '\t'))
        {
            report.line(number, format!("not ASCII: {}", odd.escape_unicode()));
        }
    }
}

/// Notes to oneself and half-done code.
pub fn check_words(lines: &[Line], report: &mut Report<'_>) {
    const NOTES: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];
    const MACROS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
    for (number, line) in lines.iter().enumerate() {
        if let Some(note) = words(&line.comment).find(|word| NOTES.contains(word)) {
            report.line(number, format!("{note}: do it, or say what is missing in the docs"));
        }
        for name in MACROS {
            let hit = line.code.match_indices(name).any(|(at, _)| {
                !line.code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_')
            });
            if hit {
                report.line(number, format!("`{name}` is not finished code"));
            }
        }
    }
}

/// Every unsafe block and impl argues its safety, on its line or right above its statement.
pub fn check_safety(lines: &[Line], report: &mut Report<'_>) {
    for (number, line) in lines.iter().enumerate() {
        let mut rest = line.code.as_str();
        while let Some(at) = rest.find("unsafe") {
            let (before, after) = (&rest[..at], &rest[at + "unsafe".len()..]);
            let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let whole = !before.ends_with(is_word) && !after.starts_with(is_word);
            // A block may open on the next line.
            let next = if after.trim().is_empty() {
                lines.get(number + 1).map_or("", |line| line.code.trim())
            } else {
                after.trim()
            };
            let needs = next.starts_with('{') || next.starts_with("impl");
            if whole && needs && !is_argued(lines, number) {
                report.line(number, "unsafe without a `// SAFETY:` comment right above it");
            }
            rest = after;
        }
    }
}

/// Returns whether a SAFETY comment belongs to the line: on it, or above the statement that it is
/// part of.
fn is_argued(lines: &[Line], number: usize) -> bool {
    let says = |line: &Line| line.comment.trim_start().starts_with("SAFETY");
    if says(&lines[number]) {
        return true;
    }
    for line in lines[..number].iter().rev() {
        if says(line) {
            return true;
        }
        let code = line.code.trim();
        // A comment above an attribute or above the arm of a match belongs to what they hold.
        let passes = code.starts_with("#[") || code.ends_with("=> {");
        let ends_statement = code.ends_with([';', '{', '}']) || (code.is_empty() && line.comment.is_empty());
        if ends_statement && !passes {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use crate::tidy::{Finding, check_file};

    fn check(text: &str) -> Vec<Finding> {
        check_as("crates/lanefs-sync/src/x.rs", text)
    }

    fn check_as(name: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check_file(name, text, &mut findings);
        findings
    }

    /// Only one line is complained about, with this text.
    fn complains(text: &str, line: usize, about: &str) {
        let findings = check(text);
        assert_eq!(findings.len(), 1, "{text:?}: {findings:?}");
        assert_eq!(findings[0].line, line, "{text:?}");
        assert!(findings[0].message.contains(about), "{text:?}: {findings:?}");
    }

    #[test]
    fn length_counts_without_tests() {
        let fits = "f();\n".repeat(549);
        assert_eq!(check(&fits), []);
        assert_eq!(check(&format!("{fits}{}", "//\n".repeat(99))), [], "comments are no code");
        complains(&"f();\n".repeat(551), 0, "lines of code without its tests");
        assert_eq!(check(&format!("{fits}#[cfg(test)]\nmod tests {{\n{}}}\n", "f();\n".repeat(300))), []);
        assert_eq!(check_as("crates/lanefs-sync/tests/it/main.rs", &"f();\n".repeat(900)), []);
    }

    #[test]
    fn leftovers_are_found_and_literals_are_not() {
        complains("fn f() {} // TODO: more\n", 1, "TODO");
        complains("/* x\n FIXME y */\n", 2, "FIXME");
        complains("fn f() {\n    todo!()\n}\n", 2, "todo!");
        complains("fn f() { unimplemented!(\"x\") }\n", 1, "unimplemented!");
        assert_eq!(check("fn f() -> &'static str { \"TODO todo!()\" }\n"), []);
        assert_eq!(check("fn f() { my_todo!() } // TODOS of others\n"), []);
    }

    #[test]
    fn whitespace_and_ascii() {
        complains("fn f() {} \n", 1, "trailing");
        complains("fn f() {}", 0, "newline");
        complains("fn f() {}\n\n", 0, "newline");
        complains("// \u{201c}x\u{201d}\n", 1, "201c");
        assert_eq!(check_as("docs/X.md", "na\u{ef}ve\n"), [], "prose may use more than ASCII");
        assert_eq!(check_as("docs/X.md", "x \n").len(), 1);
    }

    #[test]
    fn unsafe_must_be_argued() {
        complains("fn f() {\n    unsafe { g() }\n}\n", 2, "SAFETY");
        complains("unsafe impl Send for X {}\n", 1, "SAFETY");
        complains("// SAFETY: of the other one.\nlet a = 1;\nunsafe { g() };\n", 3, "SAFETY");
        complains("fn f() {\n    // SAFETY: too far.\n\n    unsafe { g() }\n}\n", 4, "SAFETY");
        for good in [
            "fn f() {\n    // SAFETY: g asks for nothing,\n    // today.\n    unsafe { g() }\n}\n",
            "fn f() {\n    // SAFETY: one statement.\n    let x =\n        h(1, unsafe { g() });\n}\n",
            "// SAFETY: plain data.\n#[cfg(unix)]\nunsafe impl Send for X {}\n",
            "fn f() { g(unsafe { h() }) } // SAFETY: same line.\n",
            "match x {\n    // SAFETY (both): an arm.\n    A => {\n        unsafe { g() }\n    }\n}\n",
            "/// # Safety\n/// None.\npub unsafe fn f() {}\n#![deny(unsafe_op_in_unsafe_fn)]\n",
            "// an unsafe { in a comment\nconst S: &str = \"unsafe {\";\n",
        ] {
            assert_eq!(check(good), [], "{good}");
        }
    }
}
