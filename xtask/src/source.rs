//! Rust source, line by line, with code, comments and text of literals told apart.
//!
//! Not a parser: it knows comments, literals, and where a `#[cfg(test)]` item begins and ends,
//! which is what the checks ask.

/// A line of a source file.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The code, with literals emptied and comments gone.
    pub code: String,
    /// The text of its comments.
    pub comment: String,
    /// Whether it belongs to an item under `#[cfg(test)]` or the like.
    pub test: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    LineComment,
    BlockComment(u32),
    /// A string; raw ones end with this many hashes.
    Text(Option<usize>),
}

/// Splits source text.
pub fn lines(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        let (now, next) = (chars[at], chars.get(at + 1).copied().unwrap_or('\0'));
        if now == '\n' {
            if state == State::LineComment {
                state = State::Code;
            }
            lines.push(Line::default());
            at += 1;
            continue;
        }
        let last = lines.len() - 1;
        let line = &mut lines[last];
        let mut step = 1;
        match state {
            State::LineComment => line.comment.push(now),
            State::BlockComment(depth) => match (now, next) {
                ('*', '/') => {
                    step = 2;
                    state = if depth > 1 { State::BlockComment(depth - 1) } else { State::Code };
                }
                ('/', '*') => {
                    step = 2;
                    state = State::BlockComment(depth + 1);
                }
                _ => line.comment.push(now),
            },
            State::Text(None) => match now {
                // An escaped line end is still a line end.
                '\\' if next != '\n' => step = 2,
                '"' => {
                    line.code.push('"');
                    state = State::Code;
                }
                _ => {}
            },
            State::Text(Some(hashes)) => {
                if now == '"' && (1..=hashes).all(|hash| chars.get(at + hash) == Some(&'#')) {
                    line.code.push('"');
                    step += hashes;
                    state = State::Code;
                }
            }
            State::Code => match (now, next) {
                ('/', '/') => {
                    step = 2;
                    state = State::LineComment;
                }
                ('/', '*') => {
                    step = 2;
                    state = State::BlockComment(1);
                }
                ('"', _) => {
                    line.code.push('"');
                    state = State::Text(None);
                }
                ('r', '"' | '#') if !ends_in_word(&line.code, true) => {
                    let hashes = chars[at + 1..].iter().take_while(|hash| **hash == '#').count();
                    if chars.get(at + 1 + hashes) == Some(&'"') {
                        line.code.push('"');
                        step = 2 + hashes;
                        state = State::Text(Some(hashes));
                    } else {
                        line.code.push(now);
                    }
                }
                ('\'', _) => {
                    step = char_literal(&chars[at..]);
                    line.code.push_str(if step > 1 { "' '" } else { "'" });
                }
                _ => line.code.push(now),
            },
        }
        at += step;
    }
    mark_tests(&mut lines);
    lines
}

/// Returns whether the code ends inside a word; `b` and `c` before a raw string's `r` are prefixes,
/// not words.
fn ends_in_word(code: &str, but_prefix: bool) -> bool {
    let mut tail = code.chars().rev();
    match tail.next() {
        Some('b' | 'c') if but_prefix => tail.next().is_some_and(is_word),
        Some(last) => is_word(last),
        None => false,
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The length of the character literal at the start, or 1 if it is a lifetime.
fn char_literal(chars: &[char]) -> usize {
    match chars {
        ['\'', '\\', _, rest @ ..] => rest.iter().position(|letter| *letter == '\'').map_or(1, |end| end + 4),
        ['\'', letter, '\'', ..] if *letter != '\'' => 3,
        _ => 1,
    }
}

/// Marks the items under an attribute that names `test`.
fn mark_tests(lines: &mut [Line]) {
    let mut at = 0;
    while at < lines.len() {
        if is_test_attribute(&lines[at].code) {
            let end = end_of_item(lines, at);
            lines[at..=end].iter_mut().for_each(|line| line.test = true);
            at = end;
        }
        at += 1;
    }
}

fn is_test_attribute(code: &str) -> bool {
    let code = code.trim();
    let Some(condition) = code.strip_prefix("#[cfg(").or_else(|| code.strip_prefix("#![cfg(")) else {
        return code.starts_with("#[test]");
    };
    let mut all = words(condition);
    all.any(|word| word == "test") && !condition.starts_with("not(") && !condition.contains("any(")
}

/// The last line of the item whose attribute is at `start`: the one that closes its first brace, or
/// has its semicolon.
fn end_of_item(lines: &[Line], start: usize) -> usize {
    let (mut braces, mut brackets) = (0, 0);
    for (at, line) in lines.iter().enumerate().skip(start) {
        for letter in line.code.chars() {
            match letter {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets -= 1,
                '{' => braces += 1,
                '}' => {
                    braces -= 1;
                    if braces == 0 && brackets == 0 {
                        return at;
                    }
                }
                ';' if braces == 0 && brackets == 0 => return at,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

/// The identifiers and numbers in some code.
pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter| !is_word(letter)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code.trim_end().to_string()).collect()
    }

    #[test]
    fn comments_and_literals_are_told_from_code() {
        assert_eq!(code("let a = 1; // unsafe {"), ["let a = 1;"]);
        assert_eq!(code("a /* b /* c */ d\ne */ f"), ["a", " f"]);
        assert_eq!(
            code(r#"f("// no \" comment", 'x', '"', '\'', '\u{1F}')"#),
            ["f(\"\", ' ', ' ', ' ', ' ')"]
        );
        assert_eq!(code("r#\"unsafe \"quoted\"\n\"# + br\"x\" + var\"y\""), ["\"", "\" + b\"\" + var\"\""]);
        assert_eq!(code("fn f<'a>(x: &'a u8, y: &'static str)"), ["fn f<'a>(x: &'a u8, y: &'static str)"]);
        assert_eq!(lines("x // SAFETY: y")[0].comment, " SAFETY: y");
        assert_eq!(code("let r#type = 1;"), ["let r#type = 1;"]);
    }

    #[test]
    fn test_items_are_found_with_their_ends() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { \"}\"; }\n}\nfn c() {}\n#[cfg(all(test, unix))]\nuse x;\n\
                    fn d() {}\n#[cfg(not(test))]\nfn e() {}\n#[cfg(any(test, unix))]\nfn f() {}";
        let marked: Vec<usize> =
            lines(text).iter().enumerate().filter(|(_, line)| line.test).map(|(at, _)| at + 1).collect();
        assert_eq!(marked, [2, 3, 4, 5, 7, 8]);
    }
}
