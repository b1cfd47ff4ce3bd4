//! Names of databases: which volume, and which file in it. SQLite is given `KEY:/PATH`, the key
//! being the absolute paths of the volume's images with commas between, or the name by which a
//! program has registered a volume. So journals, whose names SQLite makes of the database's, are in
//! the same volume.

use crate::volumes;
use std::path::Path;

/// Splits a full name into the key of the volume and the path in it.
pub fn split(full: &str) -> Option<(&str, &str)> {
    let at = full.rfind(":/")?;
    Some((&full[..at], &full[at + 1..]))
}

/// Returns the full name of a database.
pub fn full(name: &str, volume: Option<&str>) -> Result<String, String> {
    let (key, path) = match (volume, split(name)) {
        (Some(volume), _) => (key(volume)?, name.to_string()),
        (None, Some((volume, path))) => (key(volume)?, path.to_string()),
        (None, None) => (volumes::only_one()?, name.to_string()),
    };
    if path.contains(":/") || path.is_empty() {
        return Err(format!("{path:?}: a name in a volume must not be empty or have \":/\" in it"));
    }
    Ok(format!("{key}:/{}", path.trim_start_matches('/')))
}

/// Returns the key of a volume: absolute, so that one volume has one key.
fn key(volume: &str) -> Result<String, String> {
    if volumes::is_registered(volume) {
        return Ok(volume.to_string());
    }
    let all: Result<Vec<String>, String> = volume.split(',').map(absolute).collect();
    let key = all?.join(",");
    if key.contains(":/") {
        Err(format!("{key}: an image's path must not have \":/\" in it"))
    } else {
        Ok(key)
    }
}

/// Returns the absolute path of an image, which may not exist yet.
fn absolute(image: &str) -> Result<String, String> {
    let path = Path::new(image);
    let found = path.canonicalize().or_else(|e| match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) if e.kind() == std::io::ErrorKind::NotFound => {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            Ok(dir.canonicalize()?.join(name))
        }
        _ => Err(e),
    });
    let found = found.map_err(|e| format!("{image}: {e}"))?;
    found.into_os_string().into_string().map_err(|_| format!("{image}: its path is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_volume_in_it_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let image = format!("{}/./disk.lane", dir.display());
        let expected = format!("{}/disk.lane:/sub/app.db", dir.display());
        assert_eq!(full("sub/app.db", Some(&image)), Ok(expected.clone()));
        assert_eq!(full("/sub/app.db", Some(&image)), Ok(expected.clone()));
        assert_eq!(full(&expected, None), Ok(expected.clone()));
        let journal = format!("{expected}-journal");
        let key = format!("{}/disk.lane", dir.display());
        assert_eq!(split(&journal), Some((key.as_str(), "/sub/app.db-journal")));
        assert!(full("a:/b.db", Some(&image)).is_err());
        assert!(full("b.db", Some("/no/such/dir/disk.lane")).is_err());
    }
}
