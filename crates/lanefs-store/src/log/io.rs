//! The store's way to its devices: verified reads with a small cache of node blocks, writes of a
//! whole transaction in one submission per device, shared flushes, and the sticky error.
//!
//! The sticky error: the first write or flush of the log that fails makes the store read-only for
//! good. What the device did with the failed write is unknown, and a later success would prove
//! nothing about it. But a write that the host of a sparse image refuses for want of space is
//! repeated until it is answered: see `device::host`, and `admission` for how that is avoided.

use crate::device::{Device, HostSpace, PAUSE, ReadReq, WriteReq, longer};
use crate::error::{Result, StoreError};
use crate::log::account::Admission;
use crate::log::maintained::Maintained;
use crate::log::members::Members;
use crate::log::neighbours::Neighbours;
use crate::log::node_cache::{NodeCache, Shared};
use crate::log::segment::SegmentTable;
use crate::tree::block_io::BlockSource;
use lanefs_format::checksum;
use lanefs_format::superblock::{MAX_DEVICES, Superblock};
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, BlockRef};
use lanefs_sync::hash::WordMap;
use lanefs_sync::lock::Mutex;
use lanefs_sync::{CachePadded, SignalsBlocked};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Instant;
use zerocopy::IntoBytes;

/// How many blocks [`Io::expect`] reads in one submission: enough to keep a device busy, and 1 MiB.
const EXPECTED_AT_ONCE: usize = 256;
/// A submission of at most so many bytes is written to one device after the other.
const IN_TURN: usize = 256 << 10;

/// A block that waits for being written: its sum, its bytes, whether the cache keeps it then, and
/// whether it is written twice.
type Queued = (u32, Shared, bool, bool);

/// The places of the copies of blocks, in a volume that keeps two of its tree: see `copies`.
#[derive(Clone, Copy)]
struct Twins {
    segment: u64,
    half: u64,
}

/// So many blocks with a bad copy are remembered; another reader meets the others.
const SUSPECTS_MAX: usize = 4096;

/// One write of a submission.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    pub addr: BlockAddr,
    pub data: &'a [u8],
}

impl Write<'_> {
    /// Returns whether it writes blocks, and only whole ones.
    fn is_whole(&self) -> bool {
        !self.data.is_empty() && self.data.len().is_multiple_of(BLOCK_SIZE)
    }
}

/// Returns whether no two writes touch the same block.
fn are_apart(writes: &[Write<'_>]) -> bool {
    let mut at: Vec<(u64, u64)> =
        writes.iter().map(|w| (w.addr.0, w.addr.0 + (w.data.len() / BLOCK_SIZE) as u64)).collect();
    at.sort_unstable();
    at.windows(2).all(|w| w[0].1 <= w[1].0)
}

/// The devices of a volume, and what is on its way to and from them.
pub(crate) struct Io {
    first: Members,
    cache: NodeCache,
    neighbours: Neighbours,
    /// Nothing is ever written; what is queued stays queued.
    pub(super) read_only: bool,
    /// The segments of the volume, if one is open: some of the free ones help when a host is full.
    pub(super) segments: Option<Arc<SegmentTable>>,
    /// What is known of the hosts of sparse devices.
    pub host: HostSpace,
    /// What is under way to them where they have little space.
    pub(super) admission: Admission,
    /// A request that a host refuses is waited for. Stored once, when the volume is open. Relaxed:
    /// who opened it hands it to others.
    waits: AtomicBool,
    /// When it was last looked whether there is space again, by who was refused for want of it.
    pub(super) looked: Mutex<Option<Instant>>,
    twins: Option<Twins>,
    /// Blocks of which a copy is bad and the other one good, for `engine::copies`: the sum of each
    /// address.
    suspects: Mutex<WordMap<u32>>,
    /// Length of `suspects`. Written behind its mutex, by readers and by who heals. Relaxed: who
    /// heals looks again later.
    suspected: AtomicUsize,
    /// Blocks that have an address and wait for being written together; reads find them here.
    queued: Mutex<WordMap<Queued>>,
    /// Length of `queued`, so that reads look only when there is something. Written under its mutex
    /// by whoever queues or writes: Release in [`Io::enqueue`] and [`Io::write_queue`], whose
    /// partner is the Acquire in [`Io::queue_len`]: who sees a reference (through a lock) taken
    /// after the block was queued sees the count.
    queue_len: AtomicUsize,
    /// Held by who writes the queue: several threads of a checkpoint fill it. On a line of its own:
    /// every fsync reads what lies beside it.
    writing: CachePadded<Mutex<()>>,
    /// Set once, with `why`, by the first write or flush that fails: Release in [`Io::fail`], whose
    /// partners are the Acquires in [`Io::check`] and [`Io::is_broken`]: who sees the flag sees the
    /// reason. On a line of its own: every change reads it.
    broken: CachePadded<AtomicBool>,
    why: Mutex<Option<StoreError>>,
    pub maintained: CachePadded<Maintained>,
}

impl Io {
    pub fn new(devices: Vec<Arc<dyn Device>>, cache_bytes: usize, read_only: bool) -> Io {
        debug_assert!((1..=MAX_DEVICES).contains(&devices.len()), "{} devices", devices.len());
        Io {
            first: Members::new(devices),
            cache: NodeCache::new(cache_bytes),
            neighbours: Neighbours::new(cache_bytes),
            read_only,
            segments: None,
            host: HostSpace::default(),
            admission: Admission::default(),
            waits: AtomicBool::new(false),
            looked: Mutex::new(None),
            twins: None,
            suspects: Mutex::default(),
            suspected: AtomicUsize::new(0),
            queued: Mutex::default(),
            queue_len: AtomicUsize::new(0),
            writing: CachePadded::default(),
            broken: CachePadded::new(AtomicBool::new(false)),
            why: Mutex::new(None),
            maintained: CachePadded::default(),
        }
    }

    /// Returns the same for the devices of a volume, of which it may know copies.
    pub fn of(self, sb: &Superblock) -> Io {
        let segment = u64::from(sb.layout.segment_blocks);
        let twins = (sb.metadata_copies() == 2).then_some(Twins { segment, half: segment / 2 });
        debug_assert!(twins.is_none_or(|t| 2 * t.half == t.segment), "half of {segment} blocks");
        Io { twins, ..self }
    }

    /// Returns the same with the segments of the volume.
    pub fn with_segments(self, segments: &Arc<SegmentTable>) -> Io {
        debug_assert_eq!(segments.devices(), self.devices().len(), "segments of other devices");
        Io { segments: Some(segments.clone()), ..self }
    }

    /// Has requests be waited for from now on that a host refuses.
    pub(super) fn begin_to_wait(&self) {
        debug_assert!(!self.read_only && self.segments.is_some(), "no volume is open that is written");
        self.waits.store(true, Ordering::Relaxed); // Relaxed: see the field.
    }

    /// Returns where the copy of a block lies, if it has one: none of the address alone is known to
    /// have.
    pub fn copy_of(&self, addr: BlockAddr) -> Option<BlockAddr> {
        let t = self.twins?;
        let copy = (addr.block() % t.segment < t.half).then(|| addr.plus(t.half));
        debug_assert!(
            copy.is_none_or(
                |c| (c.device(), c.block() / t.segment) == (addr.device(), addr.block() / t.segment)
            ),
            "the copy of {addr} lies in another segment: {copy:?}"
        );
        copy
    }

    /// Makes the store read-only because of `e`; the first reason stays.
    pub fn fail(&self, e: &StoreError) {
        let mut why = self.why.lock();
        if why.is_none() {
            tracing::error!("the volume goes read-only: {e}");
            *why = Some(StoreError::ReadOnly { why: e.to_string() });
        }
        // Release, with the Acquire in `check` and `is_broken`: `why` is set before.
        self.broken.store(true, Ordering::Release);
    }

    /// Returns the sticky error, if there is one.
    pub fn check(&self) -> Result<()> {
        // Acquire, with the Release in `fail`: who sees the flag finds the reason.
        if !self.broken.load(Ordering::Acquire) {
            return Ok(());
        }
        let why = self.why.lock().clone();
        debug_assert!(why.is_some(), "the reason is set before the flag");
        Err(why.unwrap_or_else(|| StoreError::ReadOnly { why: "an earlier error".into() }))
    }

    /// Returns what is wrong with a device, and what to do: the sticky error, or a full host.
    pub fn trouble(&self) -> Option<String> {
        self.check().err().map(|e| e.to_string()).or_else(|| self.host.message())
    }

    /// Returns whether there is a sticky error.
    pub fn is_broken(&self) -> bool {
        // Acquire, with the Release in `fail`, as in `check`.
        self.broken.load(Ordering::Acquire)
    }

    /// Returns the devices as they are now.
    fn members(&self) -> &Members {
        self.first.now()
    }

    /// Adds a device behind the others.
    pub fn add_device(&self, device: Arc<dyn Device>) {
        debug_assert!(!self.read_only, "a volume is changed that is only read");
        self.first.add(device);
    }

    /// Puts another device in the place of one, which has all that is read from it. `for_good`: the
    /// one before is let go of, and who is on its way there and finds that asks the new one.
    pub fn replace_device(&self, n: usize, device: Arc<dyn Device>, for_good: bool) {
        debug_assert!(!self.read_only, "a volume is changed that is only read");
        self.first.replace(n, device, for_good);
    }

    /// Takes the last device away, to which nothing refers any more.
    pub fn remove_device(&self) {
        debug_assert!(!self.read_only, "a volume is changed that is only read");
        self.first.remove();
    }

    fn device(&self, addr: BlockAddr, what: &'static str) -> Result<&Arc<dyn Device>> {
        self.members().device(addr, what)
    }

    /// Reads `data.len()` bytes from `addr` on, not verified.
    pub fn read_raw(&self, addr: BlockAddr, data: &mut [u8], what: &'static str) -> Result<()> {
        debug_assert!(data.len().is_multiple_of(BLOCK_SIZE), "{} bytes are not whole blocks", data.len());
        let members = self.members();
        members.device(addr, what)?;
        self.read_from(members, addr.device(), &mut [ReadReq { offset: addr.offset(), data }])
    }

    /// Reads from a device, and from what has taken its place where it was replaced meanwhile.
    fn read_from(&self, members: &Members, d: usize, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        members.devices[d].read(reqs).or_else(|e| match members.after_replacement(d) {
            Some(now) => now.devices[d].read(reqs),
            None => Err(e),
        })
    }

    /// Reads blocks, one submission per device, not verified.
    pub fn read_blocks(&self, blocks: &mut [(BlockAddr, &mut Block)], what: &'static str) -> Result<()> {
        let members = self.members();
        let mut by_device: Vec<Vec<ReadReq<'_>>> = members.lists();
        let queued = (self.queue_len() > 0).then(|| self.queued.lock());
        for (addr, b) in blocks.iter_mut() {
            members.device(*addr, what)?;
            if let Some((_, q, ..)) = queued.as_ref().and_then(|q| q.get(&addr.0)) {
                b.0.copy_from_slice(&q.0);
                continue;
            }
            by_device[addr.device()].push(ReadReq { offset: addr.offset(), data: &mut b.0 });
        }
        drop(queued);
        for (d, mut reqs) in by_device.into_iter().enumerate() {
            if !reqs.is_empty() {
                self.read_from(members, d, &mut reqs)?;
            }
        }
        Ok(())
    }

    /// Hands out the verified blocks of a small piece of content, with the place of each in `refs`:
    /// see [`Neighbours::read`]. Returns false if they are to be read by themselves.
    pub fn read_near(&self, refs: &[BlockRef], to: impl FnMut(usize, &Block)) -> bool {
        let Some(segments) = &self.segments else { return false };
        // Relaxed: a zone that is read while a root is written is taken for an old one at worst.
        let roots = self.maintained.roots.load(Ordering::Relaxed);
        let segment = u64::from(segments.geometry.segment_blocks);
        let read = |at, data: &mut [u8]| self.read_raw(at, data, "read of file data").is_ok();
        self.neighbours.read(refs, (segment, roots), read, to)
    }

    /// Returns the blocks of `refs`, read together and not verified, for who has much to read and
    /// can read one by one what does not fit. `None` if a read failed, or if some may wait in the
    /// queue.
    pub fn read_ahead(&self, refs: &[BlockRef]) -> Option<Vec<Block>> {
        if refs.len() < 2 || self.queue_len() > 0 {
            return None;
        }
        let mut blocks = vec![Block([0; BLOCK_SIZE]); refs.len()];
        self.read_scattered(refs.iter().map(|r| r.addr), &mut blocks, "structures").ok()?;
        Some(blocks)
    }

    /// Fills `to` with the blocks at `addrs`, not verified and past the queue: for blocks of which
    /// another mount may have been the last writer. Neighbours are read as one, all in one
    /// submission per device.
    pub fn read_scattered(
        &self,
        addrs: impl IntoIterator<Item = BlockAddr>,
        to: &mut [Block],
        what: &'static str,
    ) -> Result<()> {
        let members = self.members();
        let mut by_device: Vec<Vec<ReadReq<'_>>> = members.lists();
        let mut rest = to;
        let mut addrs = addrs.into_iter().peekable();
        while let Some(first) = addrs.next() {
            debug_assert!(!rest.is_empty(), "more addresses than blocks to fill");
            let mut n = 1;
            while n < rest.len() && addrs.next_if(|a| *a == first.plus(n as u64)).is_some() {
                n += 1;
            }
            let (run, others) = rest.split_at_mut(n.min(rest.len()));
            rest = others;
            members.device(first, what)?;
            by_device[first.device()].push(ReadReq { offset: first.offset(), data: run.as_mut_bytes() });
        }
        debug_assert!(rest.is_empty(), "{} blocks have no address", rest.len());
        for (d, mut reqs) in by_device.into_iter().enumerate() {
            if !reqs.is_empty() {
                self.read_from(members, d, &mut reqs)?;
            }
        }
        Ok(())
    }

    /// Writes all of it: one submission per device, the devices in parallel. Returns the devices
    /// written, one bit each. An error is sticky.
    pub fn write(&self, writes: &[Write<'_>]) -> Result<u64> {
        debug_assert!(!self.read_only || writes.is_empty(), "a volume is written that is only read");
        debug_assert!(writes.iter().all(Write::is_whole), "a write of something else than blocks");
        debug_assert!(are_apart(writes), "a block is twice in one submission, in no order");
        self.check()?;
        let members = self.members();
        let mut by_device: Vec<Vec<WriteReq<'_>>> = members.lists();
        for w in writes {
            members.device(w.addr, "log write")?;
            by_device[w.addr.device()].push(WriteReq { offset: w.addr.offset(), data: w.data });
        }
        let busy: Vec<usize> = (0..by_device.len()).filter(|&d| !by_device[d].is_empty()).collect();
        let one = |d: usize| self.write_to(&*members.devices[d], d, &by_device[d]);
        let bytes: usize = writes.iter().map(|w| w.data.len()).sum();
        let result = match busy[..] {
            [] => Ok(()),
            [d] => one(d),
            // A device takes so little in less time than a thread begins.
            _ if bytes <= IN_TURN => busy.iter().try_for_each(|&d| one(d)),
            [first, ref rest @ ..] => std::thread::scope(|s| {
                // Where no thread can be had, one device after the other.
                let begin = |&d: &usize| Builder::new().spawn_scoped(s, move || one(d)).map_err(|_| d);
                let others: Vec<_> = {
                    let _blocked = SignalsBlocked::new();
                    rest.iter().map(begin).collect()
                };
                let mut result = one(first);
                for o in others {
                    let panicked = |_| Err(StoreError::Invalid("a writer panicked".into()));
                    result = result.and(o.map_or_else(one, |o| o.join().unwrap_or_else(panicked)));
                }
                result
            }),
        };
        match result {
            // A shutdown meanwhile counts as never having been answered.
            Ok(()) => self.check().map(|()| busy.iter().fold(0, |m, &d| m | 1 << d)),
            Err(e) => {
                self.fail(&e);
                Err(e)
            }
        }
    }

    /// Writes all of it to a device, and waits for the space that its host may lack.
    fn write_to(&self, d: &dyn Device, device: usize, reqs: &[WriteReq<'_>]) -> Result<()> {
        debug_assert!(device < self.devices().len(), "there is no device {device}");
        match d.write(reqs) {
            Err(e) if e.is_of_full_host() => self.write_when_there_is_space(d, device, reqs, e),
            done => done,
        }
    }

    /// Repeats a submission that the host has refused, in whole or in part, until it is answered
    /// (`device::host`, 1 and 2). `refused`: the error, which stays where nothing is waited for.
    #[cold]
    fn write_when_there_is_space(
        &self,
        d: &dyn Device,
        device: usize,
        reqs: &[WriteReq<'_>],
        refused: StoreError,
    ) -> Result<()> {
        debug_assert!(refused.is_of_full_host(), "{refused}: is no want of space");
        debug_assert!(!reqs.is_empty(), "nothing was refused");
        lanefs_sync::about_to_wait();
        let waits = self.waits.load(Ordering::Relaxed); // Relaxed: see the field.
        let waiting = waits.then(|| {
            let waiting = self.host.refused(d, self.wanted());
            self.set_short(true);
            self.count_admissions();
            waiting
        });
        let mut pause = *PAUSE.start();
        for r in reqs {
            loop {
                match d.write(std::slice::from_ref(r)) {
                    Err(e) if e.is_of_full_host() => {}
                    done => break done?,
                }
                // What is stopped is not waited for.
                self.check()?;
                {
                    // One at a time: what is given back for one may do for the next.
                    let _one = self.admission.giving.lock();
                    match d.write(std::slice::from_ref(r)) {
                        Err(e) if e.is_of_full_host() => {}
                        done => break done?,
                    }
                    if self.give_back(device) {
                        continue;
                    }
                }
                if waiting.is_none() {
                    return Err(refused);
                }
                lanefs_sync::schedule::sleep(pause);
                pause = longer(pause);
            }
        }
        debug_assert!(waiting.is_none() || self.host.waiting() > 0, "this one waits");
        drop(waiting);
        self.look_for_space();
        Ok(())
    }

    /// Writes slots, stamps or superblocks. An error is sticky.
    pub fn write_roots(&self, writes: &[Write<'_>]) -> Result<()> {
        debug_assert!(writes.iter().all(|w| w.data.len() == BLOCK_SIZE), "a root is a block");
        self.write(writes)?;
        self.maintained.roots.fetch_add(writes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how many flushes were asked for, and how many the devices were given.
    pub fn flushes(&self) -> (u64, u64) {
        let members = self.members();
        let all = members.gates.iter().map(|g| (g.asked(), g.issued()));
        all.fold(members.flushes, |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Flushes the devices of `mask`. An error is sticky.
    pub fn flush(&self, mask: u64) -> Result<()> {
        self.check()?;
        let members = self.members();
        for (d, gate) in members.gates.iter().enumerate() {
            if mask >> d & 1 == 0 {
                continue;
            }
            let flushed = gate.flush().or_else(|e| match members.after_replacement(d) {
                Some(now) => now.gates[d].flush(),
                None => Err(e),
            });
            if let Err(e) = flushed {
                self.fail(&e);
                return Err(e);
            }
        }
        self.check()
    }

    /// Returns all devices, one bit each.
    pub fn all(&self) -> u64 {
        (0..self.devices().len()).fold(0, |m, d| m | 1 << d)
    }

    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.members().devices
    }

    /// Queues a block for [`Io::write_queue`]. `keep`: the cache keeps it when it is written, as
    /// what is read again and again. `twice`: its copy is written with it.
    pub fn enqueue(&self, r: BlockRef, b: Box<Block>, keep: bool, twice: bool) {
        let mut q = self.queued.lock();
        debug_assert!(!r.is_none(), "a block is queued for no place");
        debug_assert!(!twice || self.copy_of(r.addr).is_some(), "{} has no copy", r.addr);
        let old = q.insert(r.addr.0, (r.crc, Arc::new(b), keep, twice));
        debug_assert!(old.is_none(), "block {} is written twice before anybody wrote it once", r.addr);
        // Release, with the Acquire in `queue_len`: the queue is as long as that.
        self.queue_len.store(q.len(), Ordering::Release);
    }

    /// Drops a block from the cache: nothing refers to it any more.
    pub fn forget(&self, addr: BlockAddr) {
        self.cache.forget(addr);
    }

    /// Returns whether a block is found without a trip to the device.
    pub fn has(&self, r: BlockRef) -> bool {
        self.cache.get(r).is_some() || self.is_queued(r)
    }

    /// Returns whether this very block waits for being written.
    pub fn is_queued(&self, r: BlockRef) -> bool {
        self.queue_len() > 0 && self.queued.lock().get(&r.addr.0).is_some_and(|q| q.0 == r.crc)
    }

    /// Returns how many blocks wait for being written.
    pub fn queue_len(&self) -> usize {
        // Acquire, with the Release where the queue changes: see the field.
        self.queue_len.load(Ordering::Acquire)
    }

    /// Writes all queued blocks.
    pub fn write_queue(&self) -> Result<()> {
        self.write_queue_of(0)
    }

    /// Does so if there are so many when it is this thread's turn.
    pub fn write_queue_of(&self, least: usize) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let _one = self.writing.lock();
        if self.queue_len() < least {
            return Ok(());
        }
        let mut blocks: Vec<(BlockAddr, Queued)> =
            self.queued.lock().iter().map(|(a, q)| (BlockAddr(*a), q.clone())).collect();
        blocks.sort_unstable_by_key(|b| b.0);
        let mut writes: Vec<Write<'_>> =
            blocks.iter().map(|(a, q)| Write { addr: *a, data: &q.1.0 }).collect();
        for (a, q) in blocks.iter().filter(|(_, q)| q.3) {
            writes.extend(self.copy_of(*a).map(|addr| Write { addr, data: &q.1.0 }));
        }
        self.write(&writes)?;
        self.maintained.tree.fetch_add(writes.len() as u64, Ordering::Relaxed);
        for (addr, (crc, b, ..)) in blocks.iter().filter(|b| b.1.2) {
            self.cache.put(BlockRef { addr: *addr, crc: *crc }, b.clone());
        }
        let mut q = self.queued.lock();
        blocks.iter().for_each(|(a, _)| {
            let gone = q.remove(&a.0);
            debug_assert!(gone.is_some(), "two write the queue: block {a} was written already");
        });
        // Release, with the Acquire in `queue_len`: the queue is as long as that.
        self.queue_len.store(q.len(), Ordering::Release);
        Ok(())
    }
}

impl Io {
    /// Returns a block that is in memory, in the cache or waiting for being written.
    fn find(&self, r: BlockRef) -> Option<Box<Block>> {
        if let Some(b) = self.cache.get(r) {
            return Some((*b).clone());
        }
        if self.queue_len() == 0 {
            return None;
        }
        let queued = self.queued.lock();
        queued.get(&r.addr.0).filter(|q| q.0 == r.crc).map(|q| (*q.1).clone())
    }

    /// Reads a block from its device and compares it with its sum; from its copy, if it has one,
    /// where that fails.
    fn fetch(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        let first = match self.fetch_at(r, r.addr, what) {
            Err(e @ (StoreError::Io { .. } | StoreError::Corrupt { .. })) => e,
            done => return done,
        };
        let Some(copy) = self.copy_of(r.addr) else { return Err(first) };
        let Ok(b) = self.fetch_at(r, copy, what) else { return Err(first) };
        tracing::debug!("{what}: its copy in block {copy} is used: {first}");
        self.excuse(r.addr);
        self.suspect(r);
        Ok(b)
    }

    /// Reads the block that lies at `at` and compares it with what should be there: the block of
    /// `r`, or its copy, which is the same byte for byte.
    pub fn fetch_at(&self, r: BlockRef, at: BlockAddr, what: &'static str) -> Result<Box<Block>> {
        let mut b = Block::zeroed();
        self.read_raw(at, &mut b.0, what)?;
        let mut crc = checksum::block_crc(r.addr, &b.0);
        if crc != r.crc {
            // Once more: what was read wrong once must not cost the tree below it.
            self.read_raw(at, &mut b.0, what)?;
            crc = checksum::block_crc(r.addr, &b.0);
        }
        if crc != r.crc {
            let why = format!("its bytes sum to {crc:#010x}, its parent says {:#010x}", r.crc);
            return Err(StoreError::Corrupt { addr: at, what, why });
        }
        Ok(b)
    }

    /// Returns what is wrong with one of the two copies of a block that was read: where it lies,
    /// and why. Remembers it for `Cleaner::heal`.
    pub fn bad_copy(&self, r: BlockRef, what: &'static str) -> Option<(BlockAddr, StoreError)> {
        let copy = self.copy_of(r.addr)?;
        if self.is_queued(r) {
            return None;
        }
        let (bad, e) = if self.suspects.lock().get(&r.addr.0) == Some(&r.crc) {
            (r.addr, self.fetch_at(r, r.addr, what).err()?)
        } else {
            (copy, self.fetch_at(r, copy, what).err()?)
        };
        self.excuse(bad);
        self.suspect(r);
        Some((bad, e))
    }

    /// Excuses a block that cannot be read: it is known from its copy.
    pub fn excuse(&self, addr: BlockAddr) {
        if let Some(d) = self.devices().get(addr.device()) {
            d.excuse(addr.offset());
        }
    }

    /// Remembers that one of the copies of a block is bad.
    pub fn suspect(&self, r: BlockRef) {
        let mut s = self.suspects.lock();
        if s.len() < SUSPECTS_MAX {
            s.insert(r.addr.0, r.crc);
        }
        debug_assert!(s.len() <= SUSPECTS_MAX, "{} blocks are remembered", s.len());
        // Relaxed, as below: who heals looks again later.
        self.suspected.store(s.len(), Ordering::Relaxed);
    }

    pub fn suspect_all(&self, refs: Vec<BlockRef>) {
        refs.into_iter().for_each(|r| self.suspect(r));
    }

    /// Takes the blocks remembered so.
    pub fn take_suspects(&self) -> Vec<BlockRef> {
        if self.suspected.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let all = std::mem::take(&mut *self.suspects.lock());
        self.suspected.store(0, Ordering::Relaxed);
        let mut all: Vec<_> = all.into_iter().map(|(a, crc)| BlockRef { addr: BlockAddr(a), crc }).collect();
        all.sort_unstable_by_key(|r| r.addr);
        debug_assert!(all.iter().all(|r| self.copy_of(r.addr).is_some()), "of a block without a copy");
        all
    }

    /// Writes a bad copy anew. An error is not sticky: nothing that was acknowledged depends on it,
    /// since the other copy is good.
    pub fn rewrite(&self, at: BlockAddr, b: &Block) -> Result<()> {
        debug_assert!(!self.read_only, "block {at} of a volume that is only read");
        self.check()?;
        self.device(at, "copy")?.write(&[WriteReq { offset: at.offset(), data: &b.0 }])?;
        self.maintained.moved.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl BlockSource for Io {
    fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        if let Some(b) = self.find(r) {
            return Ok(b);
        }
        let b = self.fetch(r, what)?;
        self.cache.put(r, Arc::new(b.clone()));
        Ok(b)
    }

    fn read_once(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        self.find(r).map_or_else(|| self.fetch(r, what), Ok)
    }

    /// Reads them into the cache of nodes, of which it takes a quarter at most: in submissions of
    /// [`EXPECTED_AT_ONCE`] blocks per device, into one buffer, because a buffer for all of them is
    /// memory that the system has to clear first.
    fn expect(&self, refs: &[BlockRef]) {
        let absent = |r: &BlockRef| !self.has(*r);
        let most = self.cache.len() / 4;
        let mut refs: Vec<BlockRef> = refs.iter().take(most).copied().filter(absent).collect();
        if refs.len() < 2 {
            return;
        }
        refs.sort_unstable_by_key(|r| r.addr);
        let mut blocks = vec![Block([0; BLOCK_SIZE]); refs.len().min(EXPECTED_AT_ONCE)];
        for refs in refs.chunks(EXPECTED_AT_ONCE) {
            let blocks = &mut blocks[..refs.len()];
            if self.read_scattered(refs.iter().map(|r| r.addr), blocks, "structures").is_err() {
                return;
            }
            let sound = refs.iter().zip(&*blocks).filter(|(r, b)| checksum::matches(**r, &b.0));
            sound.for_each(|(r, b)| self.cache.put(*r, Arc::new(Box::new(b.clone()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{HookedDevice, Kind, MemoryDevice, Recorder, thread_id};

    /// What had failed before another device came beside it was asked once more there, and came to
    /// a success that proves nothing.
    #[test]
    fn a_flush_that_failed_is_asked_again_only_where_the_device_was_replaced_for_good() {
        for for_good in [false, true] {
            let old = Arc::new(HookedDevice::new(MemoryDevice::new(1 << 20).unwrap()));
            let io = Arc::new(Io::new(vec![old.clone()], 0, false));
            let (of, next) = (io.clone(), old.clone());
            old.before(Kind::Flush, move || {
                of.replace_device(0, next, for_good);
                Err(StoreError::Invalid("a broken cable".into()))
            });
            assert_eq!((io.flush(1).is_ok(), io.is_broken()), (for_good, !for_good));
        }
    }

    /// Each fsync of a volume on two devices started a thread and waited for its end.
    #[test]
    fn a_small_submission_to_two_devices_starts_no_thread() {
        let recorder = Recorder::new();
        let device = || Arc::new(recorder.wrap(MemoryDevice::new(1 << 20).unwrap())) as Arc<dyn Device>;
        let io = Io::new(vec![device(), device()], 0, false);
        for (each, own) in [(IN_TURN / 2, 2), (IN_TURN / 2 + BLOCK_SIZE, 1)] {
            let data = vec![Block([1; BLOCK_SIZE]); each / BLOCK_SIZE];
            let to = |d| Write { addr: BlockAddr::new(d, 4), data: data.as_bytes() };
            assert_eq!(io.write(&[to(0), to(1)]).unwrap(), 0b11);
            let writes = recorder.take_log().writes;
            let mine = writes.iter().filter(|w| w.thread == thread_id()).count();
            assert_eq!((writes.len(), mine), (2, own), "{each} bytes to each device");
        }
    }
}
