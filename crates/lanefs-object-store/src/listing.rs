//! What a listing tells of objects.

use crate::error::{blocking, of};
use crate::names::{Place, STAGING};
use chrono::DateTime;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use lanefs::{FileKind, ReadDir, Stat};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};
use std::sync::Arc;

/// Entries that are looked at in one go.
const AT_ONCE: usize = 1000;

/// Returns whether a file is an object.
pub fn is_object(stat: &Stat) -> bool {
    stat.kind == FileKind::File
}

/// Returns the entity tag of an object: another for each content. A number of an inode that comes
/// again comes at a later time.
pub fn e_tag(stat: &Stat) -> String {
    format!("\"{:x}-{:x}-{:x}\"", stat.ino.0, stat.mtime, stat.size)
}

/// Describes an object.
pub fn meta(location: Path, stat: &Stat) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: DateTime::from_timestamp_nanos(stat.mtime),
        size: stat.size,
        e_tag: Some(e_tag(stat)),
        version: None,
    }
}

/// A directory whose entries are listed.
struct Level {
    prefix: Path,
    entries: ReadDir,
}

/// What an entry of a directory is.
enum Entry {
    Object(ObjectMeta),
    Below(Path),
}

impl Level {
    /// Begins; `None`: there is no such directory.
    fn open(place: &Place, prefix: Path) -> Result<Option<Level>> {
        match place.fs.read_dir(place.path(&prefix).as_str()) {
            Ok(entries) => Ok(Some(Level { prefix, entries })),
            Err(e) if matches!(e.errno(), libc::ENOENT | libc::ENOTDIR) => Ok(None),
            Err(e) => Err(of(&prefix, e)),
        }
    }

    /// Returns the next object or directory.
    fn next(&mut self) -> Result<Option<Entry>> {
        for entry in self.entries.by_ref() {
            let entry = entry.map_err(|e| of(&self.prefix, e))?;
            // What no location can name is none.
            let name = entry.name().to_str().and_then(|n| Path::parse(n).ok());
            let Some(name) = name.filter(|n| n.parts().count() == 1) else { continue };
            if name.as_ref() == STAGING {
                continue;
            }
            let location: Path = self.prefix.parts().chain(name.parts()).collect();
            match entry.file_type() {
                FileKind::Dir => return Ok(Some(Entry::Below(location))),
                FileKind::File => match entry.metadata() {
                    Ok(found) if is_object(found.stat()) => {
                        return Ok(Some(Entry::Object(meta(location, found.stat()))));
                    }
                    // It was removed, or is another file by now.
                    Ok(_) => {}
                    Err(e) if e.errno() == libc::ENOENT => {}
                    Err(e) => return Err(of(&location, e)),
                },
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Lists the objects below a prefix, and in all directories below that.
pub fn all(place: Arc<Place>, prefix: Path) -> BoxStream<'static, Result<ObjectMeta>> {
    // The directories that are open, the deepest last; at first none is.
    let begin = (place, Some(prefix), Vec::new());
    let batches = stream::try_unfold(begin, |(place, first, levels)| async move {
        blocking(move || some(place, first, levels)).await
    });
    batches.map_ok(|found| stream::iter(found.into_iter().map(Ok))).try_flatten().boxed()
}

/// What is left of a listing.
type Rest = (Arc<Place>, Option<Path>, Vec<Level>);

/// Returns some objects, and what is left; `None` at the end.
fn some(
    place: Arc<Place>,
    first: Option<Path>,
    mut levels: Vec<Level>,
) -> Result<Option<(Vec<ObjectMeta>, Rest)>> {
    if let Some(prefix) = first {
        levels.extend(Level::open(&place, prefix)?);
    }
    let mut found = Vec::new();
    while let Some(level) = levels.last_mut() {
        match level.next()? {
            Some(Entry::Object(meta)) => found.push(meta),
            Some(Entry::Below(prefix)) => levels.extend(Level::open(&place, prefix)?),
            None => drop(levels.pop()),
        }
        if found.len() == AT_ONCE {
            break;
        }
    }
    Ok((!found.is_empty()).then_some((found, (place, None, levels))))
}

/// Lists the objects and the directories directly below a prefix.
pub fn one_level(place: &Place, prefix: Path) -> Result<ListResult> {
    let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
    if let Some(mut level) = Level::open(place, prefix)? {
        while let Some(entry) = level.next()? {
            match entry {
                Entry::Object(meta) => objects.push(meta),
                Entry::Below(prefix) => common_prefixes.push(prefix),
            }
        }
    }
    objects.sort_unstable_by(|a, b| a.location.cmp(&b.location));
    common_prefixes.sort_unstable();
    Ok(ListResult { objects, common_prefixes, extensions: Default::default() })
}
