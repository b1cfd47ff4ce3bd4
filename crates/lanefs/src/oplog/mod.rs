//! The oplog: per-lane logs of the effects of namespace operations (ScaleFS 4-5), double buffered
//! by epoch.
//!
//! A lane's log is appended to by the operation that holds the lane's lock and by nobody else. A
//! seal moves every lane's buffer of the old epoch aside; a commit writes what was moved; a closure
//! reads open and sealed buffers under the lane's lock, through an index that it extends itself.
//! Groups leave a lane only when their epoch is committed.

pub(crate) mod buffer;
pub(crate) mod inode_numbers;
pub(crate) mod lane;
pub(crate) mod short_lived;
pub(crate) mod slots;

pub(crate) use lane::LaneLog;
