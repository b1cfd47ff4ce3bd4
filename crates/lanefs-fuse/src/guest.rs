//! Requests of a virtual machine's kernel, which mounts the volume by virtiofs: they come and go as
//! bytes, and whoever carries them (the crate `lanefs-virtiofs`) knows nothing of what they mean.
//!
//! The requests are those of a mount on this machine, and so is what serves them. But:
//!
//! V1 *Nothing can be told to the kernel* but answers. Where a mount has it drop what it keeps, it
//!    gets here what it does not keep, or is not offered what would need it:
//!
//!    | a mount has the kernel drop | here |
//!    | --- | --- |
//!    | the mode of a program that loses setuid or setgid | attributes of files with these bits hold for no time |
//!    | the blocks of a file whose holes a map fills | attributes of files with holes hold for no time |
//!    | pages that were read beside an asynchronous write past the cache | such writes are waited for (no `ASYNC_DIO`) |
//!    | a name whose change failed after it was made (`dirsync`) | with `dirsync` names and attributes hold for no time |
//!    | pages before a hole is looked for, before space is gone, before the end | the kernel gathers no writes, so it has none |
//!    | pages before a file becomes immutable (`profile=stateless`) | files are opened by a request |
//!
//!    What is left: the time of a change that chattr(1) makes is seen when the kernel next asks.
//! V2 *The callers are elsewhere.* No thread's number means anything here, so nothing of /proc is
//!    read: who has no name in a request is nobody, and of a caller's rights only its user counts
//!    (`Request::of_elsewhere`). Root is the guest's, and may do to the volume what root may do;
//!    what belongs to the host (its space, its processes) it may not touch.
//! V3 *The kernel is not believed.* Handles are looked up (`handles`), lengths are checked against
//!    what came, and an answer is never longer than its place.
//! V4 A guest that starts again begins with INIT, also without a word of farewell. Then what the
//!    last one knew and had open is gone. DESTROY makes all durable, and the volume stays open.

use crate::MountConfig;
use crate::adaptor::Adaptor;
use crate::blocking_hook;
use crate::counts::{Counts, ThreadCounts};
use crate::readers::perform;
use crate::report::Reporter;
use crate::wire::abi::{IN_HEADER, OUT_HEADER, op};
use crate::wire::{Agreed, Answer, Errno, Offer, Origin, Reply, ReplyBuffer, Request, agree, request_bytes};
use lanefs::Volume;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a virtual machine's kernel mounts.
pub struct Guest {
    volume: Volume,
    config: MountConfig,
    counts: Arc<Counts>,
    /// What serves since the last INIT.
    current: Mutex<Option<Arc<Adaptor>>>,
    /// How often `current` was changed. Stored under its lock, Release; loaded by who serves a
    /// request, Acquire: whoever sees a number finds at least that adaptor.
    changes: AtomicU64,
}

/// A thread that serves a guest's requests.
pub struct GuestThread {
    guest: Arc<Guest>,
    mine: ThreadCounts,
    /// The value of `changes` when `adaptor` was looked up.
    seen: u64,
    adaptor: Option<Arc<Adaptor>>,
    bytes: ReplyBuffer,
}

/// Returns whether a request is one that gets no answer.
fn is_unanswered(op: u32) -> bool {
    matches!(op, op::FORGET | op::BATCH_FORGET | op::INTERRUPT)
}

/// Has `hook` be called when this thread is about to wait, once for each request; to be called once
/// for a thread, before it serves.
pub fn on_wait(hook: impl Fn() + 'static) {
    blocking_hook::set(move |_| hook());
}

/// Returns whether a request made this thread wait; to be called once after each.
pub fn has_waited() -> bool {
    blocking_hook::has_waited()
}

impl Guest {
    /// Makes it, for a volume that nobody else serves. Of `config` counts what a guest can have: it
    /// gathers no writes, opens files by requests, and checks permissions.
    pub fn new(volume: Volume, config: &MountConfig) -> Arc<Guest> {
        let config = MountConfig {
            writeback: false,
            stateless: false,
            unchecked: false,
            allow_root: false,
            shared: false,
            ..config.clone()
        };
        debug_assert!(!config.gathers() && !config.stateless() && !config.is_unchecked());
        let counts = Arc::new(Counts::new());
        Arc::new(Guest { volume, config, counts, current: Mutex::default(), changes: AtomicU64::new(0) })
    }

    /// Returns the bytes of the longest request, and of the longest answer.
    pub fn request_bytes(&self) -> usize {
        request_bytes(self.config.max_write)
    }

    /// Makes what a thread serves by.
    pub fn thread(self: &Arc<Guest>) -> GuestThread {
        GuestThread {
            guest: Arc::clone(self),
            mine: self.counts.thread(),
            seen: 0,
            adaptor: None,
            bytes: ReplyBuffer::new(self.request_bytes()),
        }
    }

    /// Returns what tells of the requests and of the volume.
    pub fn reporter(&self) -> Reporter {
        Reporter::new(self.volume.clone(), Arc::clone(&self.counts))
    }

    /// Forgets the guest: what it knew and had open is gone.
    pub fn forget(&self) {
        self.change(None);
    }

    /// Ends, and closes the volume: all that was answered is durable then.
    ///
    /// # Errors
    /// Of the final checkpoint.
    pub fn close(&self) -> io::Result<()> {
        self.forget();
        Ok(self.volume.close()?)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Adaptor>>> {
        // A panic while the lock was held left the one or the other.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has another adaptor serve from now on, made for what was agreed on, or none (V4).
    fn change(&self, agreed: Option<Agreed>) {
        let mut current = self.current();
        if let Some(old) = current.take() {
            old.end();
            old.handles.close_numbered();
        }
        *current = agreed.map(|agreed| {
            let counts = Arc::clone(&self.counts);
            Arc::new(Adaptor::new(self.volume.clone(), &self.config, agreed, None, counts))
        });
        debug_assert!(current.as_ref().is_none_or(|a| a.guest));
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Serves INIT.
    fn begin(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let offer = Offer {
            max_write: self.config.max_write,
            writeback: false,
            stateless: false,
            shared: false,
            unchecked: false,
            handles: self.config.handles(),
            rings: false,
            // Requests that make no inode would not name their user, and nobody could look it up.
            idmap: false,
            guest: true,
        };
        match agree(request.args(), offer, reply) {
            Ok(Some(agreed)) => self.change(Some(agreed)),
            // It asks again, with an older version.
            Ok(None) => {}
            Err(e) => {
                tracing::warn!("a guest's kernel cannot mount the volume: {e}");
                return Err(Errno(libc::EPROTO));
            }
        }
        Ok(())
    }
}

impl GuestThread {
    /// Serves a request, whose answer may have `capacity` bytes. Returns the answer; it is empty
    /// where there is none to give: the request gets none, is none, or not even an error fits.
    pub fn serve(&mut self, request: &[u8], capacity: usize) -> &[u8] {
        let Some((head, _)) = request.split_first_chunk::<IN_HEADER>() else { return &[] };
        let is_unanswered = is_unanswered(u32::from_ne_bytes([head[4], head[5], head[6], head[7]]));
        if !is_unanswered && capacity < OUT_HEADER {
            return &[];
        }
        let unique = u64::from_ne_bytes(std::array::from_fn(|n| head[8 + n]));
        self.look_up();
        let bytes = self.bytes.bytes();
        let capacity = if is_unanswered { OUT_HEADER } else { capacity.min(bytes.len()) };
        let mut reply = Reply::over(&mut bytes[..capacity]);
        debug_assert_eq!((reply.len(), reply.answer), (0, Answer::Now));
        debug_assert!(capacity >= OUT_HEADER && request.len() >= IN_HEADER);
        let adaptor = self.adaptor.as_deref();
        let result = match (Request::decode(request).map(Request::of_elsewhere), adaptor) {
            (None, _) => Err(Errno(libc::EPROTO)),
            (Some(request), _) if request.op == op::INIT => self.guest.begin(&request, &mut reply),
            (Some(_), None) => Err(Errno(libc::EIO)),
            (Some(request), Some(adaptor)) => {
                let result = perform(adaptor, &self.mine, &request, &mut reply, &Origin::Guest);
                if result.is_err() {
                    adaptor.undo(&mut reply);
                }
                if request.op == op::DESTROY {
                    self.guest.forget();
                }
                result
            }
        };
        debug_assert_ne!(reply.answer, Answer::Elsewhere, "it is answered here");
        if is_unanswered {
            return &[];
        }
        let len = reply.finish(unique, result).len();
        debug_assert!(len <= capacity, "{len} bytes where {capacity} fit");
        &self.bytes.bytes()[..len]
    }

    /// Looks up who serves now, if that has changed.
    fn look_up(&mut self) {
        let changes = self.guest.changes.load(Ordering::Acquire);
        if changes != self.seen {
            self.adaptor = self.guest.current().clone();
            // Of a later change it is looked up again.
            self.seen = changes;
        }
        debug_assert!(self.seen > 0 || self.adaptor.is_none(), "nobody serves before INIT");
        debug_assert!(self.adaptor.as_ref().is_none_or(|a| a.guest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::abi::init;

    /// A request of user 0 that says it comes from this very process.
    fn request(op: u32, ino: u64, body: &[u8]) -> Vec<u8> {
        let mut r = Vec::new();
        r.extend(((IN_HEADER + body.len()) as u32).to_ne_bytes());
        r.extend(op.to_ne_bytes());
        r.extend(7_u64.to_ne_bytes());
        r.extend(ino.to_ne_bytes());
        [0, 0, std::process::id(), 0].iter().for_each(|w| r.extend(w.to_ne_bytes()));
        r.extend(body);
        r
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    fn named(fields: &[u32], name: &str) -> Vec<u8> {
        [&words(fields), name.as_bytes(), &[0]].concat()
    }

    /// The content of an answer, or its errno.
    fn ask(thread: &mut GuestThread, op: u32, ino: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let answer = thread.serve(&request(op, ino, body), 1 << 20).to_vec();
        assert_eq!(answer[..4], (answer.len() as u32).to_ne_bytes());
        assert_eq!(answer[8..16], 7_u64.to_ne_bytes());
        match i32::from_ne_bytes(answer[4..8].try_into().unwrap()) {
            0 => Ok(answer[OUT_HEADER..].to_vec()),
            e => Err(-e),
        }
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn begun() -> (Volume, Arc<Guest>, GuestThread) {
        let volume = Volume::in_memory(32 << 20).unwrap();
        let guest = Guest::new(volume.clone(), &MountConfig::default());
        let mut thread = guest.thread();
        assert_eq!(ask(&mut thread, op::LOOKUP, 1, b"a\0"), Err(libc::EIO), "before INIT");
        init(&mut thread);
        (volume, guest, thread)
    }

    fn init(thread: &mut GuestThread) -> u64 {
        let all = (init::POSIX_ACL | init::DONT_MASK | init::ASYNC_DIO | init::WRITEBACK_CACHE) as u32;
        let answer = ask(thread, op::INIT, 0, &words(&[7, 36, 4096, all])).unwrap();
        u64::from(u32::from_ne_bytes(answer[12..16].try_into().unwrap()))
    }

    /// Makes a file and returns its inode number, how long its attributes hold, and its handle.
    fn create(thread: &mut GuestThread, name: &str, mode: u32) -> (u64, u64, u64) {
        let flags = (libc::O_CREAT | libc::O_RDWR) as u32;
        let made = ask(thread, op::CREATE, 1, &named(&[flags, libc::S_IFREG | mode, 0, 0], name)).unwrap();
        (u64_at(&made, 0), u64_at(&made, 24), u64_at(&made, 128))
    }

    fn write(handle: u64, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut b = handle.to_ne_bytes().to_vec();
        b.extend(offset.to_ne_bytes());
        b.extend(words(&[data.len() as u32, 0, 0, 0, 0, 0]));
        b.extend(data);
        b
    }

    #[test]
    fn a_guest_writes_through_and_waits() {
        let (_volume, _guest, mut thread) = begun();
        assert_eq!(init(&mut thread), init::POSIX_ACL | init::DONT_MASK);
    }

    /// A handle of a mount is an address; what a guest sends for one led the server anywhere.
    #[test]
    fn what_a_guest_sends_for_a_handle_is_looked_up() {
        let (_volume, _guest, mut thread) = begun();
        let (ino, _, handle) = create(&mut thread, "f", 0o644);
        assert_eq!(u64::from(ask(&mut thread, op::WRITE, ino, &write(handle, 0, b"abc")).unwrap()[0]), 3);
        for made_up in [1, handle + 64, handle - 64, 0x7f00_0000_1000, u64::MAX] {
            assert_eq!(ask(&mut thread, op::WRITE, ino, &write(made_up, 0, b"x")), Err(libc::EBADF));
            let release = [made_up.to_ne_bytes(), [0; 8], [0; 8]].concat();
            ask(&mut thread, op::RELEASE, ino, &release).unwrap();
        }
        let release = [handle.to_ne_bytes(), [0; 8], [0; 8]].concat();
        for _ in 0..2 {
            ask(&mut thread, op::RELEASE, ino, &release).unwrap();
            assert_eq!(ask(&mut thread, op::WRITE, ino, &write(handle, 0, b"x")), Err(libc::EBADF));
        }
    }

    #[test]
    fn what_may_change_unseen_is_not_kept() {
        let (_volume, _guest, mut thread) = begun();
        let (plain, holds, handle) = create(&mut thread, "plain", 0o644);
        assert_eq!(holds, 3600);
        assert_eq!(create(&mut thread, "setuid", 0o4755).1, 0);
        // A hole at the end, whoever asks.
        let mut set = words(&[1 << 3, 0]);
        set.extend([0; 8]);
        set.extend(9_000_u64.to_ne_bytes());
        set.resize(88, 0);
        assert_eq!(u64_at(&ask(&mut thread, op::SETATTR, plain, &set).unwrap(), 0), 0);
        let by_handle = [words(&[1, 0]), handle.to_ne_bytes().to_vec()].concat();
        assert_eq!(u64_at(&ask(&mut thread, op::GETATTR, plain, &by_handle).unwrap(), 0), 0);
        ask(&mut thread, op::WRITE, plain, &write(handle, 0, &[1; 9000])).unwrap();
        assert_eq!(u64_at(&ask(&mut thread, op::GETATTR, plain, &by_handle).unwrap(), 0), 3600);
    }

    #[test]
    fn where_changes_of_names_are_synced_nothing_is_kept() {
        let volume = Volume::in_memory(32 << 20).unwrap();
        let config = MountConfig { dirsync: true, ..MountConfig::default() };
        let mut thread = Guest::new(volume, &config).thread();
        init(&mut thread);
        assert_eq!(create(&mut thread, "f", 0o644).1, 0);
        // A name that there is not, too: it may be made, and the call fail.
        assert_eq!(u64_at(&ask(&mut thread, op::LOOKUP, 1, b"none\0").unwrap(), 16), 0);
    }

    /// The number of a guest's thread is that of some process here.
    #[test]
    fn a_guests_threads_are_nobodys_here() {
        let bytes = request(op::GETATTR, 1, &[0; 16]);
        let mut bytes_of_nobody = bytes.clone();
        bytes_of_nobody[24..28].copy_from_slice(&u32::MAX.to_ne_bytes());
        let here = Request::decode(&bytes_of_nobody).unwrap();
        assert_eq!(here.user(), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(here.of_elsewhere().user(), None);
        let (volume, _guest, mut thread) = begun();
        let ioctl = |command: u32| {
            let mut b = vec![0; 8];
            b.extend(words(&[1 << 4, command, 0, 0, 0, 1 << 14]));
            b
        };
        for command in [crate::IOC_GETPID, crate::change::IOC_GROW, crate::change::IOC_DEVICE] {
            assert_eq!(ask(&mut thread, op::IOCTL, 1, &ioctl(command)), Err(libc::ENOTTY));
        }
        assert!(ask(&mut thread, op::IOCTL, 1, &ioctl(crate::about::IOC_ABOUT)).is_ok());
        assert!(volume.free_now().is_ok());
    }

    #[test]
    fn a_guest_that_starts_again_finds_nothing_open() {
        let (volume, guest, mut thread) = begun();
        let mut other = guest.thread();
        let (ino, _, handle) = create(&mut thread, "f", 0o644);
        ask(&mut other, op::WRITE, ino, &write(handle, 0, b"kept")).unwrap();
        ask(&mut thread, op::UNLINK, 1, b"f\0").unwrap();
        init(&mut thread);
        assert_eq!(ask(&mut other, op::WRITE, ino, &write(handle, 0, b"x")), Err(libc::EBADF));
        // And one that says farewell.
        create(&mut thread, "g", 0o644);
        ask(&mut other, op::DESTROY, 0, b"").unwrap();
        assert_eq!(ask(&mut thread, op::LOOKUP, 1, b"g\0"), Err(libc::EIO));
        init(&mut other);
        assert!(u64_at(&ask(&mut thread, op::LOOKUP, 1, b"g\0").unwrap(), 0) != 0);
        guest.close().unwrap();
        assert!(volume.free_now().is_err());
    }

    #[test]
    fn there_is_no_answer_where_none_fits_and_an_error_where_only_that_does() {
        let (_volume, _guest, mut thread) = begun();
        let lookup = request(op::LOOKUP, 1, b"none\0");
        for capacity in 0..OUT_HEADER {
            assert!(thread.serve(&lookup, capacity).is_empty());
        }
        assert_eq!(thread.serve(&lookup, OUT_HEADER + 128).len(), OUT_HEADER + 128);
        let short = thread.serve(&lookup, OUT_HEADER + 127);
        assert_eq!((short.len(), short[4..8].to_vec()), (16, (-libc::EINVAL).to_ne_bytes().to_vec()));
        // A length that lies, and a request without a whole header.
        assert_eq!(thread.serve(&lookup[..lookup.len() - 1], 4096)[4..8], (-libc::EPROTO).to_ne_bytes());
        assert!(thread.serve(&lookup[..IN_HEADER - 1], 4096).is_empty());
        assert!(thread.serve(&request(op::FORGET, 1, &1_u64.to_ne_bytes()), 4096).is_empty());
    }
}
