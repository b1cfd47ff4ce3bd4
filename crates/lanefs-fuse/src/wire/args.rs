//! A request as it came: its header, and its arguments one after the other.

use super::Errno;
use super::abi::{IN_HEADER, NOBODY_SAID};
use super::caller::{self, Caller, Status};
use lanefs::device::FileDevice;
use lanefs::{Cred, Ino};

/// A request of the kernel, its words decoded as they are asked for.
pub(crate) struct Request<'a> {
    pub op: u32,
    /// The number that the answer must carry.
    pub unique: u64,
    pub ino: Ino,
    pub uid: u32,
    pub gid: u32,
    /// The calling thread; 0 where its number means nothing to the mount.
    pub pid: u32,
    args: Args<'a>,
}

impl<'a> Request<'a> {
    /// Decodes the bytes of one read; `None` if they are no request.
    pub fn decode(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (head, body) = bytes.split_at_checked(IN_HEADER)?;
        let (request, args) = Request::parse(head, body, &[])?;
        debug_assert_eq!(request.args.len(), body.len(), "they lie in one piece");
        (args == body.len()).then_some(request)
    }

    /// Decodes a request of a ring, where the first argument lies in a field of its own, of which
    /// the header's length states how much is used; `None` if it is no request.
    pub fn decode_parts(head: &'a [u8], first: &'a [u8], payload: &'a [u8]) -> Option<Request<'a>> {
        let (mut request, args) = Request::parse(head.get(..IN_HEADER)?, first, payload)?;
        request.args.first = first.get(..args.checked_sub(payload.len())?)?;
        debug_assert_eq!(request.args.len(), args, "as many as the header announces");
        Some(request)
    }

    /// Returns the request, and how many bytes of arguments its header announces.
    fn parse(head: &'a [u8], first: &'a [u8], rest: &'a [u8]) -> Option<(Request<'a>, usize)> {
        debug_assert_eq!(head.len(), IN_HEADER);
        let mut a = Args::of(head);
        let len = a.u32().ok()? as usize;
        let request = Request {
            op: a.u32().ok()?,
            unique: a.u64().ok()?,
            ino: Ino(a.u64().ok()?),
            uid: a.u32().ok()?,
            gid: a.u32().ok()?,
            pid: a.u32().ok()?,
            args: Args { first, rest },
        };
        debug_assert_eq!(a.len(), 4, "behind the thread's number the header has padding only");
        Some((request, len.checked_sub(IN_HEADER)?))
    }

    /// Returns the request as of a caller on another machine, of whom nothing can be looked up.
    pub fn of_elsewhere(self) -> Request<'a> {
        Request { pid: 0, ..self }
    }

    /// Returns the arguments.
    pub fn args(&self) -> Args<'a> {
        self.args
    }

    /// Returns the user who makes the request. Where the kernel may map owners it names the user
    /// only in requests that make an inode; of others it is looked up at the calling thread, which
    /// waits for the answer. `None`: it cannot be known.
    pub fn user(&self) -> Option<u32> {
        if self.uid != NOBODY_SAID { Some(self.uid) } else { Status::of(self.pid)?.of_files("Uid:") }
    }

    /// Returns whether the caller is known, and is not root.
    pub fn is_user(&self) -> bool {
        self.user().is_some_and(|user| user != 0)
    }

    /// Returns who makes the request, for who answers it later.
    pub fn caller(&self) -> Caller {
        Caller::new(!self.is_user(), self.pid)
    }

    /// Returns whether the caller may leave setuid and setgid in what it writes, by CAP_FSETID. Of
    /// one that cannot be looked up, whether it is root.
    pub fn keeps_set_ids(&self) -> bool {
        match Status::of(self.pid).and_then(|s| s.keeps_set_ids()) {
            // The number 0 is that of root where the mount was made.
            Some(has) => has && (self.uid == 0 || caller::shares_user_namespace(self.pid) == Some(true)),
            None => self.uid == 0,
        }
    }

    /// Returns whether the caller may change the mounted volume as a whole, as ext4 asks for it: it
    /// has CAP_SYS_ADMIN where this process is, whatever its number; the number 0 alone says
    /// nothing, which a process in a container has too. Or it is the user as whom this process
    /// serves, if that has no such capability either. `guest`: of a virtual machine's callers there
    /// is the number alone.
    pub fn administers(&self, guest: bool) -> bool {
        let Some(user) = self.user() else { return false };
        let me = rustix::process::geteuid();
        if guest {
            return user == 0;
        }
        let mine = Status::of(std::process::id()).and_then(|s| s.administers());
        if user == me.as_raw() && (!me.is_root() || mine == Some(false)) {
            return true;
        }
        let has = Status::of(self.pid).and_then(|s| s.administers()) == Some(true);
        match caller::shares_user_namespace(self.pid) {
            Some(shares) => has && shares,
            // It is hidden from an ordinary user, who sees root's number for no other.
            None => has && !me.is_root() && user == 0,
        }
    }

    /// Returns whether the caller has a file open for writing, this one.
    pub fn writes_to(&self, file: &FileDevice) -> bool {
        caller::writes_to(self.pid, file)
    }

    /// Returns whether the caller is not in the group `gid`, of which the kernel tells the first at
    /// most. False where the caller cannot be looked up. (Through a mapped mount its groups are
    /// others than the file's: then it may be taken for a stranger.)
    pub fn is_outside(&self, gid: u32) -> bool {
        let is_told = self.uid != NOBODY_SAID && self.gid == gid;
        !is_told && Status::of(self.pid).and_then(|s| s.in_group(gid)) == Some(false)
    }

    /// Returns the caller, whose permissions the kernel has checked.
    pub fn cred(&self) -> Cred {
        Cred { prechecked: true, ..Cred::user(self.uid, self.gid, &[]) }
    }
}

/// The rest of a request's arguments. Asking for more than there is gives EPROTO.
///
/// They lie in one piece or in two; none lies across the border.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a> {
    first: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Args<'a> {
    /// Takes arguments that lie in one piece.
    pub fn of(bytes: &'a [u8]) -> Args<'a> {
        Args { first: bytes, rest: &[] }
    }

    /// Returns the number of bytes that are left.
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// Returns the piece the next argument is in.
    fn piece(&mut self) -> &mut &'a [u8] {
        if self.first.is_empty() { &mut self.rest } else { &mut self.first }
    }

    /// Takes the next `N` bytes.
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let piece = self.piece();
        let (head, rest) = piece.split_first_chunk::<N>().ok_or(Errno(libc::EPROTO))?;
        *piece = rest;
        Ok(*head)
    }

    /// Takes a word of 32 bits.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    /// Takes a word of 64 bits.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Takes a signed word of 64 bits.
    pub fn i64(&mut self) -> Result<i64, Errno> {
        self.take().map(i64::from_ne_bytes)
    }

    /// Passes over `n` bytes.
    pub fn skip(&mut self, n: usize) -> Result<(), Errno> {
        self.bytes(n).map(drop)
    }

    /// Takes the next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Errno> {
        let piece = self.piece();
        let (head, rest) = piece.split_at_checked(n).ok_or(Errno(libc::EPROTO))?;
        *piece = rest;
        Ok(head)
    }

    /// Takes a string that ends in NUL, which is passed over.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.piece().iter().position(|b| *b == 0).ok_or(Errno(libc::EPROTO))?;
        let before = self.len();
        let name = self.bytes(end)?;
        self.skip(1)?;
        debug_assert_eq!(before - self.len(), name.len() + 1, "the NUL is passed over, and no more");
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
    fn who_asks_is_found_where_the_kernel_does_not_say() {
        let mut bytes = request(12, b"");
        assert_eq!(Request::decode(&bytes).unwrap().user(), Some(1000));
        bytes[24..28].copy_from_slice(&u32::MAX.to_ne_bytes());
        bytes[32..36].copy_from_slice(&std::process::id().to_ne_bytes());
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(Request::decode(&bytes).unwrap().user(), Some(me));
        bytes[32..36].copy_from_slice(&0_u32.to_ne_bytes());
        assert_eq!(Request::decode(&bytes).unwrap().user(), None);
    }

    #[test]
    fn a_request_in_two_pieces_gives_the_same() {
        let bytes = request(12, b"\x05\0\0\0\0\0\0\0old\0new\0");
        let (head, body) = bytes.split_at(IN_HEADER);
        let first = [&body[..8], &[0xee; 120]].concat();
        let r = Request::decode_parts(head, &first, &body[8..]).unwrap();
        let mut a = r.args();
        assert_eq!((r.ino, a.u64().unwrap()), (Ino(9), 5));
        assert_eq!((a.name().unwrap(), a.name().unwrap()), (&b"old"[..], &b"new"[..]));
        assert!(a.u32().is_err());
        // All of it in the payload, as with a name alone.
        let r = Request::decode_parts(head, &first, body).unwrap();
        assert_eq!(r.args().u64().unwrap(), 5);
        // Lengths that contradict each other.
        assert!(Request::decode_parts(head, &first, &[0; 17]).is_none());
        assert!(Request::decode_parts(head, &first[..4], &body[8..]).is_none());
        assert!(Request::decode_parts(&head[..39], &first, &body[8..]).is_none());
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
