//! Paths built in place: a timed loop must not allocate or format.

use std::ffi::CStr;

/// The longest path a workload makes.
const CAPACITY: usize = 160;

/// A path relative to the root of a target, kept NUL-terminated so that it serves system calls as
/// well.
#[derive(Clone)]
pub struct Name {
    /// Bytes from `len` on are zero; there is always at least one.
    buf: [u8; CAPACITY],
    len: usize,
}

impl Name {
    /// Makes a path with this text.
    pub fn new(text: &str) -> Name {
        let mut name = Name { buf: [0; CAPACITY], len: 0 };
        name.push(text);
        name
    }

    /// Asserts that the path ends in a NUL within the buffer.
    fn check_invariants(&self) {
        debug_assert!(self.len < CAPACITY);
        debug_assert_eq!(self.buf[self.len], 0, "no NUL behind the path");
    }

    /// Appends text. What does not fit is cut off: a workload's names are short by construction,
    /// and a name that was cut fails as ENOENT or EEXIST rather than corrupting memory.
    pub fn push(&mut self, text: &str) -> &mut Name {
        self.push_bytes(text.as_bytes())
    }

    /// Appends bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> &mut Name {
        let n = bytes.len().min(CAPACITY - 1 - self.len);
        self.buf[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
        debug_assert!(!bytes.contains(&0), "a path with a NUL in it");
        self.check_invariants();
        self
    }

    /// Appends a decimal number.
    pub fn num(&mut self, mut n: u64) -> &mut Name {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.push_bytes(&digits[at..])
    }

    /// Cuts the path back to `len` bytes (no-op when it is shorter).
    pub fn cut(&mut self, len: usize) -> &mut Name {
        if len < self.len {
            self.buf[len..self.len].fill(0);
            self.len = len;
        }
        self.check_invariants();
        self
    }

    /// Returns another path: this one, then `text`.
    pub fn join(&self, text: &str) -> Name {
        let mut name = self.clone();
        name.push(text);
        name
    }

    /// Returns the length in bytes, without the NUL.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the path is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the path's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Returns the path for a system call.
    pub fn cstr(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.buf[..self.len + 1]).unwrap_or(c"")
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn builds_and_cuts() {
        let mut n = Name::new("w");
        n.num(0).push("/f");
        let base = n.len();
        n.num(18_446_744_073_709_551_615);
        assert_eq!(n.bytes(), b"w0/f18446744073709551615");
        n.cut(base).num(7);
        assert_eq!(n.bytes(), b"w0/f7");
        assert_eq!(n.cstr().to_bytes(), b"w0/f7");
    }

    #[test]
    fn too_long_is_cut_and_still_terminated() {
        let mut n = Name::new("");
        for _ in 0..100 {
            n.push("abcdefgh");
        }
        assert_eq!(n.cstr().to_bytes().len(), n.len());
    }
}
