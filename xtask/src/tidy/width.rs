//! Comments and documents in columns that an eye follows: what is prose ends at the hundredth.

use super::Report;
use crate::source::Line;

/// The most columns of a line of prose.
const WIDEST: usize = 100;

const TOO_WIDE: &str = "more than 100 columns: break it";

/// Returns whether a line could be broken: it is no row of a table, no part of a drawing, and has a
/// blank to break it at.
fn is_prose(text: &str) -> bool {
    let text = text.trim_start();
    let is_row = text.starts_with('|') || text.starts_with('#');
    let is_drawn = text.split_once(' ').is_some_and(|(_, rest)| rest.contains("  "));
    // A span of code is not broken.
    let outside: String = text.split('`').step_by(2).collect();
    let label = outside.find(|c: char| c.is_alphabetic()).unwrap_or(0);
    !is_row && !is_drawn && outside[label..].trim_end().contains(' ')
}

/// Which lines lie between two lines of three backticks.
fn fenced<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<bool> {
    let mut inside = false;
    lines
        .map(|line| {
            let is_fence = line.trim_start().starts_with("```");
            inside ^= is_fence;
            inside || is_fence
        })
        .collect()
}

/// Comments that have their lines for themselves.
pub fn check_comments(text: &str, lines: &[Line], report: &mut Report<'_>) {
    let fences = fenced(lines.iter().map(|line| line.comment.trim_start_matches(['/', '!'])));
    for (number, (line, source)) in lines.iter().zip(text.lines()).enumerate() {
        let comment = line.comment.trim_start_matches(['/', '!']);
        let alone = line.code.trim().is_empty() && !comment.is_empty();
        if alone && source.chars().count() > WIDEST && !fences[number] && is_prose(comment) {
            report.line(number, TOO_WIDE);
        }
    }
}

/// Paragraphs and lists of a document.
pub fn check_document(text: &str, report: &mut Report<'_>) {
    let fences = fenced(text.lines());
    for (number, line) in text.lines().enumerate() {
        let is_code = fences[number] || line.starts_with("    ");
        if line.chars().count() > WIDEST && !is_code && is_prose(line) {
            report.line(number, TOO_WIDE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Finding;

    fn told(check: impl FnOnce(&mut Report<'_>)) -> Vec<usize> {
        let mut findings: Vec<Finding> = Vec::new();
        check(&mut Report { file: "f", findings: &mut findings });
        findings.iter().map(|f| f.line).collect()
    }

    #[test]
    fn wide_prose_is_told_and_tables_and_drawings_are_not() {
        let wide = "word ".repeat(25);
        let text = format!(
            "{wide}\n- {wide}\n| {wide} |\n    {wide}\n```\n{wide}\n```\n# {wide}\nshort\n`{wide}`\n"
        );
        assert_eq!(told(|r| check_document(&text, r)), [1, 2]);
        let text =
            format!("//! {wide}\nlet x = 1; // {wide}\n/// a   {wide}\n/// one `{wide}`\n    // {wide}\n");
        let lines = crate::source::lines(&text);
        assert_eq!(told(|r| check_comments(&text, &lines, r)), [1, 5]);
    }
}
