//! A request as it came: its header, and its arguments one after the other.

use super::Errno;
use super::abi::IN_HEADER;
use lanefs::{Cred, Ino};

/// A request of the kernel, its words decoded as they are asked for.
pub(crate) struct Request<'a> {
    pub op: u32,
    /// What the answer must carry.
    pub unique: u64,
    pub ino: Ino,
    pub uid: u32,
    pub gid: u32,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// From the bytes of one read; `None` if they are no request.
    pub fn decode(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (head, body) = bytes.split_at_checked(IN_HEADER)?;
        let mut a = Args(head);
        let len = a.u32().ok()? as usize;
        (len == bytes.len()).then_some(())?;
        Some(Request {
            op: a.u32().ok()?,
            unique: a.u64().ok()?,
            ino: Ino(a.u64().ok()?),
            uid: a.u32().ok()?,
            gid: a.u32().ok()?,
            body,
        })
    }

    /// The arguments.
    pub fn args(&self) -> Args<'a> {
        Args(self.body)
    }

    /// The caller, whose permissions the kernel has checked.
    pub fn cred(&self) -> Cred {
        Cred { prechecked: true, ..Cred::user(self.uid, self.gid, &[]) }
    }
}

/// What is left of a request's arguments. Asking for more than there is gives EPROTO.
pub(crate) struct Args<'a>(pub &'a [u8]);

impl<'a> Args<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Errno(libc::EPROTO))?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Errno> {
        self.take().map(i64::from_ne_bytes)
    }

    /// Passes over `n` bytes.
    pub fn skip(&mut self, n: usize) -> Result<(), Errno> {
        self.bytes(n).map(drop)
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Errno> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Errno(libc::EPROTO))?;
        self.0 = rest;
        Ok(head)
    }

    /// A string that ends in NUL, which is passed over.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|b| *b == 0).ok_or(Errno(libc::EPROTO))?;
        let name = self.bytes(end)?;
        self.skip(1)?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((IN_HEADER + body.len()) as u32).to_ne_bytes());
        bytes.extend(op.to_ne_bytes());
        bytes.extend(7_u64.to_ne_bytes());
        bytes.extend(9_u64.to_ne_bytes());
        for id in [1000_u32, 1001, 4711, 0] {
            bytes.extend(id.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_request_gives_its_words_in_order() {
        let bytes = request(12, b"\x05\0\0\0\0\0\0\0old\0new\0");
        let r = Request::decode(&bytes).unwrap();
        assert_eq!((r.op, r.unique, r.ino, r.uid, r.gid), (12, 7, Ino(9), 1000, 1001));
        assert!(r.cred().prechecked);
        let mut a = r.args();
        assert_eq!(a.u64().unwrap().to_ne_bytes()[0], 5);
        assert_eq!((a.name().unwrap(), a.name().unwrap()), (&b"old"[..], &b"new"[..]));
        assert_eq!(a.name().unwrap_err().0, libc::EPROTO);
    }

    #[test]
    fn what_is_too_short_is_refused() {
        let whole = request(1, b"name");
        for n in 0..whole.len() {
            assert!(Request::decode(&whole[..n]).is_none(), "{n} bytes");
        }
        let r = Request::decode(&whole).unwrap();
        assert!(r.args().name().is_err(), "no NUL");
        assert!(r.args().u64().is_err());
        assert!(r.args().bytes(5).is_err());
    }
}
