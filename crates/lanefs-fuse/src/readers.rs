//! The threads that read requests from /dev/fuse, have them done, and answer.
//!
//! Each has a descriptor of its own: what it has read is answered there and nowhere else
//! (FUSE_DEV_IOC_CLONE). Few of them read at a time ([`crate::reader_pool`]), for a lone caller
//! one. With rings two are left, for what the kernel sends this way only.

use crate::adaptor::Adaptor;
use crate::counts::ThreadCounts;
use crate::idle::Pace;
use crate::lone_caller::LoneCaller;
use crate::reader_pool::{Next, ReaderPool};
use crate::requests::serve;
use crate::taking::with_found;
use crate::wire::{Answer, Device, Errno, Now, Origin, Reply, ReplyBuffer, Request, request_bytes};
use lanefs_sync::SignalsBlocked;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A serving thread; it ends when the connection has ended.
pub(crate) type Serving = JoinHandle<io::Result<()>>;

/// How threads wait for the next request.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Waits {
    /// How long they rest after what needs no answer, so that more of it comes together.
    pub nap: Option<Duration>,
    /// How long the one that reads for a lone caller looks before it sleeps
    /// ([`crate::lone_caller`]); `None`: several read, whoever calls.
    pub looks: Option<Duration>,
}

/// Starts `threads` of them, of which `reading` read at a time.
pub(crate) fn start(
    adaptor: &Arc<Adaptor>,
    device: &Arc<Device>,
    max_write: u32,
    (threads, reading): (usize, usize),
    waits: Waits,
) -> io::Result<Vec<Serving>> {
    debug_assert!((1..=threads).contains(&reading));
    let most = request_bytes(max_write);
    let mut devices = vec![Arc::clone(device)];
    while devices.len() < threads {
        devices.push(Arc::new(device.another()?));
    }
    debug_assert_eq!(devices.len(), threads, "a descriptor for each");
    let pool = Arc::new(ReaderPool::new(reading));
    // Of the thread that does some requests once more.
    let aside = Arc::new(adaptor.counts.thread());
    let _blocked = SignalsBlocked::new();
    devices
        .into_iter()
        .enumerate()
        .map(|(i, device)| {
            let (adaptor, pool, aside) = (Arc::clone(adaptor), Arc::clone(&pool), Arc::clone(&aside));
            Builder::new().name(format!("lanefs-fuse-{i}")).spawn(move || {
                let result = if pool.join() {
                    read(&adaptor, &device, &pool, most, (i, waits), &aside)
                } else {
                    Ok(())
                };
                pool.end();
                result.inspect_err(|e| adaptor.serving_failed(e))
            })
        })
        .collect()
}

/// Has a request done by the thread that has the counters `mine`. The answer's content is in
/// `reply` then.
pub(crate) fn perform(
    adaptor: &Adaptor,
    mine: &ThreadCounts,
    request: &Request<'_>,
    reply: &mut Reply,
    origin: &Origin,
) -> Result<(), Errno> {
    #[cfg(lanefs_tsan)]
    ANSWERS.load(std::sync::atomic::Ordering::Acquire);
    let begun = mine.begin();
    // A panic is a bug, and what it leaves in memory is not to be trusted: the volume stops as a
    // crash would stop it.
    let result = catch_unwind(AssertUnwindSafe(|| serve(adaptor, request, reply, origin)));
    let result = result.unwrap_or_else(|_| {
        tracing::error!("request {} panicked; the volume is stopped as by a crash", request.op);
        adaptor.volume.shutdown();
        reply.answer = Answer::Now;
        Err(Errno(libc::EIO))
    });
    // What is done once more counts then.
    if !matches!(reply.answer, Answer::Again(_)) {
        mine.count(request, reply, begun);
    }
    debug_assert!(
        reply.answer == Answer::Now || (reply.entered.is_empty() && reply.opened.is_none()),
        "an answer that is not sent from here gives nothing to the kernel"
    );
    #[cfg(lanefs_tsan)]
    ANSWERS.fetch_add(1, std::sync::atomic::Ordering::Release);
    result
}

/// Answers: ThreadSanitizer does not see that the kernel sends what it was answered (a handle) only
/// in requests that come later, whatever thread they come to. Release and Acquire: what was done
/// for answers that were sent is seen behind a request that came then.
#[cfg(lanefs_tsan)]
static ANSWERS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Has a request done once more by the thread that waits for space for it, and answered there.
fn again(
    (adaptor, mine): (&Arc<Adaptor>, &Arc<ThreadCounts>),
    device: &Arc<Device>,
    request: &[u8],
    bytes: u64,
) -> Result<(), Errno> {
    debug_assert!(Request::decode(request).is_some(), "it was served once");
    let for_root = Request::decode(request).is_none_or(|r| !r.is_user());
    let (adaptor, device, request) = (Arc::clone(adaptor), Arc::clone(device), request.to_vec());
    let mine = Arc::clone(mine);
    let served = Arc::clone(&adaptor);
    served.aside.again(bytes, for_root, move |found| {
        let Some(request) = Request::decode(&request) else { return };
        let mut bytes = ReplyBuffer::new(OF_NAMES);
        let mut reply = Reply::over(bytes.bytes());
        let origin = Origin::Device(Arc::clone(&device));
        let result = with_found(found, || perform(&adaptor, &mine, &request, &mut reply, &origin));
        answer(&adaptor, &device, &request, &mut reply, result);
    })
}

/// Bytes that the answers have of requests that take space.
const OF_NAMES: usize = 512;

/// Answers a request that was done, unless somebody else does. What the kernel does not take of it
/// is taken back.
fn answer(
    adaptor: &Adaptor,
    device: &Device,
    request: &Request<'_>,
    reply: &mut Reply,
    result: Result<(), Errno>,
) {
    debug_assert!(!matches!(reply.answer, Answer::Again(_)), "it is to be done once more");
    let taken = match (reply.answer, result) {
        (Answer::None, _) | (Answer::Elsewhere, Ok(())) => true,
        (_, result) => {
            let sent = device.send(reply.finish(request.unique, result));
            result.is_ok()
                && sent.unwrap_or_else(|e| {
                    tracing::error!("the kernel refused the answer to request {}: {e}", request.op);
                    false
                })
        }
    };
    if !taken {
        adaptor.undo(reply);
    }
}

/// Reads requests, has them done and answers, until the connection has ended.
fn read(
    adaptor: &Arc<Adaptor>,
    device: &Arc<Device>,
    pool: &ReaderPool,
    most: usize,
    (thread, waits): (usize, Waits),
    aside: &Arc<ThreadCounts>,
) -> io::Result<()> {
    let mut buffer = vec![0; most];
    let mut bytes = ReplyBuffer::new(most);
    let origin = Origin::Device(Arc::clone(device));
    let mine = adaptor.counts.thread();
    let mut callers = LoneCaller::default();
    let mut next = Next::Read;
    let mut pace = Pace::default();
    while let Some(n) = receive(device, &mut buffer, next, waits.looks, &mut callers)? {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "/dev/fuse gave no request");
        let request = Request::decode(&buffer[..n]).ok_or_else(bad)?;
        if waits.looks.is_some() {
            count_callers(pool, &mut callers, thread, request.pid);
            if callers.has_several_under_way() {
                pool.widen_for_long();
            }
        }
        let mut reply = Reply::over(bytes.bytes());
        let result = perform(adaptor, &mine, &request, &mut reply, &origin);
        let result = match reply.answer {
            Answer::Again(more) => {
                let asked = again((adaptor, aside), device, &buffer[..n], more);
                reply.answer = if asked.is_ok() { Answer::Elsewhere } else { Answer::Now };
                asked
            }
            _ => result,
        };
        answer(adaptor, device, &request, &mut reply, result);
        let forgot = reply.answer == Answer::None;
        adaptor.idle.iter().for_each(|idle| idle.served(&mut pace));
        next = pool.done();
        if next == Next::End {
            break;
        }
        if let Some(nap) = waits.nap.filter(|_| forgot) {
            std::thread::sleep(nap);
        }
    }
    Ok(())
}

/// Has as many threads read as there are callers for (C5 of [`crate::reader_pool`]), before the
/// request of one is served. `thread`: the number of this one.
fn count_callers(pool: &ReaderPool, callers: &mut LoneCaller, thread: usize, tid: u32) {
    let is_one = callers.comes(tid);
    match pool.lone() {
        0 if is_one => pool.narrow(tid, thread),
        lone if lone != 0 && tid != 0 && lone != tid => pool.widen(),
        _ => {}
    }
}

/// Waits for the next request, and returns its length; `None` when the connection has ended. Who
/// reads alone looks for it for a moment first.
fn receive(
    device: &Device,
    buffer: &mut [u8],
    next: Next,
    looks: Option<Duration>,
    callers: &mut LoneCaller,
) -> io::Result<Option<usize>> {
    if let (Next::ReadAlone, Some(long)) = (next, looks)
        && callers.is_to_look()
    {
        let mut now = Now::Nothing;
        device.set_waiting(false)?;
        let looked = callers.look(long, || {
            now = device.receive_now(buffer)?;
            Ok::<_, io::Error>(now != Now::Nothing)
        });
        device.set_waiting(true)?;
        looked?;
        match now {
            Now::Request(n) => return Ok(Some(n)),
            Now::End => return Ok(None),
            Now::Nothing => {}
        }
    }
    device.receive(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor_tests::{AGREED, adaptor_of};
    use lanefs::{MountOptions, Volume};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// A reader that met an error ended, and one after the other did, until nobody was left and
    /// every call on the mount waited.
    #[test]
    fn the_mount_ends_when_a_reader_fails() {
        let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
        let disk = lanefs_store::device::MemoryDevice::new(32 << 20).unwrap();
        let disk: Arc<dyn lanefs_store::device::Device> = Arc::new(disk);
        lanefs_store::Store::format(std::slice::from_ref(&disk), &lanefs_store::FormatOptions::default())
            .unwrap();
        let volume = Volume::open_devices(vec![disk], &options).unwrap();
        let (adaptor, device) = adaptor_of(volume, AGREED);
        let adaptor = Arc::new(adaptor);
        let cut = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&cut);
        adaptor.when_serving_fails(Box::new(move || told.store(true, SeqCst)));
        for reader in start(&adaptor, &device, 4096, (1, 1), Waits::default()).unwrap() {
            assert!(reader.join().unwrap().is_err());
        }
        assert!(cut.load(SeqCst), "the others still wait");
        adaptor.end();
    }
}
