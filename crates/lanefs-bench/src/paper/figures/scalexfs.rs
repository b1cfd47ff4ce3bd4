//! ScaleXFS: figures 5 to 22.

use super::{SYNCED, bar, curve, growth, none, ratio, stated};
use crate::paper::figure::{Experiment, Figure, How, Paper, Stated};

const SCALEXFS: (&str, &str) =
    ("ScaleXFS itself", "a patched kernel 5.8; LaneFS is held against what it says of itself");
const OPTANE: (&str, &str) =
    ("an SSD with and one without power-loss protection", "memory and the disk at hand stand for them");
const LOCKSTAT: (&str, &str) = (
    "the kernel's lock statistics",
    "kernels are built without them; drawn is what a call takes beyond its own processor time",
);
const MORE: &str = "more processors than here";

const fn text(what: &'static str, value: f64, unit: &'static str, place: &'static str) -> Stated {
    stated(what, value, unit, place, none("see the pictures: another machine, other file systems"))
}

const fn drawing(
    name: &'static str,
    number: &'static str,
    title: &'static str,
    place: &'static str,
) -> Figure {
    Figure {
        name,
        number,
        title,
        how: How::Drawing(place),
        peers: &[],
        disk: false,
        stated: &[],
        lacks: &[("a measurement", "the paper's figure is a drawing")],
    }
}

const fn experiment(
    name: &'static str,
    number: &'static str,
    title: &'static str,
    how: Experiment,
    stated: &'static [Stated],
) -> Figure {
    Figure {
        name,
        number,
        title,
        how: How::Experiment(how),
        peers: &["lanefs", "lanefs-relaxed", "D", "lanefs-mount", "ext4", "xfs"],
        disk: false,
        stated,
        lacks: &[SCALEXFS, OPTANE, LOCKSTAT],
    }
}

pub(super) static PAPER: Paper = Paper {
    source: "Kim, Kim, Won: ScaleXFS: getting scalability of XFS back on the ring, USENIX FAST 2022",
    machine: "4 x Xeon Platinum 8276 (112 cores), 512 GB, Optane 905P and 970 Pro, Linux 5.8.5",
    figures: &[
        Figure {
            name: "scalexfs-5",
            number: "figure 5",
            title: "varmail-ptd, dbench and mdtest, each over itself with the fewest workers",
            how: How::Curves {
                curves: &[
                    curve("varmail-ptd", "varmail, a directory for each worker", "varmail-private"),
                    curve("dbench", "dbench", "dbench"),
                    curve("mdtest", "mdtest, creating", "mdtest-create"),
                ],
                normalised: true,
            },
            peers: SYNCED,
            disk: false,
            stated: &[
                stated("mdtest, XFS: saturated with", 16.0, "cores", "text, 3.1", none(MORE)),
                stated(
                    "dbench and varmail-ptd, XFS: saturated beyond",
                    30.0,
                    "cores",
                    "text, 3.1",
                    none(MORE),
                ),
            ],
            lacks: &[OPTANE, ("4 cores as the base", "one worker is the base here")],
        },
        experiment(
            "scalexfs-6",
            "figure 6",
            "average latency of creat, unlink and fsync within varmail-ptd and dbench",
            Experiment::Calls,
            &[
                text("varmail-ptd, XFS, S970: fsync", 64.0, "ms", "text, 3.1"),
                text("varmail-ptd, XFS, I905: fsync", 1.0, "ms", "text, 3.1"),
                text("varmail-ptd, XFS, S970: unlink", 0.15, "ms", "text, 3.1"),
                text("varmail-ptd, XFS, I905: unlink", 0.904, "ms", "text, 3.1"),
                text("dbench, XFS, S970: fsync", 56.0, "ms", "text, 3.1"),
                text("dbench, XFS, I905: fsync", 0.51, "ms", "text, 3.1"),
                text("dbench, XFS, I905: unlink over fsync", 2.1, "x", "text, 3.1"),
            ],
        ),
        experiment(
            "scalexfs-7",
            "figure 7",
            "time waited in metadata calls over time waited in fsync",
            Experiment::Waits,
            &[
                text("S970: both workloads, at most", 1.0, "%", "text, 3.1"),
                text("I905: varmail-ptd", 35.4, "%", "text, 3.1"),
                text("I905: dbench", 53.0, "%", "text, 3.1"),
            ],
        ),
        experiment(
            "scalexfs-8",
            "figure 8",
            "average latency of creat and unlink, fewest and most workers",
            Experiment::Calls,
            &[
                text("in-memory logging's share of metadata calls, 4 cores, at most", 50.0, "%", "text, 3.2"),
                text("the same, varmail-ptd, 112 cores", 90.0, "%", "text, 3.2"),
            ],
        ),
        experiment(
            "scalexfs-9",
            "figure 9",
            "creat and unlink: time waited and time worked",
            Experiment::Waits,
            &[text("waiting's share of in-memory logging, 112 cores, at least", 90.0, "%", "text, 3.2")],
        ),
        experiment(
            "scalexfs-10",
            "figure 10",
            "time waited in metadata calls over all waiting (a) and over the workload's time (b)",
            Experiment::Waits,
            &[
                text("a: dbench and mdtest beyond 20 cores, at least", 90.0, "%", "text, 3.3"),
                text("b: 10 cores, at most", 5.0, "%", "text, 3.3"),
                text("b: dbench, 80 cores", 60.0, "%", "text, 3.3"),
                text("b: varmail-ptd, 80 cores", 25.0, "%", "text, 3.3"),
            ],
        ),
        drawing(
            "scalexfs-11",
            "figure 11",
            "the double committed item list",
            "docs/CONCURRENCY.md: epochs and seals",
        ),
        drawing(
            "scalexfs-12",
            "figure 12",
            "three committed item lists",
            "docs/DESIGN.md: two buffers a lane are enough",
        ),
        drawing(
            "scalexfs-13",
            "figure 13",
            "states of a committed item list",
            "docs/CONCURRENCY.md: epochs and seals",
        ),
        drawing(
            "scalexfs-14",
            "figure 14",
            "per-core in-memory logging",
            "docs/DESIGN.md: a log for each lane",
        ),
        drawing("scalexfs-15", "figure 15", "order by timestamps", "docs/DESIGN.md: versions and the clock"),
        drawing(
            "scalexfs-16",
            "figure 16",
            "strided space counting",
            "crates/lanefs-sync/src/strided.rs, whose tests run every interleaving of a small one",
        ),
        experiment(
            "scalexfs-17",
            "figure 17",
            "time waited, all calls, with techniques taken out",
            Experiment::Waits,
            &[
                text("in-memory logging's share of all lock waits, XFS, at least", 69.0, "%", "text, 5.1"),
                text("in-memory logging's share of all lock waits, XFS, at most", 96.0, "%", "text, 5.1"),
                text("D: all waits of varmail-ptd shrink by", 36.0, "%", "text, 5.1"),
                text("D: all waits of dbench shrink by", 35.0, "%", "text, 5.1"),
                text("DPS: all waits of varmail-ptd shrink by", 53.0, "%", "text, 5.1"),
                text("DPS: all waits of dbench shrink by", 90.0, "%", "text, 5.1"),
                text("DPS: all waits of mdtest shrink by", 90.0, "%", "text, 5.1"),
            ],
        ),
        Figure {
            name: "scalexfs-18",
            number: "figure 18",
            title: "average hold time of the locks of files and directories",
            how: How::Elsewhere("perf lock, on a kernel with lock statistics"),
            peers: &[],
            disk: false,
            stated: &[
                text("varmail-ptd: XFS's file lock is held shorter by", 92.0, "%", "text, 5.1"),
                text("varmail-ptd: XFS's directory lock is held shorter by", 90.0, "%", "text, 5.1"),
                text("varmail-ptd: the VFS's directory lock is held shorter by", 80.0, "%", "text, 5.1"),
            ],
            lacks: &[
                LOCKSTAT,
                (
                    "hold times of LaneFS's locks",
                    "its locks carry no statistics; scalexfs-17 draws what waits",
                ),
            ],
        },
        experiment(
            "scalexfs-19",
            "figure 19",
            "average latency of creat, unlink and fsync by number of workers",
            Experiment::Calls,
            &[
                stated(
                    "varmail-ptd: creat, XFS over ScaleXFS, 112 cores",
                    5.0,
                    "x",
                    "text, 5.2",
                    ratio("varmail-ptd-creat", "xfs", "lanefs"),
                ),
                stated(
                    "varmail-ptd: unlink, XFS over ScaleXFS, 112 cores",
                    6.0,
                    "x",
                    "text, 5.2",
                    ratio("varmail-ptd-unlink", "xfs", "lanefs"),
                ),
                stated(
                    "dbench: creat, XFS over ScaleXFS, 112 cores",
                    4.0,
                    "x",
                    "text, 5.2",
                    ratio("dbench-creat", "xfs", "lanefs"),
                ),
                stated(
                    "dbench: unlink, XFS over ScaleXFS, 112 cores",
                    6.0,
                    "x",
                    "text, 5.2",
                    ratio("dbench-unlink", "xfs", "lanefs"),
                ),
                stated(
                    "varmail-ptd: unlink, XFS, 112 cores over 4",
                    20.0,
                    "x",
                    "text, 5.2",
                    growth("varmail-ptd-unlink", "xfs"),
                ),
                stated(
                    "varmail-ptd: unlink, ScaleXFS, 112 cores over 4",
                    3.5,
                    "x",
                    "text, 5.2",
                    growth("varmail-ptd-unlink", "lanefs"),
                ),
            ],
        ),
        Figure {
            name: "scalexfs-20",
            number: "figure 20",
            title: "varmail-ptd (a), dbench (b), mdtest (c), exim (d)",
            how: How::Curves {
                curves: &[
                    curve("a", "varmail, a directory for each worker", "varmail-private"),
                    curve("b", "dbench", "dbench"),
                    curve("c", "mdtest, creating", "mdtest-create"),
                    curve("d", "exim", "exim"),
                ],
                normalised: false,
            },
            peers: &["lanefs", "lanefs-relaxed", "D", "no-strides", "lanefs-mount", "ext4", "xfs"],
            disk: false,
            stated: &[
                stated("a: ScaleXFS over XFS, 112 cores", 1.5, "x", "text, 5.3", ratio("a", "lanefs", "xfs")),
                stated(
                    "a: ScaleXFS over ext4, 112 cores",
                    1.9,
                    "x",
                    "text, 5.3",
                    ratio("a", "lanefs", "ext4"),
                ),
                stated("a: D over XFS, 112 cores", 1.4, "x", "text, 5.3", ratio("a", "D", "xfs")),
                stated("b: ScaleXFS over XFS, 112 cores", 2.2, "x", "text, 5.3", ratio("b", "lanefs", "xfs")),
                stated(
                    "b: ScaleXFS over ext4, 112 cores",
                    4.5,
                    "x",
                    "text, 5.3",
                    ratio("b", "lanefs", "ext4"),
                ),
                stated("b: ScaleXFS over D, 112 cores", 1.3, "x", "text, 5.3", ratio("b", "lanefs", "D")),
                stated("b: D over XFS, 112 cores", 1.7, "x", "text, 5.3", ratio("b", "D", "xfs")),
                stated("c: ScaleXFS over XFS", 2.1, "x", "text, 5.3", ratio("c", "lanefs", "xfs")),
                stated("c: ScaleXFS over ext4", 1.5, "x", "text, 5.3", ratio("c", "lanefs", "ext4")),
                stated("c: ScaleXFS scales up to", 60.0, "cores", "text, 5.3", none(MORE)),
                stated("d: ScaleXFS over D", 1.5, "x", "text, 5.3", ratio("d", "lanefs", "D")),
                stated("d: ScaleXFS over XFS, at most", 1.9, "x", "text, 5.3", ratio("d", "lanefs", "xfs")),
                stated("d: ScaleXFS over ext4, at most", 2.2, "x", "text, 5.3", ratio("d", "lanefs", "ext4")),
            ],
            lacks: &[SCALEXFS],
        },
        Figure {
            name: "scalexfs-21",
            number: "figure 21",
            title: "unlink in private directories (a) and in one (b)",
            how: How::Curves {
                curves: &[
                    curve("a", "removing files in private directories (MWUL)", "MWUL"),
                    curve("b", "removing files in one directory (MWUM)", "MWUM"),
                ],
                normalised: false,
            },
            peers: &["lanefs", "D", "lanefs-mount", "ext4", "xfs"],
            disk: false,
            stated: &[stated(
                "b: ScaleXFS over XFS (no improvement)",
                1.0,
                "x",
                "text, 5.3",
                ratio("b", "lanefs", "xfs"),
            )],
            lacks: &[SCALEXFS, ("the curves' values", "the text gives none")],
        },
        Figure {
            name: "scalexfs-22",
            number: "figure 22",
            title: "stride lengths: latency of creat (a), its tail (b), throughput of mdtest (c)",
            how: How::Experiment(Experiment::Strides),
            peers: &["lanefs"],
            disk: false,
            stated: &[
                stated(
                    "a: average latency falls by, at most",
                    7.3,
                    "%",
                    "text, 5.4",
                    bar("gain", "lanefs", "latency"),
                ),
                stated(
                    "c: throughput grows by, at most",
                    13.0,
                    "%",
                    "text, 5.4",
                    bar("gain", "lanefs", "throughput"),
                ),
                text("bytes wasted of a 2 GB journal, stride of 8 KiB", 14.0, "KiB", "text, 5.4"),
            ],
            lacks: &[SCALEXFS],
        },
    ],
};
