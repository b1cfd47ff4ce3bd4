//! `cargo xtask deb`: a Debian package of the command, with its manual pages, its completions and
//! mount(8)'s helper. What goes into it stands in crates/lanefs-cli/Cargo.toml.

use crate::run::{cargo, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it.
pub fn build() -> Result<(), String> {
    if !cargo(&["deb", "--version"]).output().is_ok_and(|o| o.status.success()) {
        return Err("cargo-deb is missing: `cargo install cargo-deb`".into());
    }
    run(&mut cargo(&["build", "--release", "--package", "lanefs-cli", "--package", "lanefs-preload"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    // The program writes its own pages; the package takes them from below the manifest.
    let staged = root().join("target/deb");
    let _ = std::fs::remove_dir_all(&staged);
    run(Command::new(target.join("release/lanefs")).arg("install").arg("--prefix").arg(&staged))?;
    link_helper(&staged).map_err(|e| format!("{}: {e}", staged.display()))?;
    run(&mut cargo(&["deb", "--no-build", "--package", "lanefs-cli"]))
}

/// The helper is the program by another name; a link must lead to something to be packed.
fn link_helper(staged: &Path) -> std::io::Result<()> {
    std::fs::create_dir(staged.join("sbin"))?;
    std::fs::create_dir(staged.join("bin"))?;
    std::fs::write(staged.join("bin/lanefs"), "")?;
    std::os::unix::fs::symlink("../bin/lanefs", staged.join("sbin/mount.fuse.lanefs"))
}
