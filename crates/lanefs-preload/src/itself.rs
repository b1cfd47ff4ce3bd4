//! Paths of the host that lead to what a descriptor of the volume refers to: `/proc/self/fd/N`,
//! `/dev/fd/N`, `/dev/stdin` and its kind. The kernel would lead them to what stands there for the
//! file, which is empty.

use crate::table::is_ours;
use std::ffi::{CStr, c_char, c_int};

/// Returns the descriptor of the volume whose link in /proc a path begins with, and what follows:
/// nothing, or a `/` and more.
#[inline]
pub fn split(path: &[u8]) -> Option<(c_int, &[u8])> {
    // Most paths are others.
    if !path.starts_with(b"/dev/") && !path.starts_with(b"/proc/") {
        return None;
    }
    split_link(path)
}

fn split_link(path: &[u8]) -> Option<(c_int, &[u8])> {
    for (number, name) in [&b"/dev/stdin"[..], b"/dev/stdout", b"/dev/stderr"].into_iter().enumerate() {
        if path == name {
            return Some((number as c_int, &b""[..])).filter(|(fd, _)| is_ours(*fd));
        }
    }
    let number = path.strip_prefix(b"/dev/fd/").or_else(|| in_proc(path)?.strip_prefix(b"/fd/"))?;
    let end = number.iter().position(|b| *b == b'/').unwrap_or(number.len());
    let (digits, rest) = number.split_at(end);
    // The kernel has no other way to write a number.
    if digits.is_empty() || digits.len() > 7 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let fd = digits.iter().fold(0, |n, d| n * 10 + c_int::from(d - b'0'));
    is_ours(fd).then_some((fd, rest))
}

/// Returns what follows this process's directory in a path below /proc.
pub fn in_proc(path: &[u8]) -> Option<&[u8]> {
    let of = path.strip_prefix(b"/proc/")?;
    let at = of.iter().position(|b| *b == b'/')?;
    let (process, rest) = of.split_at(at);
    let is_this = process == b"self"
        || process == b"thread-self"
        || std::str::from_utf8(process).is_ok_and(|p| p.parse() == Ok(std::process::id()));
    is_this.then_some(rest)
}

/// Returns the descriptor of the volume that a call is about: with AT_EMPTY_PATH and no path it is
/// `dirfd`, else what the path is the link of. A call about links is about the host's own.
///
/// # Safety
/// The path is NULL or ends in a NUL.
#[inline]
pub unsafe fn descriptor((dirfd, path): (c_int, *const c_char), flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let text = if path.is_null() { &b""[..] } else { unsafe { CStr::from_ptr(path) }.to_bytes() };
    if text.is_empty() {
        return (flags & libc::AT_EMPTY_PATH != 0 && is_ours(dirfd)).then_some(dirfd);
    }
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        return None;
    }
    split(text).filter(|(_, rest)| rest.is_empty()).map(|(fd, _)| fd)
}
