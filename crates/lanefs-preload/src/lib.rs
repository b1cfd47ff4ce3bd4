//! A library to be preloaded: it stands in place of functions of the C library, and serves paths
//! below one directory from a volume in the process itself. docs/RUN.md says what is covered.
//!
//! `lanefs run IMAGE:/data -- PROGRAM` sets what the library reads:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `LANEFS_PREFIX` | the directory whose paths are served, absolute and without `.`, `..`, `//` |
//! | `LANEFS_IMAGES` | the images of the volume, absolute, a line each |
//! | `LANEFS_CWD` | the working directory below the prefix, if the program begins there |
//! | `LANEFS_CACHE` | bytes of memory for the volume; default: a quarter of RAM |
//! | `LANEFS_MOUNT` | where to serve a mount of the volume meanwhile: a directory, absolute |
//! | `LANEFS_MOUNTED` | where another process serves one, for what is told |
//! | `LANEFS_REPORT` | `1`: on exit say what was served and what was not |
//!
//! How a call goes: a function in `calls` asks `route` whose path it has, or `table` whose
//! descriptor; what is the volume's goes to the library by `volume`, and everything else to the
//! function of the C library that was replaced (`hook`).
//!
//! P1 A descriptor of the volume is a descriptor of the kernel too: a copy of one that refers to
//!    nothing that can be read, written or walked from (`placeholder`). So numbers never clash,
//!    close-on-exec is the kernel's, and a call that is not replaced fails and touches no file of
//!    the host.
//! P2 The volume belongs to the process that opened it. A page that the kernel empties in the child
//!    of a fork, however it was made, says so (`volume::is_owner`).
//! P3 A call that comes while the same thread is within the volume comes from a signal handler, and
//!    is answered with EDEADLK; the library's own calls never name the volume's paths.

#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]

mod attributes;
mod calls;
mod dispatch;
mod environment;
mod handing;
mod hook;
mod itself;
mod life;
mod links;
mod notices;
mod opening;
mod placeholder;
mod raw;
mod report;
mod route;
mod served;
mod settings;
mod shared;
mod stderr;
mod table;
mod upwards;
mod volume;
