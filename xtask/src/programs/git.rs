//! git: a clone of a large repository, checked, moved about in, and packed anew.

use super::{Place, child, tree};
use crate::run::root;
use std::process::Command;
use std::time::Duration;

pub fn run(place: &Place) -> Result<String, String> {
    let source = place.outside.join("source");
    let here = |command: &mut Command| child::succeed(command, &place.outside, Duration::from_secs(600));
    let git = |dir: &std::path::Path, args: &[&str]| {
        let mut c = Command::new("git");
        c.arg("-C").arg(dir);
        c.args(["-c", "user.name=Programs", "-c", "user.email=programs@example.org", "-c", "gc.auto=0"]);
        c.args(args);
        c
    };
    // This project's history if there is one, and many generated files on top, in three commits.
    if here(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&source)).is_err() {
        here(Command::new("git").args(["init", "--quiet"]).arg(&source))?;
    }
    let files = place.amount(20_000, 3_000) as usize;
    for part in 0..3 {
        let dir = source.join(format!("generated{part}"));
        tree::make(&dir, files / 3, part + 1).map_err(|e| format!("{}: {e}", dir.display()))?;
        here(&mut git(&source, &["-c", "core.fsync=none", "add", "--all"]))?;
        here(&mut git(&source, &["commit", "--quiet", "-m", "More files"]))?;
    }
    let clone = place.dir.join("clone");
    // With file:// the objects go through a pack, as over a network.
    let url = format!("file://{}", source.display());
    place.run(Command::new("git").args(["clone", "--quiet", &url]).arg(&clone))?;
    let check = || -> Result<(), String> {
        place.run(&mut git(&clone, &["fsck", "--full", "--strict"]))?;
        let changed = place.run(&mut git(&clone, &["status", "--porcelain"]))?;
        if changed.is_empty() { Ok(()) } else { Err(format!("git status is not empty:\n{changed}")) }
    };
    check()?;
    place.run(&mut git(&clone, &["checkout", "--quiet", "HEAD~2"]))?;
    place.run(&mut git(&clone, &["checkout", "--quiet", "-"]))?;
    place.run(&mut git(&clone, &["repack", "-a", "-d", "-q"]))?;
    check()?;
    let trees = [&source, &clone].map(|dir| here(&mut git(dir, &["rev-parse", "HEAD^{tree}"])));
    if trees[0] != trees[1] {
        return Err(format!("the clone's tree differs: {trees:?}"));
    }
    Ok(format!("clone of {files} files and more, checkout back and forth, repack; fsck clean twice"))
}
