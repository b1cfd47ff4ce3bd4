//! The names of a volume's images.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the bytes by which a name is told: as it is where programs read it, and on a terminal
/// with what could change that, or is no text, in octal. Names of an image may be a stranger's.
pub fn told(name: &OsStr, on_terminal: bool) -> Cow<'_, [u8]> {
    let is_plain = |c: char| !c.is_control() && c != '\\';
    if !on_terminal || name.to_str().is_some_and(|name| name.chars().all(is_plain)) {
        return name.as_bytes().into();
    }
    let mut out = Vec::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if is_plain(c) => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                '\\' => out.extend(b"\\\\"),
                '\n' => out.extend(b"\\n"),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| out.extend(octal(b))),
            }
        }
        chunk.invalid().iter().for_each(|b| out.extend(octal(*b)));
    }
    debug_assert!(!out.iter().any(u8::is_ascii_control), "it would change the terminal");
    out.into()
}

fn octal(byte: u8) -> [u8; 4] {
    [b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]
}

/// Splits `a,b` into two images, unless there is a file named `a,b`.
pub fn images(text: &OsStr) -> Vec<PathBuf> {
    if Path::new(text).exists() {
        return vec![PathBuf::from(text)];
    }
    text.as_bytes()
        .split(|b| *b == b',')
        .filter(|p| !p.is_empty())
        .map(|p| OsStr::from_bytes(p).into())
        .collect()
}

/// Splits each of several names, which may be `a,b` too.
pub fn all(given: &[PathBuf]) -> Vec<PathBuf> {
    given.iter().flat_map(|name| images(name.as_os_str())).collect()
}

/// Returns the image behind a loop device that goes when it is not used any more; anything else
/// stands for itself.
pub fn behind(device: &Path) -> PathBuf {
    let image = || {
        let name = device.strip_prefix("/dev").ok()?.to_str().filter(|n| n.starts_with("loop"))?;
        let about = |what: &str| std::fs::read_to_string(format!("/sys/block/{name}/loop/{what}")).ok();
        let goes = about("autoclear")?.trim_end() == "1";
        let image = PathBuf::from(about("backing_file")?.trim_end_matches('\n'));
        (goes && image.exists()).then_some(image)
    };
    image().unwrap_or_else(|| device.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_changes_no_terminal() {
        let shown =
            |name: &[u8]| String::from_utf8(told(OsStr::from_bytes(name), true).into_owned()).unwrap();
        assert_eq!(shown("plain, \u{fc}nd l\u{e5}ng".as_bytes()), "plain, \u{fc}nd l\u{e5}ng");
        assert_eq!(shown(b"\x1b[2J\x07\n\\"), "\\033[2J\\007\\n\\\\");
        assert_eq!(shown(b"a\xff\xfeb"), "a\\377\\376b");
        // A control character of two bytes.
        assert_eq!(shown("\u{9b}31m".as_bytes()), "\\302\\23331m");
        for name in [&b"\x1b[2J"[..], b"\xff"] {
            assert_eq!(&*told(OsStr::from_bytes(name), false), name);
        }
    }
}
