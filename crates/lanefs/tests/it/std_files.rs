//! Open files by the traits of `std`, beside files of the system.

use crate::std_names::in_memory;
use crate::{errno, root};
use lanefs::{Error, OpenOptions};
use proptest::prelude::*;
use std::io::{self, BufRead, ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

#[derive(Clone, Debug)]
enum Call {
    Read(usize),
    ReadExact(usize),
    ReadToEnd,
    ReadVectored(usize, usize),
    Write(usize),
    WriteVectored(usize, usize),
    Seek(SeekFrom),
    ReadAt(usize, u64),
    ReadExactAt(usize, u64),
    WriteAt(usize, u64),
    Position,
}

fn call() -> impl Strategy<Value = Call> {
    let len = 0..9000_usize;
    let at = 0..40_000_u64;
    prop_oneof![
        len.clone().prop_map(Call::Read),
        len.clone().prop_map(Call::ReadExact),
        Just(Call::ReadToEnd),
        (len.clone(), len.clone()).prop_map(|(a, b)| Call::ReadVectored(a, b)),
        len.clone().prop_map(Call::Write),
        (len.clone(), len.clone()).prop_map(|(a, b)| Call::WriteVectored(a, b)),
        at.clone().prop_map(|a| Call::Seek(SeekFrom::Start(a))),
        (-20_000..20_000_i64).prop_map(|a| Call::Seek(SeekFrom::Current(a))),
        (-20_000..20_000_i64).prop_map(|a| Call::Seek(SeekFrom::End(a))),
        Just(Call::Seek(SeekFrom::Start(u64::MAX))),
        (len.clone(), at.clone()).prop_map(|(n, a)| Call::ReadAt(n, a)),
        (len.clone(), at.clone()).prop_map(|(n, a)| Call::ReadExactAt(n, a)),
        (len, at).prop_map(|(n, a)| Call::WriteAt(n, a)),
        Just(Call::Position),
    ]
}

/// What a call answers: a number and bytes, or the kind of its error.
type Answer = Result<(u64, Vec<u8>), ErrorKind>;

fn answer(file: &mut (impl Read + Write + Seek + FileExt), call: &Call, n: u8) -> Answer {
    let mut buf = Vec::new();
    let mut other = Vec::new();
    let bytes = |len: usize| -> Vec<u8> { (0..len).map(|i| (i as u8).wrapping_mul(n | 1)).collect() };
    let done: io::Result<u64> = match *call {
        Call::Read(len) => {
            buf.resize(len, 0);
            file.read(&mut buf).map(|n| n as u64)
        }
        Call::ReadExact(len) => {
            buf.resize(len, 0);
            let r = file.read_exact(&mut buf);
            // What is in the buffer after an error is nobody's promise.
            if r.is_err() {
                buf.clear();
            }
            r.map(|()| 0)
        }
        Call::ReadToEnd => {
            buf.push(7);
            file.read_to_end(&mut buf).map(|n| n as u64)
        }
        Call::ReadVectored(a, b) => {
            buf.resize(a, 0);
            other.resize(b, 0);
            file.read_vectored(&mut [IoSliceMut::new(&mut buf), IoSliceMut::new(&mut other)])
                .map(|n| n as u64)
        }
        Call::Write(len) => file.write(&bytes(len)).map(|n| n as u64),
        Call::WriteVectored(a, b) => {
            let (a, b) = (bytes(a), bytes(b));
            file.write_vectored(&[IoSlice::new(&a), IoSlice::new(&b)]).map(|n| n as u64)
        }
        Call::Seek(to) => file.seek(to),
        Call::ReadAt(len, at) => {
            buf.resize(len, 0);
            file.read_at(&mut buf, at).map(|n| n as u64)
        }
        Call::ReadExactAt(len, at) => {
            buf.resize(len, 0);
            let r = file.read_exact_at(&mut buf, at);
            if r.is_err() {
                buf.clear();
            }
            r.map(|()| 0)
        }
        Call::WriteAt(len, at) => file.write_all_at(&bytes(len), at).map(|()| len as u64),
        Call::Position => file.flush().and_then(|()| file.stream_position()),
    };
    buf.append(&mut other);
    done.map(|n| (n, buf)).map_err(|e| e.kind())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn files_answer_as_those_of_std(calls in prop::collection::vec(call(), 1..60), append in any::<bool>()) {
        let (fs, _) = root(16);
        let dir = in_memory();
        let mut ours = fs
            .open("f", OpenOptions::new().read(true).write(true).append(append).create(true))
            .unwrap();
        let mut theirs = std::fs::OpenOptions::new()
            .read(true).write(true).append(append).create(true).truncate(false)
            .open(dir.path().join("f"))
            .unwrap();
        for (n, call) in calls.iter().enumerate() {
            let n = n as u8;
            // Where appending goes to with `pwrite` is Linux's own; so is where the cursor is then.
            if append && matches!(call, Call::WriteAt(..)) {
                continue;
            }
            prop_assert_eq!(answer(&mut ours, call, n), answer(&mut theirs, call, n), "{:?}", call);
        }
        prop_assert_eq!(fs.read("f").unwrap(), std::fs::read(dir.path().join("f")).unwrap());
    }
}

#[test]
fn what_takes_a_reader_or_a_writer_takes_a_file() {
    let (fs, _) = root(32);
    let file = fs.create("f").unwrap();
    let mut out = io::BufWriter::new(&file);
    for n in 0..10_000 {
        writeln!(out, "line {n}").unwrap();
    }
    out.flush().unwrap();
    drop(out);
    (&file).rewind().unwrap();
    let lines: Vec<String> = io::BufReader::new(&file).lines().collect::<io::Result<_>>().unwrap();
    assert_eq!((lines.len(), lines[9999].as_str()), (10_000, "line 9999"));
    (&file).rewind().unwrap();
    let mut copy = fs.create("copy").unwrap();
    let copied = io::copy(&mut &file, &mut copy).unwrap();
    assert_eq!(copied, file.metadata().unwrap().len());
    assert_eq!(fs.read("copy").unwrap(), fs.read("f").unwrap());
    assert_eq!(fs.read_to_string("copy").unwrap().lines().count(), 10_000);
}

#[test]
fn an_early_end_is_told_apart_from_a_device_that_failed() {
    let (fs, _) = root(16);
    fs.write("f", b"four").unwrap();
    let file = fs.open("f", &OpenOptions::new()).unwrap();
    let early = file.read_exact_at(&mut [0; 5], 0);
    assert!(matches!(early, Err(Error::UnexpectedEnd)));
    assert_eq!(errno(early), libc::EIO);
    assert_eq!(FileExt::read_exact_at(&file, &mut [0; 5], 0).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    file.read_exact_at(&mut [0; 4], 0).unwrap();
    fs.write("g", b"\xff").unwrap();
    assert!(matches!(fs.read_to_string("g"), Err(Error::NotUtf8)));
}

#[test]
fn reading_to_the_end_asks_for_no_room_that_is_not_there() {
    let (fs, _) = root(16);
    let file = fs.create("f").unwrap();
    file.set_len((1 << 63) - 1).unwrap();
    assert_eq!(errno(fs.read("f")), libc::ENOMEM);
    let mut tail = vec![1];
    assert_eq!(file.read_to_end_at(&mut tail, (1 << 63) - 10).unwrap(), 9);
    assert_eq!(tail, [&[1][..], &[0; 9]].concat());
    assert_eq!(file.read_to_end_at(&mut tail, u64::MAX).unwrap(), 0);
}
