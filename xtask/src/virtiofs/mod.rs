//! `cargo xtask virtiofs [--rounds N] [work] [times] [kill]`: a volume in a virtual machine, by
//! `lanefs virtiofs` and QEMU, with a kernel of Debian and busybox as its whole system.
//!
//! - work: files are made, written, made durable, moved, packed and unpacked, in the guest; the
//!   volume is mounted there twice. On the host fsck finds nothing, and the sums are the same.
//! - times: creates, stats and unlinks in the guest, beside ext4 on a disk whose image is in
//!   memory. The machine is emulated: only what one guest says of both compares.
//! - kill: the guest makes files durable one after the other, and after some of them the back end,
//!   or the virtual machine, is killed. What the guest was told is there, with its content. N
//!   rounds of each, 3 if not said.
//!
//! QEMU, busybox and a C compiler are installed if they are missing; the kernel is a package that
//! is only unpacked, below `target/virtiofs`.

mod kernel;
mod machine;

use crate::programs::child;
use crate::programs::volume::{self, Volume};
use crate::run::need;
use kernel::Kernel;
use machine::{Machine, Server};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The size of the volume.
const SIZE: &str = "1G";

/// The command.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let (mut rounds, mut stages) = (3, Vec::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--rounds" => {
                rounds = rest.next().and_then(|n| n.parse().ok()).ok_or("--rounds: a number")?;
            }
            stage @ ("work" | "times" | "kill") => stages.push(stage),
            other => return Err(format!("virtiofs: {other:?}: neither --rounds N, work, times nor kill")),
        }
    }
    if stages.is_empty() {
        stages = vec!["work", "times", "kill"];
    }
    need(&[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("cc", "gcc"),
        ("mkfs.ext4", "e2fsprogs"),
    ])?;
    let lanefs = volume::build()?;
    let kernel = Kernel::get()?;
    for stage in stages {
        match stage {
            "work" => work(&lanefs, &kernel)?,
            "times" => times(&lanefs, &kernel)?,
            _ => {
                for round in 0..rounds {
                    kill(&lanefs, &kernel, round, true)?;
                    kill(&lanefs, &kernel, round, false)?;
                }
            }
        }
    }
    Ok(())
}

/// Copies what the volume holds out of the image.
fn copy_out(lanefs: &Path, v: &Volume, what: &str) -> Result<PathBuf, String> {
    let out = v.outside().join("copy");
    let mut cp = Command::new(lanefs);
    cp.args(["cp", "-r"]).arg(format!("{}:{what}", v.image().display())).arg(&out);
    child::succeed(&mut cp, &v.outside(), Duration::from_secs(300))?;
    Ok(out)
}

fn work(lanefs: &Path, kernel: &Kernel) -> Result<(), String> {
    let v = Volume::make(lanefs, SIZE, &[])?;
    let mut server = Server::start(lanefs, &v.image(), &v.dir)?;
    let mut machine = Machine::start(kernel, "work", &server, None)?;
    machine.wait_for("guest: done")?;
    machine.wait()?;
    server.wait()?;
    v.fsck()?;
    let out = copy_out(lanefs, &v, "/")?;
    let mut sums = Command::new("md5sum");
    sums.args(["-c", "--quiet", "sums"]).current_dir(&out);
    child::succeed(&mut sums, &v.outside(), Duration::from_secs(60))?;
    let listed = std::fs::read_to_string(out.join("sums")).map_err(|e| format!("sums: {e}"))?;
    if listed.lines().count() < 120 {
        return Err(format!("only {} files were summed", listed.lines().count()));
    }
    println!("work: {} files as the guest wrote them, fsck clean", listed.lines().count());
    Ok(())
}

/// A file that goes away with this.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn times(lanefs: &Path, kernel: &Kernel) -> Result<(), String> {
    let v = Volume::make(lanefs, SIZE, &[])?;
    // In memory, as far as the host has such a place.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory } else { &v.dir };
    let disk = Scratch(place.join(format!("lanefs-ext4-{}", std::process::id())));
    let made = std::fs::File::create(&disk.0).and_then(|file| file.set_len(256 << 20));
    made.map_err(|e| format!("{}: {e}", disk.0.display()))?;
    let mut mkfs = Command::new("mkfs.ext4");
    child::succeed(mkfs.args(["-q", "-F"]).arg(&disk.0), &v.outside(), Duration::from_secs(60))?;
    let mut server = Server::start(lanefs, &v.image(), &v.dir)?;
    let mut machine = Machine::start(kernel, "times", &server, Some(&disk.0))?;
    let said = machine.wait_for("guest: done")?;
    machine.wait()?;
    server.wait()?;
    println!("microseconds in the guest ({}):", kernel.release);
    // The firmware leaves the line unfinished that the first of them stands in.
    said.iter().filter_map(|l| l.split_once("times ")).for_each(|(_, times)| println!("  {times}"));
    v.fsck()
}

/// One kill, of the back end or of the virtual machine.
fn kill(lanefs: &Path, kernel: &Kernel, round: u64, of_server: bool) -> Result<(), String> {
    let v = Volume::make(lanefs, SIZE, &[])?;
    let mut server = Server::start(lanefs, &v.image(), &v.dir)?;
    let mut machine = Machine::start(kernel, "sync", &server, None)?;
    machine.wait_for(&format!("synced {}", 20 + 37 * round))?;
    if of_server {
        server.kill();
    } else {
        machine.kill();
        server.wait()?;
    }
    // What the guest says until its end it was told before that.
    let said = machine.end();
    let last = said.iter().filter_map(|l| l.strip_prefix("synced ")?.trim().parse::<u32>().ok()).max();
    let last = last.ok_or("nothing was synced")?;
    v.fsck()?;
    let out = copy_out(lanefs, &v, "/synced")?;
    for i in 0..=last {
        let file = out.join(format!("s{i:06}"));
        let found = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        if found != content(i) {
            return Err(format!("{}: not what was synced", file.display()));
        }
    }
    let who = if of_server { "the back end" } else { "the virtual machine" };
    println!("kill -9 of {who}: {} files that were synced are there, fsck clean", last + 1);
    Ok(())
}

/// The content of the file of this number, as guest.c makes it.
fn content(i: u32) -> Vec<u8> {
    let len = 1 + i.wrapping_mul(997) % 9000;
    (0..len).map(|n| i.wrapping_mul(31).wrapping_add(n * 7) as u8).collect()
}
