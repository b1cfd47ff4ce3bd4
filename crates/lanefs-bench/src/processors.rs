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

/// The clocks of some threads, in nanoseconds, by their numbers.
type Clocks = BTreeMap<u32, u64>;

/// Measures the processor time that one worker answers for: the first one for those beside the
/// process, and for its process; the others for a process of their own, if they have one.
#[derive(Debug)]
pub struct Meter<'a> {
    helpers: Option<&'a Helpers>,
    own: bool,
    others_before: Clocks,
    own_before: u64,
}

impl<'a> Meter<'a> {
    /// Makes the meter of worker `id`.
    pub fn new(helpers: &'a Helpers, id: usize, processes: bool) -> Meter<'a> {
        let first = id == 0;
        Meter {
            helpers: first.then_some(helpers),
            own: first || processes,
            others_before: Clocks::new(),
            own_before: 0,
        }
    }

    /// Reads the clocks of those beside the process, which takes a while: to be called while nobody
    /// works.
    pub fn prepare(&mut self) {
        self.others_before = self.helpers.map(Helpers::read).unwrap_or_default();
    }

    /// Begins to measure.
    pub fn begin(&mut self) {
        self.own_before = own_time();
    }

    /// Returns the seconds since [`Meter::begin`].
    pub fn seconds(&self) -> f64 {
        let own = if self.own { own_time().saturating_sub(self.own_before) } else { 0 };
        let others = self.helpers.map_or(0, |h| ran_since(&self.others_before, &h.read()));
        (own + others) as f64 / 1e9
    }
}

/// Returns the processor time of all threads of this process, in nanoseconds.
fn own_time() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    (t.tv_sec * 1_000_000_000 + t.tv_nsec) as u64
}

/// Returns the processor time of the processes that this one has started and that have ended, in
/// seconds, by hundredths.
pub fn children() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name: state, then the numbers from the fourth of proc(5) on.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the nanoseconds that threads have run between two readings.
fn ran_since(before: &Clocks, now: &Clocks) -> u64 {
    let ran = now.iter().map(|(thread, &ran)| {
        // A number that was given again counts from zero.
        ran - before.get(thread).copied().filter(|&b| b <= ran).unwrap_or(0)
    });
    ran.sum()
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

    /// Reads the clocks of all of them.
    fn read(&self) -> Clocks {
        let mut clocks = Clocks::new();
        for &server in &self.servers {
            for thread in numbers(&format!("/proc/{server}/task")) {
                note(&mut clocks, thread, &format!("/proc/{server}/task/{thread}"));
            }
        }
        if self.kernel {
            for process in numbers("/proc").filter(|&p| is_of_kernel(p)) {
                note(&mut clocks, process, &format!("/proc/{process}"));
            }
        }
        clocks
    }
}

/// Notes what a thread has run; one that ended meanwhile is left out.
fn note(clocks: &mut Clocks, thread: u32, folder: &str) {
    let text = std::fs::read_to_string(format!("{folder}/schedstat")).unwrap_or_default();
    if let Some(ran) = text.split_whitespace().next().and_then(|t| t.parse().ok()) {
        clocks.insert(thread, ran);
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

    fn work(nanoseconds: i64) {
        let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_nsec;
        while spent() < nanoseconds {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn work_of_another_thread_is_counted_once() {
        let helpers = Helpers::none();
        let mut meters = [0, 1].map(|id| Meter::new(&helpers, id, false));
        meters.iter_mut().for_each(|m| {
            m.prepare();
            m.begin();
        });
        std::thread::spawn(|| work(20_000_000)).join().unwrap();
        assert!(meters[0].seconds() >= 0.019);
        assert_eq!(meters[1].seconds(), 0.0, "its process is the first one's");
        let mut forked = Meter::new(&helpers, 1, true);
        forked.begin();
        std::thread::spawn(|| work(20_000_000)).join().unwrap();
        assert!(forked.seconds() >= 0.019);
    }

    #[test]
    fn a_thread_with_the_number_of_another_counts_from_zero() {
        let before = Clocks::from([(1, 100), (2, 50), (3, 7)]);
        let now = Clocks::from([(1, 130), (2, 20), (4, 5)]);
        assert_eq!(ran_since(&before, &now), 30 + 20 + 5);
    }

    #[test]
    fn the_kernel_has_threads_of_its_own() {
        assert!(!Helpers::of_mount(Path::new("/")).read().is_empty());
    }
}
