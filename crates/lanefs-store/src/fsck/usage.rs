//! The segment table's marks and summaries, held to what a walk found.

use super::FsckReport;
use super::copies::report_copy;
use super::marks::{Marked, Marks};
use crate::log::io::Io;
use crate::log::segment::{SegId, SegmentTable};
use crate::log::usage_table::{UsageTable, leaf_of};
use crate::tree::block_io::BlockSource;
use lanefs_format::summary;
use std::collections::BTreeSet;

/// Marks the summaries' blocks; drops those that cannot be read or are none: they are only hints.
pub(super) fn mark_summaries(usage: &mut UsageTable, io: &Io, marks: &Marks, report: &mut FsckReport) {
    let mut bad = BTreeSet::new();
    for (seg, part, r) in usage.summaries() {
        // Bytes that are no summary lead nowhere, and nothing would write their copy again.
        let read = io
            .read(r, "segment summary")
            .and_then(|b| Ok(summary::decode_summary(&b, r.addr, u64::from(seg), part)?));
        if let Err(e) = read {
            report.add(format!("summary of segment {seg}"), &e, "it is dropped", true);
            bad.insert((seg, part));
        } else if marks.mark_node(r.addr) != Marked::First {
            let what = format!("block {} belongs to something else too", r.addr);
            report.add(format!("summary of segment {seg}"), what, "it is dropped", true);
            bad.insert((seg, part));
        } else {
            report_copy(io, format!("summary of segment {seg}").as_str().into(), r, report);
        }
    }
    bad.into_iter().for_each(|(seg, part)| usage.drop_summary(seg, part));
}

/// Returns what two ascending iterators have, in order, each once.
fn merged(a: impl Iterator<Item = SegId>, b: impl Iterator<Item = SegId>) -> impl Iterator<Item = SegId> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || {
        let next = match (a.peek(), b.peek()) {
            (Some(a), Some(b)) => *a.min(b),
            (a, b) => *a.or(b)?,
        };
        let (one, other) = (a.next_if_eq(&next), b.next_if_eq(&next));
        debug_assert!(one.or(other).is_some(), "{next} is taken from one of them");
        debug_assert!(a.peek().is_none_or(|a| *a > next) && b.peek().is_none_or(|b| *b > next), "in order");
        Some(next)
    })
}

/// Makes the segment table's marks those that were counted; `charge` hears of blocks that became
/// live or dead. Returns how many segments differed.
pub(super) fn compare_usage(
    segments: &SegmentTable,
    usage: &mut UsageTable,
    marks: &Marks,
    report: Option<&mut FsckReport>,
    charge: &mut dyn FnMut(i64),
) -> usize {
    let (mut missing, mut extra, mut unpaired, mut differ) = (0u64, 0u64, 0, 0);
    let mut has = vec![0u64; marks.words()];
    // What is in neither has no block in use, and none marked.
    for seg in merged(segments.all_known(), marks.touched()) {
        segments.tree_bits(seg, &mut has);
        let before = missing + extra;
        // A segment whose blocks of the tree are all gone may be marked so still, and one with
        // nothing but blocks of the usage table has no mark.
        let data = !marks.is_paired(seg) && (0..marks.words()).any(|w| marks.word(seg, w) != 0);
        if marks.is_paired(seg) && !segments.is_paired(seg) || data && segments.is_paired(seg) {
            segments.set_paired(seg, marks.is_paired(seg));
            unpaired += 1;
            usage.dirty.insert(leaf_of(seg));
        }
        for (w, has) in has.iter().enumerate() {
            let mut diff = has ^ marks.word(seg, w);
            while diff != 0 {
                let bit = diff.trailing_zeros();
                diff &= diff - 1;
                let on = has >> bit & 1 == 0;
                (missing, extra) = (missing + u64::from(on), extra + u64::from(!on));
                let live = i64::from(segments.correct(seg, w as u32 * 64 + bit, on));
                charge(if on { live } else { -live });
            }
        }
        if missing + extra > before {
            differ += 1;
            usage.dirty.insert(leaf_of(seg));
            let is_corrected = || {
                let mut now = vec![0; marks.words()];
                segments.tree_bits(seg, &mut now);
                now.iter().enumerate().all(|(w, now)| *now == marks.word(seg, w))
            };
            debug_assert!(is_corrected(), "the marks of segment {seg} are not as counted");
        }
    }
    let mut report = report;
    if let Some(report) = &mut report
        && unpaired > 0
    {
        let what = format!("{unpaired} segments are said to hold copies and do not, or the other way about");
        report.add("usage table", what, "it is set as found", true);
    }
    if let Some(report) = report
        && differ > 0
    {
        let what = format!(
            "{missing} blocks in use are marked free, {extra} free ones in use, in {differ} segments"
        );
        report.add("usage table", what, "the marks are set as counted", true);
    }
    debug_assert_eq!(differ == 0, missing + extra == 0, "{missing} and {extra} marks in {differ} segments");
    differ + unpaired
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_either_has_comes_once_and_in_order() {
        let all = |a: &[SegId], b: &[SegId]| -> Vec<SegId> {
            merged(a.iter().copied(), b.iter().copied()).collect()
        };
        assert_eq!(all(&[1, 2, 5], &[2, 3, 9, 10]), [1, 2, 3, 5, 9, 10]);
        assert_eq!((all(&[], &[7]), all(&[7], &[])), (vec![7], vec![7]));
        assert!(all(&[], &[]).is_empty());
    }
}
