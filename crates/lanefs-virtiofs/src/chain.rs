//! A chain of descriptors: pieces of the guest's memory, first those that hold the request, then
//! those that take the answer.
//!
//! The guest may write anything into them at any time. So the descriptors are read once, all that
//! they name is checked to lie in memory before the request is served, and the request is copied
//! out before anybody looks at it. A loop ends where the queue's size says that no chain is longer.

use std::ops::Deref;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

/// A piece of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: GuestAddress,
    len: usize,
}

/// The pieces of one chain; kept by a thread from one to the next.
#[derive(Default)]
pub(crate) struct Chain {
    request: Vec<Piece>,
    answer: Vec<Piece>,
}

/// Returns the bytes of pieces.
fn total(pieces: &[Piece]) -> usize {
    // A chain of more than 2^32 bytes ends before its end.
    pieces.iter().fold(0, |n, p| n.saturating_add(p.len))
}

impl Chain {
    /// Reads the descriptors. False if the chain is not what the standard allows: a piece outside
    /// of memory, or a piece of the request behind one of the answer.
    pub fn read<M>(&mut self, chain: DescriptorChain<M>) -> bool
    where
        M: Deref + Clone,
        M::Target: GuestMemory + Sized,
    {
        self.request.clear();
        self.answer.clear();
        let memory = chain.memory();
        for descriptor in chain.clone() {
            let piece = Piece { at: descriptor.addr(), len: descriptor.len() as usize };
            let (is_answer, access) = match descriptor.is_write_only() {
                true => (true, Permissions::Write),
                false => (false, Permissions::Read),
            };
            if piece.len == 0 {
                continue;
            }
            if !memory.check_range(piece.at, piece.len, access) || !is_answer && !self.answer.is_empty() {
                return false;
            }
            if is_answer { &mut self.answer } else { &mut self.request }.push(piece);
        }
        debug_assert!(self.request.iter().chain(&self.answer).all(|p| p.len > 0));
        true
    }

    /// Returns the bytes that the answer may have.
    pub fn capacity(&self) -> usize {
        total(&self.answer)
    }

    /// Copies the request out. `None` if it is longer than `into`, or its memory is gone.
    pub fn copy_request<'b>(&self, memory: &impl GuestMemory, into: &'b mut [u8]) -> Option<&'b [u8]> {
        let into = into.get_mut(..total(&self.request))?;
        let mut at = 0;
        for piece in &self.request {
            debug_assert!(at + piece.len <= into.len(), "the pieces are as long as they were");
            memory.read_slice(&mut into[at..at + piece.len], piece.at).ok()?;
            at += piece.len;
        }
        debug_assert_eq!(at, into.len());
        Some(into)
    }

    /// Copies an answer in, and returns how many bytes of it the guest gets.
    pub fn copy_answer(&self, memory: &impl GuestMemory, answer: &[u8]) -> usize {
        debug_assert!(answer.len() <= self.capacity(), "more than fits");
        let mut rest = answer;
        for piece in &self.answer {
            let (now, later) = rest.split_at(piece.len.min(rest.len()));
            if now.is_empty() || memory.write_slice(now, piece.at).is_err() {
                break;
            }
            rest = later;
        }
        answer.len() - rest.len()
    }
}
