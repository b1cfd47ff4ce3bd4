//! Two devices that are written alike: one that is to be replaced, and the one that comes in its
//! place. What is read comes from the old one.
//!
//! 1. A write is answered when both have answered. A failure of the old device is the answer, as
//!    without the new one. A failure of the new device is kept ([`MirrorDevice::check`]) and told
//!    to nobody who writes, as the old one has all there is; until both have to have it
//!    ([`MirrorDevice::need_both`]): from then on it is the answer.
//! 2. What lay on the old device before is copied, piece by piece ([`MirrorDevice::copy`]). A piece
//!    and a write that overlap come one after the other, or the copy could bring back what the
//!    write has replaced: a write notes what it is about, and waits while that is being copied; a
//!    copy waits for the writes that are under way there. Nothing is locked over a request.
//! 3. Some blocks are each device's own, its superblocks: they are neither copied nor written to
//!    the new one.
//! 4. Once the new one has taken the old one's place ([`MirrorDevice::retire`]) whoever still comes
//!    by this device, because it asked for it before, is led to the new one alone.

use super::{Device, Host, ReadReq, WriteReq, check_range};
use crate::error::Result;
use lanefs_format::{BLOCK_SHIFT, BLOCK_SIZE, Block};
use lanefs_sync::lock::{Condvar, Mutex};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes;

/// Blocks that are copied at once.
const PIECE: u64 = 256;

/// What is under way, in bytes of the device.
#[derive(Debug, Default)]
struct State {
    writes: Vec<Range<u64>>,
    copy: Option<Range<u64>>,
    /// Why the new device does not have all (1).
    failed: Option<crate::StoreError>,
    /// A failure of the new device is the answer to who writes (1).
    both: bool,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct MirrorDevice {
    old: Arc<dyn Device>,
    new: Arc<dyn Device>,
    /// Blocks that are each device's own (3).
    own: Vec<u64>,
    state: Mutex<State>,
    changed: Condvar,
    /// Set once, behind the last write to the old device that counts. Release, with the Acquire in
    /// [`MirrorDevice::is_retired`].
    retired: AtomicBool,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl MirrorDevice {
    /// Has what is written to `old` be written to `new` too, but for the blocks that are `own`.
    pub fn new(old: Arc<dyn Device>, new: Arc<dyn Device>, own: Vec<u64>) -> MirrorDevice {
        debug_assert!(own.contains(&0), "block 0 says what a device is");
        let (state, changed) = (Mutex::default(), Condvar::new());
        MirrorDevice { old, new, own, state, changed, retired: AtomicBool::new(false) }
    }

    /// Returns why the new device does not have all that the old one has.
    pub fn check(&self) -> Result<()> {
        self.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Has a failure of the new device be that of who writes from now on. Errors as
    /// [`MirrorDevice::check`].
    pub fn need_both(&self) -> Result<()> {
        let mut s = self.state.lock();
        debug_assert!(s.copy.is_none(), "not all is copied");
        s.failed.clone().map_or(Ok(()), Err)?;
        s.both = true;
        Ok(())
    }

    /// Has the new device alone be used from now on, by whoever still comes.
    pub fn retire(&self) {
        debug_assert!(self.check().is_ok(), "the new device has not all");
        self.retired.store(true, Ordering::Release);
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Returns what the new device's answer is for who writes (1).
    fn answer(&self, done: Result<()>) -> Result<()> {
        let Err(e) = done else { return Ok(()) };
        let mut s = self.state.lock();
        if s.both {
            return Err(e);
        }
        s.failed.get_or_insert(e);
        Ok(())
    }

    /// Copies these blocks. Returns those that cannot be read: zeros take their place, which no sum
    /// fits.
    ///
    /// # Errors
    /// Those of the new device.
    pub fn copy(&self, blocks: Range<u64>) -> Result<Vec<u64>> {
        let mut buffer = vec![Block([0; BLOCK_SIZE]); PIECE.min(blocks.end - blocks.start) as usize];
        let (mut at, mut unreadable) = (blocks.start, Vec::new());
        while at < blocks.end {
            let n = PIECE.min(blocks.end - at);
            let piece = at << BLOCK_SHIFT..(at + n) << BLOCK_SHIFT;
            self.begin_copy(&piece);
            let copied = self.copy_piece(at, &mut buffer[..n as usize]);
            self.state.lock().copy = None;
            self.changed.notify_all();
            unreadable.extend(copied?);
            at += n;
        }
        debug_assert_eq!(at, blocks.end, "all is copied");
        self.check().map(|()| unreadable)
    }

    /// Waits until nobody writes there, and has whoever comes wait.
    fn begin_copy(&self, piece: &Range<u64>) {
        lanefs_sync::about_to_wait();
        let mut s = self.state.lock();
        debug_assert!(s.copy.is_none(), "one thread copies");
        s.copy = Some(piece.clone());
        while s.writes.iter().any(|w| overlap(w, piece)) {
            self.changed.wait(&mut s);
        }
    }

    fn copy_piece(&self, first: u64, buffer: &mut [Block]) -> Result<Vec<u64>> {
        let mut unreadable = Vec::new();
        let data = buffer.as_mut_bytes();
        if self.old.read(&mut [ReadReq { offset: first << BLOCK_SHIFT, data }]).is_err() {
            for (i, b) in buffer.iter_mut().enumerate() {
                let offset = (first + i as u64) << BLOCK_SHIFT;
                if let Err(e) = self.old.read(&mut [ReadReq { offset, data: &mut b.0 }]) {
                    tracing::warn!("a block cannot be copied: {e}");
                    *b = Block([0; BLOCK_SIZE]);
                    unreadable.push(first + i as u64);
                }
            }
        }
        // Runs between the blocks that are its own.
        let is_own = |i: usize| self.own.contains(&(first + i as u64));
        let mut at = 0;
        while at < buffer.len() {
            let end = (at..buffer.len()).find(|i| is_own(*i)).unwrap_or(buffer.len());
            if at < end {
                let offset = (first + at as u64) << BLOCK_SHIFT;
                self.new.write(&[WriteReq { offset, data: buffer[at..end].as_bytes() }])?;
            }
            at = end + 1;
        }
        debug_assert!(unreadable.len() <= buffer.len(), "{unreadable:?} of {} blocks", buffer.len());
        Ok(unreadable)
    }

    /// Writes what the old device has to the new one.
    fn write_new(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        if self.check().is_err() {
            return Ok(());
        }
        let is_own = |r: &WriteReq<'_>| {
            let first = r.offset >> BLOCK_SHIFT;
            let blocks = first..first + (r.data.len() / BLOCK_SIZE) as u64;
            self.own.iter().any(|own| blocks.contains(own))
        };
        debug_assert!(
            reqs.iter().all(|r| !is_own(r) || r.data.len() == BLOCK_SIZE),
            "more than a superblock"
        );
        let reqs: Vec<_> = reqs.iter().copied().filter(|r| !is_own(r)).collect();
        if reqs.is_empty() { Ok(()) } else { self.answer(self.new.write(&reqs)) }
    }
}

impl Device for MirrorDevice {
    fn size(&self) -> u64 {
        self.old.size()
    }

    fn name(&self) -> &str {
        self.old.name()
    }

    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        if self.is_retired() { self.new.read(reqs) } else { self.old.read(reqs) }
    }

    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        if self.is_retired() {
            return self.new.write(reqs);
        }
        for r in reqs {
            check_range(self, "write", r.offset, r.data.len())?;
        }
        let mine: Vec<_> = reqs.iter().map(|r| r.offset..r.offset + r.data.len() as u64).collect();
        {
            let mut s = self.state.lock();
            while s.copy.as_ref().is_some_and(|c| mine.iter().any(|w| overlap(w, c))) {
                self.changed.wait(&mut s);
            }
            s.writes.extend(mine.iter().cloned());
        }
        let done = self.old.write(reqs).and_then(|()| self.write_new(reqs));
        let mut s = self.state.lock();
        for w in &mine {
            let at = s.writes.iter().position(|other| other == w);
            debug_assert!(at.is_some(), "a write at {w:?} was forgotten");
            at.map(|at| s.writes.swap_remove(at));
        }
        drop(s);
        self.changed.notify_all();
        done
    }

    fn flush(&self) -> Result<()> {
        if self.is_retired() {
            return self.new.flush();
        }
        self.old.flush()?;
        if self.check().is_ok() { self.answer(self.new.flush()) } else { Ok(()) }
    }

    fn needs_flush(&self) -> bool {
        self.old.needs_flush() || self.new.needs_flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        // A hint: what the new one says of it does not matter.
        let _ = self.new.discard(offset, len);
        if self.is_retired() { Ok(()) } else { self.old.discard(offset, len) }
    }

    fn discards(&self) -> bool {
        self.old.discards() || self.new.discards()
    }

    fn host(&self) -> Option<&dyn Host> {
        self.old.host()
    }

    fn excuse(&self, offset: u64) {
        self.old.excuse(offset);
        self.new.excuse(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{
        Fault, FaultyDevice, HookedDevice, Kind, MemoryDevice, Plan, Rule, When, conformance,
    };
    use std::sync::mpsc;
    use std::time::Duration;

    const B: u64 = BLOCK_SIZE as u64;

    fn memory() -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::new(64 * B).unwrap())
    }

    fn read(d: &dyn Device, block: u64) -> u8 {
        let mut b = Block([0; BLOCK_SIZE]);
        d.read(&mut [ReadReq { offset: block * B, data: &mut b.0 }]).unwrap();
        assert!(b.0.iter().all(|byte| *byte == b.0[0]), "a block of two writes");
        b.0[0]
    }

    fn write(d: &dyn Device, block: u64, byte: u8) -> Result<()> {
        d.write(&[WriteReq { offset: block * B, data: &Block([byte; BLOCK_SIZE]).0 }])
    }

    #[test]
    fn it_is_a_device_and_both_have_what_is_written_but_for_what_is_their_own() {
        let (old, new) = (memory(), memory());
        let m = MirrorDevice::new(old.clone(), new.clone(), vec![0, 5]);
        conformance::check(&m);
        for block in 0..8 {
            write(&*old, block, 1).unwrap();
            write(&*new, block, 2).unwrap();
        }
        write(&m, 3, 3).unwrap();
        write(&m, 5, 4).unwrap();
        assert!(m.copy(0..8).unwrap().is_empty());
        let all = |d: &dyn Device| (0..8).map(|b| read(d, b)).collect::<Vec<_>>();
        assert_eq!(all(&*old), [1, 1, 1, 3, 1, 4, 1, 1]);
        assert_eq!(all(&*new), [2, 1, 1, 3, 1, 2, 1, 1]);
        m.retire();
        write(&m, 6, 7).unwrap();
        assert_eq!((read(&*old, 6), read(&*new, 6), read(&m, 0)), (1, 7, 2));
    }

    /// A write that comes while its blocks are being copied would be overwritten on the new device
    /// by what was read before it.
    #[test]
    fn a_write_waits_for_the_copy_of_what_it_replaces_and_for_no_other() {
        let (old, new) = (memory(), Arc::new(HookedDevice::new(MemoryDevice::new(64 * B).unwrap())));
        let m = Arc::new(MirrorDevice::new(old.clone(), new.clone(), vec![0]));
        write(&*old, 10, 1).unwrap();
        let (begun, wait_begun) = mpsc::channel();
        let other = m.clone();
        new.before(Kind::Write, move || {
            // The old content is read, and on its way.
            begun.send(()).unwrap();
            write(&*other, 40, 9).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        });
        std::thread::scope(|s| {
            let copies = s.spawn(|| m.copy(8..16).unwrap());
            wait_begun.recv().unwrap();
            write(&*m, 10, 2).unwrap();
            copies.join().unwrap();
        });
        assert_eq!((read(&*old, 10), read(new.inner(), 10), read(new.inner(), 40)), (2, 2, 9));
    }

    /// And a copy waits for the write that is under way there.
    #[test]
    fn a_copy_waits_for_a_write_that_began_before() {
        let (old, new) = (Arc::new(HookedDevice::new(MemoryDevice::new(64 * B).unwrap())), memory());
        let m = Arc::new(MirrorDevice::new(old.clone(), new.clone(), vec![0]));
        let (begun, wait_begun) = mpsc::channel();
        old.before(Kind::Write, move || {
            begun.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        });
        std::thread::scope(|s| {
            s.spawn(|| write(&*m, 10, 2).unwrap());
            wait_begun.recv().unwrap();
            m.copy(8..16).unwrap();
            assert_eq!(read(&*new, 10), 2);
        });
    }

    #[test]
    fn a_new_device_that_fails_is_told_of_to_nobody_who_writes() {
        let broken = |kind, fault| {
            let when = When { nth: 1, ..When::default() };
            Arc::new(FaultyDevice::new(
                MemoryDevice::new(64 * B).unwrap(),
                Plan { rules: vec![Rule { kind, when, fault }], ..Plan::none() },
            ))
        };
        for kind in [Kind::Write, Kind::Flush] {
            let m = MirrorDevice::new(memory(), broken(kind, Fault::Error(libc::EIO)), vec![0]);
            for n in 0..3 {
                write(&m, 8, n).unwrap();
                m.flush().unwrap();
            }
            assert!(m.check().is_err() && m.copy(8..9).is_err());
            assert_eq!(read(&m, 8), 2);
        }
        // But where both are needed.
        let m = MirrorDevice::new(memory(), broken(Kind::Write, Fault::Error(libc::EIO)), vec![0]);
        write(&m, 8, 1).unwrap();
        m.need_both().unwrap();
        assert!(write(&m, 8, 2).is_err());
        // What the old one does not give is left out, and counted.
        let m = MirrorDevice::new(broken(Kind::Read, Fault::Error(libc::EIO)), memory(), vec![0]);
        read(&m, 8);
        assert!(!m.copy(8..16).unwrap().is_empty());
    }
}
