//! Writing to a sparse image whose host has little space left, without holding up anybody.
//!
//! 1. Each round of a writeback asks the store whether the hosts have space for it, before it
//!    captures anything ([`admit`]). Where they have not, the writeback ends with
//!    [`HOST_PENDING`]: all is dirty as before, no error is recorded, and whoever called it passes
//!    that on and lets go of its locks, its pin of the collector, and the seal that it has
//!    announced.
//! 2. Who was asked for durable content waits where it holds nothing of that
//!    ([`when_there_is_space`]), and begins anew. So meanwhile the file can be cut, removed and
//!    replaced; epochs are sealed, among them those by which removals give space to the host; and
//!    the collector goes on, for which removed files wait. A thread that serves a mount has a
//!    bounded patience, since its caller holds locks of the kernel: behind it the call fails with
//!    ENOSPC, which is recorded nowhere, and the next one may succeed.
//! 3. Background threads do not wait ([`put_off`]). What is dirty stays so; while the host is short
//!    a round writes nothing back, but looks whether there is space again, and then goes on.
//! 4. What a seal waits for (`persist::replaced`) uses some of what is kept for that time
//!    (`admission` of the store, 4). If it does not fit the seal is put off, and the list of these
//!    files stays as it was.
//! 5. A request that the host refused all the same waits in the store, with the locks of the round
//!    that it is of, those of up to 128 files where these go together: see `admission` of the
//!    store, 5.

use super::Persist;
use crate::core::host::{HOST_PENDING, HostWait, is_host_pending};
use crate::error::Result;
use crate::memfs::data::FileData;
use lanefs_store::Admitted;

/// Pages that may have become dirty unseen since they were counted: those of lanes' stamps.
pub(super) const UNSEEN: usize = 8;

/// Asks for space for the next round of a writeback, `durable` or not: `most` pages of a file from
/// page `from` on, or attributes alone. The round may capture as many pages as the answer has,
/// while that lives. `in_seal`: a seal waits for it.
pub(super) fn admit<'p>(
    persist: &'p Persist,
    data: Option<&FileData>,
    (durable, in_seal): (bool, bool),
    (from, most): (u64, usize),
) -> Result<Admitted<'p>> {
    debug_assert!(!in_seal || durable, "a seal waits for what is durable");
    let pages = match data {
        _ if !persist.store.counts_admissions() => most,
        Some(data) if most > 0 => {
            // All that a seal waits for has to fit.
            let most = if in_seal { usize::MAX } else { most };
            (data.dirty_pages_from(from, most) + UNSEEN).min(most)
        }
        _ if durable => 1,
        // Attributes that nobody waits for are written by checkpoints.
        _ => return Ok(Admitted::freely(most as u64)),
    };
    persist.store.admit(pages as u64, in_seal).ok_or(HOST_PENDING)
}

/// Does `f`, which ends with [`HOST_PENDING`] where it would have to wait for a host, until it ends
/// otherwise. The caller holds no lock.
pub(crate) fn when_there_is_space<T>(persist: &Persist, f: impl FnMut() -> Result<T>) -> Result<T> {
    again_and_again(persist, HostWait::default(), f)
}

/// Does the same, however long it takes.
pub(super) fn however_long<T>(persist: &Persist, f: impl FnMut() -> Result<T>) -> Result<T> {
    again_and_again(persist, HostWait::for_ever(), f)
}

fn again_and_again<T>(persist: &Persist, mut wait: HostWait, mut f: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match f() {
            Err(e) if is_host_pending(&e) => wait.wait(persist)?,
            done => return done,
        }
    }
}

/// Returns the result of what is done unasked: where a host has no space it is done later, by a
/// round to come, and that is no error (3). `None`: it was put off.
pub(super) fn put_off<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(e) if is_host_pending(&e) => Ok(None),
        done => done.map(Some),
    }
}
