//! `mount.fuse.lanefs`: the command under that name is mount(8)'s helper, for
//! `mount -t fuse.lanefs IMAGE DIR` and /etc/fstab. It is called as
//! `mount.fuse.lanefs SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]` and writes nothing
//! on success.

use crate::cmd::mount;
use crate::failure::{Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Exit code of mount(8) for a mount that failed.
const MOUNT_FAILED: i32 = 32;

/// Returns whether the command was called by the helper's name.
pub fn named(args: &[OsString]) -> bool {
    let name = args.first().and_then(|a| Path::new(a).file_name());
    name.is_some_and(|n| n == "mount.fuse.lanefs" || n == "mount.lanefs" || n == "mount.fuse3.lanefs")
}

/// Mounts as mount(8) asked.
pub fn run(args: &[OsString]) -> Outcome {
    debug_assert!(named(args));
    let usage = || {
        Failure::new(
            "usage: mount.fuse.lanefs IMAGE[,IMAGE...] DIR [-sfnv] [-o OPTIONS]; mount(8) calls it like this",
        )
    };
    let mut places: Vec<&OsStr> = Vec::new();
    let mut options = Vec::new();
    let mut fake = false;
    let mut rest = args.iter().skip(1);
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        match text.as_ref() {
            "-o" => options.push(rest.next().ok_or_else(usage)?.to_string_lossy().into_owned()),
            "-t" | "-N" => drop(rest.next().ok_or_else(usage)?),
            t if t.starts_with("-o") => options.push(t[2..].to_string()),
            t if t.starts_with('-') && t.len() > 1 && t[1..].bytes().all(|b| b"sfnv".contains(&b)) => {
                fake |= t.contains('f');
            }
            t if t.starts_with('-') => return Err(usage()),
            _ => places.push(arg),
        }
    }
    let [source, dir] = places[..] else { return Err(usage()) };
    // mount(8) takes "suid" and "dev" for granted and drops them from what it passes on, and
    // "defaults" with them; their opposites it passes on. Who mounts as root gets what was
    // asked for, as from mount.fuse(8).
    if rustix::process::geteuid().is_root() {
        options.insert(0, "suid,dev".into());
    }
    let args = mount::Args {
        images: crate::names::images(source),
        dir: dir.into(),
        options: vec![options.join(",")],
        quiet: true,
        ..mount::Args::default()
    };
    if fake {
        return mount::check(&args).map(|()| 0);
    }
    mount::run(&args).map_err(|f| f.code(MOUNT_FAILED))
}
