//! The changes in the source that each fault makes.

mod library;
mod store;

use crate::Fault;

/// A change of one place in one file.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The fault that it is a part of.
    pub fault: Fault,
    /// The file, relative to the workspace.
    pub file: &'static str,
    /// The text that is replaced. It stands in the file once, but for the spaces at the beginning
    /// of its lines.
    pub from: &'static str,
    /// The text in its place. `$PLANTED` in it asks whether the fault is planted; without it the
    /// copy is as correct as the source.
    pub to: &'static str,
}

/// Stands in [`Edit::to`] for the question whether the fault is planted.
pub const PLANTED: &str = "$PLANTED";

/// All edits, in the order in which they are made: of two at one place the second finds the text of
/// the first.
pub const EDITS: &[&[Edit]] = &[store::EDITS, library::EDITS];
