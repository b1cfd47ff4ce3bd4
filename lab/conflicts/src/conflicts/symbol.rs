//! From an address in the program to the line of LaneFS behind it, and to the field that line is
//! about.
//!
//! The instrumentation gives the address of each access and that of its function's caller. Of the
//! functions inlined there the innermost one of LaneFS counts: an atomic's `load` or a mutex's
//! `unlock` is somebody's. The field is what the line names; where it names none (a guard that is
//! dropped at a brace) it is what the lock guards.

use super::trace::Access;
use std::collections::HashMap;
use std::path::Path;

/// A place in the source.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Site {
    /// The function, without generic arguments of its own.
    pub function: String,
    /// File and line, from `crates/` on.
    pub place: String,
    /// `Type.field`, as far as it can be told.
    pub field: Option<String>,
}

/// Resolves addresses; remembers.
#[derive(Debug, Default)]
pub struct Symbols {
    known: HashMap<(usize, usize), Site>,
    frames: HashMap<usize, Vec<(String, String, u32)>>,
    sources: HashMap<String, Vec<String>>,
}

impl Symbols {
    /// The functions at an address, innermost first: name, file, line.
    fn frames(&mut self, pc: usize) -> Vec<(String, String, u32)> {
        if let Some(f) = self.frames.get(&pc) {
            return f.clone();
        }
        let mut out = Vec::new();
        // The call lies before the address it returns to.
        backtrace::resolve((pc - 1) as *mut _, |s| {
            let name = s.name().map(|n| format!("{n:#}")).unwrap_or_default();
            let file = s.filename().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
            out.push((name, file, s.lineno().unwrap_or(0)));
        });
        self.frames.insert(pc, out.clone());
        out
    }

    fn line(&mut self, file: &str, line: u32) -> String {
        let text = self.sources.entry(file.to_string()).or_insert_with(|| {
            let text = std::fs::read_to_string(Path::new(file)).unwrap_or_default();
            text.lines().map(str::to_string).collect()
        });
        // What the compiler made up, as a drop at the end, has line 0.
        (line as usize).checked_sub(1).and_then(|i| text.get(i)).cloned().unwrap_or_default()
    }

    /// Returns the place where an access is made.
    pub fn site(&mut self, a: &Access) -> Site {
        if let Some(s) = self.known.get(&(a.pc, a.caller)) {
            return s.clone();
        }
        let mut all = self.frames(a.pc);
        if a.caller != 0 {
            all.extend(self.frames(a.caller));
        }
        let s = self.pick(&all);
        self.known.insert((a.pc, a.caller), s.clone());
        s
    }

    fn pick(&mut self, all: &[(String, String, u32)]) -> Site {
        let Some(at) = all.iter().position(|f| is_ours(&f.1)) else {
            let f = all.iter().find(|f| !f.1.starts_with("/rustc/")).or(all.first());
            let f = f.cloned().unwrap_or_default();
            let place = f.1.rsplit("/src/index").next().unwrap_or("").split_once('/').map_or("", |p| p.1);
            return Site { function: f.0, place: format!("{place}:{}", f.2), field: None };
        };
        let (function, file, line) = all[at].clone();
        let text = self.line(&file, line);
        let owner = owner(&function);
        let guarded = all[..at].iter().find_map(|f| {
            let inner = f.0.split_once("Guard<parking_lot::raw_mutex::RawMutex, ")?.1;
            Some(format!(
                "Mutex<{}>",
                short(inner.split_once("> as").map_or(inner, |x| x.0).trim_end_matches('>'))
            ))
        });
        let field = field_of(&text, &owner).or(guarded);
        let from = in_tree(&file).map_or(file.as_str(), |i| &file[i..]);
        Site { function: short_function(&function), place: format!("{from}:{line}"), field }
    }

    /// Functions and places of a list of callers, those of LaneFS and of other libraries, innermost
    /// first, up to the function by which LaneFS was entered.
    pub fn backtrace(&mut self, callers: &[usize]) -> Vec<String> {
        let frames: Vec<_> = callers.iter().filter(|p| **p != 0).flat_map(|pc| self.frames(*pc)).collect();
        shorten(within(&frames))
    }
}

/// Returns the frames up to the one by which LaneFS was entered, without those of the standard
/// library. The callers of that one belong to the checker; so does what the checker hands in, as a
/// device: that may lie in between. An access outside of LaneFS has its own frame alone.
fn within(frames: &[(String, String, u32)]) -> Vec<String> {
    let say = |(name, file, line): &(String, String, u32)| {
        let from = in_tree(file).or_else(|| file.rfind("/src/").and_then(|i| file[..i].rfind('/')));
        format!(
            "{} ({}:{line})",
            short_function(name),
            from.map_or(file.as_str(), |i| file[i..].trim_start_matches('/'))
        )
    };
    let told: Vec<_> = frames.iter().filter(|f| !is_standard(&f.1)).collect();
    let end = told.iter().rposition(|f| f.1.contains(LIBRARY));
    told.into_iter().take(end.map_or(1, |i| i + 1)).map(say).collect()
}

/// At most [`FRAMES`], the innermost and the outermost ones.
fn shorten(mut frames: Vec<String>) -> Vec<String> {
    if frames.len() > FRAMES {
        let more = frames.len() - (FRAMES - 1);
        let at = FRAMES - 1 - OUTERMOST;
        frames.splice(at..at + more, [format!("({more} more)")]);
    }
    frames
}

/// Lines of a backtrace at most.
const FRAMES: usize = 16;
/// So many of them are the outermost frames, if there are more.
const OUTERMOST: usize = 4;

/// Returns the position in a file's path at which the part within this tree begins.
fn in_tree(file: &str) -> Option<usize> {
    [LIBRARY, CHECKER].iter().filter_map(|folder| file.rfind(folder)).max()
}

fn is_standard(file: &str) -> bool {
    file.starts_with("/rustc/") || file.contains("/lib/rustlib/src/rust/library/")
}

/// The part of a path that all files of LaneFS have in common.
const LIBRARY: &str = "crates/lanefs";
/// The part of a path that all files of the checker have in common.
const CHECKER: &str = "lab/conflicts/src/";

/// Returns whether a file is of LaneFS, or of the checker where it stands in for a part of LaneFS.
pub(super) fn is_ours(file: &str) -> bool {
    file.contains(LIBRARY) || file.contains(CHECKER) && !file.contains("/trace.rs")
}

/// `a::b::C` to `C`, inside brackets too.
fn short(name: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in name.chars() {
        if c.is_alphanumeric() || c == '_' || c == ':' {
            word.push(c);
        } else {
            out.push_str(word.rsplit("::").next().unwrap_or(""));
            word.clear();
            out.push(c);
        }
    }
    out.push_str(word.rsplit("::").next().unwrap_or(""));
    out
}

/// `<a::b::C>::f::{closure#0}` to `C::f`.
fn short_function(name: &str) -> String {
    let name = name.split("::{closure").next().unwrap_or(name);
    match name.rfind(">::") {
        Some(i) if name.starts_with('<') => format!("{}::{}", owner(name), &name[i + 3..]),
        _ => {
            let parts: Vec<&str> = name.rsplitn(3, "::").collect();
            if parts.len() >= 2 { format!("{}::{}", parts[1], parts[0]) } else { name.to_string() }
        }
    }
}

/// The type whose method a function is.
fn owner(function: &str) -> String {
    let inner = function.strip_prefix('<').unwrap_or(function);
    let inner = inner.split(" as ").next().unwrap_or(inner);
    let inner = inner.split(">::").next().unwrap_or(inner);
    let inner = inner.split('<').next().unwrap_or(inner);
    inner.trim_end_matches('>').rsplit("::").next().unwrap_or(inner).to_string()
}

/// The field that a line uses: `self.a.b.load(` is `Owner.b`, `inode.flags.set(` is `Inode.flags`.
fn field_of(line: &str, owner: &str) -> Option<String> {
    let line = line.trim();
    let code = line.split("//").next().unwrap_or(line);
    const DOES: [&str; 22] = [
        ".load(",
        ".store(",
        ".fetch_",
        ".swap(",
        ".compare_exchange",
        ".lock(",
        ".try_lock(",
        ".read(",
        ".write(",
        ".get(",
        ".set(",
        ".push(",
        ".pop(",
        ".contains(",
        ".insert(",
        ".remove(",
        ".iter(",
        ".is_some(",
        ".is_empty(",
        ".len(",
        ".has(",
        ".clear(",
    ];
    let end = DOES.iter().filter_map(|d| code.find(d)).min()?;
    let start =
        code[..end].rfind(|c: char| !(c.is_alphanumeric() || "_.[]".contains(c))).map_or(0, |i| i + 1);
    let path: Vec<&str> = code[start..end]
        .split('.')
        .map(|p| p.split('[').next().unwrap_or(p))
        .filter(|p| !p.is_empty())
        .collect();
    match path[..] {
        ["self"] | [] => None,
        ["self", .., field] => Some(format!("{owner}.{field}")),
        [.., holder, field] => Some(format!("{}.{field}", type_of(holder))),
        [name] if code.contains(".has(") || code.contains(".set(") || code.contains(".clear(") => {
            Some(format!("{}.flags", type_of(name)))
        }
        [_] => None,
    }
}

/// Returns the type of variables of this name, by the habit of this project.
fn type_of(name: &str) -> &str {
    match name {
        "inode" | "pinode" | "moved" | "c" => "Inode",
        "leaf" | "stripe" => "Leaf",
        "e" | "entry" => "Entry",
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_fields() {
        let f = |l: &str| field_of(l, "Inode");
        assert_eq!(f("if self.lanes.load(Relaxed) & bit == 0 {").as_deref(), Some("Inode.lanes"));
        assert_eq!(f("self.first[n].compare_exchange(0, 1)").as_deref(), Some("Inode.first"));
        assert_eq!(f("if inode.flags.load(SeqCst) & X != 0 {").as_deref(), Some("Inode.flags"));
        assert_eq!(f("let g = self.inner.commit.lock();").as_deref(), Some("Inode.commit"));
        assert_eq!(f("}"), None);
        assert_eq!(f("p.calls.fetch_add(1, Relaxed);").as_deref(), Some("p.calls"));
    }

    #[test]
    fn a_backtrace_ends_where_the_library_is_entered() {
        let f = |name: &str, file: &str, line: u32| (name.to_string(), file.to_string(), line);
        let of_checker = "/x/lab/conflicts/src/conflicts/volume.rs";
        let mut all = vec![
            f("core::sync::atomic::atomic_load", "/rustc/abc/library/core/src/sync/atomic.rs", 9),
            f("core::cell::get", "/t/lib/rustlib/src/rust/library/core/src/cell.rs", 8),
            f("parking_lot::raw_mutex::lock", "/r/parking_lot-0.12/src/raw_mutex.rs", 5),
            f("<lanefs_store::Store>::write", "/x/crates/lanefs-store/src/store.rs", 1),
            f("<lanefs_lab_conflicts::Gate as lanefs_store::Device>::write", of_checker, 2),
            f("<lanefs::Volume>::stat", "/x/crates/lanefs/src/volume.rs", 3),
        ];
        let want = [
            "raw_mutex::lock (parking_lot-0.12/src/raw_mutex.rs:5)",
            "Store::write (crates/lanefs-store/src/store.rs:1)",
            "Gate::write (lab/conflicts/src/conflicts/volume.rs:2)",
            "Volume::stat (crates/lanefs/src/volume.rs:3)",
        ];
        assert_eq!(within(&all), want);
        all.push(f("<lanefs_lab_conflicts::UnderTest>::call", of_checker, 4));
        all.push(f("std::thread::spawn", "/rustc/abc/library/std/src/thread.rs", 7));
        assert_eq!(within(&all), want);
        // What the checker plants lies in no library.
        assert_eq!(within(&all[6..]), ["UnderTest::call (lab/conflicts/src/conflicts/volume.rs:4)"]);
    }

    #[test]
    fn a_long_backtrace_keeps_both_ends() {
        let frames = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
        assert_eq!(shorten(frames(FRAMES)), frames(FRAMES));
        let cut = shorten(frames(20));
        assert_eq!(cut.len(), FRAMES);
        assert_eq!(cut[10..], ["10", "(5 more)", "16", "17", "18", "19"]);
    }

    #[test]
    fn functions_lose_their_paths() {
        assert_eq!(short_function("<lanefs::memfs::inode::Inode>::named_by"), "Inode::named_by");
        assert_eq!(short_function("lanefs::ops::create::go::{closure#0}"), "create::go");
        assert_eq!(owner("<lanefs::memfs::Dir as core::ops::Drop>::drop"), "Dir");
        assert_eq!(short("alloc::vec::Vec<a::B>"), "Vec<B>");
    }
}
