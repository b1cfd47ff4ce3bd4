//! From errors of the volume to those of the trait.

use object_store::Error;
use object_store::path::Path;

/// The name by which errors name this store.
pub const STORE: &str = "LaneFS";

/// Returns the error of a call on an object.
pub fn of(location: &Path, source: lanefs::Error) -> Error {
    let path = location.to_string();
    match source.errno() {
        // A part of the location that is an object has nothing below it.
        libc::ENOENT | libc::ENOTDIR => Error::NotFound { path, source: source.into() },
        libc::EEXIST => Error::AlreadyExists { path, source: source.into() },
        libc::EACCES | libc::EPERM | libc::EROFS => Error::PermissionDenied { path, source: source.into() },
        _ => generic(source),
    }
}

/// Returns an error that is about no object, or has no name of its own.
pub fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: STORE, source: source.into() }
}

/// Returns the error of an object that is not there.
pub fn missing(location: &Path) -> Error {
    Error::NotFound { path: location.to_string(), source: "no object of this location".into() }
}

/// Does what blocks where that may be done.
pub async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> object_store::Result<T> + Send + 'static,
) -> object_store::Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(f).await.map_err(generic)?,
        Err(_) => f(),
    }
}
