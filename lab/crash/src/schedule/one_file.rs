//! Threads on the same pages of one file, in memory for fewer pages than they touch.
//!
//! Everything happens in units of 512 bytes: a write puts a byte of its own into each unit that it
//! covers, a cut or a hole puts zeros. So each unit is a register, and what is read of it must be
//! what some call on it put there that was made before the reading was answered, and that no other
//! call on it, made after that one was answered, was done with before the reading was made.
//!
//! Two writes that overlap are ordered: one is ahead on every page they share, if memory is not so
//! small that each is written in parts. So where both are to be seen at the end, and nothing was
//! cut, each of the units that they share shows the same one.

use super::*;
use lanefs::{File, OpenOptions};
use std::ops::Range;

/// Frames of the memory for pages. With few a page that is let go of is soon another one; with
/// many a write of three pages is written at once.
const FEW: usize = 16;
const MANY: usize = 64;
/// Pages of the file that is read along, which has others let go of: more than there are frames.
const ALONG: u64 = 96;
const UNIT: u64 = 512;
const _: () = assert!(FEW < MANY && MANY < ALONG as usize, "no page is let go of");
/// Units of the file at first.
const UNITS: u64 = 12 * 8;
/// The byte that the file is made of at first.
const FIRST: u8 = 1;

/// Returns the number of frames that a schedule has. Not by the seed's last bit, by which the clock
/// is chosen.
pub(super) fn frames(seed: u64) -> usize {
    if Rng::new(seed ^ 0xf4a3).one_in(2) { MANY } else { FEW }
}

#[derive(Clone, Debug)]
enum Call {
    /// Writes a byte of its own into these units.
    Write(Range<u64>, u8),
    Read(Range<u64>),
    /// Sets the size to so many units.
    Cut(u64),
    Punch(Range<u64>),
    Sync,
    /// Reads so many pages of the other file.
    Along(Range<u64>),
}

/// A call, when it was made and answered, and what it read: a byte for each unit.
struct Made {
    call: Call,
    called: u64,
    answered: u64,
    read: Vec<u8>,
}

fn draw(rng: &mut Rng, fresh: &mut u8, cuts: bool) -> Call {
    let first = rng.below(UNITS / 2);
    // Whole pages and parts of them; never more than three.
    let first = if rng.one_in(2) { first / 8 * 8 } else { first };
    let len = if rng.one_in(2) { 8 * (1 + rng.below(2)) } else { 1 + rng.below(16) };
    let range = first..(first + len).min(UNITS);
    match rng.below(16) {
        0..7 => {
            *fresh += 1;
            Call::Write(range, *fresh)
        }
        7..10 => Call::Read(range),
        10 if cuts => Call::Cut(rng.below(UNITS)),
        11 if cuts => Call::Punch(range),
        12 => Call::Sync,
        _ => {
            let first = rng.below(ALONG - 8);
            Call::Along(first..first + 8)
        }
    }
}

fn bytes_of(units: &Range<u64>) -> usize {
    ((units.end - units.start) * UNIT) as usize
}

/// Makes a call; returns what it read. A unit of which the bytes differ is torn.
fn make(file: &File, along: &File, call: &Call) -> Result<Vec<u8>, Violation> {
    let fail = |e: lanefs::Error| broken("answer", format!("{call:?}: {e}"));
    match call {
        Call::Write(units, byte) => {
            let buf = vec![*byte; bytes_of(units)];
            file.write_all_at(&buf, units.start * UNIT).map_err(fail)?;
        }
        Call::Cut(size) => file.set_len(size * UNIT).map_err(fail)?,
        Call::Punch(units) => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            file.allocate(mode, units.start * UNIT, bytes_of(units) as u64).map_err(fail)?;
        }
        Call::Sync => file.sync_all().map_err(fail)?,
        Call::Along(pages) => {
            let mut buf = [0; 4096];
            for page in pages.clone() {
                if along.read_at(&mut buf, page * 4096).map_err(fail)? != 4096 || buf != [FIRST; 4096] {
                    return Err(broken("answer", format!("page {page} of the file that nobody changes")));
                }
            }
        }
        Call::Read(units) => return read(file, units).map_err(fail)?,
    }
    Ok(Vec::new())
}

/// Reads units: a byte for each as far as the file reaches.
fn read(file: &File, units: &Range<u64>) -> lanefs::Result<Result<Vec<u8>, Violation>> {
    let mut buf = vec![0; bytes_of(units)];
    let len = file.read_at(&mut buf, units.start * UNIT)?;
    let torn = |unit: &[u8]| unit.iter().any(|b| *b != unit[0]);
    let (whole, rest) = buf[..len].as_chunks::<{ UNIT as usize }>();
    Ok(if !rest.is_empty() || whole.iter().any(|unit| torn(unit)) {
        Err(broken("torn", format!("{units:?}: {len} bytes, {:?}", whole.iter().map(|u| u[0]))))
    } else {
        Ok(whole.iter().map(|unit| unit[0]).collect())
    })
}

/// Returns what a call puts into a unit, if it covers it.
fn puts(call: &Call, unit: u64) -> Option<u8> {
    match call {
        Call::Write(units, byte) if units.contains(&unit) => Some(*byte),
        Call::Punch(units) if units.contains(&unit) => Some(0),
        // What a file grows by is zeros, wherever it grew from.
        Call::Cut(_) => Some(0),
        _ => None,
    }
}

/// Returns whether a unit may have this byte for who asked from `called` to `answered`. A write
/// behind the end makes zeros before itself, so these are believed wherever something was cut.
fn may_be(made: &[Made], unit: u64, byte: u8, (called, answered): (u64, u64)) -> bool {
    let put = |m: &&Made| puts(&m.call, unit) == Some(byte) && m.called < answered;
    // Not one that does nothing to the unit, since it lies inside the new size.
    let covers = |m: &Made| match m.call {
        Call::Cut(size) => unit >= size,
        _ => puts(&m.call, unit).is_some(),
    };
    let hidden = |since: u64| made.iter().any(|m| covers(m) && m.called > since && m.answered < called);
    byte == FIRST && !hidden(0) || made.iter().filter(put).any(|m| !hidden(m.answered))
}

/// Returns two writes that overlap, and each of which is to be seen where both wrote.
fn crossed(made: &[Made], end: &[u8]) -> Option<(Call, Call)> {
    let writes = || {
        made.iter().filter_map(|m| match &m.call {
            Call::Write(units, byte) => Some((&m.call, units, *byte)),
            _ => None,
        })
    };
    let shown = |units: Range<u64>, byte: u8| units.into_iter().any(|u| end.get(u as usize) == Some(&byte));
    writes().flat_map(|a| writes().map(move |b| (a, b))).find_map(|((a, ua, byte_a), (b, ub, byte_b))| {
        let both = ua.start.max(ub.start)..ua.end.min(ub.end);
        (byte_a < byte_b && shown(both.clone(), byte_a) && shown(both, byte_b))
            .then(|| (a.clone(), b.clone()))
    })
}

fn transcript(made: &[Made]) -> String {
    let one = |m: &Made| format!("{}..{} {:?} {:?}", m.called, m.answered, m.call, m.read);
    made.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn run(seed: u64, live: &Live, counts: &mut Counts, crashes: &mut u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x0f11);
    let n = 3 + rng.below(2) as usize;
    let (cuts, mut fresh) = (rng.one_in(2), FIRST);
    let work: Vec<Vec<Call>> =
        (0..n).map(|_| (0..10).map(|_| draw(&mut rng, &mut fresh, cuts)).collect()).collect();
    let fail = |e: lanefs::Error| broken("answer", format!("making the files: {e}"));
    let fs = live.volume.fs();
    fs.write("/file", vec![FIRST; (UNITS * UNIT) as usize]).map_err(fail)?;
    fs.write("/along", vec![FIRST; ALONG as usize * 4096]).map_err(fail)?;
    live.volume.sync().map_err(fail)?;
    let open = |name: &str| fs.open(name, OpenOptions::new().read(true).write(true)).map_err(fail);
    let (file, along) = (open("/file")?, open("/along")?);
    let rounds = rng.below(5);
    let made = in_turns(
        seed,
        live,
        &work,
        rounds,
        counts,
        || (),
        |(), call| {
            let called = live.recorder.mark("");
            let read = make(&file, &along, call)?;
            let answered = live.recorder.mark("");
            Ok(Made { call: call.clone(), called, answered, read })
        },
    )?;
    let made: Vec<Made> = made.into_iter().flatten().collect();
    let end = read(&file, &(0..2 * UNITS)).map_err(fail)??;
    judge(&made, &end, cuts, frames(seed) == MANY)?;
    live.volume.sync().map_err(fail)?;
    drop((file, along));
    let log = live.recorder.log();
    live.volume.shutdown();
    let (image, how) = crashed(&log, &live.base, log.now, &mut rng);
    *crashes += 1;
    let device: Arc<dyn Device> = Arc::new(crate::crash::image::CowDevice::new(image));
    let lost = |e: lanefs::Error| broken("R1", format!("recovery failed, {how}: {e}"));
    let found = Volume::open_devices(vec![device], &system(seed).mount).map_err(lost)?;
    let left = found.fs().open("/file", OpenOptions::new().read(true)).map_err(lost)?;
    let after = read(&left, &(0..2 * UNITS)).map_err(lost)??;
    drop(left);
    found.shutdown();
    if after != end {
        let what = format!("after sync and a crash {after:?} instead of {end:?}; {}", transcript(&made));
        return Err(broken("C2", what));
    }
    Ok(())
}

/// Looks at what was read, and at the content of the file at the end.
fn judge(made: &[Made], end: &[u8], cuts: bool, ordered: bool) -> Result<(), Violation> {
    let wrong = |what: String| Err(broken("linear", format!("{what}; {}", transcript(made))));
    for m in made {
        let Call::Read(units) = &m.call else { continue };
        for (unit, byte) in units.clone().zip(&m.read) {
            if !may_be(made, unit, *byte, (m.called, m.answered)) {
                return wrong(format!("{:?} found {byte} in unit {unit}", m.call));
            }
        }
    }
    for (unit, byte) in (0..).zip(end) {
        if !may_be(made, unit, *byte, (u64::MAX, u64::MAX)) {
            return wrong(format!("{byte} is left in unit {unit}"));
        }
    }
    match crossed(made, end).filter(|_| !cuts && ordered) {
        Some((a, b)) => wrong(format!("each of {a:?} and {b:?} is ahead of the other: {end:?}")),
        None if !cuts && end.len() as u64 != UNITS => wrong(format!("{} units are left", end.len())),
        None => Ok(()),
    }
}
