//! The machine that numbers were made on: without it they mean nothing.

use crate::clock::clock;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The machine, its kernel, and what is mounted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors this process may use.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Kernel release and version.
    pub kernel: String,
    /// Whether this is a virtual machine, as far as can be known from inside.
    pub virtual_machine: bool,
    /// Load average of the last minute when the run began.
    pub load: f64,
    /// Nanoseconds of one reading of the clock (taken off each sample).
    pub timer_ns: f64,
    /// Mounts the targets are on: device, directory, type, options.
    pub mounts: Vec<String>,
    /// Versions of what took part.
    pub versions: Vec<String>,
}

fn first_line_value(text: &str, key: &str) -> Option<String> {
    text.lines().find(|l| l.starts_with(key))?.split(':').nth(1).map(|v| v.trim().to_string())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Machine {
    /// Describes this machine, now.
    pub fn here() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let uname = rustix::system::uname();
        let memory = first_line_value(&read("/proc/meminfo"), "MemTotal")
            .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0);
        Machine {
            cpu: first_line_value(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cpus: crate::pin::allowed().len(),
            memory: memory << 10,
            kernel: format!("{} {}", uname.release().to_string_lossy(), uname.version().to_string_lossy()),
            virtual_machine: cpuinfo.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor")),
            load: read("/proc/loadavg").split(' ').next().and_then(|v| v.parse().ok()).unwrap_or(0.0),
            timer_ns: clock().overhead as f64 / clock().per_ns,
            mounts: Vec::new(),
            versions: vec![format!("lanefs {}", env!("CARGO_PKG_VERSION"))],
        }
    }

    /// Adds the mount that `path` is on.
    pub fn note_mount(&mut self, path: &Path) {
        if let Some(line) = mount_of(path)
            && !self.mounts.contains(&line)
        {
            self.mounts.push(line);
        }
    }

    /// Adds the first line of what `command --version` or the like writes.
    pub fn note_version(&mut self, command: &str, argument: &str) {
        let Ok(out) = std::process::Command::new(command).arg(argument).output() else { return };
        let text = [out.stdout, out.stderr].concat();
        if let Some(line) = String::from_utf8_lossy(&text).lines().find(|l| !l.trim().is_empty()) {
            self.versions.push(format!("{command}: {}", line.trim()));
        }
    }
}

/// Returns the line of `/proc/mounts` for the mount that holds `path`.
fn mount_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = read("/proc/mounts");
    mounts
        .lines()
        .filter_map(|line| {
            let dir = line.split(' ').nth(1)?.replace("\\040", " ");
            path.starts_with(&dir).then_some((dir.len(), line))
        })
        // The last of equally long ones: later mounts cover earlier ones.
        .max_by_key(|&(len, _)| len)
        .map(|(_, line)| line.trim_end_matches(" 0 0").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_it_is() {
        let mut m = Machine::here();
        m.note_mount(Path::new("/proc/self"));
        assert!(m.cpus >= 1 && m.memory > 0 && !m.kernel.is_empty());
        assert!(m.mounts[0].contains("/proc"), "{:?}", m.mounts);
    }
}
