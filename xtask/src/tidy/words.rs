//! Words that are not used here: a reader knows them for something else, or not at all. Comments,
//! identifiers and the documents are looked at, literals are not.

use super::Finding;
use crate::source::{Line, words};
use std::collections::BTreeMap;

/// A word with a better one.
struct Banned {
    what: What,
    /// The word to write in its place.
    instead: &'static str,
    /// The reason why it is wrong.
    why: &'static str,
    /// The files that have some left: the beginning of their names, and how many lines. More is a
    /// finding, and so is fewer.
    left: &'static [(&'static str, usize)],
}

/// The word or name that is looked for.
enum What {
    /// A word in lower case, in all its forms. In an identifier each part is a word.
    Word(&'static [&'static str]),
    /// An identifier, as it is written.
    Name(&'static str),
}

const BANNED: &[Banned] = &[
    Banned {
        what: What::Word(&["mend", "mends", "mended", "mending"]),
        instead: "repair (a volume) or fix (a mistake)",
        why: "as fsck and everybody else does",
        left: &[],
    },
    Banned {
        what: What::Word(&["crowd", "crowds", "crowded"]),
        instead: "pool",
        why: "a set of threads that take turns is one",
        left: &[("crates/lanefs-store/", 7)],
    },
    Banned {
        what: What::Word(&["crew", "crews"]),
        instead: "what it is",
        why: "a set of threads or workers is no ship's",
        left: &[],
    },
    Banned {
        what: What::Word(&["team", "teams"]),
        instead: "threads or workers",
        why: "nobody is on a team here",
        left: &[],
    },
    Banned {
        what: What::Name("absence"),
        instead: "what happens, such as blocking_hook",
        why: "a thread that waits is not absent",
        left: &[],
    },
    Banned {
        what: What::Name("call_in"),
        instead: "flush_kernel_pages",
        why: "it has the kernel write pages back, and calls nobody",
        left: &[],
    },
    Banned {
        what: What::Word(&["renounce", "renounces", "renounced"]),
        instead: "disable or refuse",
        why: "a program renounces nothing",
        left: &[],
    },
    Banned {
        what: What::Name("Side"),
        instead: "Endpoint",
        why: "a copy goes from one endpoint to another",
        left: &[],
    },
    Banned { what: What::Name("Given"), instead: "CopyAttrs", why: "it says not what is given", left: &[] },
    Banned {
        what: What::Name("Mistake"),
        instead: "Fault",
        why: "an injected fault has one name in all checkers",
        left: &[],
    },
    Banned {
        what: What::Name("Lie"),
        instead: "DeviceFault",
        why: "an injected fault has one name in all checkers",
        left: &[],
    },
    Banned {
        what: What::Name("Plant"),
        instead: "PlantedFault",
        why: "an injected fault has one name in all checkers",
        left: &[],
    },
    Banned { what: What::Name("Todo"), instead: "Task", why: "a note to oneself is called so", left: &[] },
    Banned {
        what: What::Name("story"),
        instead: "transcript",
        why: "what was called and answered is no tale",
        left: &[],
    },
    Banned {
        what: What::Word(&["arrow", "arrows"]),
        instead: "import or dependency",
        why: "a picture is not needed for what has a name",
        left: &[],
    },
    Banned { what: What::Word(&["house"]), instead: "code or project", why: "nobody lives here", left: &[] },
    Banned { what: What::Name("sseq"), instead: "split_seq", why: "nobody reads it", left: &[] },
    Banned {
        what: What::Name("log_presses"),
        instead: "log_needs_fold",
        why: "a log presses nobody",
        left: &[],
    },
    Banned {
        what: What::Name("metadata_presses"),
        instead: "metadata_pressure",
        why: "a log presses nobody",
        left: &[],
    },
    Banned { what: What::Name("owe_no_more"), instead: "sub_unfolded", why: "it counts inodes", left: &[] },
    Banned { what: What::Name("forgo"), instead: "cancel_unfolded", why: "it counts inodes", left: &[] },
    Banned {
        what: What::Name("note_owed"),
        instead: "reserve_space",
        why: "it keeps segments back",
        left: &[],
    },
    Banned { what: What::Name("let_go_born"), instead: "evict_made", why: "it frees memory", left: &[] },
    Banned {
        what: What::Name("dies_now"),
        instead: "drop_block_now",
        why: "a block is dropped by its inode",
        left: &[],
    },
    Banned {
        what: What::Name("cell_or_new"),
        instead: "get_or_new",
        why: "the store's cached inode is one",
        left: &[],
    },
    Banned { what: What::Name("StateCell"), instead: "StateLock", why: "it is a lock", left: &[] },
    Banned { what: What::Name("tell_copy"), instead: "report_copy", why: "it goes into a report", left: &[] },
    Banned { what: What::Name("Bury"), instead: "Free", why: "inodes are freed", left: &[] },
    Banned { what: What::Name("demolish"), instead: "free_tree", why: "it frees memory", left: &[] },
    Banned {
        what: What::Name("give_back_unmade"),
        instead: "release_cancelled",
        why: "it gives room back",
        left: &[],
    },
    Banned { what: What::Name("bury_orphans"), instead: "free_orphans", why: "inodes are freed", left: &[] },
    Banned {
        what: What::Name("read_kept_at"),
        instead: "read_uncached_at",
        why: "what is kept it does not say",
        left: &[],
    },
    Banned {
        what: What::Name("write_kept_at"),
        instead: "write_uncached_at",
        why: "what is kept it does not say",
        left: &[],
    },
    Banned {
        what: What::Name("Birth"),
        instead: "NewInodeAttrs",
        why: "it is what a new inode has",
        left: &[],
    },
    Banned {
        what: What::Name("relieve"),
        instead: "flush_if_full, evict_or_flush or free_space",
        why: "it was three things",
        left: &[],
    },
    Banned { what: What::Name("is_much"), instead: "exceeds_share", why: "of what", left: &[] },
    Banned { what: What::Name("tighten"), instead: "update_throttle", why: "it may loosen, too", left: &[] },
    Banned {
        what: What::Word(&["room", "rooms"]),
        instead: "space, capacity or slot; a layer or module",
        why: "it was three things",
        left: &[
            ("crates/lanefs-cli/", 12),
            ("crates/lanefs-format/", 21),
            ("crates/lanefs-fuse/", 2),
            ("crates/lanefs-store/", 69),
            ("crates/lanefs/", 23),
            ("docs/", 5),
            ("lab/", 19),
            ("xtask/", 38),
        ],
    },
    Banned {
        what: What::Word(&["settle", "settles", "settled", "settling"]),
        instead: "what is done: flush, count, zero, publish",
        why: "it was nine things",
        left: &[],
    },
];

/// The lines with such words, as they are gathered.
pub struct Words {
    banned: &'static [Banned],
    /// By the place in the list: files and lines, from 1.
    found: BTreeMap<usize, Vec<(String, usize)>>,
}

impl Default for Words {
    fn default() -> Words {
        Words::of(BANNED)
    }
}

impl Words {
    fn of(banned: &'static [Banned]) -> Words {
        Words { banned, found: BTreeMap::new() }
    }

    /// Takes note of a source file.
    pub fn add_source(&mut self, name: &str, lines: &[Line]) {
        for (number, line) in lines.iter().enumerate() {
            let parts: Vec<String> = words(&line.code).chain(words(&line.comment)).flat_map(parts).collect();
            self.add(name, number, &parts, |name| words(&line.code).any(|word| word == name));
        }
    }

    /// Takes note of a document.
    pub fn add_document(&mut self, name: &str, text: &str) {
        for (number, line) in text.lines().enumerate() {
            let parts: Vec<String> = words(line).flat_map(parts).collect();
            self.add(name, number, &parts, |name| words(line).any(|word| word == name));
        }
    }

    fn add(&mut self, file: &str, number: usize, parts: &[String], names: impl Fn(&str) -> bool) {
        for (at, banned) in self.banned.iter().enumerate() {
            let hit = match banned.what {
                What::Word(forms) => parts.iter().any(|part| forms.contains(&part.as_str())),
                What::Name(name) => names(name),
            };
            if hit {
                self.found.entry(at).or_default().push((file.to_string(), number + 1));
            }
        }
    }

    /// Complains about what is more, or fewer, than what is left.
    pub fn check(&self, findings: &mut Vec<Finding>) {
        for (at, banned) in self.banned.iter().enumerate() {
            let found = self.found.get(&at).map_or(&[][..], Vec::as_slice);
            let (word, instead) = (banned.what.first(), banned.instead);
            for (place, left) in banned.left {
                let mut there = found.iter().filter(|(file, _)| file.starts_with(place));
                let is = there.clone().count();
                if is > *left {
                    let message = format!(
                        "{is} lines with `{word}` below {place}, {left} were left: write {instead}, {}",
                        banned.why
                    );
                    let last = there.next_back().map_or((String::new(), 0), Clone::clone);
                    findings.push(Finding { file: last.0, line: last.1, message });
                } else if is < *left {
                    let message = format!("{is} lines with `{word}` are left: lower {left} in words.rs");
                    findings.push(Finding { file: place.to_string(), line: 0, message });
                }
            }
            let covered = |file: &str| banned.left.iter().any(|(place, _)| file.starts_with(place));
            for (file, line) in found.iter().filter(|(file, _)| !covered(file)) {
                let message = format!("`{word}`: write {instead}, {}", banned.why);
                findings.push(Finding { file: file.clone(), line: *line, message });
            }
        }
    }
}

impl What {
    /// Returns its name in a message.
    fn first(&self) -> &'static str {
        match self {
            What::Word(forms) => forms.first().unwrap_or(&""),
            What::Name(name) => name,
        }
    }
}

/// The words of an identifier, in lower case: what lies between underscores and before capitals.
fn parts(identifier: &str) -> impl Iterator<Item = String> {
    let mut parts = vec![String::new()];
    let mut small_before = false;
    for letter in identifier.chars() {
        if letter == '_' || (letter.is_uppercase() && small_before) {
            parts.push(String::new());
        }
        small_before = letter.is_lowercase();
        if letter != '_'
            && let Some(last) = parts.last_mut()
        {
            last.extend(letter.to_lowercase());
        }
    }
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    const LIST: &[Banned] = &[
        Banned {
            what: What::Word(&["widget", "widgets"]),
            instead: "part",
            why: "nobody knows what it is",
            left: &[("crates/old/", 2)],
        },
        Banned { what: What::Name("Side"), instead: "Endpoint", why: "a side of what?", left: &[] },
    ];

    fn told(files: &[(&str, &str)]) -> Vec<String> {
        let mut words = Words::of(LIST);
        for (name, text) in [("crates/old/a.rs", "// a widget\nfn widget() {}\n")].iter().chain(files) {
            match name.ends_with(".rs") {
                true => words.add_source(name, &source::lines(text)),
                false => words.add_document(name, text),
            }
        }
        let mut findings = Vec::new();
        words.check(&mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn words_are_found_in_comments_and_in_parts_of_identifiers() {
        for text in [
            "// Widgets are old.\n",
            "fn make_widget() {}\n",
            "struct WidgetMaker;\n",
            "const WIDGET: u8 = 1;\n",
        ] {
            let told = told(&[("crates/new/a.rs", text)]);
            assert_eq!(told.len(), 1, "{text}");
            assert!(told[0].starts_with("crates/new/a.rs:1: `widget`: write part, "), "{told:?}");
        }
        assert_eq!(told(&[("docs/A.md", "One.\nTwo widgets.\n")]).len(), 1);
        assert_eq!(told(&[("crates/new/a.rs", "f(\"widget\"); // the midwidgets\n")]), [""; 0]);
    }

    #[test]
    fn names_are_found_as_they_are_written() {
        assert_eq!(told(&[("crates/new/a.rs", "struct Side; // one side, Side\n")]).len(), 1);
        assert_eq!(told(&[("crates/new/a.rs", "fn side(inside: Sides) {} // a Side\n")]), [""; 0]);
    }

    #[test]
    fn what_is_left_grows_no_more_and_is_counted_down() {
        let more = told(&[("crates/old/b.rs", "\n// one more widget\n")]);
        assert_eq!(more.len(), 1, "{more:?}");
        assert!(more[0].starts_with("crates/old/b.rs:2: 3 lines"), "{more:?}");
        let mut fewer = Vec::new();
        Words::of(LIST).check(&mut fewer);
        assert_eq!(fewer.len(), 1, "{fewer:?}");
    }

    #[test]
    fn no_word_is_told_to_be_written_in_place_of_another() {
        for banned in BANNED {
            let What::Word(forms) = banned.what else { continue };
            for other in BANNED {
                let mut said = words(other.instead).flat_map(parts);
                assert!(!said.any(|word| forms.contains(&word.as_str())), "{}", other.instead);
            }
        }
    }
}
