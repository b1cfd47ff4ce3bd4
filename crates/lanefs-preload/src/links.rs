//! Walks that the library does not do as the program means them: through symbolic links with an
//! absolute target, and from a directory up to its path.

use crate::route::{Last, Route, Spot, Start, WorkingDir, by_text, cwd_open, cwd_path, set_cwd};
use crate::settings::settings;
use crate::table::Description;
use crate::{opening, table, upwards, volume};
use lanefs::{FileKind, Fs, Volume};
use std::ffi::{CString, c_int};
use std::sync::Arc;

/// Links that are followed in one walk, as Linux does.
const LINKS: usize = 40;

/// Returns the working directory of the volume; opens it if need be. Called within
/// [`volume::serve`].
pub fn cwd_dir(volume: &Volume) -> Result<Option<Arc<Description>>, c_int> {
    if let Some(dir) = cwd_open() {
        return Ok(Some(dir));
    }
    let Some(path) = cwd_path() else { return Ok(None) };
    let fs = volume::view(volume);
    let dir = Arc::new(opening::directory(fs, &path)?);
    set_cwd(Some(WorkingDir { path, dir: Some(dir.clone()) }));
    Ok(Some(dir))
}

/// Calls `f` with a view whose paths begin where this one does. Called within
/// [`volume::serve`].
pub fn with<T>(
    spot: &Spot<'_>,
    volume: &Volume,
    f: impl FnOnce(&Fs, &[u8]) -> Result<T, c_int>,
) -> Result<T, c_int> {
    let view = volume::view(volume);
    if spot.path.is_empty() {
        return Err(libc::ENOENT);
    }
    let start = match spot.start {
        Start::Root => return f(view, &spot.path),
        Start::Cwd => cwd_dir(volume)?.ok_or(libc::ENOENT)?,
        Start::Dir(fd) => table::get(fd).ok_or(libc::EBADF)?,
    };
    let dir = start.dir.as_ref().ok_or(libc::ENOTDIR)?;
    if dir.fs().umask() == view.umask() {
        f(dir.fs(), &spot.path)
    } else {
        f(&dir.fs().with_umask(view.umask()), &spot.path)
    }
}

/// Returns a place as an absolute path of the volume, wherever the directory is now in which it
/// begins. Called within [`volume::serve`].
pub fn absolute(volume: &Volume, spot: &Spot<'_>) -> Result<Vec<u8>, c_int> {
    if spot.path.is_empty() {
        return Err(libc::ENOENT);
    }
    let start = match spot.start {
        _ if spot.path.first() == Some(&b'/') => return Ok(spot.path.to_vec()),
        Start::Root => None,
        Start::Cwd => cwd_dir(volume)?,
        Start::Dir(fd) => table::get(fd),
    };
    let mut all = match start {
        Some(dir) => path_of(volume, &dir)?,
        None => Vec::new(),
    };
    append(&mut all, &spot.path);
    Ok(all)
}

/// Appends a relative path to the path of a directory.
pub fn append(dir: &mut Vec<u8>, path: &[u8]) {
    if dir.last() != Some(&b'/') {
        dir.push(b'/');
    }
    dir.extend_from_slice(path);
}

/// Where a walk ended.
enum Found {
    /// In the volume: a path without links on the way.
    Here(Vec<u8>),
    /// On the host.
    Host(Vec<u8>),
}

/// Walks an absolute path of the volume name by name. Returns also whether an absolute link lay on
/// the way. What does not exist is taken as it is named.
fn walk(fs: &Fs, path: &[u8], last: Last) -> Result<(Found, bool), c_int> {
    let settings = settings().ok_or(libc::EIO)?;
    let mut rest: Vec<Vec<u8>> = parts(path).rev().collect();
    let mut must_be_dir = path.ends_with(b"/");
    let mut at: Vec<Vec<u8>> = Vec::new();
    let (mut met, mut links) = (false, 0);
    while let Some(name) = rest.pop() {
        if name == b".." {
            at.pop();
            continue;
        }
        let mut here = join(&at);
        here.push(b'/');
        here.extend_from_slice(&name);
        let keeps = rest.is_empty() && last == Last::Keep && !must_be_dir;
        let is_link = !keeps && fs.lstat(&here).is_ok_and(|s| s.kind == FileKind::Symlink);
        if !is_link {
            at.push(name);
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(libc::ELOOP);
        }
        let target = fs.readlink(&here).map_err(|e| e.errno())?;
        if !target.starts_with(b"/") {
            rest.extend(parts(&target).rev());
            continue;
        }
        met = true;
        match by_text(settings, &target, false) {
            Route::Ours(spot) => {
                at.clear();
                must_be_dir |= rest.is_empty() && spot.path.len() > 1 && spot.path.ends_with(b"/");
                rest.extend(parts(&spot.path).rev());
            }
            _ => {
                let mut to = target;
                for name in rest.iter().rev() {
                    to.push(b'/');
                    to.extend_from_slice(name);
                }
                return Ok((Found::Host(to), met));
            }
        }
    }
    let mut found = join(&at);
    if found.is_empty() || must_be_dir {
        found.push(b'/');
    }
    Ok((Found::Here(found), met))
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").map(<[u8]>::to_vec)
}

fn join(names: &[Vec<u8>]) -> Vec<u8> {
    names.iter().flat_map(|n| [b"/", n.as_slice()].concat()).collect()
}

/// Returns where a path leads on which an absolute link lies; `None` if none does. Called within
/// [`volume::serve`].
pub fn through(volume: &Volume, spot: &Spot<'_>, last: Last) -> Option<Route<'static>> {
    match walk(volume::view(volume), &absolute(volume, spot).ok()?, last) {
        Ok((_, false)) | Err(_) => None,
        Ok((Found::Here(path), true)) => Some(Route::Ours(Spot { start: Start::Root, path: path.into() })),
        Ok((Found::Host(path), true)) => CString::new(path).ok().map(Route::HostPath),
    }
}

/// Returns the path of what exists, without links, `.` and `..`; the second is true if it is of the
/// host. Called within [`volume::serve`].
pub fn canonical(volume: &Volume, spot: &Spot<'_>) -> Result<(Vec<u8>, bool), c_int> {
    let fs = volume::view(volume);
    match walk(fs, &absolute(volume, spot)?, Last::Follow)?.0 {
        Found::Host(path) => Ok((path, true)),
        Found::Here(mut path) => {
            fs.stat(&path).map_err(|e| e.errno())?;
            while path.len() > 1 && path.ends_with(b"/") {
                path.pop();
            }
            Ok((path, false))
        }
    }
}

/// Returns where an open directory lies now, wherever it was moved. ENOENT: it was removed. Called
/// within [`volume::serve`].
pub fn path_of(volume: &Volume, dir: &table::Description) -> Result<Vec<u8>, c_int> {
    let fs = volume::view(volume);
    let mut at = dir.file.ino();
    if fs.stat(&dir.path).is_ok_and(|s| s.ino == at) {
        return Ok(dir.path.clone());
    }
    let root = fs.stat("/").map_err(|e| e.errno())?.ino;
    let mut names: Vec<Vec<u8>> = Vec::new();
    while at != root {
        let parent = upwards::above(volume, at).ok_or(libc::ENOENT)?;
        let mut name = None;
        volume
            .node_readdir(parent, 0, &mut |e| {
                if e.ino == at && e.name != b"." && e.name != b".." {
                    name = Some(e.name.to_vec());
                }
                name.is_none()
            })
            .map_err(|_| libc::ENOENT)?;
        names.push(name.ok_or(libc::ENOENT)?);
        at = parent;
    }
    names.reverse();
    let path = join(&names);
    Ok(if path.is_empty() { b"/".to_vec() } else { path })
}
