//! What a store tells of itself: figures of this moment, and sums since the volume was opened.
//!
//! Nothing is counted for it on the way of a caller. What is summed up here is known anyway, or is
//! counted where something rare happens: at checkpoints, where a segment is begun, by the cleaner.
//! The figures are taken one after the other while others work, so they need not add up to the last
//! block.

/// A store's figures.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct StoreReport {
    /// Space.
    pub space: SpaceReport,
    /// Segments.
    pub segments: SegmentsReport,
    /// The logs, by their numbers.
    pub mlogs: Vec<MlogReport>,
    /// Bytes written to the devices since the volume was opened, by cause.
    pub written: WrittenReport,
    /// The cleaner since the volume was opened.
    pub cleaner: CleanerReport,
    /// Checkpoints since the volume was opened.
    pub checkpoints: CheckpointsReport,
    /// The devices since the volume was opened.
    pub devices: DevicesReport,
    /// Memory of the store's inodes and inode table, in bytes, about.
    pub inode_memory_bytes: u64,
    /// The part of it that a checkpoint has to write before it can leave memory, in bytes.
    pub inode_memory_dirty_bytes: u64,
}

/// Space, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct SpaceReport {
    /// What users can fill when nothing is stored.
    pub total_bytes: u64,
    /// Of that, neither used nor promised.
    pub free_bytes: u64,
    /// Promised to what is not written yet.
    pub reserved_bytes: u64,
    /// Blocks in use of all segments, the tree's included.
    pub live_bytes: u64,
    /// Inodes on disk.
    pub inodes: u64,
}

/// The number of segments in each state.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct SegmentsReport {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// All that can hold the log.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Of the free ones, those that only checkpoints and the cleaner may take.
    pub reserved: u64,
    /// Below so many free ones the background cleans.
    pub low_water: u64,
    /// Below so many free ones it makes a checkpoint, whatever was written since the last one.
    /// Never fewer than `low_water`: a checkpoint finds what has become free.
    pub checkpoint_below: u64,
    /// Full, without a live block: free with the next checkpoint, or the one behind it.
    pub pending: u64,
    /// A head writes there.
    pub open: u64,
    /// In the chain of a log.
    pub chain: u64,
    /// Full ones by how much of them is live: above 0 and up to a tenth, up to two tenths, and
    /// so on to whole ones.
    pub by_utilisation: Vec<u64>,
}

/// One mlog.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct MlogReport {
    /// The device that it lies on, as far as there are free segments.
    pub device: u64,
    /// Bytes of data that users wrote, since the volume was opened.
    pub data_bytes: u64,
    /// Bytes of batches, and of links between segments, since the volume was opened.
    pub log_bytes: u64,
    /// Bytes of batches since the last checkpoint: recovery would read them.
    pub to_recover_bytes: u64,
    /// Segments that these lie in.
    pub chain_segments: u64,
    /// Blocks of all lanes come here: hardly anything is free.
    pub takes_all: bool,
    /// Segments that heads write to.
    pub open_heads: u64,
    /// The bytes that the open heads can take before they need another segment.
    pub head_capacity_bytes: u64,
}

/// Bytes written to the devices, by cause.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct WrittenReport {
    /// Data of files.
    pub data_bytes: u64,
    /// Batches of the logs: names, inodes and small files that fsyncs and commits wrote.
    pub log_bytes: u64,
    /// The tree, which checkpoints write.
    pub tree_bytes: u64,
    /// What the cleaner moved, and bad copies that were written anew.
    pub moved_bytes: u64,
    /// Slots and superblocks.
    pub root_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
    /// All of it for each byte of data; none before any data was written.
    pub write_amplification: Option<f64>,
}

/// The cleaner's work.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct CleanerReport {
    /// Segments emptied.
    pub segments: u64,
    /// Blocks of data moved.
    pub blocks_moved: u64,
    /// Blocks of the tree that a checkpoint had to write anew.
    pub nodes_marked: u64,
}

/// Checkpoints.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct CheckpointsReport {
    /// Those that folded names into directories.
    pub folding: u64,
    /// Those that only freed segments.
    pub in_place: u64,
    /// Those that failed.
    pub failed: u64,
    /// Nanoseconds that all of them took together.
    pub total_ns: u64,
    /// Nanoseconds that the longest took.
    pub longest_ns: u64,
    /// Nanoseconds that the last one took.
    pub last_ns: u64,
}

/// All devices together.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct DevicesReport {
    /// Devices.
    pub count: u64,
    /// Transactions of the store: fsyncs, writebacks, commits.
    pub transactions: u64,
    /// Flushes that were asked for.
    pub flushes_asked: u64,
    /// Flushes that the devices were given: one serves all who asked before it.
    pub flushes_issued: u64,
    /// Writes that wait at this moment for space on the host of a sparse image.
    pub waiting_for_host: u64,
    /// What is wrong with a device at this moment, with its name and what to do: the volume waits
    /// for space on its host, or an error has stopped the volume. Nothing if all is well.
    pub trouble: Option<String>,
    /// The change of the devices that is under way: one that is replaced, or from whose end all is
    /// moved elsewhere so that it can be made smaller or be removed.
    pub change: Option<ChangeReport>,
}

/// How far a change of the devices is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct ChangeReport {
    /// Bytes that are copied or moved.
    pub done_bytes: u64,
    /// Bytes that are to be.
    pub total_bytes: u64,
}
