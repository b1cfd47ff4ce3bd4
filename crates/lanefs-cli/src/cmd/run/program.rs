//! The program that `lanefs run` starts: found, and looked at whether a library can be preloaded.

use crate::failure::{About, Failure};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Interpreters of interpreters that are followed, as the kernel does.
const NESTED: usize = 4;
/// The type of a program header that names the dynamic loader.
const PT_INTERP: u32 = 3;
/// The type of a program header of notes, and what is in the note of Go's linker: its type, and the
/// name of who made it.
const PT_NOTE: u32 = 4;
const GO_NOTE: &[u8] = b"\x04\0\0\0Go\0\0";
/// The number of this machine in an ELF header.
const EM_X86_64: u16 = 62;

/// Finds a program as the shell does.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(runs)
        .ok_or_else(|| Failure::new(format_args!("{}: no such program", name.to_string_lossy())).code(127))
}

/// Checks that a library can be preloaded into a program, or into its interpreter.
pub fn check(program: &Path) -> Result<(), Failure> {
    let mut at = program.to_path_buf();
    for _ in 0..=NESTED {
        let file = File::open(&at).about(at.display())?;
        let meta = file.metadata().about(at.display())?;
        let no = |why: &str| {
            let of = if at == program {
                String::new()
            } else {
                format!("{}: its interpreter ", program.display())
            };
            Failure::new(format_args!("{of}{}: {why}; mount it instead", at.display())).code(126)
        };
        if meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
            return Err(no("set-uid or set-gid: nothing is preloaded into it"));
        }
        if has_capabilities(&file) {
            return Err(no("it has file capabilities: nothing is preloaded into it"));
        }
        let mut head = [0u8; 256];
        let n = file.read_at(&mut head, 0).about(at.display())?;
        let head = &head[..n];
        if let Some(line) = head.strip_prefix(b"#!") {
            at = interpreter(line).ok_or_else(|| no("its first line names no interpreter"))?;
            continue;
        }
        return match loader(&file, head) {
            Loader::Glibc => Ok(()),
            Loader::Go => Err(no("a Go program, which makes system calls past the C library")),
            Loader::Other(name) => {
                Err(no(&format!("its loader is {name}, not that of the GNU C library for this machine")))
            }
            Loader::None => Err(no("statically linked: nothing can be preloaded into it")),
            Loader::NotElf => Err(no("neither a program for this machine nor a script")),
        };
    }
    Err(Failure::new(format_args!("{}: too many interpreters", program.display())).code(126))
}

fn has_capabilities(file: &File) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::fgetxattr(file, c"security.capability", &mut value[..]).is_ok_and(|n| n > 0)
}

/// Returns the interpreter of the first line of a script.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|b| *b == b'\n').next()?;
    let name = line.split(|b| b" \t\r".contains(b)).find(|w| !w.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// What loads a program.
#[derive(Debug, PartialEq)]
enum Loader {
    Glibc,
    /// That, and the program is Go's.
    Go,
    Other(String),
    None,
    NotElf,
}

/// Reads what loads a program out of its headers.
fn loader(file: &File, head: &[u8]) -> Loader {
    let word = |at: usize, n: usize| -> Option<u64> {
        let mut bytes = [0u8; 8];
        bytes[..n].copy_from_slice(head.get(at..at + n)?);
        Some(u64::from_le_bytes(bytes))
    };
    let is_elf = head.starts_with(b"\x7fELF\x02\x01");
    let (Some(machine), Some(table), Some(size), Some(count)) =
        (word(18, 2), word(32, 8), word(54, 2), word(56, 2))
    else {
        return Loader::NotElf;
    };
    if !is_elf || machine != u64::from(EM_X86_64) || size < 56 {
        return Loader::NotElf;
    }
    let mut found = Loader::None;
    let mut is_go = false;
    for i in 0..count {
        let mut header = [0u8; 56];
        let Some(at) = table.checked_add(i * size) else { return Loader::NotElf };
        if file.read_exact_at(&mut header, at).is_err() {
            return Loader::NotElf;
        }
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap_or_default());
        if kind != PT_INTERP && kind != PT_NOTE {
            continue;
        }
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let mut content = vec![0u8; number(32).min(4096) as usize];
        if file.read_exact_at(&mut content, number(8)).is_err() {
            return Loader::NotElf;
        }
        if kind == PT_NOTE {
            is_go |= content.windows(GO_NOTE.len()).any(|w| w == GO_NOTE);
            continue;
        }
        let name = String::from_utf8_lossy(content.strip_suffix(b"\0").unwrap_or(&content)).into_owned();
        found = if name.ends_with("ld-linux-x86-64.so.2") { Loader::Glibc } else { Loader::Other(name) };
    }
    if is_go && found == Loader::Glibc { Loader::Go } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_scripts_are_told_apart() {
        check(Path::new("/bin/true")).unwrap();
        assert_eq!(interpreter(b" /bin/sh -e\nexit"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"\n"), None);
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        check(&script).unwrap();
        std::fs::write(&script, "hello").unwrap();
        assert_eq!(check(&script).unwrap_err().code, 126);
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert!(check(&script).unwrap_err().message.contains("too many"));
    }

    /// Bytes cut off anywhere are no program, and no panic.
    #[test]
    fn a_header_that_is_cut_off_is_no_program() {
        let whole = std::fs::read("/bin/true").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cut = dir.path().join("cut");
        for n in (0..400).chain([whole.len() / 2]) {
            std::fs::write(&cut, &whole[..n]).unwrap();
            assert!(check(&cut).is_err() || n > 64, "{n} bytes");
        }
    }
}
