//! The promises that the writer got, and the check that the volume kept them.
//!
//! Each thread of the writer appends to a ledger of its own, outside the volume: `B id state`
//! before it does something to the file `id`, `E id` when the fsync that covers it has returned.
//! After a crash a file whose last line is an E must be exactly as said; one with a B behind its
//! last E may be as before or as after, and where a write in place was under way, block by block
//! either.

use lanefs_sync::random::Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Bytes of a file that are written with one version.
pub const BLOCK: usize = 4096;

/// The state that a file has, or is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// At this path below the volume's root, filled with this version, so long.
    There { path: String, version: u64, len: u64 },
    /// Removed from this path.
    Gone { path: String },
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::There { path, version, len } => write!(f, "{version} {len} {path}"),
            State::Gone { path } => write!(f, "gone 0 {path}"),
        }
    }
}

impl State {
    fn parse(text: &str) -> Option<State> {
        let mut words = text.splitn(3, ' ');
        let (version, len, path) = (words.next()?, words.next()?.parse().ok()?, words.next()?.to_string());
        match version {
            "gone" => Some(State::Gone { path }),
            version => Some(State::There { path, version: version.parse().ok()?, len }),
        }
    }
}

/// Bytes of block `block` of file `id` in a version.
pub fn content(id: u64, version: u64, block: u64, into: &mut [u8]) {
    let seed = id.wrapping_mul(0x9e37_79b9) ^ version.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) ^ (block << 40);
    Rng::at(seed).fill(into);
}

/// One file's promises.
#[derive(Clone, Debug, Default)]
struct Promise {
    acknowledged: Option<State>,
    under_way: Option<State>,
}

/// All files of one round.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    files: BTreeMap<u64, Promise>,
    /// E lines.
    pub acknowledged: u64,
}

/// The counts of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    pub files: u64,
    pub bytes: u64,
    pub removed: u64,
}

impl Ledger {
    /// Reads the ledgers in a folder; an incomplete last line counts for nothing.
    pub fn read(folder: &Path) -> Result<Ledger, String> {
        let mut ledger = Ledger::default();
        let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries.filter_map(Result::ok) {
            if !entry.file_name().to_string_lossy().starts_with("ledger") {
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).map_err(|e| e.to_string())?;
            for line in text.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n')) {
                ledger.line(line).ok_or_else(|| format!("{}: {line:?}", entry.path().display()))?;
            }
        }
        Ok(ledger)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (what, rest) = line.split_once(' ')?;
        let (id, state) = rest.split_once(' ').unwrap_or((rest, ""));
        let promise = self.files.entry(id.parse().ok()?).or_default();
        match what {
            "B" => promise.under_way = Some(State::parse(state)?),
            "E" => {
                promise.acknowledged = Some(promise.under_way.take()?);
                self.acknowledged += 1;
            }
            _ => return None,
        }
        Some(())
    }

    /// Compares the volume with the promises. All that is wrong, in words.
    pub fn check(&self, mnt: &Path) -> Result<Checked, Vec<String>> {
        let mut checked = Checked::default();
        let wrong: Vec<String> = self
            .files
            .iter()
            .filter_map(|(id, promise)| {
                let error = check_file(mnt, *id, promise, &mut checked).err()?;
                Some(format!("file {id}: {error}; promised {promise:?}"))
            })
            .collect();
        if wrong.is_empty() { Ok(checked) } else { Err(wrong) }
    }
}

fn read(path: &PathBuf) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn check_file(mnt: &Path, id: u64, promise: &Promise, checked: &mut Checked) -> Result<(), String> {
    // Never acknowledged: nothing was promised.
    let Some(before) = &promise.acknowledged else { return Ok(()) };
    let after = promise.under_way.as_ref().unwrap_or(before);
    let [old, new] = [before, after].map(|s| match s {
        State::There { path, .. } | State::Gone { path } => path,
    });
    let paths = [Some(old), (new != old).then_some(new)];
    let mut found = Vec::new();
    for path in paths.into_iter().flatten() {
        found.extend(read(&mnt.join(path))?);
    }
    let gone = [before, after].map(|s| matches!(s, State::Gone { .. }));
    match found.len() {
        0 if gone[0] || gone[1] => {
            checked.removed += 1;
            return Ok(());
        }
        0 => return Err("is missing".into()),
        1 if gone[0] && gone[1] => return Err("is back".into()),
        1 => {}
        _ => return Err("has both its old and its new name".into()),
    }
    let states = [before, after].map(|s| match s {
        State::There { version, len, .. } => Some((*version, *len)),
        State::Gone { .. } => None,
    });
    let states: Vec<(u64, u64)> = states.into_iter().flatten().collect();
    let bytes = &found[0];
    checked.files += 1;
    checked.bytes += bytes.len() as u64;
    compare(id, bytes, &states)
}

/// Every block must be of one of the versions, the length between the lengths.
fn compare(id: u64, bytes: &[u8], states: &[(u64, u64)]) -> Result<(), String> {
    let shortest = states.iter().map(|s| s.1).min().unwrap_or(0);
    let longest = states.iter().map(|s| s.1).max().unwrap_or(0);
    let len = bytes.len() as u64;
    if len < shortest || len > longest {
        return Err(format!("is {len} bytes long, not {shortest} to {longest}"));
    }
    let mut good = vec![0; BLOCK];
    for (n, block) in bytes.chunks(BLOCK).enumerate() {
        // Behind the promised length an append may have got as far as the size.
        let promised = (shortest.saturating_sub((n * BLOCK) as u64) as usize).min(block.len());
        let fits = states.iter().any(|(version, _)| {
            content(id, *version, n as u64, &mut good);
            block[..promised] == good[..promised]
                && block[promised..].iter().zip(&good[promised..]).all(|(a, b)| a == b || *a == 0)
        });
        if !fits {
            let zeros = block.iter().all(|b| *b == 0);
            return Err(format!(
                "block {n} of {} is not what was written{}",
                len / BLOCK as u64,
                if zeros { " (zeros)" } else { "" }
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(id: u64, version: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes.chunks_mut(BLOCK).enumerate().for_each(|(n, b)| content(id, version, n as u64, b));
        bytes
    }

    #[test]
    fn losses_are_seen() {
        let dir = std::env::temp_dir().join(format!("xtask-ledger-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut ledger = Ledger::default();
        for line in ["B 7 1 9000 a", "E 7", "B 8 1 100 b", "E 8", "B 8 gone 0 b", "E 8", "B 9 1 5 never"] {
            ledger.line(line).unwrap();
        }
        std::fs::write(dir.join("a"), filled(7, 1, 9000)).unwrap();
        assert_eq!(ledger.check(&dir).unwrap().files, 1);
        std::fs::write(dir.join("b"), filled(8, 1, 100)).unwrap();
        assert_eq!(ledger.check(&dir).unwrap_err().len(), 1, "a removed file that is back");
        std::fs::remove_file(dir.join("b")).unwrap();
        let mut bad = filled(7, 1, 9000);
        bad[8500] ^= 1;
        std::fs::write(dir.join("a"), &bad).unwrap();
        assert_eq!(ledger.check(&dir).unwrap_err().len(), 1, "a flipped bit");
        std::fs::write(dir.join("a"), filled(7, 1, 8999)).unwrap();
        assert_eq!(ledger.check(&dir).unwrap_err().len(), 1, "a short file");
        // While version 2 is being written, each block may be of either.
        ledger.line("B 7 2 9000 a").unwrap();
        let mut mixed = filled(7, 1, 9000);
        mixed[4096..8192].copy_from_slice(&filled(7, 2, 9000)[4096..8192]);
        std::fs::write(dir.join("a"), &mixed).unwrap();
        assert!(ledger.check(&dir).is_ok());
        std::fs::remove_file(dir.join("a")).unwrap();
        assert_eq!(ledger.check(&dir).unwrap_err().len(), 1, "a missing file");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
