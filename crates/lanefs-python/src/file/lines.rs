//! Lines of a raw file.

use crate::answer::{Outcome, outside};
use pyo3::prelude::*;

/// Reads up to the end of a line, `limit` bytes (if it is not negative) or the end of the file, and
/// moves the position behind that.
pub(super) fn next(py: Python<'_>, file: &lanefs::File, limit: i64) -> Outcome<Vec<u8>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut line = Vec::new();
    let begin = outside(py, || file.lseek(0, libc::SEEK_CUR))?;
    while line.len() < limit {
        let mut part = [0; 1024];
        let at = begin + line.len() as u64;
        let n = outside(py, || file.read_at(&mut part, at))?;
        let part = &part[..n.min(limit - line.len())];
        let end = part.iter().position(|b| *b == b'\n').map(|i| i + 1);
        line.extend_from_slice(&part[..end.unwrap_or(part.len())]);
        if n == 0 || end.is_some() {
            break;
        }
        py.check_signals()?;
    }
    let behind = i64::try_from(begin + line.len() as u64).unwrap_or(i64::MAX);
    outside(py, || file.lseek(behind, libc::SEEK_SET))?;
    Ok(line)
}
