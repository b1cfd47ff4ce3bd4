//! Processor time of everybody who works for a target: all threads of this process, the threads of
//! the kernel, and the servers of a mount in user space. What a file system does behind its caller
//! is in it, whoever does it.

use std::collections::BTreeMap;
use std::path::Path;

/// The parent of all threads of the kernel.
const KTHREADD: u32 = 2;

/// Those who work for a target beside this process.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    servers: Vec<u32>,
    kernel: bool,
}

/// A reading of all their clocks, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    own: u64,
    others: BTreeMap<u32, u64>,
}

impl Helpers {
    /// Stands for nobody: the target is in this process.
    pub fn none() -> Helpers {
        Helpers::default()
    }

    /// Finds the threads of the kernel, and the processes that serve the mount at or above a
    /// directory, if it is one in user space: those with its mount point among their arguments.
    pub fn of_mount(dir: &Path) -> Helpers {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
        let servers = match mount_point(&mounts, &dir) {
            Some((point, kind)) if kind.starts_with("fuse") => servers_of(&point),
            _ => Vec::new(),
        };
        Helpers { servers, kernel: true }
    }

    /// Reads all clocks.
    pub fn read(&self) -> Reading {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let mut reading =
            Reading { own: (t.tv_sec * 1_000_000_000 + t.tv_nsec) as u64, ..Reading::default() };
        for &server in &self.servers {
            for thread in numbers(&format!("/proc/{server}/task")) {
                reading.note(thread, &format!("/proc/{server}/task/{thread}"));
            }
        }
        if self.kernel {
            for process in numbers("/proc").filter(|&p| is_of_kernel(p)) {
                reading.note(process, &format!("/proc/{process}"));
            }
        }
        reading
    }
}

impl Reading {
    /// Notes what a thread has run; one that ended meanwhile is left out.
    fn note(&mut self, thread: u32, folder: &str) {
        let text = std::fs::read_to_string(format!("{folder}/schedstat")).unwrap_or_default();
        if let Some(ran) = text.split_whitespace().next().and_then(|t| t.parse().ok()) {
            self.others.insert(thread, ran);
        }
    }

    /// Returns the nanoseconds run since an earlier reading.
    pub fn since(&self, earlier: &Reading) -> u64 {
        let others = self.others.iter().map(|(thread, &ran)| {
            // A number that was given again counts from zero.
            let before = earlier.others.get(thread).copied().filter(|&b| b <= ran).unwrap_or(0);
            ran - before
        });
        self.own.saturating_sub(earlier.own) + others.sum::<u64>()
    }
}

/// Returns the entries of a folder that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).ok();
    entries.into_iter().flatten().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns whether a process is a thread of the kernel.
fn is_of_kernel(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything: state, parent.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    parent == Some(KTHREADD)
}

/// Returns the mount that a path is on, and its type.
fn mount_point(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(String, String)> = None;
    for line in mountinfo.lines() {
        let point = line.split(' ').nth(4)?.replace("\\040", " ");
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        // Of two on one point the later one is seen.
        if path.starts_with(&point) && best.as_ref().is_none_or(|b| b.0.len() <= point.len()) {
            best = Some((point, kind.to_string()));
        }
    }
    best
}

/// Returns the processes that have a mount point among their arguments.
fn servers_of(point: &str) -> Vec<u32> {
    numbers("/proc")
        .filter(|&p| p != std::process::id())
        .filter(|p| {
            let line = std::fs::read(format!("/proc/{p}/cmdline")).unwrap_or_default();
            line.split(|&b| b == 0).any(|argument| argument == point.as_bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 8:1 / / rw - ext4 /dev/sda rw\n\
        30 22 0:40 / /tmp/a\\040b rw,nosuid - fuse.lanefs lanefs rw\n";

    #[test]
    fn the_mount_of_a_path_is_the_deepest_one() {
        let of = |p: &str| mount_point(MOUNTS, Path::new(p)).map(|m| m.1);
        assert_eq!(of("/tmp/a b/c").as_deref(), Some("fuse.lanefs"));
        assert_eq!(of("/tmp/ab").as_deref(), Some("ext4"));
    }

    #[test]
    fn work_of_another_thread_is_counted() {
        let helpers = Helpers::none();
        let before = helpers.read();
        let worked = std::thread::spawn(|| {
            let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while spent().tv_nsec < 20_000_000 {
                std::hint::spin_loop();
            }
        });
        worked.join().unwrap();
        assert!(helpers.read().since(&before) >= 19_000_000);
    }

    #[test]
    fn the_kernel_has_threads_of_its_own() {
        assert!(!Helpers::of_mount(Path::new("/")).read().others.is_empty());
    }
}
