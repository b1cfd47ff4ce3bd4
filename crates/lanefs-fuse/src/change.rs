//! Changes of a mounted volume as a whole, by `ioctl` of a directory of the mount, for root and
//! whoever serves it: a larger size, another label.
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

use lanefs::{Error, Grown, Volume};

/// Bytes of the argument.
pub const CHANGE_SIZE: usize = 512;
/// `ioctl` on a directory of the mount: makes the volume larger.
pub const IOC_GROW: u32 = 3 << 30 | (CHANGE_SIZE as u32) << 16 | 0x4c05;
/// `ioctl` on a directory of the mount: gives the volume another label.
pub const IOC_LABEL: u32 = 3 << 30 | (CHANGE_SIZE as u32) << 16 | 0x4c06;

/// The offset of the message.
const WHY: usize = 24;

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

/// Encodes the answer. A change that makes no sense is answered with a message; another error is
/// the call's.
fn answer(done: lanefs::Result<Grown>) -> lanefs::Result<Vec<u8>> {
    let mut out = vec![0; CHANGE_SIZE];
    match done {
        Ok(g) => {
            debug_assert!(g.before <= g.after, "a volume never shrinks");
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
}
