//! Changes of a mounted volume as a whole, by `ioctl` of a directory of the mount, for who has
//! CAP_SYS_ADMIN and the user who serves it without that (`Request::administers`): another size,
//! another label, a device more or less.
//!
//! A device that comes to the volume is named by a path, which leads somewhere else for a caller in
//! a container than for the process that serves the mount, and that may write where the caller may
//! not. So a caller has it open for writing meanwhile; another one is refused.
//!
//! The argument has [`CHANGE_SIZE`] bytes, in and out. In: for [`IOC_GROW`] the size in bytes, 0
//! for all that the device has; for [`IOC_LABEL`] the label, up to the first zero. Out, integers
//! little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 to 7 | 0: done; else it was refused |
//! | 8 to 23 | size in bytes before and after |
//! | 24 to 511 | why it was refused, up to the first zero |
//!
//! That of [`IOC_DEVICE`] has [`DEVICE_SIZE`] bytes, with the same answer. In:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 to 7 | a number of [`DeviceChange`] |
//! | 8 to 15 | the size in bytes, 0 for all that the device has; of `Add` and `Replace` 1: with force |
//! | 16 to 23 | zero |
//! | 24 to the first zero | the path of the device, as the server finds it; of `Add` the caller has that file open for writing |
//! | behind it to the next zero | of `Replace` the path of the new one, which the caller has open |
//!
//! The answer to `Replace` has, in place of the sizes, how many bytes were copied and how many of
//! these could not be read.

use lanefs::device::{Device, FileDevice};
use lanefs::{Error, Grown, StoreError, Volume};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the argument.
pub const CHANGE_SIZE: usize = 512;
/// `ioctl` on a directory of the mount: makes the volume larger.
pub const IOC_GROW: u32 = 3 << 30 | (CHANGE_SIZE as u32) << 16 | 0x4c05;
/// `ioctl` on a directory of the mount: gives the volume another label.
pub const IOC_LABEL: u32 = 3 << 30 | (CHANGE_SIZE as u32) << 16 | 0x4c06;

/// Bytes of the argument of [`IOC_DEVICE`]: a path fits.
pub const DEVICE_SIZE: usize = WHY + 4096;
/// `ioctl` on a directory of the mount: changes the volume's devices.
pub const IOC_DEVICE: u32 = 3 << 30 | (DEVICE_SIZE as u32) << 16 | 0x4c08;

/// The offset of the message.
const WHY: usize = 24;

/// A change of the devices of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceChange {
    /// Number 1: make this device larger, if it is the last one: see `Volume::grow_device`.
    Grow(PathBuf, Option<u64>),
    /// Number 2: make the last device smaller.
    Shrink(u64),
    /// Number 3: add this device, with force or without.
    Add(PathBuf, bool),
    /// Number 4: remove this device.
    Remove(PathBuf),
    /// Number 5: put the second device in the place of the first, with force or without.
    Replace(PathBuf, PathBuf, bool),
}

impl DeviceChange {
    /// Encodes the argument of [`IOC_DEVICE`]. `None` if the path is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let none = Path::new("");
        let (number, word, paths): (u64, u64, [&Path; 2]) = match self {
            DeviceChange::Grow(path, bytes) => (1, bytes.unwrap_or(0), [path, none]),
            DeviceChange::Shrink(bytes) => (2, *bytes, [none, none]),
            DeviceChange::Add(path, force) => (3, u64::from(*force), [path, none]),
            DeviceChange::Remove(path) => (4, 0, [path, none]),
            DeviceChange::Replace(old, new, force) => (5, u64::from(*force), [old, new]),
        };
        let path = paths.map(|path| path.as_os_str().as_bytes()).join(&0);
        let mut out = vec![0; DEVICE_SIZE];
        debug_assert!((1..=5).contains(&number), "there is no change {number}");
        out[..8].copy_from_slice(&number.to_le_bytes());
        out[8..16].copy_from_slice(&word.to_le_bytes());
        // One byte more, the zero at the end, is there.
        out.get_mut(WHY..WHY + path.len()).filter(|to| to.len() < DEVICE_SIZE - WHY)?.copy_from_slice(&path);
        debug_assert_eq!(out.len(), DEVICE_SIZE, "the command's number states the size");
        debug_assert_eq!(out.last(), Some(&0), "a path ends at the first zero");
        Some(out)
    }

    /// Decodes it. `None` if it makes no sense.
    fn decode(request: &[u8]) -> Option<DeviceChange> {
        let word = |at: usize| Some(u64::from_le_bytes(request.get(at..at + 8)?.try_into().ok()?));
        let mut paths = request.get(WHY..)?.split(|b| *b == 0);
        let mut path = || Some(PathBuf::from(OsStr::from_bytes(paths.next()?))).filter(|p| p.is_absolute());
        Some(match (word(0)?, word(8)?) {
            (1, bytes) => DeviceChange::Grow(path()?, Some(bytes).filter(|b| *b > 0)),
            (2, bytes) => DeviceChange::Shrink(bytes),
            (3, force) => DeviceChange::Add(path()?, force > 0),
            (4, _) => DeviceChange::Remove(path()?),
            (5, force) => DeviceChange::Replace(path()?, path()?, force > 0),
            _ => return None,
        })
    }

    /// Makes the change. Returns the two numbers of the answer.
    pub fn make(&self, volume: &Volume) -> lanefs::Result<Grown> {
        self.make_for(volume, &|_| true)
    }

    /// Makes the change for somebody who may have this one device come to the volume, and no other,
    /// of which `its` returns true.
    fn make_for(&self, volume: &Volume, its: &dyn Fn(&FileDevice) -> bool) -> lanefs::Result<Grown> {
        // What was opened is looked at, and used: a path may lead elsewhere the next time.
        let open = |path: &Path| -> lanefs::Result<Arc<FileDevice>> {
            let new = FileDevice::open(path, false)?;
            debug_assert!(new.size() > 0, "an empty device was opened");
            if its(&new) {
                return Ok(Arc::new(new));
            }
            Err(Error::Store(StoreError::Invalid(format!(
                "{}: whoever asks for this has not opened it for writing; name a device that you may write to, \
                 by a path under which the process that serves the mount finds it too",
                path.display()
            ))))
        };
        match self {
            DeviceChange::Grow(path, bytes) => volume.grow_device(path, *bytes),
            DeviceChange::Shrink(bytes) => volume.shrink(*bytes),
            DeviceChange::Add(path, force) => volume.add_open_device(open(path)?, *force),
            DeviceChange::Remove(path) => volume.remove_device(path),
            DeviceChange::Replace(old, new, force) => {
                volume.must_have_device(old)?;
                let done = volume.replace_with_open_device(old, open(new)?, *force, &|_, _| ())?;
                Ok(Grown { before: done.copied, after: done.unreadable })
            }
        }
    }
}

const _: () = assert!(CHANGE_SIZE < 1 << 14, "the commands' numbers have 14 bits for it");
const _: () = assert!(IOC_GROW != IOC_LABEL && WHY + 1 < CHANGE_SIZE);

/// Encodes the argument of [`IOC_GROW`].
pub fn encode_size(bytes: Option<u64>) -> [u8; CHANGE_SIZE] {
    let mut out = [0; CHANGE_SIZE];
    out[..8].copy_from_slice(&bytes.unwrap_or(0).to_le_bytes());
    out
}

/// Encodes the argument of [`IOC_LABEL`]. A label that does not fit is cut off; it is too long in
/// any case.
pub fn encode_label(label: &str) -> [u8; CHANGE_SIZE] {
    let mut out = [0; CHANGE_SIZE];
    out.iter_mut().zip(label.as_bytes().iter().take(CHANGE_SIZE - 1)).for_each(|(o, b)| *o = *b);
    debug_assert_eq!(out[CHANGE_SIZE - 1], 0, "a label ends at the first zero");
    out
}

/// Decodes the mount's answer: the sizes, or why it refused. `None` if it is no answer.
pub fn decode(answer: &[u8]) -> Option<Result<Grown, String>> {
    let word = |at: usize| Some(u64::from_le_bytes(answer.get(at..at + 8)?.try_into().ok()?));
    let why = answer.get(WHY..CHANGE_SIZE)?.split(|b| *b == 0).next()?;
    Some(match word(0)? {
        0 => Ok(Grown { before: word(8)?, after: word(16)? }),
        _ => Err(String::from_utf8_lossy(why).into_owned()),
    })
}

/// Serves [`IOC_GROW`]. `None` if the request makes no sense.
pub(crate) fn grow(volume: &Volume, request: &[u8]) -> Option<lanefs::Result<Vec<u8>>> {
    let bytes = u64::from_le_bytes(request.get(..8)?.try_into().ok()?);
    Some(answer(volume.grow(Some(bytes).filter(|b| *b > 0))))
}

/// Serves [`IOC_LABEL`]. `None` if the request makes no sense.
pub(crate) fn label(volume: &Volume, request: &[u8]) -> Option<lanefs::Result<Vec<u8>>> {
    let text = std::str::from_utf8(request.split(|b| *b == 0).next()?).ok()?;
    Some(answer(volume.set_label(text).map(|()| Grown { before: 0, after: 0 })))
}

/// Serves [`IOC_DEVICE`] for somebody: see [`DeviceChange::make_for`]. `None` if the request makes
/// no sense.
pub(crate) fn device(
    volume: &Volume,
    request: &[u8],
    its: &dyn Fn(&FileDevice) -> bool,
) -> Option<lanefs::Result<Vec<u8>>> {
    debug_assert!(request.len() <= DEVICE_SIZE, "{} bytes were given", request.len());
    let done = DeviceChange::decode(request)?.make_for(volume, its);
    Some(match done {
        // The message is what whoever asked needs: it names the device that failed, which is not
        // always one of the volume.
        Err(Error::Store(e)) => answer(Err(Error::Store(StoreError::Invalid(e.to_string())))),
        done => answer(done),
    })
}

/// Encodes the answer. A change that makes no sense is answered with a message; another error is
/// the call's.
fn answer(done: lanefs::Result<Grown>) -> lanefs::Result<Vec<u8>> {
    let mut out = vec![0; CHANGE_SIZE];
    match done {
        Ok(g) => {
            out[8..16].copy_from_slice(&g.before.to_le_bytes());
            out[16..WHY].copy_from_slice(&g.after.to_le_bytes());
        }
        Err(Error::Store(e)) if Error::Store(e.clone()).errno() == libc::EINVAL => {
            out[0] = 1;
            out[WHY..CHANGE_SIZE - 1].iter_mut().zip(e.to_string().bytes()).for_each(|(o, b)| *o = b);
        }
        Err(e) => return Err(e),
    }
    debug_assert!(decode(&out).is_some());
    debug_assert_eq!(out[CHANGE_SIZE - 1], 0, "a message ends at the first zero");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_trip() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let told = decode(&label(&volume, &encode_label("home")).unwrap().unwrap()).unwrap();
        assert!(told.is_ok() && volume.info().label == "home");
        let why = decode(&label(&volume, &encode_label(&"x".repeat(600))).unwrap().unwrap()).unwrap();
        assert!(why.unwrap_err().contains("64 bytes"));
        let size = volume.info().total_blocks * 4096;
        let same = decode(&grow(&volume, &encode_size(None)).unwrap().unwrap()).unwrap();
        assert_eq!(same, Ok(Grown { before: size, after: size }));
        let why = decode(&grow(&volume, &encode_size(Some(4096))).unwrap().unwrap()).unwrap();
        assert!(why.unwrap_err().contains("smaller"));
        assert!(grow(&volume, &[1]).is_none() && decode(&[0; 100]).is_none());
    }

    #[test]
    fn changes_of_devices_survive_the_trip() {
        let volume = Volume::in_memory(64 << 20).unwrap();
        let path = || PathBuf::from("/tmp/some image");
        let all = [
            DeviceChange::Grow(path(), None),
            DeviceChange::Grow(path(), Some(1 << 40)),
            DeviceChange::Shrink(9 << 20),
            DeviceChange::Add(path(), true),
            DeviceChange::Add(path(), false),
            DeviceChange::Remove(path()),
            DeviceChange::Replace(path(), "/dev/other".into(), true),
            DeviceChange::Replace(path(), "/dev/other".into(), false),
        ];
        for change in all {
            assert_eq!(DeviceChange::decode(&change.encode().unwrap()), Some(change));
        }
        let relative = DeviceChange::Remove("image".into()).encode().unwrap();
        assert!(
            device(&volume, &relative, &|_| true).is_none()
                && DeviceChange::decode(&[9; DEVICE_SIZE]).is_none()
        );
        let half = DeviceChange::Replace(path(), "image".into(), false).encode().unwrap();
        assert!(DeviceChange::decode(&half).is_none());
        let long = PathBuf::from(format!("/{}", "x".repeat(DEVICE_SIZE)));
        assert!(DeviceChange::Remove(long).encode().is_none());
        let asked = |change: DeviceChange| {
            let given = change.encode().unwrap();
            decode(&device(&volume, &given, &|_| false).unwrap().unwrap()).unwrap()
        };
        assert!(asked(DeviceChange::Add("/no/such/image".into(), false)).unwrap_err().contains("/no/such"));
        assert!(asked(DeviceChange::Remove(path())).unwrap_err().contains("is no device of the volume"));
        let replace = DeviceChange::Replace(path(), path(), false);
        assert!(asked(replace).unwrap_err().contains("is no device of the volume"));
        assert!(asked(DeviceChange::Shrink(4096)).unwrap_err().contains("delete files"));
        let done = asked(DeviceChange::Shrink(56 << 20)).unwrap();
        assert_eq!(done, Grown { before: 64 << 20, after: 56 << 20 });
    }
}
