//! The store.

use crate::attributes;
use crate::error::{blocking, generic, missing, of};
use crate::listing::{self, is_object, meta};
use crate::names::{Place, STAGING, lock, lock_both};
use crate::staged::{Staged, replace};
use crate::upload::Upload;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use lanefs::{File, Fs, OpenOptions, Stat, Volume};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, RenameTargetMode, Result,
};
use std::ops::Range;
use std::sync::Arc;

/// The most bytes of an object that are brought at once.
const PIECE: u64 = 1 << 20;
/// Deletes of a stream that are under way at once.
const DELETES: usize = 16;

/// Objects in the files of a volume. Clones are the same store.
#[derive(Clone, Debug)]
pub struct LaneStore {
    place: Arc<Place>,
    sync: bool,
}

impl std::fmt::Display for LaneStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaneStore({}/)", self.place.root)
    }
}

impl LaneStore {
    /// Returns the store of all files of a volume, with the rights of this process.
    ///
    /// # Errors
    /// As [`LaneStore::below`].
    pub fn new(volume: &Volume) -> Result<LaneStore> {
        LaneStore::below(volume.fs(), "/")
    }

    /// Returns the store of the files below a directory, which is made if it is missing, as the
    /// user of `fs` and with its umask.
    ///
    /// # Errors
    /// The directory, or the one for uploads in it, can be neither made nor read.
    pub fn below(fs: Fs, dir: &str) -> Result<LaneStore> {
        let root = Path::parse(dir).map_err(|e| Error::InvalidPath { source: e })?;
        let root = if root.as_ref().is_empty() { String::new() } else { format!("/{root}") };
        let staging = format!("{root}/{STAGING}");
        fs.create_dir_all(staging.as_str()).map_err(generic)?;
        // A crash may have left passing names of an earlier process. What this one has is new.
        let mine = format!("{}-", std::process::id());
        for entry in fs.read_dir(staging.as_str()).map_err(generic)?.flatten() {
            if !entry.name().to_string_lossy().starts_with(&mine) {
                let _ = fs.remove_file(entry.path());
            }
        }
        Ok(LaneStore { place: Arc::new(Place { fs, root }), sync: true })
    }

    /// Says whether a change is durable before it is acknowledged; it is unless this says
    /// otherwise. Without, changes become durable later, as those of a file do that is not synced:
    /// after a crash an object may be there without its content.
    pub fn with_sync(self, sync: bool) -> LaneStore {
        LaneStore { sync, ..self }
    }

    /// Does something with the volume, where it may block.
    async fn at_place<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Arc<Place>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = Arc::clone(&self.place);
        blocking(move || f(&place)).await
    }
}

/// Opens an object.
fn open(place: &Place, location: &Path) -> Result<(File, Stat)> {
    let path = place.object(location)?;
    let file = place.fs.open(path.as_str(), OpenOptions::new().read(true)).map_err(|e| of(location, e))?;
    let stat = file.stat().map_err(|e| of(location, e))?;
    if is_object(&stat) { Ok((file, stat)) } else { Err(missing(location)) }
}

/// Reads a range that the object has.
fn read(file: &File, location: &Path, range: Range<u64>) -> Result<Bytes> {
    let len = usize::try_from(range.end - range.start).map_err(generic)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, range.start).map_err(|e| of(location, e))?;
    Ok(bytes.into())
}

/// Returns the rest of an object, piece by piece.
fn pieces(file: Arc<File>, location: Path, rest: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    stream::try_unfold((file, location, rest), |(file, location, rest)| async move {
        if rest.is_empty() {
            return Ok(None);
        }
        let end = rest.end.min(rest.start + PIECE);
        blocking(move || {
            let bytes = read(&file, &location, rest.start..end)?;
            Ok(Some((bytes, (file, location, end..rest.end))))
        })
        .await
    })
    .boxed()
}

/// Makes what happened to the names of a directory durable.
fn sync_directory(place: &Place, location: &Path, path: &str) -> Result<()> {
    match place.fs.open_dir(place.parent(path)).and_then(|dir| dir.sync_all()) {
        // It went with its last object; the one above tells of that.
        Err(e) if e.errno() == libc::ENOENT && path.len() > 1 => {
            sync_directory(place, location, place.parent(path))
        }
        result => result.map_err(|e| of(location, e)),
    }
}

/// Removes an object.
fn delete(place: &Place, location: &Path, sync: bool) -> Result<()> {
    let path = place.object(location)?;
    let held = lock(&path);
    match place.fs.remove_file(path.as_str()) {
        Err(e)
            if matches!(e.errno(), libc::EISDIR | libc::EPERM)
                && place.fs.read_dir(path.as_str()).is_ok() =>
        {
            return Err(missing(location));
        }
        result => result.map_err(|e| of(location, e))?,
    }
    drop(held);
    place.clean(&path);
    if sync { sync_directory(place, location, &path) } else { Ok(()) }
}

#[async_trait]
impl ObjectStore for LaneStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let (location, sync) = (location.clone(), self.sync);
        self.at_place(move |place| {
            let staged = Staged::new(place, &location, &opts.attributes, &opts.tags)?;
            staged.write(&payload, 0)?;
            staged.publish(&opts.mode, sync)
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (location, sync) = (location.clone(), self.sync);
        self.at_place(move |place| {
            let staged = Staged::new(place, &location, &opts.attributes, &opts.tags)?;
            Ok(Box::new(Upload::new(staged, sync)) as Box<dyn MultipartUpload>)
        })
        .await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let location = location.clone();
        self.at_place(move |place| {
            let (file, stat) = open(place, &location)?;
            let meta = meta(location.clone(), &stat);
            if options.version.is_some() {
                return Err(Error::NotSupported { source: "versions of an object are not kept".into() });
            }
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(generic)?,
                None => 0..meta.size,
            };
            let attributes = attributes::of_file(&place.fs, &location, file.ino())?;
            // A small object needs no second trip.
            let first = if options.head { range.end } else { range.end.min(range.start + PIECE) };
            let begin = match options.head {
                true => Bytes::new(),
                false => read(&file, &location, range.start..first)?,
            };
            let rest = pieces(Arc::new(file), location, first..range.end);
            let payload = stream::once(async { Ok(begin) }).chain(rest).boxed();
            let payload = GetResultPayload::Stream(payload);
            Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
        })
        .await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (location, ranges) = (location.clone(), ranges.to_vec());
        self.at_place(move |place| {
            let (file, stat) = open(place, &location)?;
            let one = |range: Range<u64>| {
                let range = GetRange::Bounded(range).as_range(stat.size).map_err(generic)?;
                read(&file, &location, range)
            };
            ranges.into_iter().map(one).collect()
        })
        .await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let one = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let (location, sync) = (location?, store.sync);
                let removed = move |place: &Arc<Place>| delete(place, &location, sync).map(|()| location);
                store.at_place(removed).await
            }
        };
        locations.map(one).buffered(DELETES).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        listing::all(Arc::clone(&self.place), prefix.cloned().unwrap_or_default())
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        self.at_place(move |place| listing::one_level(place, prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to, sync) = (from.clone(), to.clone(), self.sync);
        self.at_place(move |place| {
            let (file, _) = open(place, &from)?;
            let path = place.object(&to)?;
            let held = lock(&path);
            let link = |name: &str| place.fs.link_file(&file, name);
            match options.mode {
                CopyMode::Overwrite => replace(place, &to, &path, file.ino(), link)?,
                CopyMode::Create => place.in_directory(&to, &path, || link(&path))?,
            }
            drop(held);
            if sync { file.sync_all().map_err(|e| of(&to, e)) } else { Ok(()) }
        })
        .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (from, to, sync) = (from.clone(), to.clone(), self.sync);
        self.at_place(move |place| {
            let (file, stat) = open(place, &from)?;
            let (old, new) = (place.object(&from)?, place.object(&to)?);
            let held = lock_both(&old, &new);
            let flags = match options.target_mode {
                RenameTargetMode::Overwrite => 0,
                RenameTargetMode::Create => libc::RENAME_NOREPLACE,
            };
            // Two names of one file, one of which is a copy: a rename would leave both.
            let is_copy = old != new && place.fs.stat(new.as_str()).is_ok_and(|there| there.ino == stat.ino);
            if is_copy && flags == 0 {
                place.fs.remove_file(old.as_str()).map_err(|e| of(&from, e))?;
            } else if old != new || flags != 0 {
                place.in_directory(&to, &new, || place.fs.rename2(old.as_str(), new.as_str(), flags))?;
            }
            drop(held);
            place.clean(&old);
            if sync {
                file.sync_all().map_err(|e| of(&to, e))?;
                sync_directory(place, &from, &old)?;
            }
            Ok(())
        })
        .await
    }
}
