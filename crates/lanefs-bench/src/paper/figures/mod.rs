//! The figures and tables of the five papers, one file for each paper. The numbers are those that
//! the papers' text and tables give; curves without a number in the text are described, not copied.

mod f2fs_unlink;
mod fxmark;
mod max;
mod scalefs;
mod scalexfs;

use super::figure::{Counterpart, Curve, Figure, Paper, Stated};

/// All papers.
pub static PAPERS: &[&Paper] =
    &[&max::PAPER, &scalefs::PAPER, &scalexfs::PAPER, &f2fs_unlink::PAPER, &fxmark::PAPER];

/// Returns all figures with their papers.
pub fn all() -> impl Iterator<Item = (&'static Paper, &'static Figure)> {
    PAPERS.iter().flat_map(|paper| paper.figures.iter().map(move |figure| (*paper, figure)))
}

/// Those a figure is compared with where nothing else is said.
const PEERS: &[&str] = &["lanefs", "lanefs-mount", "tmpfs", "ext4", "xfs", "btrfs", "f2fs"];

/// The same where files are made durable: LaneFS with the closure of an fsync alone too, as the
/// papers promise it (ordered names are LaneFS's default).
const SYNCED: &[&str] =
    &["lanefs", "lanefs-relaxed", "lanefs-mount", "tmpfs", "ext4", "xfs", "btrfs", "f2fs"];

const F2FS: &str =
    "the kernel at hand has no F2FS (`guest -- paper ..` has one), or it takes no part (--peers f2fs)";
const NO_SPANFS: &str = "SpanFS is a patched kernel of 2015";

const fn curve(name: &'static str, title: &'static str, workload: &'static str) -> Curve {
    Curve { name, title, workload }
}

const fn stated(
    what: &'static str,
    value: f64,
    unit: &'static str,
    place: &'static str,
    here: Counterpart,
) -> Stated {
    Stated { what, value, unit, place, here }
}

const fn ratio(panel: &'static str, of: &'static str, over: &'static str) -> Counterpart {
    Counterpart::Ratio { panel, of, over }
}

const fn growth(panel: &'static str, of: &'static str) -> Counterpart {
    Counterpart::Growth { panel, of }
}

const fn bar(panel: &'static str, of: &'static str, label: &'static str) -> Counterpart {
    Counterpart::Bar { panel, of, label }
}

const fn none(why: &'static str) -> Counterpart {
    Counterpart::None(why)
}

#[cfg(test)]
mod tests {
    use super::super::figure::How;
    use super::*;
    use crate::registry::select;

    #[test]
    fn every_name_is_there_once_and_every_workload_exists() {
        let mut names: Vec<&str> = all().map(|(_, f)| f.name).collect();
        let max = (6..=12).map(|n| format!("max-{n}")).chain(["max-table-2".into(), "max-table-5".into()]);
        let scalefs = (6..=12).map(|n| format!("scalefs-{n}"));
        let scalexfs = (5..=22).map(|n| format!("scalexfs-{n}"));
        let more = ["f2fs-unlink-1", "fxmark-partition", "fxmark-all"].map(String::from);
        let wanted: Vec<String> = max.chain(scalefs).chain(scalexfs).chain(more).collect();
        assert!(wanted.iter().all(|w| names.contains(&w.as_str())), "{names:?}");
        assert_eq!(names.len(), wanted.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), wanted.len());
        for (_, figure) in all() {
            if let How::Curves { curves, .. } = figure.how {
                assert!(curves.iter().all(|c| select(&[c.workload.to_string()]).is_ok()), "{}", figure.name);
            }
            assert!(figure.stated.iter().all(|s| s.value.is_finite() && !s.place.is_empty()));
        }
    }
}
