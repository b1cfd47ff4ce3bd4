//! A kernel of Debian with the modules that are needed, and a first file system in memory.

use crate::programs::volume::target;
use crate::run::run;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package that depends on the newest kernel.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Modules in whichever order: what needs another goes in behind it.
const MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "fuse",
    "virtiofs",
];
/// Users of the guest.
const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";

/// A kernel, and the file system that it begins with.
pub struct Kernel {
    pub image: PathBuf,
    pub initrd: PathBuf,
    pub release: String,
}

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{}: {e}", path.display()))
}

impl Kernel {
    /// Fetches and unpacks the package unless that was done, and makes the first file system.
    pub fn get() -> Result<Kernel, String> {
        let dir = target().join("virtiofs");
        at(&dir, std::fs::create_dir_all(&dir))?;
        let dir = at(&dir, dir.canonicalize())?;
        let unpacked = dir.join("kernel");
        if !unpacked.join("boot").is_dir() {
            fetch(&dir, &unpacked)?;
        }
        let boot = unpacked.join("boot");
        let image = find(&boot, &|name| name.starts_with("vmlinuz-"))?;
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let release = name.trim_start_matches("vmlinuz-").to_string();
        let initrd = make(&dir, &unpacked)?;
        Ok(Kernel { image, initrd, release })
    }
}

/// Fetches the package that the newest one depends on, and unpacks it; it is not installed.
fn fetch(dir: &Path, unpacked: &Path) -> Result<(), String> {
    let depends = Command::new("apt-cache").args(["depends", PACKAGE]).output();
    let depends = String::from_utf8_lossy(&at(dir, depends)?.stdout).into_owned();
    let package = depends.lines().find_map(|l| l.trim().strip_prefix("Depends: "));
    let package = package.ok_or(format!("apt-cache depends {PACKAGE}: no kernel"))?;
    let mut download = Command::new("apt-get");
    download.args(["download", "-qq", package]).current_dir(dir);
    if !at(dir, download.status())?.success() {
        return Err(format!("apt-get download {package}: failed"));
    }
    let deb = find(dir, &|name| name.starts_with(package) && name.ends_with(".deb"))?;
    run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(unpacked))
}

/// Finds a file below a folder by its name.
fn find(dir: &Path, is_it: &dyn Fn(&str) -> bool) -> Result<PathBuf, String> {
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in at(&folder, std::fs::read_dir(&folder))?.flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.file_name().is_some_and(|n| is_it(&n.to_string_lossy())) {
                return Ok(path);
            }
        }
    }
    Err(format!("{}: what is looked for is not there", dir.display()))
}

/// Makes the first file system: busybox, the modules, the program of the guest and its script.
fn make(dir: &Path, unpacked: &Path) -> Result<PathBuf, String> {
    let tree = dir.join("initrd");
    let _ = std::fs::remove_dir_all(&tree);
    for folder in ["bin", "dev", "proc", "sys", "tmp", "mnt", "ext", "modules", "etc"] {
        at(&tree, std::fs::create_dir_all(tree.join(folder)))?;
    }
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from);
    let busybox = busybox.iter().find(|b| b.is_file()).ok_or("busybox: not there")?;
    at(busybox, std::fs::copy(busybox, tree.join("bin/busybox")))?;
    for name in MODULES {
        let module = find(&unpacked.join("lib"), &|n| n == format!("{name}.ko"))?;
        at(&module, std::fs::copy(&module, tree.join(format!("modules/{name}.ko"))))?;
    }
    let source = dir.join("guest.c");
    at(&source, std::fs::write(&source, include_str!("guest.c")))?;
    run(Command::new("cc").args(["-O2", "-static", "-o"]).arg(tree.join("bin/guest")).arg(&source))?;
    let init = tree.join("init");
    at(&init, std::fs::write(&init, include_str!("init.sh")))?;
    at(&init, std::fs::set_permissions(&init, std::os::unix::fs::PermissionsExt::from_mode(0o755)))?;
    at(&tree, std::fs::write(tree.join("work.sh"), include_str!("work.sh")))?;
    at(&tree, std::fs::write(tree.join("etc/passwd"), PASSWD))?;
    at(&tree, std::fs::write(tree.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n"))?;
    let initrd = dir.join("initrd.cpio");
    let out = at(&initrd, std::fs::File::create(&initrd))?;
    let mut pack = Command::new("sh");
    pack.args(["-c", "find . | busybox cpio -o -H newc"])
        .current_dir(&tree)
        .stdout(out)
        .stderr(Stdio::null());
    match at(&initrd, pack.status())?.success() {
        true => Ok(initrd),
        false => Err("busybox cpio: failed".into()),
    }
}
