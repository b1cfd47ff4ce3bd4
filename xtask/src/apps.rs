//! `cargo xtask apps`: applications under power loss, with what the check calls installed.

use crate::lab;
use crate::run::need;

/// The programs and files that the applications and the control need: pairs of (program or file,
/// Debian package).
pub const PROGRAMS: &[(&str, &str)] = &[
    ("fusermount3", "fuse3"),
    ("git", "git"),
    ("/usr/bin/python3", "python3"),
    ("/usr/lib/python3/dist-packages/lmdb/__init__.py", "python3-lmdb"),
    ("/usr/lib/python3/dist-packages/plyvel/__init__.py", "python3-plyvel"),
    ("vim.tiny", "vim-tiny"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
];

/// The command.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    need(PROGRAMS)?;
    lab::check("apps", arguments)
}
