//! Freeing space: what was removed counts as free only once a checkpoint has folded that.

use super::{Persist, checkpoint, commit, reaper};
use crate::error::Result;
use std::time::{Duration, Instant};

/// Blocks that are worth a checkpoint when somebody asks how much is free: 1 MiB.
const WORTH: u64 = 256;

/// Makes what was deleted count as free, on a full volume. Returns false if there is no space even
/// then; true also if something was given back and is gone again already: others take space
/// while this thread frees it. The caller holds no lock and is not pinned: the grace of what
/// was just deleted is waited for.
#[cold]
pub(crate) fn free_space(persist: &Persist) -> bool {
    let Ok(reaped) = reaper::reap(persist, true) else { return false };
    // Where most of what is promised was for files that lived for a moment a commit gives it
    // back.
    if reaped > 0
        && commit::seal_and_commit(persist).is_ok()
        && reaper::release_cancelled(persist) * persist.store.metadata_copies()
            > persist.store.space().reserved
    {
        return true;
    }
    let Ok(given_back) = checkpoint::checkpoint(persist) else { return false };
    reaped > 0 || given_back > 0 || persist.store.space().free > 0
}

/// Frees what was removed, for a caller that asks how much is free: else its blocks are in use
/// until the next checkpoint, half a minute perhaps. So that whoever asks all the time does not
/// hold up others, one tenth of the time goes into this at most.
pub(crate) fn free_removed(persist: &Persist) -> Result<()> {
    if persist.writable().is_err() || persist.store.is_host_short() {
        return Ok(());
    }
    reaper::reap_for_checkpoint(persist)?;
    if persist.reaper.lock().keeps_open() {
        // A front end may be about to learn that nobody knows them any more.
        lanefs_sync::schedule::sleep(Duration::from_millis(4));
        reaper::reap_for_checkpoint(persist)?;
    }
    let due = {
        let r = persist.reaper.lock();
        r.blocks() >= WORTH && r.asked.is_none_or(|(at, took)| at.elapsed() >= took * 9)
    };
    if due {
        let began = Instant::now();
        checkpoint::checkpoint(persist)?;
        persist.reaper.lock().asked = Some((Instant::now(), began.elapsed()));
    }
    Ok(())
}
