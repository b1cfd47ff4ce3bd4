//! Attributes of objects, kept as extended attributes of their files.

use crate::error::of;
use lanefs::{Fs, Ino};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, Result, TagSet};

/// What the names begin with.
const PREFIX: &str = "user.object_store.";
/// What follows for a key of the user's own.
const METADATA: &str = "metadata.";

/// Attributes with a name of their own.
const KNOWN: &[(Attribute, &str)] = &[
    (Attribute::ContentDisposition, "content_disposition"),
    (Attribute::ContentEncoding, "content_encoding"),
    (Attribute::ContentLanguage, "content_language"),
    (Attribute::ContentType, "content_type"),
    (Attribute::CacheControl, "cache_control"),
    (Attribute::StorageClass, "storage_class"),
];

/// Returns the name under which an attribute is kept.
fn name(attribute: &Attribute) -> Result<String> {
    if let Some((_, name)) = KNOWN.iter().find(|(known, _)| known == attribute) {
        return Ok(format!("{PREFIX}{name}"));
    }
    match attribute {
        Attribute::Metadata(key) => Ok(format!("{PREFIX}{METADATA}{key}")),
        other => Err(Error::NotSupported { source: format!("the attribute {other:?}").into() }),
    }
}

/// Keeps the attributes and tags of a file that is about to be an object.
pub fn keep(fs: &Fs, location: &Path, ino: Ino, all: &Attributes, tags: &TagSet) -> Result<()> {
    let set = |name: &str, value: &str| {
        let kept = fs.volume().node_setxattr(fs.cred(), ino, name.as_bytes(), value.as_bytes(), 0);
        kept.map_err(|e| of(location, e))
    };
    for (attribute, value) in all {
        set(&name(attribute)?, value)?;
    }
    match tags.encoded() {
        "" => Ok(()),
        tags => set(&format!("{PREFIX}tags"), tags),
    }
}

/// Returns the attributes of an object.
pub fn of_file(fs: &Fs, location: &Path, ino: Ino) -> Result<Attributes> {
    let (volume, cred) = (fs.volume(), fs.cred());
    let mut all = Attributes::new();
    for full in volume.node_listxattr(cred, ino).map_err(|e| of(location, e))? {
        let Some(name) = std::str::from_utf8(&full).ok().and_then(|n| n.strip_prefix(PREFIX)) else {
            continue;
        };
        let attribute = match (name.strip_prefix(METADATA), KNOWN.iter().find(|(_, n)| *n == name)) {
            (Some(key), _) => Attribute::Metadata(key.to_string().into()),
            (None, Some((known, _))) => known.clone(),
            (None, None) => continue,
        };
        let value = volume.node_getxattr(cred, ino, &full).map_err(|e| of(location, e))?;
        all.insert(attribute, String::from_utf8_lossy(&value).into_owned().into());
    }
    Ok(all)
}
