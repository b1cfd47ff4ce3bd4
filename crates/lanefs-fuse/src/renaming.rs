//! A rename over a file by one that is open for writing, of which the kernel may have gathered
//! pages: they are written back first, so that what replaces the other file is whole (SEMANTICS
//! F5).

use crate::wire::Errno;
use lanefs::{Cred, Ino, Volume};

/// A rename that is made once the pages were written back (A6 of [`crate::aside`]).
pub(crate) struct Renaming {
    pub volume: Volume,
    pub cred: Cred,
    /// The directory and the name.
    pub from: (Ino, Vec<u8>),
    /// Likewise, of the file that is replaced.
    pub to: (Ino, Vec<u8>),
    /// The flags of renameat2(2).
    pub flags: u32,
    /// Whether it is durable before it is answered (`dirsync`).
    pub durable: bool,
}

/// The outcome of a [`Renaming`].
pub(crate) enum Renamed {
    Done,
    /// Nothing was changed.
    Refused(Errno),
    /// The names were changed and may be lost in a crash: what the kernel makes of the error is to
    /// be dropped.
    NotDurable(Errno),
}

impl Renaming {
    /// Renames.
    pub(crate) fn make(&self) -> Renamed {
        let ((from, name), (to, to_name)) = (&self.from, &self.to);
        if let Err(e) = self.volume.node_rename(&self.cred, *from, name, *to, to_name, self.flags) {
            return Renamed::Refused(e.into());
        }
        if !self.durable {
            return Renamed::Done;
        }
        match [*from, *to].into_iter().try_for_each(|dir| self.volume.node_sync(dir)) {
            Ok(()) => Renamed::Done,
            Err(e) => Renamed::NotDurable(e.into()),
        }
    }

    /// Returns the names that it changes.
    pub(crate) fn names(&self) -> [(Ino, &[u8]); 2] {
        [(self.from.0, &self.from.1), (self.to.0, &self.to.1)]
    }
}
