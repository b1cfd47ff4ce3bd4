//! When blocks are durable and when they are free: transactions, epoch commits, checkpoints with
//! their folds, and the cleaner.

pub(crate) mod begun;
mod carry;
mod change;
pub(crate) mod checkpoint;
mod cleaner;
pub(crate) mod commit;
pub(crate) mod commits;
mod copies;
pub mod fold;
pub(crate) mod maintenance;
mod pressure;
pub(crate) mod sink;
mod slots;
mod transaction;
