//! A million small files: made, listed, read, renamed, removed, under a memory budget; and how long
//! a mount takes with them.
//!
//!     million [--files N] [--budget MIB] [--image PATH] [--names]
//!     million --dir DIR --pid PID [--files N] [--names]     the same through a mount; the memory of process PID is shown
//!
//! With --keep the files are only made, and left there. With --names: N further names (links) of a
//! few files, all in one directory.

// The allocator of the `lanefs` command, which gives memory back to the system as soon: that is
// measured too.
#[path = "../../lanefs-cli/src/allocator.rs"]
mod allocator;
#[path = "common/process.rs"]
mod process;
#[path = "common/target.rs"]
mod target;

use lanefs::{MountOptions, Volume};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::{FormatOptions, Store};
use process::{Failure, Memory};
use std::sync::Arc;
use std::time::Instant;
use target::Target;

/// Files in a directory.
const IN_DIR: u64 = 1000;

fn main() -> Result<(), Failure> {
    allocator::give_back_soon();
    let (mut files, mut budget, mut image, mut names) = (None, 128, None, false);
    let (mut dir, mut pid, mut keep) = (None, None, false);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or(format!("{a} takes a value"));
        match a.as_str() {
            "--files" => files = Some(value()?.parse()?),
            "--budget" => budget = value()?.parse()?,
            "--image" => image = Some(value()?),
            "--dir" => dir = Some(value()?),
            "--pid" => pid = Some(value()?.parse()?),
            "--names" => names = true,
            "--keep" => keep = true,
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    let work = |target: &Target, memory: &Memory| match names {
        true => one_directory(target, memory, files.unwrap_or(10_000_000)),
        false if keep => make(target, files.unwrap_or(1_000_000)),
        false => many_files(target, memory, files.unwrap_or(1_000_000)),
    };
    if let Some(dir) = dir {
        return work(&Target::Mount(dir.into()), &Memory::of(pid));
    }
    let memory = Memory::of(None);
    // The image lies where TMPDIR says, unless it is named; it is removed in the end.
    let folder = tempfile::tempdir()?;
    let image = image.map_or_else(|| folder.path().join("million.lane"), Into::into);
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(&image, 24 << 30)?);
    Store::format(std::slice::from_ref(&device), &FormatOptions::for_caller())?;
    drop(device);
    let at_rest: Option<fn()> = Some(allocator::give_back_now);
    let options = MountOptions { cache_size: budget << 20, at_rest, ..MountOptions::default() };
    let volume = Volume::open(&[&image], &options)?;
    println!("budget {budget} MiB, image {}", image.display());
    memory.show("opened", Instant::now(), 0);
    work(&Target::Library(volume.fs()), &memory)?;
    // Once more, so that there are files when the volume is opened again.
    if !names && !keep {
        let target = Target::Library(volume.fs());
        make(&target, files.unwrap_or(1_000_000))?;
    }
    let start = Instant::now();
    volume.close()?;
    drop(volume);
    memory.show("closed", start, 0);
    let start = Instant::now();
    let volume = Volume::open(&[&image], &options)?;
    let opened = start.elapsed();
    volume.fs().stat("/")?;
    println!(
        "{:<26} {:8.1} ms  (clean: {})",
        "opened again",
        opened.as_secs_f64() * 1e3,
        volume.open_report().clean
    );
    volume.shutdown();
    Ok(())
}

fn path(n: u64) -> String {
    format!("many/{:04}/file-{n:07}", n / IN_DIR)
}

fn make(t: &Target, files: u64) -> Result<(), Failure> {
    t.mkdir("many")?;
    for n in 0..files {
        if n.is_multiple_of(IN_DIR) {
            t.mkdir(&format!("many/{:04}", n / IN_DIR))?;
        }
        t.write(&path(n), &content(n))?;
    }
    Ok(())
}

fn content(n: u64) -> Vec<u8> {
    format!("file {n} of many\n").repeat(8).into_bytes()
}

fn many_files(t: &Target, memory: &Memory, files: u64) -> Result<(), Failure> {
    let start = Instant::now();
    make(t, files)?;
    memory.show("created and written", start, files);
    let start = Instant::now();
    t.sync()?;
    memory.show("synced", start, 0);
    let start = Instant::now();
    let mut seen = 0;
    for d in 0..files.div_ceil(IN_DIR) {
        seen += t.list(&format!("many/{d:04}"))?;
    }
    memory.show("listed", start, seen);
    if seen != files {
        return Err(format!("{seen} files listed, not {files}").into());
    }
    let start = Instant::now();
    for n in 0..files {
        // Not in the order they were made.
        let n = n.wrapping_mul(7919) % files;
        if t.read(&path(n))? != content(n) {
            return Err(format!("{}: not what was written", path(n)).into());
        }
    }
    memory.show("read and compared", start, files);
    let start = Instant::now();
    for n in 0..files {
        t.rename(&path(n), &format!("many/{:04}/renamed-{n}", n / IN_DIR))?;
    }
    memory.show("renamed", start, files);
    let start = Instant::now();
    for n in 0..files {
        t.unlink(&format!("many/{:04}/renamed-{n}", n / IN_DIR))?;
    }
    for d in 0..files.div_ceil(IN_DIR) {
        t.rmdir(&format!("many/{d:04}"))?;
    }
    t.rmdir("many")?;
    memory.show("deleted", start, files);
    let start = Instant::now();
    t.sync()?;
    memory.show("synced", start, 0);
    Ok(())
}

/// Names in one directory. They are links, a thousand to a file: what is measured is the directory.
fn one_directory(t: &Target, memory: &Memory, names: u64) -> Result<(), Failure> {
    let start = Instant::now();
    t.mkdir("files")?;
    t.mkdir("one")?;
    for n in 0..names {
        let file = format!("files/{}", n / 1000);
        if n.is_multiple_of(1000) {
            t.write(&file, b"x")?;
        }
        t.link(&file, &format!("one/name-{n}"))?;
        if (n + 1).is_multiple_of(1_000_000) && n + 1 < names {
            memory.show(&format!("{} million", (n + 1) / 1_000_000), start, n + 1);
        }
    }
    memory.show("names made", start, names);
    let start = Instant::now();
    t.sync()?;
    memory.show("synced", start, 0);
    let start = Instant::now();
    let seen = t.list("one")?;
    memory.show("listed", start, seen);
    if seen != names {
        return Err(format!("{seen} names listed, not {names}").into());
    }
    let some = (names / 10).max(1);
    let start = Instant::now();
    for n in 0..some {
        t.stat(&format!("one/name-{}", n.wrapping_mul(7919) % names))?;
    }
    memory.show("looked up at random", start, some);
    let start = Instant::now();
    for n in 0..some {
        t.rename(&format!("one/name-{n}"), &format!("one/other-{n}"))?;
    }
    memory.show("renamed", start, some);
    let start = Instant::now();
    for n in 0..names {
        let prefix = if n < some { "other" } else { "name" };
        t.unlink(&format!("one/{prefix}-{n}"))?;
    }
    t.rmdir("one")?;
    memory.show("removed", start, names);
    let start = Instant::now();
    t.sync()?;
    memory.show("synced", start, 0);
    Ok(())
}
