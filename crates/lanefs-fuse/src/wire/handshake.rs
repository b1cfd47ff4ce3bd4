//! INIT: what kernel and server agree on before anything else.

use super::abi::*;
use super::{Args, Device, Errno, Reply, ReplyBuffer, Request};
use std::io;

/// The flags wanted of the kernel; those that it does not offer are left out.
const WANTED: u64 = init::ASYNC_READ
    | init::ASYNC_DIO
    | init::BIG_WRITES
    | init::MAX_PAGES
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::NO_OPENDIR_SUPPORT
    | init::HAS_IOCTL_DIR
    | init::INIT_EXT
    | NEEDED;

/// The flags without which there is no mount. Where nobody checks modes the first is offered, and
/// not taken: the kernel would check them. The mode is masked by this side, because a default ACL
/// takes the umask's place.
const NEEDED: u64 = init::POSIX_ACL | init::DONT_MASK;

/// Requests the kernel may have under way without a caller waiting.
const MAX_BACKGROUND: u16 = 128;

/// Bytes of a `struct fuse_init_out`.
const INIT_OUT: usize = 64;

const _: () = assert!(MINOR_LEAST <= MINOR_CHECKS_FLAGS && MINOR_CHECKS_FLAGS <= MINOR);
// These are wanted only if the offer has them.
const _: () = assert!(WANTED & (init::WRITEBACK_CACHE | init::OVER_IO_URING | init::ALLOW_IDMAP) == 0);

/// The wishes of this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Largest write request, in bytes.
    pub max_write: u32,
    /// The kernel may gather writes.
    pub writeback: bool,
    /// Files may be opened and closed without a request.
    pub stateless: bool,
    /// Others change the volume too: the kernel may keep no targets of links and no listings.
    pub shared: bool,
    /// The kernel does not check modes and ACLs.
    pub unchecked: bool,
    /// Whether file handles lead to files; `None`: where overlays work beside that.
    pub handles: Option<bool>,
    /// Requests may come over io_uring.
    pub rings: bool,
    /// The mount may be mapped to other owners. Requests that make no inode do not name their user
    /// then.
    pub idmap: bool,
    /// The kernel is a virtual machine's, which cannot be told to drop what it keeps.
    pub guest: bool,
}

/// The agreement with the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// The kernel gathers writes.
    pub writeback: bool,
    /// The kernel opens files without a request once it was told so.
    pub stateless: bool,
    /// SETXATTR carries flags of its own.
    pub setxattr_ext: bool,
    /// The kernel checks who sets flags of an inode.
    pub checks_flags: bool,
    /// The kernel waits for rings to be registered.
    pub rings: bool,
}

/// Answers the kernel's first request, and returns what was agreed on.
pub(crate) fn shake_hands(device: &Device, offer: Offer) -> io::Result<Agreed> {
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = ReplyBuffer::new(256);
    loop {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the mount went away before it served");
        let n = device.receive(&mut buffer)?.ok_or_else(gone)?;
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
        let request = Request::decode(&buffer[..n]).ok_or_else(|| bad("/dev/fuse gave no request"))?;
        let mut reply = Reply::over(bytes.bytes());
        if request.op != op::INIT {
            device.send(reply.finish(request.unique, Err(Errno(libc::EIO))))?;
            return Err(bad("the kernel's first request is not INIT"));
        }
        let agreed = agree(request.args(), offer, &mut reply);
        let result = agreed.as_ref().map(drop).map_err(|_| Errno(libc::EPROTO));
        device.send(reply.finish(request.unique, result))?;
        if let Some(agreed) = agreed? {
            return Ok(agreed);
        }
    }
}

/// Puts the answer to INIT; returns `None` if the kernel must ask again with an older version.
pub(crate) fn agree(mut args: Args<'_>, offer: Offer, reply: &mut Reply) -> io::Result<Option<Agreed>> {
    let max_write = offer.max_write;
    let short = |_| io::Error::other("the kernel's INIT is cut short");
    let (major, minor) = (args.u32().map_err(short)?, args.u32().map_err(short)?);
    if major > MAJOR {
        put(reply, &[MAJOR, MINOR])?;
        debug_assert_eq!(reply.len(), 8, "the kernel looks at the versions alone");
        return Ok(None);
    }
    if major < MAJOR || minor < MINOR_LEAST {
        let what = format!(
            "the kernel speaks FUSE {major}.{minor}; {MAJOR}.{MINOR_LEAST} (Linux 4.20) is the least that works"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    args.skip(4).map_err(short)?; // how much it would read ahead
    let mut offered = u64::from(args.u32().map_err(short)?);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(args.u32().map_err(short)?) << 32;
    }
    if offered & NEEDED != NEEDED {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's FUSE offers no ACLs"));
    }
    let mut wanted = WANTED;
    let stateless = offer.stateless && offered & init::NO_OPEN_SUPPORT != 0;
    let handles = offer.handles.unwrap_or(minor < MINOR_EPOCHS);
    for (on, flag) in [
        (handles, init::EXPORT_SUPPORT),
        (!handles, init::NO_EXPORT_SUPPORT),
        (offer.writeback, init::WRITEBACK_CACHE | init::DIRECT_IO_ALLOW_MMAP),
        (stateless, init::NO_OPEN_SUPPORT),
        // With it the kernel leaves cutting a file to OPEN; without, SETATTR does that. Where it
        // gathers no writes it sends such an OPEN without the inode's lock: an append beside it
        // goes by the old size, and what a map has dirtied comes back.
        (!stateless && offer.writeback && offered & init::WRITEBACK_CACHE != 0, init::ATOMIC_O_TRUNC),
        (offer.rings, init::OVER_IO_URING),
        (offer.idmap, init::ALLOW_IDMAP),
    ] {
        wanted |= if on { flag } else { 0 };
    }
    if offer.unchecked {
        wanted &= !init::POSIX_ACL;
    }
    if offer.shared {
        wanted &= !(init::CACHE_SYMLINKS | init::NO_OPENDIR_SUPPORT);
    }
    if offer.guest {
        // Behind an asynchronous write past its cache the kernel drops no pages that somebody read
        // meanwhile, and nobody here can have it do so. Without this all such writes are waited
        // for, and then it drops them.
        wanted &= !init::ASYNC_DIO;
    }
    let flags = offered & wanted;
    let background = u32::from(MAX_BACKGROUND) | u32::from(MAX_BACKGROUND / 4 * 3) << 16;
    put(reply, &[MAJOR, MINOR.min(minor), max_write, flags as u32])?;
    // Background and congestion are two halves of a word, as are pages and alignment; a nanosecond
    // is the grain of time.
    let mut rest = [0_u32; 12];
    (rest[1], rest[2]) = (max_write, 1);
    rest[4] = (flags >> 32) as u32;
    put_halves(reply, background)?;
    put(reply, &rest[1..3])?;
    put_halves(reply, max_write.div_ceil(4096))?;
    put(reply, &rest[4..])?;
    debug_assert_eq!(reply.len(), INIT_OUT);
    debug_assert!(!offer.unchecked || !offer.idmap, "the kernel maps owners only where it checks");
    debug_assert_eq!(flags & NEEDED | (wanted & NEEDED ^ NEEDED), NEEDED);
    let agreed = Agreed {
        writeback: flags & init::WRITEBACK_CACHE != 0,
        stateless,
        setxattr_ext: flags & init::SETXATTR_EXT != 0,
        checks_flags: minor >= MINOR_CHECKS_FLAGS,
        rings: flags & init::OVER_IO_URING != 0,
    };
    debug_assert!(!agreed.stateless || flags & init::ATOMIC_O_TRUNC == 0, "nobody would cut the file");
    debug_assert!(offer.writeback || !agreed.writeback, "the kernel gathers what it was not offered to");
    debug_assert!(offer.rings || !agreed.rings, "the kernel would wait for rings that nobody registers");
    debug_assert!(
        !offer.guest || !(agreed.writeback || agreed.stateless || agreed.rings || offer.idmap),
        "these need a kernel that can be told something, or callers that can be looked up"
    );
    Ok(Some(agreed))
}

/// Adds words of 32 bits.
fn put(reply: &mut Reply, words: &[u32]) -> io::Result<()> {
    words.iter().try_for_each(|w| reply.u32(*w)).map_err(|e| io::Error::from_raw_os_error(e.0))
}

/// Adds two 16-bit words: the low half first, whatever the byte order.
fn put_halves(reply: &mut Reply, both: u32) -> io::Result<()> {
    [both as u16, (both >> 16) as u16]
        .iter()
        .try_for_each(|w| reply.put(&w.to_ne_bytes()))
        .map_err(|e| io::Error::from_raw_os_error(e.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    const OFFER: Offer = Offer {
        max_write: 1 << 20,
        writeback: true,
        stateless: false,
        shared: false,
        unchecked: false,
        handles: None,
        rings: true,
        idmap: true,
        guest: false,
    };

    fn agreed(words_in: &[u32], offer: Offer) -> (io::Result<Option<Agreed>>, Vec<u8>) {
        let mut bytes = ReplyBuffer::new(256);
        let mut reply = Reply::over(bytes.bytes());
        let agreed = agree(Args::of(&words(words_in)), offer, &mut reply);
        (agreed, reply.finish(1, Ok(())).to_vec())
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let offered = (NEEDED | init::WRITEBACK_CACHE | init::MAX_PAGES) as u32;
        let (agreed, bytes) = agreed(&[7, 31, 4096, offered], OFFER);
        assert_eq!(
            agreed.unwrap(),
            Some(Agreed {
                writeback: true,
                stateless: false,
                setxattr_ext: false,
                checks_flags: false,
                rings: false
            })
        );
        assert_eq!(bytes.len(), 16 + 64);
        let at = |n: usize| u32::from_ne_bytes(bytes[16 + 4 * n..20 + 4 * n].try_into().unwrap());
        assert_eq!((at(0), at(1), at(2)), (7, 31, 1 << 20));
        assert_eq!(at(3), offered);
        assert_eq!((at(5), at(6)), (1 << 20, 1));
        assert_eq!(u16::from_ne_bytes([bytes[44], bytes[45]]), 256, "pages");
    }

    #[test]
    fn rings_are_agreed_on_only_if_both_want_them() {
        let all = [7, 45, 4096, (NEEDED | init::INIT_EXT) as u32, (init::OVER_IO_URING >> 32) as u32];
        let (with, bytes) = agreed(&all, OFFER);
        let with = with.unwrap().unwrap();
        assert!(with.rings && with.checks_flags);
        // The second word of flags: after eight words and two pairs of halves.
        assert_eq!(u32::from_ne_bytes(bytes[16 + 32..16 + 36].try_into().unwrap()), 1 << 9);
        let (without, _) = agreed(&all, Offer { rings: false, ..OFFER });
        assert!(!without.unwrap().unwrap().rings);
        let (old, _) = agreed(&all[..4], Offer { rings: false, ..OFFER });
        assert!(old.is_err(), "the second word is missing");
    }

    #[test]
    fn files_open_without_a_request_only_if_both_want_it_and_then_setattr_cuts_them() {
        let all = |more: u64| [7, 36, 4096, (NEEDED | init::ATOMIC_O_TRUNC | more) as u32];
        let with = Offer { stateless: true, ..OFFER };
        let flags = |offer, more| {
            let (agreed, bytes) = agreed(&all(more), offer);
            let flags = u32::from_ne_bytes(bytes[16 + 12..16 + 16].try_into().unwrap());
            (agreed.unwrap().unwrap().stateless, u64::from(flags) & !NEEDED)
        };
        assert_eq!(flags(with, init::NO_OPEN_SUPPORT), (true, init::NO_OPEN_SUPPORT));
        let gathers = init::WRITEBACK_CACHE | init::ATOMIC_O_TRUNC;
        assert_eq!(flags(with, init::WRITEBACK_CACHE), (false, gathers));
        assert_eq!(flags(OFFER, init::NO_OPEN_SUPPORT | init::WRITEBACK_CACHE), (false, gathers));
        // Where the kernel gathers nothing SETATTR cuts, too: it holds the inode's lock.
        assert_eq!(flags(with, 0), (false, 0));
        assert_eq!(flags(Offer { writeback: false, ..OFFER }, init::WRITEBACK_CACHE), (false, 0));
    }

    #[test]
    fn acls_are_not_agreed_on_where_nobody_checks() {
        let all = [7, 36, 4096, NEEDED as u32];
        let flags = |unchecked| {
            let (agreed, bytes) = agreed(&all, Offer { unchecked, idmap: false, ..OFFER });
            assert!(agreed.unwrap().is_some());
            u64::from(u32::from_ne_bytes(bytes[16 + 12..16 + 16].try_into().unwrap()))
        };
        assert_eq!((flags(false), flags(true)), (NEEDED, init::DONT_MASK));
    }

    #[test]
    fn nothing_is_kept_where_others_change_the_volume() {
        let all = [7, 36, 4096, (NEEDED | init::CACHE_SYMLINKS | init::NO_OPENDIR_SUPPORT) as u32];
        let flags = |shared| {
            let (agreed, bytes) = agreed(&all, Offer { shared, ..OFFER });
            assert!(agreed.unwrap().is_some());
            u64::from(u32::from_ne_bytes(bytes[16 + 12..16 + 16].try_into().unwrap()))
        };
        assert_eq!(flags(false) & !NEEDED, init::CACHE_SYMLINKS | init::NO_OPENDIR_SUPPORT);
        assert_eq!(flags(true), NEEDED);
    }

    #[test]
    fn owners_are_mapped_only_if_both_want_it() {
        let all = [7, 42, 4096, (NEEDED | init::INIT_EXT) as u32, (init::ALLOW_IDMAP >> 32) as u32];
        let second = |offer| {
            let (agreed, bytes) = agreed(&all, offer);
            assert!(agreed.unwrap().is_some());
            u32::from_ne_bytes(bytes[16 + 32..16 + 36].try_into().unwrap())
        };
        assert_eq!(second(OFFER), 1 << 8);
        assert_eq!(second(Offer { idmap: false, ..OFFER }), 0);
    }

    #[test]
    fn handles_lead_to_files_where_overlays_do_not_suffer_from_it_or_if_asked_for() {
        let flags = |minor, handles| {
            let offered = NEEDED | init::INIT_EXT | init::EXPORT_SUPPORT | init::NO_EXPORT_SUPPORT;
            let all = [7, minor, 4096, offered as u32, (offered >> 32) as u32];
            let (agreed, bytes) = agreed(&all, Offer { handles, ..OFFER });
            assert!(agreed.unwrap().is_some());
            let word = |at: usize| u64::from(u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()));
            let all = word(16 + 12) | word(16 + 32) << 32;
            (all & init::EXPORT_SUPPORT != 0, all & init::NO_EXPORT_SUPPORT != 0)
        };
        assert_eq!(flags(MINOR_EPOCHS - 1, None), (true, false));
        assert_eq!(flags(MINOR_EPOCHS, None), (false, true));
        assert_eq!(flags(MINOR_EPOCHS, Some(true)), (true, false));
        assert_eq!(flags(MINOR_EPOCHS - 1, Some(false)), (false, true));
    }

    #[test]
    fn a_guest_waits_for_its_writes_past_the_cache() {
        let all = [7, 36, 4096, (NEEDED | init::ASYNC_DIO | init::WRITEBACK_CACHE) as u32];
        let guest = Offer { guest: true, writeback: false, rings: false, idmap: false, ..OFFER };
        let flags = |offer| {
            let (agreed, bytes) = agreed(&all, offer);
            assert!(agreed.unwrap().is_some());
            u64::from(u32::from_ne_bytes(bytes[16 + 12..16 + 16].try_into().unwrap())) & !NEEDED
        };
        assert_eq!((flags(guest), flags(Offer { guest: false, ..guest })), (0, init::ASYNC_DIO));
    }

    #[test]
    fn old_kernels_are_refused_and_newer_majors_asked_again() {
        assert!(agreed(&[7, 20, 0, 0], OFFER).0.is_err());
        assert!(agreed(&[7, 31, 0, 0], OFFER).0.is_err(), "no ACLs");
        assert!(agreed(&[7], OFFER).0.is_err(), "cut short");
        let (again, bytes) = agreed(&[8, 0], OFFER);
        assert_eq!((again.unwrap(), bytes.len()), (None, 16 + 8));
    }
}
