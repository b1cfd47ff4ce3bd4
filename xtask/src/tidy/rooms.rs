//! Imports between the rooms inside a crate, and words that must not be known somewhere
//! (ARCHITECTURE.md, "The rooms"). Tests are not looked at: they may see everything.

use super::Report;
use crate::source::{Line, words};

/// Modules of one crate that may not name certain others.
struct Room {
    krate: &'static str,
    /// Top-level modules that make up the room.
    modules: &'static [&'static str],
    /// Top-level modules of the same crate that lie above it.
    above: &'static [&'static str],
}

const SURFACE: &[&str] = &["ops", "persist", "fs", "file", "node"];

const ROOMS: &[Room] = &[
    // persist -> ops -> core -> memfs, oplog
    Room { krate: "lanefs", modules: &["persist"], above: &["fs", "file", "node"] },
    Room { krate: "lanefs", modules: &["ops"], above: &["persist", "fs", "file", "node"] },
    Room { krate: "lanefs", modules: &["core"], above: SURFACE },
    Room { krate: "lanefs", modules: &["memfs"], above: &["core", "ops", "persist", "fs", "file", "node"] },
    Room {
        krate: "lanefs",
        modules: &["oplog"],
        above: &["core", "ops", "persist", "memfs", "fs", "file", "node"],
    },
    // store -> fsck -> recovery -> engine -> inodes -> log -> tree -> device
    Room { krate: "lanefs-store", modules: &["device"], above: ABOVE_DEVICE },
    // The structures know the log only through block_io.
    Room { krate: "lanefs-store", modules: &["tree"], above: ABOVE_TREE },
    Room { krate: "lanefs-store", modules: &["log"], above: ABOVE_LOG },
    Room { krate: "lanefs-store", modules: &["inodes"], above: ABOVE_INODES },
    Room { krate: "lanefs-store", modules: &["engine"], above: ABOVE_ENGINE },
    Room { krate: "lanefs-store", modules: &["recovery"], above: ABOVE_RECOVERY },
    Room { krate: "lanefs-store", modules: &["fsck"], above: ABOVE_FSCK },
];

const ABOVE_DEVICE: &[&str] = &["tree", "log", "inodes", "engine", "recovery", "fsck", "store"];
const ABOVE_TREE: &[&str] = &["device", "log", "inodes", "engine", "recovery", "fsck", "store"];
const ABOVE_LOG: &[&str] = &["inodes", "engine", "recovery", "fsck", "store"];
const ABOVE_INODES: &[&str] = &["engine", "recovery", "fsck", "store"];
const ABOVE_ENGINE: &[&str] = &["recovery", "fsck", "store"];
const ABOVE_RECOVERY: &[&str] = &["fsck", "store"];
const ABOVE_FSCK: &[&str] = &["store"];

/// Identifiers that a part of the tree must not know.
struct Ignorance {
    /// Files whose name begins like this...
    within: &'static str,
    /// ...but not like one of these...
    but: &'static [&'static str],
    /// ...must not use these words in code.
    words: &'static [&'static str],
    why: &'static str,
}

const IGNORANCE: &[Ignorance] = &[
    Ignorance {
        within: "crates/lanefs/src/",
        but: &[],
        words: &["BlockAddr", "BlockSource", "BlockSink"],
        why: "no disk address is known above the store, so that the cleaner never calls up",
    },
    Ignorance {
        within: "crates/lanefs/src/memfs/",
        but: &[],
        words: &["device", "Device"],
        why: "memfs names things by inode number and page",
    },
    Ignorance {
        within: "crates/lanefs/src/oplog/",
        but: &[],
        words: &["device", "Device", "Store"],
        why: "the log of effects knows no store",
    },
    Ignorance {
        within: "crates/lanefs-store/src/",
        but: &["crates/lanefs-store/src/device/"],
        words: &["Path", "PathBuf", "OsStr", "OsString"],
        why: "the store sees no path; only devices open files",
    },
    Ignorance {
        within: "crates/lanefs-store/src/",
        but: &[],
        words: &["Cred", "Credential", "cred"],
        why: "the store sees no credential",
    },
    Ignorance {
        within: "crates/lanefs-format/src/",
        but: &[],
        words: &["fs", "io_uring", "Device", "Mutex", "RwLock", "Path", "PathBuf", "Cred"],
        why: "the format only encodes and decodes",
    },
];

/// Checks one source file that is not a test.
pub fn check(name: &str, lines: &[Line], report: &mut Report<'_>) {
    for rule in IGNORANCE {
        if !name.starts_with(rule.within) || rule.but.iter().any(|but| name.starts_with(but)) {
            continue;
        }
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
            if let Some(word) = words(&line.code).find(|word| rule.words.contains(word)) {
                report.line(number, format!("`{word}` may not be known here: {}", rule.why));
            }
        }
    }
    let Some((krate, path)) = module_path(name) else { return };
    let Some(own) = path.first() else { return };
    let Some(room) = ROOMS.iter().find(|room| room.krate == krate && room.modules.contains(own)) else {
        return;
    };
    for (number, named) in named_modules(lines, path.len()) {
        if room.above.contains(&named.as_str()) {
            report.line(number, format!("`{own}` may not name `{named}`, which lies above it"));
        }
    }
}

/// The modules that the rooms of a crate name.
pub(super) fn listed(krate: &str) -> impl Iterator<Item = &'static str> {
    let rooms = ROOMS.iter().filter(move |room| room.krate == krate);
    rooms.flat_map(|room| room.modules.iter().chain(room.above).copied())
}

/// The crate and the module path of a source file: `crates/lanefs/src/memfs/dir/load.rs` is
/// `memfs::dir::load` of `lanefs`.
pub(super) fn module_path(name: &str) -> Option<(&str, Vec<&str>)> {
    let (krate, file) = name.strip_prefix("crates/")?.split_once("/src/")?;
    let mut path: Vec<&str> = file.strip_suffix(".rs")?.split('/').collect();
    if matches!(path.last(), Some(&"mod" | &"lib" | &"main")) {
        path.pop();
    }
    Some((krate, path))
}

/// The top-level modules that a file at this depth names by `crate::` or by enough `super::`, with
/// the lines.
pub(super) fn named_modules(lines: &[Line], depth: usize) -> Vec<(usize, String)> {
    // One text, so that a group of imports may span lines.
    let mut text = String::new();
    let mut line_of = Vec::new();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
        text.push_str(&line.code);
        text.push('\n');
        line_of.resize(text.len(), number);
    }
    let root = if depth == 0 { None } else { Some("super::".repeat(depth)) };
    let mut found = Vec::new();
    for prefix in ["crate::"].into_iter().chain(root.as_deref()) {
        for (at, _) in text.match_indices(prefix) {
            // `super::super::` does not begin in the middle of a longer chain, nor `crate` in a
            // longer word.
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let starts_here = !(before.is_alphanumeric() || before == '_' || before == ':');
            if starts_here {
                let start = at + prefix.len();
                for (offset, module) in first_words(&text[start..]) {
                    found.push((line_of[start + offset], module));
                }
            }
        }
    }
    found
}

/// The first word of a path, or of each path of a group in braces, with its offset.
fn first_words(text: &str) -> Vec<(usize, String)> {
    let word_at = |at: usize| words(&text[at..]).next().unwrap_or("").to_string();
    if !text.starts_with('{') {
        return vec![(0, word_at(0))];
    }
    let mut found = Vec::new();
    let mut depth = 0;
    let mut expect = true;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => expect = true,
            letter if depth == 1 && expect && !letter.is_whitespace() => {
                found.push((at, word_at(at)));
                expect = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::tidy::{Finding, check_file};

    fn check(name: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check_file(&format!("crates/{name}"), text, &mut findings);
        findings
    }

    #[test]
    fn memfs_knows_no_device_and_nothing_above() {
        let cell = "lanefs/src/memfs/cell.rs";
        assert_eq!(check(cell, "use crate::oplog::Group;\nuse lanefs_store::Ino;\n"), []);
        for bad in [
            "use lanefs_store::BlockAddr;\n",
            "fn f(at: lanefs_store::BlockAddr) {}\n",
            "use lanefs_store::device::Memory;\n",
            "use crate::ops::create;\n",
            "use crate::{\n    error::Error,\n    persist::{fsync, commit},\n};\n",
            "fn f() { super::super::ops::create() }\n",
        ] {
            assert_eq!(check(cell, bad).len(), 1, "{bad}");
        }
        assert_eq!(check(cell, "// a BlockAddr is not known here\nfn f() { super::ops() }\n"), []);
        assert_eq!(check(cell, "#[cfg(test)]\nmod tests {\n    use crate::ops::create;\n}\n"), []);
    }

    #[test]
    fn groups_name_the_line_of_the_culprit() {
        let text = "use crate::{\n    error::{A, ops},\n    persist::fsync,\n};\n";
        let findings = check("lanefs/src/memfs/cell.rs", text);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].line, 3);
    }

    #[test]
    fn supers_are_counted_from_the_file() {
        let deep = "lanefs/src/memfs/dir/load.rs";
        assert_eq!(check(deep, "use super::super::super::persist::fsync;\n").len(), 1);
        assert_eq!(check(deep, "use super::super::writeback::mark;\n"), [], "that is memfs::writeback");
        let room = "lanefs/src/memfs/mod.rs";
        assert_eq!(check(room, "use super::persist::fsync;\n").len(), 1);
    }

    #[test]
    fn the_store_knows_no_path_and_no_credential() {
        assert_eq!(check("lanefs-store/src/store.rs", "use std::path::Path;\n").len(), 1);
        assert_eq!(check("lanefs-store/src/device/file.rs", "use std::path::Path;\n"), []);
        assert_eq!(check("lanefs-store/src/store.rs", "fn f(who: &Cred) {}\n").len(), 1);
    }

    #[test]
    fn the_store_points_down() {
        assert_eq!(check("lanefs-store/src/tree/map.rs", "use crate::tree::block_io::BlockSource;\n"), []);
        assert_eq!(check("lanefs-store/src/tree/map.rs", "use crate::log::mlog::Mlog;\n").len(), 1);
        assert_eq!(check("lanefs-store/src/device/ring.rs", "use crate::store::Store;\n").len(), 1);
        assert_eq!(check("lanefs-format/src/slot.rs", "use lanefs_store::device::Device;\n").len(), 1);
        assert_eq!(
            check("lanefs-store/src/recovery/mod.rs", "use crate::{log::mlog::Mlog, tree::map};\n"),
            []
        );
    }
}
