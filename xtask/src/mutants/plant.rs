//! From a source file to the same file with a mistake at every place that has room for one, each
//! asleep until its number is called.
//!
//! Not a parser: it knows comments, literals, brackets, where functions, statements and conditions
//! begin and end. What does not compile is found by compiling (`judge.rs`), and left out. No line
//! is added, so lines of errors are lines of the file.

use std::collections::BTreeSet;

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its number, above 0.
    pub id: usize,
    /// The file, from the workspace's root.
    pub file: String,
    /// The line.
    pub line: usize,
    /// What is done there.
    pub what: String,
}

impl Mutant {
    /// Its file and line.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

const AWAKE: &str = "lanefs_sync::mutated";
const CHANGED: &str = "lanefs_sync::changed";

/// Statements that begin with one of these are no work that could be left out, or only say
/// something.
const NOT_WORK: [&str; 36] = [
    "let",
    "return",
    "break",
    "continue",
    "use",
    "pub",
    "fn",
    "const",
    "static",
    "struct",
    "enum",
    "impl",
    "mod",
    "type",
    "if",
    "else",
    "match",
    "while",
    "for",
    "loop",
    "unsafe",
    "extern",
    "trait",
    "where",
    "drop",
    "tracing",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "unreachable",
    "panic",
    "println",
    "eprintln",
];

/// The text with everything in comments, literals and items under `#[cfg(test)]` blanked, byte by
/// byte.
fn mask(text: &str) -> Vec<u8> {
    let t = text.as_bytes();
    let mut out = t.to_vec();
    let mut at = 0;
    let blank = |out: &mut Vec<u8>, from: usize, to: usize| {
        let to = to.min(out.len());
        out[from..to].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
    };
    while at < t.len() {
        let rest = &text[at..];
        let end = if rest.starts_with("//") {
            at + rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            at + rest.find("*/").map_or(rest.len(), |n| n + 2)
        } else if rest.starts_with('"') {
            let mut i = at + 1;
            while i < t.len() && t[i] != b'"' {
                i += if t[i] == b'\\' { 2 } else { 1 };
            }
            i + 1
        } else if t[at] == b'\'' && (t.get(at + 1) == Some(&b'\\') || t.get(at + 2) == Some(&b'\'')) {
            let skip = if t.get(at + 1) == Some(&b'\\') { 3 } else { 2 };
            at + skip + text[at + skip..].find('\'').unwrap_or(0) + 1
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        blank(&mut out, at, end);
        if t[at] == b'"' || t[at] == b'\'' {
            out[at] = b'0'; // It counts as a word.
        }
        at = end;
    }
    let code = String::from_utf8_lossy(&out).into_owned();
    for (from, _) in code.match_indices("#[cfg(test)]") {
        let open = code[from..].find(['{', ';']).map_or(code.len() - 1, |n| n + from);
        let end = if out[open] == b'{' { closing(&out, open) } else { open };
        blank(&mut out, from, end + 1);
    }
    out
}

/// Where the bracket at `open` is closed.
fn closing(code: &[u8], open: usize) -> usize {
    let mut depth = 0;
    for (i, b) in code.iter().enumerate().skip(open) {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
    }
    code.len() - 1
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// The word at `at`.
fn word(code: &[u8], at: usize) -> &str {
    let end = code[at..].iter().position(|b| !is_word(*b)).map_or(code.len(), |n| at + n);
    std::str::from_utf8(&code[at..end]).unwrap_or("")
}

/// Places of a word, as a word.
fn places<'a>(code: &'a [u8], what: &'a str) -> impl Iterator<Item = usize> + 'a {
    let text = std::str::from_utf8(code).unwrap_or("");
    text.match_indices(what)
        .map(|m| m.0)
        .filter(move |&i| (i == 0 || !is_word(code[i - 1]) && code[i - 1] != b'\'') && word(code, i) == what)
}

/// From `at` to the first of `ends` outside of brackets.
fn until(code: &[u8], at: usize, ends: &[&str]) -> usize {
    let mut i = at;
    while i < code.len() {
        if ends.iter().any(|e| code[i..].starts_with(e.as_bytes())) {
            return i;
        }
        i = match code[i] {
            b'(' | b'[' | b'{' => closing(code, i) + 1,
            b')' | b']' | b'}' => return i,
            _ => i + 1,
        };
    }
    i
}

/// Pieces of `from..to` between `between`, outside of brackets.
fn split(code: &[u8], from: usize, to: usize, between: &str) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut start = from;
    loop {
        let end = until(&code[..to], start, &[between]);
        out.push((start, end));
        if end >= to {
            return out;
        }
        start = end + between.len();
    }
}

fn trimmed(code: &[u8], (mut from, mut to): (usize, usize)) -> (usize, usize) {
    while from < to && code[from].is_ascii_whitespace() {
        from += 1;
    }
    while to > from && code[to - 1].is_ascii_whitespace() {
        to -= 1;
    }
    (from, to)
}

/// What a function may answer at once, by its type.
fn answers(kind: &str) -> Vec<String> {
    let kind: String = kind.split_whitespace().collect();
    let inner = |head: &str| {
        let k = kind.trim_start_matches("crate::").trim_start_matches("std::io::");
        k.strip_prefix(head)
            .and_then(|k| k.strip_prefix('<'))
            .and_then(|k| k.strip_suffix('>'))
            .map(String::from)
    };
    let s = |v: &[&str]| v.iter().map(|s| (*s).to_string()).collect();
    match kind.as_str() {
        "" | "()" => s(&[""]),
        "bool" => s(&["true", "false"]),
        "u64" | "u32" | "usize" | "i64" => s(&["0", "1"]),
        _ if kind.starts_with("Option<") => s(&["None"]),
        _ if kind.starts_with("Vec<") => s(&["Vec::new()"]),
        _ => match inner("Result") {
            Some(ok) if !ok.contains(',') || ok.starts_with('(') || ok.starts_with("Vec<") => {
                let ok = if ok == "()" { vec!["()".into()] } else { answers(&ok) };
                ok.iter().filter(|a| !a.is_empty()).map(|a| format!("Ok({a})")).collect()
            }
            _ => Vec::new(),
        },
    }
}

struct Planter<'a> {
    file: &'a str,
    text: &'a str,
    code: Vec<u8>,
    without: &'a BTreeSet<usize>,
    next: usize,
    mutants: Vec<Mutant>,
    /// Where, what: those at one place in this order.
    inserts: Vec<(usize, i64, String)>,
}

impl Planter<'_> {
    /// A number for a mistake at `at`, unless it is one of those to be left out.
    fn mutant(&mut self, at: usize, what: String) -> Option<usize> {
        let id = self.next;
        self.next += 1;
        if self.without.contains(&id) {
            return None;
        }
        let line = self.text[..at].matches('\n').count() + 1;
        self.mutants.push(Mutant { id, file: self.file.into(), line, what });
        Some(id)
    }

    fn source(&self, (from, to): (usize, usize)) -> String {
        let s: Vec<&str> = self.text[from..to].split_whitespace().collect();
        let s = s.join(" ");
        if s.chars().count() > 90 { s.chars().take(87).chain("...".chars()).collect() } else { s }
    }

    /// Opens before what else begins at `from`, closes behind what else ends at `to`.
    fn wrap(&mut self, (from, to): (usize, usize), open: String, close: String) {
        let len = (to - from) as i64;
        self.inserts.push((from, -len, open));
        self.inserts.push((to, len - (1 << 40), close));
    }

    /// Functions: an answer without the work. Returns their bodies.
    fn functions(&mut self) -> Vec<(usize, usize)> {
        let code = self.code.clone();
        let mut bodies = Vec::new();
        for at in places(&code, "fn").collect::<Vec<_>>() {
            let Some(open) = code[at..].iter().position(|b| *b == b'(').map(|n| n + at) else { continue };
            let after = closing(&code, open) + 1;
            let end = until(&code, after, &["{", ";"]);
            if code.get(end) != Some(&b'{') {
                continue;
            }
            bodies.push((end, closing(&code, end)));
            let head = String::from_utf8_lossy(&code[after..end]).into_owned();
            let head = head.split(" where").next().unwrap_or("").split("\nwhere").next().unwrap_or("");
            let kind = head.trim().strip_prefix("->").unwrap_or(head).trim().to_string();
            if self.text[..at].trim_end().ends_with("const") {
                continue;
            }
            let name = word(&code, at + 3).to_string();
            for a in answers(&kind) {
                let told = if a.is_empty() { "does nothing".into() } else { format!("answers {a} at once") };
                if let Some(id) = self.mutant(at, format!("`{name}` {told}")) {
                    self.inserts.push((end + 1, id as i64, format!(" if {AWAKE}({id}) {{ return {a}; }}")));
                }
            }
        }
        bodies
    }

    /// Conditions: each part always true, always false, with the other bound. They are asked all
    /// the same, so that a judge that they never gave another answer need not be asked.
    fn conditions(&mut self, bodies: &[(usize, usize)]) {
        let code = self.code.clone();
        let mut all: Vec<(usize, bool)> = places(&code, "if").map(|i| (i + 2, false)).collect();
        all.extend(places(&code, "while").map(|i| (i + 5, true)));
        all.sort_unstable();
        for (at, again) in all {
            if !bodies.iter().any(|b| b.0 < at && at < b.1) {
                continue;
            }
            let end = until(&code, at, &["{", "=>"]);
            for or in split(&code, at, end, "||") {
                for and in split(&code, or.0, or.1, "&&") {
                    let part = trimmed(&code, and);
                    if part.0 >= part.1 || word(&code, part.0) == "let" {
                        // Behind a pattern comes no `||`; a closure's bars may look like one.
                        continue;
                    }
                    let source = self.source(part);
                    // A condition within a condition ends it for us too early.
                    if places(&code[part.0..part.1], "if").next().is_some() {
                        continue;
                    }
                    if code[part.0..part.1].iter().filter(|b| **b == b'|').count() % 2 == 1 {
                        continue;
                    }
                    let (mut open, mut close) = (String::new(), String::new());
                    for to in [true, false] {
                        if again && to {
                            continue;
                        }
                        if let Some(id) = self.mutant(part.0, format!("`{source}` always {to}")) {
                            open += &format!("{CHANGED}({id}, {to}, ");
                            close.insert(0, ')');
                        }
                    }
                    open += "(";
                    close.insert(0, ')');
                    self.bound(&code, part, &mut open, &mut close);
                    self.wrap(part, open, close);
                }
            }
        }
    }

    /// `<` for `<=` and the like.
    fn bound(&mut self, code: &[u8], part: (usize, usize), open: &mut String, close: &mut String) {
        if code[part.0..part.1].contains(&b'{') {
            return;
        }
        for (op, other) in [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > ")] {
            let at = until(&code[..part.1], part.0, &[op]);
            if at >= part.1 {
                continue;
            }
            let source = self.source(part);
            let changed = format!("{}{other}{}", &self.text[part.0..at], &self.text[at + op.len()..part.1]);
            let changed: Vec<&str> = changed.split_whitespace().collect();
            let changed = changed.join(" ");
            if changed.contains("//") {
                return;
            }
            if let Some(id) = self.mutant(at, format!("`{source}` with{other}instead")) {
                // What calls nothing may be asked twice.
                if !source.contains('(') && !source.ends_with("...") {
                    open.push_str(&format!("{CHANGED}({id}, {changed}, "));
                    close.insert(0, ')');
                    return;
                }
                open.push_str(&format!("if {AWAKE}({id}) {{ {changed} }} else {{ "));
                close.insert_str(0, " }");
            }
            return;
        }
    }

    /// Statements that are left out.
    fn statements(&mut self, bodies: &[(usize, usize)]) {
        let code = self.code.clone();
        for at in 1..code.len() {
            let first = code[at];
            if !(is_word(first) && !first.is_ascii_digit() || first == b'*') || is_word(code[at - 1]) {
                continue;
            }
            let before = code[..at].iter().rposition(|b| !b.is_ascii_whitespace());
            if !before.is_some_and(|i| matches!(code[i], b'{' | b'}' | b';')) {
                continue;
            }
            if NOT_WORK.contains(&word(&code, at)) || !bodies.iter().any(|b| b.0 < at && at < b.1) {
                continue;
            }
            let end = until(&code, at, &[";", "=>", ","]);
            if code.get(end) != Some(&b';') {
                continue;
            }
            // What is declared without a value must get one.
            let name = word(&code, at);
            let after = code[at + name.len()..end].trim_ascii_start();
            if after.starts_with(b"= ")
                && places(&code, name).any(|i| code[..i].ends_with(b"let ") && code[i + name.len()] == b';')
            {
                continue;
            }
            let whole = (at, end + 1);
            let source = self.source(whole);
            if let Some(id) = self.mutant(at, format!("without `{source}`")) {
                self.wrap(whole, format!("if !{AWAKE}({id}) {{ "), " }".into());
            }
        }
    }

    /// `+ 1` without the one.
    fn ones(&mut self, bodies: &[(usize, usize)]) {
        let code = self.code.clone();
        let text = String::from_utf8_lossy(&code).into_owned();
        for op in [" + 1", " - 1"] {
            for (at, _) in text.match_indices(op) {
                let end = at + op.len();
                if code.get(end).is_some_and(|b| is_word(*b) || *b == b'.')
                    || !bodies.iter().any(|b| b.0 < at && at < b.1)
                {
                    continue;
                }
                let begin = text[..at].rfind('\n').map_or(0, |n| n + 1);
                let stop = text[at..].find('\n').map_or(text.len(), |n| n + at);
                let source = self.source((begin, stop));
                if let Some(id) = self.mutant(at, format!("without the `{}` in `{source}`", op.trim())) {
                    self.wrap((end - 1, end), format!("(if {AWAKE}({id}) {{ 0 }} else {{ "), " })".into());
                }
            }
        }
    }
}

/// Plants mistakes with numbers from `first` on, but those of `without`: the text, the mistakes,
/// the number after the last.
pub fn plant(
    file: &str,
    text: &str,
    first: usize,
    without: &BTreeSet<usize>,
) -> (String, Vec<Mutant>, usize) {
    let code = mask(text);
    let mut p = Planter { file, text, code, without, next: first, mutants: Vec::new(), inserts: Vec::new() };
    let bodies = p.functions();
    p.conditions(&bodies);
    p.statements(&bodies);
    p.ones(&bodies);
    p.inserts.sort_by_key(|i| (i.0, i.1));
    let mut out = String::new();
    let mut at = 0;
    for (place, _, what) in &p.inserts {
        out.push_str(&text[at..*place]);
        out.push_str(what);
        at = *place;
    }
    out.push_str(&text[at..]);
    p.mutants.sort_by_key(|m| (m.line, m.id));
    (out, p.mutants, p.next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        plant("x.rs", text, 1, &BTreeSet::new())
            .1
            .into_iter()
            .map(|m| format!("{} {}", m.line, m.what))
            .collect()
    }

    #[test]
    fn each_kind_of_place_gets_its_mistakes() {
        let text = "fn f(a: u64) -> Result<()> {\n    work(a + 1)?;\n    if a < 2 && let Some(x) = y { tracing::info!(\"if b\"); }\n    Ok(())\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { work(); } }\n";
        assert_eq!(
            told(text),
            [
                "1 `f` answers Ok(()) at once",
                "2 without `work(a + 1)?;`",
                "2 without the `+ 1` in `work(a + 1)?;`",
                "3 `a < 2` always true",
                "3 `a < 2` always false",
                "3 `a < 2` with <= instead",
            ]
        );
        let (out, ..) = plant("x.rs", text, 1, &(2..=6).collect());
        assert_eq!(
            out.replace(" if lanefs_sync::mutated(1) { return Ok(()); }", "").replace("(a < 2)", "a < 2"),
            text
        );
        assert_eq!(plant("x.rs", text, 1, &BTreeSet::new()).0.lines().count(), text.lines().count());
    }

    #[test]
    fn what_is_no_statement_is_left_alone() {
        assert!(told("const A: [u8; 4] = [0; 4];\nstruct S { a: u8 }\n").is_empty());
        assert!(told("fn f() -> S {\n    match x { A => y, _ => z }\n}\n").is_empty());
        assert_eq!(
            told("fn f() -> S {\n    match x { A if b => { c(); } _ => z }\n}\n"),
            ["2 `b` always true", "2 `b` always false", "2 without `c();`"]
        );
    }
}
