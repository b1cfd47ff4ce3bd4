//! FxMark.

use super::{F2FS, PEERS, ratio, stated};
use crate::paper::figure::{Experiment, Figure, How, Paper};

pub(super) static PAPER: Paper = Paper {
    source: "Min, Kashyap, Maass, Kang, Kim: Understanding manycore scalability of file systems, USENIX ATC 2016",
    machine: "8 x E7-8870 (80 cores), 512 GB, RAM disk, SSD, HDD",
    figures: &[
        Figure {
            name: "fxmark-partition",
            number: "section 6.4",
            title: "one volume, or as many as workers: fsynced overwrites and varmail in private directories",
            how: How::Experiment(Experiment::Partition),
            peers: &["lanefs", "ext4", "xfs"],
            disk: false,
            stated: &[stated(
                "RocksDB on 60 partitions over one, tmpfs apart",
                2.1,
                "x",
                "slides, pilot solution",
                ratio("varmail-private", "ext4, apart", "ext4"),
            )],
            lacks: &[(
                "RocksDB on the volumes",
                "one database of db_bench lies in one directory; each worker's own files stand for it",
            )],
        },
        Figure {
            name: "fxmark-all",
            number: "figures 4 to 7",
            title: "all nineteen microbenchmarks",
            how: How::All,
            peers: PEERS,
            disk: false,
            stated: &[],
            lacks: &[("F2FS", F2FS), ("the paper's values", "its text gives none for the nineteen")],
        },
    ],
};
