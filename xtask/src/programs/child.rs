//! Running a program with a time limit, so that a hanging file system becomes a failure and not a
//! hanging test.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The text that a program wrote, and its exit status.
pub struct Output {
    pub status: ExitStatus,
    /// Standard output and standard error, in the order they came.
    pub text: String,
}

/// Runs `command`; its output is collected in a file in `scratch`. An error says what was run.
pub fn output(command: &mut Command, scratch: &Path, limit: Duration) -> Result<Output, String> {
    let line = describe(command);
    let log = scratch.join("output");
    let out = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let err = out.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
    let mut child =
        command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(|e| format!("{line}: {e}"))?;
    let ended = wait(&mut child, limit).map_err(|e| format!("{line}: {e}"))?;
    let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    match ended {
        Some(status) => Ok(Output { status, text }),
        None => {
            let stacks = end_tree(&mut child);
            Err(format!("{line}: not done after {} s, ended\n{stacks}{}", limit.as_secs(), tail(&text, 8)))
        }
    }
}

/// Like [`output`], and anything but success is an error.
pub fn succeed(command: &mut Command, scratch: &Path, limit: Duration) -> Result<String, String> {
    let out = output(command, scratch, limit)?;
    if out.status.success() {
        Ok(out.text)
    } else {
        Err(format!("{}: {}\n{}", describe(command), out.status, tail(&out.text, 12)))
    }
}

/// The command as one would type it.
pub fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    let mut line = words.join(" ");
    if line.len() > 300 {
        line.truncate((0..=300).rev().find(|n| line.is_char_boundary(*n)).unwrap_or(0));
        line.push_str("...");
    }
    line
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Waits, but no longer than `limit`; `None` if it still runs.
pub fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Kills a child and all that it started, waits for it, and says in which system calls they were.
pub fn end_tree(child: &mut Child) -> String {
    let mut said = String::new();
    for pid in descendants(child.id()) {
        let read = |f: &str| std::fs::read_to_string(format!("/proc/{pid}/{f}")).unwrap_or_default();
        said += &format!("  pid {pid} {} waits in {}\n", read("comm").trim(), read("wchan"));
        kill(pid);
    }
    // A process in an uninterruptible wait does not go; do not wait for it for ever.
    let _ = wait(child, Duration::from_secs(10));
    said
}

/// Returns whether a child, or one that it started, waits for an answer of a FUSE server, or in a
/// way that no signal ends. One that runs, or waits for another, is about its own business.
pub fn waits_for_a_mount(child: &Child) -> bool {
    descendants(child.id()).into_iter().any(|pid| {
        let read = |f: &str| std::fs::read_to_string(format!("/proc/{pid}/{f}")).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
        let place = read("wchan");
        state == Some("D") || place.contains("fuse") || place.contains("request_wait")
    })
}

/// Kills one process.
pub fn kill(pid: u32) {
    // SAFETY: kill takes numbers only. The process is one of ours: a child not yet waited for, or
    // below one.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}

/// A process and all below it, by what /proc says.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(parents.iter().filter(|p| p.1 == above).map(|p| p.0));
        next += 1;
    }
    found
}
