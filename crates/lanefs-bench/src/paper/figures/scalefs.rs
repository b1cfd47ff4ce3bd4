//! ScaleFS: figures 6 to 12. (1 to 4 are drawings, 5 counts lines of code.)

use super::{SYNCED, bar, growth, none, stated};
use crate::paper::figure::{Experiment, Figure, How, Paper, Stated};

const SV6: (&str, &str) = ("ScaleFS itself", "a part of the sv6 kernel, which runs none of these programs");
const LINUX: &str = "COMMUTER traces a kernel in an emulator of its own; LaneFS's checker is of the library";

/// A number of figure 10, which is a table.
const fn ten(
    what: &'static str,
    value: f64,
    unit: &'static str,
    panel: &'static str,
    label: &'static str,
) -> Stated {
    stated(what, value, unit, "figure 10 (a table)", bar(panel, "lanefs", label))
}

/// A number of figure 12, which is a table.
const fn twelve(what: &'static str, value: f64, of: &'static str, label: &'static str) -> Stated {
    stated(what, value, "MB", "figure 12 (a table)", bar("peak", of, label))
}

pub(super) static PAPER: Paper = Paper {
    source: "Bhat, Eqbal, Clements, Kaashoek, Zeldovich: Scaling a file system to many cores using an operation log, SOSP 2017",
    machine: "80 cores (E7-8870), 256 GB, RAM disk or 850 PRO SSDs, Linux 4.9.21 for ext4",
    figures: &[
        Figure {
            name: "scalefs-6",
            number: "figure 6",
            title: "conflicts of commuting calls, all calls by all calls",
            how: How::Experiment(Experiment::Conflicts { memory_only: false }),
            peers: &[],
            disk: false,
            stated: &[stated(
                "tests without conflict",
                99.2,
                "%",
                "figure 6: 31,317 of 31,551",
                bar("all", "by lines", "free"),
            )],
            lacks: &[SV6],
        },
        Figure {
            name: "scalefs-7",
            number: "figure 7",
            title: "conflicts of commuting calls in Linux's ext4; here: what fsync costs each file system's rates",
            how: How::Experiment(Experiment::Durability),
            peers: SYNCED,
            disk: false,
            stated: &[stated(
                "tests without conflict, ext4",
                65.0,
                "%",
                "figure 7: 20,394 of 31,551",
                none(LINUX),
            )],
            lacks: &[("the heat map of a kernel's file system", LINUX)],
        },
        Figure {
            name: "scalefs-8",
            number: "figure 8",
            title: "conflicts of commuting calls in memory only, without fsync and sync",
            how: How::Experiment(Experiment::Conflicts { memory_only: true }),
            peers: &[],
            disk: false,
            stated: &[stated(
                "tests without conflict",
                99.0,
                "%",
                "figure 8: 13,528 of 13,664",
                bar("all", "by lines", "free"),
            )],
            lacks: &[SV6],
        },
        Figure {
            name: "scalefs-9",
            number: "figure 9",
            title: "mailbench-p and -s, dbench, largefile, smallfile in memory",
            how: How::Curves {
                curves: &[
                    super::curve("mailbench-p", "mailbench, a mailbox for each core", "mailbench-p"),
                    super::curve("mailbench-s", "mailbench, 1,000 shared mailboxes", "mailbench-s"),
                    super::curve("dbench", "dbench --sync-dir", "dbench-sync"),
                    super::curve("largefile", "a file of 100 MB and an fsync", "largefile"),
                    super::curve("smallfile", "create, write 1 KiB, fsync, remove", "smallfile"),
                ],
                normalised: false,
            },
            peers: SYNCED,
            disk: false,
            stated: &[
                stated(
                    "ScaleFS at 80 cores over one",
                    40.0,
                    "x",
                    "text, 7.4 (about, all)",
                    growth("smallfile", "lanefs"),
                ),
                stated(
                    "ext4 at its best over one core",
                    13.0,
                    "x",
                    "text, 7.4 (at most)",
                    growth("smallfile", "ext4"),
                ),
            ],
            lacks: &[SV6],
        },
        Figure {
            name: "scalefs-10",
            number: "figure 10",
            title: "the same with one core, in memory and on a disk",
            how: How::Experiment(Experiment::OneCore),
            peers: &["lanefs", "lanefs-relaxed", "lanefs-mount", "ext4", "xfs", "btrfs"],
            disk: true,
            stated: &[
                ten("RAM disk, mailbench-p, ScaleFS", 641.0, "msg/s", "mem", "mailbench-p"),
                ten("RAM disk, largefile, ScaleFS", 331.0, "MB/s", "mem", "largefile"),
                ten("RAM disk, smallfile, ScaleFS", 7151.0, "files/s", "mem", "smallfile"),
                stated(
                    "RAM disk, mailbench-p, ext4",
                    675.0,
                    "msg/s",
                    "figure 10 (a table)",
                    bar("mem", "ext4", "mailbench-p"),
                ),
                stated(
                    "RAM disk, largefile, ext4",
                    378.0,
                    "MB/s",
                    "figure 10 (a table)",
                    bar("mem", "ext4", "largefile"),
                ),
                stated(
                    "RAM disk, smallfile, ext4",
                    3553.0,
                    "files/s",
                    "figure 10 (a table)",
                    bar("mem", "ext4", "smallfile"),
                ),
                stated(
                    "RAM disk, dbench, ScaleFS",
                    317.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("dbench's rate counts calls here"),
                ),
                stated(
                    "RAM disk, dbench, ext4",
                    216.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("dbench's rate counts calls here"),
                ),
                ten("SSD, mailbench-p, ScaleFS", 61.0, "msg/s", "disk", "mailbench-p"),
                ten("SSD, largefile, ScaleFS", 180.0, "MB/s", "disk", "largefile"),
                ten("SSD, smallfile, ScaleFS", 364.0, "files/s", "disk", "smallfile"),
                stated(
                    "SSD, mailbench-p, ext4",
                    66.0,
                    "msg/s",
                    "figure 10 (a table)",
                    bar("disk", "ext4", "mailbench-p"),
                ),
                stated(
                    "SSD, largefile, ext4",
                    180.0,
                    "MB/s",
                    "figure 10 (a table)",
                    bar("disk", "ext4", "largefile"),
                ),
                stated(
                    "SSD, smallfile, ext4",
                    277.0,
                    "files/s",
                    "figure 10 (a table)",
                    bar("disk", "ext4", "smallfile"),
                ),
                stated(
                    "SSD, dbench, ScaleFS",
                    47.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("dbench's rate counts calls here"),
                ),
                stated(
                    "SSD, dbench, ext4",
                    28.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("dbench's rate counts calls here"),
                ),
                stated(
                    "HDD, mailbench-p, ScaleFS",
                    9.0,
                    "msg/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, dbench, ScaleFS",
                    7.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, largefile, ScaleFS",
                    83.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, smallfile, ScaleFS",
                    51.0,
                    "files/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, mailbench-p, ext4",
                    9.0,
                    "msg/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, dbench, ext4",
                    5.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, largefile, ext4",
                    92.0,
                    "MB/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
                stated(
                    "HDD, smallfile, ext4",
                    27.0,
                    "files/s",
                    "figure 10 (a table)",
                    none("no rotating disk here"),
                ),
            ],
            lacks: &[SV6, ("the rotating disk", "there is none")],
        },
        Figure {
            name: "scalefs-11",
            number: "figure 11",
            title: "one to four devices: mailbench-p, dbench, largefile, smallfile with four workers",
            how: How::Experiment(Experiment::Devices),
            peers: &["lanefs", "ext4"],
            disk: true,
            stated: &[],
            lacks: &[
                SV6,
                ("independent devices", "the devices are images on one disk, which they share"),
                (
                    "the paper's values",
                    "its text gives none; with four SSDs ScaleFS passes ext4 in all but largefile",
                ),
            ],
        },
        Figure {
            name: "scalefs-12",
            number: "figure 12",
            title: "peak memory of each workload, in memory only and durable",
            how: How::Experiment(Experiment::PeakMemory),
            peers: &["lanefs"],
            disk: true,
            stated: &[
                twelve("mailbench-p, MEMFS", 12.0, "without fsync", "mailbench-p"),
                twelve("mailbench-p, ScaleFS", 21.0, "lanefs", "mailbench-p"),
                twelve("mailbench-s, MEMFS", 515.0, "without fsync", "mailbench-s"),
                twelve("mailbench-s, ScaleFS", 770.0, "lanefs", "mailbench-s"),
                twelve("dbench, MEMFS", 84.0, "without fsync", "dbench"),
                twelve("dbench, ScaleFS", 94.0, "lanefs", "dbench"),
                twelve("largefile, MEMFS", 106.0, "without fsync", "largefile"),
                twelve("largefile, ScaleFS", 107.0, "lanefs", "largefile"),
                twelve("smallfile, MEMFS", 296.0, "without fsync", "smallfile"),
                twelve("smallfile, ScaleFS", 561.0, "lanefs", "smallfile"),
            ],
            lacks: &[
                (
                    "a LaneFS without its lower half",
                    "the nearest is the same volume whose fsyncs are left out",
                ),
                (
                    "equal numbers of operations",
                    "each runs for --seconds: without fsync far more is done meanwhile",
                ),
            ],
        },
    ],
};
