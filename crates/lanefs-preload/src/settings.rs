//! What `lanefs run` has put into the environment.

use crate::raw::sys;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A mount of the volume that this process serves.
pub struct Mount {
    /// Its directory, absolute.
    pub dir: Vec<u8>,
    /// Whether that is the prefix.
    pub at_prefix: bool,
}

/// What the library was started with.
pub struct Settings {
    /// The directory whose paths are served: absolute, without a slash at its end.
    pub prefix: Vec<u8>,
    /// The last component of it.
    pub last: Vec<u8>,
    /// The images of the volume.
    pub images: Vec<PathBuf>,
    /// The working directory inside the volume, if the program begins there: an absolute path of
    /// the volume.
    pub cwd: Option<Vec<u8>>,
    /// Bytes of memory for the volume; 0 for the default.
    pub cache: u64,
    /// The mount that this process serves.
    pub mount: Option<Mount>,
    /// Where another process serves one.
    pub mounted: Option<Vec<u8>>,
    /// Whether a report is wanted.
    pub report: bool,
    /// What was preloaded: this library, and others.
    pub preload: Vec<u8>,
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// Returns the settings; `None`: the library was loaded without, and changes nothing.
#[inline]
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_init(read).as_ref()
}

fn variable(name: &str) -> Option<Vec<u8>> {
    std::env::var_os(name).map(OsString::into_vec).filter(|v| !v.is_empty())
}

/// Returns what follows the prefix in a path, if it lies below; of the prefix itself, nothing.
pub fn below<'p>(prefix: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest[0] == b'/')
}

fn read() -> Option<Settings> {
    let prefix = variable("LANEFS_PREFIX")?;
    let images = variable("LANEFS_IMAGES")?;
    let last = prefix.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
    if !prefix.starts_with(b"/") || last.is_empty() {
        return None;
    }
    let images = images.split(|b| *b == b'\n').map(|i| OsString::from_vec(i.to_vec()).into()).collect();
    // The host may have a directory where the prefix is, and the program may begin there.
    let here = || {
        let mut dir = vec![0u8; 4096];
        // SAFETY: the kernel writes at most so many bytes. No hook may run here: it would ask for
        // the settings.
        let n = unsafe { sys!(libc::SYS_getcwd, dir.as_mut_ptr(), dir.len()) };
        dir.truncate(usize::try_from(n).unwrap_or(0).saturating_sub(1));
        Some(dir)
    };
    let cwd = variable("LANEFS_CWD").or_else(here).and_then(|d| {
        below(&prefix, &d).map(|rest| if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() })
    });
    let number = |v: Vec<u8>| String::from_utf8(v).ok()?.parse().ok();
    let cache = variable("LANEFS_CACHE").and_then(number).unwrap_or(0);
    let mount = variable("LANEFS_MOUNT").map(|dir| Mount { at_prefix: dir == prefix, dir });
    let mounted = variable("LANEFS_MOUNTED");
    let report = variable("LANEFS_REPORT").is_some_and(|v| v != b"0");
    let preload = variable("LD_PRELOAD").unwrap_or_default();
    Some(Settings { prefix, last, images, cwd, cache, mount, mounted, report, preload })
}
