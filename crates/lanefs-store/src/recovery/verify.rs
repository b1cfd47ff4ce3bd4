//! Which fsyncs' data is on the medium: an fsync writes its data and its message in one trip, so
//! after a crash the message may be there and the data not. Recovery reads all of it, and believes
//! the checksums.
//!
//! Data that the device cannot read, tried three times, may have arrived. If a later batch states
//! that the message was durable, it counts, and reading the page is an error; if none does, it may
//! have been acknowledged all the same, and opening is an error. Where losses are accepted, it
//! counts.

use crate::error::{Result, StoreError};
use crate::recovery::Recovery;
use crate::recovery::scan::FsyncMessage;
use lanefs_format::checksum;
use lanefs_format::{BLOCK_SIZE, Block, BlockRef};
use lanefs_sync::SignalsBlocked;
use lanefs_sync::parallel;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// The mark of a reference, and why its block could not be read, if that is so.
type Bad = (usize, Option<StoreError>);

impl Recovery<'_> {
    /// Returns for each message whether all data that its news refer to is on the medium. Several
    /// threads read and check, much at a time: what a gigabyte of log takes is what the device
    /// takes to read it.
    pub(crate) fn verify_batch_data(&self, msgs: &[FsyncMessage]) -> Result<Vec<bool>> {
        let mut arrived = vec![true; msgs.len()];
        let mut refs: Vec<(usize, BlockRef)> = Vec::new();
        for (m, msg) in msgs.iter().enumerate() {
            for r in &msg.message.inodes {
                // Something refers to these blocks: they are not free before the recovery's
                // checkpoint (1).
                self.engine.log.touch_record(r);
                if !self.is_newer(r.ino, r.attrs.generation, r.version)? {
                    continue;
                }
                let before = refs.len();
                refs.extend(r.pages().map(|p| (m, p.1)));
                if refs[before..].iter().any(|r| self.engine.log.segments.geometry.locate(r.1.addr).is_none())
                {
                    arrived[m] = false;
                    refs.truncate(before);
                }
            }
        }
        debug_assert!(refs.is_sorted_by_key(|r| r.0), "references are in the order of the messages");
        for (m, why) in self.check_data(&refs)? {
            debug_assert!(refs.binary_search_by_key(&m, |r| r.0).is_ok(), "message {m} refers to nothing");
            match why {
                None => arrived[m] = false,
                Some(e) if !msgs[m].acked && !self.engine.accept_loss => return Err(e),
                Some(_) => {}
            }
        }
        Ok(arrived)
    }

    /// Returns the marks of those references whose blocks do not have their sums, or cannot be
    /// read: then with the error.
    fn check_data(&self, refs: &[(usize, BlockRef)]) -> Result<Vec<Bad>> {
        /// Blocks a thread reads at once.
        const AT_ONCE: usize = 512;
        // The first reference that no thread has taken; all threads add to it.
        let next = AtomicUsize::new(0);
        let work = || -> Vec<Bad> {
            let mut bad = Vec::new();
            let mut buf = vec![Block([0; BLOCK_SIZE]); refs.len().min(AT_ONCE)];
            loop {
                // Relaxed: only hands out work.
                let at = next.fetch_add(AT_ONCE, Ordering::Relaxed).min(refs.len());
                let some = &refs[at..refs.len().min(at + AT_ONCE)];
                debug_assert!(some.len() <= buf.len(), "{} blocks are read into {}", some.len(), buf.len());
                if some.is_empty() {
                    return bad;
                }
                let read = |refs: &[(usize, BlockRef)], to: &mut [Block]| {
                    self.engine.log.io.read_scattered(
                        refs.iter().map(|r| r.1.addr),
                        to,
                        "recovery's check of file data",
                    )
                };
                let all = read(some, &mut buf[..some.len()]);
                for (i, r) in some.iter().enumerate() {
                    let one = std::slice::from_ref(r);
                    let mut again = || read(one, &mut buf[i..=i]);
                    let now = if all.is_ok() { Ok(()) } else { again().or_else(|_| again()) };
                    match now {
                        Err(e) => bad.push((r.0, Some(e))),
                        Ok(()) if checksum::matches(r.1, &buf[i].0) => {}
                        // What was read wrong once did arrive. What can be read only sometimes may
                        // have.
                        Ok(()) => match read(one, &mut buf[i..=i]) {
                            Ok(()) if checksum::matches(r.1, &buf[i].0) => {}
                            again => bad.push((r.0, again.err())),
                        },
                    }
                }
            }
        };
        let most = match self.engine.log.threads {
            // Twice the processors: some wait for the device while others compute.
            0 => (2 * parallel::processors()).min(16),
            n => n,
        };
        let threads = refs.len().div_ceil(AT_ONCE).min(most);
        if threads < 2 {
            return Ok(work());
        }
        std::thread::scope(|s| {
            // As many as can be had, and this one if none can.
            let all: Vec<_> = {
                let _blocked = SignalsBlocked::new();
                (0..threads).filter_map(|_| Builder::new().spawn_scoped(s, work).ok()).collect()
            };
            let mut bad = if all.is_empty() { work() } else { Vec::new() };
            for t in all {
                let found = t.join().map_err(|_| StoreError::Invalid("a checking thread panicked".into()))?;
                bad.extend(found);
            }
            Ok(bad)
        })
    }
}
