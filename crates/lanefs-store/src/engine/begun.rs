//! Steps C and D of a transaction (transaction.rs), and of an epoch that goes with it (commit.rs):
//! what has its places is written and flushed.

use crate::error::{Result, StoreError};
use crate::inodes::cache::CachedInode;
use crate::log::Log;
use crate::log::io::Write;
use crate::log::message::{Encoded, Placed};
use crate::log::section::Flight;
use crate::page_image::PageImage;
use lanefs_format::BlockRef;
use std::sync::Arc;

/// Writes that are put in the order of their places, so that neighbours follow each other.
const FEW: usize = 32;

/// A transaction or an epoch, or both, with its places, to be written: steps C and D are left.
#[must_use = "what was begun has to be written"]
pub(crate) struct Begun<'s> {
    pub log: &'s Log,
    /// The caller waits for a flush.
    pub durable: bool,
    pub tickets: Vec<(Arc<CachedInode>, u64)>,
    pub writes: Vec<(BlockRef, PageImage)>,
    pub placed: Vec<Placed>,
    /// The shares of an epoch. They count as durable when it is published, not before.
    pub shares: Vec<Placed>,
    pub no_space: Option<StoreError>,
    pub flight: Flight<'s>,
}

impl Begun<'_> {
    /// Does steps C and D. Returns the results of the transaction and of the epoch: the last place
    /// of each of its shares in their mlogs.
    pub fn finish(self) -> (Result<()>, Result<Vec<(usize, u64)>>) {
        let Begun { log, durable, tickets, writes, placed, shares, no_space, flight } = self;
        debug_assert!(
            no_space.is_none() || placed.is_empty(),
            "a transaction that found no space has a place"
        );
        debug_assert!(placed.iter().chain(&shares).all(|p| !p.places.is_empty()), "a message lies nowhere");
        debug_assert!(writes.iter().all(|(r, _)| !r.is_none()), "a page lies nowhere");
        let encoded = log.encode_all(placed.iter().chain(&shares));
        let mut reqs: Vec<Write<'_>> = writes
            .iter()
            .map(|(r, b)| Write { addr: r.addr, data: &b.0 })
            .chain(encoded.iter().flat_map(Encoded::writes))
            .collect();
        if reqs.len() <= FEW {
            // What lies beside each other is one request in this order (`beside`).
            reqs.sort_unstable_by_key(|w| w.addr.0);
        }
        let written = log.io.write(&reqs);
        drop(reqs);
        // Their frames may be written again, whatever a flush takes.
        drop(writes);
        log.keep_blocks(encoded);
        log.links_answered(&placed);
        log.links_answered(&shares);
        tickets.iter().for_each(|(c, t)| c.written(*t));
        drop(flight);
        let durable = durable && no_space.is_none();
        let flushed = match written {
            Ok(_) if !durable && shares.is_empty() => Ok(()),
            Ok(mask) => {
                if durable {
                    tickets.iter().for_each(|(c, t)| c.wait_written(*t));
                }
                log.flush_placed(&placed, &shares, mask)
            }
            Err(e) => Err(e),
        };
        tickets.iter().for_each(|(c, t)| c.committed(*t));
        let mut result = flushed.clone();
        if durable && result.is_ok() {
            tickets.iter().for_each(|(c, t)| c.wait_committed(*t));
            result = log.io.check();
        }
        let places = || shares.iter().map(|p| (p.mlog, p.last_place())).collect();
        (result.and(no_space.map_or(Ok(()), Err)), flushed.map(|()| places()))
    }
}
