//! The copy of the workspace's source that has the faults.

use crate::edits::PLANTED;
use crate::{EDITS, Edit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The source of a workspace: its files by their names, relative to its root.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// Returns the source below a workspace's root, without what is built and what is hidden.
pub fn read(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name();
            let path = folder.join(&name);
            if name.to_string_lossy().starts_with('.') || path == Path::new("target") {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                tree.insert(path.to_string_lossy().into_owned(), fs::read(entry.path())?);
            }
        }
    }
    Ok(tree)
}

/// Plants all faults in a tree. Fails if an edit does not find its place, or finds two.
pub fn plant(tree: &mut Tree) -> Result<(), String> {
    let mut crates = BTreeSet::new();
    for edit in EDITS.iter().copied().flatten() {
        let text = text_of(tree, edit.file)?;
        let changed = edited(&text, edit)?;
        tree.insert(edit.file.to_string(), changed.into_bytes());
        let end = edit.file.find("/src/").ok_or(format!("{}: not the source of a crate", edit.file))?;
        crates.insert(&edit.file[..end]);
    }
    for name in crates {
        let manifest = format!("{name}/Cargo.toml");
        let from = "[dependencies]\n";
        replace(tree, &manifest, from, &format!("{from}lanefs-lab-faults.workspace = true\n"))?;
    }
    let (from, to) = ("IN_THIS_PROGRAM: bool = false", "IN_THIS_PROGRAM: bool = true");
    replace(tree, "lab/faults/src/lib.rs", from, to)
}

/// Makes what is below `root` this tree. Files that are right already keep their times, so that
/// nothing is compiled again without need; what is built below `root/target` stays.
pub fn write(tree: &Tree, root: &Path) -> io::Result<()> {
    fs::create_dir_all(root)?;
    let there = read(root)?;
    for gone in there.keys().filter(|name| !tree.contains_key(*name)) {
        fs::remove_file(root.join(gone))?;
    }
    for (name, bytes) in tree.iter().filter(|(name, bytes)| there.get(*name) != Some(bytes)) {
        let path = root.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, bytes)?;
    }
    Ok(())
}

fn text_of(tree: &Tree, file: &str) -> Result<String, String> {
    let bytes = tree.get(file).ok_or(format!("{file}: an edit of lab/faults names it, and it is gone"))?;
    String::from_utf8(bytes.clone()).map_err(|e| format!("{file}: {e}"))
}

fn replace(tree: &mut Tree, file: &str, from: &str, to: &str) -> Result<(), String> {
    let text = text_of(tree, file)?;
    if text.matches(from).count() != 1 {
        return Err(format!("{file}: `{from}` should stand there once"));
    }
    tree.insert(file.to_string(), text.replacen(from, to, 1).into_bytes());
    Ok(())
}

/// Returns a file's text with one edit made.
fn edited(text: &str, edit: &Edit) -> Result<String, String> {
    let (flat, places) = unindented(text);
    let (from, _) = unindented(edit.from);
    let mut found = flat.match_indices(&from);
    let (Some((at, _)), None) = (found.next(), found.next()) else {
        return Err(format!(
            "{}: the place of the planted fault {:?} is not there exactly once; make its edit in \
             lab/faults/src/edits follow the source:\n{}",
            edit.file, edit.fault, edit.from
        ));
    };
    let question = format!("::lanefs_lab_faults::planted(::lanefs_lab_faults::Fault::{:?})", edit.fault);
    let (begin, end) = (places[at], places[at + from.len()]);
    Ok(format!("{}{}{}", &text[..begin], edit.to.replace(PLANTED, &question), &text[end..]))
}

/// Returns a text without the spaces that its lines begin with, and where each of its bytes, and
/// its end, lies in the whole.
fn unindented(text: &str) -> (String, Vec<usize>) {
    let (mut flat, mut places) = (String::new(), Vec::new());
    let mut begins = true;
    for (at, c) in text.char_indices() {
        begins = c == '\n' || begins && c == ' ';
        if c == '\n' || !begins {
            flat.push(c);
            places.extend(at..at + c.len_utf8());
        }
    }
    places.push(text.len());
    (flat, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    const EDIT: Edit = Edit {
        fault: Fault::NoParent,
        file: "a.rs",
        from: "if a {\n    b();",
        to: "if a || $PLANTED {\nb();",
    };

    #[test]
    fn all_edits_find_their_places_in_the_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut tree = read(&root).unwrap();
        let before = tree.clone();
        plant(&mut tree).unwrap();
        let changed = tree.iter().filter(|(name, bytes)| before[*name] != **bytes).count();
        assert!(changed > EDITS.len(), "{changed} files");
    }

    #[test]
    fn every_fault_has_an_edit_that_asks_for_it() {
        for fault in Fault::ALL.into_iter().chain(Fault::OF_THREADS) {
            let mut edits = EDITS.iter().copied().flatten().filter(|e| e.fault == fault).peekable();
            assert!(edits.peek().is_some(), "{fault:?} has none");
            for e in edits {
                assert!(e.to.contains(PLANTED) && !e.from.contains(PLANTED), "{fault:?}: {}", e.from);
            }
        }
    }

    #[test]
    fn an_edit_is_made_wherever_the_lines_are_indented() {
        let text = "fn f() {\n        if a {\n            b();\n        }\n}\n";
        let asks = "::lanefs_lab_faults::planted(::lanefs_lab_faults::Fault::NoParent)";
        let expected = format!("fn f() {{\n        if a || {asks} {{\nb();\n        }}\n}}\n");
        assert_eq!(edited(text, &EDIT).unwrap(), expected);
    }

    #[test]
    fn an_edit_whose_place_is_gone_or_twice_there_says_which() {
        for text in ["", "if a {\n c();", "if a {\nb();\nif a {\n  b();\n"] {
            let why = edited(text, &EDIT).unwrap_err();
            assert!(why.contains("a.rs") && why.contains("NoParent"), "{why}");
        }
    }
}
