//! RocksDB on LaneFS: `librocksdb_lanefs.so`, a `rocksdb::FileSystem` whose files are those of a
//! volume that the process has open.
//!
//! It is C++ (`cpp/`) over the library for C, built by `cargo xtask rocksdb-plugin`, and has no
//! Rust of its own: this package holds its tests. docs/ROCKSDB.md says how it is used.
