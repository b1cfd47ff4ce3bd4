//! Applications under power loss: real programs work on a real mount whose device is recorded, and
//! judge by themselves what is left of their data in every state that the medium may hold after a
//! crash.
//!
//! 1. [`record`]: a volume on a device in memory, which writes down every write, flush and discard,
//!    is mounted from this process. The workers of `programs.py` run the applications on it, one
//!    directory each. What a worker says ("ready", "begin K", "ack K") is noted between the
//!    device's events, and the worker goes on only then.
//! 2. [`states`]: the contents of the medium around each flush and each acknowledgement, with none,
//!    all, some and torn parts of what no flush had covered.
//! 3. [`judge`]: each content is opened as a mount opens it, so recovered; the tree is read through
//!    the library and written to a directory in memory, where the application reads its data and
//!    says whether it is whole, and holds what was acknowledged by then.
//! 4. [`peers`]: the same workers and judges on ext4 and XFS, stopped by their shutdown ioctl
//!    without a flush of their journal.
//!
//! A promise that an application gets on ext4 and XFS alone from names becoming durable in order is
//! kept by [`App::ordered`] ones only with `order=ordered`; with `order=relaxed` their failures are
//! counted, not held against the volume.

pub mod judge;
pub mod peers;
pub mod record;
pub mod states;
pub mod worker;

/// An application.
#[derive(Debug)]
pub struct App {
    /// Its name, also of its directory on the volume.
    pub name: &'static str,
    /// The files, or programs on the path, that it needs beside Python.
    pub needs: &'static [&'static str],
    /// Whether it relies on names that become durable in order.
    pub ordered: bool,
    /// Whether it relies on a rename that brings the content along, which XFS does not promise.
    pub replaces: bool,
    /// Steps in a recording.
    pub steps: u64,
}

/// Names the file by which a Python module shows in Debian's folder for them.
macro_rules! module {
    ($name:literal) => {
        concat!("/usr/lib/python3/dist-packages/", $name, "/__init__.py")
    };
}

const fn app(name: &'static str, needs: &'static [&'static str], ordered: bool, steps: u64) -> App {
    App { name, needs, ordered, replaces: false, steps }
}

/// All of them.
pub const APPS: &[App] = &[
    app("git", &["git"], true, 16),
    app("sqlite-wal", &[], false, 40),
    app("sqlite-delete", &[], true, 40),
    app("sqlite-extra", &[], false, 40),
    app("sqlite-truncate", &[], false, 40),
    app("sqlite-persist", &[], false, 40),
    app("lmdb", &[module!("lmdb")], false, 60),
    app("leveldb", &[module!("plyvel")], false, 120),
    app("maildir", &[], true, 40),
    app("editor", &[], true, 40),
    app("editor-dir", &[], false, 40),
    App { name: "replace", needs: &[], ordered: false, replaces: true, steps: 40 },
    app("vim", &["vim.tiny"], false, 16),
    app("dpkg", &["dpkg", "dpkg-deb"], true, 6),
];

impl App {
    /// Returns something that it needs and that is not here.
    pub fn missing(&self) -> Option<&'static str> {
        let there = |what: &str| match std::env::var_os("PATH") {
            // A path that begins at the root stays itself when it is joined.
            Some(path) => std::env::split_paths(&path).any(|d| d.join(what).is_file()),
            None => false,
        };
        std::iter::once(&worker::PYTHON).chain(self.needs).find(|n| !there(n)).copied()
    }
}

#[cfg(test)]
mod tests;
