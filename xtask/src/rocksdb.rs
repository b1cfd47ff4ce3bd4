//! `cargo xtask rocksdb-plugin --out DIR`: LaneFS for RocksDB below a prefix:
//! `lib/librocksdb_lanefs.so`, which a program is run with or linked to, and
//! `include/lanefs_rocksdb.h`.
//!
//! The C library is linked into it: there is one file to preload, which needs nothing of ours at
//! run time and cannot meet another version of itself.

use crate::c_library::{NEEDS, header};
use crate::programs::volume::target;
use crate::run::{cargo, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources, below `crates/lanefs-rocksdb/cpp`; `preload.cc` is what a plugin that is built into
/// RocksDB leaves out (CMakeLists.txt and lanefs.mk there).
const SOURCES: [&str; 6] = ["file_system.cc", "files.cc", "preload.cc", "reads.cc", "status.cc", "volume.cc"];

/// What every source is compiled with.
const FLAGS: [&str; 7] = ["-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread", "-DNDEBUG"];
// RocksDB asks as much of its plugins.
const WARNINGS: [&str; 6] =
    ["-Wall", "-Wextra", "-Wshadow", "-Woverloaded-virtual", "-Wnon-virtual-dtor", "-Werror"];

const USAGE: &str = "rocksdb-plugin --out DIR [--debug] [--rocksdb PREFIX]";

/// What the arguments ask for.
#[derive(Default)]
struct Wanted {
    out: PathBuf,
    /// The Rust part with its assertions.
    debug: bool,
    /// Where RocksDB is, if not where the compiler looks.
    rocksdb: Option<PathBuf>,
}

fn parse(args: &[&str]) -> Result<Wanted, String> {
    let (mut wanted, mut out) = (Wanted::default(), None);
    let absolute = |p: &str| std::path::absolute(p).map_err(|e| format!("{p}: {e}"));
    let mut rest = args.iter();
    while let Some(argument) = rest.next() {
        match (*argument, rest.as_slice().first()) {
            ("--debug", _) => wanted.debug = true,
            ("--out", Some(dir)) => out = Some(absolute(dir)?),
            ("--rocksdb", Some(prefix)) => wanted.rocksdb = Some(absolute(prefix)?),
            _ => return Err(format!("usage: {USAGE}")),
        }
        if *argument != "--debug" {
            rest.next();
        }
    }
    wanted.out = out.ok_or(format!("usage: {USAGE}"))?;
    Ok(wanted)
}

/// Builds it.
pub fn main(args: &[&str]) -> Result<(), String> {
    let wanted = parse(args)?;
    let mut build = cargo(&["build", "--package", "lanefs-c"]);
    if !wanted.debug {
        build.arg("--release");
    }
    run(&mut build)?;
    let built = target().join(if wanted.debug { "debug" } else { "release" });
    let (lib, include) = (wanted.out.join("lib"), wanted.out.join("include"));
    for dir in [&lib, &include] {
        std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    header(&include.join("lanefs.h"))?;
    let cpp = root().join("crates/lanefs-rocksdb/cpp");
    let public = include.join("lanefs_rocksdb.h");
    std::fs::copy(cpp.join("lanefs_rocksdb.h"), &public).map_err(|e| format!("{}: {e}", public.display()))?;
    let objects = compile(&wanted, &cpp, &include)?;
    link(&wanted, &cpp, &objects, &built.join("liblanefs_c.a"), &lib.join("librocksdb_lanefs.so"))
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()))
}

/// Compiles the sources, as many at once as there are processors; returns the objects.
fn compile(wanted: &Wanted, cpp: &Path, include: &Path) -> Result<Vec<PathBuf>, String> {
    let dir = wanted.out.join("obj");
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let object = |source: &&str| dir.join(source).with_extension("o");
    let one = |source: &&str| {
        let mut cxx = compiler();
        cxx.args(FLAGS).args(WARNINGS);
        if let Some(prefix) = &wanted.rocksdb {
            cxx.arg("-isystem").arg(prefix.join("include"));
        }
        cxx.arg("-I").arg(include).arg("-c").arg(cpp.join(source)).arg("-o").arg(object(source));
        run(&mut cxx)
    };
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let share = SOURCES.len().div_ceil(jobs);
        let threads: Vec<_> =
            SOURCES.chunks(share).map(|part| scope.spawn(move || part.iter().try_for_each(one))).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread failed".to_string())?)
    })?;
    Ok(SOURCES.iter().map(object).collect())
}

/// Links the shared library. It names RocksDB's as needed, so that other programs of a preloaded
/// shell start with it, too.
fn link(
    wanted: &Wanted,
    cpp: &Path,
    objects: &[PathBuf],
    archive: &Path,
    shared: &Path,
) -> Result<(), String> {
    let mut cxx = compiler();
    cxx.args(["-shared", "-Wl,--gc-sections", "-Wl,--no-undefined", "-Wl,-z,relro,-z,now,-z,nodelete"]);
    cxx.arg(format!("-Wl,--version-script={}", cpp.join("librocksdb_lanefs.map").display()));
    if let Some(prefix) = &wanted.rocksdb {
        cxx.arg("-L").arg(prefix.join("lib"));
    }
    run(cxx.args(objects).arg(archive).arg("-lrocksdb").args(NEEDS).arg("-o").arg(shared))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn arguments_are_read_or_refused() {
        let wanted = parse(&["--rocksdb", "/opt/r", "--debug", "--out", "/x"]).unwrap();
        assert_eq!((wanted.out.to_str(), wanted.debug), (Some("/x"), true));
        assert_eq!(wanted.rocksdb.unwrap().to_str(), Some("/opt/r"));
        for bad in [&["--debug"][..], &["--out"], &["--out", "/x", "more"], &[]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
