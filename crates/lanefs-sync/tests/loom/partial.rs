use crate::explore;
use lanefs_sync::partial::{self, COMPLETE, Look};
use loom::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use loom::thread;
use std::sync::Arc;

/// A chain of two members that exist all along: a bit for each that is in memory.
struct Chain {
    seq: AtomicU32,
    flags: AtomicU8,
    members: AtomicU32,
}

const BOTH: u32 = 3;

impl Chain {
    fn new(in_memory: bool) -> Chain {
        Chain {
            seq: AtomicU32::new(0),
            flags: AtomicU8::new(if in_memory { COMPLETE } else { 0 }),
            members: AtomicU32::new(if in_memory { BOTH } else { 0 }),
        }
    }

    /// Adds one member after the other, as a loader does.
    fn load(&self) {
        self.members.store(1, Ordering::Release);
        self.members.store(BOTH, Ordering::Release);
        partial::set_complete(&self.flags, true);
    }

    fn evict(&self) {
        let before = self.seq.load(Ordering::Relaxed);
        partial::begin_taking(&self.seq);
        partial::set_complete(&self.flags, false);
        self.members.store(0, Ordering::Release);
        partial::end_taking(&self.seq, before + 2);
    }
}

/// Looks for the second member; `None` if the reader must look again.
fn find(chain: &Chain) -> Option<bool> {
    let look = Look::begin(&chain.seq, &chain.flags)?;
    let found = chain.members.load(Ordering::Acquire) & 2 != 0;
    match found {
        true => Some(true),
        false => (look.holds(&chain.seq) && look.is_complete()).then_some(false),
    }
}

/// The mistake that was shipped once: the chain before the mark.
fn find_chain_first(chain: &Chain) -> Option<bool> {
    let before = chain.seq.load(Ordering::Acquire);
    let found = chain.members.load(Ordering::Acquire) & 2 != 0;
    let complete = chain.flags.load(Ordering::Acquire) & COMPLETE != 0;
    loom::sync::atomic::fence(Ordering::Acquire);
    let holds = before & 1 == 0 && chain.seq.load(Ordering::Relaxed) == before;
    match found {
        true => Some(true),
        false => (holds && complete).then_some(false),
    }
}

/// A second mistake: the mark is taken off and the members removed with the sequence left even.
fn evict_in_silence(chain: &Chain) {
    partial::set_complete(&chain.flags, false);
    chain.members.store(0, Ordering::Release);
}

fn a_member_that_exists_is_never_absent(
    in_memory: bool,
    find: fn(&Chain) -> Option<bool>,
    evict: fn(&Chain),
) {
    explore(4, move || {
        let chain = Arc::new(Chain::new(in_memory));
        let writer = {
            let chain = chain.clone();
            // One thread, for writers hold the chain's lock.
            thread::spawn(move || {
                if in_memory {
                    evict(&chain);
                }
                chain.load();
            })
        };
        for _ in 0..2 {
            assert_ne!(find(&chain), Some(false), "a member that exists was taken for absent");
        }
        writer.join().unwrap();
        assert_eq!(find(&chain), Some(true));
    });
}

#[test]
fn no_member_is_absent_while_its_chain_is_loaded() {
    a_member_that_exists_is_never_absent(false, find, Chain::evict);
}

#[test]
fn no_member_is_absent_while_its_chain_is_evicted_and_loaded_again() {
    a_member_that_exists_is_never_absent(true, find, Chain::evict);
}

#[test]
#[should_panic(expected = "taken for absent")]
fn looking_at_the_chain_before_the_mark_is_caught() {
    a_member_that_exists_is_never_absent(false, find_chain_first, Chain::evict);
}

#[test]
#[should_panic(expected = "taken for absent")]
fn an_eviction_that_leaves_the_sequence_is_caught() {
    a_member_that_exists_is_never_absent(true, find, evict_in_silence);
}
