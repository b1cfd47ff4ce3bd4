//! dbench's loadfile: what one client did, a call a line, parsed once and shared by all workers.

use crate::error::{Context, Failure, Res};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The place where Debian's dbench package puts its loadfile.
const USUAL: &str = "/usr/share/dbench/client.txt";

/// One call. Paths are relative to the client's directory; an empty one is that directory. `ok`
/// states whether the call succeeded when it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the arguments of the call
pub enum Call {
    /// NTCreateX of a file: made if missing, cut to nothing if `truncate`.
    Open { path: Box<str>, create: bool, truncate: bool, handle: u16, ok: bool },
    /// NTCreateX of a directory, or Mkdir.
    Mkdir { path: Box<str> },
    /// Close.
    Close { handle: u16 },
    /// ReadX.
    Read { handle: u16, offset: u64, size: u32 },
    /// WriteX.
    Write { handle: u16, offset: u64, size: u32 },
    /// Unlink.
    Unlink { path: Box<str> },
    /// Rename.
    Rename { old: Box<str>, new: Box<str> },
    /// Rmdir.
    Rmdir { path: Box<str> },
    /// Deltree.
    Deltree { path: Box<str> },
    /// QUERY_PATH_INFORMATION.
    Stat { path: Box<str> },
    /// QUERY_FILE_INFORMATION.
    Fstat { handle: u16 },
    /// QUERY_FS_INFORMATION.
    Statfs,
    /// FIND_FIRST.
    List { path: Box<str> },
    /// SET_FILE_INFORMATION.
    SetTimes { handle: u16 },
    /// Flush.
    Fsync { handle: u16 },
}

/// A whole loadfile.
pub type Script = Arc<Vec<Call>>;

static LAST: Mutex<Option<(PathBuf, Script)>> = Mutex::new(None);

/// Returns the script in `path`, or in the usual place; it is kept, because every repeat of a cell
/// asks again.
pub fn load(path: Option<&Path>) -> Res<Script> {
    let path = path.unwrap_or(Path::new(USUAL));
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, script)) = &*last
        && known == path
    {
        return Ok(script.clone());
    }
    let text = std::fs::read_to_string(path)
        .at(format!("{} (name dbench's client.txt with --loadfile)", path.display()))?;
    let script = Arc::new(parse(&text)?);
    *last = Some((path.to_path_buf(), script.clone()));
    Ok(script)
}

/// Parses a loadfile of dbench 3 or 4.
pub fn parse(text: &str) -> Res<Vec<Call>> {
    let mut calls = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match call(line) {
            Some(Some(call)) => calls.push(call),
            Some(None) => {}
            None => return Err(Failure::new(format!("loadfile, line {}: cannot read `{line}`", number + 1))),
        }
    }
    if calls.is_empty() {
        return Err(Failure::new("the loadfile holds no call"));
    }
    Ok(calls)
}

/// Returns `\clients\client1\a\b` as `a/b`.
fn relative(path: &str) -> Box<str> {
    let path = path.trim_matches('"').replace('\\', "/");
    let path = path.trim_matches('/');
    let mut parts = path.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("clients"), _, rest) => rest.unwrap_or("").into(),
        _ => path.into(),
    }
}

/// Parses one line: `None` if it is no call, `Some(None)` if it is one that is not replayed (byte
/// locks).
fn call(line: &str) -> Option<Option<Call>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ok = matches!(words.last(), Some(&"NT_STATUS_OK" | &"SUCCESS"));
    let path = |at: usize| words.get(at).map(|w| relative(w));
    let handle = |at: usize| words.get(at).and_then(|w| w.parse::<u16>().ok());
    let hex = |at: usize| u32::from_str_radix(words.get(at)?.trim_start_matches("0x"), 16).ok();
    let (offset, size) = (|| words.get(2)?.parse().ok(), || words.get(3)?.parse().ok());
    Some(Some(match *words.first()? {
        "NTCreateX" => {
            let (path, options, disposition) = (path(1)?, hex(2)?, hex(3)?);
            if options & 1 != 0 && disposition == 2 {
                Call::Mkdir { path }
            } else {
                // Dispositions: 1 open, 2 create, 3 open or create, 4 overwrite, 5 overwrite or
                // create.
                let (create, truncate) = (matches!(disposition, 2 | 3 | 5), disposition >= 4);
                Call::Open { path, create, truncate, handle: handle(4)?, ok }
            }
        }
        "Mkdir" => Call::Mkdir { path: path(1)? },
        "Close" => Call::Close { handle: handle(1)? },
        "ReadX" => Call::Read { handle: handle(1)?, offset: offset()?, size: size()? },
        "WriteX" => Call::Write { handle: handle(1)?, offset: offset()?, size: size()? },
        "Unlink" => Call::Unlink { path: path(1)? },
        "Rename" => Call::Rename { old: path(1)?, new: path(2)? },
        "Rmdir" => Call::Rmdir { path: path(1)? },
        "Deltree" => Call::Deltree { path: path(1)? },
        "QUERY_PATH_INFORMATION" => Call::Stat { path: path(1)? },
        "QUERY_FILE_INFORMATION" => Call::Fstat { handle: handle(1)? },
        "QUERY_FS_INFORMATION" => Call::Statfs,
        "FIND_FIRST" => {
            let pattern = path(1)?;
            let dir = pattern.rsplit_once('/').map_or("", |(dir, _)| dir);
            Call::List { path: dir.into() }
        }
        "SET_FILE_INFORMATION" => Call::SetTimes { handle: handle(1)? },
        "Flush" => Call::Fsync { handle: handle(1)? },
        "LockX" | "UnlockX" => return Some(None),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_calls() {
        let text = r#"
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1\~dmtmp" 0x1 0x2 9937 NT_STATUS_OK
NTCreateX "\clients\client1\mixfile" 0x40 0x5 13985 NT_STATUS_OK
WriteX 13985 4 8 8 NT_STATUS_OK
LockX 13628 2147483538 1 NT_STATUS_OK
FIND_FIRST "\clients\client1\W\*.TMP" 260 1366 0 NT_STATUS_NO_SUCH_FILE
"#;
        let calls = parse(text).unwrap();
        assert_eq!(calls.len(), 5);
        assert_eq!(calls[0], Call::Mkdir { path: "".into() });
        assert_eq!(calls[1], Call::Mkdir { path: "~dmtmp".into() });
        assert_eq!(
            calls[2],
            Call::Open { path: "mixfile".into(), create: true, truncate: true, handle: 13985, ok: true }
        );
        assert_eq!(calls[3], Call::Write { handle: 13985, offset: 4, size: 8 });
        assert_eq!(calls[4], Call::List { path: "W".into() });
        assert!(parse("Nonsense 1 2 3").is_err());
        assert!(parse("ReadX a b c").is_err());
        assert!(parse("").is_err());
    }
}
