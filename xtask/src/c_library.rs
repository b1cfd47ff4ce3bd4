//! `cargo xtask c-library --out DIR`: the library for C below a prefix: `lib/liblanefs.so`,
//! `lib/liblanefs.a`, `include/lanefs.h`, `lib/pkgconfig/lanefs.pc`; and SQLite's extension,
//! `lib/lanefs_sqlite.so` and `lib/liblanefs_sqlite.a`.
//!
//! The shared library is linked here, from the static one: its symbols have versions
//! (crates/lanefs-c/liblanefs.map), and a `cdylib` comes with a list of its own.

use crate::programs::volume::target;
use crate::run::{cargo, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of the interface: raised when a program that was linked to an older one would break.
const SONAME: &str = "liblanefs.so.0";

/// The system's libraries that Rust's standard library needs.
pub const NEEDS: [&str; 4] = ["-lgcc_s", "-lpthread", "-ldl", "-lm"];

const USAGE: &str = "c-library --out DIR [--debug]";

/// Builds it, for release unless the arguments have `--debug`.
pub fn main(args: &[&str]) -> Result<(), String> {
    let (out, debug) = match args {
        ["--out", out] => (out, false),
        ["--out", out, "--debug"] => (out, true),
        _ => return Err(format!("usage: {USAGE}")),
    };
    let out = std::path::absolute(out).map_err(|e| format!("{out}: {e}"))?;
    let mut build = cargo(&["build", "--package", "lanefs-c", "--package", "lanefs-sqlite"]);
    if !debug {
        build.arg("--release");
    }
    run(&mut build)?;
    let built = target().join(if debug { "debug" } else { "release" });
    install(&built.join("liblanefs_c.a"), &out)?;
    // SQLite looks for an extension by its name, without `lib`.
    for (from, to) in
        [("liblanefs_sqlite.so", "lanefs_sqlite.so"), ("liblanefs_sqlite.a", "liblanefs_sqlite.a")]
    {
        let to = out.join("lib").join(to);
        std::fs::copy(built.join(from), &to).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    Ok(())
}

/// Puts everything below `out`.
fn install(built: &Path, out: &Path) -> Result<(), String> {
    let (lib, include) = (out.join("lib"), out.join("include"));
    let told = |e: std::io::Error| format!("{}: {e}", out.display());
    for dir in [&lib.join("pkgconfig"), &include] {
        std::fs::create_dir_all(dir).map_err(told)?;
    }
    header(&include.join("lanefs.h"))?;
    let archive = lib.join("liblanefs.a");
    std::fs::copy(built, &archive).map_err(told)?;
    let version = env!("CARGO_PKG_VERSION");
    let shared = lib.join(format!("liblanefs.so.{version}"));
    link(&archive, &shared)?;
    for name in [SONAME, "liblanefs.so"] {
        let link = lib.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(format!("liblanefs.so.{version}"), link).map_err(told)?;
    }
    let config = format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: lanefs\nDescription: A multicore log-structured file system as a library\nVersion: {version}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}} -llanefs\nLibs.private: {}\n",
        out.display(),
        NEEDS.join(" ")
    );
    std::fs::write(lib.join("pkgconfig/lanefs.pc"), config).map_err(told)
}

/// Links the shared library from the static one.
fn link(archive: &Path, shared: &Path) -> Result<(), String> {
    let map = root().join("crates/lanefs-c/liblanefs.map");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-shared", "-Wl,--gc-sections", "-Wl,--no-undefined", "-Wl,-z,relro,-z,now"]);
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.arg(format!("-Wl,--version-script={}", map.display()));
    cc.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    run(cc.args(NEEDS).arg("-o").arg(shared))
}

/// Writes the header, of what stands in the crate.
pub fn header(to: &Path) -> Result<(), String> {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        cpp_compat: true,
        include_guard: Some("LANEFS_H".into()),
        header: Some("/* LaneFS for C. Rules and an example: docs/C.md. */".into()),
        sys_includes: vec!["stdint.h".into(), "stddef.h".into(), "sys/uio.h".into()],
        no_includes: true,
        documentation_style: cbindgen::DocumentationStyle::C99,
        export: cbindgen::ExportConfig {
            rename: [("iovec".to_string(), "struct iovec".to_string())].into(),
            ..Default::default()
        },
        ..Default::default()
    };
    let crate_dir: PathBuf = root().join("crates/lanefs-c");
    let bindings = cbindgen::Builder::new().with_crate(crate_dir).with_config(config).generate();
    let bindings = bindings.map_err(|e| format!("lanefs.h: {e}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    // A rule of the crate's own language.
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let kept = without_safety(&lines);
    std::fs::write(to, kept.join("\n") + "\n").map_err(|e| format!("{}: {e}", to.display()))
}

/// Leaves out what the comments say to callers in Rust: the section `# Safety`, to its end.
fn without_safety<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut kept: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in lines {
        inside = line.trim() == "// # Safety" || inside && line.trim_start().starts_with("//");
        if !inside {
            kept.push(line);
        } else if kept.last() == Some(&"//") {
            kept.pop();
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::without_safety;

    #[test]
    fn sections_about_safety_are_left_out() {
        let text = ["// Opens.", "//", "// # Safety", "// As others.", "int f(void);", "", "// Next."];
        assert_eq!(without_safety(&text), ["// Opens.", "int f(void);", "", "// Next."]);
    }
}
