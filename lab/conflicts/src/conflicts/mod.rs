//! The conflict checker: operations that commute share no cache line.
//!
//! The method is that of COMMUTER (Clements and others, SOSP'13) as ScaleFS used it (SOSP'17, 7.2).
//! Pairs of calls are explored (`lazy`, `choice`) for the initial states and arguments in which the
//! two calls commute by the reference model (`judge`); each such test is run on two lanes of a
//! volume compiled with instrumentation (`trace`, `run`), and the memory that both touched, at
//! least one of them writing, is a conflict (`overlap`). docs/CONFLICTS.md has the method, the
//! figures and the classes of conflict that are kept.

pub mod backtraces;
pub mod call;
pub mod choice;
pub mod drive;
pub mod enumerate;
pub mod judge;
pub mod lackey;
pub mod lanes;
pub mod lazy;
pub mod overlap;
pub mod report;
pub mod run;
pub mod symbol;
pub mod tally;
pub mod test_case;
pub mod trace;
pub mod views;
pub mod volume;
