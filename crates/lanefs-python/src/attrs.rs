//! Attributes as `os` has them: `os.stat_result`, `os.statvfs_result`, times.

use lanefs::{SetTime, Stat, StatFs, times};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// Returns a time in seconds, a number with or without a fraction.
fn seconds(time: &Bound<'_, PyAny>) -> PyResult<SetTime> {
    match time.extract::<i64>() {
        Ok(whole) => return Ok(SetTime::At(times::number(whole, 0))),
        Err(e) if e.is_instance_of::<PyOverflowError>(time.py()) => return Err(no_time()),
        Err(_) => {}
    }
    let time: f64 = time.extract()?;
    if time.is_nan() {
        return Err(PyValueError::new_err("Invalid value NaN (not a number)"));
    }
    let (whole, nanos) = (time.floor(), (time - time.floor()) * 1e9);
    // Both ends are powers of two, which a float has as they are.
    match (-(2f64.powi(63))..2f64.powi(63)).contains(&whole) {
        true => Ok(SetTime::At(times::number(whole as i64, nanos as u32))),
        false => Err(no_time()),
    }
}

/// Returns the exception for seconds that the system's times cannot have.
#[cold]
fn no_time() -> PyErr {
    PyOverflowError::new_err("timestamp out of range for platform time_t")
}

/// Returns a time in nanoseconds, a whole number.
fn nanoseconds(time: &Bound<'_, PyAny>) -> PyResult<SetTime> {
    let time: i128 = time.extract()?;
    let whole = i64::try_from(time.div_euclid(1_000_000_000)).map_err(|_| no_time())?;
    Ok(SetTime::At(times::number(whole, time.rem_euclid(1_000_000_000) as u32)))
}

/// Two times as `os.utime` takes them: a tuple of the last access and of the last change.
pub(crate) struct Times<'py>(Bound<'py, PyAny>, Bound<'py, PyAny>);

impl<'a, 'py> FromPyObject<'a, 'py> for Times<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Times<'py>> {
        match object.cast::<PyTuple>() {
            Ok(two) if two.len() == 2 => Ok(Times(two.get_item(0)?, two.get_item(1)?)),
            _ => Err(PyTypeError::new_err("two times are a tuple of two numbers")),
        }
    }
}

/// Returns the times that `os.utime` sets: both in seconds, or both in nanoseconds; without either
/// the time of the call.
pub(crate) fn set_times(
    times: Option<Times<'_>>,
    ns: Option<Times<'_>>,
) -> PyResult<(Option<SetTime>, Option<SetTime>)> {
    let (atime, mtime) = match (times, ns) {
        (None, None) => (SetTime::Now, SetTime::Now),
        (Some(Times(a, m)), None) => (seconds(&a)?, seconds(&m)?),
        (None, Some(Times(a, m))) => (nanoseconds(&a)?, nanoseconds(&m)?),
        (Some(_), Some(_)) => {
            return Err(PyValueError::new_err("either 'times' or 'ns', not both"));
        }
    };
    Ok((Some(atime), Some(mtime)))
}

/// Returns an owner to be set; -1 leaves it as it is.
pub(crate) fn owner(id: i64) -> PyResult<Option<u32>> {
    match id {
        -1 => Ok(None),
        id => Ok(Some(u32::try_from(id)?)),
    }
}

/// Returns attributes as an `os.stat_result`; `device` tells the volumes of a process apart.
pub(crate) fn stat_result<'py>(py: Python<'py>, s: &Stat, device: u64) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let times = [s.atime, s.mtime, s.ctime].map(times::parts);
    let whole = times.map(|(seconds, _)| seconds);
    let first = (s.mode, s.ino.0, device, s.nlink, s.uid, s.gid, s.size, whole[0], whole[1], whole[2]);
    let rest = PyDict::new(py);
    let names = [
        (intern!(py, "st_atime"), intern!(py, "st_atime_ns")),
        (intern!(py, "st_mtime"), intern!(py, "st_mtime_ns")),
        (intern!(py, "st_ctime"), intern!(py, "st_ctime_ns")),
    ];
    for ((name, name_ns), (seconds, nanos)) in names.into_iter().zip(times) {
        rest.set_item(name, seconds as f64 + f64::from(nanos) / 1e9)?;
        rest.set_item(name_ns, i128::from(seconds) * 1_000_000_000 + i128::from(nanos))?;
    }
    rest.set_item(intern!(py, "st_blksize"), 4096)?;
    rest.set_item(intern!(py, "st_blocks"), s.blocks)?;
    rest.set_item(intern!(py, "st_rdev"), s.rdev)?;
    CLASS.import(py, "os", "stat_result")?.call1((first, rest))
}

/// Returns the sizes of a volume as an `os.statvfs_result`.
pub(crate) fn statvfs_result<'py>(
    py: Python<'py>,
    s: &StatFs,
    read_only: bool,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let flag = if read_only { libc::ST_RDONLY } else { 0 };
    let first =
        (4096, 4096, s.blocks, s.free, s.available, s.files, s.files_free, s.files_free, flag, s.name_max);
    let rest = PyDict::new(py);
    rest.set_item(intern!(py, "f_fsid"), s.fsid)?;
    CLASS.import(py, "os", "statvfs_result")?.call1((first, rest))
}
