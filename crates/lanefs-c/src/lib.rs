//! LaneFS for C: a volume in the process that uses it, without a mount and without the kernel.
//!
//! `cargo xtask c-library --out DIR` builds `liblanefs.so`, `liblanefs.a`, `lanefs.h` (made of what
//! stands here) and `lanefs.pc`. docs/C.md has the rules that all calls have in common; in short:
//!
//! - Every call that can fail returns a negative errno then, and 0 or a count when it did not.
//!   `lanefs_last_error` has the last failure of the thread in words, with what to do.
//! - Handles are opaque, may be used by any number of threads at once, and are closed once: a
//!   handle that was closed is like memory that was freed. A handle that is `NULL` is EBADF, any
//!   other argument that must not be is EFAULT; closing `NULL` does nothing.
//! - Paths are bytes up to a zero, separated by `/`, from the volume's root.
//! - No panic leaves a call: it would be a fault of LaneFS, is told on standard error, and the call
//!   fails with EIO.
//! - What a crash leaves is what docs/SEMANTICS.md promises, call by call.

#![allow(non_camel_case_types)]
#![deny(missing_docs)]

mod answer;
mod args;
mod attrs;
mod content;
mod dir;
mod locks;
mod names;
mod spare;
mod volume;

pub use answer::*;
pub use attrs::*;
pub use content::*;
pub use dir::*;
pub use locks::*;
pub use names::*;
pub use volume::*;
