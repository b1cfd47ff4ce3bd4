//! The guest's first file system, a `cpio` archive in memory, and its disk.

use super::Orders;
use super::kernel::{Kernel, file_name};
use crate::compare::Undo;
use crate::error::{Context, Failure, Res};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files that a guest is started with.
pub struct Files {
    /// The archive.
    pub archive: PathBuf,
    /// The disk.
    pub disk: PathBuf,
    /// What the kernel says.
    pub console: PathBuf,
    /// There when the guest's first process runs.
    pub begun: PathBuf,
    /// The exit status of the command, once there is one.
    pub status: PathBuf,
}

/// Makes a folder that this run alone has, beside the images.
pub fn own_folder(images: &Path, undo: &mut Undo) -> Res<PathBuf> {
    let own = images.join(format!("lanefs-bench-guest.{}", std::process::id()));
    undo.make_dir(&own)?;
    Ok(own)
}

impl Files {
    /// Makes them in the run's own folder.
    pub fn make(
        own: &Path,
        kernel: &Kernel,
        program: &Path,
        orders: &Orders,
        size: u64,
        undo: &mut Undo,
    ) -> Res<Files> {
        let [archive, disk, console, begun, status] =
            ["first.cpio", "disk.img", "console.log", super::BEGUN, super::STATUS].map(|name| own.join(name));
        for file in [&archive, &disk, &console, &begun, &status] {
            undo.file(file)?;
        }
        File::create_new(&disk).and_then(|f| f.set_len(size)).at(disk.display())?;
        pack(&archive, kernel, program, orders)?;
        Ok(Files { archive, disk, console, begun, status })
    }
}

/// Returns the libraries a program is linked with, the loader among them.
fn libraries(program: &Path) -> Res<Vec<PathBuf>> {
    let out = Command::new("ldd").arg(program).output().at("running ldd")?;
    if !out.status.success() {
        return Err(Failure::new(format!("ldd {}: {}", program.display(), out.status)));
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    // `libc.so.6 => /lib/libc.so.6 (0x..)`, or the path alone.
    let paths = text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(paths.collect())
}

/// Writes the archive: `/init`, `/orders.json`, `/modules`, and the libraries in their places.
fn pack(archive: &Path, kernel: &Kernel, program: &Path, orders: &Orders) -> Res<()> {
    let mut pack = Pack::new(archive)?;
    for dir in ["dev", "proc", "sys", "host", "modules"] {
        pack.folder(Path::new(dir))?;
    }
    pack.file(Path::new("init"), &std::fs::read(program).at(program.display())?)?;
    for library in libraries(program)? {
        let content = std::fs::read(&library).at(library.display())?;
        pack.file(library.strip_prefix("/").unwrap_or(&library), &content)?;
    }
    for module in &kernel.modules {
        let content = std::fs::read(module).at(module.display())?;
        pack.file(&Path::new("modules").join(file_name(module)), &content)?;
    }
    let text = serde_json::to_vec(orders).at("encoding the guest's orders")?;
    pack.file(Path::new("orders.json"), &text)?;
    pack.end()
}

/// An archive that is written.
struct Pack {
    out: BufWriter<File>,
    name: PathBuf,
    inodes: u32,
    folders: Vec<PathBuf>,
}

impl Pack {
    fn new(path: &Path) -> Res<Pack> {
        let out = BufWriter::new(File::create_new(path).at(path.display())?);
        Ok(Pack { out, name: path.to_path_buf(), inodes: 0, folders: Vec::new() })
    }

    fn add(&mut self, path: &Path, mode: u32, content: &[u8]) -> Res<()> {
        debug_assert!(path.is_relative(), "the kernel unpacks below its root");
        self.inodes += 1;
        let entry = cpio::newc::Builder::new(&path.to_string_lossy()).ino(self.inodes).mode(mode);
        let size = u32::try_from(content.len()).at(path.display())?;
        let mut writer = entry.write(&mut self.out, size);
        writer.write_all(content).and_then(|()| writer.finish().map(|_| ())).at(self.name.display())
    }

    /// Adds a folder behind those it lies in, each once.
    fn folder(&mut self, path: &Path) -> Res<()> {
        if path.as_os_str().is_empty() || self.folders.iter().any(|f| f == path) {
            return Ok(());
        }
        self.folder(path.parent().unwrap_or(Path::new("")))?;
        self.folders.push(path.to_path_buf());
        self.add(path, 0o040_755, &[])
    }

    fn file(&mut self, path: &Path, content: &[u8]) -> Res<()> {
        self.folder(path.parent().unwrap_or(Path::new("")))?;
        self.add(path, 0o100_755, content)
    }

    fn end(mut self) -> Res<()> {
        cpio::newc::trailer(&mut self.out).and_then(|out| out.flush()).at(self.name.display())
    }
}
