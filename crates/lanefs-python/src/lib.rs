//! LaneFS for Python: a volume in the process that uses it, without a mount and without the kernel.
//!
//! What programs import is the package `lanefs` beside this crate (`python/lanefs`); this is its
//! compiled part, `lanefs._lanefs`. docs/PYTHON.md has the rules that all calls have in common; in
//! short:
//!
//! - Failures are `OSError`s of the errno, with the message of the library; what `os` and `io`
//!   answer with another exception is that one here, too.
//! - Every call that enters the library releases the interpreter's lock, and any thread may call.
//! - Buffers and paths are used where they are, without a copy.
//! - No panic leaves a call: it would be a fault of LaneFS, and is EIO.
//! - What a crash leaves is what docs/SEMANTICS.md promises, call by call.

#![allow(clippy::too_many_arguments)] // of calls with keywords

mod answer;
mod attrs;
mod buffer;
mod dir;
mod file;
mod path;
mod view;
mod volume;

use answer::{outside, refuse_children};
use lanefs::CreateOptions;
use pyo3::prelude::*;
use std::ffi::OsString;

/// Files of whole cache lines are made faster by it than by the C library's. Python's own objects
/// are not concerned.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Make a volume in new image files of `size` bytes each.
#[pyfunction]
#[pyo3(signature = (images, size, label, metadata_copies))]
fn format(
    py: Python<'_>,
    images: Vec<OsString>,
    size: u64,
    label: &str,
    metadata_copies: u32,
) -> PyResult<()> {
    refuse_children()?;
    let mut options = CreateOptions::new();
    options.label(label).metadata_copies(metadata_copies);
    Ok(outside(py, || options.create(&images, size))?)
}

/// Return the bytes of a size such as 4096, '64M' or '4G'.
#[pyfunction]
fn parse_size(text: &str) -> Option<u64> {
    lanefs::size::parse(text).ok()
}

/// Return whether this process is the child of a fork, in which no volume can be used.
#[pyfunction]
fn is_child() -> bool {
    lanefs_sync::fork::is_child()
}

#[pymodule]
fn _lanefs(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<volume::Volume>()?;
    module.add_class::<file::File>()?;
    module.add_class::<dir::ScanDir>()?;
    module.add_class::<dir::DirEntry>()?;
    module.add_function(wrap_pyfunction!(format, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(is_child, module)?)?;
    // SAFETY: the interpreter runs; it calls the function once, when it ends. Where it takes
    // no more of them, volumes that nobody has closed are recovered when they are opened again.
    unsafe { pyo3::ffi::Py_AtExit(Some(view::close_all)) };
    Ok(())
}
