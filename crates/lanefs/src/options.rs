//! The options of opening a volume.

use crate::{Error, Result, size};
use lanefs_store::StoreError;
use lanefs_sync::clock::Clock;
use std::sync::Arc;
use std::time::Duration;

/// The order in which names become durable (SEMANTICS, "Order").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The names found after a crash are those of a prefix of the order in which calls returned: an
    /// fsync makes durable all names that returned before it, as ext4 and XFS do. Changes of mode,
    /// owner and ACLs are in that order too. Programs that were written for these are safe.
    #[default]
    Ordered,
    /// An fsync makes durable the names of its file and what these depend on, and nothing else
    /// (ScaleFS, section 5). Independent fsyncs never wait for each other. For programs that sync
    /// all that they need.
    Relaxed,
}

/// The options of opening a volume. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Bytes of memory for all the volume keeps: half of it for pages, five sixteenths for inodes,
    /// names, logged operations and the store's inodes, a sixteenth for the store's nodes, after up
    /// to 80 MiB for buffers and tables. Half of what the nodes have, 16 MiB at the most, comes
    /// beside for what is read along with small files. Default: a quarter of RAM, or of
    /// what the control group of the process allows.
    pub cache_size: u64,
    /// Bytes of them that the caller keeps for buffers of its own; taken into account up to a
    /// quarter of the whole. Default: none.
    pub buffers: u64,
    /// Refuse every change with EROFS, and write nothing to the devices: recovery, where needed,
    /// happens in memory.
    pub read_only: bool,
    /// Never record when a file or a directory was read.
    pub noatime: bool,
    /// The order in which names become durable. The volume may be opened either way in turn.
    pub order: Order,
    /// The time between commits of namespace changes that nobody asked for, about. Default 5 s.
    pub commit_interval: Duration,
    /// The age at which a dirty page is written without being asked, about. Default 30 s.
    pub dirty_expire: Duration,
    /// Run background threads. Without them (tests, simulation) the caller calls
    /// [`Volume::tick`](crate::Volume::tick), and work that several threads could share has one.
    pub background: bool,
    /// Lanes; 0 for the default (128).
    pub lanes: usize,
    /// mlogs to write to; 0 for the volume's own number.
    pub mlogs: usize,
    /// Threads that share one fold, capture, cleaning or recovery, at the most; 0 for as many as
    /// there are processors, or one without [`MountOptions::background`]. More than mlogs do not
    /// help.
    pub threads: usize,
    /// Bytes of an epoch's groups that one mlog takes before the next one's turn; 0 for the default
    /// (1 MiB). Small ones spread an epoch that holds little over all mlogs, as checkers want it.
    pub commit_part: usize,
    /// Files made and removed in one epoch that a lane ends together; 0 for the default (128). Few
    /// of them reach more of what may go wrong, as checkers want it.
    pub end_together: usize,
    /// Frames for pages, 16 at the least; 0 for what `cache_size` has. With few of them pages are
    /// let go of in the middle of calls, as checkers want it.
    pub frames: usize,
    /// The source of timestamps; `None` for the best clock of this machine. Correctness does not
    /// depend on it.
    pub clock: Option<Arc<Clock>>,
    /// Called by the background thread when it has done what uses much memory for a moment:
    /// allocators keep what a thread has freed until it asks for more, and this one may rest then.
    /// Default: nothing.
    pub at_rest: Option<fn()>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            cache_size: 0,
            buffers: 0,
            read_only: false,
            noatime: false,
            order: Order::Ordered,
            commit_interval: Duration::from_secs(5),
            dirty_expire: Duration::from_secs(30),
            background: true,
            lanes: 0,
            mlogs: 0,
            threads: 0,
            commit_part: 0,
            end_together: 0,
            frames: 0,
            clock: None,
            at_rest: None,
        }
    }
}

impl MountOptions {
    /// Sets an option by its name, in the words of the mount's `-o`: `ro`, `rw`, `noatime`,
    /// `order=ordered|relaxed`, `cache_size=SIZE`, `commit=SECONDS`, `dirty_expire=SECONDS`. Sizes
    /// are read by [`size::parse`]. Returns whether there is such an option here: for
    /// surfaces that are given options as text.
    ///
    /// # Errors
    /// EINVAL: the value cannot be read; the message has which.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let bad = || {
            let what = value.map_or_else(|| name.to_string(), |v| format!("{name}={v}"));
            Error::from(StoreError::Invalid(format!("option {what}: its value cannot be read")))
        };
        let seconds = || value.and_then(|v| v.parse().ok()).map(Duration::from_secs).ok_or_else(bad);
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("noatime", None) => self.noatime = true,
            ("order", Some("ordered")) => self.order = Order::Ordered,
            ("order", Some("relaxed")) => self.order = Order::Relaxed,
            ("cache_size", _) => self.cache_size = value.and_then(|v| size::parse(v).ok()).ok_or_else(bad)?,
            ("commit", _) => self.commit_interval = seconds()?,
            ("dirty_expire", _) => self.dirty_expire = seconds()?,
            ("ro" | "rw" | "noatime" | "order", _) => return Err(bad()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_by_name_and_bad_values_named() {
        let mut o = MountOptions::default();
        for (name, value) in
            [("ro", None), ("order", Some("relaxed")), ("cache_size", Some("64m")), ("commit", Some("1"))]
        {
            assert!(o.set(name, value).unwrap(), "{name}");
        }
        assert!(o.read_only && o.order == Order::Relaxed && o.cache_size == 64 << 20);
        assert_eq!(o.commit_interval, Duration::from_secs(1));
        assert!(!o.set("threads", Some("3")).unwrap());
        for (name, value) in
            [("ro", Some("1")), ("order", None), ("cache_size", Some("4X")), ("commit", Some("soon"))]
        {
            let e = o.set(name, value).unwrap_err();
            assert!(e.errno() == libc::EINVAL && e.to_string().contains(name), "{e}");
        }
    }
}
