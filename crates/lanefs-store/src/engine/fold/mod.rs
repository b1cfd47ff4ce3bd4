//! Folds: record groups become directory entries, link counts and inodes. What has to change is in
//! [`plan`](super::plan), how it is applied in `apply`, and the files that are made later in
//! `deferred`.

mod apply;
mod deferred;

pub(crate) use apply::Fold;
