//! The coherence model: what the cache lines of FxMark's workloads do between the cores of a
//! machine that is not there.
//!
//! Each of the nineteen runs in this process on up to 128 threads, each on a lane of its own, which
//! take turns: every round in another order, from a seed. The conflict checker's recorder notes
//! what each operation touches, and the accesses go through a directory of caches (`directory`):
//! who holds which line, who has to fetch it from whom. So for each number of lanes it is counted
//! how often lines travel for one operation, which lines, and of which fields. From that and the
//! cost of a transfer a bound of the throughput follows (`predict`). It is a **prediction**, and
//! called that wherever it is shown; beside it stands what was measured from one to two cores, with
//! the error.
//!
//! The model does not know: how long a lock is held, caches too small for the work, the bandwidth
//! of memory, the inside of the allocator, the background thread, which is off, and the ticks of
//! the coarse clock, which stands still: a tick stores the time of a file once, 250 times a second.
//! Operations are atomic in it: a line that is lost in the middle of one is counted with the next.

pub mod directory;
pub mod drive;
pub mod predict;
pub mod report;
pub mod workloads;
