//! How many requests the kernel makes of an operation, which depends on no clock.
//!
//! requests.ratchet.json holds what was counted, for each way to mount: an operation must not take
//! more requests that somebody waits for. `LANEFS_REQUESTS=show` prints the table, and
//! `LANEFS_REQUESTS=keep` also writes the file anew.

use crate::operations::{OPERATIONS, Operation};
use lanefs::{MountOptions, Volume};
use lanefs_fuse::{IoUring, MountConfig, Requests, Session, mount};
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::{FormatOptions, Store};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/requests.ratchet.json");

/// Options that change which requests come.
const OPTIONS: &[&str] = &[
    "profile=gather",
    "profile=through",
    "profile=stateless",
    "profile=stateless,unchecked",
    "profile=stateless,unchecked,noxattr",
];

/// Those with which the kernel gathers writes.
const GATHERS: &str = "profile=gather";

/// A volume in memory, and where it is mounted.
struct Mounted {
    device: Arc<dyn Device>,
    dir: tempfile::TempDir,
    options: &'static str,
    session: Option<Session>,
}

impl Mounted {
    fn new(options: &'static str) -> Mounted {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let mut made = Mounted { device, dir: tempfile::tempdir().unwrap(), options, session: None };
        made.mount();
        made
    }

    fn mount(&mut self) {
        let mut config = MountConfig { io_uring: IoUring::Off, ..MountConfig::default() };
        assert!(config.parse(self.options).unwrap().is_empty(), "{}", self.options);
        let options = MountOptions { cache_size: 64 << 20, ..MountOptions::default() };
        let volume = Volume::open_devices(vec![Arc::clone(&self.device)], &options).unwrap();
        self.session = Some(mount(volume, self.dir.path(), &config).unwrap());
    }

    fn mount_anew(&mut self) {
        self.session.take().unwrap().unmount().unwrap();
        self.mount();
    }

    /// What was served when no more comes that nobody waits for.
    fn requests(&self) -> Requests {
        let all = || self.session.as_ref().unwrap().requests();
        let mut seen = all();
        loop {
            std::thread::sleep(Duration::from_millis(10));
            let now = all();
            if now == seen {
                return now;
            }
            seen = now;
        }
    }

    /// The requests of an operation, in a directory that the kernel knows.
    fn count(&mut self, operation: &Operation) -> Requests {
        let dir: PathBuf = self.dir.path().join(operation.name.replace(' ', "-"));
        std::fs::create_dir(&dir).unwrap();
        (operation.prepare)(&dir).unwrap();
        if operation.cold {
            self.mount_anew();
        }
        std::fs::metadata(&dir).unwrap();
        let before = self.requests();
        for n in 0..operation.times {
            (operation.act)(&dir, n).unwrap_or_else(|e| panic!("{}: {e}", operation.name));
        }
        self.requests().since(&before)
    }
}

/// One line of the table: requests of one operation, and which.
fn line(operation: &Operation, requests: &Requests) -> String {
    let each = |n: u64| n as f64 / operation.times as f64;
    let kinds: Vec<String> =
        requests.by_kind().iter().map(|(kind, n)| format!("{kind} {:.2}", each(*n))).collect();
    format!(
        "{:<36} {:>9.2} {:>9.2} {:>10.0} {:>10.0}  {}",
        operation.name,
        each(requests.waited_for()),
        each(requests.not_waited_for()),
        each(requests.received),
        each(requests.answered),
        kinds.join(" ")
    )
}

/// The requests that are held to the file. Not those by which the kernel hands over the times that
/// it keeps where it gathers writes: they depend on whether a clock ticked between two calls.
fn held(options: &str, requests: &Requests) -> u64 {
    let times = requests.by_kind().iter().find(|(kind, _)| *kind == "SETATTR").map_or(0, |(_, n)| *n);
    requests.waited_for() - if options == GATHERS { times } else { 0 }
}

/// What the file holds of an operation.
fn kept(operation: &Operation, requests: &Requests, held: u64) -> Value {
    let kinds: Map<String, Value> =
        requests.by_kind().into_iter().map(|(kind, n)| (kind.to_string(), n.into())).collect();
    json!({ "times": operation.times, "held": held, "requests": kinds })
}

fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

#[test]
fn no_operation_takes_more_requests_than_it_did() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse, to mount");
        return;
    }
    let wish = std::env::var("LANEFS_REQUESTS").unwrap_or_default();
    let file: Value = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap_or("{}".into())).unwrap();
    let mut now = Map::new();
    let mut more = Vec::new();
    for options in OPTIONS {
        let mut mounted = Mounted::new(options);
        let mut counted = Map::new();
        println!("\n{options}\n{:<36} waited for not waited      bytes in   and out  each", "");
        for operation in OPERATIONS {
            let requests = mounted.count(operation);
            println!("{}", line(operation, &requests));
            let held = held(options, &requests);
            // One in a hundred may be more: the kernel forgets what it likes.
            let most = file["counted"][options][operation.name]["held"].as_u64();
            match most {
                Some(most) if held <= most + most / 100 => {}
                _ => more.push(format!("{options}: {}, where {most:?} were", line(operation, &requests))),
            }
            counted.insert(operation.name.into(), kept(operation, &requests, held));
        }
        now.insert((*options).into(), counted.into());
        mounted.session.take().unwrap().unmount().unwrap();
    }
    if wish == "keep" {
        let text = serde_json::to_string_pretty(&json!({ "kernel": release(), "counted": now })).unwrap();
        std::fs::write(KEPT, text + "\n").unwrap();
    } else if file["kernel"] != release() {
        println!(
            "not held to {KEPT}, which is of Linux {}: another one makes other requests",
            file["kernel"]
        );
    } else {
        assert!(more.is_empty(), "more requests than before:\n{}", more.join("\n"));
    }
}
