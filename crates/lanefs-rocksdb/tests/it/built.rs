//! What is tested: the library as a user installs it, and programs that are linked to it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the crate's folder.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command; what it prints comes with the failure.
pub fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, text(&out));
    out
}

/// Returns what a program has said.
pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Installs the plugin.
pub fn install(out: &Path, options: &[&str]) -> Output {
    let mut build = Command::new(env!("CARGO"));
    build.args(["xtask", "rocksdb-plugin", "--debug", "--out"]).arg(out).args(options);
    run(build.current_dir(here()))
}

/// Returns the prefix below which it is installed, once for all tests.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rocksdb");
        install(&out, &[]);
        out
    })
}

/// Returns the library that programs are run with.
pub fn library() -> PathBuf {
    prefix().join("lib/librocksdb_lanefs.so")
}

/// Compiles a program of tests/cpp.
pub fn compile(name: &str) -> PathBuf {
    let (lib, to) = (prefix().join("lib"), prefix().join(name));
    let mut cxx = Command::new("c++");
    cxx.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g1", "-I"]).arg(prefix().join("include"));
    cxx.arg(here().join("tests/cpp").join(name).with_extension("cc")).arg("-L").arg(&lib);
    cxx.args(["-lrocksdb_lanefs", "-lrocksdb"]).arg(format!("-Wl,-rpath,{}", lib.display()));
    run(cxx.arg("-o").arg(&to));
    to
}

/// Returns a program of RocksDB's, to be run in a folder with the library.
pub fn stock(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).current_dir(dir);
    command
}
