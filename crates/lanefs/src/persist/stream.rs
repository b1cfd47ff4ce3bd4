//! Writing back a file of which much is dirty: one thread captures while two others hand over what
//! it captured.
//!
//! A round of `capture.rs` copies pages, then has the store give them places and checksums, then
//! waits for the device, one after the other; the device rests for more than half of that. Here the
//! pages go in pieces, once over the file, and each piece takes these steps while others are in
//! other steps. The round that follows, always, captures what changed meanwhile; if the write is
//! durable, that round makes it so.
//!
//! 1. All pieces of a stretch carry the attributes of one moment, and the store takes them in their
//!    order, each in its turn ([`Turns`]): the size grows with the pages that are there (SEMANTICS
//!    F9). Their pages go to the device side by side. Behind a piece that the store did not take it
//!    takes none.
//!    A file that was cut between two stretches is gone over anew ([`Pass`]).
//! 2. No mark of the inode is taken here: the round that follows takes them, and captures all that
//!    they stand for (O15).
//! 3. The inode's writeback lock is held over a stretch, from the attributes until its last piece
//!    is finished: nobody cuts the file meanwhile, and no page is in two pieces. A page that is
//!    written again meanwhile stays dirty.
//! 4. No piece is durable by itself: a checkpoint may find any of them with the store or not, as
//!    with the rounds.
//!
//! The helpers live as long as the call, and take nothing but what they are handed. Without threads
//! of the background (tests, simulation) there are none, and rounds do it all.

use super::host;
use super::piece::{self, MAX_PAGES, Pass, Writing};
use crate::error::{Error, Result, posix};
use crate::memfs::Inode;
use crate::memfs::data::{FileData, Taken};
use crate::memfs::inode::{SYNCING, XATTR_DIRTY};
use crate::persist::Persist;
use lanefs_store::{Admitted, Transaction};
use lanefs_sync::SignalsBlocked;
use lanefs_sync::lock::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Pages of a piece.
const PIECE: usize = MAX_PAGES / 4;
/// Pieces of a stretch: who waits for the writeback lock waits for so many.
const STRETCH: usize = 32;
/// Threads that submit.
const HELPERS: usize = 2;
/// Fewer dirty pages are left to the rounds.
pub(super) const LEAST: usize = 3 * PIECE;

const _: () = assert!(PIECE > 0 && MAX_PAGES.is_multiple_of(PIECE), "a round is so many pieces");
const _: () = assert!(LEAST > HELPERS * PIECE, "there is something to capture while all helpers write");
const _: () = assert!(STRETCH > HELPERS, "helpers are handed the next piece before a stretch ends");

/// The order in which the store takes the pieces of a stretch.
#[derive(Default)]
struct Turns {
    /// The piece whose turn it is; `None` once one was not taken.
    next: Mutex<Option<usize>>,
    moved: Condvar,
}

impl Turns {
    /// Lets the first piece of a stretch begin.
    fn restart(&self) {
        *self.next.lock() = Some(0);
    }

    /// Waits for the turn of a piece; false if one before it was not taken.
    fn wait_for(&self, piece: usize) -> bool {
        let mut next = self.next.lock();
        loop {
            match *next {
                Some(n) if n < piece => self.moved.wait(&mut next),
                Some(n) => {
                    debug_assert_eq!(n, piece, "a piece was taken twice");
                    return true;
                }
                None => return false,
            }
        }
    }

    /// Ends the turn of a piece: the next one's comes if it was `taken`.
    fn end(&self, piece: usize, taken: bool) {
        let mut next = self.next.lock();
        debug_assert!(next.is_none_or(|n| n == piece), "it was the turn of another piece");
        *next = next.filter(|_| taken).map(|n| n + 1);
        self.moved.notify_all();
    }
}

/// The turn of a piece, which ends in any case.
struct Turn<'a> {
    turns: &'a Turns,
    piece: Option<usize>,
}

impl Turn<'_> {
    fn end(&mut self, taken: bool) {
        if let Some(piece) = self.piece.take() {
            self.turns.end(piece, taken);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// A thread that submits what it is sent, in turn.
struct Helper {
    /// Pieces with their places in the stretch.
    jobs: Sender<(usize, Transaction)>,
    answers: Receiver<Result<()>>,
}

/// A piece under way.
struct Piece<'a> {
    helper: usize,
    pages: Taken,
    /// It is under way to a host.
    _admitted: Admitted<'a>,
}

/// Returns whether so much of the file is dirty that helpers are worth it, for a caller that may
/// write `max` pages.
pub(super) fn is_worth_streaming(persist: &Persist, data: &FileData, max: usize) -> bool {
    // Where segments are small, many pages at a time would need many free ones; and where a host
    // has no plenty of space few pages may be under way.
    persist.options.background
        && !persist.store.counts_admissions()
        && max >= LEAST
        && persist.round_pages == MAX_PAGES
        && data.size() >= (LEAST * lanefs_format::BLOCK_SIZE) as u64
        && data.has_dirty_pages(LEAST)
}

/// Hands over up to `max` dirty pages, not durably, for a caller that holds the inode's
/// sync_lock and has noted that the inode is under way; returns how many the store has.
/// `data_only`: of the attributes the size alone.
pub(super) fn stream_out(
    persist: &Persist,
    inode: &Inode,
    data: &FileData,
    data_only: bool,
    max: usize,
) -> Result<usize> {
    debug_assert!(max >= LEAST, "{max} pages are not worth helpers");
    debug_assert!(inode.has(SYNCING), "the writeback of inode {} has not begun", inode.ino);
    let turns = Turns::default();
    std::thread::scope(|s| {
        let turns = &turns;
        let mut helpers = Vec::with_capacity(HELPERS);
        let blocked = SignalsBlocked::new();
        for _ in 0..HELPERS {
            let (jobs, sent) = channel::<(usize, Transaction)>();
            let (answer, answers) = channel();
            let work = move || {
                for (n, t) in sent {
                    if answer.send(submit_in_turn(persist, turns, n, t)).is_err() {
                        return;
                    }
                }
            };
            let name = std::thread::Builder::new().name("lanefs-stream".into());
            if name.spawn_scoped(s, work).is_ok() {
                helpers.push(Helper { jobs, answers });
            }
        }
        drop(blocked);
        let (mut written, mut from, mut pass) = (0, Some(0), Pass::default());
        while let Some(at) = from
            && !helpers.is_empty()
            && written < max
        {
            let pieces = (max - written).div_ceil(PIECE).min(STRETCH);
            let n;
            turns.restart();
            pass.from = at;
            (n, from) = stretch(persist, inode, data, data_only, &mut pass, pieces, &helpers)?;
            debug_assert!(
                from.is_none_or(|next| next > pass.from),
                "a stretch from page {} on made no headway",
                pass.from
            );
            debug_assert!(n <= pieces * PIECE, "{n} pages in {pieces} pieces");
            written += n;
        }
        Ok(written)
    })
}

/// Submits piece `n` of a stretch when the store has all before it.
fn submit_in_turn(persist: &Persist, turns: &Turns, n: usize, t: Transaction) -> Result<()> {
    if !turns.wait_for(n) {
        // The caller has that one's error, and tells no other.
        return posix(libc::ECANCELED);
    }
    let mut turn = Turn { turns, piece: Some(n) };
    let r = piece::submit_and(persist, t, || turn.end(true));
    debug_assert!(r.is_err() || turn.piece.is_none(), "the store took a piece without a word");
    r
}

/// Hands over up to `pieces` pieces from where `pass` is on; returns the pages of which the store
/// has them, and where to go on, if anything is left.
fn stretch(
    persist: &Persist,
    inode: &Inode,
    data: &FileData,
    data_only: bool,
    pass: &mut Pass,
    pieces: usize,
    helpers: &[Helper],
) -> Result<(usize, Option<u64>)> {
    debug_assert!((1..=STRETCH).contains(&pieces), "{pieces} pieces in a stretch");
    debug_assert!(!helpers.is_empty(), "nobody hands over what is captured");
    let file = Writing::begin(persist, inode, data, data_only);
    pass.look_for_cuts(&file);
    let mut from = pass.from;
    // An inode that the store gets for the first time has its extended attributes with its
    // first pages.
    let mut xattrs =
        (!file.was_stored && inode.has(XATTR_DIRTY)).then(|| piece::encoded_xattrs(inode)).flatten();
    let (mut written, mut failed) = (0, None::<Error>);
    let mut under_way = VecDeque::with_capacity(helpers.len());
    let mut finish = |p: Piece<'_>| {
        let r = helpers[p.helper].answers.recv().unwrap_or_else(|_| posix(libc::EIO));
        let pages = p.pages.count();
        file.finish(p.pages, r.is_ok());
        match r {
            Ok(()) => written += pages,
            Err(e) => failed = failed.take().or(Some(e)),
        }
        failed.is_none()
    };
    let (mut skipped, mut pending) = (0, None);
    let mut more = true;
    for n in 0..pieces {
        let captured = host::admit(persist, Some(data), (false, false), (from, PIECE))
            .and_then(|admitted| Ok((file.capture(PIECE.min(admitted.pages()), from)?, admitted)));
        let (captured, admitted) = match captured {
            Ok(captured) => captured,
            Err(e) => {
                pending = Some(e);
                break;
            }
        };
        (more, skipped) = (captured.more, skipped + captured.skipped);
        let (first, last) = (captured.taken.numbers().next(), captured.taken.numbers().next_back());
        let Some(last) = last else {
            more = false;
            break;
        };
        debug_assert!(first.is_some_and(|first| first >= from), "page {first:?} is in two pieces");
        from = last + 1;
        let (update, pages) = file.update(xattrs.take(), captured);
        let t = Transaction {
            lane: persist.journal.lanes.mine(),
            durable: false,
            groups: Vec::new(),
            inodes: vec![update],
            folds: true,
        };
        let helper = n % helpers.len();
        // A helper that is gone answers nothing either: `finish` takes that for an error.
        let _ = helpers[helper].jobs.send((n, t));
        under_way.push_back(Piece { helper, pages, _admitted: admitted });
        debug_assert!(under_way.len() <= helpers.len() + 1, "a helper has more than two pieces");
        if under_way.len() > helpers.len()
            && let Some(p) = under_way.pop_front()
            && !finish(p)
        {
            break;
        }
        if !more || skipped > 0 {
            break;
        }
    }
    while let Some(p) = under_way.pop_front() {
        finish(p);
    }
    // What was handed over is older than the change of rights: see `ops::rights`, 2.
    match failed.or(pending) {
        Some(e) => {
            if written == 0 {
                file.failed();
            }
            Err(e)
        }
        // What was left out is for the round that follows, as all that changed meanwhile.
        None => Ok((written, (more && skipped == 0).then_some(from))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Turn, Turns};
    use lanefs_sync::lock::Mutex;

    #[test]
    fn pieces_begin_in_their_order_and_none_behind_one_that_failed() {
        let (turns, began) = (Turns::default(), Mutex::new(Vec::new()));
        turns.restart();
        std::thread::scope(|s| {
            for helper in 0..3 {
                let (turns, began) = (&turns, &began);
                s.spawn(move || {
                    for piece in (helper..30).step_by(3) {
                        if turns.wait_for(piece) {
                            let mut turn = Turn { turns, piece: Some(piece) };
                            began.lock().push(piece);
                            // The others end as a piece does that the store does not take.
                            if piece < 20 {
                                turn.end(true);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(*began.lock(), (0..=20).collect::<Vec<_>>());
    }
}
