//! `lanefs bench guest -- COMMAND`: a command of this program in a virtual machine, with the kernel
//! of a distribution. Where the kernel at hand lacks a peer (F2FS is not built everywhere), the
//! guest's has it, and everybody runs there side by side. What the guest measures compares with
//! what the same guest measures, and with nothing else.
//!
//! The guest has this system's files. Its root is `/` of the host, by 9p, and read only; so it runs
//! this very program, with the same libraries and the same `mkfs` commands. Of its own it has
//! `/tmp` and `/run` in memory, and a disk (a sparse file of the host, opened with O_DIRECT) at the
//! place where the command makes images. The folders that the command writes results to are the
//! host's, and may be written. So results are where they would be without a guest.
//!
//! 1. `kernel` finds a kernel and the modules it takes: this system's, or a package that is
//!    fetched and only unpacked.
//! 2. `first` packs the first file system: this program as `/init`, its libraries, the modules.
//! 3. `machine` starts QEMU, with KVM where there is one, and waits for its end.
//! 4. `inside` is what this program does as the guest's first process: it loads the modules,
//!    mounts, runs the command, and powers off. The command's output goes to standard output by a
//!    port of its own; what the kernel says is kept for when something fails.

mod first;
mod inside;
mod kernel;
mod machine;

pub use inside::main as inside;

use crate::compare::Undo;
use crate::error::{Context, Failure, Res};
use crate::units::parse_size;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Arguments of `guest`.
#[derive(Debug, clap::Args)]
pub struct GuestArgs {
    /// A folder with boot/vmlinuz-* and lib/modules: `/`, or an unpacked package of a kernel
    /// [default: this system's newest if it has F2FS, else Debian's, fetched by apt-get].
    #[arg(long, value_name = "DIR")]
    pub kernel: Option<PathBuf>,
    /// The guest's processors [default: this machine's].
    #[arg(long)]
    pub cpus: Option<usize>,
    /// The guest's memory [default: two thirds of what is available].
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Size of the guest's disk, a sparse file in the folder where the command makes images.
    #[arg(long, default_value = "32G", value_name = "SIZE")]
    pub disk: String,
    /// Emulate the processor also where there is KVM.
    #[arg(long)]
    pub emulate: bool,
    /// A command of this program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What the command asks for that is the host's.
pub struct Asked {
    /// The files that it writes its results to.
    pub results: Vec<PathBuf>,
    /// Where it makes images on a disk.
    pub images: PathBuf,
    /// Whether it makes any there.
    pub on_disk: bool,
}

/// What the guest is to do; it finds it as `/orders.json`.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Orders {
    /// The program and its arguments.
    command: Vec<String>,
    /// The folder that it runs in.
    at: PathBuf,
    /// PATH of the host.
    path: String,
    /// Modules in the order in which they are loaded, below `/modules`.
    modules: Vec<String>,
    /// Where the disk is mounted.
    images: PathBuf,
    /// Folders of the host that may be written; number N is exported as `outN`. The first is for
    /// the two sides alone: the exit status goes there.
    writable: Vec<PathBuf>,
}

/// The file that tells that the guest runs, in the first of the writable folders.
const BEGUN: &str = "begun";
/// The file with the exit status, there too.
const STATUS: &str = "status";
/// Where the guest mounts that folder: nobody else's.
const OWN: &str = "/run/lanefs-guest";
/// The port that the command's output goes to.
const PORT: &str = "lanefs.output";
/// The name under which the host's root is exported.
const ROOT: &str = "host";

/// Returns the absolute form of a folder that is there.
fn folder(path: &Path) -> Res<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    path.canonicalize().at(path.display())
}

/// Returns the folders of files, each once, none of which lies in another.
fn folders_of(files: &[PathBuf]) -> Res<Vec<PathBuf>> {
    let mut all = files.iter().map(|f| folder(f.parent().unwrap_or(f))).collect::<Res<Vec<_>>>()?;
    all.sort();
    all.dedup_by(|inner, outer| inner.starts_with(outer));
    if all.iter().any(|f| f.parent().is_none()) {
        return Err(Failure::refused("results in /: the guest has that for reading; name another folder"));
    }
    Ok(all)
}

/// Does it all and returns the command's exit status. `front` is what this program is given before
/// its commands.
pub fn run(args: &GuestArgs, asked: &Asked, front: &[&str]) -> Res<i32> {
    let (results, images) = (folders_of(&asked.results)?, folder(&asked.images)?);
    if results.iter().any(|f| images.starts_with(f) || f.starts_with(&images)) {
        return Err(Failure::refused(format!(
            "the guest has a disk of its own at {}: write results elsewhere, or name another folder with \
             --images",
            images.display()
        )));
    }
    let size = parse_size(&args.disk)?;
    let kernel = kernel::find(args.kernel.as_deref())?;
    let mut undo = Undo::new()?;
    let own = first::own_folder(&images, &mut undo)?;
    let program = std::env::current_exe().at("the path of this program")?;
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(front.iter().map(|w| w.to_string()).chain(args.command.iter().cloned()));
    let orders = Orders {
        command: words,
        at: std::env::current_dir().at("the current folder")?,
        path: format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()),
        modules: kernel.modules.iter().map(|m| kernel::file_name(m)).collect(),
        images,
        writable: std::iter::once(own.clone()).chain(results).collect(),
    };
    let files = first::Files::make(&own, &kernel, &program, &orders, size, &mut undo)?;
    let wishes = machine::Wishes {
        cpus: args.cpus.unwrap_or_else(|| crate::pin::allowed().len()).max(1),
        memory: args.memory.as_deref().map(parse_size).transpose()?,
        emulate: args.emulate,
    };
    let status = machine::run(&kernel, &files, &orders, front, &wishes, asked.on_disk);
    let complaints = undo.all();
    complaints.iter().for_each(|c| eprintln!("lanefs-bench: {c}"));
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_written_where_they_would_be_without_a_guest() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("a")).unwrap();
        let files = ["a/x.json", "a/y.html", "z.json"].map(|f| base.join(f));
        assert_eq!(folders_of(&files[..2]).unwrap(), [base.join("a")]);
        assert_eq!(folders_of(&files).unwrap(), [base.as_path()], "one that lies in another needs no mount");
        assert!(folders_of(&[base.join("none/x.json")]).unwrap_err().message.contains("none"));
        assert!(folders_of(&["/x.json".into()]).unwrap_err().message.contains("another folder"));
    }
}
