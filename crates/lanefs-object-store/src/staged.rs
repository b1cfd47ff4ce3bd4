//! A file on its way to become an object (O1 to O3).

use crate::attributes;
use crate::error::{generic, of};
use crate::listing::{e_tag, is_object};
use crate::names::{Place, STAGING, lock};
use lanefs::{File, Ino, OpenOptions};
use object_store::path::Path;
use object_store::{Attributes, Error, PutMode, PutPayload, PutResult, Result, TagSet, UpdateVersion};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file without a name, which is gone when it is dropped.
#[derive(Debug)]
pub struct Staged {
    place: Arc<Place>,
    location: Path,
    file: File,
}

/// Returns a path for a name that is replaced at once.
pub fn passing_name(place: &Place) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}/{STAGING}/{}-{}", place.root, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Gives an inode a name in place of another, in one step: `link` gives it a first one.
pub fn replace(
    place: &Place,
    location: &Path,
    path: &str,
    ino: Ino,
    link: impl Fn(&str) -> lanefs::Result<()>,
) -> Result<()> {
    // Two names of one file are not replaced by each other.
    if place.fs.stat(path).is_ok_and(|there| there.ino == ino) {
        return Ok(());
    }
    let passing = passing_name(place);
    link(&passing).map_err(|e| of(location, e))?;
    let result = place.in_directory(location, path, || place.fs.rename(passing.as_str(), path));
    if result.is_err() {
        let _ = place.fs.remove_file(passing.as_str());
    }
    result
}

impl Staged {
    /// Makes one, with the attributes that the object is to have.
    pub fn new(place: &Arc<Place>, location: &Path, all: &Attributes, tags: &TagSet) -> Result<Staged> {
        place.object(location)?;
        let dir = format!("{}/{STAGING}", place.root);
        let mut how = OpenOptions::new();
        how.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o666);
        let file = place.fs.open(dir.as_str(), &how).map_err(generic)?;
        attributes::keep(&place.fs, location, file.ino(), all, tags)?;
        Ok(Staged { place: Arc::clone(place), location: location.clone(), file })
    }

    /// Writes bytes at an offset.
    pub fn write(&self, payload: &PutPayload, mut at: u64) -> Result<()> {
        for piece in payload {
            self.file.write_all_at(piece, at).map_err(|e| of(&self.location, e))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Makes it the object, if `mode` allows that. `sync`: durably.
    pub fn publish(self, mode: &PutMode, sync: bool) -> Result<PutResult> {
        let Staged { place, location, file } = &self;
        let path = place.object(location)?;
        if sync {
            file.sync_all().map_err(|e| of(location, e))?;
        }
        let held = lock(&path);
        let link = |to: &str| place.fs.link_file(file, to);
        match mode {
            PutMode::Create => place.in_directory(location, &path, || link(&path))?,
            PutMode::Overwrite => replace(place, location, &path, file.ino(), link)?,
            PutMode::Update(version) => {
                expect(place, location, &path, version)?;
                replace(place, location, &path, file.ino(), link)?;
            }
        }
        drop(held);
        if sync {
            // The name, and the directories that it needs.
            file.sync_all().map_err(|e| of(location, e))?;
        }
        let stat = file.stat().map_err(|e| of(location, e))?;
        Ok(PutResult { e_tag: Some(e_tag(&stat)), version: None, extensions: Default::default() })
    }
}

/// Checks that an object is the one that an update is for.
fn expect(place: &Place, location: &Path, path: &str, version: &UpdateVersion) -> Result<()> {
    let unmet = |why: String| Error::Precondition { path: location.to_string(), source: why.into() };
    let Some(expected) = &version.e_tag else {
        return Err(generic("an update needs the entity tag of what it is for"));
    };
    match place.fs.stat(path) {
        Ok(stat) if !is_object(&stat) => Err(unmet("there is none".into())),
        Ok(stat) if e_tag(&stat) == *expected => Ok(()),
        Ok(stat) => Err(unmet(format!("{} does not match {expected}", e_tag(&stat)))),
        Err(e) if matches!(e.errno(), libc::ENOENT | libc::ENOTDIR) => Err(unmet("there is none".into())),
        Err(e) => Err(of(location, e)),
    }
}
