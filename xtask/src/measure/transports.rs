//! Calls per second through two mounts: one whose requests come over io_uring, one whose requests
//! are read from /dev/fuse. In turn, by one client and by two. Beside it what a call costs of
//! processor time, clients and server together, which does not depend on who else works.

use super::mounted;
use crate::programs::volume::Volume;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

const ROUNDS: usize = 15;
const PAGE: usize = 4096;
/// Pages of the file that is written to.
const PAGES: u64 = 1024;

/// Memory that O_DIRECT takes.
#[repr(align(4096))]
struct Aligned([u8; PAGE]);

/// Work of one client: in its folder, so many calls; the number says which time this is.
type Work = fn(&Path, usize, usize) -> Result<()>;

pub fn run(quick: bool) -> std::result::Result<(), String> {
    let calls = if quick { 1000 } else { 4000 };
    let volumes = [mounted("4G", &["-o", "io_uring=off"])?, mounted("4G", &["-o", "io_uring=on"])?];
    let works: [(&str, Work); 3] =
        [("getattr", getattr), ("create, close", create), ("direct write of 4 KiB", write)];
    println!("{:<34} {:^28}   {:^28}", "", "calls per second", "us of processor time a call");
    let titles = ["/dev/fuse", "io_uring", "times"].map(|t| format!("{t:>9}")).join(" ");
    println!("{:<34} {titles}   {titles}   medians of {ROUNDS} rounds", "");
    let mut unique = 0;
    for clients in [1, 2] {
        for (name, work) in works {
            let mut seen = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                unique += 1;
                for (volume, seen) in volumes.iter().zip(&mut seen) {
                    let round = together(volume, clients, calls, unique, work);
                    seen.push(round.map_err(|e| format!("{name}: {e}"))?);
                }
            }
            print!("{:<34}", format!("{name}, clients: {clients}"));
            for what in [|r: &Round| r.rate, |r: &Round| r.cpu] {
                let [old, new] = [0, 1].map(|i| median(seen[i].iter().map(what).collect()));
                let times =
                    median(seen[0].iter().zip(&seen[1]).map(|(old, new)| what(new) / what(old)).collect());
                let digits = if old < 1000.0 { 2 } else { 0 };
                print!(" {old:>9.digits$} {new:>9.digits$} {times:>9.2}  ");
            }
            println!();
        }
    }
    volumes.into_iter().try_for_each(|mut v| v.umount().map(drop))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Round {
    /// Calls per second.
    rate: f64,
    /// Microseconds of processor time of a call.
    cpu: f64,
}

/// So many clients at a time, each in a folder of its own.
fn together(volume: &Volume, clients: usize, calls: usize, unique: usize, work: Work) -> Result<Round> {
    let folders: Vec<PathBuf> = (0..clients).map(|c| volume.mnt().join(format!("client{c}"))).collect();
    folders.iter().try_for_each(std::fs::create_dir_all)?;
    let server = volume.pid().ok_or_else(|| Error::other("nothing serves the mount"))?;
    let (start, cpu) = (Instant::now(), used(server)?);
    let by_clients = std::thread::scope(|s| {
        let running: Vec<_> = folders
            .iter()
            .map(|folder| s.spawn(move || work(folder, calls, unique).and_then(|()| mine())))
            .collect();
        running
            .into_iter()
            .map(|r| r.join().map_err(|_| Error::other("a client panicked"))?)
            .sum::<Result<f64>>()
    })?;
    let all = (clients * calls) as f64;
    Ok(Round { rate: all / start.elapsed().as_secs_f64(), cpu: (by_clients + used(server)? - cpu) / all })
}

/// Microseconds of processor time of a process's threads.
fn used(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        sum += first_number(&task?.path().join("schedstat"))?;
    }
    Ok(sum)
}

/// The same of this thread.
fn mine() -> Result<f64> {
    first_number(Path::new("/proc/thread-self/schedstat"))
}

fn first_number(path: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(path)?;
    let ns = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    ns.map(|ns| ns / 1e3).ok_or_else(|| Error::other(format!("{}: no number", path.display())))
}

fn getattr(folder: &Path, calls: usize, _unique: usize) -> Result<()> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    for _ in 0..calls {
        let mut stat = std::mem::MaybeUninit::<libc::statx>::uninit();
        let how = libc::AT_STATX_FORCE_SYNC;
        // SAFETY: the path ends in NUL, and the kernel writes one statx into room for one.
        let r = unsafe {
            libc::statx(libc::AT_FDCWD, path.as_ptr(), how, libc::STATX_BASIC_STATS, stat.as_mut_ptr())
        };
        if r != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

fn create(folder: &Path, calls: usize, unique: usize) -> Result<()> {
    (0..calls).try_for_each(|n| File::create_new(folder.join(format!("{unique}.{n}"))).map(drop))
}

fn write(folder: &Path, calls: usize, _unique: usize) -> Result<()> {
    let page = Aligned([7; PAGE]);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(folder.join("written"))?;
    (0..calls as u64).try_for_each(|n| file.write_all_at(&page.0, n % PAGES * PAGE as u64))
}
