//! The F2FS unlink poster.

use super::{F2FS, none, stated};
use crate::paper::figure::{Figure, How, Paper};

pub(super) static PAPER: Paper = Paper {
    source: "Hwang, Lee, Kim: Enabling manycore scalability in F2FS metadata for unlink(), SYSTOR 2021 (poster)",
    machine: "120 cores, 970 EVO SSD",
    figures: &[Figure {
        name: "f2fs-unlink-1",
        number: "figure 1",
        title: "unlink in private directories, before (one bitmap, scanned from its start) and after",
        how: How::Curves {
            curves: &[
                super::curve("1", "removing empty files in private directories (MWUL)", "MWUL"),
                super::curve("create", "creating them, which takes the numbers (MWCL)", "MWCL"),
            ],
            normalised: false,
        },
        peers: &["lanefs", "no-lane-ids", "tmpfs", "ext4", "xfs", "btrfs", "f2fs"],
        disk: false,
        stated: &[stated(
            "the new design scales up to",
            15.0,
            "cores",
            "text, section 3",
            none("more processors than here"),
        )],
        lacks: &[
            ("F2FS before and after", F2FS),
            ("the curves' values", "the text gives none but the 15 cores"),
        ],
    }],
};
