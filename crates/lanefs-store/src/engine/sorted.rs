//! Sorted lists, one of each of several threads, that several threads merge: each list is cut at
//! the same keys, and what lies between two cuts is one thread's.

use std::borrow::Cow;
use std::ops::Range;

/// Items of which a cut is chosen for each piece that is wanted.
const SAMPLED: usize = 32;

/// Returns the first keys of up to `pieces` pieces of about as many items, but for the first piece.
/// `len` and `key_at` are those of each list; a list is sorted by its keys.
pub(crate) fn cuts<K: Ord + Copy>(
    lens: &[usize],
    key_at: impl Fn(usize, usize) -> K,
    pieces: usize,
) -> Vec<K> {
    let all: usize = lens.iter().sum();
    let step = (all / (pieces.max(1) * SAMPLED)).max(1);
    let of_one = |(list, len): (usize, &usize)| (0..*len).step_by(step).map(move |at| (list, at));
    let mut keys: Vec<K> =
        lens.iter().enumerate().flat_map(of_one).map(|(list, at)| key_at(list, at)).collect();
    keys.sort_unstable();
    let mut cuts: Vec<K> = (1..pieces).filter_map(|n| keys.get(n * keys.len() / pieces).copied()).collect();
    cuts.dedup();
    debug_assert!(cuts.len() < pieces.max(1), "{} cuts for {pieces} pieces", cuts.len());
    cuts
}

/// Returns the pieces of one list of so many items, of which `is_before` says whether the item at
/// this place comes before this cut.
pub(crate) fn ranges<K>(len: usize, cuts: &[K], is_before: impl Fn(usize, &K) -> bool) -> Vec<Range<usize>> {
    let mut from = 0;
    let mut ranges = Vec::with_capacity(cuts.len() + 1);
    for cut in cuts {
        let (mut low, mut high) = (from, len);
        while low < high {
            let middle = low.midpoint(high);
            if is_before(middle, cut) { low = middle + 1 } else { high = middle }
        }
        ranges.push(from..low);
        from = low;
    }
    ranges.push(from..len);
    debug_assert!(ranges.is_sorted_by(|a, b| a.end == b.start), "the pieces follow each other: {ranges:?}");
    ranges
}

/// Cuts lists that are sorted by `key`; returns for each piece its part of each list.
pub(crate) fn pieces<'l, T, K: Ord + Copy>(
    lists: &'l [Vec<T>],
    cuts: &[K],
    key: impl Fn(&T) -> K,
) -> Vec<Vec<&'l [T]>> {
    debug_assert!(lists.iter().all(|l| l.is_sorted_by_key(&key)), "a list is out of order");
    let mut pieces = vec![Vec::with_capacity(lists.len()); cuts.len() + 1];
    for list in lists {
        let ranges = ranges(list.len(), cuts, |at, cut| key(&list[at]) < *cut);
        ranges.into_iter().zip(&mut pieces).for_each(|(range, piece)| piece.push(&list[range]));
    }
    pieces
}

/// Makes one sorted list of parts that are sorted.
pub(crate) fn merged<'l, T: Copy, K: Ord>(parts: &[&'l [T]], key: impl Fn(&T) -> K) -> Cow<'l, [T]> {
    let mut parts = parts.iter().filter(|p| !p.is_empty());
    let (Some(first), second) = (parts.next(), parts.next()) else { return Cow::Borrowed(&[]) };
    let Some(second) = second else { return Cow::Borrowed(first) };
    let mut all = [*first, *second].concat();
    parts.for_each(|p| all.extend_from_slice(p));
    // Stable: it finds the parts, and merges them.
    all.sort_by_key(key);
    debug_assert!(all.len() > first.len(), "a part is missing");
    Cow::Owned(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_merged_to_what_all_were(
            mut lists in proptest::collection::vec(proptest::collection::vec(0u32..50, 0..40), 0..5),
            wanted in 1usize..6,
        ) {
            lists.iter_mut().for_each(|l| l.sort_unstable());
            let lens: Vec<usize> = lists.iter().map(Vec::len).collect();
            let cuts = cuts(&lens, |list, at| lists[list][at], wanted);
            prop_assert!(cuts.len() < wanted);
            let parts: Vec<Vec<u32>> =
                pieces(&lists, &cuts, |n| *n).iter().map(|p| merged(p, |n| *n).into_owned()).collect();
            // One key is in one piece.
            prop_assert!(parts.iter().zip(&cuts).all(|(p, cut)| p.iter().all(|n| n < cut)));
            let mut all = lists.concat();
            all.sort_unstable();
            prop_assert_eq!(parts.concat(), all);
        }
    }

    #[test]
    fn pieces_are_of_about_one_size_wherever_the_lists_lie() {
        let lists: Vec<Vec<u32>> = vec![(0..1000).collect(), (1000..1200).collect()];
        let cuts = cuts(&[1000, 200], |list, at| lists[list][at], 3);
        for piece in pieces(&lists, &cuts, |n| *n) {
            let items: usize = piece.iter().map(|p| p.len()).sum();
            assert!((300..500).contains(&items), "{items} of 1200");
        }
    }
}
