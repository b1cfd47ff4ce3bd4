//! Images, and places inside them: `IMAGE:/path`.
//!
//! A volume on several devices is written with commas: `a.lane,b.lane:/path`.

use crate::failure::{About, Failure};
use crate::mounted;
use crate::names::images;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use lanefs::{Cred, Fs, MountOptions, Volume};
use lanefs_store::StoreError;
use lanefs_store::device::{FileDevice, FileOptions};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory that a command takes for a volume, about: it reads and writes most things once.
const CACHE: u64 = 128 << 20;

/// A place inside an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The volume's images.
    pub images: Vec<PathBuf>,
    /// The path inside, with `/` in front.
    pub path: PathBuf,
}

impl Place {
    /// Reads `IMAGE:/path`; `None` if `text` does not have that form.
    fn read(text: &OsStr) -> Option<Place> {
        let bytes = text.as_bytes();
        let colon = match bytes.windows(2).position(|w| w == b":/") {
            Some(at) => at,
            None if bytes.len() > 1 && bytes.ends_with(b":") => bytes.len() - 1,
            None => return None,
        };
        let (image, path) = (&bytes[..colon], &bytes[colon + 1..]);
        if image.is_empty() {
            return None;
        }
        let path = if path.is_empty() { b"/" } else { path };
        debug_assert!(path.starts_with(b"/"));
        Some(Place { images: images(OsStr::from_bytes(image)), path: PathBuf::from(OsStr::from_bytes(path)) })
    }

    /// Formats the place for messages.
    pub fn show(&self) -> String {
        let images: Vec<String> = self.images.iter().map(|i| i.display().to_string()).collect();
        format!("{}:{}", images.join(","), self.path.display())
    }

    /// Returns another path of the same volume.
    pub fn at(&self, path: impl Into<PathBuf>) -> Place {
        Place { images: self.images.clone(), path: path.into() }
    }

    /// Opens the volume to look at it.
    pub fn open_to_read(&self) -> Result<(Volume, Fs), Failure> {
        open(&self.images, true)
    }

    /// Opens the volume to change it.
    pub fn open_to_write(&self) -> Result<(Volume, Fs), Failure> {
        open(&self.images, false)
    }
}

impl Place {
    /// Reads an argument: `IMAGE:/path`, or `IMAGE` alone for its root.
    fn of(text: &OsStr) -> Result<Place, String> {
        match Place::read(text) {
            Some(place) => Ok(place),
            None if text.is_empty() => Err("name an image".into()),
            None => Ok(Place { images: images(text), path: PathBuf::from("/") }),
        }
    }
}

/// Names are bytes, on the command line too.
impl ValueParserFactory for Place {
    type Parser = ValueParser;
    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text| Place::of(&text)).into()
    }
}

/// A place inside an image or on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anywhere {
    /// A path of the host.
    Host(PathBuf),
    /// Inside an image.
    Image(Place),
}

impl Anywhere {
    /// Reads an argument: `IMAGE:/path` is inside an image, unless the host has a file of just that
    /// name.
    fn of(text: &OsStr) -> Result<Anywhere, String> {
        match Place::read(text) {
            Some(place) if !Path::new(text).exists() => Ok(Anywhere::Image(place)),
            _ if text.is_empty() => Err("name a file".into()),
            _ => Ok(Anywhere::Host(PathBuf::from(text))),
        }
    }
}

impl ValueParserFactory for Anywhere {
    type Parser = ValueParser;
    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text| Anywhere::of(&text)).into()
    }
}

/// Returns the owner of what is made: the caller. Who may read or write the image may read or write
/// all that is in it, so nothing is asked beyond that.
pub fn who() -> Cred {
    Cred { prechecked: true, ..Cred::current() }
}

/// Opens a volume for who may open its images.
fn open(images: &[PathBuf], read_only: bool) -> Result<(Volume, Fs), Failure> {
    let options =
        MountOptions { read_only, background: !read_only, cache_size: CACHE, ..MountOptions::default() };
    let volume = open_with(images, &options)?;
    let fs = volume.as_user(who());
    Ok((volume, fs))
}

/// Opens a volume. The failure for an image that is not there names the way to make one.
pub fn open_with(images: &[PathBuf], options: &MountOptions) -> Result<Volume, Failure> {
    open_by(images, || Volume::open(images, options))
}

/// Opens the volume on a block device that is to be mounted as one.
pub fn open_to_mount(device: &Path, options: &MountOptions) -> Result<Volume, Failure> {
    let how = FileOptions { read_only: options.read_only, exclusive: false, ..FileOptions::default() };
    open_by(&[device.to_path_buf()], || {
        Volume::open_devices(vec![Arc::new(FileDevice::open_with(device, how)?)], options)
    })
}

/// Returns `IMAGE:/path` for a name that lacks the slash, where there is such an image.
fn place_meant(image: &Path) -> Option<String> {
    let (image, path) = image.to_str()?.split_once(':')?;
    Path::new(image).is_file().then(|| format!("{image}:/{path}"))
}

/// Opens by `open`, and waits while the images are about to be closed.
fn open_by(images: &[PathBuf], open: impl Fn() -> lanefs::Result<Volume>) -> Result<Volume, Failure> {
    for image in images {
        if mounted::is_dead(image) {
            return Err(mounted::dead(image));
        }
        match std::fs::metadata(image) {
            Ok(_) => continue,
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).about(image.display()),
            Err(_) => {}
        }
        if let Some(place) = place_meant(image) {
            return Err(Failure::new(format_args!(
                "{}: a path inside a volume begins with a slash: {place}",
                image.display()
            )));
        }
        return Err(Failure::new(format_args!(
            "{}: no such image; make one with `lanefs mkfs --size 4G {}`",
            image.display(),
            image.display()
        )));
    }
    let holder = |e: &lanefs::Error| match e {
        lanefs::Error::Store(StoreError::InUse { pid, .. }) => Some(*pid),
        _ => None,
    };
    match mounted::when_closed(images, open, holder) {
        Err(e @ lanefs::Error::Posix(_)) => Err(e).about(images[0].display()),
        Err(e) => Err(e.into()),
        Ok(volume) => Ok(volume),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let place = |images: &[&str], path: &str| Place {
            images: images.iter().map(PathBuf::from).collect(),
            path: PathBuf::from(path),
        };
        assert_eq!(Place::of(OsStr::new("vol.lane:/a/b")), Ok(place(&["vol.lane"], "/a/b")));
        assert_eq!(Place::of(OsStr::new("vol.lane:/a:/b")), Ok(place(&["vol.lane"], "/a:/b")));
        assert_eq!(Place::of(OsStr::new("vol.lane:")), Ok(place(&["vol.lane"], "/")));
        assert_eq!(Place::of(OsStr::new("vol.lane")), Ok(place(&["vol.lane"], "/")));
        assert_eq!(Place::of(OsStr::new("a,b:/x")), Ok(place(&["a", "b"], "/x")));
        assert!(Place::of(OsStr::new("")).is_err());
    }

    #[test]
    fn a_path_without_colon_is_the_hosts() {
        assert_eq!(Anywhere::of(OsStr::new("src")), Ok(Anywhere::Host("src".into())));
        assert_eq!(Anywhere::of(OsStr::new("/dev/null")), Ok(Anywhere::Host("/dev/null".into())));
        assert!(matches!(Anywhere::of(OsStr::new("v:/dst")), Ok(Anywhere::Image(_))));
    }
}
