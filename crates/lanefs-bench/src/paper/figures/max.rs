//! Max: figures 6 to 12, tables 2 and 5. (Figure 1 is the workload `max-fig1`; 2 to 5 are
//! drawings.)

use super::{F2FS, NO_SPANFS, PEERS, SYNCED, curve, growth, none, ratio, stated};
use crate::paper::figure::{Experiment, Figure, How, Paper};

const SPANFS: (&str, &str) = ("SpanFS", NO_SPANFS);
const MAX: (&str, &str) =
    ("Max itself", "a patched kernel 4.19; LaneFS is held against what it says of itself");

const fn share(what: &'static str, value: f64, level: &'static str) -> crate::paper::figure::Stated {
    stated(
        what,
        value,
        level,
        "table 2, F2FS, 72 cores",
        none("LaneFS has no such lock; its levels are drawn"),
    )
}

const fn memory(what: &'static str, value: f64) -> crate::paper::figure::Stated {
    stated(what, value, "MB", "table 5, 72 processes", none("see the bars: another machine, other caches"))
}

pub(super) static PAPER: Paper = Paper {
    source: "Liao, Lu, Xu, Shu: Max, a multicore-accelerated file system for flash storage, USENIX ATC 2021",
    machine: "4 x Xeon Gold 6140 (72 cores), DC P3700 SSD, Linux 4.19.11",
    figures: &[
        Figure {
            name: "max-6",
            number: "figure 6",
            title: "data scalability: overwriting (a) and appending (b) blocks of private files",
            how: How::Curves {
                curves: &[
                    curve("a", "overwriting blocks of private files (DWOL)", "DWOL"),
                    curve("b", "appending blocks to private files (DWAL)", "DWAL"),
                ],
                normalised: false,
            },
            peers: PEERS,
            disk: false,
            stated: &[
                stated(
                    "a: Max at 72 cores over one",
                    56.0,
                    "x",
                    "text, 5.1.1 (nearly)",
                    growth("a", "lanefs"),
                ),
                stated(
                    "a: Max over F2FS at 72 cores",
                    35.0,
                    "x",
                    "text, 5.1.1",
                    ratio("a", "lanefs", "f2fs"),
                ),
                stated("a: Max over SpanFS at 72 cores", 2.0, "x", "text, 5.1.1", none(NO_SPANFS)),
                stated("b: Max over F2FS", 2.0, "x", "text, 5.1.1 (almost)", ratio("b", "lanefs", "f2fs")),
            ],
            lacks: &[SPANFS, MAX],
        },
        Figure {
            name: "max-7",
            number: "figure 7",
            title: "metadata scalability: creating (a) and removing (b) files in private directories",
            how: How::Curves {
                curves: &[
                    curve("a", "creating empty files in private directories (MWCL)", "MWCL"),
                    curve("b", "removing empty files in private directories (MWUL)", "MWUL"),
                ],
                normalised: false,
            },
            peers: PEERS,
            disk: false,
            stated: &[
                stated("a: Max over SpanFS at 72 cores", 2.8, "x", "text, 5.1.1", none(NO_SPANFS)),
                stated(
                    "a: Max over F2FS at 72 cores",
                    18.6,
                    "x",
                    "text, 5.1.1",
                    ratio("a", "lanefs", "f2fs"),
                ),
                stated(
                    "b: Max over F2FS at 72 cores",
                    11.5,
                    "x",
                    "text, 5.1.1",
                    ratio("b", "lanefs", "f2fs"),
                ),
                stated("b: Max over SpanFS at 72 cores", 6.1, "x", "text, 5.1.1", none(NO_SPANFS)),
                stated(
                    "b: Max declines from so many cores on",
                    54.0,
                    "cores",
                    "text, 5.1.1",
                    none("more processors than here"),
                ),
            ],
            lacks: &[SPANFS, MAX],
        },
        Figure {
            name: "max-8",
            number: "figure 8",
            title: "checkpoint latency by dirty data (a); read, stat and readdir beside endless checkpoints (b)",
            how: How::Experiment(Experiment::Checkpoints),
            peers: &["lanefs", "no-rps", "ext4", "xfs"],
            disk: false,
            stated: &[stated(
                "b: p99.9 of readers beside checkpoints grows by up to, with prwlock",
                486.0,
                "%",
                "text, 5.1.1; with RPS hardly affected",
                none("see the bars: p99.9 alone and beside checkpoints"),
            )],
            lacks: &[(
                "prwlock and Linux's percpu_rwsem as LaneFS's lock",
                "not built; a shared count of readers (no-rps) is what can be put in its place",
            )],
        },
        Figure {
            name: "max-9",
            number: "figure 9",
            title: "upper bound: Max in memory beside tmpfs, appending (a) and creating (b)",
            how: How::Curves {
                curves: &[
                    curve("a", "appending blocks to private files (DWAL)", "DWAL"),
                    curve("b", "creating empty files in private directories (MWCL)", "MWCL"),
                ],
                normalised: false,
            },
            peers: &["lanefs", "lanefs-mount", "tmpfs"],
            disk: false,
            stated: &[stated(
                "a, b: Max-mem stays below tmpfs and comes close to it",
                1.0,
                "x",
                "text, 5.1.2 (upper bound)",
                ratio("b", "lanefs", "tmpfs"),
            )],
            lacks: &[MAX],
        },
        Figure {
            name: "max-10",
            number: "figure 10",
            title: "applications: varmail (a), dbench (b), exim (c), RocksDB (d)",
            how: How::Curves {
                curves: &[
                    curve("a", "varmail", "varmail"),
                    curve("b", "dbench", "dbench"),
                    curve("c", "exim", "exim"),
                    curve("d", "RocksDB, db_bench overwrite, by threads that flush and compact", "rocksdb"),
                ],
                normalised: false,
            },
            peers: SYNCED,
            disk: false,
            stated: &[
                stated("a: Max over SpanFS", 2.9, "x", "text, 5.2", none(NO_SPANFS)),
                stated("a: Max over F2FS", 1.1, "x", "text, 5.2", ratio("a", "lanefs", "f2fs")),
                stated(
                    "b: F2FS stops to scale at",
                    36.0,
                    "cores",
                    "text, 5.2",
                    none("more processors than here"),
                ),
                stated("c: Max over F2FS", 6.0, "x", "text, 5.2", ratio("c", "lanefs", "f2fs")),
                stated("d: Max declines from", 18.0, "cores", "text, 5.2", none("more processors than here")),
            ],
            lacks: &[
                SPANFS,
                MAX,
                ("d on a volume in process", "`lanefs bench embed --engines rocksdb` has RocksDB's plug-in"),
            ],
        },
        Figure {
            name: "max-11",
            number: "figure 11",
            title: "volumes filled to 90 and 97.5 %: fileserver and varmail",
            how: How::Elsewhere(
                "lanefs bench space --fill 50,90,97.5, which fills volumes and overwrites them at random first",
            ),
            peers: &[],
            disk: true,
            stated: &[
                stated("fileserver, 90 %: Max over F2FS", 4.4, "x", "text, 5.3", none(F2FS)),
                stated("varmail, 90 %: Max over F2FS", 2.1, "x", "text, 5.3", none(F2FS)),
                stated("fileserver, 97.5 %: Max over F2FS", 3.5, "x", "text, 5.3", none(F2FS)),
                stated("varmail, 97.5 %: Max over F2FS", 1.36, "x", "text, 5.3", none(F2FS)),
            ],
            lacks: &[],
        },
        Figure {
            name: "max-12",
            number: "figure 12",
            title: "techniques taken out: DWOL (a), MWCL (b), varmail; groups of cells (c); numbers of mlogs (d)",
            how: How::Experiment(Experiment::Ablation),
            peers: &["lanefs", "no-cells", "no-mlogs", "no-rps", "none"],
            disk: false,
            stated: &[
                stated(
                    "c: no gain above so many trees",
                    36.0,
                    "trees",
                    "text, 5.4",
                    none("LaneFS has one group or all"),
                ),
                stated("d: saturated by so many mlogs", 8.0, "mlogs", "text, 5.4", none("see the curve")),
            ],
            lacks: &[(
                "c by number of trees",
                "LaneFS's groups come from the inode table: one (cells=one) or as many as it has",
            )],
        },
        Figure {
            name: "max-table-2",
            number: "table 2",
            title: "where processor time goes, by level: concurrency control, in-memory structures, space",
            how: How::Experiment(Experiment::Levels),
            peers: &["lanefs"],
            disk: false,
            stated: &[
                share("write: cp_rwsem", 50.98, "% (CC)"),
                share("create: nat_tree_lock", 3.74, "% (IMDS)"),
                share("create: inode_lock", 3.22, "% (IMDS)"),
                share("create: curseg_mutex", 1.84, "% (SA)"),
                share("create: nid_list_lock", 1.09, "% (IMDS)"),
                share("unlink: nat_tree_lock", 22.68, "% (IMDS)"),
                share("unlink: ino_lock", 6.54, "% (IMDS)"),
                share("unlink: inode_lock", 3.05, "% (IMDS)"),
                share("unlink: node_inode", 2.66, "% (IMDS)"),
                share("unlink: sentry_lock", 2.41, "% (SA)"),
                share("fsync: writepages", 45.76, "% (SA)"),
                share("fsync: sentry_lock", 1.07, "% (SA)"),
            ],
            lacks: &[("contention of 72 cores", "shares are of this machine's processors")],
        },
        Figure {
            name: "max-table-5",
            number: "table 5",
            title: "memory while varmail, dbench and RocksDB run: static and cache",
            how: How::Experiment(Experiment::Memory),
            peers: &["lanefs"],
            disk: true,
            stated: &[
                memory("static: F2FS, all workloads", 24.90),
                memory("static: Max, all workloads", 24.97),
                memory("cache: varmail, F2FS", 1411.0),
                memory("cache: varmail, Max", 1484.0),
                memory("cache: dbench, F2FS", 310.0),
                memory("cache: dbench, Max", 345.0),
                memory("cache: RocksDB, F2FS", 15.0),
                memory("cache: RocksDB, Max", 18.0),
            ],
            lacks: &[
                ("RocksDB", "db_bench is a program of its own: `lanefs bench embed --engines rocksdb`"),
                ("the kernel's file systems", "their memory is the kernel's, shared with all that runs"),
            ],
        },
    ],
};
