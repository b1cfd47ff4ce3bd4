//! `lanefs run`

mod program;

use crate::failure::{About, Failure, Outcome};
use crate::image::Place;
use crate::{image, mounted, size};
use lanefs::{Cred, FileKind, MountOptions};
use lanefs_store::device::FileOptions;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The name of the library that is preloaded.
const LIBRARY: &str = "liblanefs_preload.so";
/// Directories whose paths are the system's.
const SYSTEM: &[&str] = &["/proc", "/sys", "/dev"];

/// Run a program that finds an unmounted volume below a directory
///
/// The volume's files are those of the program below /DIR, which need not exist: the library that
/// is preloaded answers for them in the process itself. One process at a time has the volume; what
/// the program starts sees it by --mount, and else does not (see docs/RUN.md). LANEFS_REPORT=1
/// tells on exit which calls were served.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Begin in this directory, which may lie below /DIR
    #[arg(short = 'C', long, value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// Have the program's process serve a mount there meanwhile, for others: `ls`, backup, what the
    /// program starts (those that look below /DIR: mount at /DIR itself)
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Memory for the volume [default: a quarter of the machine's, or of what a container
    /// allows]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub cache: Option<u64>,
    /// The volume, and the directory below which the program finds it
    #[arg(value_name = "IMAGE:/DIR")]
    pub place: Place,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Runs the program in place of this one.
pub fn run(args: &Args) -> Outcome {
    let prefix = prefix(&args.place.path)?;
    let images = args
        .place
        .images
        .iter()
        .map(|i| i.canonicalize().about(i.display()))
        .collect::<Result<Vec<_>, _>>()?;
    for image in &images {
        if image.starts_with(&prefix) {
            return Err(Failure::new(format_args!(
                "{}: the image would lie below {} itself; choose another directory",
                image.display(),
                prefix.display()
            )));
        }
        is_free(image, &images)?;
    }
    let mount = args.mount.as_deref().map(|dir| mountpoint(dir, &prefix, &images)).transpose()?;
    let library = library()?;
    let program = program::find(&args.command[0])?;
    program::check(&program)?;
    if let Some(dir) = &args.chdir
        && let Ok(below) = dir.strip_prefix(&prefix)
    {
        may_begin(dir, below, &args.place, &images)?;
    }
    let mut command = Command::new(&program);
    command.arg0(&args.command[0]).args(&args.command[1..]);
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let names: Vec<&[u8]> = images.iter().map(|i| i.as_os_str().as_bytes()).collect();
    command
        .env("LD_PRELOAD", preload)
        .env("LANEFS_PREFIX", &prefix)
        .env("LANEFS_IMAGES", OsStr::from_bytes(&names.join(&b"\n"[..])))
        .env_remove("LANEFS_CWD")
        .env_remove("LANEFS_MOUNTED")
        .env_remove("LANEFS_MOUNT");
    if let Some(dir) = mount {
        command.env("LANEFS_MOUNT", dir);
    }
    if let Some(cache) = args.cache {
        command.env("LANEFS_CACHE", cache.to_string());
    }
    match &args.chdir {
        Some(dir) if dir.starts_with(&prefix) => drop(command.env("LANEFS_CWD", dir)),
        Some(dir) => std::env::set_current_dir(dir).about(dir.display())?,
        None => {}
    }
    // The program is to have the signal that this process ignores.
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    Err(command.exec()).about(program.display())
}

/// Checks that the program can begin in a directory of the volume. Else it would find itself
/// nowhere, and the library could only say so when it runs.
fn may_begin(dir: &Path, below: &Path, place: &Place, images: &[PathBuf]) -> Result<(), Failure> {
    let options =
        MountOptions { read_only: true, background: false, cache_size: 16 << 20, ..MountOptions::default() };
    let fs = image::open_with(images, &options)?.as_user(Cred::current());
    let refuse = |why: &str| Err(Failure::new(format_args!("{}: {why}", dir.display())));
    let inside = Path::new("/").join(below);
    match fs.stat(&inside) {
        Ok(stat) if stat.kind != FileKind::Dir => refuse("no directory, and -C wants one to begin in"),
        Ok(_) => fs.access(&inside, libc::X_OK).about(dir.display()),
        Err(e) if e.errno() == libc::ENOENT => {
            let names: Vec<_> = place.images.iter().map(|i| i.display().to_string()).collect();
            let (names, inside) = (names.join(","), inside.display());
            refuse(&format!(
                "no such directory in the volume; make it first: `lanefs mkdir -p {names}:{inside}`"
            ))
        }
        Err(e) => Err(e).about(dir.display()),
    }
}

/// Returns the directory below which the program finds the volume.
fn prefix(path: &Path) -> Result<PathBuf, Failure> {
    let bad = |why: &str| {
        Failure::new(format_args!(
            "{}: {why}; say where the program is to find the volume: IMAGE:/data",
            path.display()
        ))
    };
    let mut prefix = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => prefix.push(name),
            _ => return Err(bad("no `..` there")),
        }
    }
    if prefix == Path::new("/") {
        return Err(bad("not the root: the program needs files of the host"));
    }
    match SYSTEM.iter().any(|s| prefix.starts_with(s)) {
        true => Err(bad("that is the system's")),
        false => Ok(prefix),
    }
}

/// Returns the directory where the program's process is to serve a mount; the prefix itself if that
/// is where it is.
fn mountpoint(dir: &Path, prefix: &Path, images: &[PathBuf]) -> Result<PathBuf, Failure> {
    let bad = |why: &str| Err(Failure::new(format_args!("{}: {why}", dir.display())));
    match lanefs_fuse::remove_dead_mounts(dir).about(dir.display())? {
        0 => {}
        n => eprintln!("{}: unmounted what a killed process had left there ({n})", dir.display()),
    }
    let full = dir.canonicalize().about(dir.display())?;
    if !full.is_dir() {
        return bad("no directory to mount at");
    }
    if images.iter().any(|i| i.starts_with(&full)) {
        return bad("the mount would hide the image");
    }
    if prefix.canonicalize().is_ok_and(|p| p == full) {
        return Ok(prefix.to_path_buf());
    }
    match full.starts_with(prefix) || prefix.starts_with(&full) {
        true => bad("neither above nor below where the program finds the volume; the same, or apart"),
        false => Ok(full),
    }
}

/// Checks that nobody has an image of the volume; the program would only find out later.
fn is_free(image: &Path, images: &[PathBuf]) -> Result<(), Failure> {
    let how = FileOptions { io_uring: false, direct: false, exclusive: false, ..FileOptions::default() };
    match mounted::device_when_closed(image, images, how) {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::new(e)),
    }
}

/// Returns the library that is preloaded: LANEFS_PRELOAD, or the one that lies beside this program
/// or in the lib directory beside its own.
fn library() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("LANEFS_PRELOAD").map(PathBuf::from);
    let this = std::env::current_exe().about("this program")?;
    let beside = this.parent().unwrap_or(Path::new("/"));
    let places = match named {
        Some(path) => vec![path],
        None => vec![beside.join(LIBRARY), beside.join("../lib/lanefs").join(LIBRARY)],
    };
    let found = places.iter().find_map(|p| p.canonicalize().ok());
    found.filter(|p| !p.as_os_str().as_bytes().iter().any(|b| b" :".contains(b))).ok_or_else(|| {
        Failure::new(format_args!(
            "{}: no such library, or blanks or colons in its path; name it in LANEFS_PRELOAD \
             (`cargo build --release -p lanefs-preload` makes it)",
            places[0].display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_without_its_dots_and_the_systems_are_refused() {
        assert_eq!(prefix(Path::new("/a//b/./c/")).unwrap(), Path::new("/a/b/c"));
        for bad in ["/", "/proc", "/dev/shm", "/a/../b"] {
            assert!(prefix(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
