//! `cargo xtask killtest idle [--rounds N] [--seed S]`: programs write and close files, nobody
//! syncs anything, and then the mount is left alone for longer than content may stay where a crash
//! loses it (docs/SEMANTICS.md, "Durability"). After the kill all of it must be there. The mount
//! has its default options. Of three rounds one ends when what was closed must be there, one when
//! what is open still must be, too, and one has a program beside that appends a line a second.

use super::Totals;
use crate::programs::volume::{self, Volume};
use lanefs_sync::random::Rng;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is written and closed stays without a checkpoint for 5 s, and 5 s more, on a mount that
/// does little. The rest is for slow machines: what is late by more was forgotten.
const CLOSED: Duration = Duration::from_secs(25);
/// The time for which lines are appended.
const APPENDED: Duration = Duration::from_secs(120);
/// What is written to a file that stays open lies in the kernel's cache first, for 30 to 35 s, and
/// then as long as commits are apart, twice. The rest is for slow machines.
const OLD: Duration = Duration::from_secs(60);
/// Files that are made.
const FILES: u64 = 60;
/// Bytes of a file at the most.
const MOST: u64 = 300_000;

/// The command.
pub fn main(rounds: u64, seed: u64) -> Result<(), String> {
    let lanefs = volume::build()?;
    let (mut random, mut totals) = (Rng::at(seed), Totals::default());
    for n in 0..rounds {
        let start = Instant::now();
        let mut v = Volume::make(&lanefs, "256M", &[])?;
        v.mount()?;
        let long = [CLOSED, OLD, APPENDED][n as usize % 3];
        let lines = round(&mut v, long, &mut random)
            .map_err(|e| format!("round {n} of seed {seed} (idle): {e}\n{}", v.messages()))?;
        v.umount()?;
        v.fsck()?;
        totals.rounds += 1;
        println!("round {n:>3}  idle {:>5.1} s  {FILES} files, {lines} lines", start.elapsed().as_secs_f64());
    }
    println!("\n{} rounds: all that was old enough when the server was killed was there", totals.rounds);
    Ok(())
}

/// Returns the content of a file, and of it after a change in place.
fn content(n: u64, len: usize) -> (Vec<u8>, Vec<u8>) {
    let before: Vec<u8> = (0..len).map(|at| (at as u64 * 31 + n) as u8).collect();
    let mut after = before.clone();
    after.iter_mut().take(10).for_each(|b| *b = !*b);
    (before, after)
}

/// Returns the place of file `n`.
fn place(mnt: &Path, n: u64) -> std::path::PathBuf {
    mnt.join(format!("dir{}", n % 7)).join(format!("file{n}"))
}

/// One round; returns how many lines were found of those that were appended.
fn round(v: &mut Volume, long: Duration, random: &mut Rng) -> Result<usize, String> {
    let io = |e: std::io::Error| e.to_string();
    let mnt = v.mnt();
    (0..7).try_for_each(|d| std::fs::create_dir(mnt.join(format!("dir{d}")))).map_err(io)?;
    let sizes: Vec<usize> = (0..FILES).map(|_| random.below(MOST) as usize).collect();
    for (n, len) in (0..).zip(&sizes) {
        std::fs::write(place(&mnt, n), content(n, *len).0).map_err(io)?;
        // Some are durable, and written over in place since.
        if n % 5 == 0 {
            let mut f = std::fs::File::options().write(true).open(place(&mnt, n)).map_err(io)?;
            f.sync_all().map_err(io)?;
            f.write_all(&content(n, *len).1[..10.min(*len)]).map_err(io)?;
        }
    }
    let mut log = std::fs::File::options().append(true).create(true).open(mnt.join("log")).map_err(io)?;
    let mut open = std::fs::File::create(mnt.join("open")).map_err(io)?;
    open.write_all(&content(FILES, 10_000).0).map_err(io)?;
    let began = Instant::now();
    let mut written = Vec::new();
    while began.elapsed() < long {
        if long == APPENDED {
            writeln!(log, "line {}", written.len()).map_err(io)?;
            written.push(Instant::now());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let old = written.iter().filter(|at| at.elapsed() > OLD).count();
    v.kill_server()?;
    drop((log, open));
    v.kill()?;
    v.fsck()?;
    v.mount()?;
    for (n, len) in (0..).zip(&sizes) {
        let is = std::fs::read(place(&mnt, n)).map_err(|e| format!("file {n}: {e}"))?;
        let (before, after) = content(n, *len);
        if is != if n % 5 == 0 { after } else { before } {
            return Err(format!("file {n}: {} of {len} bytes, or others than were written", is.len()));
        }
    }
    let is = std::fs::read(mnt.join("open")).map_err(|e| format!("the file that was open: {e}"))?;
    if long >= OLD && is != content(FILES, 10_000).0 {
        return Err(format!("the file that was open: {} of 10000 bytes", is.len()));
    }
    let lines = std::fs::read_to_string(mnt.join("log")).map_err(io)?.lines().count();
    match lines >= old {
        true => Ok(lines),
        false => Err(format!("{lines} lines of {}, of which {old} were old", written.len())),
    }
}
