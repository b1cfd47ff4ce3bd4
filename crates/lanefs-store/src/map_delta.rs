//! What changed in a map since it was last durable.

use lanefs_format::BlockRef;
use std::collections::BTreeMap;
use std::ops::Range;

/// So many pages are taken out one by one.
const FEW: usize = 8;

/// Changes of a map: first the ranges become holes, then the pages are mapped.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MapDelta {
    /// Ranges that became holes.
    pub unmaps: Vec<Range<u64>>,
    /// Pages that were written.
    pub sets: BTreeMap<u64, BlockRef>,
}

impl MapDelta {
    /// Whether there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.unmaps.is_empty() && self.sets.is_empty()
    }

    /// The pages become holes.
    pub fn unmap(&mut self, pages: Range<u64>) {
        // A file that is cut page by page loses one at a time: no need to take the tree apart.
        if self.sets.range(pages.clone()).nth(FEW).is_some() {
            let mut rest = self.sets.split_off(&pages.start);
            self.sets.append(&mut rest.split_off(&pages.end));
        } else {
            while let Some((&page, _)) = self.sets.range(pages.clone()).next() {
                self.sets.remove(&page);
            }
        }
        match self.unmaps.last_mut() {
            Some(last) if last.start <= pages.end && pages.start <= last.end => {
                *last = last.start.min(pages.start)..last.end.max(pages.end);
            }
            _ => self.unmaps.push(pages),
        }
    }

    /// This, and then `later`.
    pub fn append(&mut self, later: MapDelta) {
        if self.is_empty() {
            *self = later;
            return;
        }
        for r in later.unmaps {
            self.unmap(r);
        }
        self.sets.extend(later.sets);
    }
}
