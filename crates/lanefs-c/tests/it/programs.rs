//! The examples, and the program of docs/C.md.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the crate's folder.
fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command; what it prints comes with the failure.
fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{command:?}: {}\n{}{}", out.status, text(&out.stdout), text(&out.stderr));
    out
}

/// Returns the prefix below which the library is installed, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("c-library");
        let mut build = Command::new(env!("CARGO"));
        build.args(["xtask", "c-library", "--out"]).arg(&out).arg("--debug");
        run(build.current_dir(here()));
        out
    })
}

/// Returns what pkg-config would: the flags that lanefs.pc holds under this key.
fn flags(key: &str) -> Vec<String> {
    let text = std::fs::read_to_string(prefix().join("lib/pkgconfig/lanefs.pc")).unwrap();
    let value = |key: &str, sign: char| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(sign));
        line.unwrap_or_else(|| panic!("{key} in {text}")).trim().to_string()
    };
    let prefix = value("prefix", '=');
    let dirs = [("${libdir}", "libdir"), ("${includedir}", "includedir")];
    let expanded = dirs.iter().fold(value(key, ':'), |v, (from, to)| v.replace(from, &value(to, '=')));
    expanded.replace("${prefix}", &prefix).split_whitespace().map(String::from).collect()
}

/// Compiles a source against the shared library, or links the static one.
pub fn compile(source: &Path, shared: bool) -> PathBuf {
    compile_with(source, shared, &[])
}

/// The same, with flags.
fn compile_with(source: &Path, shared: bool, flags: &[&str]) -> PathBuf {
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    let to = prefix().join(format!("program-{}", COMPILED.fetch_add(1, Ordering::Relaxed)));
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"]).args(flags);
    cc.args(self::flags("Cflags")).arg(source);
    match shared {
        true => {
            cc.args(self::flags("Libs")).arg(format!("-Wl,-rpath,{}", prefix().join("lib").display()));
        }
        false => {
            cc.arg(prefix().join("lib/liblanefs.a")).args(self::flags("Libs.private"));
        }
    }
    run(cc.arg("-o").arg(&to));
    to
}

pub fn example(name: &str) -> PathBuf {
    here().join("examples").join(name).with_extension("c")
}

/// Runs a program that says at its end that it came there.
fn says(command: &mut Command, words: &str) {
    let out = run(command);
    assert!(String::from_utf8_lossy(&out.stdout).contains(words), "{command:?}: {out:?}");
}

#[test]
fn every_call_answers_as_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let tour = compile(&example("tour"), true);
    says(Command::new(&tour).arg(dir.path().join("tour.lane")), "tour done");
    says(&mut Command::new(compile(&example("tour"), false)), "tour done");
}

#[test]
fn threads_share_a_volume() {
    says(&mut Command::new(compile(&example("threads"), true)), "threads done");
}

/// Content against a copy in memory, also when the volume was closed and opened meanwhile.
#[test]
fn random_operations_on_a_file_leave_what_they_must() {
    let operations = std::env::var("LANEFS_OPS").unwrap_or_else(|_| "4000".into());
    let (dir, fsx) = (tempfile::tempdir().unwrap(), compile(&example("fsx"), true));
    for seed in ["1", "2"] {
        says(Command::new(&fsx).arg(dir.path().join("fsx.lane")).args([&operations, seed]), "fsx done");
    }
}

/// Needs root, or fusermount3 and a /dev/fuse that this user may open.
#[test]
fn a_mount_is_served_beside_the_calls() {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(e) = fuse {
        eprintln!("/dev/fuse: {e}: not tested");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    says(Command::new(compile(&example("served"), true)).arg(dir.path()), "served done");
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    says(&mut Command::new(compile(&example("refused"), true)), "refused done");
}

/// No invalid read or write, and nothing is lost: what is still there at the end is reachable.
#[test]
fn valgrind_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tour = compile(&example("tour"), true);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    says(valgrind.arg(&tour).arg(dir.path().join("tour.lane")), "tour done");
}

/// Nothing is read or written behind the end of memory, used when it was given back, given back
/// twice, or lost: neither by the programs nor, in what it has from the allocator or hands to the C
/// library, by LaneFS.
#[test]
fn the_address_sanitizer_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sanitized = |name| {
        let program = compile_with(
            &example(name),
            false,
            &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        );
        let mut command = Command::new(program);
        command.env("ASAN_OPTIONS", "detect_leaks=1:detect_stack_use_after_return=1");
        command
    };
    says(sanitized("tour").arg(dir.path().join("tour.lane")), "tour done");
    says(&mut sanitized("threads"), "threads done");
    says(&mut sanitized("refused"), "refused done");
    says(sanitized("fsx").arg(dir.path().join("fsx.lane")).args(["1000", "3"]), "fsx done");
}

/// Nothing but the calls is seen from outside, and each has its version.
#[test]
fn symbols_have_versions_and_no_others_are_exported() {
    let shared = prefix().join("lib/liblanefs.so");
    let out = run(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(&shared));
    let listed = String::from_utf8(out.stdout).unwrap();
    let names: Vec<&str> = listed.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    assert!(names.contains(&"lanefs_open@@LANEFS_0.1"), "{names:?}");
    let strange = |n: &&&str| !n.ends_with("@@LANEFS_0.1") && !n.starts_with("LANEFS_0.1");
    assert_eq!(names.iter().find(strange), None);
    let header = std::fs::read_to_string(prefix().join("include/lanefs.h")).unwrap();
    for name in names.iter().filter_map(|n| n.strip_suffix("@@LANEFS_0.1")) {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
    let out = run(Command::new("readelf").arg("-d").arg(&shared));
    assert!(String::from_utf8_lossy(&out.stdout).contains("[liblanefs.so.0]"));
}

#[test]
fn the_program_in_the_documentation_runs() {
    let page = std::fs::read_to_string(here().join("../../docs/C.md")).unwrap();
    let program = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("page.c");
    std::fs::write(&source, program).unwrap();
    let compiled = compile(&source, true);
    for bytes in [6, 12] {
        let out = run(Command::new(&compiled).current_dir(dir.path()));
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("notes has {bytes} bytes\n"));
    }
}
