//! Workloads that are programs of their own: directories of mounted file systems only.

pub mod rocksdb;
