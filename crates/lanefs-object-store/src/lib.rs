//! An object store in the files of a LaneFS volume: [`object_store::ObjectStore`] for programs that
//! are written against that trait, in process and without a network. docs/OBJECT_STORE.md has an
//! example.
//!
//! An object is a file: the location `a/b` is the file `b` in the directory `a`. Directories come
//! with the first object below them and go with the last. What else lies in the volume and is a
//! regular file with a name that a location may have is an object, too.
//!
//! O1 An object is there whole or not at all: it is written to a file without a name, which is
//!    given its name at the end. A crash leaves nothing of an upload that was not completed.
//! O2 What was acknowledged is durable ([`LaneStore::with_sync`]): content and attributes before
//!    the name, and the name before the answer.
//! O3 Conditions are judged in one step with the change: `PutMode::Create` by the name itself, and
//!    `PutMode::Update` under a lock that all changes of that location take in this process.
//! O4 A file is never changed once it is an object: a copy is a second name of it, and a reader
//!    has the object that it opened.
//!
//! The calls block on memory and sometimes on a device, so they run on tokio's threads for that;
//! without a runtime they run where they are made.

#![deny(missing_docs)]

mod attributes;
mod error;
mod listing;
mod names;
mod staged;
mod store;
mod upload;

pub use store::LaneStore;

/// The program of the page runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/OBJECT_STORE.md")]
struct Page;
