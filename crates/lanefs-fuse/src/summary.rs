//! What a mount came to, in a line: how requests come, what the kernel keeps, who checks
//! permissions, and what root could switch on.

use crate::options::{IoUring, MountConfig};

/// The kernel's switch for FUSE over io_uring.
pub(crate) const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The state of that switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    /// The kernel knows no rings.
    Missing,
    Off,
    On,
}

impl Switch {
    /// Reads it.
    pub fn now() -> Switch {
        match std::fs::read_to_string(SWITCH) {
            Err(_) => Switch::Missing,
            Ok(s) if s.starts_with(['Y', 'y', '1']) => Switch::On,
            Ok(_) => Switch::Off,
        }
    }
}

/// Returns the line, without an end.
pub(crate) fn summary(config: &MountConfig, over_rings: bool, polls: bool, switch: Switch) -> String {
    debug_assert!(!over_rings || config.io_uring != IoUring::Off, "rings that nobody asked for");
    let transport = if over_rings { "requests over io_uring" } else { "requests by /dev/fuse" };
    let cache = match (config.stateless(), config.writeback) {
        (true, _) => "stateless: files are not opened, writes go through at once",
        (false, true) => "gather: the kernel gathers small writes",
        (false, false) => "through: writes go through at once",
    };
    let checks =
        if config.is_unchecked() { "permissions unchecked, for root alone" } else { "permissions checked" };
    let mut line = format!("{transport}; {cache}; {checks}");
    if config.noxattr {
        line += "; no extended attributes, no ACLs";
    }
    if polls {
        line += "; idle processors poll while calls come thick";
    }
    if !over_rings && switch == Switch::Off && config.io_uring == IoUring::Auto {
        line += &format!(
            "; for calls of several programs at once to wake no other processor, root can, before the \
             next mount: echo Y > {SWITCH}"
        );
    }
    debug_assert!(!line.contains('\n'), "it is one line");
    debug_assert!(over_rings || line.starts_with("requests by"), "{line}");
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Idle;

    #[test]
    fn a_line_says_what_a_mount_came_to() {
        let of = |options: &str, rings, switch| {
            let mut c = MountConfig::default();
            c.parse(options).unwrap();
            summary(&c, rings, c.idle == Idle::Poll, switch)
        };
        assert_eq!(
            of("profile=gather", true, Switch::On),
            "requests over io_uring; gather: the kernel gathers small writes; permissions checked"
        );
        let off = of("nowriteback", false, Switch::Off);
        assert!(off.contains("/dev/fuse; through: ") && off.ends_with(SWITCH), "{off}");
        for (options, switch) in [("io_uring=off", Switch::Off), ("", Switch::Missing), ("", Switch::On)] {
            assert!(!of(options, false, switch).contains("echo"), "{options} {switch:?}");
        }
        assert!(of("profile=stateless", true, Switch::On).contains("stateless"));
        assert!(of("idle=poll", true, Switch::On).ends_with("; idle processors poll while calls come thick"));
        assert!(of("noxattr", true, Switch::On).ends_with("; no extended attributes, no ACLs"));
    }
}
