//! The mount table.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One LaneFS mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory.
    pub dir: PathBuf,
    /// The image, or images joined by commas.
    pub source: OsString,
    /// Whether it is mounted to be read only.
    pub read_only: bool,
    /// The options of the mount: `rw,nosuid,nodev` and such.
    pub options: String,
    /// The user who mounted it.
    pub user: Option<u32>,
    /// Whether another mount lies on top of it.
    pub covered: bool,
    /// The number of its device, which all mounts of it share: `0:50`.
    pub device: String,
}

/// Returns the LaneFS mounts in the order they were made.
pub fn lanefs_mounts() -> std::io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns the LaneFS mount at `dir` that is on top, or else one that others cover.
pub fn at(dir: &Path) -> std::io::Result<Option<Mount>> {
    let here: Vec<Mount> = lanefs_mounts()?.into_iter().filter(|m| m.dir == dir).collect();
    let top = here.iter().position(|m| !m.covered).or(here.len().checked_sub(1));
    Ok(top.and_then(|at| here.into_iter().nth(at)))
}

/// Returns where the mount with this device is seen by other processes: one of each mount
/// namespace, with the directory there. Of processes that may be looked at.
pub fn elsewhere(device: &str) -> Vec<(u32, PathBuf)> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: Vec<_> = namespace("self").into_iter().collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((text, pid)) = name.to_str().and_then(|t| Some((t, t.parse().ok()?))) else { continue };
        let Some(namespace) = namespace(text).filter(|n| !seen.contains(n)) else { continue };
        seen.push(namespace);
        let table = std::fs::read(format!("/proc/{text}/mountinfo")).unwrap_or_default();
        found.extend(parse(&table).into_iter().find(|m| m.device == device).map(|m| (pid, m.dir)));
    }
    found
}

/// Reads the LaneFS mounts out of the table.
fn parse(table: &[u8]) -> Vec<Mount> {
    let lines = table.split(|b| *b == b'\n');
    // What is mounted on the root of another at the same place: (that other's number, where).
    let parents: Vec<(&[u8], &[u8])> = lines
        .clone()
        .filter_map(|l| Some((l.split(|b| *b == b' ').nth(1)?, l.split(|b| *b == b' ').nth(4)?)))
        .collect();
    lines
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let id = fields.next()?;
            let device = String::from_utf8_lossy(fields.nth(1)?).into_owned();
            let dir = fields.nth(1)?;
            let options = String::from_utf8_lossy(fields.next()?).into_owned();
            let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
            let (kind, source) = (fields.next()?, fields.next()?);
            let of_all = String::from_utf8_lossy(fields.next().unwrap_or_default());
            let user = of_all.split(',').find_map(|o| o.strip_prefix("user_id=")?.parse().ok());
            matches!(kind, b"fuse.lanefs" | b"fuseblk.lanefs").then(|| Mount {
                dir: unescape(dir).into(),
                source: unescape(source),
                read_only: [&options, &*of_all].iter().any(|list| list.split(',').any(|o| o == "ro")),
                options,
                user,
                covered: parents.contains(&(id, dir)),
                device,
            })
        })
        .collect()
}

/// Decodes a field: the table has blanks, newlines and backslashes in octal.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match (b, code) {
            (b'\\', Some(code)) => {
                out.push(code);
                rest = &tail[3..];
            }
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    debug_assert!(out.len() <= field.len(), "an escape is longer than what it stands for");
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mounts_are_found_and_names_are_unescaped() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            40 22 0:50 / /mnt/my\\040dir ro,nosuid shared:7 - fuse.lanefs /img\\134x,/b rw,user_id=0\n";
        let mounts = parse(table);
        assert_eq!(
            mounts,
            [Mount {
                dir: "/mnt/my dir".into(),
                source: "/img\\x,/b".into(),
                read_only: true,
                options: "ro,nosuid".into(),
                user: Some(0),
                covered: false,
                device: "0:50".into(),
            }]
        );
    }

    #[test]
    fn a_mount_that_another_covers_is_told() {
        let table = b"40 22 0:50 / /m rw - fuse.lanefs /a rw,user_id=1000,group_id=0\n\
            41 40 0:51 / /m rw - tmpfs none rw\n42 40 0:52 / /m/sub rw - fuse.lanefs /b rw\n";
        let mounts = parse(table);
        assert_eq!(
            mounts.iter().map(|m| (m.covered, m.user)).collect::<Vec<_>>(),
            [(true, Some(1000)), (false, None)]
        );
    }
}
