//! RocksDB's own programs on a volume, and two of ours (tests/cpp).

mod bench;
mod built;
mod kills;
mod programs;
mod refused;
mod surface;
