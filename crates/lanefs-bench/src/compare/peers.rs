//! The file systems LaneFS is compared with: made, mounted, opened.

use super::undo::Undo;
use crate::error::{Context, Failure, Res};
use crate::target::{DirTarget, Memory, Named, OpenTarget, TargetSpec};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{FormatOptions, Store};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The material of the peers' devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Medium {
    /// Images in memory.
    Mem,
    /// Images on a disk.
    Disk,
}

/// One peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The kernel's memory file system: no device at all.
    Tmpfs,
    /// A file system of the kernel, on a loop device.
    Kernel {
        /// Its name.
        name: &'static str,
        /// The command that makes it, with the options that make it quiet and complete (no lazy
        /// initialisation behind one's back).
        mkfs: &'static [&'static str],
    },
    /// A LaneFS volume in this process.
    Lanefs,
    /// A LaneFS volume mounted by the `lanefs` command.
    LanefsMount,
}

/// All peers and their names.
const PEERS: &[(&str, Peer)] = &[
    ("tmpfs", Peer::Tmpfs),
    (
        "ext4",
        Peer::Kernel {
            name: "ext4",
            mkfs: &["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
        },
    ),
    ("xfs", Peer::Kernel { name: "xfs", mkfs: &["mkfs.xfs", "-q", "-f"] }),
    ("btrfs", Peer::Kernel { name: "btrfs", mkfs: &["mkfs.btrfs", "-q", "-f"] }),
    ("f2fs", Peer::Kernel { name: "f2fs", mkfs: &["mkfs.f2fs", "-q", "-f"] }),
    ("lanefs", Peer::Lanefs),
    ("lanefs-mount", Peer::LanefsMount),
];

impl Peer {
    /// Returns the peer of this name.
    pub fn parse(name: &str) -> Res<Peer> {
        PEERS.iter().find(|(n, _)| *n == name).map(|&(_, peer)| peer).ok_or_else(|| {
            let names: Vec<&str> = PEERS.iter().map(|(n, _)| *n).collect();
            Failure::new(format!("no peer `{name}`; there are {}", names.join(", ")))
        })
    }
    /// Returns its name.
    pub fn name(&self) -> &'static str {
        PEERS.iter().find(|(_, p)| p == self).map_or("?", |(n, _)| n)
    }
    /// Returns whether it has a device.
    pub fn has_device(&self) -> bool {
        !matches!(self, Peer::Tmpfs)
    }
    /// Returns why it cannot be had here; `lanefs` is the command.
    pub fn missing(&self, lanefs: &Path) -> Option<String> {
        match self {
            Peer::Kernel { name, .. } if !kernel_has(name) => {
                Some(format!("{name}: this kernel has none (`guest -- COMMAND` runs in one that may)"))
            }
            Peer::Kernel { name, mkfs } if !installed(mkfs[0]) => {
                Some(format!("{name}: {} is not installed", mkfs[0]))
            }
            Peer::LanefsMount if !lanefs.is_file() => Some(format!(
                "lanefs-mount: no `lanefs` command at {} (say where with --lanefs)",
                lanefs.display()
            )),
            _ => None,
        }
    }
    /// Returns whether it has to be mounted, which takes root.
    pub fn mounts(&self) -> bool {
        !matches!(self, Peer::Lanefs)
    }
}

/// The place where peers are made.
pub struct Ground {
    /// A directory of this run's own, on the medium.
    pub base: PathBuf,
    /// Whether images are on a disk, not in memory.
    pub on_disk: bool,
    /// Bytes of each peer's device.
    pub size: u64,
    /// The `lanefs` command.
    pub lanefs: PathBuf,
    /// Whether devices in memory are written once before they are used.
    pub written: bool,
    /// Whether images are filled with zeros before a file system is made in them: in a sparse one
    /// each sync also has the file system below find space.
    pub zeroed: bool,
    /// Whether data files are opened with O_DIRECT.
    pub direct: bool,
}

/// The medium, and what is made on it.
pub struct Place<'a> {
    /// What devices are made of.
    pub medium: Medium,
    /// Where images are made on a disk.
    pub images: &'a Path,
    /// Bytes of each device.
    pub size: u64,
}

/// Returns the path of the `lanefs` command: that one, or the one beside this program.
pub fn lanefs_command(given: Option<PathBuf>) -> PathBuf {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("lanefs"));
    given.or_else(beside).unwrap_or_else(|| "lanefs".into())
}

/// The reason why a peer is not there: not an error, but worth a line.
pub struct Skipped(pub String);

/// Runs a command; its words on standard error become the failure's.
fn command(program: &str, args: &[&str]) -> Res<()> {
    let out =
        Command::new(program).args(args).stdin(Stdio::null()).output().at(format!("running {program}"))?;
    if crate::interrupt::requested() {
        return Err(Failure::interrupted());
    }
    if out.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&out.stderr);
    Err(Failure::new(format!("{program} {}: {} ({})", args.join(" "), words.trim(), out.status)))
}

fn kernel_has(fs: &str) -> bool {
    let listed = || {
        std::fs::read_to_string("/proc/filesystems")
            .is_ok_and(|t| t.lines().any(|l| l.split_whitespace().last() == Some(fs)))
    };
    listed() || (command("modprobe", &[fs]).is_ok() && listed())
}

fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(program).is_file())
}

/// Makes a directory below `parent` that nobody else has, another thread of this process included.
/// The number of this process is in its name.
fn own_dir(parent: &Path, undo: &mut Undo) -> Res<PathBuf> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    // Relaxed: it orders nothing, each gets another number. What a process of the same number has
    // left behind is passed over.
    let names = std::iter::repeat_with(|| MADE.fetch_add(1, Ordering::Relaxed) + 1)
        .map(|n| parent.join(format!("lanefs-bench-peers.{}.{n}", std::process::id())));
    for base in names {
        if !base.exists() {
            undo.make_dir(&base)?;
            return Ok(base);
        }
    }
    unreachable!("there is always another number")
}

impl Ground {
    /// Makes the place for peers, of which some are mounted if `mounts`. Devices in memory are not
    /// written before, and files not opened with O_DIRECT.
    pub fn new(place: &Place<'_>, lanefs: Option<PathBuf>, mounts: bool, undo: &mut Undo) -> Res<Ground> {
        let on_disk = place.medium == Medium::Disk;
        let parent = if on_disk { place.images.to_path_buf() } else { std::env::temp_dir() };
        let parent = parent.canonicalize().at(parent.display())?;
        let base = own_dir(&parent, undo)?;
        if !on_disk && mounts {
            undo.mount(&base)?;
            // Images are sparse: this much is only ever taken if all peers are filled.
            let size = format!("size={}", place.size.saturating_mul(8));
            let size = std::ffi::CString::new(size).at("a mount option")?;
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("tmpfs", &base, "tmpfs", flags, Some(&*size))
                .at(format!("mounting a tmpfs on {}", base.display()))?;
        }
        let lanefs = lanefs_command(lanefs);
        Ok(Ground { base, on_disk, size: place.size, lanefs, direct: false, written: false, zeroed: false })
    }

    /// Makes a peer and opens it, or returns why it cannot be had here.
    pub fn make(&self, peer: Peer, undo: &mut Undo) -> Res<Result<Named, Skipped>> {
        self.make_as(peer, peer.name(), undo)
    }

    /// Makes a peer under a name and opens it, or returns why it cannot be had here.
    pub fn make_as(&self, peer: Peer, name: &str, undo: &mut Undo) -> Res<Result<Named, Skipped>> {
        if let Some(why) = peer.missing(&self.lanefs) {
            return Ok(Err(Skipped(why)));
        }
        let made = match peer {
            Peer::Tmpfs => {
                let dir = self.mount_point(name, undo)?;
                command(
                    "mount",
                    &["-t", "tmpfs", "-o", &format!("size={}", self.size), "tmpfs", &text(&dir)],
                )?;
                self.open_dir(&dir)?
            }
            Peer::Kernel { name: kind, mkfs } => {
                let [program, args @ ..] = mkfs else { return Err(Failure::new("a peer without a mkfs")) };
                let image = self.image(name, undo)?;
                let mut args = args.to_vec();
                let image_text = text(&image);
                args.push(&image_text);
                command(program, &args)?;
                self.write_once(&image)?;
                let dir = self.mount_point(name, undo)?;
                // mount sets the loop device up so that the unmount frees it.
                command("mount", &["-t", kind, "-o", "loop", &image_text, &text(&dir)])?;
                if self.on_disk {
                    self.loop_without_cache(&image_text);
                }
                self.open_dir(&dir)?
            }
            Peer::Lanefs if !self.on_disk => {
                let memory = Memory { written: self.written, ..Memory::new(self.size) };
                TargetSpec::Memory(memory).open(self.direct)?
            }
            Peer::Lanefs => {
                let image = self.lanefs_image(name, undo)?;
                TargetSpec::Image(image, lanefs::Order::default()).open(self.direct)?
            }
            Peer::LanefsMount => {
                let image = self.lanefs_image(name, undo)?;
                self.write_once(&image)?;
                let dir = self.mount_point(name, undo)?;
                command(&text(&self.lanefs), &["mount", &text(&image), &text(&dir)])?;
                self.open_dir(&dir)?
            }
        };
        Ok(Ok(Named { name: name.to_string(), target: made, without: Vec::new() }))
    }

    /// Makes LaneFS on a loop device, whose counts the kernel keeps, and mounts it.
    pub fn make_on_loop(&self, undo: &mut Undo) -> Res<OpenTarget> {
        let name = Peer::LanefsMount.name();
        let image = self.lanefs_image(name, undo)?;
        self.write_once(&image)?;
        command("losetup", &["-f", &text(&image)])?;
        let dir = self.mount_point(name, undo)?;
        let mount = || {
            let device = format!("/dev/{}", self.loop_of(Peer::LanefsMount)?);
            if self.on_disk {
                self.loop_without_cache(&text(&image));
            }
            let mounted = command(&text(&self.lanefs), &["mount", &device, &text(&dir)]);
            // While it is in use it stays, and goes with its last user.
            command("losetup", &["-d", &device])?;
            mounted
        };
        mount()?;
        self.open_dir(&dir)
    }

    /// Returns the name of the loop device that a peer's image is on.
    pub fn loop_of(&self, peer: Peer) -> Res<String> {
        let image = self.base.join(format!("{}.img", peer.name()));
        let out = Command::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(&image).output();
        let out = out.at("running losetup")?;
        let names = String::from_utf8_lossy(&out.stdout).into_owned();
        let first = names.split_whitespace().next().and_then(|n| n.strip_prefix("/dev/"));
        first
            .map(str::to_string)
            .ok_or_else(|| Failure::new(format!("no loop device is on {}", image.display())))
    }

    /// Opens a mounted peer.
    fn open_dir(&self, dir: &Path) -> Res<OpenTarget> {
        Ok(OpenTarget::Dir(DirTarget::new(dir, self.direct)?))
    }

    /// Makes a directory to mount a peer at.
    fn mount_point(&self, name: &str, undo: &mut Undo) -> Res<PathBuf> {
        let dir = self.base.join(name);
        undo.make_dir(&dir)?;
        undo.mount(&dir)?;
        Ok(dir)
    }

    /// Has the medium give all of an image its memory, what is in it staying as it is.
    pub fn write_once(&self, image: &Path) -> Res<()> {
        if !self.written {
            return Ok(());
        }
        let file = std::fs::OpenOptions::new().write(true).open(image).at(image.display())?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, self.size)
            .at(format!("giving {} its memory (with --fresh it is not asked for)", image.display()))
    }

    /// Makes an empty image file of the peers' common size.
    fn image(&self, name: &str, undo: &mut Undo) -> Res<PathBuf> {
        debug_assert!(!name.contains('/') && self.size > 0, "an image below the run's own directory");
        let path = self.base.join(format!("{name}.img"));
        undo.file(&path)?;
        let file = std::fs::File::create_new(&path).at(format!("creating {}", path.display()))?;
        file.set_len(self.size).at(path.display())?;
        if self.zeroed {
            fill(&file, self.size).at(format!("writing {}", path.display()))?;
        }
        Ok(path)
    }

    /// Makes an image with a LaneFS volume.
    pub fn lanefs_image(&self, name: &str, undo: &mut Undo) -> Res<PathBuf> {
        let image = self.image(name, undo)?;
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, false).at(image.display())?);
        Store::format(&[device], &FormatOptions::for_caller())
            .at(format!("formatting {}", image.display()))?;
        Ok(image)
    }

    /// Turns the cache of an image's loop device off: over a disk file it would cache a second time
    /// what the file system above it caches.
    fn loop_without_cache(&self, image: &str) {
        let Ok(out) = Command::new("losetup").args(["-n", "-O", "NAME", "-j", image]).output() else {
            return;
        };
        for device in String::from_utf8_lossy(&out.stdout).split_whitespace() {
            // Where the medium cannot do it the cache stays: slower to sync, never wrong.
            let _ = command("losetup", &["--direct-io=on", device]);
        }
    }
}

/// Writes zeros, and has them on the disk.
fn fill(mut file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeros.len() as u64);
        std::io::Write::write_all(&mut file, &zeros[..part as usize])?;
        left -= part;
    }
    file.sync_all()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that looked at once which name was free took the same one: one was refused, and took
    /// the other's directory away when it undid what it had not made.
    #[test]
    fn each_thread_has_a_directory_of_its_own() {
        let parent = tempfile::tempdir().unwrap();
        let together = std::sync::Barrier::new(4);
        let mut undos: Vec<Undo> = (0..4).map(|_| Undo::new().unwrap()).collect();
        let make = |undo: &mut Undo| -> Vec<PathBuf> {
            together.wait();
            (0..20).map(|_| own_dir(parent.path(), undo).unwrap()).collect()
        };
        let mut all: Vec<PathBuf> = std::thread::scope(|s| {
            let threads: Vec<_> = undos.iter_mut().map(|undo| s.spawn(|| make(undo))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 80, "{all:?}");
        assert!(all.iter().all(|d| d.is_dir()));
        drop(undos);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0, "all were removed again");
    }
}
