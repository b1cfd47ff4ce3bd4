//! A kernel for the guest, and which of its modules are loaded in which order.

use crate::error::{Context, Failure, Res, say};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package of Debian that depends on the newest kernel.
const PACKAGE: &str = "linux-image-amd64";
/// What the guest needs. What these need in turn goes in before them; what a kernel has built in
/// has no file.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "loop",
    "fuse",
    // Checksums that file systems ask for by name.
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "crc32c_intel",
    "ext4",
    "xfs",
    "btrfs",
    "f2fs",
];

/// A kernel, and the files of its modules in the order in which they are loaded.
#[derive(Debug)]
pub struct Kernel {
    /// The kernel itself.
    pub image: PathBuf,
    /// Its release, as `uname -r` has it.
    pub release: String,
    /// Its modules.
    pub modules: Vec<PathBuf>,
}

/// Returns the last part of a path.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Finds a kernel below a folder that was named, this system's, or one that is fetched.
pub fn find(named: Option<&Path>) -> Res<Kernel> {
    if let Some(dir) = named {
        return below(dir);
    }
    let kept = kept();
    below(Path::new("/")).or_else(|own| {
        if let Ok(kernel) = below(&kept) {
            return Ok(kernel);
        }
        fetch(&kept).map_err(|e| {
            Failure::new(format!(
                "no kernel for the guest: {own}; and Debian's: {e}. Unpack the package of one somewhere \
                 (dpkg-deb -x linux-image-*.deb DIR) and name it with --kernel DIR"
            ))
        })?;
        below(&kept)
    })
}

/// Returns where a fetched kernel is kept.
fn kept() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_else(std::env::temp_dir).join("lanefs-bench/kernel")
}

/// Fetches the package that the newest one depends on, and unpacks it. Nothing is installed.
fn fetch(kept: &Path) -> Res<()> {
    let run = |command: &mut Command| -> Res<String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = command.output().at(format!("running {name}"))?;
        let words = String::from_utf8_lossy(if out.status.success() { &out.stdout } else { &out.stderr });
        if out.status.success() { Ok(words.into_owned()) } else { Err(format!("{name}: {words}").into()) }
    };
    let depends = run(Command::new("apt-cache").args(["depends", PACKAGE]))?;
    let package = depends.lines().find_map(|l| l.trim().strip_prefix("Depends: "));
    let package = package.ok_or_else(|| Failure::new(format!("{PACKAGE}: not known (apt-get update)")))?;
    say(format_args!("fetching {package} to {} (it is unpacked, not installed)", kept.display()))?;
    std::fs::create_dir_all(kept).at(kept.display())?;
    run(Command::new("apt-get").args(["download", "-qq", package]).current_dir(kept))?;
    let packed = std::fs::read_dir(kept).at(kept.display())?.flatten().map(|e| e.path());
    let deb = packed.into_iter().find(|p| p.extension().is_some_and(|e| e == "deb"));
    let deb = deb.ok_or_else(|| Failure::new(format!("apt-get download {package}: no file")))?;
    run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(kept))?;
    std::fs::remove_file(&deb).at(deb.display())
}

/// Returns the newest kernel below a folder that has F2FS.
fn below(dir: &Path) -> Res<Kernel> {
    let boot = dir.join("boot");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&boot)
        .at(boot.display())?
        .flatten()
        .map(|e| e.path())
        .filter(|p| file_name(p).starts_with("vmlinuz-"))
        .collect();
    // By the numbers in it: 6.1.0-9 is older than 6.1.0-10.
    found.sort_by_key(|p| {
        let name = file_name(p);
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect::<Vec<u64>>()
    });
    let image = found.pop().ok_or_else(|| Failure::new(format!("{}: no vmlinuz-*", boot.display())))?;
    let release = file_name(&image).trim_start_matches("vmlinuz-").to_string();
    let modules = dir.join("lib/modules").join(&release);
    let all = modules_below(&modules)?;
    if !all.contains_key("f2fs") {
        return Err(Failure::new(format!("{}: no module f2fs", modules.display())));
    }
    let (mut rest, mut order) = (all, Vec::new());
    for name in MODULES {
        load_order(name, &mut rest, &mut order)?;
    }
    Ok(Kernel { image, release, modules: order })
}

/// Returns the name a module goes by: the kernel takes `-` and `_` for the same.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns all modules below a folder that are not packed, by name.
fn modules_below(dir: &Path) -> Res<BTreeMap<String, PathBuf>> {
    let (mut folders, mut all) = (vec![dir.to_path_buf()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).at(folder.display())?.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                folders.push(path);
            } else if let Some(name) = file_name(&path).strip_suffix(".ko") {
                all.insert(plain(name), path);
            }
        }
    }
    Ok(all)
}

/// Appends a module behind those it needs, and takes each out of `rest`: so each comes once, and a
/// circle ends. One that has no file is built in, or is not had by this kernel; what lacks it says
/// so when it is used.
fn load_order(name: &str, rest: &mut BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Res<()> {
    let Some(path) = rest.remove(&plain(name)) else { return Ok(()) };
    for needed in needs(&std::fs::read(&path).at(path.display())?) {
        load_order(&needed, rest, order)?;
    }
    order.push(path);
    Ok(())
}

/// Returns the names that a module says it depends on.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|w| w == KEY) else { return Vec::new() };
    let value = module[start + KEY.len()..].split(|&b| b == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value).into_owned();
    names.split(',').filter(|n| !n.is_empty()).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(dir: &Path, name: &str, depends: &str) {
        let path = dir.join(format!("{name}.ko"));
        std::fs::write(path, format!("ELF..\0name={name}\0depends={depends}\0vermagic=x\0")).unwrap();
    }

    #[test]
    fn modules_go_in_behind_those_they_need() {
        let dir = tempfile::tempdir().unwrap();
        let modules = dir.path().join("lib/modules/6.1.0-10-amd64/kernel");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::create_dir(dir.path().join("boot")).unwrap();
        assert!(below(dir.path()).unwrap_err().message.contains("no vmlinuz"));
        for release in ["6.1.0-9-amd64", "6.1.0-10-amd64"] {
            std::fs::write(dir.path().join("boot").join(format!("vmlinuz-{release}")), b"x").unwrap();
        }
        assert!(below(dir.path()).unwrap_err().message.contains("no module f2fs"));
        module(&modules, "f2fs", "crc32-old,lz4");
        module(&modules, "crc32_old", "f2fs");
        module(&modules, "btrfs", "raid6,lz4");
        module(&modules, "lz4", "");
        let kernel = below(dir.path()).unwrap();
        assert_eq!(kernel.release, "6.1.0-10-amd64");
        let names: Vec<String> = kernel.modules.iter().map(|m| file_name(m)).collect();
        assert_eq!(names, ["lz4.ko", "btrfs.ko", "crc32_old.ko", "f2fs.ko"]);
    }
}
