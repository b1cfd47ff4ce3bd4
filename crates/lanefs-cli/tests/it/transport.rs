//! The two ways the kernel's requests may come, and its switch for one of them.

use rustix::fs::{FlockOperation, flock};
use std::cell::Cell;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Makes three tests of each scenario: one reads requests from /dev/fuse, one has them come over
/// io_uring, and one has the kernel open files without a request.
macro_rules! on_each_transport {
    ($($scenario:ident),* $(,)?) => {
        mod from_dev_fuse {
            use crate::transport::Transport;
            $(#[test]
            fn $scenario() {
                Transport::DevFuse.run(super::$scenario);
            })*
        }
        mod over_io_uring {
            use crate::transport::Transport;
            $(#[test]
            fn $scenario() {
                Transport::Rings.run(super::$scenario);
            })*
        }
        mod stateless {
            use crate::transport::Transport;
            $(#[test]
            fn $scenario() {
                Transport::Stateless.run(super::$scenario);
            })*
        }
    };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    DevFuse,
    Rings,
    /// From /dev/fuse, with another profile than the default.
    Stateless,
}

thread_local! {
    static TRANSPORT: Cell<Transport> = const { Cell::new(Transport::DevFuse) };
}

/// That of this thread's test.
pub fn transport() -> Transport {
    TRANSPORT.get()
}

impl Transport {
    pub fn has_rings(self) -> bool {
        self == Transport::Rings
    }
    pub fn option(self) -> String {
        match self {
            Transport::DevFuse => "io_uring=off",
            Transport::Rings => "io_uring=on",
            Transport::Stateless => "io_uring=off,profile=stateless",
        }
        .to_string()
    }
    /// Runs a scenario, or says why it cannot be run.
    pub fn run(self, scenario: fn()) {
        if !can_mount() {
            return;
        }
        let _switch = if self.has_rings() {
            let Some(switch) = Switch::set(true) else { return };
            Some(switch)
        } else {
            None
        };
        TRANSPORT.set(self);
        scenario();
    }
}

/// Whether mounts can be tried; says why not.
pub fn can_mount() -> bool {
    let device = File::options().read(true).write(true).open(DEVICE);
    if let Err(e) = &device {
        println!("skipped: {DEVICE}: {e}");
    }
    device.is_ok()
}

const DEVICE: &str = "/dev/fuse";

/// The mode of /dev/fuse, set as a test needs it; afterwards it is as it was, also when the test
/// fails. Where no udev is it may be 0600, and an ordinary user cannot mount. Tests that need it
/// follow each other: they lock it, also against those of other processes.
pub struct DeviceMode {
    file: File,
    before: u32,
}

impl DeviceMode {
    /// Root alone can.
    pub fn set(mode: u32) -> DeviceMode {
        let file = File::open(DEVICE).expect(DEVICE);
        flock(&file, FlockOperation::LockExclusive).expect("lock");
        let before = file.metadata().expect(DEVICE).permissions().mode() & 0o7777;
        let guard = DeviceMode { file, before };
        if before != mode {
            guard.file.set_permissions(Permissions::from_mode(mode)).expect(DEVICE);
        }
        guard
    }
}

impl Drop for DeviceMode {
    fn drop(&mut self) {
        // The lock ends with the file, after this.
        let _ = self.file.set_permissions(Permissions::from_mode(self.before));
    }
}

/// The kernel's switch for FUSE over io_uring, set as a test needs it; afterwards it is as it was.
/// Tests that need it on run together, one that needs it off runs alone: they lock it, also against
/// those of other processes.
pub struct Switch {
    file: File,
    before: Option<&'static str>,
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl Switch {
    /// `None` if it cannot be set, which is said.
    pub fn set(on: bool) -> Option<Switch> {
        let file = match File::open(SWITCH) {
            Ok(file) => file,
            Err(e) => {
                println!("skipped: this kernel has no FUSE over io_uring: {SWITCH}: {e}");
                return None;
            }
        };
        let lock = |how| flock(&file, how).expect("lock");
        lock(if on { FlockOperation::LockShared } else { FlockOperation::LockExclusive });
        let mut before = None;
        if is_on() != on {
            lock(FlockOperation::LockExclusive);
            if is_on() != on {
                if let Err(e) = std::fs::write(SWITCH, if on { "Y" } else { "N" }) {
                    println!("skipped: {SWITCH} is not as the test needs it, and cannot be set: {e}");
                    return None;
                }
                before = Some(if on { "N" } else { "Y" });
            }
            if on {
                lock(FlockOperation::LockShared);
            }
        }
        Some(Switch { file, before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // When nobody else relies on it any more.
            let _ = flock(&self.file, FlockOperation::LockExclusive);
            let _ = std::fs::write(SWITCH, before);
        }
    }
}

fn is_on() -> bool {
    std::fs::read_to_string(SWITCH).is_ok_and(|s| s.starts_with('Y'))
}
