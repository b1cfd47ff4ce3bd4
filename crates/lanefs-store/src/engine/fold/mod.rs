//! Folds: record groups become directory entries, link counts and inodes. What has to change is in
//! [`plan`](super::plan), how it is applied in `apply`, the files that are made later in
//! `deferred`, and the ends of files that are not in memory in `dying`.

mod apply;
mod deferred;
mod dying;

pub(crate) use apply::{Fold, PIECES, part, shared_from, shares};
