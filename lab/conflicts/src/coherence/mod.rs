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
//! With `--background` there is one more thread, on a core of its own, which does a round of all
//! background work (`Volume::tick`: inodes end, pages are written, epochs are committed and folded)
//! after every 4 turns of each lane, and in the second half after every 12. What a round costs
//! whatever there is to do is in both halves; the difference is what units cost. So it is seen
//! which lines of the lanes the background takes, and what the lanes wait for these; and the bound
//! is that of all the work, of which one thread does a part alone.
//!
//! The model does not know: how long a lock is held, caches too small for the work, the bandwidth
//! of memory, the inside of the allocator, and the ticks of the coarse clock, which stands still: a
//! tick stores the time of a file once, 250 times a second. Operations, and rounds of the
//! background, are atomic in it: a line that is lost in the middle of one is counted with the next.
//! Stocks that a workload lays in anew between its turns are not recorded.

pub mod directory;
pub mod drive;
pub mod predict;
pub mod report;
pub mod workloads;
