//! The options of opening a volume.

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
    /// to 80 MiB for buffers and tables. Default: a quarter of RAM.
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
    /// [`Volume::tick`](crate::Volume::tick), and recovery has one thread.
    pub background: bool,
    /// Lanes; 0 for the default (128).
    pub lanes: usize,
    /// mlogs to write to; 0 for the volume's own number.
    pub mlogs: usize,
    /// Bytes of an epoch's groups that one mlog takes before the next one's turn; 0 for the default
    /// (1 MiB). Small ones spread an epoch that holds little over all mlogs, as checkers want it.
    pub commit_part: usize,
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
            commit_part: 0,
            clock: None,
            at_rest: None,
        }
    }
}
