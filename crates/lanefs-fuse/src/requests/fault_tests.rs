//! Reads, writes and fsyncs, as the kernel asks for them, over a device that fails and then loses
//! its power.
//!
//! Whatever fails: a READ answers all the bytes that were asked for, each as some write left it, or
//! an errno; never fewer bytes, which the kernel takes for a hole or the end of the file. A WRITE
//! of the kernel's cache is done in full or answers an errno. What an FSYNC acknowledged is there
//! after the power loss, unless a later write took its place. `LANEFS_FAULT_CASES` and
//! `LANEFS_FAULT_SEED` make it longer.

use super::*;
use crate::adaptor_tests::{AGREED, adaptor_of};
use crate::wire::abi::{IN_HEADER, OUT_HEADER, WRITE_CACHE};
use crate::wire::{Agreed, ReplyBuffer};
use lanefs::{MountOptions, Volume};
use lanefs_store::device::{
    Crash, Device as Medium, Fate, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan, Recorder, When,
};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::random::Rng;
use std::sync::Arc;

/// Bytes that carry one version.
const UNIT: usize = 512;
/// Units of a file, more in all files together than the volume's cache holds.
const UNITS: usize = 4096;
const FILES: u64 = 4;
const MOST: u32 = 1 << 17;

/// The versions that a unit may hold.
#[derive(Clone, Debug)]
struct Unit {
    /// When it is read: the version of the last write, and of those that failed since.
    now: Vec<u64>,
    /// After a crash: what the last fsync made durable, and what was written since.
    kept: Vec<u64>,
}

struct File {
    ino: u64,
    handle: u64,
    units: Vec<Unit>,
}

/// The server in this process, and what it was asked.
struct Server {
    adaptor: Adaptor,
    origin: Origin,
    unique: u64,
}

impl Server {
    /// One request: its answer's bytes, or the errno.
    fn ask(&mut self, op: u32, ino: u64, body: &[u8]) -> Result<(Vec<u8>, Option<u64>), i32> {
        self.unique += 2;
        let mut r = Vec::with_capacity(IN_HEADER + body.len());
        r.extend(((IN_HEADER + body.len()) as u32).to_ne_bytes());
        r.extend(op.to_ne_bytes());
        r.extend(self.unique.to_ne_bytes());
        r.extend(ino.to_ne_bytes());
        [0_u32, 0, 4711, 0].iter().for_each(|w| r.extend(w.to_ne_bytes()));
        r.extend(body);
        let req = Request::decode(&r).expect("a whole request");
        let mut out = ReplyBuffer::new(MOST as usize);
        let mut reply = Reply::over(out.bytes());
        let result = serve(&self.adaptor, &req, &mut reply, &self.origin);
        assert!(reply.answer == Answer::Now);
        let opened = reply.opened;
        let answer = reply.finish(req.unique, result).to_vec();
        match i32::from_ne_bytes([answer[4], answer[5], answer[6], answer[7]]) {
            0 => Ok((answer[OUT_HEADER..].to_vec(), opened)),
            e => Err(-e),
        }
    }

    /// Writes, and returns how many units were written.
    fn write(&mut self, f: &File, unit: usize, n: usize, version: u64, flags: u32) -> Result<usize, i32> {
        let mut b = Vec::new();
        b.extend(f.handle.to_ne_bytes());
        b.extend(((unit * UNIT) as u64).to_ne_bytes());
        [(n * UNIT) as u32, flags, 0, 0, 0, 0].iter().for_each(|w| b.extend(w.to_ne_bytes()));
        (0..n * UNIT / 8).for_each(|_| b.extend(version.to_ne_bytes()));
        let (answer, _) = self.ask(op::WRITE, f.ino, &b)?;
        let written = u32::from_ne_bytes(*answer.first_chunk().unwrap()) as usize / UNIT;
        // A program is told how much was written; the kernel, of its cache, looks at the errno
        // alone.
        assert!(flags & WRITE_CACHE == 0 || written == n, "of the cache {written} of {n} were written");
        Ok(written)
    }

    fn read(&mut self, f: &File, unit: usize, n: usize) -> Result<Vec<u8>, i32> {
        let mut b = Vec::new();
        b.extend(f.handle.to_ne_bytes());
        b.extend(((unit * UNIT) as u64).to_ne_bytes());
        [(n * UNIT) as u32, 0, 0, 0, 0, 0].iter().for_each(|w| b.extend(w.to_ne_bytes()));
        Ok(self.ask(op::READ, f.ino, &b)?.0)
    }

    fn fsync(&mut self, f: &File, data_only: bool) -> Result<(), i32> {
        let mut b = f.handle.to_ne_bytes().to_vec();
        [u32::from(data_only), 0].iter().for_each(|w| b.extend(w.to_ne_bytes()));
        self.ask(op::FSYNC, f.ino, &b).map(drop)
    }
}

/// The version of a unit, which must be all of one.
fn version(bytes: &[u8]) -> Option<u64> {
    let first = u64::from_ne_bytes(bytes.first_chunk().copied()?);
    bytes.as_chunks::<8>().0.iter().all(|w| u64::from_ne_bytes(*w) == first).then_some(first)
}

/// Reads and writes that fail one in so many times.
fn faults(rng: &mut Rng) -> Plan {
    let fail = |plan: Plan, kind, one_in| {
        let when = When { one_in: Some(one_in), ..When::default() };
        plan.rule(kind, when, Fault::Error(libc::EIO))
    };
    let plan = Plan { seed: rng.below(u64::MAX), ..Plan::default() };
    let often = [3, 10, 60][rng.below(3) as usize];
    fail(plan, Kind::Read, often)
}

fn run(seed: u64) {
    let rng = &mut Rng::at(seed);
    let device = Arc::new(MemoryDevice::new(48 << 20).unwrap());
    let plain: Arc<dyn Medium> = device.clone();
    Store::format(&[plain], &FormatOptions::default()).unwrap();
    let base = MemoryImage::capture(&*device).unwrap();
    let recorder = Recorder::new();
    let faulty = Arc::new(FaultyDevice::new(recorder.wrap(device), Plan::none()));
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    let volume = Volume::open_devices(vec![faulty.clone() as Arc<dyn Medium>], &options).unwrap();
    let writeback = rng.below(2) == 0;
    let stateless = !writeback && rng.below(2) == 0;
    let (adaptor, wire) = adaptor_of(volume.clone(), Agreed { writeback, stateless, ..AGREED });
    let mut server = Server { adaptor, origin: Origin::Device(wire), unique: 0 };
    let cached = if writeback { WRITE_CACHE } else { 0 };
    let mut files: Vec<File> = (0..FILES)
        .map(|n| {
            let mut b = Vec::new();
            let (op, words) = match stateless {
                true => (op::MKNOD, [libc::S_IFREG | 0o644, 0, 0, 0]),
                false => (op::CREATE, [libc::O_RDWR as u32, 0o644, 0, 0]),
            };
            words.iter().for_each(|w| b.extend(w.to_ne_bytes()));
            b.extend(format!("f{n}\0").as_bytes());
            let (answer, handle) = server.ask(op, 1, &b).unwrap();
            assert_eq!(handle.is_none(), stateless, "a handle that nobody would release");
            let ino = u64::from_ne_bytes(*answer.first_chunk().unwrap());
            let unit = Unit { now: vec![1], kept: vec![1] };
            File { ino, handle: handle.unwrap_or(0), units: vec![unit; UNITS] }
        })
        .collect();
    for f in &files {
        (0..UNITS).step_by(128).for_each(|at| assert_eq!(server.write(f, at, 128, 1, cached), Ok(128)));
        server.fsync(f, false).unwrap();
    }
    let mut next = 1;
    let (mut failed, mut failing) = (0, false);
    let calls = 300;
    for call in 0..calls {
        // At last, writes and flushes fail too: from then on the volume refuses what it cannot
        // keep.
        if call == calls * 4 / 5 && rng.below(2) == 0 {
            let when = When { one_in: Some(8), ..When::default() };
            let kind = if rng.below(2) == 0 { Kind::Write } else { Kind::Flush };
            faulty.set_plan(faults(rng).rule(kind, when, Fault::Error(libc::EIO)));
            failing = true;
        } else if call % 40 == 0 && call < calls * 4 / 5 {
            failing = rng.below(3) > 0;
            faulty.set_plan(if failing { faults(rng) } else { Plan::none() });
        }
        let f = &mut files[rng.below(FILES) as usize];
        let n = [1, 3, 8, 64, 128, 256][rng.below(6) as usize];
        let at = rng.below((UNITS - n) as u64 + 1) as usize;
        // Whole pages half of the time.
        let at = if n >= 8 && rng.below(2) == 0 { at / 8 * 8 } else { at };
        let kind = rng.below(10);
        let result = match kind {
            0..=3 => {
                next += 1;
                let result = server.write(f, at, n, next, cached);
                for (place, unit) in f.units[at..at + n].iter_mut().enumerate() {
                    if result.is_ok_and(|written| place < written) {
                        unit.now.clear();
                    }
                    unit.now.push(next);
                    unit.kept.push(next);
                }
                result.map(drop)
            }
            4..=7 => server.read(f, at, n).map(|bytes| {
                assert_eq!(bytes.len(), n * UNIT, "seed {seed}, call {call}: a short answer reads as zeros");
                for (unit, bytes) in f.units[at..at + n].iter().zip(bytes.chunks(UNIT)) {
                    let found = version(bytes);
                    assert!(
                        found.is_some_and(|v| unit.now.contains(&v)),
                        "seed {seed}, call {call}: read {found:?}, written {:?}",
                        unit.now
                    );
                }
            }),
            8 => {
                let mut result = server.fsync(f, rng.below(2) == 0);
                if result == Err(libc::EIO) && !failing {
                    // What failed meanwhile is told once, also where no handle is known: all
                    // requests here are those of one thread.
                    result = server.fsync(f, false);
                }
                if result.is_ok() {
                    f.units.iter_mut().for_each(|u| u.kept.clone_from(&u.now));
                }
                result
            }
            _ => volume.tick().map_err(|e| e.errno()),
        };
        if let Err(e) = result {
            assert!(failing, "seed {seed}, call {call}: errno {e} to {kind} while nothing failed");
            assert!([libc::EIO, libc::EROFS].contains(&e), "seed {seed}, call {call}: errno {e}");
            failed += 1;
        }
    }
    let log = recorder.log();
    volume.shutdown();
    for f in &files {
        let _ = server.ask(op::RELEASE, f.ino, &[&f.handle.to_ne_bytes()[..], &[0; 16]].concat());
    }
    server.adaptor.end();
    let crash = Crash::new(&log, log.now);
    for fate in 0..3 {
        let image = crash
            .build(std::slice::from_ref(&base), |_, _| match fate {
                0 => Fate::Lost,
                1 => Fate::Whole,
                _ if rng.below(2) == 0 => Fate::Whole,
                _ => Fate::Lost,
            })
            .unwrap();
        let devices = image.into_iter().map(|d| Arc::new(d) as Arc<dyn Medium>).collect();
        let volume = Volume::open_devices(devices, &options).unwrap();
        for (n, f) in files.iter().enumerate() {
            let bytes = volume.fs().read(format!("/f{n}")).unwrap();
            assert_eq!(bytes.len(), UNITS * UNIT, "seed {seed}");
            for (place, (unit, bytes)) in f.units.iter().zip(bytes.chunks(UNIT)).enumerate() {
                let found = version(bytes);
                assert!(
                    found.is_some_and(|v| unit.kept.contains(&v)),
                    "seed {seed}, after a power loss ({fate}): unit {place} of f{n} is {found:?}, promised {:?}",
                    unit.kept
                );
            }
        }
        volume.shutdown();
    }
    eprintln!("seed {seed}: {failed} of {calls} calls failed");
}

#[test]
fn what_a_failing_device_gives_is_right_or_an_error_and_what_was_synced_stays() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let first = number("LANEFS_FAULT_SEED").unwrap_or(1);
    (first..first + number("LANEFS_FAULT_CASES").unwrap_or(24)).for_each(run);
}
