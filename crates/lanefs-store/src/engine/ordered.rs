//! Lists that several threads have made a part of each, in an order that moves none of what is in
//! them: changes and new inodes are a hundred bytes, and a fold may have millions of them.
//!
//! Items lie in blocks, so that a list grows without being copied, and without anybody counting
//! before what it will hold.

use lanefs_sync::prefetch;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of an item has its block in the bits from this one on.
const BLOCK: u32 = if cfg!(test) { 2 } else { 12 };
/// The most items of a block.
const ITEMS: usize = 1 << BLOCK;
/// The most blocks.
const BLOCKS_MAX: u32 = 1 << (u32::BITS - BLOCK);
/// Items that are asked for before they are looked at.
const AHEAD: usize = 12;

/// A list of blocks of items, and the order in which it is gone through.
#[derive(Debug)]
pub struct Ordered<T> {
    blocks: Vec<Vec<T>>,
    order: Vec<u32>,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Ordered { blocks: Vec::new(), order: Vec::new() }
    }
}

/// Gives out the numbers of the blocks of a list to the threads that make it.
#[derive(Default)]
pub(crate) struct BlockNumbers {
    /// The next one. Added to for thousands of items at a time. Relaxed: it only hands out numbers.
    next: AtomicU32,
}

impl BlockNumbers {
    /// Returns whether all items of the list have numbers.
    pub fn suffice(&self) -> bool {
        self.next.load(Relaxed) <= BLOCKS_MAX
    }
}

/// What one thread adds to a list.
pub(crate) struct Part<'n, T> {
    numbers: &'n BlockNumbers,
    /// With their numbers, which ascend. None is empty.
    blocks: Vec<(u32, Vec<T>)>,
    /// So many items are expected.
    expected: usize,
}

impl<'n, T> Part<'n, T> {
    pub fn new(numbers: &'n BlockNumbers, expected: usize) -> Part<'n, T> {
        debug_assert!(numbers.suffice(), "a list without end");
        Part { numbers, blocks: Vec::new(), expected }
    }

    /// Adds an item.
    pub fn push(&mut self, item: T) {
        match self.blocks.last_mut().filter(|b| b.1.len() < ITEMS) {
            Some(b) => b.1.push(item),
            None => {
                let number = self.numbers.next.fetch_add(1, Relaxed);
                let first = self.blocks.is_empty();
                let mut items = Vec::with_capacity(if first { self.expected.clamp(1, ITEMS) } else { ITEMS });
                items.push(item);
                debug_assert!(self.blocks.last().is_none_or(|b| b.0 < number), "block {number} is another's");
                self.blocks.push((number, items));
            }
        }
    }

    /// Returns the last item.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.blocks.last_mut().and_then(|b| b.1.last_mut())
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|b| b.1.len()).sum()
    }

    /// Goes through the items as they came, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = |(number, items): &'_ (u32, Vec<T>)| -> std::ops::Range<u32> {
            let first = number.wrapping_shl(BLOCK);
            first..first.wrapping_add(items.len() as u32)
        };
        self.blocks.iter().flat_map(move |b| numbered(b).zip(&b.1))
    }
}

impl<T> Ordered<T> {
    /// Makes a list of its parts, without an order.
    pub(crate) fn new(parts: Vec<Part<'_, T>>) -> Ordered<T> {
        let mut blocks: Vec<(u32, Vec<T>)> = parts.into_iter().flat_map(|p| p.blocks).collect();
        blocks.sort_unstable_by_key(|b| b.0);
        debug_assert!((0..).zip(&blocks).all(|(n, b)| n == b.0), "a block is missing, or there twice");
        Ordered { blocks: blocks.into_iter().map(|b| b.1).collect(), order: Vec::new() }
    }

    /// Says which items, by their numbers, it goes through from now on, and in which order.
    pub(crate) fn arrange(&mut self, order: Vec<u32>) {
        debug_assert!(order.len() <= self.blocks.iter().map(Vec::len).sum(), "an item comes twice");
        self.order = order;
    }

    /// Returns the item of a number.
    pub(crate) fn item(&self, number: u32) -> &T {
        debug_assert!(((number >> BLOCK) as usize) < self.blocks.len(), "number {number:#x} of another list");
        &self.blocks[(number >> BLOCK) as usize][number as usize & (ITEMS - 1)]
    }

    pub(crate) fn item_mut(&mut self, number: u32) -> &mut T {
        &mut self.blocks[(number >> BLOCK) as usize][number as usize & (ITEMS - 1)]
    }

    /// Returns the number of items that it goes through.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns whether it goes through none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the item at a place in its order.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.order.get(at).map(|n| self.item(*n))
    }

    /// Returns all items, in order.
    pub fn all(&self) -> Run<'_, T> {
        Run { list: self, order: &self.order }
    }

    /// Goes through all items.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.all().iter()
    }
}

/// Some items of a list that follow each other.
#[derive(Debug)]
pub struct Run<'p, T> {
    list: &'p Ordered<T>,
    order: &'p [u32],
}

// Not derived: `T` need not be.
impl<T> Clone for Run<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Run<'_, T> {}

impl<'p, T> Run<'p, T> {
    /// Returns those of a range of places.
    pub fn range(self, range: std::ops::Range<usize>) -> Run<'p, T> {
        debug_assert!(range.end <= self.order.len(), "{range:?} of {} items", self.order.len());
        Run { list: self.list, order: &self.order[range] }
    }

    /// Returns the number of items.
    pub fn len(self) -> usize {
        self.order.len()
    }

    /// Returns the item at a place.
    pub fn get(self, at: usize) -> Option<&'p T> {
        debug_assert!(at < self.order.len(), "item {at} of {}", self.order.len());
        self.order.get(at).map(|n| self.list.item(*n))
    }

    /// Returns the first item.
    pub fn first(self) -> Option<&'p T> {
        self.order.first().map(|n| self.list.item(*n))
    }

    /// Goes through the items.
    pub fn iter(self) -> impl Iterator<Item = &'p T> + Clone {
        self.order.iter().enumerate().map(move |(at, n)| {
            if let Some(next) = self.order.get(at + AHEAD) {
                prefetch(self.list.item(*next));
            }
            self.list.item(*n)
        })
    }

    /// Does the same, and asks for the memory that an item refers to before the item's turn.
    pub fn iter_with<M: ?Sized + 'p>(
        self,
        memory: impl Fn(&'p T) -> &'p M + Clone,
    ) -> impl Iterator<Item = &'p T> + Clone {
        self.order.iter().enumerate().map(move |(at, n)| {
            if let Some(next) = self.order.get(at + 2 * AHEAD) {
                prefetch(self.list.item(*next));
            }
            if let Some(next) = self.order.get(at + AHEAD) {
                prefetch(memory(self.list.item(*next)));
            }
            self.list.item(*n)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_the_order_that_was_said() {
        let numbers = BlockNumbers::default();
        let mut parts = [3, 0, 50].map(|expected| Part::new(&numbers, expected));
        // Two of them grow by turns.
        for n in 0..50 {
            parts[2].push(10 + n);
            if n < 3 {
                parts[0].push(1 + n);
            }
        }
        assert_eq!(parts.each_mut().map(|p| p.last_mut().copied()), [Some(3), None, Some(59)]);
        assert_eq!(parts.each_ref().map(Part::len), [3, 0, 50]);
        let [few, none, many] = &parts;
        let [few, many] = [few, many].map(|p| p.iter().map(|i| i.0).collect::<Vec<_>>());
        assert_eq!((none.iter().count(), many.len()), (0, 50));
        let mut list = Ordered::new(parts.into_iter().collect());
        assert!(list.is_empty() && list.all().first().is_none());
        list.arrange(vec![many[1], few[2], many[0], few[0]]);
        *list.item_mut(few[2]) = 4;
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), [11, 4, 10, 1]);
        let run = list.all().range(1..3);
        assert_eq!((run.len(), run.first()), (2, Some(&4)));
        assert_eq!(run.iter_with(|n| n).copied().collect::<Vec<_>>(), [4, 10]);
        list.arrange(many.into_iter().rev().collect());
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), (10..60).rev().collect::<Vec<_>>());
    }
}
