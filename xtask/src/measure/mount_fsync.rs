//! The cost of an fsync through the mount, beside the file system under the image: on a sparse
//! image, whose every new block makes that file system allocate and commit, and on one whose blocks
//! were written before.

use crate::programs::child;
use crate::programs::volume::{self, Volume};
use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const EACH: usize = 100;
const ROUNDS: usize = 7;

pub fn run(quick: bool) -> std::result::Result<(), String> {
    let lanefs = volume::build()?;
    println!("{:<26} {:>14} {:>14} {:>7}   medians in us", "", "under image", "lanefs", "times");
    for (image, written) in [("sparse image", false), ("written image", true)] {
        let mut volume = Volume::make(&lanefs, "512M", &[])?;
        if written {
            write_before(&volume, 512)?;
        }
        volume.mount()?;
        for (what, work) in
            [("append, fdatasync", append as fn(&Path) -> Result<Vec<f64>>), ("new file, fsync", fresh)]
        {
            let mut times = [Vec::new(), Vec::new()];
            // In turn, so that both meet the same noise.
            for _ in 0..if quick { 2 } else { ROUNDS } {
                for (dir, times) in [volume.outside(), volume.mnt()].iter().zip(&mut times) {
                    times.extend(work(dir).map_err(|e| format!("{}: {e}", dir.display()))?);
                }
            }
            let [under, ours] = times.map(|mut t| {
                t.sort_by(f64::total_cmp);
                t[t.len() / 2]
            });
            println!("{:<26} {under:>14.0} {ours:>14.0} {:>7.2}", format!("{image}: {what}"), ours / under);
        }
        volume.umount()?;
    }
    Ok(())
}

/// Gives the volume's image all its blocks.
pub(super) fn write_before(volume: &Volume, mib: usize) -> std::result::Result<(), String> {
    fill(&volume.image(), mib).map_err(|e| format!("{}: {e}", volume.image().display()))?;
    let mut mkfs = volume.lanefs(&["mkfs"]);
    child::succeed(mkfs.arg(volume.image()), &volume.outside(), Duration::from_secs(60)).map(drop)
}

fn fill(image: &Path, mib: usize) -> Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(image)?;
    for _ in 0..mib {
        file.write_all(&[0; 1 << 20])?;
    }
    file.sync_all()
}

fn us(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn append(dir: &Path) -> Result<Vec<f64>> {
    let path = dir.join("log");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let mut times = Vec::new();
    for _ in 0..EACH {
        file.write_all(&[b'x'; 200])?;
        let start = Instant::now();
        file.sync_data()?;
        times.push(us(start));
    }
    std::fs::remove_file(path)?;
    Ok(times)
}

fn fresh(dir: &Path) -> Result<Vec<f64>> {
    let name = |n: usize| dir.join(format!("new{n}"));
    let mut times = Vec::new();
    for n in 0..EACH {
        let mut file = File::create_new(name(n))?;
        file.write_all(&[b'y'; 3000])?;
        let start = Instant::now();
        file.sync_all()?;
        times.push(us(start));
    }
    (0..EACH).try_for_each(|n| std::fs::remove_file(name(n)))?;
    Ok(times)
}
