//! Lists that several threads have made a part of each, in an order that moves none of what is in
//! them: changes and new inodes are a hundred bytes, and a fold may have millions of them.

use lanefs_sync::prefetch;

/// The number of an item has its part in the bits from this one on.
const PART: u32 = 28;
/// The most parts.
pub(crate) const PARTS_MAX: usize = 1 << (u32::BITS - PART);
/// The most items of a part.
pub(crate) const PART_MAX: usize = 1 << PART;
/// Items that are asked for before they are looked at.
const AHEAD: usize = 12;

/// A list of parts, and the order in which it is gone through.
#[derive(Debug)]
pub struct Ordered<T> {
    parts: Vec<Vec<T>>,
    order: Vec<u32>,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Ordered { parts: Vec::new(), order: Vec::new() }
    }
}

/// Returns the number of the item at this place of this part.
pub(crate) fn number(part: usize, at: usize) -> u32 {
    debug_assert!(part < PARTS_MAX && at < PART_MAX, "item {at} of part {part} has no number");
    ((part << PART) | at) as u32
}

impl<T> Ordered<T> {
    /// Makes a list of parts, without an order.
    pub(crate) fn new(parts: Vec<Vec<T>>) -> Ordered<T> {
        debug_assert!(parts.len() <= PARTS_MAX, "{} parts", parts.len());
        debug_assert!(parts.iter().all(|p| p.len() <= PART_MAX), "a part is too long");
        Ordered { parts, order: Vec::new() }
    }

    /// Says which items, by their numbers, it goes through from now on, and in which order.
    pub(crate) fn arrange(&mut self, order: Vec<u32>) {
        debug_assert!(order.len() <= self.parts.iter().map(Vec::len).sum(), "an item comes twice");
        self.order = order;
    }

    /// Returns the item of a number.
    pub(crate) fn item(&self, number: u32) -> &T {
        debug_assert!(((number >> PART) as usize) < self.parts.len(), "number {number:#x} of another list");
        &self.parts[(number >> PART) as usize][number as usize & (PART_MAX - 1)]
    }

    pub(crate) fn item_mut(&mut self, number: u32) -> &mut T {
        &mut self.parts[(number >> PART) as usize][number as usize & (PART_MAX - 1)]
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
        let mut list = Ordered::new(vec![vec![1, 2, 3], Vec::new(), (10..60).collect()]);
        assert!(list.is_empty() && list.all().first().is_none());
        list.arrange([(2, 1), (0, 2), (2, 0), (0, 0)].map(|(part, at)| number(part, at)).to_vec());
        *list.item_mut(number(0, 2)) = 4;
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), [11, 4, 10, 1]);
        let run = list.all().range(1..3);
        assert_eq!((run.len(), run.first()), (2, Some(&4)));
        assert_eq!(run.iter_with(|n| n).copied().collect::<Vec<_>>(), [4, 10]);
        list.arrange((0..50).rev().map(|n| number(2, n)).collect());
        assert_eq!(list.iter().copied().collect::<Vec<_>>(), (10..60).rev().collect::<Vec<_>>());
    }
}
