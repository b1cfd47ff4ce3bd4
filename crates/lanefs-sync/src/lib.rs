//! Structures by which the crates above stay out of each other's cache lines: lanes, epochs, the
//! reader pass-through semaphore, sequence words, counters of changes, the strided counter and the
//! clock; references to memory that stays as it is; the one generator of random numbers; and work
//! that several threads share.
//!
//! Every protocol is described at the head of its file; `docs/CONCURRENCY.md` lists who may write
//! which field. The same code runs under loom
//! (`RUSTFLAGS="--cfg loom" cargo test -p lanefs-sync --release --test loom`), because atomics,
//! parking and thread-locals all come through [`primitive`].
#![deny(missing_docs)]

pub mod ablation;
pub mod changes;
pub mod clock;
pub mod epoch;
pub mod fork;
pub mod hash;
pub mod lane_ids;
pub mod lanes;
pub mod lock;
pub mod parallel;
pub mod partial;
pub mod prefetch;
pub mod primitive;
pub mod racy_copy;
pub mod random;
pub mod raw_lock;
pub mod rps;
pub mod schedule;
pub mod seqlock;
pub mod signals;
pub mod stable;
pub mod strided;
pub mod waiting;

pub use changes::{Change, Changes, CounterOf};
pub use clock::{Clock, coarse_realtime_ns};
pub use epoch::Epochs;
pub use lane_ids::{LaneIds, MAX_LANES, Seat};
pub use lanes::{LaneGuard, Lanes};
pub use prefetch::prefetch;
pub use primitive::CachePadded;
pub use racy_copy::{copy_racy, fill_racy};
pub use raw_lock::RawLock;
pub use rps::{Rps, RpsReadGuard, RpsWriteGuard};
pub use seqlock::{SeqGuard, SeqWord};
pub use signals::SignalsBlocked;
pub use strided::StridedCounter;
pub use waiting::{about_to_wait, on_wait, patience, set_patience};
